/* tests/offload/device_mirror.c - see device_mirror.h. */
#include "tests/offload/device_mirror.h"
#include "tests/offload/device_fixture.h"
#include <assert.h>
#include <stdlib.h>

struct mirror {
    struct st_device base;
    const struct st_device_ops *ops; /* the real device's */
    struct st_device *inner;
    unsigned char *shadow; /* [bytes] host */
    uint64_t bytes, used;
};

static const struct st_device_ops mirror_ops;

/* Where on the device lies what the caller sees at `p`. */
static void *at(const struct mirror *m, const void *p)
{
    const uint64_t offset = (uint64_t)((uintptr_t)p - (uintptr_t)m->shadow);

    if (p == NULL)
        return NULL;
    assert((uintptr_t)p >= (uintptr_t)m->shadow && offset < m->used);
    return m->ops->arena(m->inner) + offset;
}

static struct mirror *enter(struct st_device *dev)
{
    struct mirror *m = (struct mirror *)(void *)dev;
    strata_status st = m->ops->upload(m->inner, m->ops->arena(m->inner), m->shadow, m->used);

    if (st == STRATA_OK)
        st = m->ops->finish(m->inner, ST_QUEUE_UPLOAD);
    assert(st == STRATA_OK);
    return m;
}

static strata_status leave(struct mirror *m, strata_status st)
{
    if (st == STRATA_OK)
        st = m->ops->finish(m->inner, ST_QUEUE_COMPUTE);
    if (st == STRATA_OK)
        st = m->ops->finish(m->inner, ST_QUEUE_UPDATE);
    if (st == STRATA_OK)
        st = m->ops->download(m->inner, m->shadow, m->ops->arena(m->inner), m->used);
    if (st == STRATA_OK)
        st = m->ops->finish(m->inner, ST_QUEUE_DOWNLOAD);
    return st;
}

static void mirror_close(struct st_device *dev)
{
    struct mirror *m = (struct mirror *)(void *)dev;

    m->ops->close(m->inner);
    free(m->shadow);
    free(m);
}

strata_status df_mirror_open(struct st_device **out, struct st_op_times *times, const struct st_device_ops *inner,
                             const struct st_device_opts *opts)
{
    struct mirror *m = calloc(1, sizeof(*m));
    strata_status st;

    assert(m != NULL);
    m->base.ops = &mirror_ops;
    m->bytes = opts->arena_bytes;
    st = df_open_timed(&m->inner, times, inner, opts);
    if (st != STRATA_OK) {
        free(m);
        return st;
    }
    m->ops = m->inner->ops;
    m->shadow = aligned_alloc(4096, (m->bytes + 4095) / 4096 * 4096);
    assert(m->shadow != NULL);
    if (m->ops->pin != NULL)
        st = m->ops->pin(m->inner, m->shadow, m->bytes, NULL);
    assert(st == STRATA_OK);
    *out = &m->base;
    return STRATA_OK;
}

void df_mirror_use(struct st_device *dev, uint64_t bytes)
{
    struct mirror *m = (struct mirror *)(void *)dev;

    if (dev->ops != &mirror_ops)
        return;
    assert(bytes <= m->bytes);
    m->used = bytes;
}

static unsigned char *mirror_arena(struct st_device *dev)
{
    return ((struct mirror *)(void *)dev)->shadow;
}

static strata_status mirror_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct mirror *m = enter(dev);
    strata_status st = m->ops->upload(m->inner, at(m, dst), src, bytes);

    return leave(m, st == STRATA_OK ? m->ops->finish(m->inner, ST_QUEUE_UPLOAD) : st);
}

static strata_status mirror_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct mirror *m = enter(dev);
    strata_status st = m->ops->download(m->inner, dst, at(m, src), bytes);

    return st == STRATA_OK ? m->ops->finish(m->inner, ST_QUEUE_DOWNLOAD) : st;
}

static strata_status mirror_finish(struct st_device *dev, enum st_queue queue)
{
    struct mirror *m = (struct mirror *)(void *)dev;

    return m->ops->finish(m->inner, queue);
}

static strata_status mirror_zero(struct st_device *dev, void *dst, uint64_t bytes)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->zero(m->inner, at(m, dst), bytes));
}

static strata_status mirror_copy(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->copy(m->inner, at(m, dst), at(m, src), bytes));
}

