/* device_cuda_stamps.c - time stamps on the queues: events that keep the time, unlike those of the queues themselves. */
#include "core/base/error.h"
#include "offload/device/cuda/device_cuda_internal.h"

#include <assert.h>
#include <stdlib.h>

strata_status st_cuda_stamps(struct st_device *dev, uint32_t count)
{
    struct cuda_device *cuda = cuda_of(dev);
    cudaError_t err = cudaSuccess;

    assert(cuda->stamps == NULL);
    (void)cudaSetDevice(cuda->index);
    cuda->stamps = calloc(count, sizeof(*cuda->stamps));
    if (cuda->stamps == NULL)
        return st_nomem(count * sizeof(*cuda->stamps));
    while (err == cudaSuccess && cuda->stamp_count < count) {
        err = ST_CUDA_PASS("cuda.event", cudaEventCreateWithFlags(&cuda->stamps[cuda->stamp_count], cudaEventBlockingSync));
        cuda->stamp_count += err == cudaSuccess;
    }
    return st_cuda_status(err, "cudaEventCreateWithFlags");
}

void st_cuda_stamps_destroy(struct cuda_device *cuda, bool lost)
{
    for (uint32_t i = 0; i < cuda->stamp_count && !lost; i++)
        (void)cudaEventDestroy(cuda->stamps[i]);
    free(cuda->stamps);
}

strata_status st_cuda_stamp(struct st_device *dev, enum st_queue queue, uint32_t index)
{
    const struct cuda_device *cuda = cuda_of(dev);

    assert(index < cuda->stamp_count);
    (void)cudaSetDevice(cuda->index);
    return st_cuda_status(ST_CUDA_PASS("cuda.record", cudaEventRecord(cuda->stamps[index], cuda->queues[queue].stream)),
                          "cudaEventRecord");
}

strata_status st_cuda_stamp_ns(struct st_device *dev, uint32_t from, uint32_t to, uint64_t *ns)
{
    struct cuda_device *cuda = cuda_of(dev);
    strata_status st = STRATA_OK;
    float ms = 0;
    cudaError_t err;

    assert(from < cuda->stamp_count && to < cuda->stamp_count);
    (void)cudaSetDevice(cuda->index);
    if (cudaEventQuery(cuda->stamps[to]) == cudaErrorNotReady) { /* finish() has a deadline, an event's wait has none */
        (void)cudaGetLastError();
        for (uint32_t i = 0; i < ST_QUEUE_COUNT && st == STRATA_OK; i++)
            st = st_cuda_queue_finish(&cuda->queues[i]);
    }
    if (st != STRATA_OK)
        return st;
    err = ST_CUDA_PASS("cuda.elapsed", cudaEventElapsedTime(&ms, cuda->stamps[from], cuda->stamps[to]));
    if (err != cudaSuccess)
        return st_cuda_status(err, "work on the device");
    *ns = ms > 0 ? (uint64_t)((double)ms * 1e6 + 0.5) : 0;
    return STRATA_OK;
}
