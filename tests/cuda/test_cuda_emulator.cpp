/* The emulator of CUDA: threads, barriers, warps and shared memory; streams, events, memory and failures. */
#include "kernels/cuda/launch.h"
#include "kernels/cuda/mma.cuh"
#include "tests/common/child.h"
#include "tests/common/test.h"
#include "tests/cuda/emulator/twin.h"
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <unistd.h>

#define ok(call) assert_int_equal((call), cudaSuccess)

/* --- kernels --- */

static __global__ void number(uint32_t *out, uint32_t add)
{
    const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
    const uint32_t thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);

    out[block * (blockDim.x * blockDim.y * blockDim.z) + thread] = 1000 * block + thread + add;
}

/* Reverses a block's numbers through shared memory, twice. */
template <uint32_t THREADS> static __global__ void reverse(uint32_t *out)
{
    __shared__ uint32_t near[THREADS];
    ST_SHARED_DYNAMIC(far);

    uint32_t *const again = reinterpret_cast<uint32_t *>(far);
    const uint32_t i = threadIdx.x;

    near[i] = blockIdx.x * THREADS + i;
    __syncthreads();
    again[i] = near[THREADS - 1 - i];
    __syncthreads();
    out[blockIdx.x * THREADS + i] = again[i];
}

static __global__ void read_unwritten(uint32_t *out)
{
    ST_SHARED_DYNAMIC(far);

    out[threadIdx.x] = reinterpret_cast<uint32_t *>(far)[threadIdx.x];
}

template <uint32_t THREADS> static __global__ void read_static(uint32_t *out)
{
    __shared__ uint32_t near[THREADS];

    out[blockIdx.x * THREADS + threadIdx.x] = near[threadIdx.x];
    near[threadIdx.x] = 1;
}

/* 16 bytes in one access each. */
static __global__ void copy_groups(uint32_t *to, const uint32_t *from)
{
    *reinterpret_cast<uint4 *>(to) = *reinterpret_cast<const uint4 *>(from);
}

/* The order in which threads write one place. */
static __global__ void last_writer(uint32_t *out)
{
    *out = threadIdx.x;
}

struct warp_results {
    uint32_t broadcast, up, down, butterfly, segment, ballot;
    int any, all;
    double wide;
};

static __global__ void warps(warp_results *out)
{
    const uint32_t i = threadIdx.x, lane = i % 32;
    warp_results r;

    r.broadcast = __shfl_sync(0xffffffffu, i, 5);
    r.up = __shfl_up_sync(0xffffffffu, i, 3);
    r.down = __shfl_down_sync(0xffffffffu, i, 3);
    r.butterfly = i;
    for (int step = 16; step > 0; step /= 2)
        r.butterfly += __shfl_xor_sync(0xffffffffu, r.butterfly, step);
    r.segment = __shfl_sync(0xffffffffu, i, 1, 8);
    r.ballot = __ballot_sync(0xffffffffu, lane % 3 == 0);
    r.any = __any_sync(0xffffffffu, i == 40);
    r.all = __all_sync(0xffffffffu, i < 40);
    r.wide = __shfl_xor_sync(0xffffffffu, 0.5 * i, 1);
    out[i] = r;
}

/* Halves of a warp go their own ways. */
static __global__ void halves(uint32_t *out)
{
    uint32_t x;

    if (threadIdx.x % 32 < 16)
        x = __shfl_xor_sync(0x0000ffffu, threadIdx.x, 1);
    else
        x = 100 + __shfl_xor_sync(0xffff0000u, threadIdx.x, 2);
    __syncwarp();
    out[threadIdx.x] = x;
}

struct quad {
    uint32_t v[4];
};

static __global__ void transpose(uint32_t *out)
{
    const quad mine = {{threadIdx.x, threadIdx.x + 100, threadIdx.x + 200, threadIdx.x + 300}};
    const quad got = twin_warp<quad>(
        0xffffffffu, mine,
        [](uint32_t mask, const quad *const in[TWIN_WARP], quad *const result[TWIN_WARP]) {
            for (uint32_t lane = 0; lane < TWIN_WARP; lane++)
                for (uint32_t k = 0; k < 4; k++)
                    result[lane]->v[k] = in[lane / 4 * 4 + k]->v[lane % 4] + (mask == 0xffffffffu ? 0 : 1);
        },
        "transpose");

    for (uint32_t k = 0; k < 4; k++)
        out[4 * threadIdx.x + k] = got.v[k];
}

