/* given.h - an engine whose gradients the test gives: a small workload without a model, on the cpu device. */
#ifndef TESTS_ENGINE_GIVEN_H
#define TESTS_ENGINE_GIVEN_H

#include "offload/config/config_options.h"
#include "offload/engine/engine_internal.h"
#include "offload/plan/plan.h"

/* Gradient of an element of a page in optimizer step number `step`, counted from 1; half of it comes from each of two
 * micro-batches, times the loss scale.  Exact in the workload's dtype. */
typedef double given_grad_fn(uint32_t page, uint64_t elem, uint64_t step);
typedef void given_call_fn(const struct st_call *call);

struct given_opts {
    struct st_config config;
    uint64_t block_params;   /* of a block's matrices */
    uint64_t adapter_params; /* of a block's adapters, beside which all is frozen; 0: none */
    bool quantised;          /* the matrices of adapted blocks */
    given_grad_fn *grad;     /* NULL: none, all zero */
    given_call_fn *called;   /* NULL, or told of every call that the engine makes */
    bool smallest;           /* as little device memory as the config does with; else all that is wanted */
    bool little_host;        /* with smallest: as little host memory, too */
};

struct given {
    struct st_workload workload;
    struct st_config config;
    struct st_plan *plan;
    struct st_engine *eng;
    given_grad_fn *grad;
    given_call_fn *called;
    double loss; /* sum over a slice of a micro-batch; the test may change it between steps */
    uint64_t step;
    int32_t *tokens; /* [tokens of a step], all targets count */
};

/** A config that trains in `dtype`, with everything in `tier` and nothing above it; AdamW, constant rate, no clipping. */
struct st_config given_config(strata_dtype dtype, strata_tier tier);
/** Loaded with seeded weights. */
void given_open(struct given *g, const struct given_opts *opts);
void given_close(struct given *g);
/** One step, whose result may be NULL. */
strata_status given_step(struct given *g, struct st_step_result *result);
/** The initial weight. */
float given_weight(uint32_t page, uint64_t elem);

#endif
