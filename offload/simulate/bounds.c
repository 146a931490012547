/* bounds.c - the two lower bounds of a step (docs/design.md, section 4).
 *
 * hardware: the busiest resource, with compute at the fastest rate known, usually that of matmuls, and of a separate device's own
 * passes the updates, whose bytes no kernel can avoid; no schedule and no kernels can beat it. schedule: no execution of this
 * plan's program can beat it with kernels as fast as they run alone: compute at the rates of a block and of the head, with the
 * device's own passes in between.  A step falls into windows: forward, backward, and what follows the step's end when updates are
 * serial.  The work of a window's ops on a resource must run in that window, except for what slots hold over to the next; so each
 * window takes at least as long as its busiest resource, less that, and the windows add up.  On a cpu device compute, copies and
 * updates share the cores, so their times add, but for a caller's layers, which have cores of their own.  What ranks exchange
 * counts by its bytes: latencies may pass beside one another. */
#include "offload/simulate/bounds.h"

#include <stddef.h>
#include <string.h>

enum window { FORWARD, BACKWARD, TAIL, WINDOW_COUNT };

enum resource { COMPUTE, UPLOAD, DOWNLOAD, UPDATE, NVME, COMM, DEVICE_MEMORY, RESOURCE_COUNT };
static const char *const resource_names[RESOURCE_COUNT] = {"compute", "upload", "download",     "update",
                                                           "nvme",    "comm",   "device_memory"};

/* Bytes and parameters that a window's ops move, and seconds for which they keep the device busy; `beside` of them may also be
 * spent beside the next window. */
struct demand {
    struct st_traffic moved;
    uint64_t updated, gathered; /* gathered: bytes of moved.comm that may also move beside the next window */
    double compute, beside;
    double called; /* seconds of the caller's layers, on threads and queues of its own */
};

