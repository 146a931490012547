/* model/decoder/decoder_adapter.c - linear layers that have adapters, forward and backward.
 *
 * y = round(W x + b + s B (A x)): what the base's product gives in fp32 is not rounded before the adapter's is added.  All
 * products with A and B are of fp32 operands, which a device without thin products wants widened.  Rows go through the workspace
 * at most ST_ADAPTED_ROWS at once, so that bits never depend on budgets.
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

/* An operand of a product. */
struct operand {
    const void *values;
    uint32_t stride;
    strata_dtype dt;
};

/* `cols` columns of rows, in fp32 by way of `to` where the device has no thin products. */
static strata_status operand_of(const struct st_frame *f, struct operand *out, float *to, const void *from, uint32_t rows,
                                uint32_t cols, uint32_t stride)
{
    const struct st_cast cast = {
        .rows = rows, .cols = cols, .to_stride = cols, .from_stride = stride, .to = STRATA_F32, .from = f->dt};

    *out = (struct operand){from, stride, f->dt};
    if (f->ops->thin != NULL)
        return STRATA_OK;
    *out = (struct operand){to, cols, STRATA_F32};
    return f->ops->cast(f->dev, &cast, to, from);
}

/* C = factor op(A) op(B), or C += op(A) op(B), in fp32.  `to`: only with thin products, what C comes to, rounded to rows of the
 * model's dtype; C is scratch then. */
struct product {
    uint32_t m, n, k, ldc, ld_to;
    bool trans_a, trans_b, accumulate;
    float factor;
    void *to;
};

static strata_status multiply_thin(const struct st_frame *f, const struct product *p, float *c, const struct operand *a,
                                   const struct operand *b)
{
    const struct st_thin t = {
        .rows = p->m,
        .cols = p->n,
        .k = p->k,
        .ldp = a->stride,
        .ldq = b->stride,
        .ldc = p->ldc,
        .ld_to = p->ld_to,
        .trans_p = p->trans_a,
        .trans_q = p->trans_b,
        .add = p->accumulate,
        .scale = p->accumulate ? 1.0f : p->factor,
        .p = a->dt,
        .q = b->dt,
        .to = f->dt,
    };

    return f->ops->thin(f->dev, &t, c, p->to, a->values, b->values);
}

static strata_status multiply(const struct st_frame *f, const struct product *p, float *c, const struct operand *a,
                              const struct operand *b)
{
    const struct st_matmul mm = {
        .m = p->m,
        .n = p->n,
        .k = p->k,
        .lda = a->stride,
        .ldb = b->stride,
        .ldc = p->ldc,
        .trans_a = p->trans_a,
        .trans_b = p->trans_b,
        .accumulate = p->accumulate,
        .ab_dtype = STRATA_F32,
        .c_dtype = STRATA_F32,
    };
    strata_status st;

    if (f->ops->thin != NULL)
        return multiply_thin(f, p, c, a, b);
    st = f->ops->matmul(f->dev, &mm, c, a->values, b->values, NULL);
    return st != STRATA_OK || p->accumulate || p->factor == 1.0f
               ? st
               : f->ops->scale(f->dev, c, c, p->factor, (uint64_t)p->m * p->n, STRATA_F32);
}

