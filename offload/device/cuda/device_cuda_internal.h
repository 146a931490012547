/* offload/device/cuda/device_cuda_internal.h - the cuda device's internals, for device_cuda*.c only.
 *
 * Four streams, one per queue, and that of a caller; work of a queue runs in the order of the calls.  Between queues there is no
 * order: the engine hands out an op only when the ops that it waits for on other lanes were reported done (engine_async.c), and
 * other users of two queues call finish() in between.  So no stream ever waits for another.  A caller's stream is a queue like
 * the others, with marks and a watcher, whose stream is borrowed.
 *
 * Threads.  One thread calls at a time.  Each queue has a watcher thread, which sleeps on the queue's marks in their order and
 * reports them.  It is our own thread and not cudaLaunchHostFunc because a broken context never runs host functions, so a failed
 * kernel would never be reported.  No thread spins: all events are created with cudaEventBlockingSync.
 *
 * Deadline.  CUDA has no wait with a limit, and with a lost card or a kernel that never ends it waits for ever.  So nothing but a
 * watcher waits for the GPU, and one guard thread, which never calls CUDA, looks at all watchers.  When a queue's oldest mark is
 * not reached in time, the guard abandons the queue: it reports the queue's marks as failed in the watcher's place, and the
 * device counts as lost from then on, for the whole process: its context is the process's, and cannot be opened again.  A watcher
 * of an abandoned queue ends without touching anything when its wait returns, if it ever does.  Closing a lost device calls
 * nothing of CUDA, since freeing memory would wait for the same kernel; the process's end gives the GPU's memory back.  What
 * remains without a limit are calls that only enqueue: if the driver's own queue of some thousand launches is full, they wait in
 * the driver. */
#ifndef OFFLOAD_DEVICE_CUDA_DEVICE_CUDA_INTERNAL_H
#define OFFLOAD_DEVICE_CUDA_DEVICE_CUDA_INTERNAL_H

#include "core/base/fault.h"
#include "offload/device/device.h"
#include "offload/device/tensor_ops.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>

#define ST_CUDA_MARKS     64u /* if there are more, notify() waits for the oldest; four times as many as the engine hands out */
#define ST_CUDA_QUEUES    (ST_QUEUE_COUNT + 1u) /* with the caller's */
#define ST_CUDA_SENTENCE  512u                  /* bytes kept of an error */
#define ST_CUDA_REGIONS   72u                   /* pinned at once: two calls of pin() whose memory is registered in pieces */
#define ST_CUDA_PIECES    32u                   /* of memory that the system refuses to register whole */
#define ST_CUDA_PIECE_MIN (UINT64_C(64) << 20)
/* Workspace of the compute queue, whose kernels use it one after another: of matmuls, the size that cuBLAS itself uses on Hopper,
 * and of the norms' backward. */
#define ST_CUDA_WORKSPACE (UINT64_C(32) << 20)
/* Device memory for the machine code of kernels, which is loaded when they are used for the first time: those of cuBLAS, at most
 * one for each shape of a model, of which there are fewer than 64, in at most a granule of 2 MiB each; and 8 MiB for our own,
 * which are 4.7 MB for sm_90.  Few fill a granule, so a quarter of this is left to what trials load (ST_CUDA_TRIAL_CODE). */
#define ST_CUDA_CODE          (UINT64_C(136) << 20)
#define ST_CUDA_STAGING_BYTES (UINT64_C(4) << 20) /* of one slot */

/* A foreign call behind a fault site.  If a test requests a failure, the call is not made and so leaves nothing behind. */
#define ST_CUDA_PASS(site, call) (st_fault((site), 0) != 0 ? cudaErrorUnknown : (call))

/* What a watcher does next: report that the queue has come so far, or copy. */
struct cuda_mark {
    cudaEvent_t event;
    void (*done)(void *ctx, strata_status st); /* NULL: a copy */
    void *ctx;
    unsigned char *dst;
    const unsigned char *src;
    uint64_t bytes;
};

