/* offload/device/cpu/device_cpu_internal.h - shared by the files of the cpu device; no other file includes it.
 *
 * Every op is one parallel loop over items whose extent depends only on the operands' shapes; each result is written by one item,
 * so neither the number of workers nor the order of items affects the bits.  Nothing is allocated after open, except what
 * st_matmul_prepare needs at the first use of a shape. */
#ifndef OFFLOAD_DEVICE_CPU_DEVICE_CPU_INTERNAL_H
#define OFFLOAD_DEVICE_CPU_DEVICE_CPU_INTERNAL_H

#include "core/system/arena.h"
#include "core/system/workers.h"
#include "kernels/ops/ops.h"
#include "offload/device/device.h"
#include "offload/device/tensor_ops.h"

/* One direction of the link to the device; slower than memory if a limit is set. */
struct cpu_link {
    double limit;     /* bytes per second; 0: none */
    uint64_t late_ns; /* how much too long the last copy slept; subtracted from the next one */
};

struct cpu_device {
    struct st_device base; /* first member: st_device * is cpu_device * */
    struct st_arena arena;
    struct st_workers *workers;       /* borrowed */
    const struct st_kernels *kernels; /* borrowed */
    const struct st_ops *ops;         /* borrowed: kernels->ops */
    struct st_matmul_engine *matmul;
    struct cpu_link upload, download;
};

static inline struct cpu_device *cpu_of(struct st_device *dev)
{
    return (struct cpu_device *)(void *)dev;
}

/* Item `index` of `total` elements cut into runs of `step`. */
struct st_run {
    uint64_t first, count;
};

static inline struct st_run st_run_at(uint64_t index, uint64_t step, uint64_t total)
{
    const uint64_t first = index * step;

    return (struct st_run){first, total - first < step ? total - first : step};
}

static inline uint64_t st_run_count(uint64_t step, uint64_t total)
{
    return (total + step - 1) / step;
}

#define ST_ITEM_ELEMS   32768u /* elements of an item: 10 to 50 us, and both halves of a cache line stay with one worker    \ */
#define ST_ITEM_COLUMNS 32u    /* columns that an item sums: two cache lines of fp32 */

static inline uint64_t st_rows_per_item(uint32_t cols)
{
    return cols < ST_ITEM_ELEMS ? ST_ITEM_ELEMS / cols : 1;
}

/* Element i. */
static inline const void *st_elem(const void *p, uint64_t i, strata_dtype dt)
{
    return (const char *)p + i * strata_dtype_bytes(dt);
}

static inline void *st_elem_mut(void *p, uint64_t i, strata_dtype dt)
{
    return (char *)p + i * strata_dtype_bytes(dt);
}

/** Whether matmuls widen operands of `dt` to fp32. */
bool st_cpu_widens(const struct cpu_device *cpu, strata_dtype dt);
/** Call st_matmul_prepare, with a sentence on failure. */
strata_status st_cpu_prepare(struct cpu_device *cpu, int *id, const struct st_matmul *mm);
/** Turn a status of oneDNN into ours, with a sentence; OK for 0.  `site` is the call's fault site. */
strata_status st_cpu_matmul_status(const char *site, int rc);

/* device_cpu_matmul.c */
strata_status st_cpu_matmul(struct st_device *dev, const struct st_matmul *mm, void *c, const void *a, const void *b,
                            const void *bias);

/* device_cpu_attention.c */
static inline float st_cpu_attention_scale(const struct st_attention *at)
{
    return at->scale != 0.0f ? at->scale : 1.0f / __builtin_sqrtf((float)at->head_dim);
}

/* The head's, -INFINITY if there are none. */
static inline float st_cpu_attention_sink(const struct st_ops *ops, const struct st_attention *at, uint64_t head)
{
    float sink = -__builtin_inff();

    if (at->sinks != NULL)
        ops->widen_rows(&sink, 1, st_elem(at->sinks, head, at->dt), 1, 1, 1, at->dt);
    return sink;
}

uint64_t st_cpu_attention_workspace(const struct st_attention *at, uint32_t workers);
strata_status st_cpu_attention_forward(struct st_device *dev, const struct st_attention *at, void *out, float *lse,
                                       const void *qkv, void *workspace);
strata_status st_cpu_attention_backward(struct st_device *dev, const struct st_attention *at, void *dqkv, const void *dout,
                                        const void *out, const float *lse, const void *qkv, void *workspace);
strata_status st_cpu_attention_sinks_backward(struct st_device *dev, const struct st_attention *at, float *dsinks,
                                              const void *dout, const void *out, const float *lse);

/* device_cpu_cached.c */
strata_status st_cpu_attention_cached(struct st_device *dev, const struct st_attention *at, void *out, void *keys, void *values,
                                      const void *qkv, uint32_t first, uint32_t rows, void *workspace);

/* device_cpu_experts.c */
strata_status st_cpu_route_choose(struct st_device *dev, const struct st_route *route, int32_t *ids, float *weights, float *probs,
                                  const void *logits);
strata_status st_cpu_route_sort(struct st_device *dev, const struct st_route *route, int32_t *order, int32_t *places,
                                int32_t *offsets, const int32_t *ids);
strata_status st_cpu_route_totals(struct st_device *dev, const struct st_route *route, int64_t *counts, double *sums,
                                  const int32_t *ids, const float *probs);
