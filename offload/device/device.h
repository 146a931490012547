/* offload/device/device.h - where forward, backward and resident updates run: a table of functions.
 *
 * `cpu` is a real device: a capped arena of its own, copies and compute spread over the workers, optional limits of the
 * two links so that a slow PCIe can be rehearsed.  `paced`, for benches and tests, moves real bytes and computes by waiting
 * (offload/device/paced/device_paced.h).  `cuda` is an NVIDIA GPU (offload/device/cuda/device_cuda_internal.h), where the build
 * has the toolkit.
 *
 * Calls enqueue on the queue of their kind (upload(), download(), update(); all others compute) and each queue runs in order; on
 * a device without notify() they are done when they return.  What a call's pointers name stays untouched until then; structs
 * given by pointer (st_matmul, st_attention, st_moments, st_update_coef) are copied by the call.  One thread calls at a time.
 * finish() waits for a queue; between queues there is no order but what finish() and notify() report.  All pointers named
 * "device" lie inside the arena, and so do all of compute's but the structs; on `cuda` the host cannot follow them.
 *
 * Activations, weights and activation gradients have dtype `dt` (BF16, F16 or F32); gradients of parameters accumulate in
 * F32.  Tile shapes are functions of the operands' shapes alone, so results never depend on budgets or thread count. */
#ifndef OFFLOAD_DEVICE_DEVICE_H
#define OFFLOAD_DEVICE_DEVICE_H

#include "kernels/kernels.h"
#include "kernels/matmul/matmul.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

struct st_device;
struct st_machine;
struct st_topology;
struct st_workers;

enum st_queue { ST_QUEUE_COMPUTE, ST_QUEUE_UPDATE, ST_QUEUE_UPLOAD, ST_QUEUE_DOWNLOAD, ST_QUEUE_COUNT };

struct st_device_opts {
    uint64_t arena_bytes;                /* device memory to take, exactly the plan's */
    uint32_t index;                      /* cuda: which GPU, from 0 */
    struct st_workers *workers;          /* borrowed: cpu device */
    const struct st_kernels *kernels;    /* borrowed */
    bool widen_bf16;                     /* tests: compute as on a processor without native bf16 */
    const struct st_topology *topology;  /* borrowed during open: cpu device, memory near its workers; may be NULL */
    double upload_limit, download_limit; /* bytes per second; cpu: no copy is faster than this; 0: no limit */
    const struct st_machine *pace;       /* copied during open: paced, the machine it keeps the pace of */
};

/* What a device with memory of its own has. */
struct st_device_memory {
    char name[64];
    uint64_t total, free;
    uint64_t usable; /* the largest arena that may be asked for now */
};

/* Multi-head causal attention over packed q,k,v rows. */
struct st_attention {
    uint32_t batch, seq, heads, kv_heads, head_dim;
    uint32_t qkv_stride; /* elements between rows of qkv and of dqkv; q at 0, k at heads*d, v at (heads+kv_heads)*d */
    uint32_t out_stride; /* elements between rows of out and dout */
    strata_dtype dt;
};

struct st_device_ops {
    const char *name;
    strata_status (*open)(struct st_device **out, const struct st_device_opts *opts);
    void (*close)(struct st_device *dev);
    unsigned char *(*arena)(struct st_device *dev); /* base device address */
    /* Optional (NULL: the arena is RAM, and one device is all there is).  E_NOSYS: no such device, with the reason. */
    strata_status (*memory)(uint32_t index, struct st_device_memory *out);
    /* Optional, both or none: the caller's host memory that copies will come from and go to, until unpin() or close().  Where
     * the system refuses to pin it a line says so, the status is OK, and copies are slower.  unpin() waits for copies. */
    strata_status (*pin)(struct st_device *dev, void *base, uint64_t bytes);
    void (*unpin)(struct st_device *dev, void *base);

