/* model/decoder/decoder_adapter.c - linear layers that have adapters, forward and backward.
 *
 * y = round(W x + b + s B (A x)): what the base's product gives in fp32 is not rounded before the adapter's is added.  All
 * products with A and B are of fp32 operands.  Rows go through the workspace at most ST_ADAPTED_ROWS at once, so that bits never
 * depend on budgets.
 *
 * In training with dropout each adapter sees x through another mask.  A mask is not kept but drawn wherever it is needed, as
 * it depends on nothing but the seed, the adapter's name, the sequence, the position and the column. */
#include "model/decoder/decoder_internal.h"

/* Some rows of a call. */
struct rows {
    uint32_t first, count;
};

static bool next_rows(const struct st_frame *f, struct rows *r)
{
    r->first += r->count;
    r->count = f->rows - r->first < ST_ADAPTED_ROWS ? f->rows - r->first : ST_ADAPTED_ROWS;
    return r->count > 0;
}

static uint64_t at_row(const struct rows *r, uint32_t stride)
{
    return (uint64_t)r->first * stride;
}

static const void *elem(const void *values, uint64_t at, strata_dtype dt)
{
    return (const unsigned char *)values + at * strata_dtype_bytes(dt);
}

/* to[count, cols] fp32, dense */
static strata_status widen(const struct st_frame *f, float *to, const void *from, uint32_t count, uint32_t cols, uint32_t stride)
{
    const struct st_cast cast = {
        .rows = count, .cols = cols, .to_stride = cols, .from_stride = stride, .to = STRATA_F32, .from = f->dt};

    return f->ops->cast(f->dev, &cast, to, from);
}

/* C = op(A) op(B), or += , all fp32 */
struct product {
    uint32_t m, n, k, lda, ldb, ldc;
    bool trans_a, trans_b, accumulate;
};

static strata_status multiply(const struct st_frame *f, const struct product *p, float *c, const float *a, const void *b)
{
    const struct st_matmul mm = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .lda = p->lda,
        .ldb = p->ldb,
        .ldc = p->ldc,
        .trans_a = p->trans_a,
        .trans_b = p->trans_b,
        .accumulate = p->accumulate,
        .ab_dtype = STRATA_F32,
        .c_dtype = STRATA_F32,
    };

    return f->ops->matmul(f->dev, &mm, c, a, b, NULL);
}

static strata_status scale(const struct st_frame *f, float *values, float factor, uint64_t elems)
{
    return factor == 1.0f ? STRATA_OK : f->ops->scale(f->dev, values, values, factor, elems, STRATA_F32);
}

static bool drops(const struct st_frame *f)
{
    return f->m->dropout > 0 && f->call->trains;
}

/* What drops columns of rows of the adapter's input. */
static struct st_dropout mask(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad,
                              const struct rows *r)
{
    const double p = b->f->m->dropout;

    return (struct st_dropout){.rows = r->count,
                               .cols = l->in,
                               .first = r->first,
                               .seq = b->f->seq,
                               .sequence = b->f->call->sequence,
                               .key = ad->key,
                               .limit = (uint64_t)(p * 4294967296.0),
                               .scale = p < 1 ? (float)(1.0 / (1.0 - p)) : 0.0f,
                               .from = b->f->dt};
}

/* adapted_in [rows, in]: the rows of x, as all adapters have them; nothing, where each drops others. */
static strata_status widen_input(const struct st_block *b, const struct st_linear *l, const struct rows *r, const void *x)
{
    return drops(b->f) ? STRATA_OK : widen(b->f, b->adapted_in, elem(x, at_row(r, l->in), b->f->dt), r->count, l->in, l->in);
}

/* The same for one adapter. */
static strata_status drop_input(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad,
                                const struct rows *r, const void *x)
{
    const struct st_dropout d = mask(b, l, ad, r);

    return drops(b->f) ? b->f->ops->dropout(b->f->dev, &d, b->adapted_in, elem(x, at_row(r, l->in), b->f->dt)) : STRATA_OK;
}

