/* bounds.c - the two lower bounds of a step in closed form (docs/design.md, "Bounds"; DESIGN section 4).
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

/* The ops between which updates must run: forward when gated, what follows the end of the step when serial. */
static void update_window(const struct st_plan *plan, uint32_t *first, uint32_t *end)
{
    *first = 0;
    *end = plan->op_count;
    for (uint32_t i = 0; i < plan->op_count; i++) {
        if (plan->policy.update == ST_UPDATE_SERIAL && plan->ops[i].kind == ST_OP_END)
            *first = i;
        if (plan->policy.update != ST_UPDATE_SERIAL && plan->ops[i].kind == ST_OP_HEAD_GRAD && *end > i)
            *end = i;
    }
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
    return io_seconds(&plan->machine, less(read, plan->policy.update == ST_UPDATE_SERIAL ? slots : 0), less(write, slots));
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

void st_plan_bounds(struct st_plan *plan)
{
    const struct st_machine *m = &plan->machine;
    const struct st_traffic *t = &plan->traffic[1];
    struct st_bounds *b = &plan->bounds;
    double forward, backward, shared, window, most = 0;

    memset(b, 0, sizeof(*b));
    b->bound_by = "unknown";
    add_compute(b, plan);
    b->upload = per_second((double)t->upload, m->upload);
    b->download = per_second((double)t->download, m->download);
    b->update = per_second((double)plan->workload.params, m->update);
    b->io = io_seconds(m, (double)t->read, (double)t->write);
    if (m->matmul_flops <= 0)
        return;
    forward = b->compute_forward;
    backward = b->compute_backward;
    window = window_io_seconds(plan);
    if (m->device_is_host) {
        shared = b->upload + b->download + b->update;
        b->copy = b->upload + b->download;
        b->hardware = larger(forward + backward + shared, b->io);
        binds(b, &most, forward + backward + shared, "compute");
        binds(b, &most, b->io, "nvme");
        if (plan->policy.update == ST_UPDATE_SERIAL)
            b->schedule = forward + backward + b->copy + larger(b->update, window);
        else
            b->schedule = larger(forward + backward + shared, backward + window);
        b->schedule = larger(b->schedule, b->io);
        if (b->schedule > forward + backward + shared)
            b->bound_by = "nvme";
        return;
    }
    b->hardware = larger(larger(forward + backward, b->io), larger(larger(b->upload, b->download), b->update));
    if (plan->policy.update == ST_UPDATE_SERIAL)
        b->schedule = forward + backward + larger(b->update, window);
    else
        b->schedule = backward + larger(forward, larger(b->update, window));
    b->schedule = larger(larger(b->schedule, b->io), larger(b->upload, b->download));
    binds(b, &most, forward + backward, "compute");
    binds(b, &most, b->io, "nvme");
    binds(b, &most, b->upload, "upload");
    binds(b, &most, b->download, "download");
    binds(b, &most, b->update, "update");
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
