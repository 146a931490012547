/* kernels/cuda/launch.h - shared by all CUDA launchers.
 *
 * A launcher is a C function in a .cu file: it enqueues kernels on `stream` and returns at once: cudaSuccess, or an error if
 * nothing was enqueued.  Pointers are device addresses unless stated otherwise.  No launcher allocates, synchronises, or keeps
 * anything between calls.  Deterministic: fixed shapes of blocks, fixed order of sums, no float atomics. */
#ifndef KERNELS_CUDA_LAUNCH_H
#define KERNELS_CUDA_LAUNCH_H

#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define ST_CUDA_API extern "C"
#else
#define ST_CUDA_API extern
#endif

/* Launch a kernel.  The tests' emulator (tests/cuda/emulator) defines its own version first, so that the same sources run on the
 * CPU. */
#if defined(__CUDACC__) && !defined(ST_LAUNCH)
#define ST_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                                \
    (kernel)<<<(grid), (block), (shared_bytes), (stream)>>>(__VA_ARGS__)
/* The block's dynamic shared memory, aligned to 16 bytes. */
#define ST_SHARED_DYNAMIC(name) extern __shared__ __align__(16) unsigned char name[]
#endif

#endif
