/* tests/cuda/emulator/block.cpp - see block.h.  A thread of the host that runs kernels has a stage of its own: fibers, dynamic
 * shared memory and the state of the one block it runs. */
#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/fiber.h"
#include "tests/cuda/emulator/protect.h"
#include <mutex>
#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(at, bytes)
#define ASAN_UNPOISON_MEMORY_REGION(at, bytes)
#endif

__thread uint3 threadIdx, blockIdx;
__thread dim3 blockDim, gridDim;

namespace twin
{
namespace
{

constexpr size_t SHARED_GUARD = 64; /* bytes behind the block's own that no kernel may write */
constexpr unsigned char GUARD = 0xa5;

enum class lane_state : uint8_t { READY, AT_BARRIER, AT_WARP, DONE };

struct lane {
    twin::fiber fiber;
    uint3 thread;
    uint32_t index; /* in the block */
    lane_state state;
    site at;        /* where it waits */
    uint32_t mask;  /* AT_WARP */
    const void *in; /* AT_WARP: what it gives, */
    void *out;      /* and where it takes */
    bool is_made;   /* the fiber exists */
};

struct stage {
    twin::fiber home;
    char *stacks;
    unsigned char *shared;
    std::vector<lane> lanes;
    const launch *now;
    lane *current;
    uint32_t count; /* lanes of the block */
    uint32_t left;  /* of them not done */
    uint32_t arrived;
    uint32_t at_warp[TWIN_BLOCK_MAX / TWIN_WARP]; /* of each warp's lanes, how many are AT_WARP */
    int barrier_sum, barrier_result;
    uint64_t round;

