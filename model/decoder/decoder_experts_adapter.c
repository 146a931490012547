/* model/decoder/decoder_experts_adapter.c - layers of experts that have adapters, forward and backward.
 *
 * As decoder_adapter.c has it of other layers: what the base's product gives stays fp32 until the adapter's is added, and
 * products with A and B are of fp32 operands.  All are products of experts, whose bits depend on an expert's own rows alone. */
#include "model/decoder/decoder_internal.h"

/* A product of each expert's rows with a matrix of its adapter, `cols` columns as stored: to [rows, n] = or += from [rows, k]
 * op(M). */
struct product {
    uint32_t n, k, ld_to, ld_from, cols;
    bool transposed, accumulate;
};

static strata_status multiply(const struct st_expert_layer *l, const struct product *p, float *to, const float *from, uint64_t at)
{
    const struct st_expert_matmul mm = {.of = l->of,
                                        .n = p->n,
                                        .k = p->k,
                                        .lda = p->ld_from,
                                        .ldb = p->cols,
                                        .ldc = p->ld_to,
                                        .trans_b = p->transposed,
                                        .accumulate = p->accumulate,
                                        .stride = l->stride,
                                        .ab_dtype = STRATA_F32,
                                        .c_dtype = STRATA_F32};

    return l->f->ops->experts_matmul(l->f->dev, &mm, to, from, st_frame_weight(l->f, at), NULL, l->offsets);
}

/* The gradient of each expert's matrix [rows, cols] of an adapter = or += left^T right. */
static strata_status multiply_gradient(const struct st_expert_layer *l, uint64_t at, uint32_t rows, uint32_t cols,
                                       const float *left, uint32_t ld_left, const float *right)
{
    const struct st_expert_matmul mm = {.of = l->of,
                                        .m = rows,
                                        .n = cols,
                                        .lda = ld_left,
                                        .ldb = cols,
                                        .ldc = cols,
                                        .accumulate = !l->f->call->first,
                                        .stride = l->stride,
                                        .ab_dtype = STRATA_F32,
                                        .c_dtype = STRATA_F32};

    return l->f->ops->experts_matmul(l->f->dev, &mm, st_frame_grad(l->f, at), left, right, NULL, l->offsets);
}

static strata_status cast(const struct st_expert_layer *l, uint32_t cols, void *to, strata_dtype to_dt, const void *from,
                          strata_dtype from_dt, float factor)
{
    const struct st_expert_cast c = {.of = l->of, .cols = cols, .to = to_dt, .from = from_dt, .factor = factor};

    return l->f->ops->experts_cast(l->f->dev, &c, to, from, l->offsets);
}

/* *out: rows in fp32, by way of `room` unless they are. */
static strata_status widen(const struct st_expert_layer *l, const float **out, float *room, const void *rows, uint32_t cols)
{
    const bool wide = l->f->dt == STRATA_F32;

    *out = wide ? rows : room;
    return wide ? STRATA_OK : cast(l, cols, room, STRATA_F32, rows, l->f->dt, 1.0f);
}

/* Where a result is summed: in its place, or in `room`, from which it is rounded at the end. */
static float *sums_of(const struct st_expert_layer *l, void *result, float *room)
{
    return l->f->dt == STRATA_F32 ? result : room;
}

static strata_status finish(const struct st_expert_layer *l, void *result, const float *sums, uint32_t cols)
{
    return l->f->dt == STRATA_F32 ? STRATA_OK : cast(l, cols, result, l->f->dt, sums, STRATA_F32, 1.0f);
}

/* Rows of an adapter's rank: s A x, or s dy B of adapter `i`. */
static float *rank_rows(const struct st_expert_layer *l, uint32_t i)
{
    const uint64_t most = l->of.k < l->of.count ? l->of.k : l->of.count;

    return l->ranks + i * l->of.rows * most * l->f->m->experts_rank;
}

/* rank_rows(0) = s A x */
static strata_status down(const struct st_expert_layer *l, const struct st_linear_adapter *ad, const float *x)
{
    const struct product p = {.n = ad->rank, .k = l->in, .ld_to = ad->rank, .ld_from = l->in, .cols = l->in, .transposed = true};
    float *const t = rank_rows(l, 0);
    const strata_status st = multiply(l, &p, t, x, ad->a);

    return st == STRATA_OK ? cast(l, ad->rank, t, STRATA_F32, t, STRATA_F32, ad->scale) : st;
}

strata_status st_expert_adapted_forward(const struct st_expert_layer *l, void *y, const void *x)
{
    float *const sums = sums_of(l, y, l->wide_out);
    const float *in;
    strata_status st;

    if ((st = st_expert_multiply(l, false, sums, STRATA_F32, x)) != STRATA_OK ||
        (st = widen(l, &in, l->wide_in, x, l->in)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < l->adapter_count; i++) {
        const struct st_linear_adapter *ad = &l->adapters[i];
        const struct product up = {.n = ad->count,
                                   .k = ad->rank,
                                   .ld_to = l->out,
                                   .ld_from = ad->rank,
                                   .cols = ad->rank,
                                   .transposed = true,
                                   .accumulate = true};

        if ((st = down(l, ad, in)) != STRATA_OK || (st = multiply(l, &up, sums + ad->first, rank_rows(l, 0), ad->b)) != STRATA_OK)
            return st;
    }
    return finish(l, y, sums, l->out);
}

/* dB, dA, and s dy B in rank_rows(1 + i). */
static strata_status adapter_backward(const struct st_expert_layer *l, uint32_t i, const float *dy, const float *x)
{
    const struct st_linear_adapter *ad = &l->adapters[i];
    const struct product back = {.n = ad->rank, .k = ad->count, .ld_to = ad->rank, .ld_from = l->out, .cols = ad->rank};
    float *const up = rank_rows(l, 1 + i);
    strata_status st;

    if ((st = down(l, ad, x)) != STRATA_OK ||
        (st = multiply_gradient(l, ad->b, ad->count, ad->rank, dy + ad->first, l->out, rank_rows(l, 0))) != STRATA_OK ||
        (st = multiply(l, &back, up, dy + ad->first, ad->b)) != STRATA_OK ||
        (st = cast(l, ad->rank, up, STRATA_F32, up, STRATA_F32, ad->scale)) != STRATA_OK)
        return st;
    return multiply_gradient(l, ad->a, ad->rank, l->in, up, ad->rank, x);
}

/* The input's rows have been used when its gradient takes their place. */
strata_status st_expert_adapted_backward(const struct st_expert_layer *l, void *dx, const void *dy, const void *x)
{
    float *const sums = sums_of(l, dx, l->wide_in);
    const float *in, *out;
    strata_status st;

    if ((st = widen(l, &in, l->wide_in, x, l->in)) != STRATA_OK || (st = widen(l, &out, l->wide_out, dy, l->out)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < l->adapter_count; i++)
        if ((st = adapter_backward(l, i, out, in)) != STRATA_OK)
            return st;
    if ((st = st_expert_multiply(l, true, sums, STRATA_F32, dy)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < l->adapter_count; i++) {
        const struct st_linear_adapter *ad = &l->adapters[i];
        const struct product p = {
            .n = l->in, .k = ad->rank, .ld_to = l->in, .ld_from = ad->rank, .cols = l->in, .accumulate = true};

        if ((st = multiply(l, &p, sums, rank_rows(l, 1 + i), ad->a)) != STRATA_OK)
            return st;
    }
    return finish(l, dx, sums, l->in);
}
