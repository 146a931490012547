/* device_cuda.c - the cuda device: choosing the GPU, its arena, the meaning of errors, and the table.
 *
 * The arena is one cudaMalloc of exactly the plan's bytes; the workspace of the matmuls is a second one, made at open.  After
 * that only cuBLAS and the driver allocate, when a kernel is used for the first time. */
#include "core/base/error.h"
#include "core/base/size.h"
#include "offload/device/cuda/device_cuda_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CAPABILITY_LEAST 75 /* 10 * major + minor: fp16 on tensor cores with matrix loads */

/* An update's blocks run where the layers leave room.  Else they would run between those of the forward that waits for no update.
 */
static const struct {
    const char *name;
    enum st_cuda_urgency urgency;
} queue_kinds[ST_CUDA_QUEUES] = {[ST_QUEUE_COMPUTE] = {"cuda-compute", ST_CUDA_FIRST},
                                 [ST_QUEUE_UPDATE] = {"cuda-update", ST_CUDA_LAST},
                                 [ST_QUEUE_UPLOAD] = {"cuda-upload", ST_CUDA_BETWEEN},
                                 [ST_QUEUE_DOWNLOAD] = {"cuda-download", ST_CUDA_BETWEEN},
                                 [ST_QUEUE_CALLER] = {"cuda-caller", ST_CUDA_BORROWED}};

/* --- errors --- */

static strata_status status_of(cudaError_t err)
{
    switch (err) {
    case cudaErrorMemoryAllocation:
        return STRATA_E_DEVICE_OOM;
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInitializationError:
    case cudaErrorNotSupported:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorSystemNotReady: /* GPUs joined by NVSwitch need a fabric manager, and it does not run */
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice:
        return STRATA_E_NOSYS;
    default:
        return STRATA_E_INTERNAL;
    }
}

strata_status st_cuda_status(cudaError_t err, const char *call)
{
    if (err == cudaSuccess)
        return STRATA_OK;
    (void)cudaGetLastError(); /* it is told here, and no longer the thread's last one */
    if (err == cudaErrorNoKernelImageForDevice || err == cudaErrorInvalidDeviceFunction)
        return st_error(STRATA_E_NOSYS,
                        "cuda: %s: this program has no code for the GPU's architecture (%s): build it with "
                        "-DSTRATA_CUDA_ARCHITECTURES=native",
                        call, cudaGetErrorName(err));
    return st_error(status_of(err), "cuda: %s: %s (%s)", call, cudaGetErrorString(err), cudaGetErrorName(err));
}

/* --- which GPU --- */

static int capability_of(const struct cudaDeviceProp *props)
{
    return 10 * props->major + props->minor;
}

bool st_cuda_lacks_bf16(const struct cudaDeviceProp *props)
{
    return capability_of(props) < (int)ST_CAPABILITY_BF16;
}

static strata_status find_gpu(uint32_t index, struct cudaDeviceProp *props)
{
    int count = 0;
    strata_status st = st_cuda_lost();
    cudaError_t err;

    if (st != STRATA_OK)
        return st;
    err = ST_CUDA_PASS("cuda.count", cudaGetDeviceCount(&count));
    if (err == cudaSuccess && count == 0)
        err = cudaErrorNoDevice;
    if (err != cudaSuccess) {
        (void)cudaGetLastError();
        return st_error_remedy(
            st_error(STRATA_E_NOSYS, "cuda: no usable GPU: %s (%s)", cudaGetErrorString(err), cudaGetErrorName(err)),
            "machine.device", "use machine.device cpu");
    }
    if (index >= (uint32_t)count)
        return st_error(STRATA_E_NOSYS, "cuda:%u: this machine has %d %s, counted from 0", index, count,
                        count == 1 ? "GPU" : "GPUs");
    err = ST_CUDA_PASS("cuda.device", cudaGetDeviceProperties(props, (int)index));
    if (err != cudaSuccess)
        return st_cuda_status(err, "cudaGetDeviceProperties");
    if (capability_of(props) < CAPABILITY_LEAST)
        return st_error_remedy(st_error(STRATA_E_NOSYS, "cuda:%u: %s has compute capability %d.%d, %d.%d is needed", index,
                                        props->name, props->major, props->minor, CAPABILITY_LEAST / 10, CAPABILITY_LEAST % 10),
                               "machine.device", "use machine.device cpu");
    return st_cuda_status(ST_CUDA_PASS("cuda.device", cudaSetDevice((int)index)), "cudaSetDevice");
}

