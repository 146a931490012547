/* link_roof_cuda.c - plain copies over a GPU's links.  See offload/device/cuda/link_roof.h. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "offload/device/cuda/link_roof.h"

#include <assert.h>
#include <stdlib.h>

enum { UP, DOWN, WAYS };

/* One direction. */
struct way {
    cudaStream_t stream;
    void *host, *device; /* [bytes] each */
};

struct st_link_roof {
    int index;
    uint64_t bytes;
    struct way way[WAYS];
};

static strata_status open_way(struct way *w, uint64_t bytes)
{
    strata_status st = st_cuda_status(ST_CUDA_PASS("cuda.link", cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking)),
                                      "cudaStreamCreate");

    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.link", cudaMalloc(&w->device, bytes)), "cudaMalloc of a bare copy");
    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.link", cudaHostAlloc(&w->host, bytes, cudaHostAllocDefault)),
                            "cudaHostAlloc of a bare copy");
    return st;
}

strata_status st_link_roof_open(struct st_link_roof **out, const char *device, uint64_t bytes)
{
    const struct st_device_ops *ops = st_device_find(device);
    struct st_device_memory memory;
    struct st_link_roof *roof;
    strata_status st;

    assert(bytes > 0);
    if (ops != &st_device_cuda_ops)
        return st_error(STRATA_E_NOSYS, "%s has no links of its own", device);
    st = ops->memory(st_device_index(device), &memory); /* does it exist, and can it be used? */
    if (st != STRATA_OK)
        return st;
    roof = calloc(1, sizeof(*roof));
    if (roof == NULL)
        return st_nomem(sizeof(*roof));
    roof->index = (int)st_device_index(device);
    roof->bytes = bytes;
    for (int i = 0; i < WAYS && st == STRATA_OK; i++)
        st = open_way(&roof->way[i], bytes);
    if (st == STRATA_OK)
        *out = roof;
    else
        st_link_roof_close(roof);
    return st;
}

void st_link_roof_close(struct st_link_roof *roof)
{
    if (roof == NULL)
        return;
    (void)cudaSetDevice(roof->index);
    for (int i = 0; i < WAYS; i++) {
        struct way *w = &roof->way[i];

        if (w->stream != NULL)
            (void)cudaStreamDestroy(w->stream);
        if (w->device != NULL)
            (void)cudaFree(w->device);
        if (w->host != NULL)
            (void)cudaFreeHost(w->host);
    }
    (void)cudaGetLastError(); /* clears the error, so that the next launch does not report it */
    free(roof);
}

static cudaError_t copy_once(const struct st_link_roof *roof, enum st_link_direction directions, uint64_t bytes)
{
    const struct way *up = &roof->way[UP], *down = &roof->way[DOWN];
    cudaError_t err = cudaSuccess;

    if ((directions & ST_LINK_UPLOAD) != 0)
        err = cudaMemcpyAsync(up->device, up->host, bytes, cudaMemcpyHostToDevice, up->stream);
    if (err == cudaSuccess && (directions & ST_LINK_DOWNLOAD) != 0)
        err = cudaMemcpyAsync(down->host, down->device, bytes, cudaMemcpyDeviceToHost, down->stream);
    return err;
}

strata_status st_link_roof_run(struct st_link_roof *roof, enum st_link_direction directions, uint64_t bytes, uint64_t count,
                               double *seconds)
{
    cudaError_t err = cudaSetDevice(roof->index);
    const uint64_t begin_ns = st_clock_ns();

    assert(bytes > 0 && bytes <= roof->bytes && count > 0);
    for (uint64_t i = 0; i < count && err == cudaSuccess; i++)
        err = ST_CUDA_PASS("cuda.link", copy_once(roof, directions, bytes));
    /* Wait for what was enqueued even if the rest failed.  Without a deadline: somebody looks at a bench, and may end it. */
    for (int i = 0; i < WAYS; i++) {
        const cudaError_t waited = cudaStreamSynchronize(roof->way[i].stream);

        err = err == cudaSuccess ? waited : err;
    }
    if (err != cudaSuccess)
        return st_cuda_status(err, "a bare copy");
    *seconds = (double)(st_clock_ns() - begin_ns) * 1e-9 / (double)count;
    return STRATA_OK;
}
