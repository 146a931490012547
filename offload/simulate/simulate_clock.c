/* simulate_clock.c - the simulator's executors, queues and notices: what starts when, and what ends next. */
#include "offload/simulate/simulate_internal.h"

#include <math.h>

#define NONE        ST_NO_OP
#define QUEUE_LANES ((1u << STRATA_LANE_READ_STATE) - 1)
#define IO_LANES    ((1u << STRATA_LANE_COMM) - 1 - QUEUE_LANES)
#define SHARING     (1u << STRATA_LANE_COMPUTE | 1u << STRATA_LANE_UPDATE_DEVICE) /* executors of a separate device's one processor \
                                                                                   */

static void push(const struct st_clock *s, struct st_clock_queue *q, uint32_t op)
{
    q->ops[st_clock_at(s, q, q->count++)] = op;
}

static uint32_t pop(const struct st_clock *s, struct st_clock_queue *q)
{
    const uint32_t op = q->ops[q->first];

    q->first = st_clock_at(s, q, 1);
    q->count--;
    return op;
}

/* Takes the first lane from `from` on, of `lanes` (bits), off those to look at; STRATA_LANE_COUNT: there is none. */
static uint32_t next_look(struct st_clock *s, uint32_t lanes, uint32_t from)
{
    const uint32_t left = s->look & lanes & ~0u << from, lane = left != 0 ? (uint32_t)__builtin_ctz(left) : STRATA_LANE_COUNT;

    s->look &= ~(1u << lane);
    return lane;
}

/* --- starting --- */

static void finish(struct st_clock *s, uint32_t op)
{
    st_dispatch_finish(&s->dispatch, op);
    s->look |= st_dispatch_waiting(&s->dispatch, op);
}

/* The op's end has been seen; its checksums may follow. */
static void landed(struct st_clock *s, uint32_t op)
{
    if (s->after[op] > 0) {
        push(s, &s->checks, op);
        s->look |= 1u << STRATA_LANE_UPDATE;
    } else {
        finish(s, op);
    }
}

/* The op itself has ended.  On a device that is the host, the executor is the one who waits. */
static void ended(struct st_clock *s, uint32_t op)
{
    const uint32_t lane = s->program->ops[op].lane;
    const int of = st_lane_is_io(lane) ? ST_CLOCK_OF_DISK : ST_CLOCK_OF_EXECUTORS;

    if (!(s->delay[of] > 0) || (s->machine->capacity.device_is_host && st_lane_executes(lane))) {
        landed(s, op);
        return;
    }
    s->seen[op] = s->now + s->delay[of];
    s->unseen += lane == STRATA_LANE_UPDATE;
    push(s, &s->notices[of], op);
}

static void end_notice(struct st_clock *s, int of)
{
    const uint32_t op = pop(s, &s->notices[of]);

    s->unseen -= s->program->ops[op].lane == STRATA_LANE_UPDATE;
    landed(s, op);
}

/* The lane's next op if it can start.  Masked ones before it are done now, and what waits for them may be on any lane. */
static uint32_t ready(struct st_clock *s, uint32_t lane)
{
    const uint32_t passed = s->dispatch.passed, op = st_dispatch_ready(&s->dispatch, lane);

    if (s->dispatch.passed != passed)
        s->look = ST_CLOCK_ALL_LANES;
    return op;
}

/* Hands ready ops of a lane to one queue of as many as there are. */
static void issue_all(struct st_clock *s, uint32_t lane, struct st_clock_queue *q)
{
    if (next_look(s, 1u << lane, 0) == STRATA_LANE_COUNT)
        return;
    for (uint32_t op; (op = ready(s, lane)) != NONE;) {
        push(s, q, op);
        st_dispatch_pass(&s->dispatch, lane);
    }
}

static void issue_io(struct st_clock *s)
{
    issue_all(s, STRATA_LANE_COMM, &s->comm);
    issue_all(s, STRATA_LANE_CALLER, &s->caller);
    for (uint32_t lane = 0; (lane = next_look(s, IO_LANES, lane)) != STRATA_LANE_COUNT; lane++) {
        const int direction = lane == STRATA_LANE_WRITE ? ST_CLOCK_WRITE : ST_CLOCK_READ;

        for (uint32_t op; (op = ready(s, lane)) != NONE;) {
            if (s->io[direction].count == 0)
                s->left[direction] = (double)s->program->ops[op].bytes;
            push(s, &s->io[direction], op);
            st_dispatch_pass(&s->dispatch, lane);
        }
    }
}

