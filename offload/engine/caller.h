/* offload/engine/caller.h - steps whose layers the program around the engine computes (a workload of opaque layers).
 *
 * begin() returns at once: a thread of the engine runs the step's program, with its transfers, updates and exchanges.  The caller
 * enters each layer in the plan's order, forward and then backward, micro-batch by micro-batch, and leaves it; pages that stay on
 * the device it may use and add gradients to in any order.  end() waits for the step's end.
 *
 * On a device with streams (cuda) views and gradients are device memory, and the caller computes on the stream that begin()
 * names: what it is given is there for all that it enqueues afterwards, and a layer that it leaves is over once the stream has
 * passed what was enqueued.  The stream must live until the step has ended, or the engine is destroyed.
 *
 * Calls may come from any thread, one at a time.  A call out of order returns E_INVAL and changes nothing.  A failure of the
 * engine ends the step: every call returns it. */
#ifndef OFFLOAD_ENGINE_CALLER_H
#define OFFLOAD_ENGINE_CALLER_H

#include "offload/engine/engine.h"

#define ST_TIMED_STEPS 2u /* that train, from the engine's first on */

enum st_pass { ST_PASS_FORWARD, ST_PASS_BACKWARD };

struct st_caller_step {
    bool evaluates;                  /* only forward: flushes first, and changes nothing else */
    uint32_t micros;                 /* micro-batches, at most the workload's; 0: all.  The others' ops call nobody */
    uint32_t sets;                   /* parameter sets with a rate here; the others keep theirs */
    const double *lr, *weight_decay; /* [sets]; NULL: as they are */
    const double *beta1, *beta2;     /* the same; SGD: beta1 is the momentum */
    double divisor;                  /* updates in backward: of all ranks together; else 0, and end() has this rank's */
    struct st_saved *saved;          /* the step saves, as st_engine_step_saving(): filled when end() or drop() is OK; NULL: no */
    void *stream;                    /* of a device with streams */
};

/* A layer's memory between enter() and leave(). */
struct st_caller_view {
    const void *weight; /* its page, each group in its format */
    float *sum;         /* backward: of its trained elements, which st_engine_caller_add() adds to; NULL: none */
    void *boundary;     /* forward: to be written; backward: what was written; NULL: the layer has none, or an evaluation */
    uint64_t boundary_bytes;
    uint32_t page, micro;
};

/** Begin a step.  @param loss_scale  out: the caller's loss is to be multiplied by it */
strata_status st_engine_caller_begin(struct st_engine *eng, const struct st_caller_step *step, double *loss_scale);
/** Wait until a layer (0: the first of those in order) can be computed.  The backward of a frozen one may be left out. */
strata_status st_engine_caller_enter(struct st_engine *eng, enum st_pass pass, uint32_t layer, struct st_caller_view *view);
/** The layer that was entered is computed. */
strata_status st_engine_caller_leave(struct st_engine *eng);
/** Wait until a page that stays on the device has this step's weights. */
strata_status st_engine_caller_use(struct st_engine *eng, uint32_t page, const void **weight);
/** Add gradients, widened exactly to fp32, to elements [first, first + elems) of a page's sum: of the layer whose backward is
 *  entered, or of a page that stays on the device.  On the calling thread, or the caller's stream.  What is never reported is
 *  zero. */
strata_status st_engine_caller_add(struct st_engine *eng, uint32_t page, uint64_t first, strata_dtype dtype, uint64_t elems,
                                   const void *grad);
/** E_INVAL: gradients cannot lie there, which is host memory and the device's is not. */
strata_status st_engine_caller_reads(struct st_engine *eng, const void *grad);
/** The sum itself, for adding in place until the micro-batch, or the layer's backward, is over; waits as add() does.  NULL: the
 * page is frozen. */
strata_status st_engine_caller_sum(struct st_engine *eng, uint32_t page, float **sum);
/** This micro-batch is over. */
strata_status st_engine_caller_micro_end(struct st_engine *eng);
/** Rates, decays and betas of this step's update, in place of those that began it; their other members do not count.  E_INVAL
 * with updates in backward, which have happened. */
strata_status st_engine_caller_rates(struct st_engine *eng, const struct st_caller_step *rates);
/** All micro-batches are over: wait for the step's end.
 *
 *  @param losses   [micros] of this rank; NULL: unknown, the step's loss is then NaN
 *  @param divisor  of this rank, 1e-9 to 1e18: losses and gradients are divided by the sum of all ranks'
 *  @param result   out.  After a drop on any rank it is a skipped step of loss NaN, on all of them */
strata_status st_engine_caller_end(struct st_engine *eng, const double *losses, double divisor, struct st_step_result *result);
/** Give the step up: what is left of it runs without the caller, and ends as a skipped step.  E_INVAL with updates in backward,
 * which have happened.  @param result  out; may be NULL */
strata_status st_engine_caller_drop(struct st_engine *eng, struct st_step_result *result);
/** Whether the step that has ended was the last of those whose layers are timed: then the workload, of the same layers, gets the
 *  shortest time of each one's forward and backward. */
bool st_engine_caller_timed(const struct st_engine *eng, struct st_workload *w);
/** Whether a step has begun, and neither end() nor drop() has closed it. */
bool st_engine_caller_inside(const struct st_engine *eng);
/** The same, and no failure of the engine has ended it. */
bool st_engine_caller_runs(struct st_engine *eng);

#endif
