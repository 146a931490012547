/* cuda_stream.c - see offload/device/cuda/cuda_stream.h. */
#include "offload/device/cuda/cuda_stream.h"
#include "offload/device/cuda/device_cuda_internal.h"

strata_status st_cuda_stream_use(const struct st_cuda_stream *s)
{
    return st_cuda_status(ST_CUDA_PASS("cuda.device", cudaSetDevice((int)s->device)), "cudaSetDevice");
}

strata_status st_cuda_stream_open(struct st_cuda_stream *out, uint32_t device, uint64_t note_bytes)
{
    struct st_cuda_stream s = {.device = device, .note_bytes = note_bytes};
    cudaStream_t stream = NULL;
    void *note = NULL, *device_note = NULL;
    strata_status st = st_cuda_stream_use(&s);

    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.stream", cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)),
                            "cudaStreamCreate");
    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.pin", cudaHostAlloc(&note, note_bytes, cudaHostAllocDefault)), "cudaHostAlloc");
    if (st == STRATA_OK)
        st = st_cuda_status(ST_CUDA_PASS("cuda.malloc", cudaMalloc(&device_note, note_bytes)), "cudaMalloc");
    s.handle = stream;
    s.note = note;
    s.device_note = device_note;
    if (st == STRATA_OK)
        *out = s;
    else
        st_cuda_stream_close(&s);
    return st;
}

strata_status st_cuda_stream_send_note(const struct st_cuda_stream *s, uint64_t at, uint64_t bytes)
{
    return st_cuda_status(
        ST_CUDA_PASS("cuda.upload", cudaMemcpyAsync(s->device_note + at, s->note + at, bytes, cudaMemcpyHostToDevice, s->handle)),
        "cudaMemcpyAsync");
}

strata_status st_cuda_stream_take_note(const struct st_cuda_stream *s, uint64_t at, uint64_t bytes)
{
    return st_cuda_status(ST_CUDA_PASS("cuda.download", cudaMemcpyAsync(s->note + at, s->device_note + at, bytes,
                                                                        cudaMemcpyDeviceToHost, s->handle)),
                          "cudaMemcpyAsync");
}

strata_status st_cuda_stream_ended(const struct st_cuda_stream *s, bool *out)
{
    const cudaError_t err = ST_CUDA_PASS("cuda.query", cudaStreamQuery(s->handle));

    *out = err == cudaSuccess;
    if (err != cudaErrorNotReady)
        return st_cuda_status(err, "cudaStreamQuery");
    (void)cudaGetLastError();
    return STRATA_OK;
}

void st_cuda_stream_close(struct st_cuda_stream *s)
{
    if (s->handle != NULL || s->note != NULL || s->device_note != NULL)
        (void)cudaSetDevice((int)s->device);
    if (s->device_note != NULL)
        (void)cudaFree(s->device_note);
    if (s->note != NULL)
        (void)cudaFreeHost(s->note);
    if (s->handle != NULL)
        (void)cudaStreamDestroy(s->handle);
    (void)cudaGetLastError();
    *s = (struct st_cuda_stream){0};
}