/* What a run takes beside its arena after its context was made.  Local memory is a stack for each thread that the GPU holds at
 * once, allocated at the latest when the first kernel that needs any is launched: 264 MiB on an H200, a seventh of it on its
 * smallest slice.  `strata bench step` reports as device_beside_mb what a run really used. */
static cudaError_t bytes_beside(const struct cudaDeviceProp *props, uint64_t *out)
{
    size_t stack = 0;
    const cudaError_t err = cudaDeviceGetLimit(&stack, cudaLimitStackSize);

    *out = ST_CUDA_WORKSPACE + ST_CUDA_CODE +
           (uint64_t)props->multiProcessorCount * (uint64_t)props->maxThreadsPerMultiProcessor * stack;
    return err;
}

static enum st_memory_kind memory_kind(const struct cudaDeviceProp *props)
{
    if (props->integrated != 0)
        return ST_MEMORY_UNIFIED;
    return props->pageableMemoryAccessUsesHostPageTables != 0 ? ST_MEMORY_COHERENT : ST_MEMORY_OWN;
}

static strata_status cuda_memory(uint32_t index, struct st_device_memory *out)
{
    uint64_t beside = 0;
    struct cudaDeviceProp props;
    size_t free_bytes = 0, total = 0;
    strata_status st = find_gpu(index, &props);

    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.info", bytes_beside(&props, &beside)), "cudaDeviceGetLimit");
    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.info", cudaMemGetInfo(&free_bytes, &total)), "cudaMemGetInfo");
    if (st != STRATA_OK)
        return st;
    *out = (struct st_device_memory){.kind = memory_kind(&props),
                                     .lacks_bf16 = st_cuda_lacks_bf16(&props),
                                     .total = total,
                                     .free = free_bytes,
                                     .usable = free_bytes > beside ? (free_bytes - beside) & ~UINT64_C(4095) : 0,
                                     .beside = beside};
    snprintf(out->name, sizeof(out->name), "%.*s", (int)sizeof(out->name) - 1, props.name);
    return STRATA_OK;
}

/* --- open and close --- */

static strata_status no_room(uint64_t wanted)
{
    char want[24], have[24], all[24];
    size_t free_bytes = 0, total = 0;

    (void)cudaGetLastError();
    (void)cudaMemGetInfo(&free_bytes, &total);
    return st_error_remedy(st_error(STRATA_E_NOFIT, "cuda: %s of GPU memory do not fit, %s of %s are free",
                                    st_size_text(want, wanted), st_size_text(have, free_bytes), st_size_text(all, total)),
                           "strata.device_memory", "lower strata.device_memory");
}

static strata_status take_arena(struct cuda_device *cuda, uint64_t bytes)
{
    const uint64_t wanted = bytes + ST_CUDA_WORKSPACE;
    size_t free_bytes = 0, total = 0;
    void *base = NULL;
    cudaError_t err = ST_CUDA_PASS("cuda.info", cudaMemGetInfo(&free_bytes, &total));

    if (err != cudaSuccess)
        return st_cuda_status(err, "cudaMemGetInfo");
    if (wanted > free_bytes && !cuda->unified) /* there the page cache is not counted as free, but makes room */
        return no_room(wanted);
    if (bytes == 0)
        return STRATA_OK;
    err = ST_CUDA_PASS("cuda.malloc", cudaMalloc(&base, bytes));
    if (err == cudaErrorMemoryAllocation)
        return no_room(wanted);
    cuda->arena = base;
    cuda->arena_bytes = base != NULL ? bytes : 0;
    return st_cuda_status(err, "cudaMalloc of the arena");
}