    stage();
    stage(const stage &) = delete;
    stage &operator=(const stage &) = delete;
};

size_t page_bytes()
{
    return static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

stage::stage()
    : home{}, lanes(TWIN_BLOCK_MAX), now(nullptr), current(nullptr), count(0), left(0), arrived(0), at_warp{}, barrier_sum(0),
      barrier_result(0), round(0)
{
    void *at = mmap(nullptr, (FIBER_STACK + page_bytes()) * TWIN_BLOCK_MAX, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (at == MAP_FAILED) {
        perror("emulator: stacks");
        abort();
    }
    stacks = static_cast<char *>(at);
    shared = static_cast<unsigned char *>(operator new (TWIN_SHARED_MAX + 1024, std::align_val_t{1024}));
}

/* Stages that no thread of the host holds.  They are never freed: tsan of gcc 12 fails when a fiber ends; operator new is not
 * watched (tests/common/lost_memory.c). */
std::mutex spare_lock; /* guards `spare` */
std::vector<stage *> *const spare = new std::vector<stage *>;

/* A thread's stage, from its first kernel to its end. */
struct holder {
    stage *held = nullptr;

    holder() = default;
    ~holder()
    {
        const std::lock_guard<std::mutex> guard(spare_lock);

        if (held != nullptr)
            spare->push_back(held);
    }
    holder(const holder &) = delete;
    holder &operator=(const holder &) = delete;
};

thread_local holder stage_of_thread;

void take_stage()
{
    const std::lock_guard<std::mutex> guard(spare_lock);

    if (stage_of_thread.held != nullptr)
        return;
    if (spare->empty()) {
        stage_of_thread.held = new stage;
    } else {
        stage_of_thread.held = spare->back();
        spare->pop_back();
    }
    fiber_adopt(&stage_of_thread.held->home);
}

stage &here()
{
    return *stage_of_thread.held;
}

/* --- what went wrong --- */

void print_thread(const lane &l)
{
    fprintf(stderr, "  thread (%u, %u, %u)", l.thread.x, l.thread.y, l.thread.z);
    if (l.state == lane_state::DONE)
        fprintf(stderr, " has returned\n");
    else if (l.state == lane_state::AT_WARP)
        fprintf(stderr, " waits in %s of lanes 0x%08x, %s:%d\n", l.at.what, l.mask, l.at.file, l.at.line);
    else if (l.state == lane_state::AT_BARRIER)
        fprintf(stderr, " waits in %s, %s:%d\n", l.at.what, l.at.file, l.at.line);
    else
        fprintf(stderr, " runs\n");
}

void print_where(const char *why)
{
    const stage &s = here();

    fflush(stdout);
    fprintf(stderr, "emulator: %s\n  kernel %s, block (%u, %u, %u) of (%u, %u, %u)\n", why, s.now->kernel, blockIdx.x, blockIdx.y,
            blockIdx.z, gridDim.x, gridDim.y, gridDim.z);
}

bool is_same_file(const site &a, const site &b)
{
    return a.file == b.file || (a.file != nullptr && b.file != nullptr && strcmp(a.file, b.file) == 0);
}

bool is_alike(const lane &a, const lane &b)
{
    return a.state == b.state && a.mask == b.mask && a.at.line == b.at.line && is_same_file(a.at, b.at);
}

/* One thread of each situation. */
[[noreturn]] void stop_stuck(const char *why)
{
    const stage &s = here();
    uint32_t shown = 0;

    print_where(why);
    for (uint32_t i = 0; i < s.count && shown < 8; i++) {
        bool is_new = true;

        for (uint32_t j = 0; j < i && is_new; j++)
            is_new = !is_alike(s.lanes[i], s.lanes[j]);
        if (is_new) {
            print_thread(s.lanes[i]);
            shown++;
        }
    }
    abort();
}

/* --- threads --- */

void lane_main(void *arg)
{
    lane *l = static_cast<lane *>(arg);
    stage &s = here();

    fiber_entered(&l->fiber);
    for (;;) {
        s.now->thread();
        l->state = lane_state::DONE;
        l->mask = 0;
        s.left--;
        fiber_switch(&l->fiber, &s.home);
    }
}

void lane_wait(lane_state state)
{
    stage &s = here();
    lane *self = s.current;

    self->state = state;
    fiber_switch(&self->fiber, &s.home);
}

void lane_run(stage &s, lane &l)
{
    s.current = &l;
    threadIdx = l.thread;
    fiber_switch(&s.home, &l.fiber);
}

void lane_prepare(stage &s, uint32_t i)
{
    lane &l = s.lanes[i];
    const dim3 &block = s.now->block;

    if (!l.is_made) {
        char *guard = s.stacks + i * (FIBER_STACK + page_bytes());

        mprotect(guard, page_bytes(), PROT_NONE); /* below the stack */
        fiber_create(&l.fiber, guard + page_bytes(), lane_main, &l);
        l.is_made = true;
    }
    l.index = i;
    l.thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
    l.state = lane_state::READY;
    l.mask = 0;
    l.at = {};
}

/* The k-th of count, in one of many orders: forward, backward, or in steps of a number prime to count. */
uint32_t in_order(uint64_t order, uint32_t k, uint32_t count)
{
    static const uint32_t primes[] = {37, 101, 257, 521};

    if (order % 3 == 0)
        return k;
    if (order % 3 == 1)
        return count - 1 - k;
    for (const uint32_t step : primes) {
        if (count % step != 0)
            return static_cast<uint32_t>((static_cast<uint64_t>(k) * step + order / 3) % count);
    }
    return k;
}

void block_run(stage &s)
{
    const size_t shared_bytes = s.now->shared_bytes;

    poison_static_shared();
    memset(s.shared, POISON, shared_bytes);
    memset(s.shared + shared_bytes, GUARD, SHARED_GUARD);
    ASAN_POISON_MEMORY_REGION(s.shared + shared_bytes, TWIN_SHARED_MAX - shared_bytes);
    s.left = s.count;
    s.arrived = 0;
    memset(s.at_warp, 0, sizeof(s.at_warp));
    s.barrier_sum = 0;
    for (uint32_t i = 0; i < s.count; i++)
        lane_prepare(s, i);
    while (s.left > 0) {
        bool ran = false;

        for (uint32_t k = 0; k < s.count; k++) {
            lane &l = s.lanes[in_order(s.round, k, s.count)];

            if (l.state != lane_state::READY)
                continue;
            ran = true;
            lane_run(s, l);
        }
        if (!ran)
            stop_stuck("threads wait for others that do not come");
        s.round++;
    }
    ASAN_UNPOISON_MEMORY_REGION(s.shared, TWIN_SHARED_MAX);
    for (size_t i = 0; i < SHARED_GUARD; i++) {
        if (s.shared[shared_bytes + i] != GUARD) {
            print_where("the block wrote behind its dynamic shared memory");
            abort();
        }
    }
}

} // namespace

void run(const launch &l)
{
    const uint64_t blocks = static_cast<uint64_t>(l.grid.x) * l.grid.y * l.grid.z;

    take_stage();

    stage &s = here();

    s.now = &l;
    s.count = l.block.x * l.block.y * l.block.z;
    blockDim = l.block;
    gridDim = l.grid;
    for (uint64_t k = 0; k < blocks; k++) {
        const uint64_t i = l.order % 2 == 0 ? k : blocks - 1 - k;

        blockIdx = {static_cast<unsigned>(i % l.grid.x), static_cast<unsigned>(i / l.grid.x % l.grid.y),
                    static_cast<unsigned>(i / l.grid.x / l.grid.y)};
        s.round = l.order + k;
        block_run(s);
    }
    s.now = nullptr;
}

int barrier(int value, const site &at)
{
    stage &s = here();
    lane *self = s.current;

    self->at = at;
    s.barrier_sum += value;
    s.arrived++;
    if (s.arrived < s.count) {
        lane_wait(lane_state::AT_BARRIER);
        return s.barrier_result;
    }
    self->state = lane_state::AT_BARRIER;
    for (uint32_t i = 0; i < s.count; i++) {
        lane &l = s.lanes[i];

        if (l.at.line != at.line || !is_same_file(l.at, at))
            stop_stuck("threads of a block wait at different barriers");
        l.state = lane_state::READY;
    }
    s.arrived = 0;
    s.barrier_result = s.barrier_sum;
    s.barrier_sum = 0;
    lane_wait(lane_state::READY); /* so that it is not always the last that goes on first */
    return s.barrier_result;
}

void meet(uint32_t mask, const void *in, void *out, void *combine, combine_fn *call, const site &at)
{
    stage &s = here();
    lane *self = s.current;
    lane *const warp = self - self->index % TWIN_WARP;
    const uint32_t lanes = s.count - (self->index - self->index % TWIN_WARP); /* that exist */
    const uint32_t wanted = static_cast<uint32_t>(__builtin_popcount(mask));
    uint32_t *const at_warp = &s.at_warp[self->index / TWIN_WARP];

    if ((mask >> self->index % TWIN_WARP & 1) == 0)
        stop("a lane's own bit is not in its mask", at);
    self->at = at;
    self->mask = mask;
    self->in = in;
    self->out = out;
    self->state = lane_state::AT_WARP;
    if (++*at_warp < wanted) { /* not all can be here */
        lane_wait(lane_state::AT_WARP);
        return;
    }

    const void *ins[TWIN_WARP] = {};
    void *outs[TWIN_WARP] = {};

    for (uint32_t i = 0; i < TWIN_WARP && i < lanes; i++) {
        if ((mask >> i & 1) == 0)
            continue;
        if (!is_alike(warp[i], *self)) {
            lane_wait(lane_state::AT_WARP);
            return;
        }
        ins[i] = warp[i].in;
        outs[i] = warp[i].out;
    }
    *at_warp -= wanted;
    call(combine, mask, ins, outs);
    for (uint32_t i = 0; i < TWIN_WARP && i < lanes; i++) {
        if ((mask >> i & 1) != 0)
            warp[i].state = lane_state::READY;
    }
}

unsigned char *shared_dynamic()
{
    return here().shared;
}

uint32_t lane_index()
{
    return here().current->index % TWIN_WARP;
}

const char *kernel_of_thread()
{
    const stage *s = stage_of_thread.held;

    return s != nullptr && s->now != nullptr ? s->now->kernel : nullptr;
}

void stop(const char *why, const site &at)
{
    const stage &s = here();

    print_where(why);
    fprintf(stderr, "  thread (%u, %u, %u) in %s, %s:%d\n", s.current->thread.x, s.current->thread.y, s.current->thread.z,
            at.what, at.file, at.line);
    abort();
}

} // namespace twin
