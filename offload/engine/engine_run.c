/* engine_run.c - one cycle of the program: starts the ops that the dispatcher hands out (dispatch.h).
 *
 * Ops of I/O lanes go to the swap's thread; of the executing lanes the earliest ready op runs here, or, on a device with queues
 * of its own, every lane's ready ops are handed out. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#define LOOK_NS UINT64_C(50000000) /* a thread that waits for others looks this often whether it is cancelled */

static bool is_cancelled(const struct st_engine *eng)
{
    return atomic_load_explicit(&eng->cancelled, memory_order_relaxed) != 0;
}

/* --- completion of transfers, on the swap's thread --- */

/* Transfers end in no fixed order, so a fault that must hit one kind of read needs its own site. */
static const char *corrupt_site(const struct st_engine_io *io)
{
    const struct st_op *op = io->op == ST_NO_OP ? NULL : &io->engine->program->ops[io->op];
    const uint32_t lane = op == NULL ? STRATA_LANE_COUNT : op->lane;

    if (op != NULL && op->kind == ST_OP_READ_GRAD)
        return "engine.corrupt_grad";
    return lane == STRATA_LANE_READ_STATE        ? "engine.corrupt_state"
           : lane == STRATA_LANE_READ_WEIGHT     ? "engine.corrupt_weight"
           : lane == STRATA_LANE_READ_ACTIVATION ? "engine.corrupt_act"
                                                 : "engine.corrupt";
}

/* Continue with the page's frozen part.  It lives in the base, so that readers of frozen data (another layout that resumes,
 * verify) find all of it there; the shared boundary block is written to both. */
static strata_status start_rest(struct st_engine_io *io)
{
    struct st_engine *eng = io->engine;
    const struct st_page *shard = &eng->program->shards[io->rest];
    const uint32_t extent = eng->program->pages[io->rest].base_extent;
    const struct st_buffer *b = &eng->program->buffers[extent];
    struct st_transfer *t = &io->transfer;
    const uint64_t at = t->op == ST_IO_WRITE ? 0 : t->bytes - st_page_base_at(shard);

    io->rest = ST_NO_PAGE;
    *t = (struct st_transfer){.op = t->op,
                              .volume = eng->volumes[extent],
                              .offset = b->offset + at,
                              .bytes = b->bytes - at,
                              .buf = (unsigned char *)t->buf + st_page_base_at(shard) + at,
                              .done = t->done,
                              .owner = io};
    return st_swap_submit(eng->swap, t);
}

static void keep_failure(strata_status *status, struct st_sentence *error, strata_status st)
{
    if (st == STRATA_OK || *status != STRATA_OK)
        return;
    *status = st;
    st_error_keep(error);
}

static void count_moved(struct st_engine *eng, const struct st_transfer *t)
{
    pthread_mutex_lock(&eng->lock);
    if (t->op == ST_IO_READ)
        eng->moved.read += t->bytes;
    else
        eng->moved.write += t->bytes;
    pthread_mutex_unlock(&eng->lock);
}

/* Once the op is finished, the caller may issue it again, so its record must not be touched after that. */
static void io_done(struct st_transfer *t, strata_status st)
{
    struct st_engine_io *io = t->owner;
    struct st_engine *eng = io->engine;
    const bool synchronous = io->op == ST_NO_OP;

    if (st == STRATA_OK && t->op == ST_IO_READ && st_fault(corrupt_site(io), 0) < 0)
        *(unsigned char *)t->buf ^= 0x10;
    if (st == STRATA_OK && !synchronous)
        count_moved(eng, t);
    if (st == STRATA_OK && io->rest != ST_NO_PAGE && (st = start_rest(io)) == STRATA_OK)
        return;
    if (io->record != NULL)
        st_trace_end(io->record, st_clock_ns());
    if (st == STRATA_OK && io->check)
        st_engine_check_arrived(eng, io);
    else if ((st == STRATA_OK || io->apart) && !synchronous)
        st_dispatch_finish(&eng->dispatch, io->op);
    pthread_mutex_lock(&eng->lock);
    if (io->apart)
        keep_failure(&eng->apart_status, &eng->apart_error, st);
    else
        keep_failure(&eng->io_status, &eng->io_error, st);
    eng->in_flight--;
    eng->events++;
    if (synchronous)
        io->finished = true;
    pthread_cond_signal(&eng->wake);
    pthread_mutex_unlock(&eng->lock);
}