/* Starts an op on its executor. */
static void occupy(struct st_clock *s, uint32_t executor, uint32_t op, uint32_t lane, double seconds)
{
    s->busy |= 1u << executor;
    s->running[executor] = op;
    s->row[executor] = lane;
    s->end[executor] = s->now + seconds;
}

/* An op without a cost ends at once. */
static void run(struct st_clock *s, uint32_t executor, uint32_t op)
{
    if (s->cost[op] > 0)
        occupy(s, executor, op, s->program->ops[op].lane, s->cost[op]);
    else
        ended(s, op);
}

/* Hands ready ops out to the lane's own queue. */
static void hand_out(struct st_clock *s, uint32_t lane)
{
    for (uint32_t op; (op = ready(s, lane)) != NONE && s->ahead_count[lane] < ST_JOBS_AHEAD;) {
        s->ahead[lane][(s->ahead_first[lane] + s->ahead_count[lane]++) % ST_JOBS_AHEAD] = op;
        st_dispatch_pass(&s->dispatch, lane);
    }
}

/* The queue's next op, on its own executor. */
static bool run_ahead(struct st_clock *s, uint32_t lane)
{
    uint32_t op;

    if (s->ahead_count[lane] == 0)
        return false;
    op = s->ahead[lane][s->ahead_first[lane]];
    s->ahead_first[lane] = (s->ahead_first[lane] + 1) % ST_JOBS_AHEAD;
    s->ahead_count[lane]--;
    run(s, lane, op);
    return true;
}

/* On a device that is the host: the earliest ready op. */
static bool run_here(struct st_clock *s, uint32_t executor)
{
    const uint32_t op = st_dispatch_pick(&s->dispatch);

    if (op == NONE)
        return false;
    if (!st_dispatch_masked(&s->dispatch, op))
        run(s, executor, op);
    else
        s->look = ST_CLOCK_ALL_LANES;
    st_dispatch_pass(&s->dispatch, s->program->ops[op].lane);
    return true;
}

static bool run_first(struct st_clock *s, uint32_t executor, struct st_clock_queue *q)
{
    if (q->count == 0)
        return false;
    run(s, executor, pop(s, q));
    return true;
}

/* Starts an executor's next op, if it has one. */
static bool start_next(struct st_clock *s, uint32_t executor)
{
    if ((s->busy >> executor & 1) != 0)
        return false;
    if (executor == STRATA_LANE_UPDATE && s->checks.count > 0) {
        const uint32_t op = pop(s, &s->checks);

        occupy(s, executor, op, STRATA_LANE_UPDATE, s->after[op]);
        s->checking = true;
        return true;
    }
    if (executor == STRATA_LANE_COMM || executor == STRATA_LANE_CALLER)
        return run_first(s, executor, executor == STRATA_LANE_COMM ? &s->comm : &s->caller);
    return s->machine->capacity.device_is_host ? run_here(s, executor) : run_ahead(s, executor);
}

/* Starts everything that can start now, of a separate device's lanes those to look at. */
static bool start_queues(struct st_clock *s)
{
    bool started = false;

    for (uint32_t lane = 0; (lane = next_look(s, QUEUE_LANES, lane)) != STRATA_LANE_COUNT; lane++) {
        hand_out(s, lane);
        if (start_next(s, lane)) {
            s->look |= 1u << lane;
            started = true;
        }
    }
    return started;
}

/* Starts everything that can start now.  A host that runs an op itself hands out no I/O meanwhile. */
void st_clock_dispatch(struct st_clock *s)
{
    const bool host = s->machine->capacity.device_is_host;
    bool progressed = true;

    while (progressed) {
        const uint32_t passed = s->dispatch.passed;

        if (!host || (s->busy >> STRATA_LANE_COMPUTE & 1) == 0)
            issue_io(s);
        progressed = host ? start_next(s, STRATA_LANE_COMPUTE) : start_queues(s);
        progressed |= start_next(s, STRATA_LANE_COMM);
        progressed |= start_next(s, STRATA_LANE_CALLER);
        progressed |= s->dispatch.passed != passed;
    }
}

/* --- time --- */

/* Executors among which a separate device's one processor is divided evenly, as far as they run. */
static bool shared(const struct st_clock *s)
{
    return (s->busy & SHARING) == SHARING;
}

static double not_negative(double x)
{
    return x > 0 ? x : 0;
}

/* Until the executor's op ends, if nothing else changes; end[] is as if it were alone from now on. */
static double seconds_left(const struct st_clock *s, uint32_t executor)
{
    return not_negative(s->end[executor] - s->now) * (shared(s) && (SHARING >> executor & 1) != 0 ? 2 : 1);
}

