/* bench/update/planes.c - see bench/update/planes.h. */
#include "bench/update/planes.h"

#include "core/base/error.h"
#include "core/system/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define PARAMS_MOST (UINT64_C(1) << 56) /* their bytes fit 64 bits */
#define PLANE_ALIGN 64u
#define FETCH_RUNS  6
#define HUGE_BYTES  (UINT64_C(2) << 20) /* small planes are on huge pages, too */

static uint64_t round_up(uint64_t value, uint64_t step)
{
    return (value + step - 1) / step * step;
}

/* --- passes --- */

static void update_range(const struct bench_planes *p, size_t from, size_t elems)
{
    const struct bench_layout_info *const info = &bench_layouts[p->layout];
    const struct st_kernels *const k = p->pass->kernels;
    const struct st_moments whole = {info->moments, p->planes[BENCH_MOMENT1], p->planes[BENCH_MOMENT2], 0};
    const struct st_moments moments = st_moments_at(&whole, from);
    const void *const grad = (const char *)p->planes[BENCH_GRAD] + strata_dtype_bytes(info->grad_dtype) * from;

    if (info->master == BENCH_MASTER_SPLIT)
        k->update_split((uint16_t *)p->planes[BENCH_WEIGHT] + from, (int16_t *)p->planes[BENCH_LOW_HALF] + from, &moments, grad,
                        info->grad_dtype, elems, &p->coef);
    else
        k->update_master((float *)p->planes[BENCH_MASTER] + from,
                         info->master == BENCH_MASTER_COPIED ? (uint16_t *)p->planes[BENCH_COPY] + from : NULL, STRATA_BF16,
                         &moments, grad, info->grad_dtype, elems, &p->coef);
}

static void run_range(struct bench_planes *p, uint32_t worker, size_t from, size_t elems)
{
    if (p->pass->kernels != NULL)
        update_range(p, from, elems);
    else
        p->sink[worker] ^= p->probe->stream(p->planes, p->layout, p->pass->prefetch, from, from + elems);
}

static uint64_t item_count(const struct bench_planes *p)
{
    return (p->params + BENCH_ITEM_ELEMS - 1) / BENCH_ITEM_ELEMS;
}

static size_t item_elems(const struct bench_planes *p, size_t from)
{
    return p->params - from < BENCH_ITEM_ELEMS ? (size_t)(p->params - from) : BENCH_ITEM_ELEMS;
}

static void run_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct bench_planes *const p = ctx;
    const size_t from = (size_t)index * BENCH_ITEM_ELEMS;

    run_range(p, worker, from, item_elems(p, from));
}

static void run_share(void *ctx, uint64_t index, uint32_t worker)
{
    struct bench_planes *const p = ctx;

    const size_t share = (size_t)p->turns.place * st_workers_count(p->workers) + worker;

    (void)index;
    for (uint64_t i = 0; i < p->turns.rounds; i++)
        run_range(p, worker, share * BENCH_SHARE_ELEMS, BENCH_SHARE_ELEMS);
}

static double run(struct bench_planes *p, const struct bench_pass *pass, st_work_fn *fn, uint64_t items)
{
    const uint64_t begin_ns = st_clock_ns();

    p->pass = pass;
    p->coef.fetch_even = pass->fetch == ST_FETCH_EVEN;
    st_workers_run(p->workers, fn, p, items);
    return (double)(st_clock_ns() - begin_ns) * 1e-9;
}

double bench_planes_run(struct bench_planes *p, const struct bench_pass *pass)
{
    return run(p, pass, run_item, item_count(p));
}

void bench_planes_choose_fetch(struct bench_planes *p, struct bench_pass *pass)
{
    double least[] = {INFINITY, INFINITY};

    for (int i = 0; i < FETCH_RUNS && pass->kernels->needs != 0; i++) { /* the definition fetches nothing */
        pass->fetch = i % 2 == 0 ? ST_FETCH_BURSTS : ST_FETCH_EVEN;
        least[i % 2] = fmin(least[i % 2], bench_planes_run(p, pass));
    }
    pass->fetch = least[1] < least[0] ? ST_FETCH_EVEN : ST_FETCH_BURSTS;
}

double bench_planes_run_shares(struct bench_planes *p, const struct bench_pass *pass, const struct bench_share_turns *turns)
{
    assert(p->params / BENCH_SHARE_ELEMS >= (turns->place + 1) * (uint64_t)st_workers_count(p->workers));
    p->turns = *turns;
    return run(p, pass, run_share, turns->items);
}

uint32_t bench_planes_threads(const struct bench_planes *p)
{
    const uint32_t workers = st_workers_count(p->workers);

    return item_count(p) < workers ? (uint32_t)item_count(p) : workers;
}

/* --- fill --- */