/* A [rank, in] or B [count, rank]. */
static struct operand factor(const struct st_frame *f, uint64_t at, uint32_t cols)
{
    return (struct operand){st_frame_weight(f, at), cols, STRATA_F32};
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

/* The rows of x as all adapters have them; with dropout *in is not set here, as each drops others. */
static strata_status shared_input(const struct st_block *b, struct operand *in, const struct st_linear *l, const struct rows *r,
                                  const void *x)
{
    return drops(b->f) ? STRATA_OK
                       : operand_of(b->f, in, b->adapted_in, elem(x, at_row(r, l->in), b->f->dt), r->count, l->in, l->in);
}

/* With dropout: *in = those that one adapter has. */
static strata_status drop_input(const struct st_block *b, struct operand *in, const struct st_linear *l,
                                const struct st_linear_adapter *ad, const struct rows *r, const void *x)
{
    const struct st_dropout d = mask(b, l, ad, r);

    if (!drops(b->f))
        return STRATA_OK;
    *in = (struct operand){b->adapted_in, l->in, STRATA_F32};
    return b->f->ops->dropout(b->f->dev, &d, b->adapted_in, elem(x, at_row(r, l->in), b->f->dt));
}

/* adapted_rank[0] [rows, r] = s A x */
static strata_status down(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad, uint32_t rows,
                          const struct operand *in)
{
    const struct product p = {.m = rows, .n = ad->rank, .k = l->in, .ldc = ad->rank, .trans_b = true, .factor = ad->scale};
    const struct operand a = factor(b->f, ad->a, l->in);

    return multiply(b->f, &p, b->adapted_rank[0], in, &a);
}

/* adapted_rank[1] [rows, r] = s dy B; *out: dy, which may lie in `adapted_out`. */
static strata_status up_backward(const struct st_block *b, struct operand *out, const struct st_linear *l,
                                 const struct st_linear_adapter *ad, const struct rows *r, const void *dy)
{
    const struct product p = {.m = r->count, .n = ad->rank, .k = ad->count, .ldc = ad->rank, .factor = ad->scale};
    const struct operand of_b = factor(b->f, ad->b, ad->rank);
    const void *from = elem(dy, at_row(r, l->stride) + ad->first, b->f->dt);
    const strata_status st = operand_of(b->f, out, b->adapted_out, from, r->count, ad->count, l->stride);

    return st == STRATA_OK ? multiply(b->f, &p, b->adapted_rank[1], out, &of_b) : st;
}

/* What down() and up_backward() leave. */
static struct operand rank_operand(const struct st_block *b, uint32_t which, const struct st_linear_adapter *ad)
{
    return (struct operand){b->adapted_rank[which], ad->rank, STRATA_F32};
}

static bool is_in(const struct st_linear_adapter *ad, const struct st_linear_part *part)
{
    return ad->first >= part->first && ad->first < part->first + part->count;
}

/* `adapted_out` to y: what no adapter adds to.  Thin products round the columns of theirs. */
static strata_status round_columns(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part,
                                   const struct rows *r, void *y)
{
    const struct st_cast cast = {.rows = r->count,
                                 .cols = part->count,
                                 .to_stride = l->stride,
                                 .from_stride = part->count,
                                 .to = b->f->dt,
                                 .from = STRATA_F32};
    uint32_t adapted = 0;

    for (uint32_t i = 0; i < l->adapter_count; i++)
        adapted += is_in(&l->adapters[i], part) ? l->adapters[i].count : 0;
    return b->f->ops->thin != NULL && adapted == part->count ? STRATA_OK : b->f->ops->cast(b->f->dev, &cast, y, b->adapted_out);
}

/* y: the first row's first column of the part. */
static strata_status add_adapter(const struct st_block *b, const struct st_linear_part *part, const struct st_linear *l,
                                 const struct st_linear_adapter *ad, uint32_t rows, void *y)
{
    const uint32_t first = ad->first - part->first;
    const struct operand t = rank_operand(b, 0, ad), of_b = factor(b->f, ad->b, ad->rank);
    const struct product up = {.m = rows,
                               .n = ad->count,
                               .k = ad->rank,
                               .ldc = part->count,
                               .ld_to = l->stride,
                               .trans_b = true,
                               .accumulate = true,
                               .to = b->f->ops->thin != NULL ? st_column(y, first, b->f->dt) : NULL};

    return multiply(b->f, &up, b->adapted_out + first, &t, &of_b);
}

/* The rows' columns of the part: the base's in `adapted_out`, fp32, and what each adapter adds. */
static strata_status rows_forward(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part,
                                  const struct rows *r, void *y, const void *x)
{
    const struct st_linear_product base = {.layer = l, .part = part, .rows = r->count, .stride = part->count, .dt = STRATA_F32};
    const bool thin = b->f->ops->thin != NULL;
    struct operand in;
    strata_status st;

    if ((st = st_linear_multiply(b, &base, b->adapted_out, elem(x, at_row(r, l->in), b->f->dt))) != STRATA_OK ||
        (st = shared_input(b, &in, l, r, x)) != STRATA_OK || (thin && (st = round_columns(b, l, part, r, y)) != STRATA_OK))
        return st;
    for (uint32_t i = 0; i < l->adapter_count && st == STRATA_OK; i++) {
        const struct st_linear_adapter *ad = &l->adapters[i];

        if (is_in(ad, part) && (st = drop_input(b, &in, l, ad, r, x)) == STRATA_OK &&
            (st = down(b, l, ad, r->count, &in)) == STRATA_OK)
            st = add_adapter(b, part, l, ad, r->count, y);
    }
    return st == STRATA_OK && !thin ? round_columns(b, l, part, r, y) : st;
}

strata_status st_adapted_forward(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part, void *y,
                                 const void *x)
{
    strata_status st = STRATA_OK;

    for (struct rows r = {0}; st == STRATA_OK && next_rows(b->f, &r);)
        st = rows_forward(b, l, part, &r, (void *)(uintptr_t)elem(y, at_row(&r, l->stride) + part->first, b->f->dt), x);
    return st;
}

/* dB += dy^T (s A x), dA += (s dy B)^T x; leaves s dy B in adapted_rank[1]. */
static strata_status adapter_backward(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad,
                                      const struct rows *r, struct operand *in, const void *x, const void *dy)
{
    const struct st_frame *f = b->f;
    const struct product of_b = {
        .m = ad->count, .n = ad->rank, .k = r->count, .ldc = ad->rank, .trans_a = true, .accumulate = true};
    const struct product of_a = {.m = ad->rank, .n = l->in, .k = r->count, .ldc = l->in, .trans_a = true, .accumulate = true};
    const struct operand down_rows = rank_operand(b, 0, ad), up_rows = rank_operand(b, 1, ad);
    struct operand out;
    strata_status st;

    if ((st = drop_input(b, in, l, ad, r, x)) != STRATA_OK || (st = down(b, l, ad, r->count, in)) != STRATA_OK ||
        (st = up_backward(b, &out, l, ad, r, dy)) != STRATA_OK ||
        (st = multiply(f, &of_b, st_frame_grad(f, ad->b), &out, &down_rows)) != STRATA_OK)
        return st;
    return multiply(f, &of_a, st_frame_grad(f, ad->a), &up_rows, in);
}

strata_status st_adapted_backward_weight(const struct st_block *b, const struct st_linear *l, const void *x, const void *dy)
{
    strata_status st = STRATA_OK;

    for (struct rows r = {0}; l->adapter_count > 0 && st == STRATA_OK && next_rows(b->f, &r);) {
        struct operand in;

        st = shared_input(b, &in, l, &r, x);
        for (uint32_t i = 0; i < l->adapter_count && st == STRATA_OK; i++)
            st = adapter_backward(b, l, &l->adapters[i], &r, &in, x, dy);
    }
    return st;
}

/* adapted_in += (s dy B) A, the former being in adapted_rank[1], by the mask.  `to`: without dropout, where thin products round
 * the rows to, or NULL. */
static strata_status down_backward(const struct st_block *b, const struct st_linear *l, const struct st_linear_adapter *ad,
                                   const struct rows *r, void *to)
{
    const bool dropped = drops(b->f);
    float *const sums = dropped ? b->adapted_out : b->adapted_in; /* dy, which may be there, has been used */
    const struct product p = {
        .m = r->count, .n = l->in, .k = ad->rank, .ldc = l->in, .ld_to = l->in, .accumulate = !dropped, .factor = 1.0f, .to = to};
    const struct operand up_rows = rank_operand(b, 1, ad), of_a = factor(b->f, ad->a, l->in);
    struct st_dropout d = mask(b, l, ad, r);
    const strata_status st = multiply(b->f, &p, sums, &up_rows, &of_a);

    d.from = STRATA_F32;
    d.add = true;
    return st == STRATA_OK && dropped ? b->f->ops->dropout(b->f->dev, &d, b->adapted_in, sums) : st;
}

/* dx: the rows' gradients of the input, summed in `adapted_in`, fp32; with x also dA and dB. */
static strata_status rows_backward(const struct st_block *b, const struct st_linear *l, const struct rows *r, void *dx,
                                   const void *x, const void *dy)
{
    const struct st_frame *f = b->f;
    const bool thin = f->ops->thin != NULL && !drops(f);
    const struct st_cast cast = {
        .rows = r->count, .cols = l->in, .to_stride = l->in, .from_stride = l->in, .to = f->dt, .from = STRATA_F32};
    struct operand in, out;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++) {
        const struct st_linear_product base = {.layer = l,
                                               .part = &l->parts[i],
                                               .backward = true,
                                               .accumulate = i > 0,
                                               .rows = r->count,
                                               .stride = l->in,
                                               .dt = STRATA_F32};

