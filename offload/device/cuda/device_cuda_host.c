/* device_cuda_host.c - host memory of the cuda device: pinning it, and copies from and to it.
 *
 * A region is registered, so that its copies run beside everything else.  If the system refuses to register it, its copies go
 * through two pinned slots; if it refuses those too, the copies are pageable and the driver stages them.  In both cases the
 * calling thread waits.  Memory that was never given to pin() is pageable. */
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "offload/device/cuda/device_cuda_internal.h"

#include <assert.h>
#include <string.h>

/* --- regions --- */

#define WAYS         2u                   /* up, down */
#define STAGED_PROBE (UINT64_C(32) << 20) /* copied to find the rate */

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

static void add_region(struct cuda_device *cuda, unsigned char *base, uint64_t bytes, enum cuda_path path)
{
    assert(cuda->region_count < ST_CUDA_REGIONS && bytes > 0);
    cuda->regions[cuda->region_count++] = (struct cuda_region){.base = base, .bytes = bytes, .path = path};
}

static cudaError_t add_registered(struct cuda_device *cuda, unsigned char *base, uint64_t bytes)
{
    const cudaError_t err = ST_CUDA_PASS("cuda.register", cudaHostRegister(base, bytes, cudaHostRegisterDefault));

    if (err == cudaSuccess)
        add_region(cuda, base, bytes, CUDA_REGISTERED);
    else
        (void)cudaGetLastError(); /* clears the error, so that the next launch does not report it */
    return err;
}

/* Registers as much as the system allows in pieces, from the start, and returns how much that is. */
static uint64_t register_pieces(struct cuda_device *cuda, unsigned char *base, uint64_t bytes)
{
    const uint64_t share = (bytes / ST_CUDA_PIECES + ST_CUDA_STAGING_BYTES) & ~(ST_CUDA_STAGING_BYTES - 1);
    const uint64_t piece = share > ST_CUDA_PIECE_MIN ? share : ST_CUDA_PIECE_MIN;
    uint64_t at = 0;

    while (bytes > piece && at < bytes) {
        const uint64_t next = bytes - at < piece ? bytes - at : piece;

        if (add_registered(cuda, base + at, next) != cudaSuccess)
            break;
        at += next;
    }
    return at;
}

/* Bytes per second of a copy of this memory up (ST_QUEUE_UPLOAD) or back down; 0: unknown.  Its contents stay as they are. */
static double copy_rate(struct cuda_device *cuda, enum st_queue queue, unsigned char *base, uint64_t bytes)
{
    const uint64_t start_ns = st_clock_ns();
    strata_status st;

    if (bytes == 0)
        return 0;
    st = queue == ST_QUEUE_UPLOAD ? st_cuda_upload(&cuda->base, cuda->arena, base, bytes)
                                  : st_cuda_download(&cuda->base, base, cuda->arena, bytes);
    if (st == STRATA_OK)
        st = st_cuda_queue_finish(&cuda->queues[queue]);
    return st == STRATA_OK ? (double)bytes * 1e9 / (double)(st_clock_ns() - start_ns) : 0;
}

/* The first turn touches the memory.  What was not copied up is not copied down over it. */
static struct st_staged measure_staged(struct cuda_device *cuda, unsigned char *base, uint64_t bytes)
{
    const uint64_t probed = bytes < STAGED_PROBE ? bytes : STAGED_PROBE;
    const uint64_t room = probed < cuda->arena_bytes ? probed : cuda->arena_bytes;
    struct st_staged staged = {.bytes = bytes};

    for (uint32_t turn = 0; turn < 2; turn++) {
        staged.upload = copy_rate(cuda, ST_QUEUE_UPLOAD, base, room);
        staged.download = staged.upload > 0 ? copy_rate(cuda, ST_QUEUE_DOWNLOAD, base, room) : 0;
    }
    return staged;
}

/* The rest of a region, which the system does not let us register. */
static struct st_staged add_refused(struct cuda_device *cuda, unsigned char *base, uint64_t bytes, cudaError_t refused)
{
    const cudaError_t err = take_slots(cuda);
    struct st_staged staged;
    char size[24], slots[24];

