/* device_cuda_host.c - host memory of the cuda device: pinning it, and copies from and to it.
 *
 * A region is registered, so that its copies run beside everything else.  If the system refuses to register it, its copies go
 * through two pinned slots; if it refuses those too, the copies are pageable and the driver stages them.  In both cases the
 * calling thread waits.  Memory that was never given to pin() is pageable. */
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "offload/device/cuda/device_cuda_internal.h"

#include <assert.h>
#include <string.h>

/* --- regions --- */

static void free_slots(struct cuda_device *cuda)
{
    for (uint32_t i = 0; i < 2; i++) {
        if (cuda->slots[i].base != NULL)
            (void)cudaFreeHost(cuda->slots[i].base);
        if (cuda->slots[i].free != NULL)
            (void)cudaEventDestroy(cuda->slots[i].free);
        cuda->slots[i] = (struct cuda_slot){0};
    }
}

static cudaError_t take_slots(struct cuda_device *cuda)
{
    cudaError_t err = cudaSuccess;

    for (uint32_t i = 0; i < 2 && err == cudaSuccess && cuda->slots[i].base == NULL; i++) {
        struct cuda_slot *slot = &cuda->slots[i];
        void *base = NULL;

        err = ST_CUDA_PASS("cuda.host_alloc", cudaHostAlloc(&base, ST_CUDA_STAGING_BYTES, cudaHostAllocDefault));
        if (err == cudaSuccess) {
            slot->base = base;
            err =
                ST_CUDA_PASS("cuda.event", cudaEventCreateWithFlags(&slot->free, cudaEventBlockingSync | cudaEventDisableTiming));
        }
    }
    if (err != cudaSuccess)
        free_slots(cuda);
    return err;
}

/* Chooses how to copy memory that the system does not let us register. */
static enum cuda_path path_without(struct cuda_device *cuda, uint64_t bytes, cudaError_t refused)
{
    const cudaError_t err = take_slots(cuda);
    char size[24], slots[24];

    (void)cudaGetLastError(); /* clears the error, so that the next launch does not report it */
    st_size_text(size, bytes);
    if (err == cudaSuccess) {
        st_log(ST_LOG_WARN, "cuda: %s of host memory cannot be registered (%s: %s): copies pass %s of pinned memory, slower",
               size, cudaGetErrorName(refused), cudaGetErrorString(refused), st_size_text(slots, 2 * ST_CUDA_STAGING_BYTES));
        return CUDA_STAGED;
    }
    st_log(ST_LOG_WARN,
           "cuda: no pinned host memory (registering %s: %s; allocating: %s): copies are pageable, slower, and block", size,
           cudaGetErrorName(refused), cudaGetErrorName(err));
    return CUDA_PAGEABLE;
}

strata_status st_cuda_pin(struct st_device *dev, void *base, uint64_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_region *region = &cuda->regions[cuda->region_count];
    cudaError_t err;

    assert(cuda->region_count < ST_CUDA_REGIONS && bytes > 0);
    *region = (struct cuda_region){.base = base, .bytes = bytes, .path = CUDA_REGISTERED};
    (void)cudaSetDevice(cuda->index);
    err = ST_CUDA_PASS("cuda.register", cudaHostRegister(base, bytes, cudaHostRegisterDefault));
    if (err != cudaSuccess)
        region->path = path_without(cuda, bytes, err);
    cuda->region_count++;
    return STRATA_OK;
}

void st_cuda_host_fini(struct cuda_device *cuda)
{
    for (uint32_t i = 0; i < cuda->region_count; i++)
        if (cuda->regions[i].path == CUDA_REGISTERED)
            (void)cudaHostUnregister(cuda->regions[i].base);
    free_slots(cuda);
}

/* --- copies --- */