static strata_status mirror_matmul(struct st_device *dev, const struct st_matmul *mm, void *c, const void *a, const void *b,
                                   const void *bias)
{
    struct mirror *m = enter(dev);
    struct st_matmul inner = *mm;

    inner.aux = at(m, mm->aux);
    return leave(m, m->ops->tensors->matmul(m->inner, &inner, at(m, c), at(m, a), at(m, b), at(m, bias)));
}

static strata_status mirror_bias_backward(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                          strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->bias_backward(m->inner, at(m, dbias), at(m, dy), rows, cols, dt));
}

static strata_status mirror_layernorm_forward(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                              const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols,
                                              float eps, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->layernorm_forward(m->inner, at(m, y), at(m, stats), at(m, x), at(m, weight), at(m, bias),
                                                       at(m, addend), at(m, sum), rows, cols, eps, dt));
}

static strata_status mirror_layernorm_backward(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                               strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                               const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->layernorm_backward(m->inner, at(m, dx), at(m, dweight), at(m, dbias), at(m, dy), dy_dt,
                                                        at(m, x), at(m, stats), at(m, weight), at(m, residual), rows, cols, dt));
}

static strata_status mirror_rmsnorm_forward(struct st_device *dev, const struct st_rmsnorm *norm, void *y, float *stats,
                                            const void *x, const void *weight, const void *addend, void *sum)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->rmsnorm_forward(m->inner, norm, at(m, y), at(m, stats), at(m, x), at(m, weight),
                                                     at(m, addend), at(m, sum)));
}

static strata_status mirror_rmsnorm_backward(struct st_device *dev, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                             const void *dy, strata_dtype dy_dt, const void *x, const float *stats,
                                             const void *weight, const void *residual)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->rmsnorm_backward(m->inner, norm, at(m, dx), at(m, dweight), at(m, dy), dy_dt, at(m, x),
                                                      at(m, stats), at(m, weight), at(m, residual)));
}

static strata_status mirror_rope(struct st_device *dev, const struct st_rope *rope, void *x)
{
    struct mirror *m = enter(dev);
    struct st_rope inner = *rope;

    inner.table = at(m, rope->table);
    inner.positions = at(m, rope->positions);
    return leave(m, m->ops->tensors->rope(m->inner, &inner, at(m, x)));
}

static strata_status mirror_gated_forward(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                          uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->gated_forward(m->inner, activation, at(m, y), at(m, gate_up), rows, ffn, dt));
}

static strata_status mirror_gated_backward(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y,
                                           const void *dy, const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->gated_backward(m->inner, activation, at(m, dgate_up), at(m, y), at(m, dy), at(m, gate_up),
                                                    rows, ffn, dt));
}

static strata_status mirror_activation_forward(struct st_device *dev, enum st_activation activation, void *y, const void *x,
                                               uint64_t elems, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->activation_forward(m->inner, activation, at(m, y), at(m, x), elems, dt));
}

static strata_status mirror_activation_backward(struct st_device *dev, enum st_activation activation, void *dx, const void *dy,
                                                const void *x, uint64_t elems, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->activation_backward(m->inner, activation, at(m, dx), at(m, dy), at(m, x), elems, dt));
}

static strata_status mirror_cast(struct st_device *dev, const struct st_cast *cast, void *to, const void *from)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->cast(m->inner, cast, at(m, to), at(m, from)));
}

static strata_status mirror_dropout(struct st_device *dev, const struct st_dropout *d, float *to, const void *from)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->dropout(m->inner, d, at(m, to), at(m, from)));
}

static strata_status mirror_scale(struct st_device *dev, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->scale(m->inner, at(m, y), at(m, x), factor, elems, dt));
}

static strata_status mirror_nf4_widen(struct st_device *dev, void *y, const struct st_nf4_block *x, uint64_t elems,
                                      strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->nf4_widen(m->inner, at(m, y), at(m, x), elems, dt));
}

static strata_status mirror_add(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->add(m->inner, at(m, y), at(m, a), at(m, b), elems, dt));
}

/* A function of the shape alone, which no device is named for: of the one that these tests are built for. */
static uint64_t mirror_attention_workspace(const struct st_attention *attention, uint32_t workers)
{
    return st_device_find(DF_DEVICE)->tensors->attention_workspace(attention, workers);
}

static struct st_attention inner_attention(const struct mirror *m, const struct st_attention *attention)
{
    struct st_attention inner = *attention;

