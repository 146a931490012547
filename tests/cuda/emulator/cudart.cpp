/* tests/cuda/emulator/cudart.cpp - devices, memory, copies, errors. */
#include "tests/cuda/emulator/world.h"
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>

namespace
{

constexpr int DEVICES_MAX = 8;
constexpr uint64_t DEVICE_BYTES = 1u << 30;
constexpr size_t ALIGN = 512;

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
    bool has_driver = true;
    std::map<uintptr_t, range> device, pinned;
    failure fail = {};
    bool is_breaking = false;
    uint64_t break_after = 0;
    cudaError_t break_error = cudaSuccess, is_lost = cudaSuccess;
    struct twin_holdings held = {};
};

world the_world;
thread_local cudaError_t last_error = cudaSuccess;
thread_local int device_of_thread = 0;

uintptr_t address(const void *at)
{
    return reinterpret_cast<uintptr_t>(at);
}

bool is_in(const std::map<uintptr_t, range> &ranges, const void *at, size_t bytes)
{
    auto next = ranges.upper_bound(address(at));

    if (next == ranges.begin())
        return false;
    --next;
    return address(at) + bytes <= next->first + next->second.bytes;
}

bool overlaps(const std::map<uintptr_t, range> &ranges, const void *at, size_t bytes)
{
    const auto next = ranges.lower_bound(address(at));

    return (next != ranges.end() && next->first < address(at) + bytes) || is_in(ranges, at, 1);
}

/* Takes device memory of the thread's device; the lock is held. */
cudaError_t take(void **ptr, size_t bytes)
{
    world &w = the_world;
    const size_t rounded = (bytes + ALIGN - 1) / ALIGN * ALIGN;
    void *at;

    if (rounded < bytes || rounded > w.device_bytes - w.used[device_of_thread])
        return cudaErrorMemoryAllocation;
    at = aligned_alloc(ALIGN, rounded);
    if (at == nullptr)
        return cudaErrorMemoryAllocation;
    w.device[address(at)] = {rounded, device_of_thread, false};
    w.used[device_of_thread] += rounded;
    w.held.device_bytes += rounded;
    *ptr = at;
    return cudaSuccess;
}

cudaError_t find_failure(const char *call)
{
    failure &f = the_world.fail;

    if (!f.is_armed || (!f.call.empty() && f.call != call))
        return cudaSuccess;
    if (f.after > 0) {
        f.after--;
        return cudaSuccess;
    }
    if (f.struck == f.count)
        return cudaSuccess;
    f.struck++;
    return f.err;
}

cudaError_t find_device()
{
    if (!the_world.has_driver)
        return cudaErrorInsufficientDriver;
    return the_world.device_count > 0 ? cudaSuccess : cudaErrorNoDevice;
}

} // namespace

namespace twin
{

cudaError_t note(cudaError_t err)
{
    if (err != cudaSuccess && err != cudaErrorNotReady)
        last_error = err;
    return err;
}

cudaError_t enter(const char *call)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);
    cudaError_t err = find_device();

    if (err == cudaSuccess)
        err = find_failure(call);
    if (err == cudaSuccess)
        err = the_world.is_lost;
    return note(err);
}

bool may_run()
{
    const std::lock_guard<std::mutex> guard(the_world.lock);
    world &w = the_world;

    if (w.is_breaking && w.break_after-- == 0) {
        w.is_breaking = false;
        w.is_lost = w.break_error;
    }
    return w.is_lost == cudaSuccess;
}

cudaError_t lost()
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    return the_world.is_lost;
}

bool is_device(const void *at, size_t bytes)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    return is_in(the_world.device, at, bytes);
}

bool is_pinned(const void *at, size_t bytes)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    return is_in(the_world.pinned, at, bytes);
}

void count_stream(int change)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.held.streams += static_cast<uint32_t>(change);
}

void count_event(int change)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.held.events += static_cast<uint32_t>(change);
}

} // namespace twin

