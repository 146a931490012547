/* tests/offload/test_comm_time.c - what time does to ranks over sockets, on a clock that the test turns: a process that was
 * stopped blames nobody, strangers at the door go, and who is waited for is said. */
#include "core/system/clock.h"
#include "offload/comm/comm.h"
#include "offload/comm/comm_tcp_internal.h"
#include "tests/common/kept_log.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS UINT64_C(1000000000)

/* --- the clock: the system's, and what has been added to it --- */

static _Atomic uint64_t added_ns;
static atomic_uint polls_to_pass; /* of any thread: each takes step_ns and brings nothing */
static _Atomic uint64_t step_ns;

int clock_gettime(clockid_t id, struct timespec *out)
{
    const long rc = syscall(SYS_clock_gettime, id, out);

    if (rc == 0 && id == CLOCK_MONOTONIC) {
        const uint64_t ns = (uint64_t)out->tv_sec * SECOND_NS + (uint64_t)out->tv_nsec + atomic_load(&added_ns);

        *out = (struct timespec){.tv_sec = (time_t)(ns / SECOND_NS), .tv_nsec = (long)(ns % SECOND_NS)};
    }
    return (int)rc;
}

int poll(struct pollfd *polls, nfds_t count, int wait_ms)
{
    unsigned left = atomic_load(&polls_to_pass);

    while (left > 0 && !atomic_compare_exchange_weak(&polls_to_pass, &left, left - 1))
        ;
    if (left == 0)
        return (int)syscall(SYS_poll, polls, count, wait_ms);
    atomic_fetch_add(&added_ns, atomic_load(&step_ns));
    for (nfds_t i = 0; i < count; i++)
        polls[i].revents = 0;
    return 0;
}

/* The system's clock is behind by what has been added. */
int clock_nanosleep(clockid_t id, int flags, const struct timespec *until, struct timespec *left)
{
    struct timespec at = *until;

    if (id == CLOCK_MONOTONIC && (flags & TIMER_ABSTIME) != 0) {
        const uint64_t ns = (uint64_t)at.tv_sec * SECOND_NS + (uint64_t)at.tv_nsec, added = atomic_load(&added_ns);

        at.tv_sec = (time_t)((ns > added ? ns - added : 0) / SECOND_NS);
        at.tv_nsec = (long)((ns > added ? ns - added : 0) % SECOND_NS);
    }
    return syscall(SYS_clock_nanosleep, id, flags, &at, left) == 0 ? 0 : errno;
}

static void begin_to_pass(uint32_t polls, uint64_t each_ns)
{
    atomic_store(&step_ns, each_ns);
    atomic_store(&polls_to_pass, polls);
}

/* Returns when that time has passed in polls of a thread that waits. */
static void pass(uint32_t polls, uint64_t each_ns)
{
    begin_to_pass(polls, each_ns);
    while (atomic_load(&polls_to_pass) > 0)
        (void)sched_yield();
}

/* --- exchanges --- */

struct wait {
    pthread_barrier_t begun;
    uint32_t polls;
    uint64_t each_ns;
    atomic_bool over; /* rank 0 waits no more */
};

/* Rank 1 comes when rank 0 has waited for it so often. */
static strata_status come_late(struct st_comm *comm, struct cf_world *world)
{
    struct wait *wait = world->ctx;
    strata_status st;

    if (comm->world.rank == 1)
        begin_to_pass(wait->polls, wait->each_ns);
    pthread_barrier_wait(&wait->begun);
    while (comm->world.rank == 1 && atomic_load(&polls_to_pass) > 0 && !atomic_load(&wait->over))
        (void)sched_yield();
    st = st_comm_barrier(comm, "gather_weight of page 7");
    atomic_store(&wait->over, true);
    return st;
}

static void run_late(struct cf_world *world, uint32_t polls, uint64_t each_ns)
{
    struct wait wait = {.polls = polls, .each_ns = each_ns};

    world->ctx = &wait;
    pthread_barrier_init(&wait.begun, NULL, 2);
    cf_run(world);
    pthread_barrier_destroy(&wait.begun);
}

/* Time in which the process did not run, an hour in one wait, is no silence; seconds in which it did add up to the deadline. */
TEST(only_time_that_was_waited_counts)
{
    static const char *const kinds[] = {"tcp", "shared"};

    for (uint32_t k = 0; k < 2; k++) {
        struct cf_world world = {.kind = kinds[k], .ranks = 2, .deadline_ns = 10 * SECOND_NS, .body = come_late};

        run_late(&world, 4, 3600 * SECOND_NS);
        cf_assert_ok(&world);
        run_late(&world, 9, SECOND_NS);
        cf_assert_ok(&world);
        run_late(&world, 10, SECOND_NS);
        cf_assert_failed(&world, 0, "nothing was heard of rank 1 for 10 seconds (during gather_weight of page 7)");
    }
}

