/* bounds.c - the two lower bounds of a step in closed form (docs/design.md, section 4).
 *
 * hardware: no schedule can beat it.  schedule: no execution of this plan's policy can beat it.  On a cpu device compute,
 * copies and updates share the cores, so their times add. */
#include "offload/plan_build.h"

#include <string.h>

static double per_second(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double io_seconds(const struct st_machine *m, double read, double write)
{
    return larger(larger(per_second(read, m->read), per_second(write, m->write)), per_second(read + write, m->mixed));
}

static double less(uint64_t bytes, uint64_t spared)
{
    return bytes > spared ? (double)(bytes - spared) : 0;
}

/* The ops between which updates must run: forward when gated, backward when in backward, what follows the end when serial. */
static void update_window(const struct st_plan *plan, uint32_t *first, uint32_t *end)
{
    uint32_t backward = plan->op_count, last = 0;

    for (uint32_t i = 0; i < plan->op_count; i++) {
        if (plan->ops[i].kind == ST_OP_HEAD_GRAD && backward == plan->op_count)
            backward = i;
        if (plan->ops[i].kind == ST_OP_END)
            last = i;
    }
    *first = plan->policy.update == ST_UPDATE_SERIAL ? last : plan->policy.update == ST_UPDATE_GATED ? 0 : backward;
    *end = plan->policy.update == ST_UPDATE_GATED ? backward : plan->op_count;
}

/* Disk time that no execution can move out of the update window: all its traffic but what state slots hold ahead and behind. */
static double window_io_seconds(const struct st_plan *plan)
{
    uint64_t read = 0, write = 0, largest = 0, slots;
    uint32_t first, end;

    update_window(plan, &first, &end);
    for (uint32_t i = first; i < end; i++) {
        const struct st_op *op = &plan->ops[i];

        if ((op->phases & ST_PHASE_BODY) == 0)
            continue;
        if (op->lane == ST_LANE_READ_STATE || op->lane == ST_LANE_READ_WEIGHT)
            read += op->bytes;
        else if (op->lane == ST_LANE_WRITE)
            write += op->bytes;
        if (op->kind == ST_OP_WRITE_STATE && op->bytes > largest)
            largest = op->bytes;
    }
    slots = largest * plan->state_slots;
    return io_seconds(&plan->machine, less(read, plan->policy.update == ST_UPDATE_GATED ? 0 : slots), less(write, slots));
}

static void add_compute(struct st_bounds *b, const struct st_plan *plan)
{
    const struct st_workload *w = &plan->workload;
    const double g = w->grad_accum, rate = plan->machine.matmul_flops;
    const double recomputed = (double)(w->block_count - plan->kept_blocks) * w->block_forward_flops;

    b->compute_forward = per_second(g * (w->block_count * w->block_forward_flops + w->head_forward_flops), rate);
    b->compute_backward = per_second(g * (w->block_count * w->block_backward_flops + w->head_backward_flops + recomputed), rate);
}

/* Which of several times binds. */
static void binds(struct st_bounds *b, double *most, double seconds, const char *name)
{
    if (seconds > *most) {
        *most = seconds;
        b->bound_by = name;
    }
}

/* Shortest step of the policy whose updates take `work` seconds of a resource of their own. */
static double policy_seconds(const struct st_plan *plan, double forward, double backward, double work)
{
    switch (plan->policy.update) {
    case ST_UPDATE_SERIAL:
        return forward + backward + work;
    case ST_UPDATE_IN_BACKWARD:
        return forward + larger(backward, work);
    default:
        return backward + larger(forward, work);
    }
}

/* On a cpu device everything but the disk shares the cores. */
static void bound_shared(struct st_bounds *b, const struct st_plan *plan, double window)
{
    const double cores = b->compute_forward + b->compute_backward + b->upload + b->download + b->update;
    double most = 0;

    b->copy = b->upload + b->download;
    b->hardware = larger(cores, b->io);
    b->schedule = larger(b->hardware, policy_seconds(plan, b->compute_forward, b->compute_backward, window));
    binds(b, &most, cores, "compute");
    binds(b, &most, b->schedule, "nvme");
}

static void bound_apart(struct st_bounds *b, const struct st_plan *plan, double window)
{
    const double compute = b->compute_forward + b->compute_backward;
    double most = 0;

    b->hardware = larger(larger(compute, b->io), larger(larger(b->upload, b->download), b->update));
    b->schedule = policy_seconds(plan, b->compute_forward, b->compute_backward, larger(b->update, window));
    b->schedule = larger(b->schedule, b->hardware);
    binds(b, &most, compute, "compute");
    binds(b, &most, b->io, "nvme");
    binds(b, &most, b->upload, "upload");
    binds(b, &most, b->download, "download");
    binds(b, &most, b->update, "update");
}

void st_plan_bounds(struct st_plan *plan)
{
    const struct st_machine *m = &plan->machine;
    const struct st_traffic *t = &plan->traffic[1];
    struct st_bounds *b = &plan->bounds;

    memset(b, 0, sizeof(*b));
    b->bound_by = "unknown";
    add_compute(b, plan);
    b->upload = per_second((double)t->upload, m->upload);
    b->download = per_second((double)t->download, m->download);
    b->update = per_second((double)plan->workload.params, m->update);
    b->io = io_seconds(m, (double)t->read, (double)t->write);
    if (m->matmul_flops <= 0 || (t->read > 0 && m->read <= 0) || (t->write > 0 && m->write <= 0))
        return; /* a resource whose rate nobody knows could be the one that binds */
    if (m->device_is_host)
        bound_shared(b, plan, window_io_seconds(plan));
    else
        bound_apart(b, plan, window_io_seconds(plan));
}

void st_plan_set_rates(struct st_plan *plan, const struct st_machine *rates)
{
    plan->machine.matmul_flops = rates->matmul_flops;
    plan->machine.upload = rates->upload;
    plan->machine.download = rates->download;
    plan->machine.read = rates->read;
    plan->machine.write = rates->write;
    plan->machine.mixed = rates->mixed;
    plan->machine.update = rates->update;
    st_plan_bounds(plan);
}
