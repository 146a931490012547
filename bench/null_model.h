/* bench/null_model.h - an engine with a model that computes nothing: blocks of plain parameters, noise as gradients.
 *
 * Real plan, real program, real lanes; only forward and backward are empty, so a flush is the update of the whole state and
 * nothing else. */
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
    int32_t *tokens; /* [one step] all 0; targets too */
};

/** Plan and engine for `params` parameters (rounded up to whole blocks and a small table), loaded: weights in host memory, state
 *  there too or, with a directory, on NVMe.  `spare` bytes of memory stay free for others.
 *  E_NOFIT: memory or disk; E_INVAL: the directory, method or instruction set. */
strata_status bench_null_model_open(struct bench_null_model *m, const struct bench_setup *s, uint64_t params, uint64_t spare);
void bench_null_model_close(struct bench_null_model *m); /* half-open and zeroed are fine */

/** Forward and backward of nothing: afterwards an update is pending with fresh gradients. */
strata_status bench_null_model_step(struct bench_null_model *m);
/** The update.  *seconds: until the last byte is where it belongs; *moved: bytes on every link meanwhile. */
strata_status bench_null_model_update(struct bench_null_model *m, double *seconds, struct st_traffic *moved);

#endif
