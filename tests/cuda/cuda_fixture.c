/* tests/cuda/cuda_fixture.c - see cuda_fixture.h. */
#include "tests/common/test.h"
#include "tests/cuda/cuda_fixture.h"
#include "tests/offload/device_values.h"
#include <stdlib.h>
#include <string.h>

#define GUARD     256u /* bytes before and behind */
#define ALIGNMENT 64u

void cf_ok(cudaError_t err)
{
    if (err != cudaSuccess)
        fail_msg("%s: %s", cudaGetErrorName(err), cudaGetErrorString(err));
}

struct cf_buffer cf_create(size_t bytes, size_t shift)
{
    const size_t whole = (GUARD + shift + bytes + GUARD + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    struct cf_buffer b = {.bytes = bytes, .host_whole = aligned_alloc(ALIGNMENT, whole), .whole_bytes = whole};
    void *device;

    assert_non_null(b.host_whole);
    cf_ok(cudaMalloc(&device, whole));
    b.device_whole = device;
    b.host = b.host_whole + GUARD + shift;
    b.device = b.device_whole + GUARD + shift;
    memset(b.host_whole, CF_GUARD_BYTE, whole);
    cf_ok(cudaMemcpy(b.device_whole, b.host_whole, whole, cudaMemcpyHostToDevice));
    return b;
}

struct cf_buffer cf_create_random(uint64_t elems, strata_dtype dt, uint64_t seed, double size, size_t shift)
{
    const struct cf_buffer b = cf_create(elems * strata_dtype_bytes(dt), shift);

    for (uint64_t i = 0; i < elems; i++)
        df_set(b.host, i, dt, size * df_uniform(seed, i));
    cf_upload(&b);
    return b;
}

void cf_upload(const struct cf_buffer *b)
{
    cf_ok(cudaMemcpy(b->device, b->host, b->bytes, cudaMemcpyHostToDevice));
}

void cf_download(struct cf_buffer *b)
{
    cf_ok(cudaMemcpy(b->host, b->device, b->bytes, cudaMemcpyDeviceToHost));
}

static void assert_guards(const struct cf_buffer *b)
{
    const unsigned char *const end = b->host + b->bytes, *const whole_end = b->host_whole + b->whole_bytes;

    for (const unsigned char *at = b->host_whole; at < whole_end; at = at + 1 == b->host ? end : at + 1)
        assert_int_equal(*at, CF_GUARD_BYTE);
}

void cf_destroy(struct cf_buffer *b)
{
    assert_guards(b);
    cf_ok(cudaMemcpy(b->host_whole, b->device_whole, b->whole_bytes, cudaMemcpyDeviceToHost));
    assert_guards(b);
    cf_ok(cudaFree(b->device_whole));
    free(b->host_whole);
}
