/* model/decoder/decoder_linear.c - the linear layers of a block: one matrix, or several whose outputs are side by side. */
#include "model/decoder/decoder_internal.h"

void *st_column(void *rows, uint32_t first, strata_dtype dt)
{
    return (unsigned char *)rows + first * strata_dtype_bytes(dt);
}

const void *st_const_column(const void *rows, uint32_t first, strata_dtype dt)
{
    return (const unsigned char *)rows + first * strata_dtype_bytes(dt);
}

/* *weight: the part's, in the model's dtype.  That of NF4 lies in the workspace until the next such call. */
static strata_status part_weight(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part,
                                 const void **weight)
{
    const struct st_frame *f = b->f;
    const void *stored = st_frame_weight(f, part->weight);

    *weight = part->format == STRATA_NF4 ? b->widened : stored;
    if (part->format != STRATA_NF4)
        return STRATA_OK;
    return f->ops->nf4_widen(f->dev, b->widened, stored, (uint64_t)part->count * l->in, f->dt);
}

strata_status st_linear_multiply(const struct st_block *b, const struct st_linear_product *p, void *to, const void *from)
{
    const struct st_frame *f = b->f;
    const struct st_linear *l = p->layer;
    const bool out_in = b->m->config.out_in || p->part->format == STRATA_NF4, bias = l->bias && !p->backward;
    const struct st_matmul mm = {
        .m = p->rows,
        .n = p->backward ? l->in : p->part->count,
        .k = p->backward ? p->part->count : l->in,
        .lda = p->backward ? l->stride : l->in,
        .ldb = out_in ? l->in : l->out,
        .ldc = p->stride,
        .trans_b = out_in != p->backward,
        .accumulate = p->accumulate,
        .bias = bias,
        .ab_dtype = f->dt,
        .c_dtype = p->dt,
        .epilogue = p->epilogue,
        .activation = st_model_activation(&b->m->config),
        .aux = p->epilogue != ST_EPILOGUE_NONE ? b->fc : NULL,
    };
    const void *weight;
    const strata_status st = part_weight(b, l, p->part, &weight);

    if (st != STRATA_OK)
        return st;
    return f->ops->matmul(f->dev, &mm, to, from, weight, bias ? st_frame_weight(f, p->part->bias) : NULL);
}

/* Part by part. */
strata_status st_linear_forward(const struct st_block *b, const struct st_linear *l, void *y, const void *x)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++) {
        const struct st_linear_part *part = &l->parts[i];
        const struct st_linear_product p = {.layer = l, .part = part, .rows = b->f->rows, .stride = l->stride, .dt = b->f->dt};

        if (part->adapted)
            st = st_adapted_forward(b, l, part, y, x);
        else
            st = st_linear_multiply(b, &p, st_column(y, part->first, b->f->dt), x);
    }
    return st;
}

/* dW += x^T dy, or its transpose where matrices are [out, in]; only for what is trained: the whole part or, if it has several
 * such matrices, the first rows.  Written in a first call. */
static strata_status part_backward_weight(const struct st_block *b, const struct st_linear *l, const struct st_linear_part *part,
                                          const void *x, const void *dy)
{
    const struct st_frame *f = b->f;
    const bool out_in = b->m->config.out_in;
    const void *dy_part = st_const_column(dy, part->first, f->dt);
    const struct st_matmul mm = {
        .m = out_in ? part->trained : l->in,
        .n = out_in ? l->in : part->trained,
        .k = f->rows,
        .lda = out_in ? l->stride : l->in,
        .ldb = out_in ? l->in : l->stride,
        .ldc = out_in ? l->in : l->out,
        .trans_a = true,
        .accumulate = !f->call->first,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };

    if (part->trained == 0)
        return STRATA_OK;
    return f->ops->matmul(f->dev, &mm, st_frame_grad(f, part->weight), out_in ? dy_part : x, out_in ? x : dy_part, NULL);
}

/* dbias += column sums of dy; parts go through `sums`. */
static strata_status linear_backward_bias(const struct st_block *b, const struct st_linear *l, const void *dy)
{
    const struct st_frame *f = b->f;
    uint32_t trained = 0;
    strata_status st;

    for (uint32_t i = 0; i < l->part_count; i++)
        trained += l->parts[i].trained_biases;
    if (trained == 0)
        return STRATA_OK;
    if (l->part_count == 1 && trained == l->stride)
        return f->ops->bias_backward(f->dev, st_frame_grad(f, l->parts[0].bias), dy, f->rows, l->out, f->dt);
    if ((st = f->ops->zero(f->dev, b->sums, l->stride * sizeof(float))) != STRATA_OK ||
        (st = f->ops->bias_backward(f->dev, b->sums, dy, f->rows, l->stride, f->dt)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++) {
        const struct st_linear_part *part = &l->parts[i];
        float *grad = st_frame_grad(f, part->bias);

        if (part->trained_biases > 0)
            st = f->ops->add(f->dev, grad, grad, b->sums + part->first, part->trained_biases, STRATA_F32);
    }
    return st;
}

/* The layer's own weights and biases. */
static strata_status own_backward_weight(const struct st_block *b, const struct st_linear *l, const void *x, const void *dy)
{
    strata_status st = STRATA_OK;

    if (b->f->call->grad == NULL)
        return STRATA_OK;
    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++)
        st = part_backward_weight(b, l, &l->parts[i], x, dy);
    return st == STRATA_OK && l->bias ? linear_backward_bias(b, l, dy) : st;
}

strata_status st_linear_backward_weight(const struct st_block *b, const struct st_linear *l, const void *x, const void *dy)
{
    const strata_status st = own_backward_weight(b, l, x, dy);

    return st == STRATA_OK && b->f->call->grad != NULL ? st_adapted_backward_weight(b, l, x, dy) : st;
}

/* Parts after the first are computed in `half` and added. */
strata_status st_linear_backward_input(const struct st_block *b, const struct st_linear *l, void *dx, const void *dy)
{
    const struct st_frame *f = b->f;
    strata_status st = STRATA_OK;

    if (l->adapter_count > 0)
        return st_adapted_backward_input(b, l, dx, NULL, dy);
    for (uint32_t i = 0; i < l->part_count && st == STRATA_OK; i++) {
        const struct st_linear_product p = {
            .layer = l, .part = &l->parts[i], .backward = true, .rows = f->rows, .stride = l->in, .dt = f->dt};

        st = st_linear_multiply(b, &p, i == 0 ? dx : b->half, st_const_column(dy, l->parts[i].first, f->dt));
        if (st == STRATA_OK && i > 0)
            st = f->ops->add(f->dev, dx, dx, b->half, (uint64_t)f->rows * l->in, f->dt);
    }
    return st;
}

strata_status st_linear_backward(const struct st_block *b, const struct st_linear *l, void *dx, const void *x, const void *dy)
{
    const bool at_once = st_adapted_backward_at_once(b, l);
    const strata_status st = at_once ? own_backward_weight(b, l, x, dy) : st_linear_backward_weight(b, l, x, dy);

    if (st != STRATA_OK)
        return st;
    return at_once ? st_adapted_backward_input(b, l, dx, x, dy) : st_linear_backward_input(b, l, dx, dy);
}

bool st_linear_trains(const struct st_frame *f, const struct st_linear *l)
{
    bool trained = l->adapter_count > 0;

    for (uint32_t i = 0; i < l->part_count; i++)
        trained = trained || l->parts[i].trained > 0;
    return trained && f->call->grad != NULL;
}
