/* tests/cuda/emulator/world.h - what the parts of the emulated runtime share. */
#ifndef TESTS_CUDA_EMULATOR_WORLD_H
#define TESTS_CUDA_EMULATOR_WORLD_H

#include "tests/cuda/emulator/twin.h"
#include <functional>

namespace twin
{

/** First of every call that can fail: an armed failure, a lost context, no device.  What it returns is noted. */
cudaError_t enter(const char *call);
/** Notes an error for cudaGetLastError and returns it. */
cudaError_t note(cudaError_t err);
/** Before an operation of a stream: false when the context is lost, and the operation must not run. */
bool may_run();
cudaError_t lost();

/** Whether [at, at + bytes) lies in one allocation of device memory, or in pinned host memory. */
bool is_device(const void *at, size_t bytes);
bool is_pinned(const void *at, size_t bytes);

/** Runs op after all that is in the stream; on the calling thread, after all blocking streams, where stream is NULL. */
cudaError_t push(cudaStream_t stream, std::function<void()> op);
cudaError_t synchronize_all();

void count_stream(int change);
void count_event(int change);

} // namespace twin

#endif
