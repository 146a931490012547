/* tests/cuda/cuda_fixture.h - buffers that lie on the host and on the device, between guards. */
#ifndef TESTS_CUDA_CUDA_FIXTURE_H
#define TESTS_CUDA_CUDA_FIXTURE_H

#include "strata/types.h"
#include <cuda_runtime_api.h>

#define CF_GUARD_BYTE 0xff /* NaN in every dtype */

/** Fails the test, naming the error, unless err is cudaSuccess. */
void cf_ok(cudaError_t err);

/* `bytes` bytes at `host`, and again at `device`.  Around both lie guards, which nothing may write. */
struct cf_buffer {
    unsigned char *host;
    void *device;
    size_t bytes;
    unsigned char *host_whole, *device_whole;
    size_t whole_bytes;
};

/** All of it, on both sides, holds CF_GUARD_BYTE.  @param shift  bytes that both addresses are off a multiple of 64 */
struct cf_buffer cf_create(size_t bytes, size_t shift);
/** Uniform in [-size, size), a function of the seed, on both sides. */
struct cf_buffer cf_create_random(uint64_t elems, strata_dtype dt, uint64_t seed, double size, size_t shift);
void cf_upload(const struct cf_buffer *b);
void cf_download(struct cf_buffer *b);
/** Fails if a guard was written, here or there. */
void cf_destroy(struct cf_buffer *b);

#endif