static double per_second(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* Least time of a disk that reads alone at `read`, writes alone at `write`, and shares `mixed` evenly while it does both: it does
 * both while there is work for both, or never, whichever is shorter. */
static double io_seconds(const struct st_machine *m, double read, double write)
{
    const double half = m->rates.mixed > 0 ? m->rates.mixed / 2 : m->rates.read + m->rates.write;
    const double slow_read = half < m->rates.read ? half : m->rates.read,
                 slow_write = half < m->rates.write ? half : m->rates.write;
    const double apart = per_second(read, m->rates.read) + per_second(write, m->rates.write);
    double both, together;

    if (read <= 0 || write <= 0 || slow_read <= 0 || slow_write <= 0)
        return apart;
    both = read / slow_read < write / slow_write ? read / slow_read : write / slow_write;
    together = both + (read - slow_read * both) / m->rates.read + (write - slow_write * both) / m->rates.write;
    return apart < together ? apart : together;
}

static uint64_t less(uint64_t amount, uint64_t spared)
{
    return amount > spared ? amount - spared : 0;
}

/* A page that stays on the device needs what its update is followed by only when it is used in the next step. */
static bool gathers_later(const struct st_program *program, const struct st_op *op)
{
    const enum st_op_kind kind = st_program_called(program) ? ST_OP_GATHER_UPDATED : ST_OP_GATHER_WEIGHT;

    return op->kind == kind && program->update != ST_UPDATE_GATED && program->pages[op->page].weights == ST_WHERE_DEVICE;
}

/* The device's updates end within their window if the window's forward needs them, as in a gated program. */
static void add_op(struct demand *d, const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    const struct st_passes passes = st_cost_passes(program, m, op);
    uint64_t *link = st_traffic_of(&d->moved, op->lane);

    if (link != NULL && !st_op_estimated((enum st_op_kind)op->kind))
        *link += op->bytes;
    d->gathered += gathers_later(program, op) ? op->bytes : 0;
    d->updated += st_cost_updated(program, m, op);
    *(op->lane == STRATA_LANE_CALLER ? &d->called : &d->compute) += st_cost_flops(program, m, op) + st_passes_sum(&passes);
    d->beside += program->update == ST_UPDATE_GATED ? 0 : passes.update;
}

#define NO_POOL SIZE_MAX

/* Traffic through the slots of a pool: the contents of a slot may move in the window before its use (reads, uploads) or after it
 * (the others). beside: further slots of the same kind: those of the small pages, for traffic counted by the largest. */
static const struct {
    enum st_op_kind kind;
    uint8_t beside;
    size_t slots, device; /* in struct st_slots; device: of the pool there that bytes to and from NVMe pass, too */
} held[] = {
#define SLOTS(pool) offsetof(struct st_slots, pool)
    {ST_OP_UPLOAD_WEIGHT, 1, SLOTS(weights), NO_POOL},
    {ST_OP_UPLOAD_ACT, 0, SLOTS(acts), NO_POOL},
    {ST_OP_UPLOAD_ACCUM, 0, SLOTS(grads), NO_POOL},
    {ST_OP_UPLOAD_STATE, 0, SLOTS(streamed_states), NO_POOL},
    {ST_OP_DOWNLOAD_GRAD, 1, SLOTS(grads), NO_POOL},
    {ST_OP_DOWNLOAD_ACCUM, 1, SLOTS(grads), NO_POOL},
    {ST_OP_DOWNLOAD_ACT, 0, SLOTS(acts), NO_POOL},
    {ST_OP_DOWNLOAD_STATE, 0, SLOTS(streamed_states), NO_POOL},
    {ST_OP_DOWNLOAD_WEIGHT, 1, SLOTS(weights), NO_POOL},
    {ST_OP_GATHER_WEIGHT, 1, SLOTS(weights), NO_POOL},
    {ST_OP_EXCHANGE_GRAD, 1, SLOTS(grads), NO_POOL},
    {ST_OP_EXCHANGE_ROUNDED, 1, SLOTS(grads), NO_POOL},
    {ST_OP_READ_STATE, 0, SLOTS(states), SLOTS(streamed_states)},
    {ST_OP_WRITE_STATE, 0, SLOTS(states), SLOTS(streamed_states)},
    {ST_OP_READ_WEIGHT, 1, SLOTS(host_weights), SLOTS(weights)},
    {ST_OP_WRITE_WEIGHT, 1, SLOTS(host_weights), SLOTS(weights)},
    {ST_OP_READ_ACT, 0, SLOTS(host_acts), SLOTS(acts)},
    {ST_OP_WRITE_ACT, 0, SLOTS(host_acts), SLOTS(acts)},
    {ST_OP_READ_GRAD, 1, SLOTS(host_weights), SLOTS(grads)},
    {ST_OP_WRITE_GRAD, 1, SLOTS(host_weights), SLOTS(grads)},
#undef SLOTS
};

static uint32_t slots_at(const struct st_program *program, size_t pool)
{
    return pool == NO_POOL ? 0 : *(const uint32_t *)(const void *)((const char *)&program->slots + pool);
}

/* State that a gated program reads beside backward, for the next step's updates: it fills slots that forward's have left.  Where
 * all micro-batches go together it is written before the first op of backward. */
static bool reads_ahead(const struct st_program *program, const struct st_op *op)
{
    return op->kind == ST_OP_READ_STATE && program->update == ST_UPDATE_GATED && (op->phases & ST_PHASE_EPILOGUE) == 0;
}

/* Bytes of a window that slots hold over.  State that a gated program reads ahead is counted in backward; forward's other state
 * reads wait for its updates. */
static struct st_traffic held_over(const struct st_program *program, const uint64_t largest[ST_OP_KIND_COUNT], enum window w)
{
    struct st_traffic bytes = {0};

    for (size_t i = 0; i < sizeof(held) / sizeof(held[0]); i++) {
        const uint32_t slots = slots_at(program, held[i].slots) + slots_at(program, held[i].device);

        if (held[i].kind == ST_OP_READ_STATE && w == FORWARD && program->update == ST_UPDATE_GATED)
            continue;
        *st_traffic_of(&bytes, st_op_rows[held[i].kind].lane) += (slots + held[i].beside) * largest[held[i].kind];
    }
    return bytes;
}

static void find_largest(const struct st_program *program, uint64_t largest[ST_OP_KIND_COUNT])
{
    memset(largest, 0, ST_OP_KIND_COUNT * sizeof(*largest));
    for (uint32_t i = 0; i < program->op_count; i++)
        if (program->ops[i].bytes > largest[program->ops[i].kind])
            largest[program->ops[i].kind] = program->ops[i].bytes;
}

static void fill_windows(const struct st_program *program, const struct st_machine *m, struct demand windows[WINDOW_COUNT])
{
    const uint32_t backward = st_program_backward(program);
    enum window now = FORWARD;

    memset(windows, 0, WINDOW_COUNT * sizeof(*windows));
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];

        if (i == backward)
            now = BACKWARD;
        if ((op->phases & ST_PHASE_BODY) != 0)
            add_op(&windows[reads_ahead(program, op) ? BACKWARD : now], program, m, op);
        if (op->kind == ST_OP_END)
            now = TAIL;
    }
}

