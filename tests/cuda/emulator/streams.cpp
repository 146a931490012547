/* tests/cuda/emulator/streams.cpp - streams as threads with queues, events, launches.
 *
 * The stream NULL runs on the thread that calls, when all other streams but the non-blocking ones are done. */
#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/protect.h"
#include "tests/cuda/emulator/world.h"
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <pthread.h>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <thread>
#include <time.h>

namespace
{

constexpr size_t STACK_BYTES = 64u << 20; /* of a stream's thread; also holds all `__shared__` variables */

/* What an event and the waits for it share. */
struct marks {
    std::mutex lock; /* guards all below */
    std::condition_variable changed;
    uint64_t recorded = 0, reached = 0; /* how many records were enqueued, and which of them is done */
    cudaStream_t stream = nullptr;      /* of the last record */
    uint64_t place = 0;                 /* in that stream */
    timespec when = {};
};

std::mutex registry_lock; /* guards `registry`, `events`, `shared_limits`, and who drains a stream */
std::condition_variable drained;
std::set<cudaStream_t> registry;
std::set<cudaEvent_t> events;
std::atomic<uint32_t> waiting;                                /* threads that wait for an event */
std::atomic<uint64_t> pending;                                /* operations, marks of events not counted */
std::map<std::pair<int, const void *>, size_t> shared_limits; /* dynamic shared memory that a kernel asked for on a device */
std::atomic<bool> is_lazy;
std::atomic<uint64_t> spent_ns; /* beside the clock's time */

/* Where an operation that never ends waits.  Never destroyed: it may still wait when the process ends. */
struct hang {
    std::mutex lock; /* guards all below */
    std::condition_variable changed;
    bool is_armed = false;
    uint64_t after = 0, releases = 0;
};

hang &the_hang()
{
    static hang *const h = [] {
        hang *made = new hang;
        const char *after = getenv("TWIN_HANG"); /* of a whole program: as twin_hang() */

        made->is_armed = after != nullptr;
        made->after = after != nullptr ? strtoull(after, nullptr, 10) : 0;
        return made;
    }();

    return *h;
}

void pass_hang()
{
    hang &h = the_hang();
    std::unique_lock<std::mutex> guard(h.lock);

    if (!h.is_armed || h.after-- > 0)
        return;
    h.is_armed = false;

    const uint64_t releases = h.releases;

    h.changed.wait(guard, [&] { return h.releases != releases; });
}

} // namespace

struct CUstream_st {
    pthread_t thread;
    int device, priority;
    bool is_blocking;
    uint32_t drainers; /* threads that wait for all streams: this one stays until they have */
    std::mutex lock;   /* guards all below */
    std::condition_variable changed;
    std::deque<std::function<void()>> queue;
    uint64_t pushed, taken, wanted; /* operations enqueued, begun, and waited for by somebody: a lazy stream begins no others */
    bool is_busy, is_closing;
    uint64_t launches;
};

struct CUevent_st {
    std::shared_ptr<marks> state;
    int device;
    bool has_time;
};

