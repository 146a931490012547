/* bench/null_model.h - an engine with a model that computes nothing: blocks of parameters, with noise as gradients.
 *
 * Plan, program and lanes are real; only forward and backward are empty, so a flush is the update of the whole state and nothing
 * else. */
#ifndef BENCH_NULL_MODEL_H
#define BENCH_NULL_MODEL_H

#include "bench/bench_setup.h"
#include "offload/config/config.h"
#include "offload/engine/engine.h"
#include "offload/plan/plan.h"

struct bench_null_model {
    struct st_workload workload;
    struct st_config config;
    struct st_plan *plan;
    struct st_engine *engine;
    float *noise;    /* [NOISE_ELEMS] gradients, repeated */
    int32_t *tokens; /* [one step] all 0; also used as targets */
};

/** Create a plan and an engine for `params` parameters (rounded up to whole blocks and a small table) and load it: weights in
 *  host memory, state there too or, with a directory, on NVMe.  Updates fetch their arrays as told.
 *  E_NOFIT: memory or disk; E_INVAL: the directory, method or instruction set. */
strata_status bench_null_model_open(struct bench_null_model *m, const struct bench_setup *s, uint64_t params,
                                    enum st_fetch fetch);
void bench_null_model_close(struct bench_null_model *m); /* half-open and zeroed are fine */

/** Run an empty forward and backward; afterwards an update is pending with new gradients. */
strata_status bench_null_model_step(struct bench_null_model *m);
/** Run the update.  *seconds: until the last byte has arrived; *moved: the bytes that it moved on every link. */
strata_status bench_null_model_update(struct bench_null_model *m, double *seconds, struct st_traffic *moved);

#endif
