/* tests/cuda/emulator/cuda_runtime.h - what nvcc gives a .cu file, for a C++ compiler; see block.h.
 *
 * Not here on purpose: atomics on floats and the fast intrinsics (__expf, __fdividef, ...), which kernels must not use. */
#ifndef TESTS_CUDA_EMULATOR_CUDA_RUNTIME_H
#define TESTS_CUDA_EMULATOR_CUDA_RUNTIME_H

#include "tests/cuda/emulator/cuda_runtime_api.h"

#ifdef __cplusplus
#include "tests/cuda/emulator/block.h"
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <math.h>

#ifndef __CUDACC__
#define __CUDACC__ 1
#endif
#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__    __attribute__((noinline))
#define __align__(n)    __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __shared__ static thread_local
#define __restrict__ __restrict

#define ST_LAUNCH(kernel, grid, block, shared_bytes, stream, ...)                                                                \
    twin::launch_kernel(#kernel, (grid), (block), (shared_bytes), (stream), (kernel), __VA_ARGS__)
/* Filled with 0xff (NaN in every float format) when a block begins. */
#define ST_SHARED_DYNAMIC(name) unsigned char *const name = twin::shared_dynamic()

template <class T> cudaError_t cudaFuncSetAttribute(T *kernel, enum cudaFuncAttribute attr, int value)
{
    return cudaFuncSetAttribute(reinterpret_cast<const void *>(kernel), attr, value);
}
template <class T> cudaError_t cudaMalloc(T **ptr, size_t bytes)
{
    return cudaMalloc(reinterpret_cast<void **>(ptr), bytes);
}

#include "tests/cuda/emulator/intrinsics.h"
#endif
#endif
