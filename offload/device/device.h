/* offload/device/device.h - where forward, backward and resident updates run, as the engine sees it: memory, queues, copies, the
 * table's rows, rounding and updates.  The ops that models compute with are in tensor_ops.h.
 *
 * `cpu` is a real device: a capped arena of its own, copies and compute spread over the workers, optional limits of the two links
 * so that a slow PCIe can be rehearsed.  `paced`, for benches and tests, moves real bytes and computes by waiting
 * (offload/device/paced/device_paced.h).  `cuda` is an NVIDIA GPU (offload/device/cuda/device_cuda_internal.h), if the build has
 * the toolkit.
 *
 * Calls enqueue on the queue of their kind and each queue runs in order; on a device without notify() they are done when they
 * return.  The memory that a call's pointers name must not change until then; structs given by pointer (st_moments,
 * st_update_coef) are copied by the call.  One thread calls at a time. finish() waits for a queue; there is no order between
 * queues except what finish() and notify() report.  Neither lasts longer than the deadline: then the device is lost, its calls
 * fail with E_IO, which means nothing else, and its pinned memory stays with the driver until the process ends.  All pointers
 * named "device" are inside the arena, and so are all that no comment calls the host's; on `cuda` the host cannot dereference
 * them.  dtypes are as in tensor_ops.h. */
#ifndef OFFLOAD_DEVICE_DEVICE_H
#define OFFLOAD_DEVICE_DEVICE_H

#include "kernels/kernels.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

struct st_device;
struct st_machine;
struct st_tensor_ops;
struct st_topology;
struct st_workers;

enum st_queue {
    ST_QUEUE_COMPUTE,
    ST_QUEUE_UPDATE,
    ST_QUEUE_UPLOAD,
    ST_QUEUE_DOWNLOAD,
    ST_QUEUE_COUNT,                  /* of the device's own */
    ST_QUEUE_CALLER = ST_QUEUE_COUNT /* a stream of the caller's, after join(); for notify() and finish() */
};

/* Five minutes: a call takes seconds at most, so that only what never ends reaches it. */
#define ST_DEVICE_DEADLINE_NS UINT64_C(300000000000)

struct st_device_opts {
    uint64_t arena_bytes;                /* device memory to allocate, exactly as planned */
    uint32_t index;                      /* cuda: which GPU, from 0 */
    struct st_workers *workers;          /* borrowed: cpu device */
    const struct st_kernels *kernels;    /* borrowed */
    bool widen_bf16;                     /* tests: compute as on a processor without native bf16 */
    const struct st_topology *topology;  /* borrowed during open: cpu device, memory near its workers; may be NULL */
    double upload_limit, download_limit; /* bytes per second; cpu: limits of the copies; 0: no limit */
    const struct st_machine *pace;       /* copied during open: paced, the machine that it imitates */
    uint64_t
        deadline_ns; /* cuda: how long a queue may make no progress before the GPU counts as lost; 0: ST_DEVICE_DEADLINE_NS */
    bool joins;      /* join() will be called, where the device has it */
};

/* A GPU's memory: the card's own; its own, which the processor shares over a link faster than PCIe (GH200); or the host's, of
 * which a byte given to the one is taken from the other (GB10, Jetson). */
enum st_memory_kind { ST_MEMORY_OWN, ST_MEMORY_COHERENT, ST_MEMORY_UNIFIED };

/* The least compute capability, 10 * major + minor, of GPUs with arithmetic in bf16. */
#define ST_CAPABILITY_BF16 80u

/* Memory of a device that is not the cpu. */
struct st_device_memory {
    char name[64];
    enum st_memory_kind kind;
    bool lacks_bf16; /* its arithmetic has fp16 and fp32 alone */
    uint64_t total, free;
    uint64_t usable; /* the largest arena that can be requested now */
    uint64_t beside; /* what driver and libraries may take of the free memory beside an arena */
};

/* What pin() could not pin: copies of this memory are slower, and its pages may be swapped out. */
struct st_staged {
    uint64_t bytes;
    double upload, download; /* bytes per second of its copies; 0: unknown */
};

struct st_device_ops {
    const char *name;
    bool arena_is_host;                  /* the arena is host memory, holds zeros after open(), and a load may write to it */
    const struct st_tensor_ops *tensors; /* ops for models; NULL: it runs no models (paced) */
    strata_status (*open)(struct st_device **out, const struct st_device_opts *opts);
    void (*close)(struct st_device *dev);
    unsigned char *(*arena)(struct st_device *dev); /* base device address */
    /* Optional (NULL: the arena is RAM, and there is only one device).  E_NOSYS: no such device, with the reason. */
    strata_status (*memory)(uint32_t index, struct st_device_memory *out);
    /* Optional: announce the caller's host memory for copies, until close().  What the system refuses to pin is in *staged (NULL:
     * not wanted) and in a log line, with the rates of its copies; the status is OK.  Call it before anything is in the arena:
     * bytes are copied there and back to find the rates. */
    strata_status (*pin)(struct st_device *dev, void *base, uint64_t bytes, struct st_staged *staged);

