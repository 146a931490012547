/* simulate.c - runs a program on a clock: each op that dispatch.c hands out takes its time.
 *
 * Executors run one op at a time; there is one per executing lane, or one for all on a device that is the host.  Compute and
 * updates on a separate device are two queues of one processor: while both run, each has half of it.  The disk is modelled as a
 * fluid: two queues whose heads move at the same time.  Exchanges between ranks are one queue, too, whose head alone moves.  Time
 * advances from one completion to the next. */
#include "offload/simulate/simulate.h"

#include "core/base/error.h"
#include "offload/program/dispatch.h"
#include "offload/simulate/cost.h"

#include <math.h>
#include <string.h>

#define STEPS_MAX   24u  /* the most to simulate; if no period is found, half of them are averaged */
#define PERIOD_MAX  8u   /* steps */
#define SAVE_STEPS  24u  /* a multiple of the usual periods */
#define SAME        1e-9 /* largest relative difference of two steps that count as equal */
#define NONE        ST_NO_OP
#define ALL_LANES   ((1u << ST_LANE_COUNT) - 1)
#define QUEUE_LANES ((1u << ST_LANE_READ_STATE) - 1)
#define IO_LANES    ((1u << ST_LANE_COMM) - 1 - QUEUE_LANES)
#define SHARING     (1u << ST_LANE_COMPUTE | 1u << ST_LANE_UPDATE_DEVICE) /* executors of a separate device's one processor */

enum { READ = 0, WRITE = 1, DIRECTIONS = 2 };
enum { OF_EXECUTORS = 0, OF_DISK = 1, NOTICES = 2 };

/* Each op is in a queue at most once. */
struct queue {
    uint32_t *ops; /* [op_count], a ring */
    uint32_t first, count;
};

/* What is in flight when a step ends: all that the next one depends on. */
struct backlog {
    uint64_t ops;                                     /* a digest of which, in the order of their queues */
    double bytes[DIRECTIONS], seconds[ST_LANE_COUNT]; /* left of those being worked on */
    double notices[NOTICES];                          /* seconds until all are seen */
};

struct simulator {
    const struct st_program *program;
    const struct st_machine *machine;
    double *cost;  /* [op_count] seconds on its executor; unused for I/O */
    double *after; /* [op_count] seconds of checksums that the host computes before the op counts as done */
    struct st_dispatch dispatch;

    uint32_t ahead[ST_LANE_COUNT][ST_JOBS_AHEAD]; /* handed out and not running yet, in order; a ring */
    uint32_t ahead_first[ST_LANE_COUNT], ahead_count[ST_LANE_COUNT];
    uint32_t look;                   /* lanes (bits) for which something has changed since they were last looked at */
    uint32_t busy;                   /* executors (bits) that run an op: */
    uint32_t running[ST_LANE_COUNT]; /* which, */
    uint32_t row[ST_LANE_COUNT];     /* for which lane, */
    double end[ST_LANE_COUNT];       /* and when it ends */
    bool checking;                   /* the update executor works on checksums of its op */
    struct queue io[DIRECTIONS], comm, checks;
    double left[DIRECTIONS];  /* bytes of the queue's head still to move, */
    double alone[DIRECTIONS]; /* bytes per second if only this queue has work, */
    double both[DIRECTIONS];  /* if both have */

    /* Ops that have ended while what waits for them cannot start yet, in order. */
    struct queue notices[NOTICES];
    double delay[NOTICES]; /* for so many seconds each: */
    double *seen;          /* [op_count] until then */
    uint32_t unseen;       /* of them the host's updates */

    double now, begun;                       /* begun: when the running cycle began */
    struct st_simulation step;               /* of the running cycle */
    const struct st_simulation_watch *watch; /* NULL: nobody watches */
};

/* Index of the queue's op number i. */
static uint32_t at(const struct simulator *s, const struct queue *q, uint32_t i)
{
    const uint32_t index = q->first + i, count = s->program->op_count;

    return index < count ? index : index - count;
}

static void push(const struct simulator *s, struct queue *q, uint32_t op)
{
    q->ops[at(s, q, q->count++)] = op;
}

static uint32_t pop(const struct simulator *s, struct queue *q)
{
    const uint32_t op = q->ops[q->first];

    q->first = at(s, q, 1);
    q->count--;
    return op;
}