static strata_status submit(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t volume, uint64_t offset,
                            void *buf, uint64_t bytes)
{
    strata_status st;

    io->transfer = (struct st_transfer){
        .op = op, .volume = volume, .offset = offset, .bytes = bytes, .buf = buf, .done = io_done, .owner = io};
    io->engine = eng;
    io->finished = false;
    io->transfer.what = io->op == ST_NO_OP ? NULL : st_lane_name((enum strata_lane)eng->program->ops[io->op].lane);
    pthread_mutex_lock(&eng->lock);
    eng->in_flight++;
    pthread_mutex_unlock(&eng->lock);
    st = st_swap_submit(eng->swap, &io->transfer);
    if (st != STRATA_OK) {
        pthread_mutex_lock(&eng->lock);
        eng->in_flight--;
        pthread_mutex_unlock(&eng->lock);
    }
    return st;
}

void st_engine_begin_volumes(struct st_engine *eng)
{
    for (uint32_t b = 0; eng->volumes != NULL && b < eng->program->buffer_count; b++)
        eng->volumes[b] = st_swap_volume(eng->swap, (enum st_space)eng->program->buffers[b].space, 0);
}

/* Which of the swap's volumes the extent's data is in, or goes to: what is trained to the set in use. */
static uint32_t volume_of(struct st_engine *eng, enum st_io_op op, uint32_t extent)
{
    if (eng->volumes == NULL)
        return st_swap_volume(eng->swap, ST_SPACE_SCRATCH, 0);
    if (op == ST_IO_WRITE && eng->program->buffers[extent].space == ST_SPACE_SET)
        eng->volumes[extent] = st_swap_volume(eng->swap, ST_SPACE_SET, eng->set);
    return eng->volumes[extent];
}

/* A transfer of `bytes` of an extent, from `at` on. */
static strata_status submit_extent(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t extent, uint64_t at,
                                   void *buf, uint64_t bytes)
{
    const struct st_buffer *b = &eng->program->buffers[extent];

    assert(b->tier == STRATA_TIER_NVME && at <= b->bytes && bytes <= b->bytes - at);
    return submit(eng, io, op, volume_of(eng, op, extent), b->offset + at, buf, bytes);
}

/* One of a whole page's weights, whose home is on NVMe. */
static strata_status submit_page(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t page, void *buf)
{
    const struct st_page_place *place = &eng->program->pages[page];
    const uint64_t bytes = eng->program->buffers[place->home_region].bytes;
    const bool all = op == ST_IO_READ && bytes == st_extent_bytes(eng->program->shards[page].bytes);

    if (place->base_extent != ST_NO_BUFFER && place->base_extent != place->home_region && !all)
        io->rest = page;
    return submit_extent(eng, io, op, st_engine_in_force(eng, place->home_region), 0, buf, bytes);
}

static strata_status io_failure(struct st_engine *eng)
{
    strata_status st;

    pthread_mutex_lock(&eng->lock);
    st = eng->io_status;
    if (st != STRATA_OK)
        st = st_error_again(st, &eng->io_error);
    pthread_mutex_unlock(&eng->lock);
    return st;
}

/* Jobs of the device end by its deadline at the latest (st_device_opts.deadline_ns), transfers by theirs (struct st_patience),
 * unless the kernel never lets go of their memory. */
strata_status st_engine_drain(struct st_engine *eng)
{
    pthread_mutex_lock(&eng->lock);
    while (eng->in_flight > 0)
        pthread_cond_wait(&eng->wake, &eng->lock);
    pthread_mutex_unlock(&eng->lock);
    return io_failure(eng);
}

strata_status st_engine_apart(struct st_engine *eng)
{
    strata_status st;

    pthread_mutex_lock(&eng->lock);
    st = eng->apart_status;
    if (st != STRATA_OK)
        st = st_error_again(st, &eng->apart_error);
    eng->apart_status = STRATA_OK;
    pthread_mutex_unlock(&eng->lock);
    return st;
}

strata_status st_engine_transfer_start(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t extent,
                                       uint64_t at, void *buf, uint64_t bytes, bool apart)
{
    *io = (struct st_engine_io){.op = ST_NO_OP, .rest = ST_NO_PAGE, .apart = apart};
    return submit_extent(eng, io, op, extent, at, buf, bytes);
}

strata_status st_engine_page_start(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t page, void *buf)
{
    *io = (struct st_engine_io){.op = ST_NO_OP, .rest = ST_NO_PAGE};
    return submit_page(eng, io, op, page, buf);
}

strata_status st_engine_volume_start(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t volume,
                                     uint64_t offset, void *buf, uint64_t bytes, bool apart)
{
    *io = (struct st_engine_io){.op = ST_NO_OP, .rest = ST_NO_PAGE, .apart = apart};
    return submit(eng, io, op, volume, offset, buf, bytes);
}