/* adapted_rank[0] [rows, r] = s A x, x being in `adapted_in` */
static strata_status down(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad, uint32_t rows)
{
    const struct product p = {.m = rows, .n = ad->rank, .k = l->in, .lda = l->in, .ldb = l->in, .ldc = ad->rank, .trans_b = true};
    const strata_status st = multiply(b->f, &p, b->adapted_rank[0], b->adapted_in, st_frame_weight(b->f, ad->a));

    return st == STRATA_OK ? scale(b->f, b->adapted_rank[0], ad->scale, (uint64_t)rows * ad->rank) : st;
}

/* adapted_rank[1] [rows, r] = s dy B; leaves dy, widened, in `adapted_out` */
static strata_status up_backward(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad,
                                 const struct rows *r, const void *dy)
{
    const struct product p = {.m = r->count, .n = ad->rank, .k = ad->count, .lda = ad->count, .ldb = ad->rank, .ldc = ad->rank};
    const void *from = elem(dy, at_row(r, l->stride) + ad->first, b->f->dt);
    strata_status st;

    if ((st = widen(b->f, b->adapted_out, from, r->count, ad->count, l->stride)) != STRATA_OK ||
        (st = multiply(b->f, &p, b->adapted_rank[1], b->adapted_out, st_frame_weight(b->f, ad->b))) != STRATA_OK)
        return st;
    return scale(b->f, b->adapted_rank[1], ad->scale, (uint64_t)r->count * ad->rank);
}

static bool is_in(const struct st_linear_adapter *ad, const struct st_linear_part *part)
{
    return ad->first >= part->first && ad->first < part->first + part->count;
}

