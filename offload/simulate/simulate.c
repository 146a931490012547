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
#include <stdlib.h>
#include <string.h>

#define STEPS_MAX  24u  /* the most to simulate; if no period is found, half of them are averaged */
#define PERIOD_MAX 8u   /* steps */
#define SAVE_STEPS 24u  /* a multiple of the usual periods */
#define SAME       1e-9 /* largest relative difference of two steps that count as equal */
#define NONE       ST_NO_OP

enum { READ = 0, WRITE = 1, DIRECTIONS = 2 };

/* Each op is in a queue at most once. */
struct queue {
    uint32_t *ops; /* [op_count], a ring */
    uint32_t first, count;
};

/* The ops in flight when a step ends; steps repeat only if this repeats, too. */
struct backlog {
    double bytes[DIRECTIONS], seconds;
};

struct simulator {
    const struct st_program *program;
    const struct st_machine *machine;
    double *cost;  /* [op_count] seconds on its executor; unused for I/O */
    double *after; /* [op_count] seconds of checksums that the host computes before the op counts as done */
    struct st_dispatch dispatch;

    uint32_t ahead[ST_LANE_COUNT][ST_JOBS_AHEAD]; /* handed out and not running yet, in order; a ring */
    uint32_t ahead_first[ST_LANE_COUNT], ahead_count[ST_LANE_COUNT];
    uint32_t running[ST_LANE_COUNT]; /* op on each executor, or NONE */
    uint32_t row[ST_LANE_COUNT];     /* lane that an executor works for */
    double end[ST_LANE_COUNT];       /* when its op ends */
    bool checking;                   /* the update executor works on checksums of its op */
    struct queue io[DIRECTIONS], comm, checks;
    double left[DIRECTIONS]; /* bytes of the queue's head still to move */

    double now, begun;                       /* begun: when the running cycle began */
    struct st_simulation step;               /* of the running cycle */
    const struct st_simulation_watch *watch; /* NULL: nobody watches */
};

static uint32_t executor_of(const struct simulator *s, uint32_t lane)
{
    return s->machine->capacity.device_is_host && lane != ST_LANE_COMM ? ST_LANE_COMPUTE : lane;
}

static void push(const struct simulator *s, struct queue *q, uint32_t op)
{
    q->ops[(q->first + q->count++) % s->program->op_count] = op;
}

static uint32_t pop(const struct simulator *s, struct queue *q)
{
    const uint32_t op = q->ops[q->first];

    q->first = (q->first + 1) % s->program->op_count;
    q->count--;
    return op;
}

/* --- starting --- */

/* The op itself has ended; its checksums may follow. */
static void landed(struct simulator *s, uint32_t op)
{
    if (s->after[op] > 0)
        push(s, &s->checks, op);
    else
        st_dispatch_finish(&s->dispatch, op);
}

static void issue_comm(struct simulator *s)
{
    for (uint32_t op; (op = st_dispatch_ready(&s->dispatch, ST_LANE_COMM)) != NONE;) {
        push(s, &s->comm, op);
        st_dispatch_pass(&s->dispatch, ST_LANE_COMM);
    }
}

static void issue_io(struct simulator *s)
{
    issue_comm(s);
    for (uint32_t lane = 0; lane < ST_LANE_COUNT; lane++) {
        const int direction = lane == ST_LANE_WRITE ? WRITE : READ;

        for (uint32_t op; st_lane_is_io(lane) && (op = st_dispatch_ready(&s->dispatch, lane)) != NONE;) {
            if (s->io[direction].count == 0)
                s->left[direction] = (double)s->program->ops[op].bytes;
            push(s, &s->io[direction], op);
            st_dispatch_pass(&s->dispatch, lane);
        }
    }
}

/* Starts an op on its executor; an op without a cost ends at once. */
static void run(struct simulator *s, uint32_t executor, uint32_t op)
{
    if (!(s->cost[op] > 0)) {
        landed(s, op);
        return;
    }
    s->running[executor] = op;
    s->row[executor] = s->program->ops[op].lane;
    s->end[executor] = s->now + s->cost[op];
}