/* Takes the first lane from `from` on, of `lanes` (bits), off those to look at; ST_LANE_COUNT: there is none. */
static uint32_t next_look(struct simulator *s, uint32_t lanes, uint32_t from)
{
    const uint32_t left = s->look & lanes & ~0u << from, lane = left != 0 ? (uint32_t)__builtin_ctz(left) : ST_LANE_COUNT;

    s->look &= ~(1u << lane);
    return lane;
}

/* --- starting --- */

static void finish(struct simulator *s, uint32_t op)
{
    st_dispatch_finish(&s->dispatch, op);
    s->look |= st_dispatch_waiting(&s->dispatch, op);
}

/* The op's end has been seen; its checksums may follow. */
static void landed(struct simulator *s, uint32_t op)
{
    if (s->after[op] > 0) {
        push(s, &s->checks, op);
        s->look |= 1u << ST_LANE_UPDATE;
    } else {
        finish(s, op);
    }
}

/* The op itself has ended.  On a device that is the host, the executor is the one who waits. */
static void ended(struct simulator *s, uint32_t op)
{
    const uint32_t lane = s->program->ops[op].lane;
    const int of = st_lane_is_io(lane) ? OF_DISK : OF_EXECUTORS;

    if (!(s->delay[of] > 0) || (s->machine->capacity.device_is_host && st_lane_executes(lane))) {
        landed(s, op);
        return;
    }
    s->seen[op] = s->now + s->delay[of];
    s->unseen += lane == ST_LANE_UPDATE;
    push(s, &s->notices[of], op);
}

static void end_notice(struct simulator *s, int of)
{
    const uint32_t op = pop(s, &s->notices[of]);

    s->unseen -= s->program->ops[op].lane == ST_LANE_UPDATE;
    landed(s, op);
}

/* The lane's next op if it can start.  Masked ones before it are done now, and what waits for them may be on any lane. */
static uint32_t ready(struct simulator *s, uint32_t lane)
{
    const uint32_t passed = s->dispatch.passed, op = st_dispatch_ready(&s->dispatch, lane);

    if (s->dispatch.passed != passed)
        s->look = ALL_LANES;
    return op;
}

static void issue_comm(struct simulator *s)
{
    for (uint32_t op; (op = ready(s, ST_LANE_COMM)) != NONE;) {
        push(s, &s->comm, op);
        st_dispatch_pass(&s->dispatch, ST_LANE_COMM);
    }
}

static void issue_io(struct simulator *s)
{
    if (next_look(s, 1u << ST_LANE_COMM, 0) != ST_LANE_COUNT)
        issue_comm(s);
    for (uint32_t lane = 0; (lane = next_look(s, IO_LANES, lane)) != ST_LANE_COUNT; lane++) {
        const int direction = lane == ST_LANE_WRITE ? WRITE : READ;

        for (uint32_t op; (op = ready(s, lane)) != NONE;) {
            if (s->io[direction].count == 0)
                s->left[direction] = (double)s->program->ops[op].bytes;
            push(s, &s->io[direction], op);
            st_dispatch_pass(&s->dispatch, lane);
        }
    }
}

/* Starts an op on its executor. */
static void occupy(struct simulator *s, uint32_t executor, uint32_t op, uint32_t lane, double seconds)
{
    s->busy |= 1u << executor;
    s->running[executor] = op;
    s->row[executor] = lane;
    s->end[executor] = s->now + seconds;
}

/* An op without a cost ends at once. */
static void run(struct simulator *s, uint32_t executor, uint32_t op)
{
    if (s->cost[op] > 0)
        occupy(s, executor, op, s->program->ops[op].lane, s->cost[op]);
    else
        ended(s, op);
}

/* Hands ready ops out to the lane's own queue. */
static void hand_out(struct simulator *s, uint32_t lane)
{
    for (uint32_t op; (op = ready(s, lane)) != NONE && s->ahead_count[lane] < ST_JOBS_AHEAD;) {
        s->ahead[lane][(s->ahead_first[lane] + s->ahead_count[lane]++) % ST_JOBS_AHEAD] = op;
        st_dispatch_pass(&s->dispatch, lane);
    }
}

/* The queue's next op, on its own executor. */
static bool run_ahead(struct simulator *s, uint32_t lane)
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
static bool run_here(struct simulator *s, uint32_t executor)
{
    const uint32_t op = st_dispatch_pick(&s->dispatch);

    if (op == NONE)
        return false;
    if (!st_dispatch_masked(&s->dispatch, op))
        run(s, executor, op);
    else
        s->look = ALL_LANES;
    st_dispatch_pass(&s->dispatch, s->program->ops[op].lane);
    return true;
}

