/* bench/update/planes.h - an optimizer state in memory, and passes over it: a kernel's update, or a stream with the same reads
 * and writes, which is its roof.
 *
 * A pass over the whole state is cut into turns of BENCH_ITEM_ELEMS, as the engine and strata_optim_step() cut it.  A pass over
 * shares stays in the second-level caches instead: what it takes is the arithmetic, not the memory. */
#ifndef BENCH_UPDATE_PLANES_H
#define BENCH_UPDATE_PLANES_H

#include "bench/bench_setup.h"
#include "bench/roofs/cpu_probe.h"
#include "bench/roofs/layouts.h"
#include "core/system/arena.h"

#define BENCH_ITEM_ELEMS  (64u * 1024u) /* one worker's turn */
#define BENCH_SHARE_ELEMS (8u * 1024u)  /* at most 128 KiB */
#define BENCH_PLANE_BYTES 16u           /* per parameter, in the largest layout */
#define BENCH_THREADS_MAX 256u

/* One way to pass over the planes: a table's kernel, or a stream when kernels is NULL. */
struct bench_pass {
    const char *name;
    const struct st_kernels *kernels;
    bool prefetch;
};

/* How a pass over shares goes: items x rounds times over a share. */
struct bench_share_turns {
    uint32_t place; /* which of several: the pages of one may fall badly into the caches */
    uint64_t items, rounds;
};

struct bench_planes {
    uint64_t params_most, params; /* that there is room for; of the layout: multiples of ST_NORM_BLOCK */
    enum bench_layout layout;
    struct st_workers *workers; /* borrowed */
    struct st_arena arena;
    void *planes[BENCH_PLANE_COUNT]; /* NULL: not of this layout */
    struct st_update_coef coef;
    const struct bench_probe *probe;
    const struct bench_pass *pass; /* the one that runs */
    struct bench_share_turns turns;
    uint64_t sink[BENCH_THREADS_MAX]; /* so that reads are not optimised away */
};

/** Take memory for `params` parameters, rounded up to whole blocks.  E_NOFIT, E_NOMEM. */
strata_status bench_planes_create(struct bench_planes *p, const struct bench_setup *s, uint64_t params);
void bench_planes_destroy(struct bench_planes *p);

/** Lay the planes out for at most as many parameters, rounded up likewise, and fill them with ordinary values: neither
 *  subnormals nor NaN slow anything. */
void bench_planes_fill(struct bench_planes *p, enum bench_layout layout, uint64_t params);
/** Workers that one pass occupies. */
uint32_t bench_planes_threads(const struct bench_planes *p);

/** AdamW: betas 0.9 and 0.999, eps 1e-8, lr 1e-3, decay 0.01, far from the start. */
struct st_update_coef bench_adam_coef(void);

/** Seconds of one pass. */
double bench_planes_run(struct bench_planes *p, const struct bench_pass *pass);
/** Seconds of such a pass, each worker over a share of its own; params: a share for each worker and place. */
double bench_planes_run_shares(struct bench_planes *p, const struct bench_pass *pass, const struct bench_share_turns *turns);

#endif