    inner.positions = at(m, attention->positions);
    inner.sinks = at(m, attention->sinks);
    return inner;
}

static strata_status mirror_attention_forward(struct st_device *dev, const struct st_attention *attention, void *out, float *lse,
                                              const void *qkv, void *workspace)
{
    struct mirror *m = enter(dev);
    const struct st_attention inner = inner_attention(m, attention);

    return leave(m, m->ops->tensors->attention_forward(m->inner, &inner, at(m, out), at(m, lse), at(m, qkv), at(m, workspace)));
}

static strata_status mirror_attention_backward(struct st_device *dev, const struct st_attention *attention, void *dqkv,
                                               const void *dout, const void *out, const float *lse, const void *qkv,
                                               void *workspace)
{
    struct mirror *m = enter(dev);
    const struct st_attention inner = inner_attention(m, attention);

    return leave(m, m->ops->tensors->attention_backward(m->inner, &inner, at(m, dqkv), at(m, dout), at(m, out), at(m, lse),
                                                        at(m, qkv), at(m, workspace)));
}

static strata_status mirror_attention_cached(struct st_device *dev, const struct st_attention *attention, void *out, void *keys,
                                             void *values, const void *qkv, uint32_t first, uint32_t rows, void *workspace)
{
    struct mirror *m = enter(dev);
    const struct st_attention inner = inner_attention(m, attention);

    return leave(m, m->ops->tensors->attention_cached(m->inner, &inner, at(m, out), at(m, keys), at(m, values), at(m, qkv), first,
                                                      rows, at(m, workspace)));
}

static strata_status mirror_attention_sinks_backward(struct st_device *dev, const struct st_attention *attention, float *dsinks,
                                                     const void *dout, const void *out, const float *lse)
{
    struct mirror *m = enter(dev);
    const struct st_attention inner = inner_attention(m, attention);

    return leave(m,
                 m->ops->tensors->attention_sinks_backward(m->inner, &inner, at(m, dsinks), at(m, dout), at(m, out), at(m, lse)));
}

static strata_status mirror_route_choose(struct st_device *dev, const struct st_route *route, int32_t *ids, float *weights,
                                         float *probs, const void *logits)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->route_choose(m->inner, route, at(m, ids), at(m, weights), at(m, probs), at(m, logits)));
}

static strata_status mirror_route_sort(struct st_device *dev, const struct st_route *route, int32_t *order, int32_t *places,
                                       int32_t *offsets, const int32_t *ids)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->route_sort(m->inner, route, at(m, order), at(m, places), at(m, offsets), at(m, ids)));
}

static strata_status mirror_route_totals(struct st_device *dev, const struct st_route *route, int64_t *counts, double *sums,
                                         const int32_t *ids, const float *probs)
{
    struct mirror *m = enter(dev);
    struct st_route inner = *route;

    inner.targets = at(m, route->targets);
    return leave(m, m->ops->tensors->route_totals(m->inner, &inner, at(m, counts), at(m, sums), at(m, ids), at(m, probs)));
}

static strata_status mirror_route_loss(struct st_device *dev, const struct st_route *route, double *loss, const int64_t *counts,
                                       const double *sums)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->route_loss(m->inner, route, at(m, loss), at(m, counts), at(m, sums)));
}

static strata_status mirror_route_backward(struct st_device *dev, const struct st_route *route, void *dlogits,
                                           const float *dweights, const float *probs, const int32_t *ids, const float *weights,
                                           const int64_t *counts, float aux)
{
    struct mirror *m = enter(dev);
    struct st_route inner = *route;

    inner.targets = at(m, route->targets);
    return leave(m, m->ops->tensors->route_backward(m->inner, &inner, at(m, dlogits), at(m, dweights), at(m, probs), at(m, ids),
                                                    at(m, weights), at(m, counts), aux));
}

static strata_status mirror_experts_gather(struct st_device *dev, const struct st_experts *of, void *to, const void *x,
                                           const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->experts_gather(m->inner, of, at(m, to), at(m, x), at(m, order), at(m, offsets), cols, dt));
}

static strata_status mirror_experts_matmul(struct st_device *dev, const struct st_expert_matmul *mm, void *c, const void *a,
                                           const void *b, const void *bias, const int32_t *offsets)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->experts_matmul(m->inner, mm, at(m, c), at(m, a), at(m, b), at(m, bias), at(m, offsets)));
}