/* All compute at the fastest rate known. */
static struct st_machine fastest_compute(const struct st_machine *m)
{
    struct st_machine fastest = *m;

    if (fastest.rates.block_flops < m->rates.matmul_flops)
        fastest.rates.block_flops = m->rates.matmul_flops;
    if (fastest.rates.block_flops < m->rates.head_flops)
        fastest.rates.block_flops = m->rates.head_flops;
    if (fastest.rates.block_flops < m->rates.experts_flops)
        fastest.rates.block_flops = m->rates.experts_flops;
    fastest.rates.experts_flops = fastest.rates.head_flops = fastest.rates.block_flops;
    return fastest;
}

/* The device's passes; returns the seconds of all FLOPs at the fastest rate. */
static double add_passes(struct st_passes *sum, const struct st_program *program, const struct st_machine *m)
{
    const struct st_machine fastest = fastest_compute(m);
    double least = 0;

    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        const struct st_passes p = st_cost_passes(program, m, op);

        if ((op->phases & ST_PHASE_BODY) == 0)
            continue;
        sum->update += p.update;
        sum->round += p.round;
        sum->reduce += p.reduce;
        sum->zero += p.zero;
        sum->rows += p.rows;
        least += st_cost_flops(program, &fastest, op);
    }
    return least;
}

/* Seconds of each resource; on a cpu device the cores' all count as compute. */
static void resource_seconds(double seconds[RESOURCE_COUNT], const struct st_machine *m, uint32_t ranks, const struct demand *d)
{
    seconds[COMPUTE] = d->compute;
    seconds[DEVICE_MEMORY] = 0; /* part of compute, unless all else may be faster */
    seconds[UPLOAD] = per_second((double)d->moved.upload, m->rates.upload);
    seconds[DOWNLOAD] = per_second((double)d->moved.download, m->rates.download);
    seconds[UPDATE] = per_second((double)d->updated, m->rates.update);
    seconds[NVME] = io_seconds(m, (double)d->moved.read, (double)d->moved.write);
    seconds[COMM] = st_comm_seconds(&m->rates, ranks, (double)d->moved.comm);
    if (m->capacity.device_is_host) {
        seconds[COMPUTE] += seconds[UPLOAD] + seconds[DOWNLOAD] + seconds[UPDATE];
        seconds[UPLOAD] = seconds[DOWNLOAD] = seconds[UPDATE] = 0;
    }
    seconds[COMPUTE] = seconds[COMPUTE] > d->called ? seconds[COMPUTE] : d->called;
}

static enum resource busiest(const double seconds[RESOURCE_COUNT])
{
    enum resource most = COMPUTE;

    for (enum resource r = COMPUTE; r < RESOURCE_COUNT; r++)
        if (seconds[r] > seconds[most])
            most = r;
    return most;
}

