/* tests/cuda/device_rig.h - the cuda device over the emulator: opened, with memory to copy, notes of its marks, and the check
 * that a test leaves nothing behind. */
#ifndef TESTS_CUDA_DEVICE_RIG_H
#define TESTS_CUDA_DEVICE_RIG_H

#include "core/base/error.h"
#include "offload/device/cuda/device_cuda_internal.h"
#include "tests/common/test.h"
#include "tests/cuda/emulator/blas.h"
#include "tests/cuda/emulator/twin.h"
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA    (UINT64_C(24) << 20)
#define BYTES    (2 * ST_CUDA_STAGING_BYTES + 12345)
#define ok(call) assert_int_equal((call), STRATA_OK)

extern const struct st_device_ops *const ops;
extern struct twin_blas *blas; /* the emulator's cublasLt, once tests run */
extern const char *blas_file;  /* its name */

int before_each(void **state);
int after_each(void **state);
/** Loads the emulator's cublasLt, named by STRATA_CUBLASLT.  False, and a sentence: it is not there. */
bool device_rig_load(void);

void assert_nothing_held(void);
struct st_device *opened(uint64_t arena_bytes);
/** [2 * BYTES], the first half filled; freed by the caller. */
unsigned char *host_memory(void);
/** Copies whatever the device's queues do. */
void to_device(void *device, const void *host, size_t bytes);
void from_device(void *host, const void *device, size_t bytes);
/** Up, across the arena, and down again without the last bytes, from the first half of `host` to the second. */
strata_status round_trip(struct st_device *dev, unsigned char *host);
void assert_round_trip(struct st_device *dev, unsigned char *host);
struct st_matmul square(uint32_t size, strata_dtype ab, strata_dtype c);

/* What a mark's callback was told. */
struct note {
    atomic_uint *clock;
    unsigned came; /* 1-based; written by the watcher before the last note's count is seen */
    strata_status st;
    const unsigned char *landed; /* or NULL */
    unsigned char value;
    char text[256];
};
void take_note(void *note, strata_status st);

#endif