void st_cuda_release(struct cuda_device *cuda)
{
    if (atomic_fetch_sub(&cuda->holders, 1) == 1)
        free(cuda);
}

static void cuda_close(struct st_device *dev)
{
    struct cuda_device *cuda = cuda_of(dev);
    bool lost;

    if (cuda == NULL)
        return;
    (void)cudaSetDevice(cuda->index);
    for (uint32_t i = 0; i < cuda->queue_count; i++)
        st_cuda_queue_stop(&cuda->queues[i]);
    st_cuda_guard_stop(cuda);
    lost = st_cuda_is_lost();
    for (uint32_t i = 0; i < cuda->queue_count; i++)
        st_cuda_queue_fini(&cuda->queues[i]);
    st_cuda_stamps_destroy(cuda, lost);
    st_cuda_matmul_destroy(cuda->matmul, lost);
    if (!lost) { /* these wait for the GPU, too */
        st_cuda_host_fini(cuda);
        if (cuda->arena != NULL)
            (void)cudaFree(cuda->arena);
        (void)cudaGetLastError();
    }
    st_cuda_release(cuda);
}

static strata_status cuda_open(struct st_device **out, const struct st_device_opts *opts)
{
    struct cuda_device *cuda;
    struct cudaDeviceProp props;
    strata_status st = find_gpu(opts->index, &props);

    if (st != STRATA_OK)
        return st;
    cuda = calloc(1, sizeof(*cuda));
    if (cuda == NULL)
        return st_nomem(sizeof(*cuda));
    cuda->base.ops = &st_device_cuda_ops;
    cuda->index = (int)opts->index;
    cuda->queue_count = opts->joins ? ST_CUDA_QUEUES : ST_QUEUE_COUNT;
    atomic_init(&cuda->holders, 1);
    cuda->shared_most = (uint32_t)props.sharedMemPerBlockOptin;
    cuda->unified = memory_kind(&props) == ST_MEMORY_UNIFIED;
    st = st_cuda_allow(cuda);
    if (st == STRATA_OK)
        st = take_arena(cuda, opts->arena_bytes);
    if (st == STRATA_OK)
        st = st_cuda_matmul_create(&cuda->matmul);
    for (uint32_t i = 0; i < cuda->queue_count && st == STRATA_OK; i++)
        st = st_cuda_queue_start(&cuda->queues[i], cuda, queue_kinds[i].name, queue_kinds[i].urgency);
    if (st == STRATA_OK)
        st = st_cuda_guard_start(cuda, opts->deadline_ns);
    if (st != STRATA_OK)
        cuda_close(&cuda->base);
    else
        *out = &cuda->base;
    return st;
}

static unsigned char *cuda_arena(struct st_device *dev)
{
    return cuda_of(dev)->arena;
}

/* --- queues --- */

static strata_status cuda_finish(struct st_device *dev, enum st_queue queue)
{
    (void)cudaSetDevice(cuda_of(dev)->index);
    return st_cuda_queue_finish(&cuda_of(dev)->queues[queue]);
}

static strata_status cuda_notify(struct st_device *dev, enum st_queue queue, void (*done)(void *ctx, strata_status st), void *ctx)
{
    (void)cudaSetDevice(cuda_of(dev)->index);
    return st_cuda_queue_notify(&cuda_of(dev)->queues[queue], done, ctx);
}

static strata_status cuda_zero(struct st_device *dev, void *dst, uint64_t bytes)
{
    const struct cuda_device *cuda = cuda_of(dev);

    if (bytes == 0)
        return STRATA_OK;
    (void)cudaSetDevice(cuda->index);
    return st_cuda_status(ST_CUDA_PASS("cuda.launch", cudaMemsetAsync(dst, 0, bytes, cuda->queues[ST_QUEUE_COMPUTE].stream)),
                          "zero");
}