/* Hands ready ops out to the lane's own queue. */
static void hand_out(struct simulator *s, uint32_t lane)
{
    for (uint32_t op; (op = st_dispatch_ready(&s->dispatch, lane)) != NONE && s->ahead_count[lane] < ST_JOBS_AHEAD;) {
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

static bool start_next(struct simulator *s, uint32_t executor)
{
    uint32_t op;

    if (s->running[executor] != NONE)
        return false;
    if (executor == ST_LANE_UPDATE && s->checks.count > 0) {
        op = pop(s, &s->checks);
        s->running[executor] = op;
        s->row[executor] = ST_LANE_UPDATE;
        s->end[executor] = s->now + s->after[op];
        s->checking = true;
        return true;
    }
    if (executor == ST_LANE_COMM)
        return run_comm(s);
    return s->machine->capacity.device_is_host ? run_here(s, executor) : run_ahead(s, executor);
}

/* Starts everything that can start now.  A host that runs an op itself hands out no I/O meanwhile. */
static void dispatch(struct simulator *s)
{
    const bool host = s->machine->capacity.device_is_host;
    bool progressed = true;

    while (progressed) {
        const uint32_t passed = s->dispatch.passed;

        progressed = false;
        if (!host || s->running[ST_LANE_COMPUTE] == NONE)
            issue_io(s);
        for (uint32_t lane = 0; lane < ST_LANE_COUNT; lane++) {
            if (st_lane_is_io(lane) || executor_of(s, lane) != lane)
                continue;
            if (!host && lane != ST_LANE_COMM)
                hand_out(s, lane);
            progressed |= start_next(s, lane);
        }
        progressed |= s->dispatch.passed != passed;
    }
}

/* --- time --- */

/* Executors among which a separate device's one processor is divided evenly, as far as they run. */
static bool shares(const struct simulator *s, uint32_t executor)
{
    const uint32_t other = executor == ST_LANE_COMPUTE ? ST_LANE_UPDATE_DEVICE : ST_LANE_COMPUTE;

    return (executor == ST_LANE_COMPUTE || executor == ST_LANE_UPDATE_DEVICE) && s->running[executor] != NONE &&
           s->running[other] != NONE;
}

/* Until the executor's op ends, if nothing else changes; end[] is as if it were alone from now on. */
static double seconds_left(const struct simulator *s, uint32_t executor)
{
    return fmax(0, s->end[executor] - s->now) * (shares(s, executor) ? 2 : 1);
}

/* Bytes per second of a queue that has work; 0: it takes no time. */
static double io_rate(const struct simulator *s, int direction)
{
    const struct st_machine *m = s->machine;
    const double alone = direction == READ ? m->rates.read : m->rates.write;
    const bool shared = s->io[READ].count > 0 && s->io[WRITE].count > 0 && m->rates.mixed > 0;

    return shared && m->rates.mixed / 2 < alone ? m->rates.mixed / 2 : alone;
}

static uint32_t busy_lanes(const struct simulator *s)
{
    uint32_t busy = 0;

    for (uint32_t lane = 0; lane < ST_LANE_COUNT; lane++)
        busy |= (uint32_t)(s->running[executor_of(s, lane)] != NONE) << lane;
    return busy;
}

/* What account() sums, piece by piece. */
static void tell(struct simulator *s, double seconds)
{
    const struct st_simulation_watch *watch = s->watch;
    const double start = s->now - s->begun;

    for (uint32_t i = 0; i < ST_LANE_COUNT; i++)
        if (s->running[i] != NONE)
            watch->ran(watch->ctx, s->row[i], s->running[i], start, seconds);
    for (int d = 0; d < DIRECTIONS; d++)
        if (s->io[d].count > 0) {
            const uint32_t op = s->io[d].ops[s->io[d].first];

            watch->ran(watch->ctx, s->program->ops[op].lane, op, start, seconds);
        }
    if (s->running[ST_LANE_COMPUTE] == NONE)
        watch->stalled(watch->ctx, st_dispatch_stall(&s->dispatch, busy_lanes(s)).lane, start, seconds);
}

static void account(struct simulator *s, double seconds)
{
    if (s->watch != NULL)
        tell(s, seconds);
    for (uint32_t i = 0; i < ST_LANE_COUNT; i++)
        if (s->running[i] != NONE)
            s->step.busy[s->row[i]] += seconds;
    for (int d = 0; d < DIRECTIONS; d++)
        if (s->io[d].count > 0)
            s->step.busy[s->program->ops[s->io[d].ops[s->io[d].first]].lane] += seconds;
    if (s->running[ST_LANE_COMPUTE] == NONE)
        s->step.stall[st_dispatch_stall(&s->dispatch, busy_lanes(s)).lane] += seconds;
}

static void end_io(struct simulator *s, int direction)
{
    struct queue *q = &s->io[direction];

    landed(s, pop(s, q));
    s->left[direction] = q->count > 0 ? (double)s->program->ops[q->ops[q->first]].bytes : 0;
}

static void end_executor(struct simulator *s, uint32_t executor)
{
    const uint32_t op = s->running[executor];

    s->running[executor] = NONE;
    if (executor == ST_LANE_UPDATE && s->checking)
        st_dispatch_finish(&s->dispatch, op);
    else
        landed(s, op);
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
            s->left[d] = fmax(0, s->left[d] - io_rate(s, d) * seconds);
    for (uint32_t i = 0; i < ST_LANE_COUNT; i++)
        if (shares(s, i))
            s->end[i] += seconds / 2;
}

/* Advances to the next completion.  False: there is none. */
static bool advance(struct simulator *s)
{
    double soonest = HUGE_VAL;
    uint32_t executor = NONE;
    int direction = READ;

    for (int d = 0; d < DIRECTIONS; d++) {
        const double rate = io_rate(s, d), seconds = rate > 0 ? s->left[d] / rate : 0;

        if (s->io[d].count > 0 && seconds < soonest) {
            soonest = seconds;
            direction = d;
        }
    }
    for (uint32_t i = 0; i < ST_LANE_COUNT; i++)
        if (s->running[i] != NONE && seconds_left(s, i) < soonest) {
            soonest = seconds_left(s, i);
            executor = i;
        }
    if (soonest == HUGE_VAL)
        return false;
    pass_time(s, soonest);
    s->now = executor != NONE ? fmax(s->now, s->end[executor]) : s->now + soonest;
    if (executor != NONE)
        end_executor(s, executor);
    else
        end_io(s, direction);
    return true;
}

/* --- cycles --- */

static bool cycle_ended(const struct simulator *s)
{
    if (!st_dispatch_over(&s->dispatch))
        return false;
    if (s->machine->capacity.device_is_host)
        return s->running[ST_LANE_COMPUTE] == NONE;
    return s->running[ST_LANE_UPDATE] == NONE && s->ahead_count[ST_LANE_UPDATE] == 0;
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
    memset(&s->step, 0, sizeof(s->step));
    for (dispatch(s); !cycle_ended(s); dispatch(s))
        if (!advance(s))
            return deadlock(s);
    s->step.seconds = s->now - s->begun;
    return STRATA_OK;
}

static struct backlog backlog_of(const struct simulator *s)
{
    struct backlog b = {.bytes = {s->left[READ], s->left[WRITE]}};

    for (int d = 0; d < DIRECTIONS; d++)
        for (uint32_t i = 1; i < s->io[d].count; i++)
            b.bytes[d] += (double)s->program->ops[s->io[d].ops[(s->io[d].first + i) % s->program->op_count]].bytes;
    for (uint32_t i = 0; i < ST_LANE_COUNT; i++)
        if (s->running[i] != NONE)
            b.seconds += s->end[i] - s->now;
    for (uint32_t i = 0; i < s->comm.count; i++)
        b.seconds += s->cost[s->comm.ops[(s->comm.first + i) % s->program->op_count]];
    return b;
}

static bool same(double a, double b, double scale)
{
    return fabs(a - b) <= SAME * scale;
}

/* A finished step: its time, and the ops that were still in flight. */
struct ended {
    struct st_simulation step;
    struct backlog behind;
};

static bool repeats(const struct ended *a, const struct ended *b)
{
    const double seconds = a->step.seconds;

    return same(seconds, b->step.seconds, seconds) && same(a->behind.seconds, b->behind.seconds, seconds) &&
           same(a->behind.bytes[READ], b->behind.bytes[READ], 1 + a->behind.bytes[READ]) &&
           same(a->behind.bytes[WRITE], b->behind.bytes[WRITE], 1 + a->behind.bytes[WRITE]);
}

/* The number of steps after which the last one repeats; 0: it does not.  The first step has no update and does not count. */
static uint32_t period(const struct ended *steps, uint32_t last)
{
    for (uint32_t p = 1; p <= PERIOD_MAX && p < last; p++)
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

static strata_status create(struct simulator *s, void **memory)
{
    const size_t count = s->program->op_count > 0 ? s->program->op_count : 1;
    uint32_t *words;

    *memory = calloc(count, 2 * sizeof(double) + 4 * sizeof(uint32_t));
    if (*memory == NULL)
        return st_error(STRATA_E_NOMEM, "simulation: no memory for %zu ops", count);
    s->cost = *memory;
    s->after = s->cost + count;
    words = (uint32_t *)(void *)(s->after + count);
    s->io[READ].ops = words;
    s->io[WRITE].ops = words + count;
    s->checks.ops = words + 2 * count;
    s->comm.ops = words + 3 * count;
    for (uint32_t lane = 0; lane < ST_LANE_COUNT; lane++)
        s->running[lane] = NONE;
    take_costs(s);
    return st_dispatch_init(&s->dispatch, s->program, !s->machine->capacity.device_is_host);
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

/* save: NULL, or where to put what a save costs. */
static strata_status simulate(struct st_simulation *out, double *save, const struct st_program *program,
                              const struct st_machine *machine, const struct st_simulation_watch *watch)
{
    struct simulator s = {.program = program, .machine = machine, .watch = watch};
    void *memory;
    strata_status st = create(&s, &memory);

    if (st == STRATA_OK)
        st = run_steps(&s, out);
    if (st == STRATA_OK && save != NULL)
        st = run_save(&s, out, save);
    st_dispatch_fini(&s.dispatch);
    free(memory);
    return st;
}

strata_status st_simulate(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine)
{
    return simulate(out, NULL, program, machine, NULL);
}

strata_status st_simulate_watched(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine,
                                  const struct st_simulation_watch *watch)
{
    return simulate(out, NULL, program, machine, watch);
}

strata_status st_simulate_save(double *seconds, const struct st_program *program, const struct st_machine *machine)
{
    struct st_simulation steady;

    return simulate(&steady, seconds, program, machine, NULL);
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
