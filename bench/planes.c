/* bench/planes.c - see bench/planes.h. */
#include "bench/planes.h"

#include "core/clock.h"
#include "core/error.h"

#include <inttypes.h>

#define LINE_ELEMS  32u /* elements of a stream's turn: one or two cache lines of each plane */
#define AHEAD_BYTES 4096u
#define PARAMS_MOST (UINT64_C(1) << 56) /* their bytes fit 64 bits */

const struct bench_layout_info bench_layouts[BENCH_LAYOUT_COUNT] = {
    [BENCH_SPLIT] = {"adam_split", ST_RULE_ADAM, STRATA_BF16, 26},
    [BENCH_FULL] = {"adam_full_bf16", ST_RULE_ADAM, STRATA_BF16, 28},
    [BENCH_FP32] = {"adam_full_fp32", ST_RULE_ADAM, STRATA_F32, 28},
    [BENCH_ADAGRAD] = {"adagrad_split", ST_RULE_ADAGRAD, STRATA_BF16, 18},
    [BENCH_LION] = {"lion_split", ST_RULE_LION, STRATA_BF16, 18},
    [BENCH_SGD] = {"sgd_split", ST_RULE_SGD, STRATA_BF16, 18},
};

static inline bool is_split(enum bench_layout layout)
{
    return layout != BENCH_FULL && layout != BENCH_FP32;
}

/* --- passes --- */

static inline void update_words(uint64_t *words, size_t count, bool prefetch)
{
    if (prefetch) {
        for (size_t i = 0; i < count; i += 8)
            __builtin_prefetch((const char *)(words + i) + AHEAD_BYTES, 0, 2);
    }
    for (size_t i = 0; i < count; i++)
        words[i] += 1;
}

static inline uint64_t read_words(const uint64_t *words, size_t count, bool prefetch)
{
    uint64_t sum = 0;

    if (prefetch) {
        for (size_t i = 0; i < count; i += 8)
            __builtin_prefetch((const char *)(words + i) + AHEAD_BYTES, 0, 2);
    }
    for (size_t i = 0; i < count; i++)
        sum ^= words[i];
    return sum;
}

/* Words of LINE_ELEMS elements from element i on. */
static inline uint64_t *words_of(void *plane, size_t elem_bytes, size_t i)
{
    return (uint64_t *)(void *)((char *)plane + elem_bytes * i);
}

#define WORDS_2 (LINE_ELEMS * 2u / 8u) /* of a plane with 2 bytes per element */
#define WORDS_4 (LINE_ELEMS * 4u / 8u)

static inline __attribute__((always_inline)) uint64_t stream(const struct bench_planes *p, enum bench_layout layout,
                                                             bool prefetch, size_t from, size_t to)
{
    uint64_t sum = 0;

    for (size_t i = from; i < to; i += LINE_ELEMS) {
        if (is_split(layout)) {
            update_words(words_of(p->weight, 2, i), WORDS_2, prefetch);
            update_words(words_of(p->residual, 2, i), WORDS_2, prefetch);
        } else {
            update_words(words_of(p->master, 4, i), WORDS_4, prefetch);
        }
        update_words(words_of(p->moment1, 4, i), WORDS_4, prefetch);
        if (st_rule_moments(bench_layouts[layout].rule) == 2)
            update_words(words_of(p->moment2, 4, i), WORDS_4, prefetch);
        if (layout == BENCH_FP32)
            sum ^= read_words(words_of(p->grad, 4, i), WORDS_4, prefetch);
        else
            sum ^= read_words(words_of(p->grad, 2, i), WORDS_2, prefetch);
        if (layout == BENCH_FULL) {
            uint64_t *const copy = words_of(p->copy, 2, i);

            for (size_t w = 0; w < WORDS_2; w++)
                copy[w] = i;
        }
    }
    return sum;
}

static uint64_t stream_range(const struct bench_planes *p, size_t from, size_t to)
{
    const bool prefetch = p->pass->prefetch;

    switch (p->layout) {
    case BENCH_SPLIT:
        return prefetch ? stream(p, BENCH_SPLIT, true, from, to) : stream(p, BENCH_SPLIT, false, from, to);
    case BENCH_FULL:
        return prefetch ? stream(p, BENCH_FULL, true, from, to) : stream(p, BENCH_FULL, false, from, to);
    case BENCH_FP32:
        return prefetch ? stream(p, BENCH_FP32, true, from, to) : stream(p, BENCH_FP32, false, from, to);
    default: /* the same for every rule with one moment */
        return prefetch ? stream(p, BENCH_SGD, true, from, to) : stream(p, BENCH_SGD, false, from, to);
    }
}