static bool run_comm(struct simulator *s)
{
    if (s->comm.count == 0)
        return false;
    run(s, ST_LANE_COMM, pop(s, &s->comm));
    return true;
}

/* Starts an executor's next op, if it has one. */
static bool start_next(struct simulator *s, uint32_t executor)
{
    if ((s->busy >> executor & 1) != 0)
        return false;
    if (executor == ST_LANE_UPDATE && s->checks.count > 0) {
        const uint32_t op = pop(s, &s->checks);

        occupy(s, executor, op, ST_LANE_UPDATE, s->after[op]);
        s->checking = true;
        return true;
    }
    if (executor == ST_LANE_COMM)
        return run_comm(s);
    return s->machine->capacity.device_is_host ? run_here(s, executor) : run_ahead(s, executor);
}

/* Starts everything that can start now, of a separate device's lanes those to look at. */
static bool start_queues(struct simulator *s)
{
    bool started = false;

    for (uint32_t lane = 0; (lane = next_look(s, QUEUE_LANES, lane)) != ST_LANE_COUNT; lane++) {
        hand_out(s, lane);
        if (start_next(s, lane)) {
            s->look |= 1u << lane;
            started = true;
        }
    }
    return started;
}

/* Starts everything that can start now.  A host that runs an op itself hands out no I/O meanwhile. */
static void dispatch(struct simulator *s)
{
    const bool host = s->machine->capacity.device_is_host;
    bool progressed = true;

    while (progressed) {
        const uint32_t passed = s->dispatch.passed;

        if (!host || (s->busy >> ST_LANE_COMPUTE & 1) == 0)
            issue_io(s);
        progressed = host ? start_next(s, ST_LANE_COMPUTE) : start_queues(s);
        progressed |= start_next(s, ST_LANE_COMM);
        progressed |= s->dispatch.passed != passed;
    }
}

/* --- time --- */

/* Executors among which a separate device's one processor is divided evenly, as far as they run. */
static bool shared(const struct simulator *s)
{
    return (s->busy & SHARING) == SHARING;
}

static double not_negative(double x)
{
    return x > 0 ? x : 0;
}

/* Until the executor's op ends, if nothing else changes; end[] is as if it were alone from now on. */
static double seconds_left(const struct simulator *s, uint32_t executor)
{
    return not_negative(s->end[executor] - s->now) * (shared(s) && (SHARING >> executor & 1) != 0 ? 2 : 1);
}

/* Bytes per second of a queue that has work; 0: it takes no time. */
static double io_rate(const struct simulator *s, int direction)
{
    return (s->io[READ].count > 0 && s->io[WRITE].count > 0 ? s->both : s->alone)[direction];
}

static void spend(struct simulator *s, uint32_t lane, uint32_t op, double seconds)
{
    s->step.busy[lane] += seconds;
    if (s->watch != NULL)
        s->watch->ran(s->watch->ctx, lane, op, s->now - s->begun, seconds);
}

static void stall(struct simulator *s, uint32_t lane, double seconds)
{
    s->step.stall[lane] += seconds;
    if (s->watch != NULL)
        s->watch->stalled(s->watch->ctx, lane, s->now - s->begun, seconds);
}

static void account(struct simulator *s, double seconds)
{
    for (uint32_t left = s->busy; left != 0; left &= left - 1) {
        const uint32_t executor = (uint32_t)__builtin_ctz(left);

        spend(s, s->row[executor], s->running[executor], seconds);
    }
    for (int d = 0; d < DIRECTIONS; d++)
        if (s->io[d].count > 0) {
            const uint32_t op = s->io[d].ops[s->io[d].first];

            spend(s, s->program->ops[op].lane, op, seconds);
        }
    if ((s->busy >> ST_LANE_COMPUTE & 1) == 0)
        stall(s, st_dispatch_stall(&s->dispatch, s->busy).lane, seconds);
}

static void end_io(struct simulator *s, int direction)
{
    struct queue *q = &s->io[direction];

    ended(s, pop(s, q));
    s->left[direction] = q->count > 0 ? (double)s->program->ops[q->ops[q->first]].bytes : 0;
}

static void end_executor(struct simulator *s, uint32_t executor)
{
    const uint32_t op = s->running[executor];

    s->busy &= ~(1u << executor);
    s->look |= 1u << executor;
    if (executor == ST_LANE_UPDATE && s->checking)
        finish(s, op);
    else
        ended(s, op);
    if (executor == ST_LANE_UPDATE)
        s->checking = false;
}

