/* tests/cuda/emulator/world.cpp - the state of the emulated devices, and what a test may do to it. */
#include "tests/cuda/emulator/world.h"
#include "tests/cuda/emulator/protect.h"
#include <stdlib.h>
#include <string.h>

namespace twin
{

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

namespace
{

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

cudaError_t note(cudaError_t err)
{
    if (err != cudaSuccess)
        last_error = err;
    return err;
}

cudaError_t enter(const char *call)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);
    cudaError_t err = find_device();

    watch_faults();
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

void use_context()
{
    const std::lock_guard<std::mutex> guard(the_world.lock);
    bool &has = the_world.has_context[device_of_thread];

    the_world.held.contexts += !has;
    has = true;
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

using namespace twin;

void twin_reset(void)
{
    {
        const std::lock_guard<std::mutex> guard(the_world.lock);

        the_world.is_lost = cudaErrorLaunchFailure; /* what still hangs or waits is given up: its memory may be gone */
    }
    twin_release();
    twin_be_lazy(0);
    destroy_handles();

    const std::lock_guard<std::mutex> guard(the_world.lock);
    world &w = the_world;

    w.device_count = 1;
    w.device_bytes = DEVICE_BYTES;
    w.has_driver = true;
    w.has_slices = false;
    w.held.contexts = 0;
    for (bool &has : w.has_context)
        has = false;
    w.kind = TWIN_CARD;
    w.shared_most = SHARED_MOST;
    w.fail = {};
    w.is_breaking = false;
    w.is_lost = cudaSuccess;
    for (const auto &left : w.device) { /* a lost context takes its memory along */
        w.used[left.second.device] -= left.second.bytes;
        w.held.device_bytes -= left.second.bytes;
        device_pages_free(reinterpret_cast<void *>(left.first), left.second.bytes);
    }
    w.device.clear();
    for (auto left = w.pinned.begin(); left != w.pinned.end(); left = w.pinned.erase(left)) {
        w.held.pinned_bytes -= left->second.bytes;
        if (!left->second.registered)
            free(reinterpret_cast<void *>(left->first));
    }
    last_error = cudaSuccess;
    device_of_thread = 0;
}

void twin_set_devices(int count, uint64_t bytes)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.device_count = count < DEVICES_MAX ? count : DEVICES_MAX;
    the_world.device_bytes = bytes;
}

void twin_set_shared(uint32_t bytes)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.shared_most = bytes < SHARED_MOST ? bytes : SHARED_MOST;
}

void twin_set_kind(enum twin_kind kind)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.kind = kind;
    the_world.shared_most = kind == TWIN_TURING ? SHARED_TURING : SHARED_MOST;
}

void twin_make_slices(void)
{
    const std::lock_guard<std::mutex> guard(the_world.lock);

    the_world.has_slices = true;
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

/* Of a whole program: as twin_set_kind(). */
static bool take_kind()
{
    static const char *const names[] = {"card", "volta", "turing", "unified", "coherent"};
    const char *wanted = getenv("TWIN_KIND");

    for (int kind = TWIN_CARD; wanted != nullptr && kind <= TWIN_COHERENT; kind++)
        if (strcmp(wanted, names[kind]) == 0)
            twin_set_kind(static_cast<enum twin_kind>(kind));
    return wanted != nullptr;
}

static const bool is_named = take_kind();