strata_status st_engine_transfer_wait(struct st_engine *eng, const struct st_engine_io *io)
{
    pthread_mutex_lock(&eng->lock);
    while (!io->finished)
        pthread_cond_wait(&eng->wake, &eng->lock);
    pthread_mutex_unlock(&eng->lock);
    return io->apart ? st_engine_apart(eng) : io_failure(eng);
}

/* --- transfers --- */

/* Bytes that the op moves: those of its extent, or what a fresh chunk has there.  What is written is fresh no more, but for a
 * second version, which is not in force yet. */
static uint64_t bytes_of(struct st_engine *eng, const struct st_op *op)
{
    if (op->kind == ST_OP_WRITE_STATE && !op->early)
        eng->fresh[op->chunk] = false;
    if (op->kind == ST_OP_READ_STATE && eng->fresh[op->chunk])
        return st_chunk_fresh_bytes(&eng->program->chunks[op->chunk]);
    return op->bytes;
}

/* The place of an extent that a transfer moves from or to.  What is written is what is in force from then on, where it is not
 * early. */
static uint32_t place_of(struct st_engine *eng, const struct st_op *op, uint32_t extent)
{
    if (st_lane_reads(op->lane))
        return st_engine_in_force(eng, extent);
    if (st_engine_leaves_other(eng, op, extent))
        return eng->program->buffers[extent].other;
    if (!op->early && eng->turned != NULL)
        eng->turned[extent] = false;
    return extent;
}

static strata_status issue_io(struct st_engine *eng, uint32_t index)
{
    const struct st_op *op = &eng->program->ops[index];
    const bool read = st_lane_reads(op->lane);
    const uint32_t from = st_op_access(eng->program->accesses, op, ST_ROLE_FROM)->buffer;
    const uint32_t to = st_op_access(eng->program->accesses, op, ST_ROLE_TO)->buffer;
    const uint32_t extent = read ? from : to, memory = read ? to : from;
    const uint64_t bytes = bytes_of(eng, op);
    struct st_engine_io *io = &eng->io[st_dispatch_io(&eng->dispatch, op->lane)];

    io->op = index;
    io->apart = op->phases == ST_PHASE_SAVE;
    io->rest = ST_NO_PAGE;
    io->check = st_engine_checks_arrival(eng, index);
    if (eng->trace != NULL)
        io->record = st_trace_begin(eng->trace, ST_TRACE_ITEM, index, ST_TRACE_NONE, st_clock_ns());
    *st_traffic_of(&eng->result.bytes, op->lane) += bytes;
    eng->early.written += op->early ? bytes : 0;
    if (read)
        eng->verified[memory] = false;
    if (op->kind == ST_OP_READ_WEIGHT)
        return submit_page(eng, io, ST_IO_READ, op->page, st_engine_pointer(eng, memory));
    return submit_extent(eng, io, read ? ST_IO_READ : ST_IO_WRITE, place_of(eng, op, extent), st_part_at(eng->program, op),
                         st_engine_pointer(eng, memory), bytes);
}

static strata_status issue_ready_io(struct st_engine *eng)
{
    struct st_dispatch *d = &eng->dispatch;

    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        for (uint32_t op; st_lane_is_io(lane) && (op = st_dispatch_ready(d, lane)) != ST_NO_OP;) {
            strata_status st = STRATA_OK;

            if (eng->state_ends && eng->program->ops[op].kind == ST_OP_WRITE_STATE)
                st_dispatch_finish(&eng->dispatch, op);
            else
                st = issue_io(eng, op);
            if (st != STRATA_OK)
                return st;
            st_dispatch_pass(d, lane);
        }
    }
    if (eng->comm != NULL)
        st_engine_comm_issue(eng);
    return eng->caller != NULL ? st_engine_caller_issue(eng) : STRATA_OK;
}

/* --- time --- */

static void account(struct st_engine *eng, uint32_t index, uint64_t ns)
{
    const struct st_op *op = &eng->program->ops[index];
    const double ms = (double)ns * 1e-6;

    eng->result.busy_ms[op->lane] += ms;
    if (op->lane == STRATA_LANE_UPDATE || op->lane == STRATA_LANE_UPDATE_DEVICE)
        return; /* part of "other" */
    if (op->lane == STRATA_LANE_COMPUTE)
        eng->in_backward = st_op_is_backward(op->kind);
    *(eng->in_backward ? &eng->result.backward_ms : &eng->result.forward_ms) += ms;
}

