/* core/system/workers.c - a pool of threads that share one parallel loop at a time.
 *
 * The whole protocol is one word, `gate`: generation of the loop, whether it is open, and how many threads are inside.  A thread
 * joins by a compare-and-swap on an open gate; the caller runs items itself, closes the gate when none are left and waits for
 * those inside.  A thread that wakes too late finds the gate closed and goes back to sleep.  The caller does not wait for it, so
 * a busy core delays a loop by at most one item. */
#include "core/system/workers.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/thread.h"
#include "core/system/topology.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define WORKERS_MAX 256
#define SPIN_COUNT  64 /* pauses before sleeping: 2-3 us; two wakes of a futex cost about 10 */
#define GATE_OPEN   (UINT64_C(1) << 31)
#define GATE_INSIDE (GATE_OPEN - 1)
#define GATE_SHIFT  32

struct worker {
    struct st_workers *pool;
    uint32_t index;
    pthread_t thread;
};

struct st_workers {
    uint32_t count;
    uint32_t thread_count;          /* threads that exist: count - 1 once created */
    const struct st_topology *topo; /* while threads start */

    atomic_bool running; /* a loop: whoever began it has not seen its end */

    /* The loop; written by the caller while the gate is closed and empty, read by the threads that joined. */
    st_work_fn *fn;
    void *ctx;
    uint64_t items;
    _Alignas(64) atomic_uint_fast64_t next; /* next item to hand out */
    _Alignas(64)
        atomic_uint_fast64_t gate; /* open: release by the caller, acquire by joiners; leave: release, acquire by the caller */

    pthread_mutex_t lock; /* guards the four members below, and orders gate changes against sleeping */
    pthread_cond_t wake;  /* a loop opened, or stop */
    pthread_cond_t idle;  /* the last thread left a closed gate, or a thread started */
    uint32_t sleeper_count;
    uint32_t started_count;
    bool caller_sleeps;
    bool stop;
    struct worker workers[]; /* [count]; 0 is the caller and has no thread */
};

static void spin_pause(void)
{
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

static void run_items(struct st_workers *w, uint32_t worker)
{
    uint64_t i;

    while ((i = atomic_fetch_add_explicit(&w->next, 1, memory_order_relaxed)) < w->items)
        w->fn(w->ctx, i, worker);
}

/* Joins the loop of `generation` unless it has closed or a later one has begun. */
static bool gate_join(struct st_workers *w, uint64_t generation)
{
    uint64_t gate = atomic_load_explicit(&w->gate, memory_order_relaxed);

    while ((gate & GATE_OPEN) != 0 && gate >> GATE_SHIFT == generation)
        if (atomic_compare_exchange_weak_explicit(&w->gate, &gate, gate + 1, memory_order_acquire, memory_order_relaxed))
            return true;
    return false;
}

static void gate_leave(struct st_workers *w)
{
    uint64_t before = atomic_fetch_sub_explicit(&w->gate, 1, memory_order_release);

    if ((before & GATE_OPEN) != 0 || (before & GATE_INSIDE) != 1)
        return;
    pthread_mutex_lock(&w->lock);
    if (w->caller_sleeps)
        pthread_cond_signal(&w->idle);
    pthread_mutex_unlock(&w->lock);
}

/* Waits for a generation other than `seen`; false when the pool stops. */
static bool wait_for_loop(struct st_workers *w, uint64_t seen, uint64_t *generation)
{
    bool run;

    for (uint32_t i = 0; i < SPIN_COUNT; i++) {
        *generation = atomic_load_explicit(&w->gate, memory_order_relaxed) >> GATE_SHIFT;
        if (*generation != seen)
            return true;
        spin_pause();
    }
    pthread_mutex_lock(&w->lock);
    w->sleeper_count++;
    while ((*generation = atomic_load_explicit(&w->gate, memory_order_relaxed) >> GATE_SHIFT) == seen && !w->stop)
        pthread_cond_wait(&w->wake, &w->lock);
    w->sleeper_count--;
    run = *generation != seen;
    pthread_mutex_unlock(&w->lock);
    return run;
}

static void *worker_main(void *arg)
{
    struct worker *me = arg;
    struct st_workers *w = me->pool;
    uint64_t seen = 0, generation;

    if (w->topo != NULL)
        (void)st_topology_bind(w->topo, me->index); /* if the system refuses, the scheduler decides */
    pthread_mutex_lock(&w->lock);
    w->started_count++;
    pthread_cond_signal(&w->idle);
    pthread_mutex_unlock(&w->lock);

    while (wait_for_loop(w, seen, &generation)) {
        if (gate_join(w, generation)) {
            run_items(w, me->index);
            gate_leave(w);
        }
        seen = generation;
    }
    return NULL;
}

static uint32_t default_count(const struct st_topology *topo)
{
    uint32_t count = 1;
    cpu_set_t set;

    if (topo != NULL)
        count = st_topology_core_count(topo);
    else if (sched_getaffinity(0, sizeof(set), &set) == 0)
        count = (uint32_t)CPU_COUNT(&set);
    return count < WORKERS_MAX ? count : WORKERS_MAX;
}

static strata_status start_threads(struct st_workers *w)
{
    for (uint32_t i = 1; i < w->count; i++) {
        struct worker *worker = &w->workers[i];
        strata_status st;

        worker->pool = w;
        worker->index = i;
        if ((st = st_thread_start(&worker->thread, "strata-worker", worker_main, worker)) != STRATA_OK)
            return st_error_key(st_error_prefix(st, "worker %u of %u (strata.threads lowers their number)", i, w->count - 1),
                                "strata.threads");
        w->thread_count++;
    }
    return STRATA_OK;
}

strata_status st_workers_create(struct st_workers **out, uint32_t count, const struct st_topology *topo)
{
    struct st_workers *w;
    strata_status st;

    if (count > WORKERS_MAX)
        return st_error(STRATA_E_INVAL, "workers: %u threads asked for, at most %u are possible", count, WORKERS_MAX);
    if (count == 0)
        count = default_count(topo);
    w = aligned_alloc(64, (sizeof(*w) + count * sizeof(w->workers[0]) + 63) / 64 * 64);
    if (w == NULL || st_fault("workers.alloc", 0) < 0) {
        free(w);
        return st_nomem((sizeof(*w) + count * sizeof(w->workers[0]) + 63) / 64 * 64);
    }
    *w = (struct st_workers){.count = count, .topo = topo};
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->wake, NULL);
    pthread_cond_init(&w->idle, NULL);
    st = start_threads(w);
    pthread_mutex_lock(&w->lock);
    while (w->started_count < w->thread_count)
        pthread_cond_wait(&w->idle, &w->lock);
    w->topo = NULL;
    pthread_mutex_unlock(&w->lock);
    if (st != STRATA_OK) {
        st_workers_destroy(w);
        return st;
    }
    *out = w;
    return STRATA_OK;
}