/* Bytes per second of a queue that has work; 0: it takes no time. */
static double io_rate(const struct st_clock *s, int direction)
{
    return (s->io[ST_CLOCK_READ].count > 0 && s->io[ST_CLOCK_WRITE].count > 0 ? s->both : s->alone)[direction];
}

static void spend(struct st_clock *s, uint32_t lane, uint32_t op, double seconds)
{
    s->step.busy[lane] += seconds;
    if (s->watch != NULL)
        s->watch->ran(s->watch->ctx, lane, op, s->now - s->begun, seconds);
}

static void stall(struct st_clock *s, double seconds)
{
    const struct st_stall stall = st_dispatch_stall(&s->dispatch, s->busy);

    s->step.stall[stall.lane] += seconds;
    if (s->watch != NULL)
        s->watch->stalled(s->watch->ctx, &stall, s->now - s->begun, seconds);
}

static void account(struct st_clock *s, double seconds)
{
    for (uint32_t left = s->busy; left != 0; left &= left - 1) {
        const uint32_t executor = (uint32_t)__builtin_ctz(left);

        spend(s, s->row[executor], s->running[executor], seconds);
    }
    for (int d = 0; d < ST_CLOCK_DIRECTIONS; d++)
        if (s->io[d].count > 0) {
            const uint32_t op = s->io[d].ops[s->io[d].first];

            spend(s, s->program->ops[op].lane, op, seconds);
        }
    if ((s->busy >> (st_program_called(s->program) ? STRATA_LANE_CALLER : STRATA_LANE_COMPUTE) & 1) == 0)
        stall(s, seconds);
}

static void end_io(struct st_clock *s, int direction)
{
    struct st_clock_queue *q = &s->io[direction];

    ended(s, pop(s, q));
    s->left[direction] = q->count > 0 ? (double)s->program->ops[q->ops[q->first]].bytes : 0;
}

static void end_executor(struct st_clock *s, uint32_t executor)
{
    const uint32_t op = s->running[executor];

    s->busy &= ~(1u << executor);
    s->look |= 1u << executor;
    if (executor == STRATA_LANE_UPDATE && s->checking)
        finish(s, op);
    else
        ended(s, op);
    if (executor == STRATA_LANE_UPDATE)
        s->checking = false;
}

/* Advances everything in flight. */
static void pass_time(struct st_clock *s, double seconds)
{
    if (seconds > 0 && !s->unaccounted)
        account(s, seconds);
    for (int d = 0; d < ST_CLOCK_DIRECTIONS; d++)
        if (s->io[d].count > 0)
            s->left[d] = not_negative(s->left[d] - io_rate(s, d) * seconds);
    if (!shared(s))
        return;
    s->end[STRATA_LANE_COMPUTE] += seconds / 2;
    s->end[STRATA_LANE_UPDATE_DEVICE] += seconds / 2;
}

/* What ends next: an executor's op, a queue's head of the disk, or the wait for a notice. */
struct event {
    double seconds; /* from now */
    enum { END_NONE, END_IO, END_EXECUTOR, END_NOTICE } kind;
    uint32_t which;
};

static void take_sooner(struct event *next, struct event other)
{
    if (other.seconds < next->seconds)
        *next = other;
}

static struct event next_event(const struct st_clock *s)
{
    struct event next = {.seconds = HUGE_VAL};

    for (uint32_t d = 0; d < ST_CLOCK_DIRECTIONS; d++)
        if (s->io[d].count > 0)
            take_sooner(&next, (struct event){st_seconds_at(s->left[d], io_rate(s, (int)d)), END_IO, d});
    for (uint32_t left = s->busy; left != 0; left &= left - 1) {
        const uint32_t executor = (uint32_t)__builtin_ctz(left);

        take_sooner(&next, (struct event){seconds_left(s, executor), END_EXECUTOR, executor});
    }
    for (uint32_t of = 0; of < ST_CLOCK_NOTICES; of++)
        if (s->notices[of].count > 0)
            take_sooner(&next,
                        (struct event){not_negative(s->seen[s->notices[of].ops[s->notices[of].first]] - s->now), END_NOTICE, of});
    return next;
}

bool st_clock_advance(struct st_clock *s)
{
    const struct event next = next_event(s);

    if (next.kind == END_NONE)
        return false;
    pass_time(s, next.seconds);
    if (next.kind != END_EXECUTOR)
        s->now += next.seconds;
    else if (s->end[next.which] > s->now)
        s->now = s->end[next.which];
    if (next.kind == END_IO)
        end_io(s, (int)next.which);
    else if (next.kind == END_EXECUTOR)
        end_executor(s, next.which);
    else
        end_notice(s, (int)next.which);
    return true;
}
