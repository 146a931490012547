/* engine_run.c - the dispatcher: one cycle of the program over the lanes.
 *
 * Lanes issue in program order.  I/O lanes hand ready ops to the swap's thread; of the executing lanes the ready op that is
 * earliest in the program runs next.  Since waits only point backwards, the earliest op not yet done can always proceed. */
#include "offload/engine_state.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/fault.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

static bool masked(const struct st_engine *eng, const struct st_op *op)
{
    return (op->phases & eng->phase) == 0;
}

/* --- completion of transfers, on the swap's thread --- */

static void io_done(struct st_transfer *t, strata_status st)
{
    struct st_engine_io *io = t->owner;
    struct st_engine *eng = io->engine;

    if (st == STRATA_OK && t->op == ST_IO_READ && st_fault("engine.corrupt", 0) < 0)
        *(unsigned char *)t->buf ^= 0x10;
    if (io->record != NULL)
        st_trace_end(io->record, st_clock_ns());
    if (st == STRATA_OK && io->op != ST_NO_BUFFER)
        atomic_store_explicit(&eng->done[io->op], io->cycle, memory_order_release);
    pthread_mutex_lock(&eng->lock);
    if (st != STRATA_OK && eng->io_status == STRATA_OK) {
        eng->io_status = st;
        snprintf(eng->io_error, sizeof(eng->io_error), "%s", strata_last_error());
    }
    if (st == STRATA_OK && io->op != ST_NO_BUFFER) {
        if (t->op == ST_IO_READ)
            eng->moved.read += t->bytes;
        else
            eng->moved.write += t->bytes;
    }
    eng->in_flight--;
    eng->events++;
    io->finished = true;
    pthread_cond_signal(&eng->wake);
    pthread_mutex_unlock(&eng->lock);
}

static strata_status submit(struct st_engine *eng, struct st_engine_io *io, enum st_io_op op, uint32_t extent, void *buf)
{
    const struct st_buffer *b = &eng->plan->buffers[extent];
    strata_status st;

    assert(b->tier == STRATA_TIER_NVME);
    io->transfer =
        (struct st_transfer){.op = op, .offset = b->offset, .bytes = b->bytes, .buf = buf, .done = io_done, .owner = io};
    io->engine = eng;
    io->finished = false;
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

static strata_status io_failure(struct st_engine *eng)
{
    strata_status st;

    pthread_mutex_lock(&eng->lock);
    st = eng->io_status;
    if (st != STRATA_OK)
        st_error(st, "%s", eng->io_error);
    pthread_mutex_unlock(&eng->lock);
    return st;
}

strata_status st_engine_drain(struct st_engine *eng)
{
    pthread_mutex_lock(&eng->lock);
    while (eng->in_flight > 0)
        pthread_cond_wait(&eng->wake, &eng->lock);
    pthread_mutex_unlock(&eng->lock);
    return io_failure(eng);
}

strata_status st_engine_transfer(struct st_engine *eng, enum st_io_op op, uint32_t extent, void *buf)
{
    struct st_engine_io io = {.op = ST_NO_BUFFER};
    strata_status st = submit(eng, &io, op, extent, buf);

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&eng->lock);
    while (!io.finished)
        pthread_cond_wait(&eng->wake, &eng->lock);
    pthread_mutex_unlock(&eng->lock);
    return io_failure(eng);
}

/* --- readiness --- */

static bool wait_satisfied(const struct st_engine *eng, const struct st_wait *wait)
{
    const uint64_t cycle = eng->cycle - (wait->previous ? 1 : 0);

    return atomic_load_explicit(&eng->done[wait->op], memory_order_acquire) >= cycle;
}

/* First unfinished op that `op` waits for; ST_NO_BUFFER: ready. */
static uint32_t blocker(const struct st_engine *eng, const struct st_op *op)
{
    for (uint32_t i = 0; i < op->wait_count; i++) {
        const struct st_wait *wait = &eng->plan->waits[op->wait_first + i];

        if (!wait_satisfied(eng, wait))
            return wait->op;
    }
    return ST_NO_BUFFER;
}