static strata_status mirror_experts_cast(struct st_device *dev, const struct st_expert_cast *cast, void *to, const void *from,
                                         const int32_t *offsets)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->experts_cast(m->inner, cast, at(m, to), at(m, from), at(m, offsets)));
}

static strata_status mirror_experts_bias_backward(struct st_device *dev, const struct st_experts *of, float *dbias,
                                                  uint64_t stride, const void *dy, const int32_t *offsets, uint32_t cols,
                                                  strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m,
                 m->ops->tensors->experts_bias_backward(m->inner, of, at(m, dbias), stride, at(m, dy), at(m, offsets), cols, dt));
}

static strata_status mirror_experts_gated_forward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                  void *y, const void *gate_up, const int32_t *offsets, uint32_t ffn,
                                                  strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m,
                 m->ops->tensors->experts_gated_forward(m->inner, of, gate, at(m, y), at(m, gate_up), at(m, offsets), ffn, dt));
}

static strata_status mirror_experts_gated_backward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                   void *dgate_up, void *y, const void *dy, const void *gate_up,
                                                   const int32_t *offsets, uint32_t ffn, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->experts_gated_backward(m->inner, of, gate, at(m, dgate_up), at(m, y), at(m, dy),
                                                            at(m, gate_up), at(m, offsets), ffn, dt));
}

static strata_status mirror_experts_add(struct st_device *dev, const struct st_experts *of, float *sum, const void *y,
                                        const float *weights, const int32_t *order, const int32_t *places, const int32_t *offsets,
                                        uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->experts_add(m->inner, of, at(m, sum), at(m, y), at(m, weights), at(m, order), at(m, places),
                                                 at(m, offsets), cols, dt));
}

static strata_status mirror_experts_add_backward(struct st_device *dev, const struct st_experts *of, void *dy, float *dweights,
                                                 const void *d, const void *y, const float *weights, const int32_t *order,
                                                 const int32_t *offsets, uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->experts_add_backward(m->inner, of, at(m, dy), at(m, dweights), at(m, d), at(m, y),
                                                          at(m, weights), at(m, order), at(m, offsets), cols, dt));
}

static strata_status mirror_shared_forward(struct st_device *dev, float *sum, const void *y, const void *logits, uint32_t rows,
                                           uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->shared_forward(m->inner, at(m, sum), at(m, y), at(m, logits), rows, cols, dt));
}

static strata_status mirror_shared_backward(struct st_device *dev, void *dy, void *dlogits, const void *d, const void *y,
                                            const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->shared_backward(m->inner, at(m, dy), at(m, dlogits), at(m, d), at(m, y), at(m, logits), rows,
                                                     cols, dt));
}

static strata_status mirror_clip(struct st_device *dev, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                                 strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->clip(m->inner, at(m, x), limit, rows, cols, stride, dt));
}

static strata_status mirror_clip_backward(struct st_device *dev, void *dx, const void *x, float limit, uint32_t rows,
                                          uint32_t cols, uint32_t stride, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->clip_backward(m->inner, at(m, dx), at(m, x), limit, rows, cols, stride, dt));
}

static strata_status mirror_embed_gather(struct st_device *dev, void *out, const void *table, const int32_t *tokens,
                                         uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m,
                 m->ops->embed_gather(m->inner, at(m, out), at(m, table), at(m, tokens), rows, cols, row_first, row_count, dt));
}

static strata_status mirror_embed_add_position(struct st_device *dev, void *x, const void *pos, const int32_t *positions,
                                               uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->embed_add_position(m->inner, at(m, x), at(m, pos), at(m, positions), rows, seq, cols, dt));
}

static strata_status mirror_embed_position_backward(struct st_device *dev, float *dpos, const void *dx, const int32_t *positions,
                                                    uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(
        m, m->ops->tensors->embed_position_backward(m->inner, at(m, dpos), at(m, dx), at(m, positions), rows, seq, cols, dt));
}

static strata_status mirror_embed_scatter(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens,
                                          uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m,
                 m->ops->embed_scatter(m->inner, at(m, dtable), at(m, dx), at(m, tokens), rows, cols, row_first, row_count, dt));
}

static strata_status mirror_xent_stats(struct st_device *dev, float *stats, const float *logits, const int32_t *targets,
                                       uint32_t rows, uint32_t cols, uint32_t first, float softcap)
{
    struct mirror *m = enter(dev);

    return leave(m,
                 m->ops->tensors->xent_stats(m->inner, at(m, stats), at(m, logits), at(m, targets), rows, cols, first, softcap));
}