static strata_status cuda_copy(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    const struct cuda_device *cuda = cuda_of(dev);
    const cudaStream_t stream = cuda->queues[ST_QUEUE_COMPUTE].stream;

    if (bytes == 0)
        return STRATA_OK;
    (void)cudaSetDevice(cuda->index);
    return st_cuda_status(ST_CUDA_PASS("cuda.launch", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToDevice, stream)),
                          "copy");
}

const struct st_tensor_ops st_tensor_cuda_ops = {
    .zero = cuda_zero,
    .matmul = st_cuda_dev_matmul,
    .bias_backward = st_cuda_dev_bias_backward,
    .layernorm_forward = st_cuda_dev_layernorm_forward,
    .layernorm_backward = st_cuda_dev_layernorm_backward,
    .rmsnorm_forward = st_cuda_dev_rmsnorm_forward,
    .rmsnorm_backward = st_cuda_dev_rmsnorm_backward,
    .rope = st_cuda_dev_rope,
    .gated_forward = st_cuda_dev_gated_forward,
    .gated_backward = st_cuda_dev_gated_backward,
    .activation_forward = st_cuda_dev_activation_forward,
    .activation_backward = st_cuda_dev_activation_backward,
    .add = st_cuda_dev_add,
    .scale = st_cuda_dev_scale,
    .cast = st_cuda_dev_cast,
    .dropout = st_cuda_dev_dropout,
    .nf4_widen = st_cuda_dev_nf4_widen,
    .attention_workspace = st_cuda_dev_attention_workspace,
    .attention_forward = st_cuda_dev_attention_forward,
    .attention_backward = st_cuda_dev_attention_backward,
    .attention_sinks_backward = st_cuda_dev_attention_sinks_backward,
    .attention_cached = st_cuda_dev_attention_cached,
    .route_choose = st_cuda_dev_route_choose,
    .route_sort = st_cuda_dev_route_sort,
    .route_totals = st_cuda_dev_route_totals,
    .route_loss = st_cuda_dev_route_loss,
    .route_backward = st_cuda_dev_route_backward,
    .experts_gather = st_cuda_dev_experts_gather,
    .experts_matmul = st_cuda_dev_experts_matmul,
    .experts_cast = st_cuda_dev_experts_cast,
    .experts_bias_backward = st_cuda_dev_experts_bias_backward,
    .experts_gated_forward = st_cuda_dev_experts_gated_forward,
    .experts_gated_backward = st_cuda_dev_experts_gated_backward,
    .experts_add = st_cuda_dev_experts_add,
    .experts_add_backward = st_cuda_dev_experts_add_backward,
    .shared_forward = st_cuda_dev_shared_forward,
    .shared_backward = st_cuda_dev_shared_backward,
    .clip = st_cuda_dev_clip,
    .clip_backward = st_cuda_dev_clip_backward,
    .embed_add_position = st_cuda_dev_embed_add_position,
    .embed_position_backward = st_cuda_dev_embed_position_backward,
    .xent_stats = st_cuda_dev_xent_stats,
    .xent_grad = st_cuda_dev_xent_grad,
    .xent_loss = st_cuda_dev_xent_loss,
};

const struct st_device_ops st_device_cuda_ops = {
    .name = "cuda",
    .tensors = &st_tensor_cuda_ops,
    .open = cuda_open,
    .close = cuda_close,
    .arena = cuda_arena,
    .memory = cuda_memory,
    .pin = st_cuda_pin,
    .upload = st_cuda_upload,
    .download = st_cuda_download,
    .finish = cuda_finish,
    .notify = cuda_notify,
    .stamps = st_cuda_stamps,
    .stamp = st_cuda_stamp,
    .stamp_ns = st_cuda_stamp_ns,
    .zero = cuda_zero,
    .copy = cuda_copy,
    .embed_gather = st_cuda_dev_embed_gather,
    .embed_scatter = st_cuda_dev_embed_scatter,
    .reduce = st_cuda_dev_reduce,
    .grad_finish = st_cuda_dev_grad_finish,
    .update = st_cuda_dev_update,
    .join = st_cuda_join,
    .reads = st_cuda_reads,
    .add = st_cuda_caller_add,
};