static __global__ void count_all(unsigned long long *sum, uint32_t *most, int *odd)
{
    const int here = __syncthreads_count(threadIdx.x % 2 == 1);

    atomicAdd(sum, 1ull);
    atomicMax(most, blockIdx.x * blockDim.x + threadIdx.x);
    if (threadIdx.x == 0)
        atomicAdd(odd, here);
}

static __global__ void barrier_of_some(int)
{
    if (threadIdx.x < 32)
        __syncthreads();
}

static __global__ void different_barriers(int)
{
    if (threadIdx.x < 32)
        __syncthreads();
    else
        __syncthreads();
}

static __global__ void shuffle_of_some(int)
{
    if (threadIdx.x != 7)
        __syncwarp();
}

static __global__ void shuffle_from_outside(uint32_t *out)
{
    if (threadIdx.x < 16)
        *out = __shfl_sync(0x0000ffffu, threadIdx.x, 20);
}

static __global__ void write_behind(int)
{
    ST_SHARED_DYNAMIC(far);

    far[64 + threadIdx.x] = 1;
}

/* 1 + the sum of 16 products of 1 and `every`, of which all but the first are left out if `alone`; bf16. */
static __global__ void add_products(float *out, uint32_t every, bool alone)
{
    const uint32_t ones = 0x3f803f80u, a[4] = {ones, ones, ones, ones}, pair = every << 16 | every;
    const uint32_t first = threadIdx.x % 4 == 0 ? every : 0;
    float c[4] = {1, 1, 1, 1};

    st_mma<STRATA_BF16>(c, a, alone ? first : pair, alone ? 0 : pair);
    out[threadIdx.x] = c[0];
}

static __global__ void write_word(uint32_t *at)
{
    *at = 7;
}

/* --- launches --- */

static uint32_t *device_words(size_t count)
{
    void *at;

    ok(cudaMalloc(&at, count * sizeof(uint32_t)));
    ok(cudaMemset(at, 0, count * sizeof(uint32_t)));
    return static_cast<uint32_t *>(at);
}

/* By the stream NULL, which waits for no other one here. */
static uint32_t word_at(const uint32_t *device)
{
    uint32_t word;

    ok(cudaMemcpy(&word, device, sizeof(word), cudaMemcpyDeviceToHost));
    return word;
}

TEST(every_thread_of_every_block_runs)
{
    const dim3 grid(3, 2, 2), block(5, 3, 2);
    const uint32_t blocks = 12, threads = 30;
    uint32_t *const device = device_words(blocks * threads), host[blocks * threads];

    for (uint32_t order = 0; order < 7; order++) {
        ST_LAUNCH(number, grid, block, 0, nullptr, device, order);
        ok(cudaGetLastError());
        ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < blocks * threads; i++)
            assert_int_equal(host[i], 1000 * (i / threads) + i % threads + order);
    }
    ok(cudaFree(device));
}