static strata_status mirror_xent_grad(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                                      const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale,
                                      float softcap, strata_dtype dt)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->xent_grad(m->inner, at(m, dlogits), at(m, logits), at(m, stats), at(m, targets), rows, cols,
                                               first, scale, softcap, dt));
}

static strata_status mirror_xent_loss(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets,
                                      uint32_t rows)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->tensors->xent_loss(m->inner, at(m, loss_sum), at(m, stats), at(m, targets), rows));
}

static strata_status mirror_reduce(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    struct mirror *m = enter(dev);

    return leave(m, m->ops->reduce(m->inner, at(m, sum), at(m, addend), dt, elems));
}

static strata_status mirror_grad_finish(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                        double *block_sums, double *norm2, uint64_t *nonfinite)
{
    struct mirror *m = enter(dev);

    return leave(
        m, m->ops->grad_finish(m->inner, at(m, out), dt, at(m, acc), elems, at(m, block_sums), at(m, norm2), at(m, nonfinite)));
}

static strata_status mirror_update(struct st_device *dev, void *weight, int16_t *low_half, float *master,
                                   const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                                   const struct st_update_coef *coef, uint64_t *overflowed)
{
    struct mirror *m = enter(dev);
    struct st_moments inner = *moments;

    inner.moment1 = at(m, moments->moment1);
    inner.moment2 = at(m, moments->moment2);
    return leave(m, m->ops->update(m->inner, at(m, weight), at(m, low_half), at(m, master), &inner, at(m, grad), dt, elems, coef,
                                   at(m, overflowed)));
}

static const struct st_tensor_ops mirror_tensors = {
    .zero = mirror_zero,
    .matmul = mirror_matmul,
    .bias_backward = mirror_bias_backward,
    .layernorm_forward = mirror_layernorm_forward,
    .layernorm_backward = mirror_layernorm_backward,
    .rmsnorm_forward = mirror_rmsnorm_forward,
    .rmsnorm_backward = mirror_rmsnorm_backward,
    .rope = mirror_rope,
    .gated_forward = mirror_gated_forward,
    .gated_backward = mirror_gated_backward,
    .activation_forward = mirror_activation_forward,
    .activation_backward = mirror_activation_backward,
    .add = mirror_add,
    .cast = mirror_cast,
    .dropout = mirror_dropout,
    .scale = mirror_scale,
    .nf4_widen = mirror_nf4_widen,
    .attention_workspace = mirror_attention_workspace,
    .attention_forward = mirror_attention_forward,
    .attention_backward = mirror_attention_backward,
    .attention_cached = mirror_attention_cached,
    .attention_sinks_backward = mirror_attention_sinks_backward,
    .route_choose = mirror_route_choose,
    .route_sort = mirror_route_sort,
    .route_totals = mirror_route_totals,
    .route_loss = mirror_route_loss,
    .route_backward = mirror_route_backward,
    .experts_gather = mirror_experts_gather,
    .experts_matmul = mirror_experts_matmul,
    .experts_cast = mirror_experts_cast,
    .experts_bias_backward = mirror_experts_bias_backward,
    .experts_gated_forward = mirror_experts_gated_forward,
    .experts_gated_backward = mirror_experts_gated_backward,
    .experts_add = mirror_experts_add,
    .experts_add_backward = mirror_experts_add_backward,
    .shared_forward = mirror_shared_forward,
    .shared_backward = mirror_shared_backward,
    .clip = mirror_clip,
    .clip_backward = mirror_clip_backward,
    .embed_add_position = mirror_embed_add_position,
    .embed_position_backward = mirror_embed_position_backward,
    .xent_stats = mirror_xent_stats,
    .xent_grad = mirror_xent_grad,
    .xent_loss = mirror_xent_loss,
};

static const struct st_device_ops mirror_ops = {
    .name = "mirror",
    .tensors = &mirror_tensors,
    .close = mirror_close,
    .arena = mirror_arena,
    .upload = mirror_upload,
    .download = mirror_download,
    .finish = mirror_finish,
    .zero = mirror_zero,
    .copy = mirror_copy,
    .embed_gather = mirror_embed_gather,
    .embed_scatter = mirror_embed_scatter,
    .reduce = mirror_reduce,
    .grad_finish = mirror_grad_finish,
    .update = mirror_update,
};