struct cuda_device;

struct cuda_queue {
    cudaStream_t stream;
    bool borrowed; /* the stream */
    struct cuda_device *cuda;
    const char *name;
    pthread_t watcher;
    bool runs;
    pthread_mutex_t lock; /* guards the members below, except that the marks between taken and added belong to the watcher */
    pthread_cond_t added_one, changed; /* changed: a mark was reported, the watcher has ended, or the queue was abandoned */
    uint64_t added, taken;
    uint64_t waits_since_ns; /* since when the watcher has waited for the GPU; 0: it does not */
    bool stopping, ended;    /* ended: the watcher */
    bool abandoned;          /* the marks belong to the guard, and no more are added */
    struct cuda_mark marks[ST_CUDA_MARKS];
    bool copies;                   /* the watcher makes this queue's copies, in order with its marks; set before the first one */
    char failed[ST_CUDA_SENTENCE]; /* of a copy since the last mark; empty: none; the watcher's own */
};

/* The thread that keeps the deadline. */
struct cuda_guard {
    pthread_t thread;
    bool runs;
    uint64_t deadline_ns;
    pthread_mutex_t lock; /* guards stopping */
    pthread_cond_t stop;
    bool stopping;
};

enum cuda_path { CUDA_REGISTERED, CUDA_STAGED, CUDA_PAGEABLE };

/* Host memory that was given to pin(). */
struct cuda_region {
    unsigned char *base;
    uint64_t bytes;
    enum cuda_path path;
};

/* A pinned slot, for copies of memory that could not be registered. */
struct cuda_slot {
    unsigned char *base;
    cudaEvent_t free; /* recorded after its last copy */
};

struct st_cuda_matmul;

struct cuda_device {
    struct st_device base;
    int index;
    uint32_t shared_most; /* shared memory that a block may have */
    bool unified;         /* the arena is the host's memory */
    unsigned char *arena; /* [arena_bytes] device */
    uint64_t arena_bytes;
    atomic_uint holders; /* the caller, and each watcher; the last one frees this struct */
    struct cuda_guard guard;
    struct cuda_queue queues[ST_CUDA_QUEUES];
    uint32_t queue_count;
    struct cuda_region regions[ST_CUDA_REGIONS];
    uint32_t region_count;
    struct cuda_slot slots[2][2]; /* of uploads, of downloads; base NULL: not allocated */
    struct st_cuda_matmul *matmul;
    cudaEvent_t *stamps; /* [stamp_count]; NULL: none were asked for */
    uint32_t stamp_count;
};

static inline struct cuda_device *cuda_of(struct st_device *dev)
{
    return (struct cuda_device *)(void *)dev;
}

/* device_cuda.c: the status of a CUDA call; the sentence has the error's name, its text and the call. */
strata_status st_cuda_status(cudaError_t err, const char *call);

/* device_cuda.c: its arithmetic has fp16 and fp32 alone. */
bool st_cuda_lacks_bf16(const struct cudaDeviceProp *props);

/* device_cuda.c: give back one hold of the struct. */
void st_cuda_release(struct cuda_device *cuda);

/* device_cuda_guard.c.  It runs from after the start of all queues until all have stopped.  deadline_ns 0:
 * ST_DEVICE_DEADLINE_NS. */
strata_status st_cuda_guard_start(struct cuda_device *cuda, uint64_t deadline_ns);
void st_cuda_guard_stop(struct cuda_device *cuda); /* one that was never started is allowed */
/* E_IO, with the sentence that names the queue, once a deadline has passed in this process; OK until then. */
strata_status st_cuda_lost(void);
bool st_cuda_is_lost(void);
void st_cuda_forget_loss(void); /* tests: the emulated GPU is whole again */