namespace
{

void *stream_main(void *arg)
{
    cudaStream_t s = static_cast<cudaStream_t>(arg);
    std::unique_lock<std::mutex> guard(s->lock);

    for (;;) {
        s->changed.wait(guard, [s] { return s->is_closing || (!s->queue.empty() && (!is_lazy || s->taken < s->wanted)); });
        if (s->queue.empty())
            return nullptr;

        const std::function<void()> op = std::move(s->queue.front());

        s->queue.pop_front();
        s->taken++;
        s->is_busy = true;
        guard.unlock();
        op();
        guard.lock();
        s->is_busy = false;
        s->changed.notify_all();
    }
}

void drain(cudaStream_t s)
{
    std::unique_lock<std::mutex> guard(s->lock);

    s->wanted = s->pushed;
    s->changed.notify_all();
    s->changed.wait(guard, [s] { return s->queue.empty() && !s->is_busy; });
}

std::set<cudaStream_t> streams()
{
    const std::lock_guard<std::mutex> guard(registry_lock);

    return registry;
}

/* Another thread may destroy a stream meanwhile. */
void drain_all(bool all)
{
    std::set<cudaStream_t> held;
    std::unique_lock<std::mutex> guard(registry_lock);

    for (cudaStream_t s : registry)
        if (all || s->is_blocking) {
            s->drainers++;
            held.insert(s);
        }
    guard.unlock();
    for (cudaStream_t s : held)
        drain(s);
    guard.lock();
    for (cudaStream_t s : held)
        s->drainers--;
    drained.notify_all();
}

bool is_known(cudaStream_t s)
{
    const std::lock_guard<std::mutex> guard(registry_lock);

    return s == nullptr || registry.count(s) > 0;
}

/* Enqueue what runs even when the context is lost: marks of events, so that nobody waits for ever.  *place: out, or NULL. */
cudaError_t push_always(cudaStream_t stream, std::function<void()> op, uint64_t *place = nullptr)
{
    if (!is_known(stream))
        return cudaErrorInvalidResourceHandle;
    if (stream == nullptr) {
        drain_all(false);
        op();
        return cudaSuccess;
    }

    const std::lock_guard<std::mutex> guard(stream->lock);

    stream->queue.push_back(std::move(op));
    stream->pushed++;
    if (place != nullptr)
        *place = stream->pushed;
    stream->changed.notify_all();
    return cudaSuccess;
}

void wait_for(marks &m, uint64_t record)
{
    std::unique_lock<std::mutex> guard(m.lock);
    const cudaStream_t stream = m.stream;
    const uint64_t place = m.place;

    guard.unlock();
    if (stream != nullptr && is_known(stream)) {
        const std::lock_guard<std::mutex> stream_guard(stream->lock);

        stream->wanted = std::max(stream->wanted, place);
        stream->changed.notify_all();
    }
    guard.lock();
    m.changed.wait(guard, [&] { return m.reached >= record; });
}

} // namespace

namespace twin
{

cudaError_t push(cudaStream_t stream, std::function<void()> op)
{
    pending++;

    const cudaError_t err = push_always(stream, [op = std::move(op)]() {
        pass_hang();
        if (may_run()) {
            const rights device(true);

            op();
        }
        pending--;
    });

    if (err != cudaSuccess)
        pending--;
    return err;
}

cudaError_t synchronize_all()
{
    drain_all(true);
    return lost();
}

/* The stream NULL is the thread's device's. */
static int device_of(cudaStream_t stream)
{
    return stream != nullptr ? stream->device : device_of_thread;
}

static bool is_launchable(const void *kernel, const launch &l)
{
    const std::lock_guard<std::mutex> guard(registry_lock);
    const uint64_t threads = static_cast<uint64_t>(l.block.x) * l.block.y * l.block.z;
    const auto limit = shared_limits.find({device_of_thread, kernel});

    return threads > 0 && threads <= TWIN_BLOCK_MAX && l.block.z <= 64 && l.grid.x > 0 && l.grid.x <= 0x7fffffffu &&
           l.grid.y > 0 && l.grid.y <= 65535 && l.grid.z > 0 && l.grid.z <= 65535 &&
           l.shared_bytes <= (limit != shared_limits.end() ? limit->second : TWIN_SHARED_COMMON);
}

cudaError_t enqueue(const void *kernel, cudaStream_t stream, launch &&l)
{
    const cudaError_t err = enter("cudaLaunchKernel");

    if (err != cudaSuccess)
        return err;
    if (!is_launchable(kernel, l))
        return note(cudaErrorInvalidConfiguration);
    if (!is_known(stream) || device_of(stream) != device_of_thread)
        return note(cudaErrorInvalidResourceHandle);
    if (stream != nullptr) {
        const std::lock_guard<std::mutex> guard(stream->lock);

        l.order = stream->launches++;
    } else {
        static uint64_t launches;

        l.order = __atomic_fetch_add(&launches, 1, __ATOMIC_RELAXED);
    }
    return note(push(stream, [l = std::move(l)]() { run(l); }));
}

void destroy_handles()
{
    for (cudaStream_t s : streams())
        (void)cudaStreamDestroy(s); /* runs what it holds, so that all waits end */
    while (waiting > 0)
        std::this_thread::yield();
    while (!events.empty())
        (void)cudaEventDestroy(*events.begin());
}

} // namespace twin

