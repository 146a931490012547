/* tests/cuda/emulator/block.h - blocks, warps and threads of a kernel on the CPU.
 *
 * A CUDA thread is a fiber; a block's fibers run on one thread of the host, in an order that changes from launch to launch and
 * from barrier to barrier (forward, backward, strided), so that a result which depends on it is soon seen; blocks run one after
 * the other, forward or backward.  What leaves threads waiting for ever - a barrier that not all threads of the block reach, a
 * warp operation that not all lanes of its mask reach, at one and the same line - aborts and names kernel, block and threads.
 *
 * A struct that a kernel takes needs a name that no other .cu file gives to another struct: one program holds them all. */
#ifndef TESTS_CUDA_EMULATOR_BLOCK_H
#define TESTS_CUDA_EMULATOR_BLOCK_H

#include "tests/cuda/emulator/cuda_runtime_api.h"
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#define TWIN_WARP          32u
#define TWIN_BLOCK_MAX     1024u
#define TWIN_SHARED_MAX    (227u << 10) /* dynamic shared memory of sm_90, on request */
#define TWIN_SHARED_COMMON (48u << 10)  /* without a request */

extern __thread uint3 threadIdx, blockIdx;
extern __thread dim3 blockDim, gridDim;
constexpr int warpSize = TWIN_WARP;

namespace twin
{

/* Where in the kernel's source a thread waits. */
struct site {
    const char *what, *file;
    int line;
};

struct launch {
    const char *kernel;
    dim3 grid, block;
    size_t shared_bytes;
    uint64_t order; /* which of the orders of threads and blocks */
    std::function<void()> thread;
};

using combine_fn = void(void *combine, uint32_t mask, const void *const in[TWIN_WARP], void *const out[TWIN_WARP]);

/* Runs all blocks on the calling thread. */
void run(const launch &l);
/* Wait for all threads of the block; the sum of their values. */
int barrier(int value, const site &at);
/* Wait for the lanes of the mask; the last to come runs `combine` over what each gave and takes. */
void meet(uint32_t mask, const void *in, void *out, void *combine, combine_fn *call, const site &at);
unsigned char *shared_dynamic();
/* Of all kernels, the calling thread's. */
void poison_static_shared();
uint32_t lane_index();
/* NULL: the calling thread runs none. */
const char *kernel_of_thread();
[[noreturn]] void stop(const char *why, const site &at);

/* Enqueue; the errors of a launch that CUDA finds at once. */
cudaError_t enqueue(const void *kernel, cudaStream_t stream, launch &&l);

template <class... Params, class... Args>
static inline void launch_kernel(const char *name, dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream,
                                 void (*kernel)(Params...), Args &&...args)
{
    std::tuple<std::decay_t<Params>...> params{static_cast<std::decay_t<Params>>(std::forward<Args>(args))...};

    enqueue(reinterpret_cast<const void *>(kernel), stream,
            launch{name, grid, block, shared_bytes, 0, [kernel, params]() { std::apply(kernel, params); }});
}

} // namespace twin

/* A warp operation of one's own: every lane of `mask` gives an In and takes an Out; combine(mask, in, out) fills *out[lane] from
 * *in[lane] for all lanes of the mask at once (those of others are null).  For kernels/cuda/mma.cuh and the like. */
template <class Out, class In, class Combine>
Out twin_warp(uint32_t mask, const In &in, Combine combine, const char *what, const char *file = __builtin_FILE(),
              int line = __builtin_LINE())
{
    Out out{};
    const auto call = [](void *of, uint32_t lanes, const void *const ins[TWIN_WARP], void *const outs[TWIN_WARP]) {
        const In *typed_in[TWIN_WARP];
        Out *typed_out[TWIN_WARP];

        for (uint32_t i = 0; i < TWIN_WARP; i++) {
            typed_in[i] = static_cast<const In *>(ins[i]);
            typed_out[i] = static_cast<Out *>(outs[i]);
        }
        (*static_cast<Combine *>(of))(lanes, static_cast<const In *const *>(typed_in), static_cast<Out *const *>(typed_out));
    };

    twin::meet(mask, &in, &out, &combine, call, twin::site{what, file, line});
    return out;
}

#endif
