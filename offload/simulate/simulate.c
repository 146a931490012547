/* simulate.c - runs a program on a clock: each op that dispatch.c hands out takes its time.
 *
 * Executors run one op at a time; there is one per executing lane, or one for all on a device that is the host.  Compute and
 * updates on a separate device are two queues of one processor: while both run, each has half of it.  The disk is modelled as a
 * fluid: two queues whose heads move at the same time.  Exchanges between ranks are one queue, too, whose head alone moves, and
 * so are the layers of a caller.  Time advances from one completion to the next. */
#include "offload/simulate/simulate_internal.h"

#include "core/base/error.h"
#include "offload/simulate/cost.h"

#include <math.h>
#include <string.h>

#define STEPS_MAX  24u  /* the most to simulate; if no period is found, half of them are averaged */
#define PERIOD_MAX 8u   /* steps */
#define SAVE_STEPS 24u  /* a multiple of the usual periods */
#define SAME       1e-9 /* largest relative difference of two steps that count as equal */
#define NONE       ST_NO_OP

/* What is in flight when a step ends: all that the next one depends on. */
struct backlog {
    uint64_t ops;                                                  /* a digest of which, in the order of their queues */
    double bytes[ST_CLOCK_DIRECTIONS], seconds[STRATA_LANE_COUNT]; /* left of those being worked on */
    double notices[ST_CLOCK_NOTICES];                              /* seconds until all are seen */
};

/* --- cycles --- */

static bool cycle_ended(const struct st_clock *s)
{
    if (!st_dispatch_over(&s->dispatch))
        return false;
    if (s->machine->capacity.device_is_host)
        return (s->busy >> STRATA_LANE_COMPUTE & 1) == 0;
    return (s->busy >> STRATA_LANE_UPDATE & 1) == 0 && s->ahead_count[STRATA_LANE_UPDATE] == 0 && s->unseen == 0;
}

static strata_status deadlock(struct st_clock *s)
{
    uint32_t lane = 0, op;

    while ((op = st_dispatch_head(&s->dispatch, lane)) == NONE)
        lane++;
    return st_error(STRATA_E_INTERNAL, "simulation: op %u (%s) of the program waits for op %u, which never ends", op,
                    st_op_name((enum st_op_kind)s->program->ops[op].kind), st_dispatch_blocker(&s->dispatch, lane));
}

static strata_status run_cycle(struct st_clock *s, enum st_phase phase)
{
    s->begun = s->now;
    if (s->watch != NULL)
        s->watch->began(s->watch->ctx);
    st_dispatch_begin(&s->dispatch, phase);
    s->look = ST_CLOCK_ALL_LANES;
    memset(&s->step, 0, sizeof(s->step));
    for (st_clock_dispatch(s); !cycle_ended(s); st_clock_dispatch(s))
        if (!st_clock_advance(s))
            return deadlock(s);
    s->step.seconds = s->now - s->begun;
    return STRATA_OK;
}

static void add_word(uint64_t *digest, uint32_t word)
{
    *digest = (*digest ^ word) * 0x100000001b3 + (*digest >> 40);
}

static void add_queue(uint64_t *digest, const struct st_clock *s, const struct st_clock_queue *q)
{
    add_word(digest, NONE - q->count);
    for (uint32_t i = 0; i < q->count; i++)
        add_word(digest, q->ops[st_clock_at(s, q, i)]);
}

static struct backlog backlog_of(const struct st_clock *s)
{
    struct backlog b = {.bytes = {s->left[ST_CLOCK_READ], s->left[ST_CLOCK_WRITE]}};

    for (uint32_t i = 0; i < STRATA_LANE_COUNT; i++) {
        const bool busy = (s->busy >> i & 1) != 0;

        add_word(&b.ops, busy ? s->running[i] : NONE);
        b.seconds[i] = busy ? s->end[i] - s->now : 0;
        for (uint32_t a = 0; a < s->ahead_count[i]; a++)
            add_word(&b.ops, s->ahead[i][(s->ahead_first[i] + a) % ST_JOBS_AHEAD]);
    }
    for (int d = 0; d < ST_CLOCK_DIRECTIONS; d++)
        add_queue(&b.ops, s, &s->io[d]);
    for (int of = 0; of < ST_CLOCK_NOTICES; of++) {
        add_queue(&b.ops, s, &s->notices[of]);
        for (uint32_t i = 0; i < s->notices[of].count; i++)
            b.notices[of] += s->seen[s->notices[of].ops[st_clock_at(s, &s->notices[of], i)]] - s->now;
    }
    add_queue(&b.ops, s, &s->comm);
    add_queue(&b.ops, s, &s->caller);
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

