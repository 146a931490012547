/* offload/optim/optim_internal.h - shared by the files of the public optimizers (strata/optim.h); not for other code.
 *
 *     optim.c        creation, steps, split and join
 *     optim_check.c  the caller's arguments
 *     optim_norm.c   norms of gradients */
#ifndef OFFLOAD_OPTIM_OPTIM_INTERNAL_H
#define OFFLOAD_OPTIM_OPTIM_INTERNAL_H

#include "core/system/workers.h"
#include "offload/optim/optimizer.h"
#include "strata/optim.h"
#include <stdatomic.h>
#include <sys/types.h>

#define ST_WAVE_TILES 4096u /* 64 Mi elements of large tensors, so that the wait at a wave's end is short beside the work */

struct st_optim_tile {
    size_t tensor, first; /* elements first .. first + ST_TILE_ELEMS - 1, or up to the tensor's end */
};

struct st_optim_group {
    struct st_optimizer optimizer;
    double beta1, beta2;
    double beta1_power, beta2_power; /* beta^step */
};

struct strata_optim {
    pid_t pid; /* of the process that created it: a child of fork() has none of its threads */
    enum st_rule rule;
    struct st_optim_group groups[STRATA_OPTIM_GROUPS];
    uint64_t step;                                      /* steps taken */
    bool open, applied;                                 /* a step has begun, and has not ended; tensors were updated in it */
    struct st_update_coef coef[STRATA_OPTIM_GROUPS][2]; /* of the step that is open, by `decay` */
    const struct st_kernels *kernels;                   /* static */
    struct st_workers *workers;
    struct {
        uint64_t ns, tiles;
    } tried[2]; /* fetching in bursts and evenly */
    struct st_optim_tile wave[ST_WAVE_TILES];
    double block_sums[ST_WAVE_TILES][ST_TILE_BLOCKS];
    float *widened; /* [workers][ST_NORM_BLOCK] f32 */
};

/* One call's work, shared by its waves. */
struct st_optim_job {
    struct strata_optim *opt;
    const struct strata_optim_tensor *tensors; /* [count] */
    size_t count;
    struct st_optim_tile next; /* where the next wave begins */
    _Atomic uint64_t counted;  /* masters that overflowed, or gradients that are not finite */
};

/** Lists the next tiles; returns 0 when all have been listed. */
uint32_t st_optim_next_wave(struct st_optim_job *job);

static inline size_t st_optim_tile_elems(size_t elems, size_t first)
{
    return elems - first < ST_TILE_ELEMS ? elems - first : ST_TILE_ELEMS;
}

static inline const void *st_optim_grad_at(const struct strata_optim_tensor *t, size_t first)
{
    return (const unsigned char *)t->grad + first * strata_dtype_bytes(t->grad_dtype);
}

/* optim_check.c */
strata_status st_optim_check_process(const struct strata_optim *opt);
strata_status st_optim_check_array(size_t tensor, const char *name, const void *array, size_t align);
strata_status st_optim_check_master(size_t i, const struct strata_optim_tensor *t);
strata_status st_optim_check_tensors(const struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                     bool grads_alone);

#endif