using twin::enter;
using twin::note;

/* --- twin.h --- */

void twin_reset(void)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);
    world &w = the_world;

    w.device_count = 1;
    w.device_bytes = DEVICE_BYTES;
    w.has_driver = true;
    w.fail = {};
    w.is_breaking = false;
    w.is_lost = cudaSuccess;
    for (const auto &left : w.device) { /* a lost context takes its memory along */
        w.used[left.second.device] -= left.second.bytes;
        w.held.device_bytes -= left.second.bytes;
        free(reinterpret_cast<void *>(left.first));
    }
    w.device.clear();
    last_error = cudaSuccess;
    device_of_thread = 0;
}

void twin_set_devices(int count, uint64_t bytes)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.device_count = count < DEVICES_MAX ? count : DEVICES_MAX;
    the_world.device_bytes = bytes;
}

void twin_remove_driver(void)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.has_driver = false;
}

void twin_fail(const char *call, uint64_t after, uint64_t count, cudaError_t err)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.fail = {true, call != nullptr ? call : "", after, count, 0, err};
}

uint64_t twin_disarm(void)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);
    const uint64_t struck = the_world.fail.struck;

    the_world.fail = {};
    return struck;
}

void twin_break(uint64_t after, cudaError_t err)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.is_breaking = true;
    the_world.break_after = after;
    the_world.break_error = err;
}

struct twin_holdings twin_held(void)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    return the_world.held;
}

/* --- errors --- */

const char *cudaGetErrorName(cudaError_t err)
{
    switch (err) {
#define TWIN_NAME(name, value, text)                                                                                             \
    case name:                                                                                                                   \
        return #name;
        TWIN_ERRORS(TWIN_NAME)
#undef TWIN_NAME
    }
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t err)
{
    switch (err) {
#define TWIN_TEXT(name, value, text)                                                                                             \
    case name:                                                                                                                   \
        return text;
        TWIN_ERRORS(TWIN_TEXT)
#undef TWIN_TEXT
    }
    return "unrecognized error code";
}

cudaError_t cudaPeekAtLastError(void)
{
    const cudaError_t err = twin::lost();

    return err != cudaSuccess ? err : last_error;
}

cudaError_t cudaGetLastError(void)
{
    const cudaError_t err = cudaPeekAtLastError();

    last_error = cudaSuccess;
    return err;
}

/* --- devices --- */

cudaError_t cudaDriverGetVersion(int *version)
{
    *version = the_world.has_driver ? CUDART_VERSION : 0;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *version)
{
    *version = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    const cudaError_t err = enter("cudaGetDeviceCount");

    *count = err == cudaSuccess ? the_world.device_count : 0;
    return err;
}

cudaError_t cudaSetDevice(int device)
{
    const cudaError_t err = enter("cudaSetDevice");

    if (err != cudaSuccess)
        return err;
    if (device < 0 || device >= the_world.device_count)
        return note(cudaErrorInvalidDevice);
    device_of_thread = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    const cudaError_t err = enter("cudaGetDevice");

    if (err == cudaSuccess)
        *device = device_of_thread;
    return err;
}

