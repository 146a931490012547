/* tests/cuda/emulator/memory.cpp - memory of devices and pinned memory of the host, and copies between them. */
#include "tests/cuda/emulator/protect.h"
#include "tests/cuda/emulator/world.h"
#include <stdlib.h>
#include <string.h>

using namespace twin;

namespace
{

bool overlaps(const std::map<uintptr_t, range> &ranges, const void *at, size_t bytes)
{
    const auto next = ranges.lower_bound(address(at));

    return (next != ranges.end() && next->first < address(at) + bytes) || is_in(ranges, at, 1);
}

/* Takes device memory of the thread's device; the lock is held. */
cudaError_t take(void **ptr, size_t bytes)
{
    world &w = the_world;
    const size_t rounded = (bytes + DEVICE_ALIGN - 1) / DEVICE_ALIGN * DEVICE_ALIGN;
    void *at;

    if (rounded < bytes || rounded > w.device_bytes - w.used[device_of_thread])
        return cudaErrorMemoryAllocation;
    at = device_pages(rounded);
    if (at == nullptr)
        return cudaErrorMemoryAllocation;
    w.device[address(at)] = {rounded, device_of_thread, false};
    w.used[device_of_thread] += rounded;
    w.held.device_bytes += rounded;
    *ptr = at;
    return cudaSuccess;
}

} // namespace

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
    device_pages_free(ptr, at->second.bytes);
    the_world.device.erase(at);
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
    memset(*ptr, POISON, bytes);
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

/* Partly pinned, or of two regions that were pinned one by one. */
static bool is_mixed(const void *at, size_t bytes)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    return overlaps(the_world.pinned, at, bytes) && !is_in(the_world.pinned, at, bytes);
}

/* Which ends the kind says are on the device must be, and no other; the driver refuses host memory that is mixed. */
static bool is_valid_copy(const void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind)
{
    const bool to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    const bool from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;

    if (is_mixed(dst, bytes) || is_mixed(src, bytes))
        return false;
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
