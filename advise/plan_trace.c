/* advise/plan_trace.c - one steady step of a plan's program on the simulated clock, as the trace of a run has it. */
#include "advise/plan_report.h"
#include "advise/predict.h"
#include "core/base/error.h"
#include "offload/program/program_trace.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS    (1u + STRATA_LANE_COUNT) /* that of the stalls, then the lanes */
#define NO_SPAN SIZE_MAX

struct span {
    uint64_t start_ns, end_ns; /* since the step began */
    uint32_t of, cause, row;   /* of: the op, or the one that a stall holds up */
};

struct recorded {
    const struct st_program *program;
    struct span *spans; /* in the order in which they began */
    size_t count, room;
    size_t last[ROWS]; /* the row's newest span */
    bool failed;
};

static void step_began(void *ctx)
{
    struct recorded *r = ctx;

    r->count = 0;
    memset(r->last, 0xff, sizeof(r->last));
}

static uint64_t nanoseconds(double seconds)
{
    return (uint64_t)llround(seconds * 1e9);
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* A new span, or more of the row's newest one where that goes on.  Those of one row do not overlap by what is rounded. */
static void record(struct recorded *r, uint32_t row, uint32_t of, uint32_t cause, double start, double seconds)
{
    struct span span = {nanoseconds(start), nanoseconds(start + seconds), of, cause, row};
    struct span *last = r->last[span.row] != NO_SPAN ? &r->spans[r->last[span.row]] : NULL, *grown;

    if (last != NULL && last->of == span.of && last->cause == span.cause && span.start_ns <= last->end_ns + 1) {
        last->end_ns = later(last->end_ns, span.end_ns);
        return;
    }
    span.start_ns = later(span.start_ns, last != NULL ? last->end_ns : 0);
    span.end_ns = later(span.start_ns, span.end_ns);
    if (r->count == r->room) {
        const size_t room = r->room == 0 ? 4096 : 2 * r->room;

        if (r->failed || (grown = realloc(r->spans, room * sizeof(*grown))) == NULL) {
            r->failed = true;
            return;
        }
        r->spans = grown;
        r->room = room;
    }
    r->last[span.row] = r->count;
    r->spans[r->count++] = span;
}

static void op_ran(void *ctx, uint32_t lane, uint32_t op, double start, double seconds)
{
    record(ctx, 1 + lane, op, ST_TRACE_NONE, start, seconds);
}

static void compute_waited(void *ctx, const struct st_stall *stall, double start, double seconds)
{
    record(ctx, 0, stall->op, stall->on, start, seconds);
}

static strata_status write_spans(const struct recorded *r, double seconds, FILE *file)
{
    static const char *const cycles[] = {"simulated step"};
    const struct st_trace_opts opts = {.steps_max = 1, .records_per_step = r->count + 1, .bytes_max = UINT64_MAX};
    struct st_program_trace what;
    struct st_trace *trace;
    strata_status st = st_trace_create(&trace, &opts);

    if (st != STRATA_OK)
        return st;
    st_trace_end(st_trace_cycle(trace, 1, 0, 0), nanoseconds(seconds));
    for (size_t i = 0; i < r->count; i++) {
        const struct span *s = &r->spans[i];
        const enum st_trace_kind kind = s->row == 0 ? ST_TRACE_STALL : ST_TRACE_ITEM;

        st_trace_end(st_trace_begin(trace, kind, s->of, s->cause, s->start_ns), s->end_ns);
    }
    st_program_trace_init(&what, r->program);
    what.source.cycles = cycles;
    st = st_trace_write(trace, &what.source, file);
    st_trace_destroy(trace);
    return st;
}

strata_status st_plan_trace(const struct st_case *of, FILE *file)
{
    struct recorded r = {.program = &of->plan->program};
    const struct st_simulation_watch watch = {&r, step_began, op_ran, compute_waited};
    struct st_simulation last;
    strata_status st;

    if (!of->plan->fits)
        return st_error(STRATA_E_INPUT, "no step is simulated: the plan does not fit");
    if (!of->rates_known)
        return st_error(STRATA_E_INPUT, "no step is simulated: no rates are known: give machine.file FILE, machine.gpu NAME or "
                                        "plan.measure");
    if (r.program->op_count > ST_SIMULATED_OPS_MAX || !st_simulate_possible(r.program, &of->figures.machine))
        return st_error(STRATA_E_INPUT, "no step is simulated: %s", st_prediction_lacks(r.program, &of->figures.machine));
    st = st_simulate_watched(&last, r.program, &of->figures.machine, &watch);
    if (st == STRATA_OK && r.failed)
        st = st_nomem(r.room * sizeof(*r.spans));
    if (st == STRATA_OK)
        st = write_spans(&r, last.seconds, file);
    free(r.spans);
    return st;
}