    for (uint32_t i = 0; i < STRATA_LANE_COUNT; i++)
        equal &= same(x->seconds[i], y->seconds[i], a->step.seconds);
    for (int d = 0; d < ST_CLOCK_DIRECTIONS; d++)
        equal &= same(x->bytes[d], y->bytes[d], 1 + x->bytes[d]);
    for (int of = 0; of < ST_CLOCK_NOTICES; of++)
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
    for (uint32_t i = 0; i < STRATA_LANE_COUNT; i++) {
        sum->busy[i] += step->busy[i] * part;
        sum->stall[i] += step->stall[i] * part;
    }
}

static enum strata_lane largest_stall(const struct st_simulation *step)
{
    enum strata_lane most = STRATA_LANE_COUNT;

    for (uint32_t i = 0; i < STRATA_LANE_COUNT; i++)
        if (step->stall[i] > (most == STRATA_LANE_COUNT ? 0 : step->stall[most]))
            most = (enum strata_lane)i;
    return most;
}

/* Of steady steps. */
static enum st_phase phase_of(const struct st_clock *s, bool first)
{
    return (enum st_phase)(first ? ST_PHASE_PROLOGUE | (s->beside & ST_PHASE_LATE) : ST_PHASE_BODY | s->beside);
}

static strata_status run_steps(struct st_clock *s, struct st_simulation *out)
{
    const bool pending = st_program_gated(s->program);
    struct ended steps[STEPS_MAX];
    struct st_simulation mean = {0};
    uint32_t last, count = 0;

    for (last = 0; last < STEPS_MAX && count == 0; last++) {
        const strata_status st = run_cycle(s, phase_of(s, last == 0 && pending));

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
static void take_costs(struct st_clock *s)
{
    const double streaming = s->machine->capacity.device_is_host ? 1 : st_cost_streaming(s->program);
    const uint32_t count = s->program->op_count;

    for (uint32_t i = 0; i < count; i++) {
        const struct st_op *op = &s->program->ops[i];
        const double checksums = (op->phases & ST_PHASE_BODY_SAVE) != 0 ? st_cost_checksums(s->program, s->machine, op) : 0;
        const uint32_t read = checksums > 0 ? st_cost_read_of(s->program, op) : NONE, owner = read != NONE ? read : i;

        s->cost[i] = st_cost_op(s->program, s->machine, op) * (op->lane == STRATA_LANE_UPDATE ? streaming : 1);
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
static void take_rates(struct st_clock *s)
{
    const struct st_rates *rates = &s->machine->rates;

    s->delay[ST_CLOCK_OF_EXECUTORS] = rates->handover;
    s->delay[ST_CLOCK_OF_DISK] = rates->latency_io;
    s->alone[ST_CLOCK_READ] = rates->read;
    s->alone[ST_CLOCK_WRITE] = rates->write;
    for (int d = 0; d < ST_CLOCK_DIRECTIONS; d++)
        s->both[d] = rates->mixed > 0 && rates->mixed / 2 < s->alone[d] ? rates->mixed / 2 : s->alone[d];
}

static strata_status create(struct st_clock *s, struct st_scratch *scratch)
{
    const size_t count = s->program->op_count;
    uint32_t *words;

    s->cost = st_scratch_take(scratch, count * (3 * sizeof(double) + 7 * sizeof(uint32_t)) + st_dispatch_bytes(count));
    if (s->cost == NULL)
        return st_nomem(0);
    s->after = s->cost + count;
    memset(s->after, 0, count * sizeof(*s->after));
    s->seen = s->after + count;
    words = (uint32_t *)(void *)(s->seen + count);
    s->io[ST_CLOCK_READ].ops = words;
    s->io[ST_CLOCK_WRITE].ops = words + count;
    s->checks.ops = words + 2 * count;
    s->comm.ops = words + 3 * count;
    s->notices[ST_CLOCK_OF_EXECUTORS].ops = words + 4 * count;
    s->notices[ST_CLOCK_OF_DISK].ops = words + 5 * count;
    s->caller.ops = words + 6 * count;
    take_rates(s);
    take_costs(s);
    st_dispatch_place(&s->dispatch, s->program, !s->machine->capacity.device_is_host, words + 7 * count);
    return STRATA_OK;
}

/* The work of the other step may outlive it, so as many steps are compared as any period divides. */
static strata_status run_other(struct st_clock *s, const struct st_simulation *steady, enum st_phase first, double *seconds)
{
    strata_status st = STRATA_OK;
    double more = 0;

    for (uint32_t i = 0; i < SAVE_STEPS && st == STRATA_OK; i++) {
        st = run_cycle(s, i == 0 ? first : ST_PHASE_BODY);
        more += s->step.seconds - steady->seconds;
    }
    *seconds = fmax(more, 0);
    return st;
}

/* Of a step that is known to be longer than `limit` no more is simulated.  A latency may let another op go first, and so make a
 * step shorter by chance.  Then the step without latencies counts. */
static strata_status simulate(struct st_simulation *out, struct st_clock *s, double limit, struct st_scratch *scratch)
{
    const struct st_machine *const machine = s->machine;
    struct st_machine prompt = *machine;
    struct st_simulation late;
    strata_status st;

    prompt.rates.handover = prompt.rates.latency_io = prompt.rates.launch = 0;
    s->machine = &prompt;
    if ((st = create(s, scratch)) != STRATA_OK || (st = run_steps(s, out)) != STRATA_OK || out->seconds > limit ||
        !(machine->rates.handover + machine->rates.latency_io + machine->rates.launch > 0))
        return st;
    *s = (struct st_clock){.program = s->program, .machine = machine, .unaccounted = s->unaccounted, .beside = s->beside};
    if ((st = create(s, scratch)) == STRATA_OK && (st = run_steps(s, &late)) == STRATA_OK && late.seconds >= out->seconds)
        *out = late;
    return st;
}

strata_status st_simulate(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine)
{
    struct st_clock s = {.program = program, .machine = machine};
    struct st_scratch scratch = {0};
    const strata_status st = simulate(out, &s, HUGE_VAL, &scratch);

    st_scratch_free(&scratch);
    return st;
}

strata_status st_simulate_seconds(double *seconds, const struct st_program *program, const struct st_machine *machine,
                                  double limit, struct st_scratch *scratch)
{
    struct st_clock s = {.program = program, .machine = machine, .unaccounted = true};
    struct st_simulation step = {0};
    const strata_status st = simulate(&step, &s, limit, scratch);

    *seconds = step.seconds;
    return st;
}

strata_status st_simulate_watched(struct st_simulation *out, const struct st_program *program, const struct st_machine *machine,
                                  const struct st_simulation_watch *watch)
{
    struct st_clock s = {.program = program, .machine = machine, .watch = watch};
    struct st_scratch scratch = {0};
    strata_status st = create(&s, &scratch);

    if (st == STRATA_OK)
        st = run_steps(&s, out);
    st_scratch_free(&scratch);
    return st;
}

/* Steady steps, one of another kind, and those after it. */
static strata_status simulate_other(double *seconds, const struct st_program *program, const struct st_machine *machine,
                                    enum st_phase first)
{
    struct st_clock s = {.program = program, .machine = machine};
    struct st_scratch scratch = {0};
    struct st_simulation steady;
    strata_status st = create(&s, &scratch);

    if (st == STRATA_OK && (st = run_steps(&s, &steady)) == STRATA_OK)
        st = run_other(&s, &steady, first, seconds);
    st_scratch_free(&scratch);
    return st;
}

strata_status st_simulate_save(double *seconds, const struct st_program *program, const struct st_machine *machine)
{
    return simulate_other(seconds, program, machine, ST_PHASE_BODY_SAVE);
}

strata_status st_simulate_redo(double *seconds, const struct st_program *program, const struct st_machine *machine)
{
    return simulate_other(seconds, program, machine, ST_PHASE_BODY_REDO);
}

strata_status st_simulate_beside(double *seconds, const struct st_program *program, const struct st_machine *machine,
                                 enum st_phase beside, struct st_scratch *scratch)
{
    struct st_clock s = {.program = program, .machine = machine, .unaccounted = true, .beside = beside};
    struct st_simulation step = {0};
    const strata_status st = simulate(&step, &s, HUGE_VAL, scratch);

    *seconds = step.seconds;
    return st;
}

bool st_simulate_possible(const struct st_program *program, const struct st_machine *machine)
{
    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        double rate = 1;

        if ((op->phases & ST_PHASE_BODY) == 0 || op->lane == STRATA_LANE_COMM)
            continue;
        if (st_op_rows[op->kind].work == ST_WORK_CALL)
            rate = machine->rates.block_flops > 0 ? machine->rates.block_flops : machine->rates.matmul_flops;
        else if (st_cost_updated(program, machine, op) > 0)
            rate = machine->rates.update;
        else if (st_op_rows[op->kind].work == ST_WORK_COPY)
            rate = st_cost_rate(machine, (enum strata_lane)op->lane);
        if (!(rate > 0))
            return false;
    }
    return true;
}