/* device_cuda_queue.c */
enum st_cuda_urgency {
    ST_CUDA_FIRST,
    ST_CUDA_BETWEEN,
    ST_CUDA_LAST,
    ST_CUDA_BORROWED
}; /* whose kernels a multiprocessor takes
      first; no stream yet */
strata_status st_cuda_queue_start(struct cuda_queue *q, struct cuda_device *cuda, const char *name, enum st_cuda_urgency urgency);
void st_cuda_queue_stop(struct cuda_queue *q); /* waits for the enqueued work and ends the watcher; a zeroed queue is allowed */
void st_cuda_queue_fini(struct cuda_queue *q); /* after the guard has stopped; a zeroed queue is allowed */
strata_status st_cuda_queue_finish(struct cuda_queue *q);
/* Have the watcher copy. */
strata_status st_cuda_queue_copy(struct cuda_queue *q, void *dst, const void *src, uint64_t bytes);
/* By the watcher: wait for an event.  False: the guard has abandoned the queue, and the watcher must touch nothing more. */
bool st_cuda_queue_await(struct cuda_queue *q, cudaEvent_t event, cudaError_t *err);

strata_status st_cuda_queue_notify(struct cuda_queue *q, void (*done)(void *ctx, strata_status st), void *ctx);

/* device_cuda_caller.c */
strata_status st_cuda_join(struct st_device *dev, void *stream);
strata_status st_cuda_reads(struct st_device *dev, const void *at);
strata_status st_cuda_caller_add(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems);

/* device_cuda_host.c.  The first: by the watcher; the copy is done on return.  False: as st_cuda_queue_await(). */
bool st_cuda_host_copy(struct cuda_queue *q, const struct cuda_mark *mark, cudaError_t *err);
strata_status st_cuda_pin(struct st_device *dev, void *base, uint64_t bytes, struct st_staged *staged);
void st_cuda_host_fini(struct cuda_device *cuda); /* frees all regions and the slots */
strata_status st_cuda_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes);
strata_status st_cuda_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes);

/* device_cuda_stamps.c */
strata_status st_cuda_stamps(struct st_device *dev, uint32_t count);
void st_cuda_stamps_destroy(struct cuda_device *cuda, bool lost); /* none is fine */
strata_status st_cuda_stamp(struct st_device *dev, enum st_queue queue, uint32_t index);
strata_status st_cuda_stamp_ns(struct st_device *dev, uint32_t from, uint32_t to, uint64_t *ns);

/* device_cuda_matmul.c: E_NOSYS without the library.  It allocates its own workspace of ST_CUDA_WORKSPACE bytes of device
 * memory. */
strata_status st_cuda_matmul_create(struct st_cuda_matmul **out);
/* NULL is allowed.  lost: leave to the driver what would wait for the GPU. */
void st_cuda_matmul_destroy(struct st_cuda_matmul *m, bool lost);
strata_status st_cuda_matmul_run(struct st_cuda_matmul *m, cudaStream_t stream, const struct st_matmul *mm, void *c,
                                 const void *a, const void *b, const void *bias);
/* Its workspace, for other kernels of the same stream. */
void *st_cuda_matmul_workspace(const struct st_cuda_matmul *m);

/* device_cuda_ops.c: asks the GPU for what its kernels need, once. */
strata_status st_cuda_allow(const struct cuda_device *cuda);
/* The table's entries that are kernels. */
strata_status st_cuda_dev_matmul(struct st_device *dev, const struct st_matmul *mm, void *c, const void *a, const void *b,
                                 const void *bias);
strata_status st_cuda_dev_bias_backward(struct st_device *dev, float *dbias, const void *dy, uint32_t rows, uint32_t cols,
                                        strata_dtype dt);
strata_status st_cuda_dev_layernorm_forward(struct st_device *dev, void *y, float *stats, const void *x, const void *weight,
                                            const void *bias, const void *addend, void *sum, uint32_t rows, uint32_t cols,
                                            float eps, strata_dtype dt);
