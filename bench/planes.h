/* bench/planes.h - an optimizer state in memory, and passes over it: a kernel's update, or a stream with the same reads and
 * writes, which is its roof.
 *
 * Bytes that must cross the memory bus once per element, reads + writes:
 *   split  weight 2, residual 2, moments 8, gradient 2 (bf16) read; all but the gradient written      14 + 12 = 26
 *   full   master 4, moments 8, gradient 2 (bf16) read; master, moments and a bf16 copy written       14 + 14 = 28
 *   fp32   master 4, moments 8, gradient 4 read; master and moments written                           16 + 12 = 28
 * Adam's state, master and moments, is 12 bytes per parameter in each.  A rule with one moment (Adagrad, Lion, SGD) has 8, and
 * 4 bytes less each way:
 *   split  10 + 8 = 18      full  10 + 10 = 20      fp32  12 + 8 = 20
 * A stream does one integer operation per word, plain or with the kernels' prefetch; the faster of the two counts. */
#ifndef BENCH_PLANES_H
#define BENCH_PLANES_H

#include "bench/bench_setup.h"
#include "core/arena.h"
#include "kernels/kernels.h"

#define BENCH_ITEM_ELEMS  (64u * 1024u) /* one worker's turn */
#define BENCH_PLANE_BYTES 18u           /* per parameter: master or weight + residual, moments, gradient, copy */
#define BENCH_THREADS_MAX 256u

/* The first three are Adam's, the others split masters with one moment. */
enum bench_layout { BENCH_SPLIT, BENCH_FULL, BENCH_FP32, BENCH_ADAGRAD, BENCH_LION, BENCH_SGD, BENCH_LAYOUT_COUNT };

struct bench_layout_info {
    const char *name;
    enum st_rule rule;
    strata_dtype grad_dtype;
    uint32_t bytes; /* per element */
};
extern const struct bench_layout_info bench_layouts[BENCH_LAYOUT_COUNT];

/* One way to pass over the planes: a table's kernel, or a stream when kernels is NULL. */
struct bench_pass {
    const char *name;
    const struct st_kernels *kernels;
    bool prefetch;
};

struct bench_planes {
    uint64_t params; /* a multiple of BENCH_ITEM_ELEMS */
    enum bench_layout layout;
    struct st_workers *workers; /* borrowed */
    struct st_arena arena;
    float *master, *moment1, *moment2; /* [params]; weight and residual share the bytes of master */
    uint16_t *weight;
    int16_t *residual;
    void *grad;
    uint16_t *copy;
    struct st_update_coef coef;
    const struct bench_pass *pass;    /* the one that runs */
    uint64_t sink[BENCH_THREADS_MAX]; /* so that reads are not optimised away */
};

/** Take memory for `params` parameters, rounded up to whole turns of a worker.  E_NOFIT, E_NOMEM. */
strata_status bench_planes_create(struct bench_planes *p, const struct bench_setup *s, uint64_t params);
void bench_planes_destroy(struct bench_planes *p);

/** Lay the planes out and fill them with ordinary values: neither subnormals nor NaN slow anything. */
void bench_planes_fill(struct bench_planes *p, enum bench_layout layout);
/** Seconds of one pass. */
double bench_planes_run(struct bench_planes *p, const struct bench_pass *pass);

#endif