    strata_status (*upload)(struct st_device *dev, void *dst_device, const void *src_host, uint64_t bytes);
    strata_status (*download)(struct st_device *dev, void *dst_host, const void *src_device, uint64_t bytes);
    strata_status (*finish)(struct st_device *dev, enum st_queue queue);
    /* Optional (NULL: every call is done when it returns).  done(ctx, st) runs once, on a thread of the device's own, when all
     * that was enqueued on the queue so far is done; st: the first failure among it.  It must be short and call nothing here. */
    strata_status (*notify)(struct st_device *dev, enum st_queue queue, void (*done)(void *ctx, strata_status st), void *ctx);

    /* --- compute; shapes row-major; `rows` = batch * seq of one micro-batch --- */
    strata_status (*zero)(struct st_device *dev, void *dst, uint64_t bytes);
    strata_status (*copy)(struct st_device *dev, void *dst, const void *src, uint64_t bytes);
    /* C = op(A) op(B) + bias, with the epilogue; spread over workers in tiles fixed by the shape.  What GELU leaves in C need not
     * have the bits of gelu_forward(aux): what is made of aux later is made of aux each time. */
    strata_status (*matmul)(struct st_device *dev, const struct st_matmul *mm, void *c, const void *a, const void *b,
                            const void *bias);
    /* dbias[cols] f32 += column sums of dy[rows, cols] dt, rows in a fixed order (cpu: by index). */
    strata_status (*bias_backward)(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                   strata_dtype dt);
    /* y = (x - mean) * rstd * weight + bias; stats[rows][2] f32 = mean, rstd. */
    strata_status (*layernorm_forward)(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                       const void *bias, uint32_t rows, uint32_t cols, float eps, strata_dtype dt);
    /* dx = backward of the norm applied to dy (dy dtype dy_dt: dt or F32), plus `residual` (dt, may be NULL; may alias dx);
     * dweight, dbias [cols] f32 +=, rows in a fixed order (cpu: by index). */
    strata_status (*layernorm_backward)(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                        strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                        const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt);
    /* y = x * rstd * weight, rstd = 1 / sqrt(mean(x^2) + eps); stats[rows] f32 = rstd. */
    strata_status (*rmsnorm_forward)(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                     uint32_t rows, uint32_t cols, float eps, strata_dtype dt);
    /* As layernorm_backward, without a bias.  dweight and dbias may be NULL (frozen), here and above. */
    strata_status (*rmsnorm_backward)(struct st_device *dev, void *dx, float *dweight, const void *dy, strata_dtype dy_dt,
                                      const void *x, const float *stats, const void *weight, const void *residual, uint32_t rows,
                                      uint32_t cols, strata_dtype dt);
    /* Rotate pairs (i, i + head_dim/2) of `heads` heads that start each row of x (`stride` elements between rows), in place, by
     * the angle of position `first + r % seq`: table[position][head_dim / 2][2] f32 = cos, sin, device.  inverse: by minus the
     * angle. */
    strata_status (*rope)(struct st_device *dev, void *x, uint32_t stride, uint32_t rows, uint32_t seq, uint32_t first,
                          uint32_t heads, uint32_t head_dim, const float *table, bool inverse, strata_dtype dt);
    /* y[r][c] = silu(gate) * up; gate_up rows are [ffn gate values, ffn up values].  dgate_up may alias gate_up. */
    strata_status (*swiglu_forward)(struct st_device *dev, void *y, const void *gate_up, uint32_t rows, uint32_t ffn,
                                    strata_dtype dt);
    strata_status (*swiglu_backward)(struct st_device *dev, void *dgate_up, const void *dy, const void *gate_up, uint32_t rows,
                                     uint32_t ffn, strata_dtype dt);
    /* gelu_new; its backward is an epilogue of matmul. */
    strata_status (*gelu_forward)(struct st_device *dev, void *y, const void *x, uint64_t elems, strata_dtype dt);
    /* y = a + b, rounded once; y may alias either. */
    strata_status (*add)(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt);