static strata_status execute(struct st_engine *eng, uint32_t index)
{
    const struct st_op *op = &eng->program->ops[index];
    const uint64_t start = st_clock_ns();
    struct st_trace_record *record = st_trace_begin(eng->trace, ST_TRACE_ITEM, index, ST_TRACE_NONE, start);
    strata_status st = st_engine_run_timed(eng, index);
    uint64_t end;

    if (st == STRATA_OK && st_engine_has_follow(eng, op, st_engine_saves(eng)))
        st = st_engine_follow_op(eng, op);
    end = st_clock_ns();
    account(eng, index, end - start);
    st_trace_end(record, end);
    if (st == STRATA_OK)
        st_dispatch_finish(&eng->dispatch, index);
    return st;
}

/* Lanes of a device's queues that have jobs in flight. */
static uint32_t busy_lanes(struct st_engine *eng)
{
    uint32_t busy = 0;

    pthread_mutex_lock(&eng->lock);
    for (uint32_t lane = 0; eng->async != NULL && lane < STRATA_LANE_COUNT; lane++)
        busy |= (uint32_t)(eng->async->lane_jobs[lane] > 0) << lane;
    pthread_mutex_unlock(&eng->lock);
    return busy;
}

/* Sleep until something finishes after event number `seen`.  `waits`: compute is waiting, too, unless that is the caller's. */
static void wait_for_event(struct st_engine *eng, uint64_t seen, bool waits)
{
    const bool stalled = eng->caller != NULL ? st_engine_caller_waits(eng) : waits;
    const struct st_stall stall = stalled ? st_dispatch_stall(&eng->dispatch, busy_lanes(eng)) : (struct st_stall){0};
    const uint64_t start = st_clock_ns();
    struct st_trace_record *record = stalled ? st_trace_begin(eng->trace, ST_TRACE_STALL, stall.op, stall.on, start) : NULL;
    uint64_t end;

    pthread_mutex_lock(&eng->lock);
    assert(eng->in_flight > 0 || eng->events != seen || eng->io_status != STRATA_OK || eng->caller != NULL);
    while (eng->events == seen && eng->io_status == STRATA_OK && !is_cancelled(eng)) /* nobody signals a cancel */
        (void)st_cond_wait(&eng->wake, &eng->lock, st_clock_ns() + LOOK_NS);
    pthread_mutex_unlock(&eng->lock);
    end = st_clock_ns();
    st_trace_end(record, end);
    if (!stalled)
        return;
    eng->result.stall_ms += (double)(end - start) * 1e-6;
    eng->result.lane_stall_ms[stall.lane] += (double)(end - start) * 1e-6;
}

static uint64_t events_seen(struct st_engine *eng)
{
    uint64_t seen;

    pthread_mutex_lock(&eng->lock);
    seen = eng->events;
    pthread_mutex_unlock(&eng->lock);
    return seen;
}

/* --- a device whose calls are done when they return: the caller runs every op --- */

static strata_status run_here(struct st_engine *eng, uint64_t seen, bool progressed)
{
    struct st_dispatch *d = &eng->dispatch;
    const uint32_t ready = st_dispatch_pick(d);
    const uint32_t op = ready != ST_NO_OP && st_engine_is_fed(eng) && !st_engine_feed_due(eng, ready) ? ST_NO_OP : ready;
    strata_status st = STRATA_OK;

    if (op == ST_NO_OP) {
        if (!progressed && !st_dispatch_over(d))
            wait_for_event(eng, seen, true);
        return STRATA_OK;
    }
    if (!st_dispatch_masked(d, op))
        st = execute(eng, op);
    if (st == STRATA_OK)
        st_dispatch_pass(d, eng->program->ops[op].lane);
    return st;
}

/* --- a device with queues of its own: the caller hands ops out --- */

static uint32_t jobs_under_way(struct st_engine *eng, uint32_t lane)
{
    uint32_t jobs;

    pthread_mutex_lock(&eng->lock);
    jobs = eng->async->lane_jobs[lane];
    pthread_mutex_unlock(&eng->lock);
    return jobs;
}

static strata_status hand_out(struct st_engine *eng)
{
    struct st_dispatch *d = &eng->dispatch;

    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++) {
        uint32_t op;

        while (st_lane_executes(lane) && (op = st_dispatch_ready(d, lane)) != ST_NO_OP &&
               jobs_under_way(eng, lane) <= ST_JOBS_AHEAD) { /* one of them runs */
            const strata_status st = st_engine_issue(eng, op);

            if (st != STRATA_OK)
                return st;
            st_dispatch_pass(d, lane);
        }
    }
    return STRATA_OK;
}