TEST(shared_memory_and_barriers)
{
    uint32_t *const device = device_words(4 * 256), host[4 * 256];

    for (uint32_t order = 0; order < 9; order++) {
        ST_LAUNCH(reverse<256>, 4, 256, 256 * sizeof(uint32_t), nullptr, device);
        ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < 4 * 256; i++)
            assert_int_equal(host[i], i / 256 * 256 + 255 - i % 256);
    }
    ST_LAUNCH(read_unwritten, 1, 32, 32 * sizeof(uint32_t), nullptr, device);
    ok(cudaMemcpy(host, device, 32 * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < 32; i++)
        assert_int_equal(host[i], 0xffffffffu);
    ST_LAUNCH(read_static<32>, 2, 32, 0, nullptr, device); /* each block finds it so */
    ok(cudaMemcpy(host, device, 64 * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(host[i], 0xffffffffu);
    ok(cudaFree(device));
}

TEST(orders_change)
{
    uint32_t *const device = device_words(1);
    uint32_t host, distinct = 0;
    bool seen[64] = {};

    for (uint32_t order = 0; order < 9; order++) {
        ST_LAUNCH(last_writer, 1, 64, 0, nullptr, device);
        ok(cudaMemcpy(&host, device, sizeof(host), cudaMemcpyDeviceToHost));
        distinct += !seen[host];
        seen[host] = true;
    }
    assert_true(distinct >= 3);
    ok(cudaFree(device));
}

static void check_warp(const warp_results *r, uint32_t i)
{
    const uint32_t warp = i / 32 * 32, lane = i % 32;

    assert_int_equal(r->broadcast, warp + 5);
    assert_int_equal(r->up, lane < 3 ? i : i - 3);
    assert_int_equal(r->down, lane > 28 ? i : i + 3);
    assert_int_equal(r->butterfly, 32 * warp + 496);
    assert_int_equal(r->segment, i / 8 * 8 + 1);
    assert_int_equal(r->ballot, 0x49249249u);
    assert_int_equal(r->any, warp == 32);
    assert_int_equal(r->all, warp == 0);
    assert_true(r->wide == 0.5 * (i ^ 1));
}

TEST(warp_operations)
{
    static warp_results host[64];
    void *device;

    ok(cudaMalloc(&device, sizeof(host)));
    for (uint32_t order = 0; order < 6; order++) {
        ST_LAUNCH(warps, 1, 64, 0, nullptr, static_cast<warp_results *>(device));
        ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < 64; i++)
            check_warp(&host[i], i);
    }
    ok(cudaFree(device));
}

TEST(parts_of_a_warp_and_own_operations)
{
    uint32_t *const device = device_words(128), host[128];

    ST_LAUNCH(halves, 1, 64, 0, nullptr, device);
    ok(cudaMemcpy(host, device, 64 * sizeof(uint32_t), cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(host[i], i % 32 < 16 ? (i ^ 1) : 100 + (i ^ 2));
    ST_LAUNCH(transpose, 1, 32, 0, nullptr, device);
    ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
    for (uint32_t i = 0; i < 128; i++)
        assert_int_equal(host[i], i / 16 * 4 + i % 4 + 100 * (i / 4 % 4));
    ok(cudaFree(device));
}

TEST(counts_and_atomics)
{
    uint32_t *const device = device_words(4);
    uint32_t host[4];
    unsigned long long sum;

    ST_LAUNCH(count_all, 3, 128, 0, nullptr, reinterpret_cast<unsigned long long *>(device), device + 2,
              reinterpret_cast<int *>(device + 3));
    ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
    memcpy(&sum, host, sizeof(sum));
    assert_int_equal(sum, 3 * 128);
    assert_int_equal(host[2], 3 * 128 - 1);
    assert_int_equal(host[3], 3 * 64);
    ok(cudaFree(device));
}

TEST(impossible_launches_are_refused)
{
    uint32_t *const device = device_words(1024);

    ST_LAUNCH(last_writer, 0, 32, 0, nullptr, device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ST_LAUNCH(last_writer, 1, 1025, 0, nullptr, device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ST_LAUNCH(read_unwritten, 1, 32, 64u << 10, nullptr, device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ok(cudaFuncSetAttribute(read_unwritten, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
    ST_LAUNCH(read_unwritten, 1, 32, 64u << 10, nullptr, device);
    ok(cudaGetLastError());
    assert_int_equal(cudaFuncSetAttribute(read_unwritten, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    ok(cudaFree(device));
}

TEST(devices_have_streams_events_and_limits_of_their_own)
{
    cudaStream_t stream;
    cudaEvent_t event;

    twin_set_devices(2, 1u << 20);
    ok(cudaFuncSetAttribute(read_unwritten, cudaFuncAttributeMaxDynamicSharedMemorySize, 64 << 10));
    ok(cudaSetDevice(1));
    uint32_t *const device = device_words(64);

    ST_LAUNCH(read_unwritten, 1, 32, 64u << 10, nullptr, device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidConfiguration);
    ok(cudaStreamCreate(&stream));
    ok(cudaEventCreate(&event));
    ST_LAUNCH(last_writer, 1, 32, 0, stream, device);
    ok(cudaGetLastError());
    ok(cudaSetDevice(0));
    ST_LAUNCH(last_writer, 1, 32, 0, stream, device);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidResourceHandle);
    ok(cudaEventRecord(event, stream)); /* of one device, whichever the thread's is */
    assert_int_equal(cudaEventRecord(event, nullptr), cudaErrorInvalidResourceHandle);
    twin_set_shared(99u << 10);
    assert_int_equal(cudaFuncSetAttribute(read_unwritten, cudaFuncAttributeMaxDynamicSharedMemorySize, 100 << 10),
                     cudaErrorInvalidValue);
    assert_int_equal(cudaGetLastError(), cudaErrorInvalidValue);
    ok(cudaStreamDestroy(stream));
    ok(cudaEventDestroy(event));
    ok(cudaFree(device));
    twin_reset();
}

/* What a child process writes to stderr until a signal ends it; empty: none does. */
template <class Body> static const char *last_words(Body body)
{
    static char words[1024];
    FILE *const file = tmpfile();
    size_t count;

    assert_non_null(file);
    const pid_t child = child_fork();

    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        signal(SIGILL, SIG_DFL);
        if (dup2(fileno(file), STDERR_FILENO) < 0)
            _exit(1);
        body();
        _exit(0);
    }
    if (child_wait(child) == 0) {
        fclose(file);
        return "";
    }
    rewind(file);
    count = fread(words, 1, sizeof(words) - 1, file);
    words[count] = '\0';
    fclose(file);
    return count > 0 ? words : "silence";
}

/* Whether the launch ends the process by a signal. */
template <class Launch> static bool aborts(Launch launch)
{
    return *last_words(launch) != '\0';
}

TEST(threads_that_wait_for_ever_abort)
{
    uint32_t *const device = device_words(64);

    assert_false(aborts([=] { ST_LAUNCH(halves, 1, 64, 0, nullptr, device); }));
    assert_true(aborts([] { ST_LAUNCH(barrier_of_some, 1, 64, 0, nullptr, 0); }));
    assert_true(aborts([] { ST_LAUNCH(different_barriers, 1, 64, 0, nullptr, 0); }));
    assert_true(aborts([] { ST_LAUNCH(shuffle_of_some, 1, 32, 0, nullptr, 0); }));
    assert_true(aborts([=] { ST_LAUNCH(shuffle_from_outside, 1, 32, 0, nullptr, device); }));
    assert_true(aborts([] { ST_LAUNCH(write_behind, 1, 32, 64, nullptr, 0); }));
    ok(cudaFree(device));
}

TEST(misaligned_vectors_abort)
{
    uint32_t *const device = device_words(64);

#ifndef TWIN_CHECKS_ALIGNMENT /* this build does not look */
    skip();
#endif
    assert_false(aborts([=] { ST_LAUNCH(copy_groups, 1, 1, 0, nullptr, device + 32, device + 4); }));
    assert_true(aborts([=] { ST_LAUNCH(copy_groups, 1, 1, 0, nullptr, device + 32, device + 2); }));
    assert_true(aborts([=] { ST_LAUNCH(copy_groups, 1, 1, 0, nullptr, device + 33, device + 4); }));
    ok(cudaFree(device));
}

static float one_and(uint32_t every, bool alone)
{
    uint32_t *const device = device_words(32);
    float host[32];

    ST_LAUNCH(add_products, 1, 32, 0, nullptr, reinterpret_cast<float *>(device), every, alone);
    ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
    for (uint32_t i = 1; i < 32; i++)
        assert_memory_equal(&host[i], &host[0], sizeof(host[0]));
    ok(cudaFree(device));
    return host[0];
}

TEST(tensor_cores_cut)
{
    assert_true(one_and(0x3380, false) == 1 + 0x1p-20f); /* of 2^-24 each all count, */
    assert_true(one_and(0x3300, false) == 1);            /* and of 2^-25 none, though they are 2^-21 together */
    assert_true(one_and(0x3440, true) == 1 + 0x1p-23f);  /* 1.5 2^-23 is cut, not rounded */
    assert_true(one_and(0xb440, true) == 1 - 0x1p-23f - 0x1p-24f);
    assert_true(one_and(0x7f80, true) == HUGE_VALF);
    assert_true(isnan(one_and(0x7fc0, false)));
}

/* Units in the last place between an approximation and the value. */
static double units_off(float got, double want)
{
    return fabs(static_cast<double>(got) - want) / ldexp(1, ilogb(want) - 23);
}

TEST(approximations_miss)
{
    double exp_off = 0, rcp_off = 0;

    for (int i = 1; i < 10000; i++) {
        const float x = static_cast<float>(i) * 0.01f - 50;

        if (x == 0)
            continue;
        exp_off = fmax(exp_off, units_off(twin_ex2_approx(x), exp2(static_cast<double>(x))));
        rcp_off = fmax(rcp_off, units_off(twin_rcp_approx(x), 1 / static_cast<double>(x)));
    }
    assert_true(exp_off > 1.5 && exp_off <= 2.5);
    assert_true(rcp_off > 0.9 && rcp_off <= 1.5);
    assert_true(twin_ex2_approx(0) == 1 && twin_ex2_approx(-130) == 0 && twin_ex2_approx(-HUGE_VALF) == 0);
    assert_true(twin_rcp_approx(HUGE_VALF) == 0 && twin_rcp_approx(0) == HUGE_VALF);
}

/* --- streams, memory, failures --- */

TEST(streams_run_in_order_and_events_join_them)
{
    const uint32_t count = 1024;
    uint32_t *const device = device_words(count);
    uint32_t *host;
    cudaStream_t compute, copy;
    cudaEvent_t done;
    float ms;

    ok(cudaMallocHost(reinterpret_cast<void **>(&host), count * sizeof(*host)));
    ok(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    ok(cudaStreamCreateWithFlags(&copy, cudaStreamNonBlocking));
    ok(cudaEventCreate(&done));
    for (uint32_t round = 0; round < 50; round++) {
        ST_LAUNCH(number, 4, 256, 0, compute, device, round);
        ST_LAUNCH(number, 4, 256, 0, compute, device, round + 1);
        ok(cudaEventRecord(done, compute));
        ok(cudaStreamWaitEvent(copy, done, 0));
        ok(cudaMemcpyAsync(host, device, count * sizeof(*host), cudaMemcpyDeviceToHost, copy));
        ok(cudaStreamSynchronize(copy));
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(host[i], 1000 * (i / 256) + i % 256 + round + 1);
    }
    ok(cudaEventQuery(done));
    ok(cudaEventElapsedTime(&ms, done, done));
    ok(cudaEventDestroy(done));
    ok(cudaStreamDestroy(copy));
    ok(cudaStreamDestroy(compute));
    ok(cudaFreeHost(host));
    ok(cudaFree(device));
}

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool open;
};

static void pass_gate(void *of)
{
    gate *g = static_cast<gate *>(of);

    pthread_mutex_lock(&g->lock);
    while (!g->open)
        pthread_cond_wait(&g->changed, &g->lock);
    pthread_mutex_unlock(&g->lock);
}

TEST(what_is_enqueued_is_not_done)
{
    gate g = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false};
    cudaStream_t stream;
    cudaEvent_t event;

    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    ok(cudaEventQuery(event));
    ok(cudaLaunchHostFunc(stream, pass_gate, &g));
    ok(cudaEventRecord(event, stream));
    assert_int_equal(cudaEventQuery(event), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    ok(cudaGetLastError());
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_int_equal(cudaGetLastError(), cudaErrorNotReady);
    pthread_mutex_lock(&g.lock);
    g.open = true;
    pthread_cond_broadcast(&g.changed);
    pthread_mutex_unlock(&g.lock);
    ok(cudaEventSynchronize(event));
    ok(cudaStreamSynchronize(stream));
    ok(cudaStreamQuery(stream));
    ok(cudaEventDestroy(event));
    ok(cudaStreamDestroy(stream));
}

TEST(lazy_streams_run_what_is_waited_for)
{
    uint32_t *const device = device_words(64);
    cudaStream_t stream;
    cudaEvent_t event;

    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaEventCreate(&event));
    twin_be_lazy(1);
    ok(cudaMemsetAsync(device, 1, 4, stream));
    ok(cudaEventRecord(event, stream));
    ok(cudaMemsetAsync(device + 1, 2, 4, stream));
    assert_int_equal(twin_pending(), 2);
    ok(cudaEventSynchronize(event));
    assert_int_equal(word_at(device), 0x01010101u);
    assert_int_equal(word_at(device + 1), 0);
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    ok(cudaStreamSynchronize(stream));
    assert_int_equal(word_at(device + 1), 0x02020202u);
    assert_int_equal(twin_pending(), 0);
    ok(cudaEventDestroy(event));
    ok(cudaFree(device));
    twin_reset(); /* destroys the stream */
    assert_int_equal(twin_held().streams, 0);
}

TEST(an_operation_may_hang)
{
    uint32_t *const device = device_words(64);
    cudaStream_t stream;

    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    twin_hang(1);
    ok(cudaMemsetAsync(device, 1, 4, stream));
    ok(cudaMemsetAsync(device + 1, 2, 4, stream));
    while (twin_pending() > 1)
        sched_yield();
    assert_int_equal(cudaStreamQuery(stream), cudaErrorNotReady);
    assert_int_equal(word_at(device), 0x01010101u);
    assert_int_equal(word_at(device + 1), 0);
    twin_release();
    ok(cudaStreamSynchronize(stream));
    assert_int_equal(word_at(device + 1), 0x02020202u);
    ok(cudaStreamDestroy(stream));
    ok(cudaFree(device));
}

TEST(new_memory_is_poisoned)
{
    const uint32_t count = 300;
    uint32_t host[count];
    void *device, *pinned;

    for (uint32_t round = 0; round < 2; round++) { /* of the second one somebody wrote */
        ok(cudaMalloc(&device, sizeof(host)));
        ok(cudaMemcpy(host, device, sizeof(host), cudaMemcpyDeviceToHost));
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(host[i], 0xffffffffu);
        ok(cudaMemset(device, 0, sizeof(host)));
        ok(cudaFree(device));
    }
    ok(cudaMallocHost(&pinned, sizeof(host)));
    for (uint32_t i = 0; i < count; i++)
        assert_int_equal(static_cast<uint32_t *>(pinned)[i], 0xffffffffu);
    ok(cudaFreeHost(pinned));
}

/* The child's last words say so; it works with device memory of its own, since a way to protect is of a whole process. */
#define assert_stopped(what, body) assert_non_null(strstr(last_words(body), (what)))

static void check_protection(enum twin_protection how)
{
    const auto begin = [how] {
        twin_protect(how);
        return device_words(64);
    };
    const auto rightly = [=] {
        uint32_t *const device = begin();
        cudaStream_t stream;

        ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        for (uint32_t i = 0; i < 3; i++) {
            ST_LAUNCH(write_word, 1, 1, 0, stream, device + i);
            ok(cudaStreamSynchronize(stream));
            if (word_at(device + i) != 7)
                abort();
        }
        ok(cudaFree(device));
        ok(cudaStreamDestroy(stream));
    };
    const auto host_function = [=] {
        uint32_t *const device = begin();
        cudaStream_t stream;

        ok(cudaStreamCreate(&stream));
        ok(cudaLaunchHostFunc(
            stream, [](void *at) { *static_cast<uint32_t *>(at) = 1; }, device));
        ok(cudaStreamSynchronize(stream));
    };

    assert_string_equal(last_words(rightly), "");
    assert_stopped("the host reads device memory", [=] { printf("%u", *static_cast<volatile uint32_t *>(begin() + 3)); });
    assert_stopped("byte 12 of 512 allocated on device 0", [=] { *static_cast<volatile uint32_t *>(begin() + 3) = 1; });
    assert_stopped("the host writes device memory", host_function);
    assert_stopped("the host reads device memory", [=] {
        const auto read = [](void *at) -> void * {
            uint32_t words[4];

            memcpy(words, at, sizeof(words));
            printf("%u", words[3]);
            return nullptr;
        };
        pthread_t thread;

        assert_int_equal(pthread_create(&thread, nullptr, read, begin()), 0);
        pthread_join(thread, nullptr);
    });
    assert_stopped("a system call has EFAULT", [=] {
        if (write(STDOUT_FILENO, begin(), 16) < 0 && errno == EFAULT)
            fprintf(stderr, "a system call has EFAULT\n");
        abort();
    });
    assert_stopped("write_word writes behind device memory", [=] {
        uint32_t *const device = begin();

        ST_LAUNCH(write_word, 1, 1, 0, nullptr, device + 128);
    });
}

TEST(the_host_has_no_device_memory)
{
    const enum twin_protection how = twin_protection();

    if (how == TWIN_PROTECT_NONE) {
        print_message("under asan device memory is not protected\n");
        skip();
    }
#ifdef __SANITIZE_THREAD__
    print_message("under tsan a child has no streams, which are threads\n");
    skip();
#endif
    check_protection(how);
    check_protection(TWIN_PROTECT_BY_PAGES);
}

TEST(copies_say_which_side_is_the_device)
{
    uint32_t *const device = device_words(16), host[16] = {};
    size_t free_before, free_after, total;

    assert_int_equal(cudaMemcpy(host, device, sizeof(host), cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    assert_int_equal(cudaMemcpy(device, host, 1 << 20, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    ok(cudaMemGetInfo(&free_before, &total));
    ok(cudaFree(device));
    ok(cudaMemGetInfo(&free_after, &total));
    assert_true(free_after > free_before);
    assert_int_equal(cudaFree(host), cudaErrorInvalidValue);
    ok(cudaHostRegister(host, sizeof(host), cudaHostRegisterDefault));
    assert_int_equal(cudaHostRegister(host, sizeof(host), 0), cudaErrorHostMemoryAlreadyRegistered);
    assert_int_equal(twin_held().pinned_bytes, sizeof(host));
    ok(cudaHostUnregister(host));
    assert_int_equal(cudaHostUnregister(host), cudaErrorHostMemoryNotRegistered);
    assert_int_equal(cudaGetLastError(), cudaErrorHostMemoryNotRegistered);
    ok(cudaGetLastError());
}

TEST(devices_and_drivers_may_lack)
{
    int count;
    void *at;

    twin_set_devices(0, 0);
    assert_int_equal(cudaGetDeviceCount(&count), cudaErrorNoDevice);
    assert_int_equal(count, 0);
    twin_remove_driver();
    assert_int_equal(cudaMalloc(&at, 16), cudaErrorInsufficientDriver);
    twin_reset();
    twin_set_devices(2, 1u << 20);
    ok(cudaSetDevice(1));
    assert_int_equal(cudaSetDevice(2), cudaErrorInvalidDevice);
    assert_int_equal(cudaMalloc(&at, 2u << 20), cudaErrorMemoryAllocation);
    ok(cudaMalloc(&at, 1u << 20));
    assert_int_equal(cudaMalloc(&at, 1), cudaErrorMemoryAllocation);
    assert_string_equal(cudaGetErrorName(cudaErrorMemoryAllocation), "cudaErrorMemoryAllocation");
    twin_reset();
}

TEST(calls_fail_when_told)
{
    void *at = nullptr;

    twin_fail("cudaMalloc", 1, 2, cudaErrorMemoryAllocation);
    ok(cudaMalloc(&at, 16));
    ok(cudaFree(at));
    assert_int_equal(cudaMalloc(&at, 16), cudaErrorMemoryAllocation);
    assert_int_equal(cudaMalloc(&at, 16), cudaErrorMemoryAllocation);
    ok(cudaMalloc(&at, 16));
    ok(cudaFree(at));
    assert_int_equal(twin_disarm(), 2);
    cudaGetLastError();
}

TEST(a_lost_context_stays_lost)
{
    uint32_t *const device = device_words(64);
    cudaStream_t stream;
    cudaEvent_t event;

    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaEventCreate(&event));
    twin_break(1, cudaErrorIllegalAddress);
    ST_LAUNCH(last_writer, 1, 32, 0, stream, device);
    ST_LAUNCH(last_writer, 1, 64, 0, stream, device);
    assert_int_equal(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    assert_int_equal(cudaEventRecord(event, stream), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaGetLastError(), cudaErrorIllegalAddress);
    assert_int_equal(cudaEventDestroy(event), cudaErrorIllegalAddress);
    assert_int_equal(cudaStreamDestroy(stream), cudaErrorIllegalAddress);
    assert_int_equal(twin_held().streams, 0);
    assert_int_equal(twin_held().events, 0);
    twin_reset();
    assert_int_equal(twin_held().device_bytes, 0);
    ok(cudaGetLastError());
}

TEST_GROUP(nullptr, nullptr);
