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

#define WAYS 2u /* up, down */

static void free_slots(struct cuda_device *cuda)
{
    for (uint32_t i = 0; i < WAYS * 2; i++) {
        struct cuda_slot *slot = &cuda->slots[i / 2][i % 2];

        if (slot->base != NULL)
            (void)cudaFreeHost(slot->base);
        if (slot->free != NULL)
            (void)cudaEventDestroy(slot->free);
        *slot = (struct cuda_slot){0};
    }
}

static cudaError_t take_slots(struct cuda_device *cuda)
{
    cudaError_t err = cudaSuccess;

    for (uint32_t i = 0; i < WAYS * 2 && err == cudaSuccess && cuda->slots[i / 2][i % 2].base == NULL; i++) {
        struct cuda_slot *slot = &cuda->slots[i / 2][i % 2];
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
        st_log(ST_LOG_WARN,
               "cuda: %s of host memory cannot be registered (%s: %s): copies are staged in %s of pinned memory, slower", size,
               cudaGetErrorName(refused), cudaGetErrorString(refused), st_size_text(slots, WAYS * 2 * ST_CUDA_STAGING_BYTES));
        cuda->queues[ST_QUEUE_UPLOAD].copies = cuda->queues[ST_QUEUE_DOWNLOAD].copies = true;
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

/* A slot is filled as soon as its last copy is done. */
static bool staged_upload(struct cuda_queue *q, const struct cuda_mark *m, cudaError_t *err)
{
    const struct cuda_slot *slots = q->cuda->slots[0];
    uint32_t i = 0;

    for (uint64_t at = 0; at < m->bytes && *err == cudaSuccess; at += ST_CUDA_STAGING_BYTES, i ^= 1) {
        const uint64_t bytes = piece_bytes(at, m->bytes);

        if (!st_cuda_queue_await(q, slots[i].free, err))
            return false;
        if (*err != cudaSuccess)
            break;
        memcpy(slots[i].base, m->src + at, bytes);
        *err = cudaMemcpyAsync(m->dst + at, slots[i].base, bytes, cudaMemcpyHostToDevice, q->stream);
        if (*err == cudaSuccess)
            *err = cudaEventRecord(slots[i].free, q->stream);
    }
    return true;
}

/* One piece is copied out of its slot while the next one arrives in the other slot. */
static bool staged_download(struct cuda_queue *q, const struct cuda_mark *m, cudaError_t *err)
{
    const uint64_t pieces = (m->bytes + ST_CUDA_STAGING_BYTES - 1) / ST_CUDA_STAGING_BYTES;

    for (uint64_t i = 0; i <= pieces && *err == cudaSuccess; i++) {
        const struct cuda_slot *slot = &q->cuda->slots[1][i % 2], *before = &q->cuda->slots[1][(i + 1) % 2];
        const uint64_t at = i * ST_CUDA_STAGING_BYTES, was = at - ST_CUDA_STAGING_BYTES;

        if (i < pieces)
            *err = cudaMemcpyAsync(slot->base, m->src + at, piece_bytes(at, m->bytes), cudaMemcpyDeviceToHost, q->stream);
        if (i < pieces && *err == cudaSuccess)
            *err = cudaEventRecord(slot->free, q->stream);
        if (i == 0 || *err != cudaSuccess)
            continue;
        if (!st_cuda_queue_await(q, before->free, err))
            return false;
        if (*err == cudaSuccess)
            memcpy(m->dst + was, before->base, piece_bytes(was, m->bytes));
    }
    return true;
}

bool st_cuda_host_copy(struct cuda_queue *q, const struct cuda_mark *m, cudaError_t *err)
{
    const bool up = q == &q->cuda->queues[ST_QUEUE_UPLOAD];
    const cudaEvent_t last = m->event; /* of a copy it is free */
    cudaError_t waited;

    if (is_staged(q->cuda, up ? m->src : m->dst)) {
        if (!(up ? staged_upload(q, m, err) : staged_download(q, m, err)))
            return false;
    } else {
        *err = cudaMemcpyAsync(m->dst, m->src, m->bytes, up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, q->stream);
    }
    waited = cudaEventRecord(last, q->stream);
    if (waited == cudaSuccess && !st_cuda_queue_await(q, last, &waited))
        return false;
    *err = *err == cudaSuccess ? waited : *err;
    return true;
}

strata_status st_cuda_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_queue *q = &cuda->queues[ST_QUEUE_UPLOAD];

    if (bytes == 0)
        return STRATA_OK;
    (void)cudaSetDevice(cuda->index);
    if (q->copies)
        return st_fault("cuda.upload", 0) != 0 ? st_cuda_status(cudaErrorUnknown, "upload")
                                               : st_cuda_queue_copy(q, dst, src, bytes);
    return st_cuda_status(ST_CUDA_PASS("cuda.upload", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyHostToDevice, q->stream)),
                          "upload");
}

strata_status st_cuda_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct cuda_queue *q = &cuda->queues[ST_QUEUE_DOWNLOAD];

    if (bytes == 0)
        return STRATA_OK;
    (void)cudaSetDevice(cuda->index);
    if (q->copies)
        return st_fault("cuda.download", 0) != 0 ? st_cuda_status(cudaErrorUnknown, "download")
                                                 : st_cuda_queue_copy(q, dst, src, bytes);
    return st_cuda_status(ST_CUDA_PASS("cuda.download", cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDeviceToHost, q->stream)),
                          "download");
}
