/* model/decoder/decoder_head.c - the final norm, and logits, loss and gradients by slices of the vocabulary.
 *
 * A slice's logits are made in runs of st_head_rows() rows: in the workspace, which they bound, or where they stay for backward.
 * Generation makes only the last row's, where they stay. */
#include "model/decoder/decoder_internal.h"

strata_status st_head_norm(const struct st_frame *f)
{
    const struct st_head_internals in = st_head_internals_layout(f->m);
    unsigned char *internals = f->call->internals;
    const strata_status st = st_frame_norm(f, internals + in.normalised, (float *)(internals + in.stats), f->call->act, NULL, 0);

    if (st != STRATA_OK || f->m->batch.generate)
        return st;
    return f->ops->zero(f->dev, internals + in.gradient, (uint64_t)f->rows * f->m->config.hidden * sizeof(float));
}

strata_status st_head_backward(const struct st_frame *f)
{
    const struct st_head_internals in = st_head_internals_layout(f->m);
    const unsigned char *internals = f->call->internals;

    return st_frame_norm_backward(f, f->call->dact, internals + in.gradient, STRATA_F32, f->call->act,
                                  (const float *)(internals + in.stats), 0, NULL);
}

/* A run of rows against one slice of the vocabulary. */
struct head_part {
    uint32_t row, rows; /* of the micro-batch */
    uint32_t hidden;
    uint32_t vocab_first, vocab; /* of the table */
    unsigned char *normalised;   /* [rows, hidden] */
    float *gradient;             /* [rows, hidden] */
    float *xent;                 /* [rows][3] */
    float *logits;               /* [rows, vocab] */
    unsigned char *dlogits;      /* [rows, vocab] */
};

static struct head_part head_part_at(const struct st_frame *f, uint32_t row)
{
    const struct st_head_internals in = st_head_internals_layout(f->m);
    const struct st_head_workspace ws = st_head_workspace_layout(f->m);
    const struct st_page *page = &f->m->workload.pages[f->call->page];
    const uint32_t hidden = f->m->config.hidden, most = st_head_rows(f->m);
    const uint64_t elem = (uint64_t)row * hidden;
    unsigned char *internals = f->call->internals, *workspace = f->call->workspace;

    return (struct head_part){
        .row = row,
        .rows = f->rows - row < most ? f->rows - row : most,
        .hidden = hidden,
        .vocab_first = page->row_first,
        .vocab = page->row_count,
        .normalised = internals + in.normalised + elem * strata_dtype_bytes(f->dt),
        .gradient = (float *)(internals + in.gradient) + elem,
        .xent = (float *)(internals + in.xent) + (uint64_t)row * 3,
        .logits = f->call->logits != NULL ? f->call->logits + (uint64_t)row * page->row_count : (float *)(workspace + ws.logits),
        .dlogits = workspace + ws.dlogits,
    };
}

/* logits = normalised slice^T, fp32 */
static strata_status head_logits(const struct st_frame *f, const struct head_part *p)
{
    const struct st_matmul mm = {
        .m = p->rows,
        .n = p->vocab,
        .k = p->hidden,
        .lda = p->hidden,
        .ldb = p->hidden,
        .ldc = p->vocab,
        .trans_b = true,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };

    return f->ops->matmul(f->dev, &mm, p->logits, p->normalised, f->call->weight, NULL);
}

/* gradient += dlogits slice; grad of the slice += dlogits^T normalised, unless it is frozen.  A first call's first run of rows
 * writes the latter. */
static strata_status head_products(const struct st_frame *f, const struct head_part *p)
{
    const struct st_matmul input = {
        .m = p->rows,
        .n = p->hidden,
        .k = p->vocab,
        .lda = p->vocab,
        .ldb = p->hidden,
        .ldc = p->hidden,
        .accumulate = true,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };
    const struct st_matmul weight = {
        .m = p->vocab,
        .n = p->hidden,
        .k = p->rows,
        .lda = p->vocab,
        .ldb = p->hidden,
        .ldc = p->hidden,
        .trans_a = true,
        .accumulate = !f->call->first || p->row > 0,
        .ab_dtype = f->dt,
        .c_dtype = STRATA_F32,
    };
    const strata_status st = f->ops->matmul(f->dev, &input, p->gradient, p->dlogits, f->call->weight, NULL);

    if (st != STRATA_OK || f->call->grad == NULL)
        return st;
    return f->ops->matmul(f->dev, &weight, f->call->grad, p->dlogits, p->normalised, NULL);
}

/* The last row's logits of this slice. */
static strata_status next_token_logits(const struct st_frame *f)
{
    struct head_part p = head_part_at(f, f->rows - 1);

    p.logits = (float *)((unsigned char *)f->call->internals + f->m->workload.logits_offset) + p.vocab_first;
    return head_logits(f, &p);
}

strata_status st_head_stats(const struct st_frame *f)
{
    strata_status st = STRATA_OK;

    if (f->m->batch.generate)
        return next_token_logits(f);

    for (uint32_t row = 0; row < f->rows && st == STRATA_OK; row += st_head_rows(f->m)) {
        const struct head_part p = head_part_at(f, row);

        if ((st = head_logits(f, &p)) == STRATA_OK)
            st = f->ops->xent_stats(f->dev, p.xent, p.logits, f->call->targets + row, p.rows, p.vocab, p.vocab_first,
                                    f->m->config.logit_cap);
    }
    return st;
}

strata_status st_head_grad(const struct st_frame *f)
{
    strata_status st = STRATA_OK;

    for (uint32_t row = 0; row < f->rows && st == STRATA_OK; row += st_head_rows(f->m)) {
        const struct head_part p = head_part_at(f, row);

        if (f->call->logits == NULL)
            st = head_logits(f, &p);
        if (st == STRATA_OK &&
            (st = f->ops->xent_grad(f->dev, p.dlogits, p.logits, p.xent, f->call->targets + row, p.rows, p.vocab, p.vocab_first,
                                    f->call->loss_gradient, f->m->config.logit_cap, f->dt)) == STRATA_OK)
            st = head_products(f, &p);
    }
    return st;
}

strata_status st_head_loss(const struct st_frame *f)
{
    const unsigned char *xent = (const unsigned char *)f->call->internals + st_head_internals_layout(f->m).xent;

    const strata_status st = f->m->batch.generate ? STRATA_OK
                                                  : f->ops->xent_loss(f->dev, f->call->loss_sum,
                                                                      (const float *)(const void *)xent, f->call->targets, f->rows);

    return st == STRATA_OK ? st_experts_loss(f) : st;
}