    strata_status (*upload)(struct st_device *dev, void *dst_device, const void *src_host, uint64_t bytes);
    strata_status (*download)(struct st_device *dev, void *dst_host, const void *src_device, uint64_t bytes);
    strata_status (*finish)(struct st_device *dev, enum st_queue queue);
    /* Optional (NULL: every call is done when it returns).  done(ctx, st) runs once, on a thread of the device's own, when
     * everything enqueued on the queue so far is done; st: the first failure in it.  It must be short and must not call the
     * device. */
    strata_status (*notify)(struct st_device *dev, enum st_queue queue, void (*done)(void *ctx, strata_status st), void *ctx);

    /* Optional, for a device with notify() (NULL: its calls cannot be timed): take `count` time stamps, once; put one on a queue;
     * the nanoseconds between two that both queues have passed. */
    strata_status (*stamps)(struct st_device *dev, uint32_t count);
    strata_status (*stamp)(struct st_device *dev, enum st_queue queue, uint32_t index);
    strata_status (*stamp_ns)(struct st_device *dev, uint32_t from, uint32_t to, uint64_t *ns);

    /* --- on the compute queue --- */
    strata_status (*zero)(struct st_device *dev, void *dst, uint64_t bytes);
    strata_status (*copy)(struct st_device *dev, void *dst, const void *src, uint64_t bytes);

    /* out[i] = table row (tokens[i] - row_first) for tokens in [row_first, row_first+row_count); other rows stay unchanged. */
    strata_status (*embed_gather)(struct st_device *dev, void *out, const void *table, const int32_t *tokens, uint32_t rows,
                                  uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);
    /* dtable[tokens[i] - row_first] f32 += dx[i], i in order, for tokens in the range. */
    strata_status (*embed_scatter)(struct st_device *dev, float *dtable, const void *dx, const int32_t *tokens, uint32_t rows,
                                   uint32_t cols, uint32_t row_first, uint32_t row_count, strata_dtype dt);

    /* sum[i] += addend[i] in fp32, of an addend in F32 or BF16: the same bits on every device, whose sums are therefore reduced
     * alike. */
    strata_status (*reduce)(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems);

    /* Round once and take norms: see st_grad_finish_fn.  norm2 (double, device) += st_norm_group() of a group's elements;
     * nonfinite (uint64, device) += count.  block_sums: device scratch, one double per block. */
    strata_status (*grad_finish)(struct st_device *dev, void *out, strata_dtype dt, const float *acc, uint64_t elems,
                                 double *block_sums, double *norm2, uint64_t *nonfinite);

    /* On the update queue: one chunk's update on the device: split master (low half), full master with the weight copied out
     * (master), or, both NULL, the weight as its own fp32 master; the moments' planes (device) in their format.  overflowed
     * (device) += count. */
    strata_status (*update)(struct st_device *dev, void *weight, int16_t *low_half, float *master,
                            const struct st_moments *moments, const void *grad, strata_dtype dt, uint64_t elems,
                            const struct st_update_coef *coef, uint64_t *overflowed);

    /* --- on a stream of the caller's, which computes with the arena's memory --- */
    /* Optional (NULL: it computes on the host, and has done so when it calls).  These, and notify() and finish() of
     * ST_QUEUE_CALLER, may run on the caller's thread while another one makes the other calls.
     *
     * Name the stream (cuda: a cudaStream_t of this GPU; NULL: the default one), after finish() of the one before.  E_INVAL: it
     * is none of this GPU's. */
    strata_status (*join)(struct st_device *dev, void *stream);
    /* E_INVAL, and what it is: kernels of this device may not read this memory. */
    strata_status (*reads)(struct st_device *dev, const void *at);
    /* As reduce(), of F16, too. */
    strata_status (*add)(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems);
};

struct st_device {
    const struct st_device_ops *ops; /* first member of every device's own struct */
};

extern const struct st_device_ops st_device_cpu_ops, st_device_paced_ops, st_device_cuda_ops;
/** "cpu", "paced", "cuda" or "cuda:N" (only in builds with CUDA); NULL if unknown. */
const struct st_device_ops *st_device_find(const char *name);
/** Whether this is N of "cuda:N": a number of three digits at most. */
bool st_device_is_index(const char *text);
/** N of "cuda:N"; else 0. */
uint32_t st_device_index(const char *name);

#endif