cudaError_t cudaSetDeviceFlags(unsigned int flags)
{
    const cudaError_t err = enter("cudaSetDeviceFlags");

    (void)flags;
    return err;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *prop, int device)
{
    const cudaError_t err = enter("cudaGetDeviceProperties");

    if (err != cudaSuccess)
        return err;
    if (device < 0 || device >= the_world.device_count)
        return note(cudaErrorInvalidDevice);
    *prop = {};
    snprintf(prop->name, sizeof(prop->name), "Emulated GPU %d", device);
    prop->totalGlobalMem = the_world.device_bytes;
    prop->sharedMemPerBlock = 48u << 10;
    prop->sharedMemPerBlockOptin = 227u << 10;
    prop->warpSize = 32;
    prop->maxThreadsPerBlock = 1024;
    prop->major = 9;
    prop->multiProcessorCount = 4;
    prop->asyncEngineCount = 2;
    prop->pciBusID = device + 1;
    prop->canMapHostMemory = 1;
    prop->hostRegisterSupported = 1;
    prop->l2CacheSize = 1 << 20;
    prop->memoryBusWidth = 64;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attr, int device)
{
    struct cudaDeviceProp prop;
    const cudaError_t err = cudaGetDeviceProperties(&prop, device);

    if (err != cudaSuccess)
        return err;
    switch (attr) {
    case cudaDevAttrMaxSharedMemoryPerBlock:
        *value = static_cast<int>(prop.sharedMemPerBlock);
        break;
    case cudaDevAttrMultiProcessorCount:
        *value = prop.multiProcessorCount;
        break;
    case cudaDevAttrAsyncEngineCount:
        *value = prop.asyncEngineCount;
        break;
    case cudaDevAttrComputeCapabilityMajor:
        *value = prop.major;
        break;
    case cudaDevAttrComputeCapabilityMinor:
        *value = prop.minor;
        break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
        *value = static_cast<int>(prop.sharedMemPerBlockOptin);
        break;
    case cudaDevAttrHostRegisterSupported:
        *value = prop.hostRegisterSupported;
        break;
    default:
        return note(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    const cudaError_t err = enter("cudaDeviceGetPCIBusId");

    if (err != cudaSuccess)
        return err;
    if (device < 0 || device >= the_world.device_count || bytes < 13)
        return note(cudaErrorInvalidValue);
    snprintf(id, static_cast<size_t>(bytes), "0000:%02X:00.0", static_cast<unsigned>(device + 1) & 0xffu);
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    const cudaError_t err = enter("cudaDeviceGetStreamPriorityRange");

    *least = 0;
    *greatest = -5;
    return err;
}

cudaError_t cudaDeviceSynchronize(void)
{
    const cudaError_t err = enter("cudaDeviceSynchronize");

    return err != cudaSuccess ? err : note(twin::synchronize_all());
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    const cudaError_t err = enter("cudaMemGetInfo");
    const std::lock_guard<std::mutex> guard(the_world.lock);

    if (err != cudaSuccess)
        return err;
    *free_bytes = the_world.device_bytes - the_world.used[device_of_thread];
    *total_bytes = the_world.device_bytes;
    return cudaSuccess;
}

/* --- memory --- */

cudaError_t cudaMalloc(void **ptr, size_t bytes)
{
    const cudaError_t err = enter("cudaMalloc");
    const std::lock_guard<std::mutex> guard(the_world.lock);

    if (err != cudaSuccess)
        return err;
    *ptr = nullptr;
    return bytes == 0 ? cudaSuccess : note(take(ptr, bytes));
}

cudaError_t cudaFree(void *ptr)
{
    const cudaError_t err = enter("cudaFree");

    if (err != cudaSuccess || ptr == nullptr)
        return err;
    twin::synchronize_all();

    const std::lock_guard<std::mutex> guard(the_world.lock);
    const auto at = the_world.device.find(address(ptr));

    if (at == the_world.device.end())
        return note(cudaErrorInvalidValue);
    the_world.used[at->second.device] -= at->second.bytes;
    the_world.held.device_bytes -= at->second.bytes;
    the_world.device.erase(at);
    free(ptr);
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **ptr, size_t bytes, unsigned int)
{
    const cudaError_t err = enter("cudaHostAlloc");
    const std::lock_guard<std::mutex> guard(the_world.lock);

    if (err != cudaSuccess)
        return err;
    *ptr = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (*ptr == nullptr)
        return note(cudaErrorMemoryAllocation);
    the_world.pinned[address(*ptr)] = {bytes, 0, false};
    the_world.held.pinned_bytes += bytes;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **ptr, size_t bytes)
{
    return cudaHostAlloc(ptr, bytes, cudaHostAllocDefault);
}

static cudaError_t unpin(void *ptr, bool registered)
{
    twin::synchronize_all();

    const std::lock_guard<std::mutex> guard(the_world.lock);
    const auto at = the_world.pinned.find(address(ptr));

    if (at == the_world.pinned.end() || at->second.registered != registered)
        return registered ? cudaErrorHostMemoryNotRegistered : cudaErrorInvalidValue;
    the_world.held.pinned_bytes -= at->second.bytes;
    the_world.pinned.erase(at);
    return cudaSuccess;
}

cudaError_t cudaFreeHost(void *ptr)
{
    cudaError_t err = enter("cudaFreeHost");

    if (err != cudaSuccess || ptr == nullptr)
        return err;
    err = note(unpin(ptr, false));
    if (err == cudaSuccess)
        free(ptr);
    return err;
}

cudaError_t cudaHostRegister(void *ptr, size_t bytes, unsigned int)
{
    const cudaError_t err = enter("cudaHostRegister");
    const std::lock_guard<std::mutex> guard(the_world.lock);

    if (err != cudaSuccess)
        return err;
    if (ptr == nullptr || bytes == 0)
        return note(cudaErrorInvalidValue);
    if (overlaps(the_world.pinned, ptr, bytes))
        return note(cudaErrorHostMemoryAlreadyRegistered);
    the_world.pinned[address(ptr)] = {bytes, 0, true};
    the_world.held.pinned_bytes += bytes;
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *ptr)
{
    const cudaError_t err = enter("cudaHostUnregister");

    return err != cudaSuccess ? err : note(unpin(ptr, true));
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes, const void *ptr)
{
    const cudaError_t err = enter("cudaPointerGetAttributes");
    void *at = const_cast<void *>(ptr);

    if (err != cudaSuccess)
        return err;
    if (twin::is_device(ptr, 1))
        *attributes = {cudaMemoryTypeDevice, device_of_thread, at, nullptr};
    else if (twin::is_pinned(ptr, 1))
        *attributes = {cudaMemoryTypeHost, device_of_thread, at, at};
    else
        *attributes = {cudaMemoryTypeUnregistered, -1, nullptr, at};
    return cudaSuccess;
}

/* --- copies --- */

/* Which ends the kind says are on the device must be, and no other. */
static bool is_valid_copy(const void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;

    return kind == cudaMemcpyDefault || (twin::is_device(dst, bytes) == to_device && twin::is_device(src, bytes) == from_device);
}

/* A copy with pageable memory is done when the call returns, as far as the host can see. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    cudaError_t err = enter("cudaMemcpyAsync");
    bool pageable;

    if (err != cudaSuccess || bytes == 0)
        return err;
    if (!is_valid_copy(dst, src, bytes, kind))
        return note(cudaErrorInvalidValue);
    pageable = (!twin::is_device(dst, bytes) && !twin::is_pinned(dst, bytes)) ||
               (!twin::is_device(src, bytes) && !twin::is_pinned(src, bytes));
    err = note(twin::push(stream, [=]() { memmove(dst, src, bytes); }));
    return err == cudaSuccess && pageable ? cudaStreamSynchronize(stream) : err;
}

cudaError_t cudaMemcpy(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    return cudaMemcpyAsync(dst, src, bytes, kind, nullptr);
}

cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t stream)
{
    const cudaError_t err = enter("cudaMemsetAsync");

    if (err != cudaSuccess || bytes == 0)
        return err;
    if (!twin::is_device(dst, bytes) && !twin::is_pinned(dst, bytes))
        return note(cudaErrorInvalidValue);
    return note(twin::push(stream, [=]() { memset(dst, value, bytes); }));
}

cudaError_t cudaMemset(void *dst, int value, size_t bytes)
{
    return cudaMemsetAsync(dst, value, bytes, nullptr);
}
