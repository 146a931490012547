/* device_cuda_caller.c - the stream of a caller that computes with the arena's memory: work of the engine goes on it, or waits
 * for it.  On the caller's thread, whose current GPU becomes this one.
 *
 * The other direction needs no call: what the device was seen to have done is there for all that is enqueued afterwards. */
#include "core/base/error.h"
#include "kernels/cuda/cuda_ops.h"
#include "offload/device/cuda/device_cuda_internal.h"

static struct cuda_queue *queue_of(struct cuda_device *cuda)
{
    return &cuda->queues[ST_QUEUE_CALLER];
}

/* Records an event that no mark uses now, and so asks the driver whether it knows the stream. */
strata_status st_cuda_join(struct st_device *dev, void *stream)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_queue *q = queue_of(cuda);
    cudaError_t err;

    (void)cudaSetDevice(cuda->index);
    err = ST_CUDA_PASS("cuda.record", cudaEventRecord(q->marks[q->added % ST_CUDA_MARKS].event, stream));
    if (err == cudaErrorInvalidResourceHandle) {
        (void)cudaGetLastError();
        return st_error(STRATA_E_INVAL, "cuda:%d: the stream %p is none of this GPU's", cuda->index, stream);
    }
    if (err == cudaSuccess)
        q->stream = stream;
    return st_cuda_status(err, "cudaEventRecord on the caller's stream");
}

strata_status st_cuda_reads(struct st_device *dev, const void *at)
{
    const struct cuda_device *cuda = cuda_of(dev);
    struct cudaPointerAttributes is;
    cudaError_t err;

    (void)cudaSetDevice(cuda->index);
    err = ST_CUDA_PASS("cuda.attributes", cudaPointerGetAttributes(&is, at));
    if (err != cudaSuccess)
        return st_cuda_status(err, "cudaPointerGetAttributes");
    if (is.type == cudaMemoryTypeManaged || (is.type == cudaMemoryTypeDevice && is.device == cuda->index))
        return STRATA_OK;
    if (is.type == cudaMemoryTypeDevice)
        return st_error(STRATA_E_INVAL, "cuda:%d: %p is memory of cuda:%d", cuda->index, at, is.device);
    return st_error(STRATA_E_INVAL, "cuda:%d: %p is host memory, not the GPU's", cuda->index, at);
}

strata_status st_cuda_caller_add(struct st_device *dev, float *sum, const void *addend, strata_dtype dt, uint64_t elems)
{
    struct cuda_device *cuda = cuda_of(dev);

    (void)cudaSetDevice(cuda->index);
    (void)cudaGetLastError(); /* one that somebody else left */
    return st_cuda_status(ST_CUDA_PASS("cuda.launch", st_cuda_reduce(queue_of(cuda)->stream, sum, addend, elems, dt)), "add");
}