static void mark_done(struct st_engine *eng, uint32_t index)
{
    atomic_store_explicit(&eng->done[index], eng->cycle, memory_order_release);
}

static strata_status issue_io(struct st_engine *eng, uint32_t index)
{
    const struct st_op *op = &eng->plan->ops[index];
    const struct st_access *a = &eng->plan->accesses[op->access_first];
    const bool read = op->lane != ST_LANE_WRITE;
    const uint32_t extent = a[read ? 0 : 1].buffer, memory = a[read ? 1 : 0].buffer;
    struct st_engine_io *io = &eng->io[index];

    io->op = index;
    io->cycle = eng->cycle;
    if (eng->trace != NULL)
        io->record = st_trace_begin(eng->trace, ST_TRACE_ITEM, index, ST_TRACE_NONE, st_clock_ns());
    if (read)
        eng->result.bytes.read += op->bytes;
    else
        eng->result.bytes.write += op->bytes;
    if (op->kind == ST_OP_READ_WEIGHT || op->kind == ST_OP_READ_ACT)
        eng->verified[memory] = false;
    return submit(eng, io, read ? ST_IO_READ : ST_IO_WRITE, extent, st_engine_pointer(eng, memory));
}

static strata_status issue_ready_io(struct st_engine *eng, bool *progressed)
{
    for (uint32_t lane = 0; lane < ST_LANE_COUNT; lane++) {
        if (!st_engine_is_io_lane(lane))
            continue;
        while (eng->lane_next[lane] < eng->lane_count[lane]) {
            const uint32_t index = eng->lane_ops[lane][eng->lane_next[lane]];
            const struct st_op *op = &eng->plan->ops[index];
            strata_status st;

            if (blocker(eng, op) != ST_NO_BUFFER)
                break;
            if (masked(eng, op))
                mark_done(eng, index);
            else if ((st = issue_io(eng, index)) != STRATA_OK)
                return st;
            eng->lane_next[lane]++;
            *progressed = true;
        }
    }
    return STRATA_OK;
}

/* The earliest ready op of the executing lanes; *earliest: the earliest op not yet run, ready or not. */
static uint32_t pick(struct st_engine *eng, uint32_t *earliest)
{
    uint32_t best = ST_NO_BUFFER;

    *earliest = ST_NO_BUFFER;
    for (uint32_t lane = 0; lane < ST_LANE_COUNT; lane++) {
        uint32_t index;

        if (st_engine_is_io_lane(lane) || eng->lane_next[lane] == eng->lane_count[lane])
            continue;
        index = eng->lane_ops[lane][eng->lane_next[lane]];
        if (index < *earliest)
            *earliest = index;
        if (index < best && blocker(eng, &eng->plan->ops[index]) == ST_NO_BUFFER)
            best = index;
    }
    return best;
}

static bool all_issued(const struct st_engine *eng)
{
    for (uint32_t lane = 0; lane < ST_LANE_COUNT; lane++)
        if (eng->lane_next[lane] < eng->lane_count[lane])
            return false;
    return true;
}

/* --- time --- */

static void account(struct st_engine *eng, uint32_t index, uint64_t ns)
{
    const struct st_op *op = &eng->plan->ops[index];
    const double ms = (double)ns * 1e-6;

    eng->result.busy_ms[op->lane] += ms;
    if (op->lane == ST_LANE_UPDATE || op->kind == ST_OP_UPDATE_DEVICE)
        return; /* part of "other" */
    if (index < eng->backward_from)
        eng->result.forward_ms += ms;
    else
        eng->result.backward_ms += ms;
}

static strata_status execute(struct st_engine *eng, uint32_t index)
{
    const struct st_op *op = &eng->plan->ops[index];
    strata_status st = STRATA_OK;

    if (!masked(eng, op)) {
        const uint64_t start = st_clock_ns();
        struct st_trace_record *record = st_trace_begin(eng->trace, ST_TRACE_ITEM, index, ST_TRACE_NONE, start);
        uint64_t end;

        st = st_engine_run_op(eng, op);
        end = st_clock_ns();
        account(eng, index, end - start);
        st_trace_end(record, end);
    }
    if (st == STRATA_OK) {
        mark_done(eng, index);
        eng->lane_next[op->lane]++;
    }
    return st;
}