/* Sets element i of a moment to about `size`; the first element of a block also sets the block's scale. */
static void fill_moment(void *plane, enum st_moment_format format, size_t i, float size, bool negative)
{
    const float value = (1.0f + (float)(i % 61) / 61.0f) * (negative ? -size : size);
    const size_t in_pack = i % ST_NORM_BLOCK;
    unsigned char *const pack = (unsigned char *)plane + st_moment_bytes(ST_MOMENTS_8BIT, i - in_pack);
    float *const scales = (float *)(void *)pack;
    uint32_t bits;

    switch (format) {
    case ST_MOMENTS_F32:
        ((float *)plane)[i] = value;
        return;
    case ST_MOMENTS_BF16:
        memcpy(&bits, &value, sizeof(bits));
        ((uint16_t *)plane)[i] = (uint16_t)(bits >> 16);
        return;
    case ST_MOMENTS_8BIT: /* codes in the upper half of the 128 of one sign, whether or not the code has a sign */
        scales[in_pack / ST_MOMENT_BLOCK] = 2.0f * size;
        pack[ST_NORM_BLOCK / ST_MOMENT_BLOCK * sizeof(float) + in_pack] = (unsigned char)((negative ? 0xc0u : 0x40u) + i % 61);
        return;
    case ST_MOMENTS_COUNT:
        break;
    }
    assert(false && "format");
}

static void fill_element(struct bench_planes *p, const struct bench_layout_info *info, size_t i)
{
    const float sign = i % 3 == 0 ? -1.0f : 1.0f, size = 1.0f + (float)(i % 61) / 61.0f;
    const bool squares = info->rule == ST_RULE_ADAGRAD; /* are positive */

    fill_moment(p->planes[BENCH_MOMENT1], info->moments, i, 1e-4f, sign < 0 && !squares);
    if (st_rule_moments(info->rule) == 2)
        fill_moment(p->planes[BENCH_MOMENT2], info->moments, i, 1e-6f, false);
    if (info->master == BENCH_MASTER_SPLIT) {
        ((uint16_t *)p->planes[BENCH_WEIGHT])[i] = (uint16_t)(0x3c80u + i % 61);
        ((int16_t *)p->planes[BENCH_LOW_HALF])[i] = (int16_t)(i % 1021);
    } else {
        ((float *)p->planes[BENCH_MASTER])[i] = sign * size * 0.02f;
    }
    if (info->grad_dtype == STRATA_F32)
        ((float *)p->planes[BENCH_GRAD])[i] = sign * size * 1e-3f;
    else
        ((uint16_t *)p->planes[BENCH_GRAD])[i] = (uint16_t)(0x3a80u + i % 61);
}

static void fill_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct bench_planes *const p = ctx;
    const size_t from = (size_t)index * BENCH_ITEM_ELEMS, elems = item_elems(p, from);

    (void)worker;
    for (size_t i = from; i < from + elems; i++)
        fill_element(p, &bench_layouts[p->layout], i);
}

/* Lays out planes one after the other, each slightly staggered against the one before. */
static void carve(struct bench_planes *p)
{
    uint64_t at = 0;

    for (int plane = 0; plane < BENCH_PLANE_COUNT; plane++) {
        const uint64_t bytes = bench_plane_bytes(p->layout, (enum bench_plane)plane, p->params);

        p->planes[plane] = bytes > 0 ? p->arena.base + at : NULL;
        at += bytes > 0 ? round_up(bytes, PLANE_ALIGN) + ST_PLANE_SKEW : 0;
    }
    assert(at <= p->arena.bytes);
}

void bench_planes_fill(struct bench_planes *p, enum bench_layout layout, uint64_t params)
{
    p->params = round_up(params, ST_NORM_BLOCK);
    assert(p->params > 0 && p->params <= p->params_most);
    p->layout = layout;
    p->coef.rule = bench_layouts[layout].rule;
    carve(p);
    st_workers_run(p->workers, fill_item, p, item_count(p));
}

/* --- create and destroy --- */

struct st_update_coef bench_adam_coef(void)
{
    return (struct st_update_coef){.grad_scale = 1.0f,
                                   .beta1 = 0.9f,
                                   .one_minus_beta1 = 0.1f,
                                   .beta2 = 0.999f,
                                   .one_minus_beta2 = 0.001f,
                                   .eps = 1e-8f,
                                   .step_size = 1e-3f,
                                   .vhat_scale = 1.0f,
                                   .decay = 0.99999f,
                                   .rounding_key = UINT64_C(0x2545f4914f6cdd1d)};
}

strata_status bench_planes_create(struct bench_planes *p, const struct bench_setup *s, uint64_t params)
{
    strata_status st;
    uint64_t bytes;

    if (params > PARAMS_MOST)
        return st_error(STRATA_E_NOFIT, "%" PRIu64 " parameters do not fit any memory: lower --params", params);
    *p = (struct bench_planes){.params_most = round_up(params, ST_NORM_BLOCK),
                               .workers = s->workers,
                               .probe = bench_probe_best(),
                               .coef = bench_adam_coef()};
    bytes = round_up(p->params_most * BENCH_PLANE_BYTES + BENCH_PLANE_COUNT * ST_PLANE_SKEW, HUGE_BYTES);
    st = bench_check_memory(s, bytes, "lower --params");
    if (st == STRATA_OK)
        st = st_arena_create_near(&p->arena, "bench", bytes, s->workers, s->topology);
    return st;
}

void bench_planes_destroy(struct bench_planes *p)
{
    st_arena_destroy(&p->arena);
    *p = (struct bench_planes){0};
}
