/* offload/engine/train_state.h - the state of a run beside weights and optimizer state.
 *
 * Together with the planes this is all that a run needs to continue with the same bits; loading weights resets it.  The END op
 * writes it on the thread that runs updates, and the caller reads it between steps. */
#ifndef OFFLOAD_ENGINE_TRAIN_STATE_H
#define OFFLOAD_ENGINE_TRAIN_STATE_H

#include "kernels/kernels.h"
#include "offload/optim/loss_scale.h"

/* Grows when a sum or a rounding of training changes, so that the same run has other bits than before; a checkpoint names it.
 *   1  a gradient's norm: blocks of a page added in index order
 *   2  a gradient's norm: tiles of a group in a tree (struct st_norm_sum)
 *   3  gradients of the head: runs of more rows; of all matrices: the first micro-batch's written, not added to 0; activations:
 *      x times the quotient 1 / (1 + e); on a GPU the gradients of norms' weights by blocks of rows, and exp in 16 bits
 *   4  products of bf16 on AMX: sums of 32 of K at a time
 *   5  products of adapters on the cpu: each product and its sum rounded together, in order of K */
#define ST_NUMERICS 5u

/* Results of END for a step, which the following update uses. */
struct st_update_scalars {
    bool skip;
    double loss, grad_norm, lr;
    uint64_t step; /* optimizer step number, 1-based */
    struct st_update_coef decay, no_decay;
};

struct st_train_state {
    bool pending;                          /* gradients wait for their update */
    uint64_t steps_applied, steps_skipped; /* applied: or pending */
    uint64_t sequences;   /* sequences of the data that steps have used, skipped ones included; the next step begins there */
    uint64_t idle_in_row; /* steps up to the last one that were skipped or whose loss was not finite */
    bool loss_lost;       /* the last step's loss was not finite */
    double beta1, beta2;  /* of the last update */
    double beta1_power, beta2_power; /* beta^steps_applied, by repeated multiplication */
    struct st_loss_scaler scaler;    /* for the following steps */
    double update_scale;             /* loss scale of the step that made the current gradients */
    uint64_t overflowed_host;        /* weights that rounded to infinity on the host since the start */
    uint64_t overflowed_seen;        /* the same on both processors, as of the last step's end */
    struct st_update_scalars update;
};

/** Initialise before the first step of a run.  scaling: NULL unless fp16. */
void st_train_state_start(struct st_train_state *state, const struct st_loss_scaling *scaling);

#endif