/* Op to blame while op `index` cannot start: a transfer where there is one.  ST_NO_BUFFER: none. */
static uint32_t stalled_on(const struct st_engine *eng, uint32_t index)
{
    uint32_t on = index == ST_NO_BUFFER ? ST_NO_BUFFER : blocker(eng, &eng->plan->ops[index]);

    while (on != ST_NO_BUFFER && !st_engine_is_io_lane(eng->plan->ops[on].lane)) {
        const uint32_t next = blocker(eng, &eng->plan->ops[on]);

        if (next == ST_NO_BUFFER || next >= on)
            break;
        on = next;
    }
    return on;
}

/* Sleep until a transfer finishes after event number `seen`. */
static void wait_for_io(struct st_engine *eng, uint64_t seen, uint32_t earliest)
{
    const uint64_t start = st_clock_ns();
    const uint32_t on = stalled_on(eng, earliest);
    const enum st_lane lane = on == ST_NO_BUFFER ? ST_LANE_WRITE : (enum st_lane)eng->plan->ops[on].lane;
    struct st_trace_record *record = st_trace_begin(eng->trace, ST_TRACE_STALL, earliest, on, start);
    uint64_t end;
    double ms;

    pthread_mutex_lock(&eng->lock);
    assert(eng->in_flight > 0 || eng->events != seen || eng->io_status != STRATA_OK);
    while (eng->events == seen && eng->io_status == STRATA_OK)
        pthread_cond_wait(&eng->wake, &eng->lock);
    pthread_mutex_unlock(&eng->lock);
    end = st_clock_ns();
    st_trace_end(record, end);
    ms = (double)(end - start) * 1e-6;
    eng->result.stall_ms += ms;
    eng->result.lane_stall_ms[lane] += ms;
}

static uint64_t events_seen(struct st_engine *eng)
{
    uint64_t seen;

    pthread_mutex_lock(&eng->lock);
    seen = eng->events;
    pthread_mutex_unlock(&eng->lock);
    return seen;
}

static strata_status run_lanes(struct st_engine *eng)
{
    while (!all_issued(eng)) {
        const uint64_t seen = events_seen(eng);
        bool progressed = false;
        uint32_t earliest, index;
        strata_status st;

        if (atomic_load_explicit(&eng->cancelled, memory_order_relaxed))
            return st_error(STRATA_E_CANCELLED, "cancelled");
        if ((st = io_failure(eng)) != STRATA_OK || (st = issue_ready_io(eng, &progressed)) != STRATA_OK)
            return st;
        index = pick(eng, &earliest);
        if (index != ST_NO_BUFFER) {
            if ((st = execute(eng, index)) != STRATA_OK)
                return st;
        } else if (!progressed && !all_issued(eng)) {
            wait_for_io(eng, seen, earliest);
        }
    }
    return STRATA_OK;
}

strata_status st_engine_cycle(struct st_engine *eng, enum st_phase phase)
{
    strata_status st;

    if (eng->poisoned != STRATA_OK)
        return st_error(eng->poisoned, "the engine stopped after an earlier error: %s", eng->io_error);
    eng->cycle++;
    eng->phase = phase;
    memset(eng->lane_next, 0, sizeof(eng->lane_next));
    if (eng->trace != NULL)
        st_engine_trace_cycle(eng, st_clock_ns());
    st = run_lanes(eng);
    if (eng->trace != NULL)
        st_trace_end(eng->trace_cycle, st_clock_ns());
    eng->moved.upload += eng->result.bytes.upload;
    eng->moved.download += eng->result.bytes.download;
    if (st == STRATA_OK)
        return STRATA_OK;
    eng->poisoned = st;
    if (eng->io_error[0] == '\0')
        snprintf(eng->io_error, sizeof(eng->io_error), "%s", strata_last_error());
    (void)st_engine_drain(eng); /* nothing may touch memory after we return */
    return st_error(st, "%s", eng->io_error);
}