/* The rows' columns of the part in `adapted_out`, fp32: the base's, and what each adapter adds. */
static strata_status rows_forward(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part,
                                  const struct rows *r, const void *x)
{
    const struct st_linear_product base = {.layer = l, .part = part, .rows = r->count, .stride = part->count, .dt = STRATA_F32};
    const void *from = elem(x, at_row(r, l->in), b->f->dt);
    strata_status st;

    if ((st = st_linear_multiply(b, &base, b->adapted_out, from)) != STRATA_OK || (st = widen_input(b, l, r, x)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < l->adapter_count && st == STRATA_OK; i++) {
        const struct st_linear_adapter *ad = &l->adapters[i];
        const struct product up = {.m = r->count,
                                   .n = ad->count,
                                   .k = ad->rank,
                                   .lda = ad->rank,
                                   .ldb = ad->rank,
                                   .ldc = part->count,
                                   .trans_b = true,
                                   .accumulate = true};

        if (is_in(ad, part) && (st = drop_input(b, l, ad, r, x)) == STRATA_OK && (st = down(b, l, ad, r->count)) == STRATA_OK)
            st = multiply(b->f, &up, b->adapted_out + ad->first - part->first, b->adapted_rank[0], st_frame_weight(b->f, ad->b));
    }
    return st;
}

strata_status st_adapted_forward(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part, void *y,
                                 const void *x)
{
    const struct st_frame *f = b->f;
    strata_status st = STRATA_OK;

    for (struct rows r = {0}; st == STRATA_OK && next_rows(f, &r);) {
        const struct st_cast cast = {.rows = r.count,
                                     .cols = part->count,
                                     .to_stride = l->stride,
                                     .from_stride = part->count,
                                     .to = f->dt,
                                     .from = STRATA_F32};

        if ((st = rows_forward(b, l, part, &r, x)) == STRATA_OK)
            st = f->ops->cast(f->dev, &cast, (void *)(uintptr_t)elem(y, at_row(&r, l->stride) + part->first, f->dt),
                              b->adapted_out);
    }
    return st;
}

/* dB += dy^T (s A x), dA += (s dy B)^T x; x is in `adapted_in`, or dropped into it. */
static strata_status adapter_backward(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad,
                                      const struct rows *r, const void *x, const void *dy)
{
    const struct st_frame *f = b->f;
    const struct product of_b = {.m = ad->count,
                                 .n = ad->rank,
                                 .k = r->count,
                                 .lda = ad->count,
                                 .ldb = ad->rank,
                                 .ldc = ad->rank,
                                 .trans_a = true,
                                 .accumulate = true};
    const struct product of_a = {.m = ad->rank,
                                 .n = l->in,
                                 .k = r->count,
                                 .lda = ad->rank,
                                 .ldb = l->in,
                                 .ldc = l->in,
                                 .trans_a = true,
                                 .accumulate = true};
    strata_status st;

    if ((st = drop_input(b, l, ad, r, x)) != STRATA_OK || (st = down(b, l, ad, r->count)) != STRATA_OK ||
        (st = up_backward(b, l, ad, r, dy)) != STRATA_OK ||
        (st = multiply(f, &of_b, st_frame_grad(f, ad->b), b->adapted_out, b->adapted_rank[0])) != STRATA_OK)
        return st;
    return multiply(f, &of_a, st_frame_grad(f, ad->a), b->adapted_rank[1], b->adapted_in);
}

strata_status st_adapted_backward_weight(const struct st_block *b, const struct st_linear *l, const void *x, const void *dy)
{
    const struct st_frame *f = b->f;
    strata_status st = STRATA_OK;

    for (struct rows r = {0}; l->adapter_count > 0 && st == STRATA_OK && next_rows(f, &r);) {
        st = widen_input(b, l, &r, x);
        for (uint32_t i = 0; i < l->adapter_count && st == STRATA_OK; i++)
            st = adapter_backward(b, l, &l->adapters[i], &r, x, dy);
    }
    return st;
}

/* adapted_in += (s dy B) A, by the mask */
static strata_status down_backward(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad,
                                   const struct rows *r, const void *dy)
{
    const bool dropped = drops(b->f);
    float *const to = dropped ? b->adapted_out : b->adapted_in; /* dy, which is there, has been used */
    const struct product p = {
        .m = r->count, .n = l->in, .k = ad->rank, .lda = ad->rank, .ldb = l->in, .ldc = l->in, .accumulate = !dropped};
    struct st_dropout d = mask(b, l, ad, r);
    strata_status st;

    d.from = STRATA_F32;
    d.add = true;
    if ((st = up_backward(b, l, ad, r, dy)) != STRATA_OK ||
        (st = multiply(b->f, &p, to, b->adapted_rank[1], st_frame_weight(b->f, ad->a))) != STRATA_OK || !dropped)
        return st;
    return b->f->ops->dropout(b->f->dev, &d, b->adapted_in, to);
}

/* The rows' gradients of the input in `adapted_in`, fp32. */
static strata_status rows_backward(const struct st_block *b, const struct st_linear *l, const struct rows *r, const void *dy)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++) {
        const struct st_linear_product base = {.layer = l,
                                               .part = &l->parts[i],
                                               .backward = true,
                                               .accumulate = i > 0,
                                               .rows = r->count,
                                               .stride = l->in,
                                               .dt = STRATA_F32};

        st = st_linear_multiply(b, &base, b->adapted_in, elem(dy, at_row(r, l->stride) + l->parts[i].first, b->f->dt));
    }
    for (uint32_t i = 0; i < l->adapter_count && st == STRATA_OK; i++)
        st = down_backward(b, l, &l->adapters[i], r, dy);
    return st;
}

strata_status st_adapted_backward_input(const struct st_block *b, const struct st_linear *l, void *dx, const void *dy)
{
    const struct st_frame *f = b->f;
    strata_status st = STRATA_OK;

    for (struct rows r = {0}; st == STRATA_OK && next_rows(f, &r);) {
        const struct st_cast cast = {
            .rows = r.count, .cols = l->in, .to_stride = l->in, .from_stride = l->in, .to = f->dt, .from = STRATA_F32};

        if ((st = rows_backward(b, l, &r, dy)) == STRATA_OK)
            st = f->ops->cast(f->dev, &cast, (void *)(uintptr_t)elem(dx, at_row(&r, l->in), f->dt), b->adapted_in);
    }
    return st;
}