static strata_status hand_out_or_wait(struct st_engine *eng, uint64_t seen, bool progressed)
{
    const struct st_dispatch *d = &eng->dispatch;
    const uint32_t passed = d->passed, next = st_dispatch_head(d, STRATA_LANE_COMPUTE);
    const strata_status st = hand_out(eng);

    if (st != STRATA_OK || progressed || d->passed != passed)
        return st;
    wait_for_event(eng, seen, next != ST_NO_OP && jobs_under_way(eng, STRATA_LANE_COMPUTE) == 0);
    return STRATA_OK;
}

/* --- a cycle --- */

/* Whether the cycle is over.  Ops that were handed out may not be done yet; those of the host must be, before the next step's
 * scalars are set. */
static bool cycle_over(struct st_engine *eng)
{
    return st_dispatch_over(&eng->dispatch) && (eng->async == NULL || jobs_under_way(eng, STRATA_LANE_UPDATE) == 0);
}

static strata_status run_lanes(struct st_engine *eng)
{
    for (;;) {
        const uint64_t seen = events_seen(eng); /* read it first, so that any later event ends the wait */
        const uint32_t passed = eng->dispatch.passed;
        bool progressed;
        strata_status st;

        if (cycle_over(eng))
            return io_failure(eng);
        if (is_cancelled(eng))
            return st_error(STRATA_E_CANCELLED, "cancelled");
        if ((st = io_failure(eng)) != STRATA_OK || (st = issue_ready_io(eng)) != STRATA_OK)
            return st;
        progressed = eng->dispatch.passed != passed;
        st = eng->async == NULL ? run_here(eng, seen, progressed) : hand_out_or_wait(eng, seen, progressed);
        if (st != STRATA_OK)
            return st;
    }
}

/* Makes this failure and its sentence the engine's; later failures, while the rest drains, change neither. */
static void poison(struct st_engine *eng, strata_status st)
{
    pthread_mutex_lock(&eng->lock);
    eng->poisoned = eng->io_status = st;
    st_error_keep(&eng->io_error);
    pthread_mutex_unlock(&eng->lock);
}

/* What was enqueued for an op that failed halfway, or for one whose failure was reported early, may still run, and nobody was
 * told to wait for it.  If finish() fails, too, the context is broken or the device is lost, and its close() holds what may still
 * be used. */
static void finish_queues(struct st_engine *eng)
{
    for (uint32_t queue = 0; queue < ST_QUEUE_COUNT; queue++)
        (void)eng->device->ops->finish(eng->device, (enum st_queue)queue);
}

strata_status st_engine_ended(const struct st_engine *eng)
{
    if (eng->poisoned != STRATA_OK)
        return st_error_prefix(st_error_again(eng->poisoned, &eng->io_error), "the engine stopped after an earlier error");
    return is_cancelled(eng) ? st_error(STRATA_E_CANCELLED, "cancelled") : STRATA_OK;
}

bool st_engine_goes_on(const struct st_engine *eng)
{
    return eng->poisoned == STRATA_OK && !is_cancelled(eng);
}

strata_status st_engine_collect_times(struct st_engine *eng)
{
    const strata_status st = eng->op_times != NULL ? st_device_timed_collect(eng->device) : STRATA_OK;

    if (st == STRATA_OK)
        return STRATA_OK;
    poison(eng, st);
    return st_error_again(st, &eng->io_error);
}

strata_status st_engine_cycle(struct st_engine *eng, enum st_phase phase)
{
    strata_status st;

    if (eng->poisoned != STRATA_OK) /* a cancel that comes just before the cycle ends it like one that comes within it */
        return st_engine_ended(eng);
    eng->has_moments = true;
    st_dispatch_begin(&eng->dispatch, phase);
    if (eng->trace != NULL)
        st_engine_trace_cycle(eng, st_clock_ns());
    if (eng->async != NULL)
        st_engine_async_begin(eng);
    st = run_lanes(eng);
    if (eng->async != NULL)
        st_engine_async_end(eng);
    if (eng->trace != NULL)
        st_trace_end(eng->trace_cycle, st_clock_ns());
    eng->moved.upload += eng->result.bytes.upload;
    eng->moved.download += eng->result.bytes.download;
    if (st == STRATA_OK)
        return STRATA_OK;
    poison(eng, st);
    if (eng->comm != NULL)
        st_engine_comm_abort(eng, st, eng->io_error.text);
    (void)st_engine_drain(eng); /* no transfer and no kernel may touch memory after we return */
    finish_queues(eng);
    return st_error_again(st, &eng->io_error);
}
