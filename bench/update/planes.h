/* bench/update/planes.h - an optimizer state in memory, and passes over it: a kernel's update, or a stream with the same reads
 * and writes, which is its roof.
 *
 * A pass over the whole state is cut into items of BENCH_ITEM_ELEMS, as in the engine and strata_optim_step().  A pass over
 * shares stays in the second-level caches instead, so it measures the arithmetic and not the memory. */
#ifndef BENCH_UPDATE_PLANES_H
#define BENCH_UPDATE_PLANES_H

#include "bench/bench_setup.h"
#include "bench/roofs/cpu_probe.h"
#include "bench/roofs/layouts.h"
#include "core/system/arena.h"

#define BENCH_ITEM_ELEMS  ST_TILE_ELEMS /* elements that a worker takes at a time */
#define BENCH_SHARE_ELEMS (8u * 1024u)  /* at most 128 KiB */
#define BENCH_PLANE_BYTES 16u           /* per parameter, in the largest layout */
#define BENCH_THREADS_MAX 256u

/* One way to pass over the planes: a table's kernel, or a stream when kernels is NULL. */
struct bench_pass {
    const char *name;
    const struct st_kernels *kernels;
    enum st_fetch fetch; /* of the kernel */
    bool prefetch;       /* of the stream */
};

/* A pass over shares runs items x rounds times over a share. */
struct bench_share_turns {
    uint32_t place; /* which of several places, since the kernel pages of one may be badly spread over the caches */
    uint64_t items, rounds;
};

struct bench_planes {
    uint64_t params_most, params; /* parameters that there is room for, and of the layout; multiples of ST_NORM_BLOCK */
    enum bench_layout layout;
    struct st_workers *workers; /* borrowed */
    struct st_arena arena;
    void *planes[BENCH_PLANE_COUNT]; /* NULL: this layout has no such plane */
    struct st_update_coef coef;
    const struct bench_probe *probe;
    const struct bench_pass *pass; /* the pass that is running */
    struct bench_share_turns turns;
    uint64_t sink[BENCH_THREADS_MAX]; /* so that reads are not optimised away */
};

/** Allocate memory for `params` parameters, rounded up to whole blocks.  E_NOFIT, E_NOMEM. */
strata_status bench_planes_create(struct bench_planes *p, const struct bench_setup *s, uint64_t params);
void bench_planes_destroy(struct bench_planes *p);

/** Lay the planes out for at most as many parameters, rounded up in the same way, and fill them with ordinary values, so that no
 *  subnormals or NaNs slow anything down. */
void bench_planes_fill(struct bench_planes *p, enum bench_layout layout, uint64_t params);
/** Workers that one pass occupies. */
uint32_t bench_planes_threads(const struct bench_planes *p);

/** AdamW: betas 0.9 and 0.999, eps 1e-8, lr 1e-3, decay 0.01, at a late step. */
struct st_update_coef bench_adam_coef(void);

/** Seconds of one pass. */
double bench_planes_run(struct bench_planes *p, const struct bench_pass *pass);
/** Set how the pass fetches to what is faster over these planes: a few runs of each in turns. */
void bench_planes_choose_fetch(struct bench_planes *p, struct bench_pass *pass);
/** Seconds of a pass in which each worker uses another share; there must be a share for each worker and place. */
double bench_planes_run_shares(struct bench_planes *p, const struct bench_pass *pass, const struct bench_share_turns *turns);

#endif