static void update_range(const struct bench_planes *p, size_t from, size_t elems)
{
    const struct st_kernels *const k = p->pass->kernels;
    const strata_dtype dtype = bench_layouts[p->layout].grad_dtype;
    const void *const grad = (const char *)p->grad + strata_dtype_bytes(dtype) * from;
    float *const moment1 = p->moment1 + from;
    float *const moment2 = st_rule_moments(p->coef.rule) == 2 ? p->moment2 + from : NULL;

    if (is_split(p->layout))
        k->update_split(p->weight + from, p->residual + from, moment1, moment2, grad, dtype, elems, &p->coef);
    else
        k->update_master(p->master + from, p->layout == BENCH_FULL ? p->copy + from : NULL, STRATA_BF16, moment1, moment2, grad,
                         dtype, elems, &p->coef);
}

static void run_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct bench_planes *const p = ctx;
    const size_t from = (size_t)index * BENCH_ITEM_ELEMS;

    if (p->pass->kernels != NULL)
        update_range(p, from, BENCH_ITEM_ELEMS);
    else
        p->sink[worker] ^= stream_range(p, from, from + BENCH_ITEM_ELEMS);
}

/* Ordinary values, so that neither subnormals nor NaN slow anything. */
static void fill_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct bench_planes *const p = ctx;

    (void)worker;
    for (size_t i = (size_t)index * BENCH_ITEM_ELEMS; i < (size_t)(index + 1) * BENCH_ITEM_ELEMS; i++) {
        const float sign = i % 3 == 0 ? -1.0f : 1.0f, size = 1.0f + (float)(i % 61) / 61.0f;

        p->moment1[i] = (p->layout == BENCH_ADAGRAD ? size : sign * size) * 1e-4f; /* a sum of squares is positive */
        p->moment2[i] = size * 1e-6f;
        if (is_split(p->layout)) {
            p->weight[i] = (uint16_t)(0x3c80u + i % 61);
            p->residual[i] = (int16_t)(i % 1021);
        } else {
            p->master[i] = sign * size * 0.02f;
        }
        if (p->layout == BENCH_FP32)
            ((float *)p->grad)[i] = sign * size * 1e-3f;
        else
            ((uint16_t *)p->grad)[i] = (uint16_t)(0x3a80u + i % 61);
    }
}

void bench_planes_fill(struct bench_planes *p, enum bench_layout layout)
{
    p->layout = layout;
    p->coef.rule = bench_layouts[layout].rule;
    st_workers_run(p->workers, fill_item, p, p->params / BENCH_ITEM_ELEMS);
}

double bench_planes_run(struct bench_planes *p, const struct bench_pass *pass)
{
    const uint64_t begin_ns = st_clock_ns();

    p->pass = pass;
    st_workers_run(p->workers, run_item, p, p->params / BENCH_ITEM_ELEMS);
    return (double)(st_clock_ns() - begin_ns) * 1e-9;
}

/* --- create and destroy --- */

static void carve(struct bench_planes *p)
{
    unsigned char *const at = p->arena.base;

    p->master = (void *)at;
    p->weight = (void *)at;
    p->residual = (void *)(at + 2 * p->params + ST_PLANE_SKEW);
    p->moment1 = (void *)(at + 4 * p->params + 2 * ST_PLANE_SKEW);
    p->moment2 = (void *)(at + 8 * p->params + 3 * ST_PLANE_SKEW);
    p->grad = at + 12 * p->params + 4 * ST_PLANE_SKEW;
    p->copy = (void *)(at + 16 * p->params + 5 * ST_PLANE_SKEW);
}

strata_status bench_planes_create(struct bench_planes *p, const struct bench_setup *s, uint64_t params)
{
    strata_status st;

    if (params > PARAMS_MOST)
        return st_error(STRATA_E_NOFIT, "%" PRIu64 " parameters do not fit any memory: lower --params", params);
    /* beta1 0.9, beta2 0.999, eps 1e-8, lr 1e-3, decay 0.01, far from the start */
    *p = (struct bench_planes){.params = (params + BENCH_ITEM_ELEMS - 1) / BENCH_ITEM_ELEMS * BENCH_ITEM_ELEMS,
                               .workers = s->workers,
                               .coef = {.grad_scale = 1.0f,
                                        .beta1 = 0.9f,
                                        .one_minus_beta1 = 0.1f,
                                        .beta2 = 0.999f,
                                        .one_minus_beta2 = 0.001f,
                                        .eps = 1e-8f,
                                        .step_size = 1e-3f,
                                        .vhat_scale = 1.0f,
                                        .decay = 0.99999f}};
    st = bench_check_memory(s, p->params * BENCH_PLANE_BYTES, "lower --params");
    if (st == STRATA_OK)
        st = st_arena_create_near(&p->arena, "bench", p->params * BENCH_PLANE_BYTES + 6 * ST_PLANE_SKEW, s->workers, s->topology);
    if (st == STRATA_OK)
        carve(p);
    return st;
}

void bench_planes_destroy(struct bench_planes *p)
{
    st_arena_destroy(&p->arena);
    *p = (struct bench_planes){0};
}