void twin_hang(uint64_t after)
{
    hang &h = the_hang();
    const std::lock_guard<std::mutex> guard(h.lock);

    h.is_armed = true;
    h.after = after;
}

void twin_release(void)
{
    hang &h = the_hang();
    const std::lock_guard<std::mutex> guard(h.lock);

    h.is_armed = false;
    h.releases++;
    h.changed.notify_all();
}

void twin_be_lazy(int lazy)
{
    is_lazy = lazy != 0;
    for (cudaStream_t s : streams()) {
        const std::lock_guard<std::mutex> guard(s->lock);

        s->changed.notify_all();
    }
}

void twin_spend(uint64_t ns)
{
    spent_ns += ns;
}

uint64_t twin_pending(void)
{
    return pending;
}

using twin::enter;
using twin::note;

/* --- streams --- */

static cudaError_t create(cudaStream_t *stream, unsigned int flags, int priority, const char *call)
{
    const cudaError_t err = enter(call);
    pthread_attr_t attr;
    cudaStream_t s;

    if (err != cudaSuccess)
        return err;
    s = new CUstream_st{};
    s->device = twin::device_of_thread;
    s->priority = std::clamp(priority, twin::PRIORITY_GREATEST, twin::PRIORITY_LEAST);
    s->is_blocking = (flags & cudaStreamNonBlocking) == 0;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, STACK_BYTES);
    if (pthread_create(&s->thread, &attr, stream_main, s) != 0) {
        perror("emulator: a stream's thread");
        abort();
    }
    pthread_attr_destroy(&attr);

    const std::lock_guard<std::mutex> guard(registry_lock);

    registry.insert(s);
    twin::count_stream(1);
    *stream = s;
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned int flags)
{
    return create(stream, flags, twin::PRIORITY_LEAST, "cudaStreamCreateWithFlags");
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned int flags, int priority)
{
    return create(stream, flags, priority, "cudaStreamCreateWithPriority");
}