void st_workers_destroy(struct st_workers *w)
{
    if (w == NULL)
        return;
    pthread_mutex_lock(&w->lock);
    w->stop = true;
    pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
    for (uint32_t i = 1; i <= w->thread_count; i++)
        pthread_join(w->workers[i].thread, NULL);
    pthread_cond_destroy(&w->idle);
    pthread_cond_destroy(&w->wake);
    pthread_mutex_destroy(&w->lock);
    free(w);
}

uint32_t st_workers_count(const struct st_workers *w)
{
    return w->count;
}

static void gate_open(struct st_workers *w)
{
    uint64_t generation = (atomic_load_explicit(&w->gate, memory_order_relaxed) >> GATE_SHIFT) + 1;

    pthread_mutex_lock(&w->lock);
    atomic_store_explicit(&w->gate, generation << GATE_SHIFT | GATE_OPEN, memory_order_release);
    if (w->sleeper_count > 0)
        pthread_cond_broadcast(&w->wake);
    pthread_mutex_unlock(&w->lock);
}

/* Closes the gate and waits until no thread is inside. */
static void gate_close(struct st_workers *w)
{
    atomic_fetch_and_explicit(&w->gate, ~GATE_OPEN, memory_order_relaxed);
    for (uint32_t i = 0; i < SPIN_COUNT; i++) {
        if ((atomic_load_explicit(&w->gate, memory_order_acquire) & GATE_INSIDE) == 0)
            return;
        spin_pause();
    }
    pthread_mutex_lock(&w->lock);
    w->caller_sleeps = true;
    while ((atomic_load_explicit(&w->gate, memory_order_acquire) & GATE_INSIDE) != 0)
        pthread_cond_wait(&w->idle, &w->lock);
    w->caller_sleeps = false;
    pthread_mutex_unlock(&w->lock);
}

/* The loop by the caller and the threads that join it. */
static void run_shared(struct st_workers *w, st_work_fn *fn, void *ctx, uint64_t items)
{
    w->fn = fn;
    w->ctx = ctx;
    w->items = items;
    atomic_store_explicit(&w->next, 0, memory_order_relaxed);
    gate_open(w);
    run_items(w, 0);
    gate_close(w);
}

/* If two callers ran at once, one would run the other's items with its own context, and leave some out.  So that is refused. */
void st_workers_run(struct st_workers *w, st_work_fn *fn, void *ctx, uint64_t items)
{
    const bool taken = atomic_exchange_explicit(&w->running, true, memory_order_relaxed);

    assert(!taken);
    (void)taken;
    if (w->count > 1 && items > 1)
        run_shared(w, fn, ctx, items);
    else
        for (uint64_t i = 0; i < items; i++)
            fn(ctx, i, 0);
    atomic_store_explicit(&w->running, false, memory_order_relaxed);
}

struct tries {
    st_work_try_fn *fn;
    void *ctx;
    pthread_mutex_t lock; /* of the first item that failed: */
    uint64_t index;
    strata_status status;
    struct st_sentence sentence;
};

static void try_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct tries *t = ctx;
    const strata_status st = t->fn(t->ctx, index);

    (void)worker;
    if (st == STRATA_OK)
        return;
    pthread_mutex_lock(&t->lock);
    if (t->status == STRATA_OK || index < t->index) {
        t->index = index;
        t->status = st;
        st_error_keep(&t->sentence);
    }
    pthread_mutex_unlock(&t->lock);
}

strata_status st_workers_once(st_work_try_fn *fn, void *ctx, uint64_t items)
{
    struct tries t = {.fn = fn, .ctx = ctx, .lock = PTHREAD_MUTEX_INITIALIZER};
    const uint32_t most = default_count(NULL), count = items < most ? (uint32_t)items : most;
    struct st_workers *w;
    strata_status st;

    if (items == 0)
        return STRATA_OK;
    st = st_workers_create(&w, count, NULL);
    if (st != STRATA_OK && count > 1)
        st = st_workers_create(&w, 1, NULL);
    if (st != STRATA_OK)
        return st;
    st_workers_run(w, try_item, &t, items);
    st_workers_destroy(w);
    return t.status != STRATA_OK ? st_error_again(t.status, &t.sentence) : STRATA_OK;
}