strata_status st_cuda_dev_layernorm_backward(struct st_device *dev, void *dx, float *dweight, float *dbias, const void *dy,
                                             strata_dtype dy_dt, const void *x, const float *stats, const void *weight,
                                             const void *residual, uint32_t rows, uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_rmsnorm_forward(struct st_device *dev, const struct st_rmsnorm *norm, void *y, float *stats,
                                          const void *x, const void *weight, const void *addend, void *sum);
strata_status st_cuda_dev_rmsnorm_backward(struct st_device *dev, const struct st_rmsnorm *norm, void *dx, float *dweight,
                                           const void *dy, strata_dtype dy_dt, const void *x, const float *stats,
                                           const void *weight, const void *residual);
strata_status st_cuda_dev_rope(struct st_device *dev, const struct st_rope *rope, void *x);
strata_status st_cuda_dev_gated_forward(struct st_device *dev, enum st_activation activation, void *y, const void *gate_up,
                                        uint32_t rows, uint32_t ffn, strata_dtype dt);
strata_status st_cuda_dev_gated_backward(struct st_device *dev, enum st_activation activation, void *dgate_up, void *y,
                                         const void *dy, const void *gate_up, uint32_t rows, uint32_t ffn, strata_dtype dt);
strata_status st_cuda_dev_activation_forward(struct st_device *dev, enum st_activation activation, void *y, const void *x,
                                             uint64_t elems, strata_dtype dt);
strata_status st_cuda_dev_activation_backward(struct st_device *dev, enum st_activation activation, void *dx, const void *dy,
                                              const void *x, uint64_t elems, strata_dtype dt);
strata_status st_cuda_dev_dropout(struct st_device *dev, const struct st_dropout *d, float *to, const void *from);
strata_status st_cuda_dev_cast(struct st_device *dev, const struct st_cast *cast, void *to, const void *from);
strata_status st_cuda_dev_add(struct st_device *dev, void *y, const void *a, const void *b, uint64_t elems, strata_dtype dt);
strata_status st_cuda_dev_scale(struct st_device *dev, void *y, const void *x, float factor, uint64_t elems, strata_dtype dt);
strata_status st_cuda_dev_nf4_widen(struct st_device *dev, void *y, const struct st_nf4_block *x, uint64_t elems,
                                    strata_dtype dt);
uint64_t st_cuda_dev_attention_workspace(const struct st_attention *at, uint32_t workers);
strata_status st_cuda_dev_attention_forward(struct st_device *dev, const struct st_attention *at, void *out, float *lse,
                                            const void *qkv, void *workspace);
strata_status st_cuda_dev_attention_backward(struct st_device *dev, const struct st_attention *at, void *dqkv, const void *dout,
                                             const void *out, const float *lse, const void *qkv, void *workspace);
strata_status st_cuda_dev_attention_cached(struct st_device *dev, const struct st_attention *at, void *out, void *keys,
                                           void *values, const void *qkv, uint32_t first, uint32_t rows, void *workspace);
strata_status st_cuda_dev_attention_sinks_backward(struct st_device *dev, const struct st_attention *at, float *dsinks,
                                                   const void *dout, const void *out, const float *lse);
strata_status st_cuda_dev_route_choose(struct st_device *dev, const struct st_route *route, int32_t *ids, float *weights,
                                       float *probs, const void *logits);
strata_status st_cuda_dev_route_sort(struct st_device *dev, const struct st_route *route, int32_t *order, int32_t *places,
                                     int32_t *offsets, const int32_t *ids);
strata_status st_cuda_dev_route_totals(struct st_device *dev, const struct st_route *route, int64_t *counts, double *sums,
                                       const int32_t *ids, const float *probs);
strata_status st_cuda_dev_route_loss(struct st_device *dev, const struct st_route *route, double *loss, const int64_t *counts,
                                     const double *sums);
strata_status st_cuda_dev_route_backward(struct st_device *dev, const struct st_route *route, void *dlogits,
                                         const float *dweights, const float *probs, const int32_t *ids, const float *weights,
                                         const int64_t *counts, float aux);
strata_status st_cuda_dev_experts_gather(struct st_device *dev, const struct st_experts *of, void *to, const void *x,
                                         const int32_t *order, const int32_t *offsets, uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_experts_matmul(struct st_device *dev, const struct st_expert_matmul *mm, void *c, const void *a,
                                         const void *b, const void *bias, const int32_t *offsets);
strata_status st_cuda_dev_experts_cast(struct st_device *dev, const struct st_expert_cast *cast, void *to, const void *from,
                                       const int32_t *offsets);
strata_status st_cuda_dev_experts_bias_backward(struct st_device *dev, const struct st_experts *of, float *dbias, uint64_t stride,
                                                const void *dy, const int32_t *offsets, uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_experts_gated_forward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                void *y, const void *gate_up, const int32_t *offsets, uint32_t ffn,
                                                strata_dtype dt);
strata_status st_cuda_dev_experts_gated_backward(struct st_device *dev, const struct st_experts *of, const struct st_gate *gate,
                                                 void *dgate_up, void *y, const void *dy, const void *gate_up,
                                                 const int32_t *offsets, uint32_t ffn, strata_dtype dt);
strata_status st_cuda_dev_experts_add(struct st_device *dev, const struct st_experts *of, float *sum, const void *y,
                                      const float *weights, const int32_t *order, const int32_t *places, const int32_t *offsets,
                                      uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_experts_add_backward(struct st_device *dev, const struct st_experts *of, void *dy, float *dweights,
                                               const void *d, const void *y, const float *weights, const int32_t *order,
                                               const int32_t *offsets, uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_shared_forward(struct st_device *dev, float *sum, const void *y, const void *logits, uint32_t rows,
                                         uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_shared_backward(struct st_device *dev, void *dy, void *dlogits, const void *d, const void *y,
                                          const void *logits, uint32_t rows, uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_clip(struct st_device *dev, void *x, float limit, uint32_t rows, uint32_t cols, uint32_t stride,
                               strata_dtype dt);
strata_status st_cuda_dev_clip_backward(struct st_device *dev, void *dx, const void *x, float limit, uint32_t rows, uint32_t cols,
                                        uint32_t stride, strata_dtype dt);
strata_status st_cuda_dev_embed_gather(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                       uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);
strata_status st_cuda_dev_embed_add_position(struct st_device *dev, void *x, const void *pos, const int32_t *positions,
                                             uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_embed_position_backward(struct st_device *dev, float *dpos, const void *dx, const int32_t *positions,
                                                  uint32_t rows, uint32_t seq, uint32_t cols, strata_dtype dt);
strata_status st_cuda_dev_embed_scatter(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens,
                                        uint32_t rows, uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);
strata_status st_cuda_dev_xent_stats(struct st_device *dev, float *stats, const float *logits, const int32_t *targets,
                                     uint32_t rows, uint32_t cols, uint32_t first, float softcap);
strata_status st_cuda_dev_xent_grad(struct st_device *dev, void *dlogits, const float *logits, const float *stats,
                                    const int32_t *targets, uint32_t rows, uint32_t cols, uint32_t first, float scale,
                                    float softcap, strata_dtype dt);
strata_status st_cuda_dev_xent_loss(struct st_device *dev, double *loss_sum, const float *stats, const int32_t *targets,
                                    uint32_t rows);
strata_status st_cuda_dev_reduce(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems);
strata_status st_cuda_dev_grad_finish(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                      double *block_sums, double *norm2, uint64_t *nonfinite);
strata_status st_cuda_dev_update(struct st_device *dev, void *weight, int16_t *low_half, float *master,
                                 const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                                 const struct st_update_coef *coef, uint64_t *overflowed);

#endif
