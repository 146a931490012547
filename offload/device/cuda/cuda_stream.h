/* offload/device/cuda/cuda_stream.h - a stream of one GPU, for libraries of NVIDIA's that other folders drive (offload/comm), and
 * a note: a few bytes that go to the GPU and come back in the stream's order.
 *
 * No type of CUDA is named here.  One thread at a time. */
#ifndef OFFLOAD_DEVICE_CUDA_CUDA_STREAM_H
#define OFFLOAD_DEVICE_CUDA_CUDA_STREAM_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

struct st_cuda_stream {
    uint32_t device;
    void *handle;                      /* cudaStream_t */
    unsigned char *note, *device_note; /* [note_bytes] each: pinned, and on the GPU */
    uint64_t note_bytes;
};

/** @param device  as in "cuda:N".  E_NOSYS, E_DEVICE_OOM, E_INTERNAL: as the cuda device says them; nothing is held then. */
strata_status st_cuda_stream_open(struct st_cuda_stream *out, uint32_t device, uint64_t note_bytes);
/** Before a library is called on this stream: its GPU becomes the thread's. */
strata_status st_cuda_stream_use(const struct st_cuda_stream *s);
/** Enqueue the copy of a part of the note. */
strata_status st_cuda_stream_send_note(const struct st_cuda_stream *s, uint64_t at, uint64_t bytes);
strata_status st_cuda_stream_take_note(const struct st_cuda_stream *s, uint64_t at, uint64_t bytes);
/** Whether all that was enqueued has ended.  An error: of any of it. */
strata_status st_cuda_stream_ended(const struct st_cuda_stream *s, bool *out);
/** With nothing enqueued.  A zeroed struct is allowed. */
void st_cuda_stream_close(struct st_cuda_stream *s);

#endif