/* Advances everything in flight. */
static void pass_time(struct simulator *s, double seconds)
{
    if (seconds > 0)
        account(s, seconds);
    for (int d = 0; d < DIRECTIONS; d++)
        if (s->io[d].count > 0)
            s->left[d] = not_negative(s->left[d] - io_rate(s, d) * seconds);
    if (!shared(s))
        return;
    s->end[ST_LANE_COMPUTE] += seconds / 2;
    s->end[ST_LANE_UPDATE_DEVICE] += seconds / 2;
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

static struct event next_event(const struct simulator *s)
{
    struct event next = {.seconds = HUGE_VAL};

    for (uint32_t d = 0; d < DIRECTIONS; d++)
        if (s->io[d].count > 0)
            take_sooner(&next, (struct event){st_seconds_at(s->left[d], io_rate(s, (int)d)), END_IO, d});
    for (uint32_t left = s->busy; left != 0; left &= left - 1) {
        const uint32_t executor = (uint32_t)__builtin_ctz(left);

        take_sooner(&next, (struct event){seconds_left(s, executor), END_EXECUTOR, executor});
    }
    for (uint32_t of = 0; of < NOTICES; of++)
        if (s->notices[of].count > 0)
            take_sooner(&next,
                        (struct event){not_negative(s->seen[s->notices[of].ops[s->notices[of].first]] - s->now), END_NOTICE, of});
    return next;
}

/* Advances to the next completion.  False: there is none. */
static bool advance(struct simulator *s)
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

/* --- cycles --- */

static bool cycle_ended(const struct simulator *s)
{
    if (!st_dispatch_over(&s->dispatch))
        return false;
    if (s->machine->capacity.device_is_host)
        return (s->busy >> ST_LANE_COMPUTE & 1) == 0;
    return (s->busy >> ST_LANE_UPDATE & 1) == 0 && s->ahead_count[ST_LANE_UPDATE] == 0 && s->unseen == 0;
}

static strata_status deadlock(struct simulator *s)
{
    uint32_t lane = 0, op;

    while ((op = st_dispatch_head(&s->dispatch, lane)) == NONE)
        lane++;
    return st_error(STRATA_E_INTERNAL, "simulation: op %u (%s) of the program waits for op %u, which never ends", op,
                    st_op_name((enum st_op_kind)s->program->ops[op].kind), st_dispatch_blocker(&s->dispatch, lane));
}

static strata_status run_cycle(struct simulator *s, enum st_phase phase)
{
    s->begun = s->now;
    if (s->watch != NULL)
        s->watch->began(s->watch->ctx);
    st_dispatch_begin(&s->dispatch, phase);
    s->look = ALL_LANES;
    memset(&s->step, 0, sizeof(s->step));
    for (dispatch(s); !cycle_ended(s); dispatch(s))
        if (!advance(s))
            return deadlock(s);
    s->step.seconds = s->now - s->begun;
    return STRATA_OK;
}

static void add_word(uint64_t *digest, uint32_t word)
{
    *digest = (*digest ^ word) * 0x100000001b3 + (*digest >> 40);
}

static void add_queue(uint64_t *digest, const struct simulator *s, const struct queue *q)
{
    add_word(digest, NONE - q->count);
    for (uint32_t i = 0; i < q->count; i++)
        add_word(digest, q->ops[at(s, q, i)]);
}

static struct backlog backlog_of(const struct simulator *s)
{
    struct backlog b = {.bytes = {s->left[READ], s->left[WRITE]}};

    for (uint32_t i = 0; i < ST_LANE_COUNT; i++) {
        const bool busy = (s->busy >> i & 1) != 0;

        add_word(&b.ops, busy ? s->running[i] : NONE);
        b.seconds[i] = busy ? s->end[i] - s->now : 0;
        for (uint32_t a = 0; a < s->ahead_count[i]; a++)
            add_word(&b.ops, s->ahead[i][(s->ahead_first[i] + a) % ST_JOBS_AHEAD]);
    }
    for (int d = 0; d < DIRECTIONS; d++)
        add_queue(&b.ops, s, &s->io[d]);
    for (int of = 0; of < NOTICES; of++) {
        add_queue(&b.ops, s, &s->notices[of]);
        for (uint32_t i = 0; i < s->notices[of].count; i++)
            b.notices[of] += s->seen[s->notices[of].ops[at(s, &s->notices[of], i)]] - s->now;
    }
    add_queue(&b.ops, s, &s->comm);
    add_queue(&b.ops, s, &s->checks);
    return b;
}

static bool same(double a, double b, double scale)
{
    return fabs(a - b) <= SAME * scale;
}

/* A finished step: its time, and what was still in flight. */
struct ended {
    struct st_simulation step;
    struct backlog behind;
};

/* Whether what follows these two is the same. */
static bool repeats(const struct ended *a, const struct ended *b)
{
    const struct backlog *x = &a->behind, *y = &b->behind;
    bool equal = x->ops == y->ops;

    for (uint32_t i = 0; i < ST_LANE_COUNT; i++)
        equal &= same(x->seconds[i], y->seconds[i], a->step.seconds);
    for (int d = 0; d < DIRECTIONS; d++)
        equal &= same(x->bytes[d], y->bytes[d], 1 + x->bytes[d]);
    for (int of = 0; of < NOTICES; of++)
        equal &= same(x->notices[of], y->notices[of], a->step.seconds);
    return equal;
}

/* The number of steps after which all repeats, the last one among them; 0: nothing does yet.  What follows the first step counts,
 * though itself it has no update. */
static uint32_t period(const struct ended *steps, uint32_t last)
{
    for (uint32_t p = 1; p <= PERIOD_MAX && p <= last; p++)
        if (repeats(&steps[last], &steps[last - p]))
            return p;
    return 0;
}

static void add(struct st_simulation *sum, const struct st_simulation *step, double part)
{
    sum->seconds += step->seconds * part;
    for (uint32_t i = 0; i < ST_LANE_COUNT; i++) {
        sum->busy[i] += step->busy[i] * part;
        sum->stall[i] += step->stall[i] * part;
    }
}

static enum st_lane largest_stall(const struct st_simulation *step)
{
    enum st_lane most = ST_LANE_COUNT;

    for (uint32_t i = 0; i < ST_LANE_COUNT; i++)
        if (step->stall[i] > (most == ST_LANE_COUNT ? 0 : step->stall[most]))
            most = (enum st_lane)i;
    return most;
}

static strata_status run_steps(struct simulator *s, struct st_simulation *out)
{
    const bool pending = st_program_gated(s->program);
    struct ended steps[STEPS_MAX];
    struct st_simulation mean = {0};
    uint32_t last, count = 0;

    for (last = 0; last < STEPS_MAX && count == 0; last++) {
        const strata_status st = run_cycle(s, last == 0 && pending ? ST_PHASE_PROLOGUE : ST_PHASE_BODY);

        if (st != STRATA_OK)
            return st;
        steps[last] = (struct ended){s->step, backlog_of(s)};
        count = period(steps, last);
    }
    if (count == 0)
        count = STEPS_MAX / 2;
    for (uint32_t i = last - count; i < last; i++)
        add(&mean, &steps[i].step, 1.0 / count);
    *out = s->watch != NULL ? s->step : mean;
    out->stalled_by = largest_stall(out);
    return STRATA_OK;
}

/* --- set up --- */

/* Data that was read is checked once, for its first use.  A device that is the host checks in the op that uses it; else the
 * host's threads check data as it arrives. */
static void take_costs(struct simulator *s)
{
    const uint32_t count = s->program->op_count;

    for (uint32_t i = 0; i < count; i++) {
        const struct st_op *op = &s->program->ops[i];
        const double checksums = (op->phases & ST_PHASE_BODY_SAVE) != 0 ? st_cost_checksums(s->program, s->machine, op) : 0;
        const uint32_t read = checksums > 0 ? st_cost_read_of(s->program, op) : NONE, owner = read != NONE ? read : i;

        s->cost[i] = st_cost_op(s->program, s->machine, op);
        if (checksums > 0 && s->after[owner] > 0)
            continue;
        s->after[owner] = checksums > 0 ? checksums : s->after[owner];
        if (s->machine->capacity.device_is_host)
            s->cost[i] += checksums;
    }
    if (s->machine->capacity.device_is_host)
        memset(s->after, 0, count * sizeof(*s->after));
}

/* Of the disk; sharing it makes no queue faster.  What hands over to another thread or queue. */
static void take_rates(struct simulator *s)
{
    const struct st_rates *rates = &s->machine->rates;

    s->delay[OF_EXECUTORS] = rates->handover;
    s->delay[OF_DISK] = rates->latency_io;
    s->alone[READ] = rates->read;
    s->alone[WRITE] = rates->write;
    for (int d = 0; d < DIRECTIONS; d++)
        s->both[d] = rates->mixed > 0 && rates->mixed / 2 < s->alone[d] ? rates->mixed / 2 : s->alone[d];
}

static strata_status create(struct simulator *s, struct st_scratch *scratch)
{
    const size_t count = s->program->op_count;
    uint32_t *words;

    s->cost = st_scratch_take(scratch, count * (3 * sizeof(double) + 6 * sizeof(uint32_t)) + st_dispatch_bytes(count));
    if (s->cost == NULL)
        return st_error(STRATA_E_NOMEM, "simulation: no memory for %zu ops", count);
    s->after = s->cost + count;
    memset(s->after, 0, count * sizeof(*s->after));
    s->seen = s->after + count;
    words = (uint32_t *)(void *)(s->seen + count);
    s->io[READ].ops = words;
    s->io[WRITE].ops = words + count;
    s->checks.ops = words + 2 * count;
    s->comm.ops = words + 3 * count;
    s->notices[OF_EXECUTORS].ops = words + 4 * count;
    s->notices[OF_DISK].ops = words + 5 * count;
    take_rates(s);
    take_costs(s);
    st_dispatch_place(&s->dispatch, s->program, !s->machine->capacity.device_is_host, words + 6 * count);
    return STRATA_OK;
}

/* The save's writes may outlive its step, so as many steps are compared as any period divides. */
static strata_status run_save(struct simulator *s, const struct st_simulation *steady, double *seconds)
{
    strata_status st = STRATA_OK;
    double more = 0;

    for (uint32_t i = 0; i < SAVE_STEPS && st == STRATA_OK; i++) {
        st = run_cycle(s, i == 0 ? ST_PHASE_BODY_SAVE : ST_PHASE_BODY);
        more += s->step.seconds - steady->seconds;
    }
    *seconds = fmax(more, 0);
    return st;
}

static strata_status simulate(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine,
                              const struct st_simulation_watch *watch, struct st_scratch *scratch)
{
    struct simulator s = {.program = program, .machine = machine, .watch = watch};
    const strata_status st = create(&s, scratch);

    return st == STRATA_OK ? run_steps(&s, out) : st;
}

/* A latency may let another op go first, and so make a step shorter by chance.  Then the step without latencies counts. */
strata_status st_simulate_in(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine,
                             struct st_scratch *scratch)
{
    struct st_machine prompt = *machine;
    struct st_simulation other;
    strata_status st = simulate(out, program, machine, NULL, scratch);

    if (st != STRATA_OK || !(machine->rates.handover + machine->rates.latency_io + machine->rates.launch > 0))
        return st;
    prompt.rates.handover = prompt.rates.latency_io = prompt.rates.launch = 0;
    if ((st = simulate(&other, program, &prompt, NULL, scratch)) == STRATA_OK && other.seconds > out->seconds)
        *out = other;
    return st;
}

strata_status st_simulate(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine)
{
    struct st_scratch scratch = {0};
    const strata_status st = st_simulate_in(out, program, machine, &scratch);

    st_scratch_free(&scratch);
    return st;
}

strata_status st_simulate_watched(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine,
                                  const struct st_simulation_watch *watch)
{
    struct st_scratch scratch = {0};
    const strata_status st = simulate(out, program, machine, watch, &scratch);

    st_scratch_free(&scratch);
    return st;
}

strata_status st_simulate_save(double *seconds, const struct st_program *program, const struct st_machine *machine)
{
    struct simulator s = {.program = program, .machine = machine};
    struct st_scratch scratch = {0};
    struct st_simulation steady;
    strata_status st = create(&s, &scratch);

    if (st == STRATA_OK && (st = run_steps(&s, &steady)) == STRATA_OK)
        st = run_save(&s, &steady, seconds);
    st_scratch_free(&scratch);
    return st;
}

bool st_simulate_possible(const struct st_program *program, const struct st_machine *machine)
{
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        double rate = 1;

        if ((op->phases & ST_PHASE_BODY) == 0 || op->lane == ST_LANE_COMM)
            continue;
        if (st_op_rows[op->kind].work == ST_WORK_CALL)
            rate = machine->rates.block_flops > 0 ? machine->rates.block_flops : machine->rates.matmul_flops;
        else if (st_cost_updated(program, machine, op) > 0)
            rate = machine->rates.update;
        else if (st_op_rows[op->kind].work == ST_WORK_COPY)
            rate = st_cost_rate(machine, (enum st_lane)op->lane);
        if (!(rate > 0))
            return false;
    }
    return true;
}
