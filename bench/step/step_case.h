/* bench/step/step_case.h - the parts of bench step: a case is a schedule with a budget of device memory, the measurements of its
 * runs, and its row.
 *
 * bench_step.c decides what runs and when, step_run.c runs it, step_row.c prints.  One thread calls. */
#ifndef BENCH_STEP_STEP_CASE_H
#define BENCH_STEP_STEP_CASE_H

#include "api/plan_case.h"
#include "bench/bench_setup.h"
#include "offload/device/device.h"
#include "offload/device/op_times.h"
#include "offload/device/paced/device_paced.h"
#include "offload/machine/machine.h"
#include "offload/plan/plan.h"
#include "offload/simulate/figures.h"

#define STEP_PROBES 8u

struct step_case {
    char name[64];
    struct st_machine machine; /* with its budget, and the rates of the first probe */
    struct st_plan *plan;
    struct st_figures figures; /* at the rates of the first probe; at the end, the medians of all */
    double forecast, redo;     /* predicted seconds, and how many more after a step that is dropped; NaN: not available */
    struct st_machine probed[STEP_PROBES];
    uint32_t probe_count;
    struct st_staged staged;                                        /* of the engine's host memory */
    double seconds[BENCH_REPEATS_MAX], stall_ms[BENCH_REPEATS_MAX]; /* [done] */
    double upload_ms[BENCH_REPEATS_MAX], download_ms[BENCH_REPEATS_MAX];
    bool redone[BENCH_REPEATS_MAX]; /* it made the early updates of the step before it again */
    uint32_t done;
    struct st_traffic moved;           /* of one steady step */
    struct st_op_times *op_times;      /* NULL: off */
    double busy_ms[STRATA_LANE_COUNT]; /* of all measured steps together */
    double beside_bytes; /* the most device memory seen in use by driver and libraries beside the arena; NaN: unknown */
};

struct step_bench {
    const struct bench_step_opts *opts;
    const struct st_case *of; /* the plan's: model, machine and what is asked */
    struct st_config config;  /* its own, with the threads of this machine */
    bool rates_evaluate;      /* the machine's rates choose the plan, not a nominal machine's */
    struct st_compute compute;
    struct st_model_init init;
    struct st_weight_source weights;
    struct bench_setup setup; /* only hooks and steps */
    struct bench_opts common;
    struct st_machine machine; /* as in the file, with this machine's first probe */
    struct bench_printer printer;
    bool disk;
    struct st_matmul_ceiling ceiling; /* the best of all its measurements */
    int32_t *tokens, *targets;
    struct st_engine *engine;    /* of the case that runs; NULL: none */
    struct st_paced_model paced; /* its model */
    double free_before;          /* device memory before it was made */
};

/* step_run.c */

/** Probe the rates that come from this machine into *machine; the other rates stay. */
strata_status step_probe(const struct step_bench *b, struct st_machine *machine);
/** Run until the case has `until` steps, with an engine of its own that loads the weights.  Measures the ceiling and all rates
 *  before the engine exists, the rates of resources that it leaves free between its steps, and the rates of a device with its own
 *  memory after it is gone.  keep: the engine stays, since the same case runs next. */
strata_status step_run(struct step_bench *b, struct step_case *c, uint32_t until, bool keep);
/** Put the medians of the probes in place of the rates of the case's machine; host memory that is not pinned counts. */
void step_median_rates(struct st_machine *out, const struct step_case *c);
/** The median of its steps; with a clip rate the median of those that made early updates again counts by that rate. */
double step_seconds(const struct step_bench *b, const struct step_case *c);
/** The first step, from 1 on, after which early updates are dropped. */
uint32_t step_first_dropped(double clip_rate);

/* step_row.c */

/** @param fastest  median seconds of the case with the largest budget; NaN: there is only one budget. */
void step_print_row(struct step_bench *b, const struct step_case *c, double fastest);

/* step_ops.c: the calls of the device's ops in the measured steps, by shape, those that took most first; then their sums beside
 * the time in which the lanes were busy.  Nothing if they were not timed. */
strata_status step_print_ops(const struct step_bench *b, const struct step_case *c);

#endif