/* --- meeting --- */

struct member {
    struct st_comm_tcp_opts opts;
    pthread_t thread;
    strata_status status;
    char error[1024];
};

static atomic_bool cancelled;

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct st_comm *comm = NULL;

    member->status = st_comm_tcp_open(&comm, &member->opts);
    snprintf(member->error, sizeof(member->error), "%s", strata_last_error());
    st_comm_close(comm);
    return NULL;
}

static void start(struct member *member, uint32_t rank, uint32_t ranks)
{
    *member = (struct member){.opts = {.world = {.rank = rank, .ranks = ranks, .local_rank = rank, .local_ranks = ranks},
                                       .address = "127.0.0.1",
                                       .port = cf_port(),
                                       .cancelled = &cancelled}};
    assert_int_equal(pthread_create(&member->thread, NULL, member_main, member), 0);
}

static void join(struct member *member)
{
    assert_int_equal(pthread_join(member->thread, NULL), 0);
}

static int knock(void)
{
    union st_address address = {
        .v4 = {.sin_family = AF_INET, .sin_port = htons(st_meet_port(cf_port(), 0)), .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    int fd;

    while ((fd = st_socket_connect(&address, UINT64_MAX)) < 0)
        assert_int_equal(fd, -ECONNREFUSED);
    return fd;
}

/* More than there are places for, who say nothing: after some seconds the places are the ranks' again. */
TEST(strangers_who_say_nothing_go)
{
    enum { STRANGERS = 70 };
    static struct member members[2];
    int mute[STRANGERS];
    uint8_t byte;

    kept_log_begin(ST_LOG_WARN);
    start(&members[0], 0, 2);
    for (uint32_t i = 0; i < STRANGERS; i++)
        mute[i] = knock();
    for (uint32_t i = 0; i < STRANGERS; i++) {
        uint32_t times = 0;
        int err;

        while ((err = st_socket_receive_all(mute[i], &byte, 1, st_clock_ns())) == -ETIMEDOUT && times++ < 40)
            pass(1, 6 * SECOND_NS); /* of those who stand inside; others are let in then */
        assert_int_equal(err, -ECONNRESET);
        st_socket_close(&mute[i]);
    }
    start(&members[1], 1, 2);
    for (uint32_t r = 0; r < 2; r++) {
        join(&members[r]);
        if (members[r].status != STRATA_OK)
            fail_msg("rank %u: %s", r, members[r].error);
    }
    kept_log_end();
}

/* Who has said which rank he is stays, however long the others take. */
TEST(ranks_wait_for_the_last_of_them)
{
    static struct member members[3];

    start(&members[0], 0, 3);
    start(&members[1], 1, 3);
    for (uint32_t i = 0; i < 60; i++) {
        pass(1, SECOND_NS);
        assert_int_equal(usleep(2000), 0); /* polls that bring something */
    }
    start(&members[2], 2, 3);
    for (uint32_t r = 0; r < 3; r++) {
        join(&members[r]);
        if (members[r].status != STRATA_OK)
            fail_msg("rank %u: %s", r, members[r].error);
    }
}

/* Every ten seconds, until the deadline. */
TEST(who_is_waited_for_is_said)
{
    static struct member host;

    kept_log_begin(ST_LOG_NOTICE);
    start(&host, 0, 3);
    for (uint32_t i = 0; i < 3; i++) {
        pass(1, 11 * SECOND_NS);
        pass(2, SECOND_NS); /* when the first of them has passed it has been said */
    }
    pass(1, 300 * SECOND_NS);
    join(&host);
    kept_log_end();
    assert_int_equal(kept_log.count, 3);
    assert_non_null(strstr(kept_log.last, "of 3 ranks these have not come to port "));
    assert_non_null(strstr(kept_log.last, " yet: 1, 2"));
    assert_int_equal(host.status, STRATA_E_IO);
    assert_non_null(strstr(host.error, "of 3 ranks these did not come to port "));
    assert_non_null(strstr(host.error, " within 300 seconds: 1, 2"));
    start(&host, 0, 12); /* of many some are named */
    pass(1, 301 * SECOND_NS);
    join(&host);
    assert_non_null(strstr(host.error, " within 300 seconds: 1, 2, 3, 4, 5, 6, 7, 8 and 3 others"));
}

/* With all its digits, be it the longest. */
TEST(a_deadline_is_said_in_seconds)
{
    assert_int_equal(st_comm_silent(1, "a gather", 86399 * SECOND_NS), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "nothing was heard of rank 1 for 86399 seconds (during a gather)"));
    assert_int_equal(st_comm_silent(0, "a gather", SECOND_NS), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "for 1 seconds "));
}