/* The windows' sum; bound[]: how much of it each resource accounts for. */
static double schedule_seconds(const struct st_program *program, const struct st_machine *m,
                               const struct demand windows[WINDOW_COUNT], double bound[RESOURCE_COUNT])
{
    uint64_t largest[ST_OP_KIND_COUNT];
    double sum = 0;

    find_largest(program, largest);
    for (enum window w = FORWARD; w < WINDOW_COUNT; w++) {
        const struct st_traffic spared = held_over(program, largest, w), *moved = &windows[w].moved;
        const struct demand must = {.moved = {.upload = less(moved->upload, spared.upload),
                                              .download = less(moved->download, spared.download),
                                              .read = less(moved->read, spared.read),
                                              .write = less(moved->write, spared.write),
                                              .comm = less(moved->comm, spared.comm + windows[w].gathered)},
                                    .updated = windows[w].updated,
                                    .compute = windows[w].compute - windows[w].beside,
                                    .called = windows[w].called};
        double seconds[RESOURCE_COUNT];
        enum resource most;

        resource_seconds(seconds, m, program->ranks, &must);
        most = busiest(seconds);
        sum += seconds[most];
        bound[most] += seconds[most];
    }
    return sum;
}

static struct demand total_of(const struct demand windows[WINDOW_COUNT])
{
    struct demand t = {0};

    for (int w = 0; w < WINDOW_COUNT; w++) {
        t.moved.upload += windows[w].moved.upload;
        t.moved.download += windows[w].moved.download;
        t.moved.read += windows[w].moved.read;
        t.moved.write += windows[w].moved.write;
        t.moved.comm += windows[w].moved.comm;
        t.updated += windows[w].updated;
        t.compute += windows[w].compute;
        t.called += windows[w].called;
    }
    return t;
}

/* Whether a caller's layers say all that is to be known of the time that they take. */
static bool is_timed(const struct st_program *program)
{
    const struct st_workload *w = &program->workload;
    bool timed = st_program_called(program);

    for (uint32_t l = 0; l < w->layer_count; l++)
        timed = timed && (w->layers[l].kind != ST_LAYER_BLOCK || w->layers[l].forward_seconds > 0);
    return timed;
}

void st_bounds_make(struct st_bounds *b, const struct st_program *program, const struct st_machine *m)
{
    double seconds[RESOURCE_COUNT], bound[RESOURCE_COUNT] = {0}, least_compute;
    struct demand windows[WINDOW_COUNT], total;

    memset(b, 0, sizeof(*b));
    b->bound_by = "unknown";
    fill_windows(program, m, windows);
    total = total_of(windows);
    least_compute = add_passes(&b->passes, program, m);
    b->compute_forward = windows[FORWARD].compute + windows[FORWARD].called;
    b->compute_backward = windows[BACKWARD].compute + windows[BACKWARD].called + windows[TAIL].compute;
    b->upload = per_second((double)total.moved.upload, m->rates.upload);
    b->download = per_second((double)total.moved.download, m->rates.download);
    b->update = per_second((double)total.updated, m->rates.update);
    b->comm = st_comm_seconds(&m->rates, program->ranks, (double)total.moved.comm);
    b->io = io_seconds(m, (double)total.moved.read, (double)total.moved.write);
    if ((m->rates.matmul_flops <= 0 && !is_timed(program)) || (total.moved.read > 0 && m->rates.read <= 0) ||
        (total.moved.write > 0 && m->rates.write <= 0))
        return; /* a resource with an unknown rate could be the one that binds */
    b->schedule = schedule_seconds(program, m, windows, bound);
    resource_seconds(seconds, m, program->ranks, &total);
    if (b->schedule < seconds[busiest(seconds)]) {
        b->schedule = seconds[busiest(seconds)];
        memcpy(bound, seconds, sizeof(bound));
    }
    *(st_program_called(program) ? &total.called : &total.compute) = least_compute;
    if (st_program_called(program))
        total.compute = 0;
    resource_seconds(seconds, m, program->ranks, &total);
    seconds[DEVICE_MEMORY] = b->passes.update;
    b->hardware = seconds[busiest(seconds)];
    b->bound_by = resource_names[busiest(bound)];
}
