/* tests/cuda/emulator/world.h - what the parts of the emulated runtime share. */
#ifndef TESTS_CUDA_EMULATOR_WORLD_H
#define TESTS_CUDA_EMULATOR_WORLD_H

#include "tests/cuda/emulator/twin.h"
#include <functional>
#include <map>
#include <mutex>
#include <string>

namespace twin
{

constexpr int DEVICES_MAX = 8;
constexpr uint64_t DEVICE_BYTES = 1u << 30;
constexpr size_t SHARED_MOST = 227u << 10; /* of sm_90 */
constexpr size_t SHARED_TURING = 64u << 10;
constexpr int PRIORITY_LEAST = 0, PRIORITY_GREATEST = -5; /* of streams */

/* A piece of device memory, or of pinned memory. */
struct range {
    size_t bytes;
    int device;      /* of device memory */
    bool registered; /* pinned by cudaHostRegister, not by cudaHostAlloc */
};

struct failure {
    bool is_armed;
    std::string call; /* empty: any */
    uint64_t after, count, struck;
    cudaError_t err;
};

struct world {
    std::mutex lock; /* guards all below */
    int device_count = 1;
    uint64_t device_bytes = DEVICE_BYTES, used[DEVICES_MAX] = {};
    bool has_driver = true, has_slices = false, has_context[DEVICES_MAX] = {};
    size_t shared_most = SHARED_MOST; /* that a block may ask for */
    enum twin_kind kind = TWIN_CARD;
    std::map<uintptr_t, range> device, pinned; /* by address */
    failure fail = {};
    bool is_breaking = false;
    uint64_t break_after = 0;
    cudaError_t break_error = cudaSuccess, is_lost = cudaSuccess;
    struct twin_holdings held = {};
};

extern world the_world;
extern thread_local cudaError_t last_error;
extern thread_local int device_of_thread;

uintptr_t address(const void *at);
/** Whether [at, at + bytes) lies in one range; the lock is held. */
bool is_in(const std::map<uintptr_t, range> &ranges, const void *at, size_t bytes);

/** First of every call that can fail: an armed failure, a lost context, no device.  What it returns is noted. */
cudaError_t enter(const char *call);
/** Notes an error for cudaGetLastError and returns it.  NotReady is one: the guide says that it is not noted, runtimes have. */
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
/** What a lost device left. */
void destroy_handles();

/** What needs the thread's device makes its context. */
void use_context();
void count_stream(int change);
void count_event(int change);

} // namespace twin

#endif