    /* lse [batch, heads, seq] f32 is kept for backward. workspace: st attention_workspace() bytes. */
    uint64_t (*attention_workspace)(const struct st_attention *at, uint32_t workers);
    strata_status (*attention_forward)(struct st_device *dev, const struct st_attention *at, void *out, float *lse,
                                       const void *qkv, void *workspace);
    /* dqkv is overwritten. */
    strata_status (*attention_backward)(struct st_device *dev, const struct st_attention *at, void *dqkv, const void *dout,
                                        const void *out, const float *lse, const void *qkv, void *workspace);

    /* Generation: append the keys and values of `rows` rows (positions first..first+rows-1 of one sequence, at->batch 1) to the
     * caches [context, kv_heads * head_dim] dt, then attend each row to all positions up to its own.  Bits of a row do not depend
     * on the other rows of its call.  workspace: attention_workspace() of the same `at` with seq = the context. */
    strata_status (*attention_cached)(struct st_device *dev, const struct st_attention *at, void *out, void *keys, void *values,
                                      const void *qkv, uint32_t first, uint32_t rows, void *workspace);

    /* out[i] = table row (tokens[i] - row_first) for tokens in [row_first, row_first+row_count); others untouched. */
    strata_status (*embed_gather)(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                  uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);
    /* x[r] += pos[r % seq], rounded once. */
    strata_status (*embed_add_position)(struct st_device *dev, void *x, const void *pos, uint32_t rows, uint32_t seq,
                                        uint32_t cols, strata_dtype dt);
    /* dpos[s] f32 += sum over batches in order. */
    strata_status (*embed_position_backward)(struct st_device *dev, float *dpos, const void *dx, uint32_t rows, uint32_t seq,
                                             uint32_t cols, strata_dtype dt);
    /* dtable[tokens[i] - row_first] f32 += dx[i], i in order, for tokens in the range. */
    strata_status (*embed_scatter)(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens, uint32_t rows,
                                   uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);

    /* Softmax cross-entropy over tiles of the vocabulary.  stats [rows][3] f32: running max, sum of exp, target logit.
     * first tile: initialises.  logits [rows, cols] f32, cols = this tile's vocabulary rows starting at `first`. */
    strata_status (*xent_stats)(struct st_device *dev, float *stats, const float *logits, const int32_t *targets, uint32_t rows,
                                uint32_t cols, uint32_t first);
    /* dlogits [rows, cols] dt = (softmax - onehot) * scale; rows with target < 0 give zeros. */
    strata_status (*xent_grad)(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                               const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale,
                               strata_dtype dt);
    /* *loss_sum (double, device) = sum over rows with target >= 0 of log-sum-exp - target logit, rows in index order. */
    strata_status (*xent_loss)(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets,
                               uint32_t rows);

    /* Round once and take norms: see st_grad_finish_fn.  norm2 (double, device): block sums added in index order, spans in
     * the order given; nonfinite (uint64, device).  block_sums: device scratch, one double per block. */
    strata_status (*grad_finish)(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                 double *block_sums, double *norm2, uint64_t *nonfinite);
    /* One chunk's update on the device: split master (residual), full master with the weight copied out (master), or, both
     * NULL, the weight as its own fp32 master; the moments' planes (device) in their format.  overflowed (device) += count. */
    strata_status (*update)(struct st_device *dev, void *weight, int16_t *residual, float *master,
                            const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                            const struct st_update_coef *coef, uint64_t *overflowed);
};

struct st_device {
    const struct st_device_ops *ops; /* first member of every device's own struct */
};

extern const struct st_device_ops st_device_cpu_ops, st_device_paced_ops, st_device_cuda_ops;
/** "cpu", "paced", "cuda" or "cuda:N" (builds with CUDA alone); NULL if unknown. */
const struct st_device_ops *st_device_find(const char *name);
/** N of "cuda:N"; else 0. */
uint32_t st_device_index(const char *name);

#endif