        st = st_linear_multiply(b, &base, b->adapted_in, elem(dy, at_row(r, l->stride) + l->parts[i].first, f->dt));
    }
    if (st == STRATA_OK && x != NULL)
        st = shared_input(b, &in, l, r, x);
    for (uint32_t i = 0; i < l->adapter_count && st == STRATA_OK; i++) {
        const struct st_linear_adapter *ad = &l->adapters[i];

        st = x != NULL ? adapter_backward(b, l, ad, r, &in, x, dy) : up_backward(b, &out, l, ad, r, dy);
        if (st == STRATA_OK)
            st = down_backward(b, l, ad, r, thin && i + 1 == l->adapter_count ? dx : NULL);
    }
    return st == STRATA_OK && !thin ? f->ops->cast(f->dev, &cast, dx, b->adapted_in) : st;
}

strata_status st_adapted_backward_input(const struct st_block *b, const struct st_linear *l, void *dx, const void *x,
                                        const void *dy)
{
    strata_status st = STRATA_OK;

    for (struct rows r = {0}; st == STRATA_OK && next_rows(b->f, &r);)
        st = rows_backward(b, l, &r, (void *)(uintptr_t)elem(dx, at_row(&r, l->in), b->f->dt), x, dy);
    return st;
}

/* Other devices, and dropout, have the input's gradient where that of A needs the input. */
bool st_adapted_backward_at_once(const struct st_block *b, const struct st_linear *l)
{
    return b->f->ops->thin != NULL && !drops(b->f) && l->adapter_count > 0 && b->f->call->grad != NULL;
}