    (void)cudaGetLastError();
    add_region(cuda, base, bytes, err == cudaSuccess ? CUDA_STAGED : CUDA_PAGEABLE);
    if (err == cudaSuccess)
        cuda->queues[ST_QUEUE_UPLOAD].copies = cuda->queues[ST_QUEUE_DOWNLOAD].copies = true;
    staged = measure_staged(cuda, base, bytes);
    st_size_text(size, bytes);
    if (err == cudaSuccess)
        st_log(ST_LOG_WARN,
               "cuda: %s of host memory cannot be registered (%s: %s): copies go through %s of pinned memory, %.3g GB/s up, %.3g "
               "down",
               size, cudaGetErrorName(refused), cudaGetErrorString(refused),
               st_size_text(slots, WAYS * 2 * ST_CUDA_STAGING_BYTES), staged.upload * 1e-9, staged.download * 1e-9);
    else
        st_log(ST_LOG_WARN,
               "cuda: no pinned host memory (registering %s: %s; allocating: %s): copies are pageable, %.3g GB/s up, %.3g down",
               size, cudaGetErrorName(refused), cudaGetErrorName(err), staged.upload * 1e-9, staged.download * 1e-9);
    return staged;
}

strata_status st_cuda_pin(struct st_device *dev, void *base, uint64_t bytes, struct st_staged *staged)
{
    struct cuda_device *cuda = cuda_of(dev);
    struct st_staged rest = {0};
    cudaError_t refused;
    uint64_t pieces = bytes;

    (void)cudaSetDevice(cuda->index);
    refused = add_registered(cuda, base, bytes);
    if (refused != cudaSuccess)
        pieces = register_pieces(cuda, base, bytes);
    if (pieces < bytes)
        rest = add_refused(cuda, (unsigned char *)base + pieces, bytes - pieces, refused);
    if (staged != NULL)
        *staged = rest;
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

/* The region that this address lies in, or NULL. */
static const struct cuda_region *region_of(const struct cuda_device *cuda, const void *host)
{
    for (uint32_t i = 0; i < cuda->region_count; i++) {
        const struct cuda_region *region = &cuda->regions[i];
        const uintptr_t at = (uintptr_t)host, first = (uintptr_t)region->base;

        if (at >= first && at - first < region->bytes)
            return region;
    }
    return NULL;
}

static bool is_staged(const struct cuda_device *cuda, const void *host)
{
    const struct cuda_region *region = region_of(cuda, host);

    return region != NULL && region->path == CUDA_STAGED;
}

/* How many of these bytes lie in the same region: the driver refuses a copy across two. */
static uint64_t bytes_within(const struct cuda_device *cuda, const unsigned char *host, uint64_t bytes)
{
    const struct cuda_region *region = region_of(cuda, host);
    const uint64_t left = region != NULL ? region->bytes - (uint64_t)(host - region->base) : bytes;

    return left < bytes ? left : bytes;
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

static strata_status enqueue(struct cuda_device *cuda, enum st_queue queue, unsigned char *dst, const unsigned char *src,
                             uint64_t bytes)
{
    struct cuda_queue *q = &cuda->queues[queue];
    const bool up = queue == ST_QUEUE_UPLOAD;
    strata_status st = STRATA_OK;

    (void)cudaSetDevice(cuda->index);
    for (uint64_t at = 0, part; at < bytes && st == STRATA_OK; at += part) {
        part = bytes_within(cuda, up ? src + at : dst + at, bytes - at);
        if (st_fault(up ? "cuda.upload" : "cuda.download", 0) != 0)
            st = st_cuda_status(cudaErrorUnknown, up ? "upload" : "download");
        else if (q->copies)
            st = st_cuda_queue_copy(q, dst + at, src + at, part);
        else
            st = st_cuda_status(
                cudaMemcpyAsync(dst + at, src + at, part, up ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost, q->stream),
                up ? "upload" : "download");
    }
    return st;
}

strata_status st_cuda_upload(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    return enqueue(cuda_of(dev), ST_QUEUE_UPLOAD, dst, src, bytes);
}

strata_status st_cuda_download(struct st_device *dev, void *dst, const void *src, uint64_t bytes)
{
    return enqueue(cuda_of(dev), ST_QUEUE_DOWNLOAD, dst, src, bytes);
}
