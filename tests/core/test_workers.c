/* tests/core/test_workers.c - every item runs exactly once, on a valid worker, whatever the number of threads, and two callers at
 * once do not go unseen. */
#include "core/system/workers.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/topology.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ITEMS_MAX 1000

struct counts {
    atomic_uint ran[ITEMS_MAX];
    atomic_uint bad_worker;
    uint32_t worker_count;
    uint64_t plain[ITEMS_MAX]; /* written without atomics: the pool orders it before run() returns */
};

static void count_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct counts *counts = ctx;

    atomic_fetch_add(&counts->ran[index], 1);
    counts->plain[index] += index + 1;
    if (worker >= counts->worker_count)
        atomic_fetch_add(&counts->bad_worker, 1);
}

static strata_status try_item(void *ctx, uint64_t index)
{
    count_item(ctx, index, 0);
    return STRATA_OK;
}

/* All but the first two fail. */
static strata_status refuse_item(void *ctx, uint64_t index)
{
    count_item(ctx, index, 0);
    return index < 2 ? STRATA_OK
                     : st_error_remedy(st_error(STRATA_E_INPUT, "item %d", (int)index), "a.key", "leave %d out", (int)index);
}

/* On a pool; NULL: on threads of each loop's own. */
static void check_loop(struct st_workers *w, uint64_t items, unsigned repeats)
{
    struct counts *counts = calloc(1, sizeof(*counts));

    assert_non_null(counts);
    counts->worker_count = w != NULL ? st_workers_count(w) : (uint32_t)items;
    for (unsigned i = 0; i < repeats; i++)
        if (w != NULL)
            st_workers_run(w, count_item, counts, items);
        else
            assert_int_equal(st_workers_once(try_item, counts, items), STRATA_OK);
    for (uint64_t i = 0; i < ITEMS_MAX; i++) {
        assert_int_equal(atomic_load(&counts->ran[i]), i < items ? repeats : 0);
        assert_int_equal(counts->plain[i], i < items ? repeats * (i + 1) : 0);
    }
    assert_int_equal(atomic_load(&counts->bad_worker), 0);
    free(counts);
}

TEST(test_every_item_once)
{
    static const uint64_t sizes[] = {0, 1, 2, 3, 7, 64, ITEMS_MAX};

    for (uint32_t count = 1; count <= 8; count++) {
        struct st_workers *w;

        assert_int_equal(st_workers_create(&w, count, NULL), STRATA_OK);
        assert_int_equal(st_workers_count(w), count);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
            check_loop(w, sizes[i], 20);
        st_workers_destroy(w);
    }
}

/* Many short loops in a row: late threads of one loop meet the next one. */
TEST(test_many_short_loops)
{
    struct st_workers *w;

    assert_int_equal(st_workers_create(&w, 4, NULL), STRATA_OK);
    check_loop(w, 3, 5000);
    st_workers_destroy(w);
}

static void *run_from_thread(void *arg)
{
    check_loop(arg, 100, 50);
    return NULL;
}

TEST(test_caller_may_change)
{
    struct st_workers *w;
    pthread_t thread;

    assert_int_equal(st_workers_create(&w, 3, NULL), STRATA_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pthread_create(&thread, NULL, run_from_thread, w), 0);
        pthread_join(thread, NULL);
        check_loop(w, 10, 10);
    }
    st_workers_destroy(w);
}

TEST(test_bound_and_counted_by_topology)
{
    struct st_topology *topo;
    struct st_workers *w;

    assert_int_equal(st_topology_load(&topo, NULL), STRATA_OK);
    assert_int_equal(st_workers_create(&w, 0, topo), STRATA_OK);
    assert_int_equal(st_workers_count(w), st_topology_core_count(topo));
    st_topology_destroy(topo);
    check_loop(w, 100, 10);
    st_workers_destroy(w);
    assert_int_equal(st_workers_create(&w, 0, NULL), STRATA_OK);
    assert_true(st_workers_count(w) >= 1);
    st_workers_destroy(w);
}

/* Where there are no threads or no memory for many, the caller does all. */
TEST(test_loops_on_threads_of_their_own)
{
    static const uint64_t sizes[] = {0, 1, 2, 3, 7, ITEMS_MAX};
    static const char *const faults[] = {"thread.start:0:1", "workers.alloc:0:1"};
    struct counts *counts = calloc(1, sizeof(*counts));

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        check_loop(NULL, sizes[i], 3);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        assert_int_equal(st_fault_arm_text(faults[i]), 0);
        check_loop(NULL, 7, 1);
        (void)st_fault_disarm(); /* on one core there are no threads */
    }
    assert_int_equal(st_fault_arm_text("workers.alloc"), 0);
    assert_int_equal(st_workers_once(try_item, counts, 7), STRATA_E_NOMEM);
    assert_true(st_fault_disarm() >= 1);
    free(counts);
}

TEST(test_first_item_that_failed_is_told)
{
    struct counts *counts = calloc(1, sizeof(*counts));

    assert_int_equal(st_workers_once(refuse_item, counts, ITEMS_MAX), STRATA_E_INPUT);
    assert_string_equal(strata_last_error(), "item 2: leave 2 out");
    assert_string_equal(strata_error_key(), "a.key");
    assert_string_equal(strata_error_remedy(), "leave 2 out");
    assert_int_equal(atomic_load(&counts->ran[ITEMS_MAX - 1]), 1);
    free(counts);
}

static void begin_another(void *ctx, uint64_t index, uint32_t worker)
{
    struct st_workers *w = ctx;

    (void)index;
    (void)worker;
    st_workers_run(w, begin_another, w, 0);
}

/* Even of one item or none, which would do no harm this time. */
TEST(test_two_callers_at_once_abort)
{
    for (uint32_t count = 1; count <= 4; count += 3) {
        const pid_t pid = child_fork();

        if (pid == 0) {
            struct st_workers *w;

            signal(SIGABRT, SIG_DFL);
            if (st_workers_create(&w, count, NULL) == STRATA_OK)
                st_workers_run(w, begin_another, w, 1);
            _exit(0);
        }
        assert_int_equal(child_wait(pid), 128 + SIGABRT);
    }
}

TEST(test_too_many)
{
    struct st_workers *w = NULL;

    assert_int_equal(st_workers_create(&w, 257, NULL), STRATA_E_INVAL);
    assert_null(w);
    st_workers_destroy(NULL);
}

TEST(test_single_failure_walk)
{
    struct fault_walk walk = {.result = -EAGAIN};

    while (fault_walk_next(&walk)) {
        struct st_workers *w = NULL;
        const strata_status st = st_workers_create(&w, 4, NULL);

        fault_walk_end(&walk, st);
        assert_int_equal(st, walk.fired ? STRATA_E_NOMEM : STRATA_OK);
        assert_true(st == STRATA_OK || w == NULL);
        st_workers_destroy(w);
    }
    assert_int_equal(walk.runs, 1 + 3 + 1);
}
