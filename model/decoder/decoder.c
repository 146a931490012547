/* model/decoder/decoder.c - a model's calls as sequences of device ops: code shared by the calls, the embedding, and the dispatch
 * of calls. */
#include "core/base/error.h"
#include "model/decoder/decoder_internal.h"
#include <assert.h>

static struct st_frame frame_of(const struct st_model *m, const struct st_call *call, uint32_t page)
{
    const bool generate = m->batch.generate;
    uint32_t first, count;

    st_model_page_tensors(m, page, &first, &count);
    return (struct st_frame){
        .m = m,
        .call = call,
        .ops = call->ops,
        .dev = call->device,
        .page = &m->workload.pages[page],
        .tensors = &m->tensors[first],
        .rows = generate ? call->rows : m->batch.micro_batch * m->batch.seq,
        .seq = generate ? call->rows : m->batch.seq,
        .first = generate ? call->position : 0,
        .dt = m->batch.dtype,
    };
}

const void *st_frame_weight(const struct st_frame *f, uint64_t offset)
{
    return (const unsigned char *)f->call->weight + st_page_at(f->page, offset);
}

float *st_frame_grad(const struct st_frame *f, uint64_t offset)
{
    return f->call->grad != NULL && offset < f->call->grad_elems ? f->call->grad + offset : NULL;
}

struct st_rmsnorm st_frame_rmsnorm(const struct st_frame *f)
{
    const uint32_t hidden = f->m->config.hidden;

    return (struct st_rmsnorm){.rows = f->rows,
                               .heads = 1,
                               .cols = hidden,
                               .stride = hidden,
                               .eps = f->m->config.norm_eps,
                               .offset = f->m->config.norm == ST_NORM_RMSNORM_FROM_1 ? 1.0f : 0.0f,
                               .dt = f->dt};
}

strata_status st_frame_norm(const struct st_frame *f, void *y, float *stats, const void *x, void *sum, uint32_t weight)
{
    const struct st_model_config *c = &f->m->config;
    const void *scale = st_frame_weight(f, f->tensors[weight].offset);
    const struct st_rmsnorm norm = st_frame_rmsnorm(f);

    if (c->norm != ST_NORM_LAYERNORM)
        return f->ops->rmsnorm_forward(f->dev, &norm, y, stats, x, scale, sum, sum);
    return f->ops->layernorm_forward(f->dev, y, stats, x, scale, st_frame_weight(f, f->tensors[weight + 1].offset), sum, sum,
                                     f->rows, c->hidden, c->norm_eps, f->dt);
}

strata_status st_frame_norm_backward(const struct st_frame *f, void *dx, const void *dy, strata_dtype dy_dt, const void *x,
                                     const float *stats, uint32_t weight, const void *residual)
{
    const uint64_t at = f->tensors[weight].offset;
    const uint32_t hidden = f->m->config.hidden;
    const struct st_rmsnorm norm = st_frame_rmsnorm(f);

    if (f->m->config.norm != ST_NORM_LAYERNORM)
        return f->ops->rmsnorm_backward(f->dev, &norm, dx, st_frame_grad(f, at), dy, dy_dt, x, stats, st_frame_weight(f, at),
                                        residual);
    return f->ops->layernorm_backward(f->dev, dx, st_frame_grad(f, at), st_frame_grad(f, f->tensors[weight + 1].offset), dy,
                                      dy_dt, x, stats, st_frame_weight(f, at), residual, f->rows, hidden, f->dt);
}

static strata_status embed_forward(const struct st_frame *f)
{
    void *act = (void *)(uintptr_t)f->call->act; /* this call reads and writes it */
    const uint32_t hidden = f->m->config.hidden;

    return f->ops->embed_add_position(f->dev, act, st_frame_weight(f, (uint64_t)f->first * hidden), f->call->positions, f->rows,
                                      f->seq, hidden, f->dt);
}

static strata_status embed_backward(const struct st_frame *f)
{
    if (f->call->grad == NULL)
        return STRATA_OK;
    return f->ops->embed_position_backward(f->dev, f->call->grad, f->call->dact, f->call->positions, f->rows, f->seq,
                                           f->m->config.hidden, f->dt);
}

/* The rows of a generation call must fit into the workspace, and their positions into the cache. */
static strata_status check_rows(const struct st_model *m, const struct st_call *call)
{
    if (!m->batch.generate)
        return STRATA_OK;
    if (call->rows == 0 || call->rows > m->batch.seq)
        return st_error(STRATA_E_INVAL, "model %s: %u tokens at once; 1 to %u are possible", m->config.name, call->rows,
                        m->batch.seq);
    if ((uint64_t)call->position + call->rows > m->batch.context)
        return st_error(STRATA_E_INVAL, "model %s: %u tokens from position %u on exceed the cache of %u tokens", m->config.name,
                        call->rows, call->position, m->batch.context);
    return STRATA_OK;
}

/* Zeroes elements from `first` up to `end`. */
static strata_status zero_grad(const struct st_frame *f, uint64_t first, uint64_t end)
{
    assert(first <= end && end <= f->call->grad_elems);
    return first == end ? STRATA_OK : f->ops->zero(f->dev, f->call->grad + first, (end - first) * sizeof(float));
}

/* The page's sum has a first micro-batch, whose products write what they compute whole: zeroes the rest, which is added to. */
static strata_status begin_sum(const struct st_frame *f, uint32_t page)
{
    struct st_span runs[ST_WRITTEN_MAX];
    const uint32_t count = st_model_written(f->m, page, runs);
    uint64_t done = 0;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        st = zero_grad(f, done, runs[i].offset);
        done = runs[i].offset + runs[i].elems;
    }
    return st == STRATA_OK ? zero_grad(f, done, f->call->grad_elems) : st;
}

strata_status st_decoder_run(void *model, const struct st_call *call)
{
    const struct st_model *m = model;
    const uint32_t page = call->page != ST_NO_PAGE ? call->page : m->at.norm;
    const struct st_frame f = frame_of(m, call, page);
    strata_status st = check_rows(m, call);

    if (st == STRATA_OK && call->first && call->grad != NULL)
        st = begin_sum(&f, page);
    if (st != STRATA_OK)
        return st;
    switch (call->kind) {
    case ST_CALL_EMBED_FORWARD:
        return embed_forward(&f);
    case ST_CALL_EMBED_BACKWARD:
        return embed_backward(&f);
    case ST_CALL_BLOCK_FORWARD:
        return st_block_forward(&f);
    case ST_CALL_BLOCK_BACKWARD:
        return st_block_backward(&f);
    case ST_CALL_HEAD_NORM:
        return st_head_norm(&f);
    case ST_CALL_HEAD_STATS:
        return st_head_stats(&f);
    case ST_CALL_HEAD_LOSS:
        return st_head_loss(&f);
    case ST_CALL_HEAD_GRAD:
        return st_head_grad(&f);
    case ST_CALL_HEAD_BACKWARD:
        return st_head_backward(&f);
    case ST_CALL_ROUTE_FORWARD:
    case ST_CALL_EXPERTS_FORWARD:
    case ST_CALL_ROUTE_END:
    case ST_CALL_ROUTE_AGAIN:
    case ST_CALL_EXPERTS_BACKWARD:
    case ST_CALL_ROUTE_BACKWARD:
        return st_experts_run(&f);
    }
    return st_error(STRATA_E_INTERNAL, "decoder: no such call (%d)", (int)call->kind);
}
