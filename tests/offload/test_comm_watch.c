/* tests/offload/test_comm_watch.c - a rank whose process ends is seen by one that waits for it, and one that goes on is left
 * alone. */
#include "core/base/error.h"
#include "offload/comm/comm_watch.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/common/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DEADLINE_NS UINT64_C(60000000000)

static pid_t start_child(void)
{
    const pid_t pid = fork();

    if (pid == 0)
        for (;;)
            pause();
    assert_true(pid > 0);
    return pid;
}

static void end_child(pid_t pid)
{
    kill(pid, SIGKILL);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

TEST(a_dead_rank_ends_the_wait_for_it)
{
    struct st_comm *comms[2];
    struct st_comm_watch *w = NULL;
    const pid_t child = start_child();
    const pid_t pids[2] = {getpid(), child};

    assert_int_equal(st_comm_threads_open(comms, 2, DEADLINE_NS), STRATA_OK);
    assert_int_equal(st_comm_watch_open(&w, comms[0], pids), STRATA_OK);
    kill(child, SIGKILL);                                               /* a zombie is dead, too */
    assert_int_equal(st_comm_barrier(comms[0], "a test"), STRATA_E_IO); /* rank 1 never comes */
    assert_non_null(strstr(strata_last_error(), "rank 1 is gone: its process has ended"));
    st_comm_watch_close(w);
    end_child(child);
    st_comm_close(comms[0]);
    st_comm_close(comms[1]);
}

/* Whichever rank watches, and whichever are not to be watched. */
TEST(the_rank_that_is_dead_is_named)
{
    for (uint32_t self = 0; self < 4; self++)
        for (uint32_t dead = 0; dead < 4; dead++) {
            struct st_comm *comms[4];
            struct st_comm_watch *w = NULL;
            pid_t pids[4] = {0}, child;
            char text[64];

            if (self == dead)
                continue;
            child = start_child();
            pids[self] = getpid();
            pids[dead] = child;
            assert_int_equal(st_comm_threads_open(comms, 4, DEADLINE_NS), STRATA_OK);
            assert_int_equal(st_comm_watch_open(&w, comms[self], pids), STRATA_OK);
            kill(child, SIGKILL);
            assert_int_equal(st_comm_barrier(comms[self], "a test"), STRATA_E_IO);
            snprintf(text, sizeof(text), "rank %u is gone: its process has ended", dead);
            assert_non_null(strstr(strata_last_error(), text));
            st_comm_watch_close(w);
            end_child(child);
            for (uint32_t r = 0; r < 4; r++)
                st_comm_close(comms[r]);
        }
}

TEST(the_living_are_left_alone)
{
    struct st_comm *comms[3];
    struct st_comm_watch *w = NULL;
    const pid_t child = start_child();
    const pid_t pids[3] = {getpid(), child, 0}; /* the third is elsewhere */

    assert_int_equal(st_comm_threads_open(comms, 3, DEADLINE_NS), STRATA_OK);
    assert_int_equal(st_comm_watch_open(&w, comms[0], pids), STRATA_OK);
    st_comm_watch_close(w); /* then a process may end as it should */
    end_child(child);
    assert_false(atomic_load(&comms[0]->failed));
    for (uint32_t r = 0; r < 3; r++)
        st_comm_close(comms[r]);
    st_comm_watch_close(NULL);
}

/* A child of the rank's own has neither the thread nor the rank: it closes nothing, and who watches goes on. */
TEST(a_child_leaves_it_alone)
{
    struct st_comm *comms[2];
    struct st_comm_watch *w = NULL;
    const pid_t other = start_child();
    const pid_t pids[2] = {getpid(), other};
    pid_t helper;

    assert_int_equal(st_comm_threads_open(comms, 2, DEADLINE_NS), STRATA_OK);
    assert_int_equal(st_comm_watch_open(&w, comms[0], pids), STRATA_OK);
    helper = child_fork();
    if (helper == 0) {
        alarm(10);
        st_comm_watch_close(w);
        st_comm_close(comms[0]);
        _exit(0);
    }
    assert_int_equal(child_wait(helper), 0);
    assert_false(atomic_load(&comms[0]->failed));
    kill(other, SIGKILL);
    assert_int_equal(st_comm_barrier(comms[0], "a test"), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "rank 1 is gone: its process has ended"));
    st_comm_watch_close(w);
    end_child(other);
    st_comm_close(comms[0]);
    st_comm_close(comms[1]);
}

TEST(every_call_may_fail)
{
    struct fault_walk walk = {.result = -EMFILE};
    struct st_comm *comms[2];
    const pid_t child = start_child();
    const pid_t pids[2] = {getpid(), child};

    assert_int_equal(st_comm_threads_open(comms, 2, DEADLINE_NS), STRATA_OK);
    while (fault_walk_next(&walk)) {
        struct st_comm_watch *w = NULL;
        const strata_status st = st_comm_watch_open(&w, comms[0], pids);

        st_comm_watch_close(w);
        fault_walk_end(&walk, st);
        assert_int_equal(w != NULL, st == STRATA_OK);
    }
    assert_true(walk.failed >= 2);
    end_child(child);
    st_comm_close(comms[0]);
    st_comm_close(comms[1]);
}