static bool is_staged(const struct cuda_device *cuda, const void *host)
{
    for (uint32_t i = 0; i < cuda->region_count; i++) {
        const struct cuda_region *region = &cuda->regions[i];
        const uintptr_t at = (uintptr_t)host, first = (uintptr_t)region->base;

        if (at >= first && at - first < region->bytes)
            return region->path == CUDA_STAGED;
    }
    return false;
}

static uint64_t piece_bytes(uint64_t at, uint64_t bytes)
{
    return bytes - at < ST_CUDA_STAGING_BYTES ? bytes - at : ST_CUDA_STAGING_BYTES;
}

/* A slot is filled as soon as its last copy is done; copies out of the slots may still be in progress on return. */
static cudaError_t staged_upload(struct cuda_device *cuda, unsigned char *dst, const unsigned char *src, uint64_t bytes)
{
    const cudaStream_t stream = cuda->queues[ST_QUEUE_UPLOAD].stream;
    cudaError_t err = cudaSuccess;
    uint32_t i = 0;

    for (uint64_t at = 0; at < bytes && err == cudaSuccess; at += ST_CUDA_STAGING_BYTES, i ^= 1) {
        const struct cuda_slot *slot = &cuda->slots[i];

        if ((err = cudaEventSynchronize(slot->free)) != cudaSuccess)
            break;
        memcpy(slot->base, src + at, piece_bytes(at, bytes));
        err = cudaMemcpyAsync(dst + at, slot->base, piece_bytes(at, bytes), cudaMemcpyHostToDevice, stream);
        if (err == cudaSuccess)
            err = cudaEventRecord(slot->free, stream);
    }
    return err;
}

/* One piece is copied out of its slot while the next one arrives in the other slot. */
static cudaError_t staged_download(struct cuda_device *cuda, unsigned char *dst, const unsigned char *src, uint64_t bytes)
{
    const cudaStream_t stream = cuda->queues[ST_QUEUE_DOWNLOAD].stream;
    const uint64_t pieces = (bytes + ST_CUDA_STAGING_BYTES - 1) / ST_CUDA_STAGING_BYTES;
    cudaError_t err = cudaSuccess;

    for (uint64_t i = 0; i <= pieces && err == cudaSuccess; i++) {
        const struct cuda_slot *slot = &cuda->slots[i % 2], *before = &cuda->slots[(i + 1) % 2];
        const uint64_t at = i * ST_CUDA_STAGING_BYTES, was = at - ST_CUDA_STAGING_BYTES;

        if (i < pieces) {
            err = cudaEventSynchronize(slot->free); /* an upload may still use it */
            if (err == cudaSuccess)
                err = cudaMemcpyAsync(slot->base, src + at, piece_bytes(at, bytes), cudaMemcpyDeviceToHost, stream);
            if (err == cudaSuccess)
                err = cudaEventRecord(slot->free, stream);
        }
        if (i > 0 && err == cudaSuccess) {
            err = cudaEventSynchronize(before->free);
            if (err == cudaSuccess)
                memcpy(dst + was, before->base, piece_bytes(was, bytes));
        }
    }
    return err;
}

strata_status st_cuda_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    const cudaStream_t stream = cuda->queues[ST_QUEUE_UPLOAD].stream;

    if (bytes == 0)
        return STRATA_OK;
    (void)cudaSetDevice(cuda->index);
    return st_cuda_status(ST_CUDA_PASS("cuda.upload", is_staged(cuda, src)
                                                          ? staged_upload(cuda, dst, src, bytes)
                                                          : cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, stream)),
                          "upload");
}

strata_status st_cuda_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    const cudaStream_t stream = cuda->queues[ST_QUEUE_DOWNLOAD].stream;

    if (bytes == 0)
        return STRATA_OK;
    (void)cudaSetDevice(cuda->index);
    return st_cuda_status(ST_CUDA_PASS("cuda.download", is_staged(cuda, dst)
                                                            ? staged_download(cuda, dst, src, bytes)
                                                            : cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, stream)),
                          "download");
}