cudaError_t cudaStreamGetPriority(cudaStream_t stream, int *priority)
{
    if (stream == nullptr || !is_known(stream))
        return note(cudaErrorInvalidResourceHandle);
    *priority = stream->priority;
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    if (stream == nullptr || !is_known(stream))
        return note(cudaErrorInvalidResourceHandle);
    {
        const std::lock_guard<std::mutex> guard(stream->lock);

        stream->is_closing = true;
        stream->changed.notify_all();
    }
    pthread_join(stream->thread, nullptr);
    {
        std::unique_lock<std::mutex> guard(registry_lock);

        registry.erase(stream);
        drained.wait(guard, [stream] { return stream->drainers == 0; });
    }
    twin::count_stream(-1);
    delete stream;
    return note(twin::lost());
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    const cudaError_t err = enter("cudaStreamQuery");

    if (err != cudaSuccess || stream == nullptr)
        return err;
    if (!is_known(stream))
        return note(cudaErrorInvalidResourceHandle);

    const std::lock_guard<std::mutex> guard(stream->lock);

    stream->wanted = stream->pushed; /* who asks again and again waits */
    stream->changed.notify_all();
    return note(stream->queue.empty() && !stream->is_busy ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    const cudaError_t err = enter("cudaStreamSynchronize");

    if (!is_known(stream))
        return note(cudaErrorInvalidResourceHandle);
    if (err != cudaSuccess && twin::lost() == cudaSuccess)
        return err;
    if (stream != nullptr)
        drain(stream);
    return note(twin::lost());
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t fn, void *data)
{
    const cudaError_t err = enter("cudaLaunchHostFunc");

    return err != cudaSuccess ? err : note(twin::push(stream, [=]() {
        const twin::rights host(false);

        fn(data);
    }));
}

cudaError_t twin_launch(cudaStream_t stream, cudaHostFn_t work, void *data)
{
    const cudaError_t err = enter("twin_launch");

    return err != cudaSuccess ? err : note(twin::push(stream, [=]() { work(data); }));
}

/* --- events --- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned int flags)
{
    const cudaError_t err = enter("cudaEventCreateWithFlags");

    if (err != cudaSuccess)
        return err;
    *event = new CUevent_st{std::make_shared<marks>(), twin::device_of_thread, (flags & cudaEventDisableTiming) == 0};
    twin::count_event(1);

    const std::lock_guard<std::mutex> guard(registry_lock);

    events.insert(*event);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *event)
{
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    if (event == nullptr)
        return note(cudaErrorInvalidResourceHandle);
    {
        const std::lock_guard<std::mutex> guard(registry_lock);

        events.erase(event);
    }
    delete event;
    twin::count_event(-1);
    return note(twin::lost());
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    const cudaError_t err = enter("cudaEventRecord");
    const std::shared_ptr<marks> m = event != nullptr ? event->state : nullptr;
    uint64_t record;

    if (err != cudaSuccess)
        return err;
    if (m == nullptr || !is_known(stream) || twin::device_of(stream) != event->device)
        return note(cudaErrorInvalidResourceHandle);
    {
        const std::lock_guard<std::mutex> guard(m->lock);

        record = ++m->recorded;
    }

    uint64_t place = 0;
    const cudaError_t pushed = push_always(
        stream,
        [m, record]() {
            const std::lock_guard<std::mutex> guard(m->lock);

            m->reached = record;
            clock_gettime(CLOCK_MONOTONIC, &m->when);
            m->when.tv_sec += static_cast<time_t>(spent_ns / 1000000000u);
            m->when.tv_nsec += static_cast<long>(spent_ns % 1000000000u);
            m->changed.notify_all();
        },
        &place);
    const std::lock_guard<std::mutex> guard(m->lock);

    m->stream = stream;
    m->place = place;
    return note(pushed);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned int)
{
    const cudaError_t err = enter("cudaStreamWaitEvent");
    const std::shared_ptr<marks> m = event != nullptr ? event->state : nullptr;
    uint64_t record;

    if (err != cudaSuccess)
        return err;
    if (m == nullptr)
        return note(cudaErrorInvalidResourceHandle);
    {
        const std::lock_guard<std::mutex> guard(m->lock);

        record = m->recorded;
    }
    return note(push_always(stream, [m, record]() { wait_for(*m, record); }));
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    const cudaError_t err = enter("cudaEventQuery");

    if (err != cudaSuccess)
        return err;

    const std::lock_guard<std::mutex> guard(event->state->lock);

    return note(event->state->reached >= event->state->recorded ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    const cudaError_t err = enter("cudaEventSynchronize");
    uint64_t record;

    if (err != cudaSuccess && twin::lost() == cudaSuccess)
        return err;
    {
        const std::lock_guard<std::mutex> guard(event->state->lock);

        record = event->state->recorded;
    }
    waiting++;
    wait_for(*event->state, record);
    waiting--;
    return note(twin::lost());
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    const cudaError_t err = enter("cudaEventElapsedTime");

    if (err != cudaSuccess)
        return err;
    if (!from->has_time || !to->has_time || from->state->recorded == 0 || to->state->recorded == 0)
        return note(cudaErrorInvalidResourceHandle);
    if (cudaEventQuery(from) != cudaSuccess || cudaEventQuery(to) != cudaSuccess)
        return cudaErrorNotReady;

    const timespec &a = from->state->when, &b = to->state->when;

    *ms = static_cast<float>(static_cast<double>(b.tv_sec - a.tv_sec) * 1e3 + static_cast<double>(b.tv_nsec - a.tv_nsec) * 1e-6);
    return cudaSuccess;
}

/* --- kernels --- */

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attr, int value)
{
    const cudaError_t err = enter("cudaFuncSetAttribute");

    if (err != cudaSuccess || attr != cudaFuncAttributeMaxDynamicSharedMemorySize)
        return err;
    if (value < 0 || static_cast<size_t>(value) > twin::the_world.shared_most)
        return note(cudaErrorInvalidValue);

    const std::lock_guard<std::mutex> guard(registry_lock);

    shared_limits[{twin::device_of_thread, kernel}] = static_cast<size_t>(value);
    return cudaSuccess;
}