strata_status st_cpu_route_loss(struct st_device *dev, const struct st_route *route, double *loss, const int64_t *counts,
                                const double *sums);
strata_status st_cpu_route_backward(struct st_device *dev, const struct st_route *route, void *dlogits, const float *dweights,
                                    const float *probs, const int32_t *ids, const float *weights, const int64_t *counts,
                                    float aux);
strata_status st_cpu_experts_gather(struct st_device *dev, const struct st_experts *of, void *to, const void *x,
                                    const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt);
strata_status st_cpu_experts_bias_backward(struct st_device *dev, const struct st_experts *of, float *dbias, uint64_t stride,
                                           const void *dy, const int32_t *offsets, uint32_t cols, strata_dtype dt);
strata_status st_cpu_experts_cast(struct st_device *dev, const struct st_expert_cast *cast, void *to, const void *from,
                                  const int32_t *offsets);
strata_status st_cpu_experts_gated_forward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                           void *y, const void *gate_up, const int32_t *offsets, uint32_t ffn, strata_dtype dt);
strata_status st_cpu_experts_gated_backward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                            void *dgate_up, void *y, const void *dy, const void *gate_up, const int32_t *offsets,
                                            uint32_t ffn, strata_dtype dt);
strata_status st_cpu_experts_add(struct st_device *dev, const struct st_experts *of, float *sum, const void *y,
                                 const float *weights, const int32_t *order, const int32_t *places, const int32_t *offsets,
                                 uint32_t cols, strata_dtype dt);
strata_status st_cpu_experts_add_backward(struct st_device *dev, const struct st_experts *of, void *dy, float *dweights,
                                          const void *d, const void *y, const float *weights, const int32_t *order,
                                          const int32_t *offsets, uint32_t cols, strata_dtype dt);
strata_status st_cpu_shared_forward(struct st_device *dev, float *sum, const void *y, const void *logits, uint32_t rows,
                                    uint32_t cols, strata_dtype dt);
strata_status st_cpu_shared_backward(struct st_device *dev, void *dy, void *dlogits, const void *d, const void *y,
                                     const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt);
strata_status st_cpu_clip(struct st_device *dev, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                          strata_dtype dt);
strata_status st_cpu_clip_backward(struct st_device *dev, void *dx, const void *x, float limit, uint32_t rows, uint32_t cols,
                                   uint32_t stride, strata_dtype dt);

/* device_cpu_grouped.c */
strata_status st_cpu_experts_matmul(struct st_device *dev, const struct st_expert_matmul *mm, void *c, const void *a,
                                    const void *b, const void *bias, const int32_t *offsets);

/* device_cpu_llama.c */
strata_status st_cpu_rmsnorm_forward(struct st_device *dev, const struct st_rmsnorm *norm, void *y, float *stats, const void *x,
                                     const void *weight, const void *addend, void *sum);
strata_status st_cpu_rmsnorm_backward(struct st_device *dev, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                      const void *dy, strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                      const void *residual);
strata_status st_cpu_rope(struct st_device *dev, const struct st_rope *rope, void *x);
strata_status st_cpu_gated_forward(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                   uint32_t rows, uint32_t ffn, strata_dtype dt);
strata_status st_cpu_gated_backward(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y, const void *dy,
                                    const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt);

/* device_cpu_ops.c */
strata_status st_cpu_bias_backward(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                   strata_dtype dt);
strata_status st_cpu_layernorm_forward(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                       const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols, float eps,
                                       strata_dtype dt);
strata_status st_cpu_layernorm_backward(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                        strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                        const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt);
strata_status st_cpu_activation_forward(struct st_device *dev, enum st_activation activation, void *y, const void *x,
                                        uint64_t elems, strata_dtype dt);
strata_status st_cpu_activation_backward(struct st_device *dev, enum st_activation activation, void *dx, const void *dy,
                                         const void *x, uint64_t elems, strata_dtype dt);
strata_status st_cpu_add(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt);
strata_status st_cpu_scale(struct st_device *dev, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt);
strata_status st_cpu_dropout(struct st_device *dev, const struct st_dropout *d, float *to, const void *from);
strata_status st_cpu_cast(struct st_device *dev, const struct st_cast *cast, void *to, const void *from);
strata_status st_cpu_thin(struct st_device *dev, const struct st_thin *t, float *c, void *to, const void *p, const void *q);
strata_status st_cpu_nf4_widen(struct st_device *dev, void *y, const struct st_nf4_block *x, uint64_t elems, strata_dtype dt);
strata_status st_cpu_embed_gather(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                  uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);
strata_status st_cpu_embed_add_position(struct st_device *dev, void *x, const void *pos, const int32_t *positions, uint32_t rows,
                                        uint32_t seq, uint32_t cols, strata_dtype dt);
strata_status st_cpu_embed_position_backward(struct st_device *dev, float *dpos, const void *dx, const int32_t *positions,
                                             uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt);
strata_status st_cpu_embed_scatter(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens, uint32_t rows,
                                   uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);
strata_status st_cpu_xent_stats(struct st_device *dev, float *stats, const float *logits, const int32_t *targets, uint32_t rows,
                                uint32_t cols, uint32_t first, float softcap);
strata_status st_cpu_xent_grad(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                               const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale, float softcap,
                               strata_dtype dt);
strata_status st_cpu_xent_loss(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets,
                               uint32_t rows);

#endif
