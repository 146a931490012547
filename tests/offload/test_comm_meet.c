/* tests/offload/test_comm_meet.c - how ranks over sockets meet, and what keeps them apart. */
#include "core/base/error.h"
#include "core/base/log.h"
#include "offload/comm/comm.h"
#include "offload/comm/comm_tcp_internal.h"
#include "strata/strata.h"
#include "tests/common/fault_walk.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define RANKS      3u
#define OTHER_PORT ((uint16_t)(cf_port() + 10000)) /* of which no connection is still ending */
#define SECOND_NS  UINT64_C(1000000000)

/* --- ranks that are threads, each with options of its own --- */

struct member {
    struct st_comm_tcp_opts opts;
    atomic_bool *failed; /* set when this one has; NULL: nobody asks */
    pthread_t thread;
    strata_status status;
    char error[1024];
};

static strata_status exchange_some(struct st_comm *comm)
{
    uint32_t mine[1000], all[CF_RANKS_MAX * 1000];
    strata_status st;

    for (uint32_t i = 0; i < 1000; i++)
        mine[i] = comm->world.rank * 1000 + i;
    if ((st = st_comm_gather(comm, mine, sizeof(mine), all, "gather_scalars")) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < comm->world.ranks * 1000; i++)
        if (all[i] != i)
            return st_error(STRATA_E_CORRUPT, "number %u is %u", i, all[i]);
    return STRATA_OK;
}

static void *member_main(void *arg)
{
    struct member *member = arg;
    struct st_comm *comm = NULL;

    member->status = st_comm_tcp_open(&comm, &member->opts);
    if (member->status == STRATA_OK)
        member->status = exchange_some(comm);
    snprintf(member->error, sizeof(member->error), "%s", strata_last_error());
    if (member->failed != NULL && member->status != STRATA_OK)
        atomic_store(member->failed, true);
    st_comm_close(comm);
    return NULL;
}

static void prepare(struct member *members, uint32_t count)
{
    memset(members, 0, count * sizeof(*members));
    for (uint32_t r = 0; r < count; r++)
        members[r].opts = (struct st_comm_tcp_opts){.world = {.rank = r, .ranks = count, .local_rank = r, .local_ranks = count},
                                                    .address = "127.0.0.1",
                                                    .port = cf_port()};
}

static void start(struct member *member)
{
    assert_int_equal(pthread_create(&member->thread, NULL, member_main, member), 0);
}

static void run(struct member *members, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        start(&members[r]);
    for (uint32_t r = 0; r < count; r++)
        assert_int_equal(pthread_join(members[r].thread, NULL), 0);
}

static void assert_members_ok(const struct member *members, uint32_t count)
{
    for (uint32_t r = 0; r < count; r++)
        if (members[r].status != STRATA_OK)
            fail_msg("rank %u: status %d: %s", r, members[r].status, members[r].error);
}

static void assert_member(const struct member *member, strata_status want, const char *part)
{
    if (member->status != want || strstr(member->error, part) == NULL)
        fail_msg("status %d, not %d, or '%s' without '%s'", member->status, want, member->error, part);
}

/* --- meeting --- */

TEST(ranks_meet_by_ipv6_and_by_name)
{
    static const char *const addresses[] = {"::1", "localhost"};
    struct member members[RANKS];

    for (size_t a = 0; a < 2; a++) {
        const int fd = socket(AF_INET6, SOCK_STREAM, 0);

        if (fd < 0 && a == 0)
            continue; /* a machine without IPv6 */
        close(fd);
        prepare(members, RANKS);
        for (uint32_t r = 0; r < RANKS; r++)
            members[r].opts.address = addresses[a];
        run(members, RANKS);
        assert_members_ok(members, RANKS);
    }
}

/* Holds a port of the meeting, as another program would. */
static int hold(uint32_t index)
{
    const struct sockaddr_in6 at = {
        .sin6_family = AF_INET6, .sin6_port = htons(st_meet_port(OTHER_PORT, index)), .sin6_addr = IN6ADDR_ANY_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (const struct sockaddr *)&at, sizeof(at)), 0);
    return fd;
}

TEST(ports_that_are_taken_are_passed_by)
{
    struct member members[RANKS];
    int held[ST_MEET_PORTS];

    for (uint32_t i = 0; i + 1 < ST_MEET_PORTS; i++)
        held[i] = hold(i);
    prepare(members, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.port = OTHER_PORT;
    run(members, RANKS);
    assert_members_ok(members, RANKS);
    held[ST_MEET_PORTS - 1] = st_socket_listen(st_meet_port(OTHER_PORT, ST_MEET_PORTS - 1)); /* its connections may be ending */
    assert_true(held[ST_MEET_PORTS - 1] >= 0);
    prepare(members, RANKS);
    members[0].opts.port = OTHER_PORT;
    start(&members[0]);
    assert_int_equal(pthread_join(members[0].thread, NULL), 0);
    assert_member(&members[0], STRATA_E_IO, "are all taken: choose another MASTER_PORT than ");
    for (uint32_t i = 0; i < ST_MEET_PORTS; i++)
        close(held[i]);
}

/* Another program has the first port, takes whoever comes and says nothing. */
TEST(a_port_without_answers_is_passed_by)
{
    struct member members[RANKS];
    int mute;

    mute = st_socket_listen(st_meet_port(OTHER_PORT + 100, 0));
    assert_true(mute >= 0);
    prepare(members, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.port = OTHER_PORT + 100;
    run(members, RANKS);
    assert_members_ok(members, RANKS);
    close(mute);
}

TEST(the_last_ports_are_no_ports_beyond)
{
    assert_int_equal(st_meet_port(29500, 0), 29501);
    assert_int_equal(st_meet_port(29500, 7), 29508);
    assert_int_equal(st_meet_port(65527, 7), 65535);
    assert_int_equal(st_meet_port(65528, 0), 65527);
    assert_int_equal(st_meet_port(65535, 7), 65527);
}

TEST(strangers_are_turned_away)
{
    struct member members[RANKS];
    uint8_t hello[ST_HELLO_BYTES], byte;
    int mute, half, wrong, other;

    prepare(members, RANKS);
    start(&members[0]);
    mute = cf_knock("", 0);
    half = cf_knock("GET / HTTP/1.0\r\n\r\n", 18);
    memset(hello, 'x', sizeof(hello));
    wrong = cf_knock(hello, sizeof(hello));
    st_hello_put(hello, &(struct st_hello){.rank = 1, .ranks = RANKS, .key = 12345, .port = 1});
    other = cf_knock(hello, sizeof(hello));
    for (uint32_t r = 1; r < RANKS; r++)
        start(&members[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(members[r].thread, NULL), 0);
    assert_members_ok(members, RANKS);
    assert_int_equal(st_socket_receive_all(wrong, &byte, 1, UINT64_MAX), -ECONNRESET); /* without a word */
    assert_int_equal(st_socket_receive_all(other, &byte, 1, UINT64_MAX), -ECONNRESET);
    close(mute);
    close(half);
    close(wrong);
    close(other);
}

/* All are told, not only the two that do not fit. */
TEST(contradictions_end_the_meeting)
{
    struct member members[RANKS];
    atomic_bool failed = false;

    prepare(members, RANKS);
    members[2].opts.world.ranks = 4;
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.cancelled = members[r].failed = &failed; /* who comes when the meeting is off would wait */
    run(members, RANKS);
    for (uint32_t r = 0; r < RANKS; r += 2) /* both are there when it is said */
        assert_member(&members[r], STRATA_E_CONFIG, "rank 2 was started in a world of 4 ranks, rank 0 in one of 3");
    assert_true(members[1].status != STRATA_OK);
}

TEST(one_rank_cannot_come_twice)
{
    struct member members[RANKS];
    atomic_bool failed = false;

    prepare(members, RANKS);
    members[2].opts.world.rank = 1;
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.cancelled = members[r].failed = &failed;
    run(members, RANKS);
    assert_member(&members[0], STRATA_E_CONFIG, "two processes call themselves rank 1, or two runs share ");
}

/* Whoever starts two runs with one MASTER_PORT, or again while the first attempt's rank 0 waits still, is told at once; that one
 * goes on waiting, and its ranks come. */
TEST(a_second_rank_0_is_turned_away)
{
    struct member members[2], second[2];

    prepare(members, 2);
    prepare(second, 2);
    second[0].opts.deadline_ns = 5 * SECOND_NS;
    start(&members[0]);
    close(cf_knock("", 0)); /* the first one listens */
    start(&second[0]);
    assert_int_equal(pthread_join(second[0].thread, NULL), 0);
    assert_member(&second[0], STRATA_E_CONFIG, "another rank 0, of 2, waits at port ");
    assert_member(&second[0], STRATA_E_CONFIG, "take another, or end what");
    start(&members[1]);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(pthread_join(members[r].thread, NULL), 0);
    assert_members_ok(members, 2);
}

/* An address of a link names no link without its scope: nobody is there, as at any other where nobody answers. */
TEST(an_address_that_cannot_be_connected_to_is_nobodys)
{
    struct member members[2];

    prepare(members, 2);
    members[1].opts.address = "fe80::1";
    members[1].opts.deadline_ns = SECOND_NS / 10;
    start(&members[1]);
    assert_int_equal(pthread_join(members[1].thread, NULL), 0);
    assert_member(&members[1], STRATA_E_IO, "rank 0 did not answer at fe80::1");
}

TEST(a_rank_that_does_not_come_is_named)
{
    struct member members[RANKS];

    prepare(members, RANKS);
    for (uint32_t r = 0; r < 2; r++) {
        members[r].opts.deadline_ns = SECOND_NS;
        start(&members[r]);
    }
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(pthread_join(members[r].thread, NULL), 0);
    assert_member(&members[0], STRATA_E_IO, "of 3 ranks these did not come to port ");
    assert_member(&members[0], STRATA_E_IO, "within 1 seconds: 2");
    assert_int_equal(members[1].status, STRATA_E_IO);
}

/* It had come, and the others would wait for one that still has to. */
TEST(a_rank_that_goes_before_all_have_come_ends_the_meeting)
{
    struct member members[RANKS];
    struct st_hello hello = {.rank = 2, .ranks = RANKS, .key = st_meet_key(cf_port()), .port = 1};
    uint8_t bytes[ST_HELLO_BYTES], frame[ST_REPLY_BYTES], yes = 1;
    int fd;

    snprintf(hello.version, sizeof(hello.version), "%s", strata_version());
    st_hello_put(bytes, &hello);
    prepare(members, RANKS);
    members[0].opts.deadline_ns = 20 * SECOND_NS;
    start(&members[0]);
    fd = cf_knock(bytes, sizeof(bytes));
    assert_int_equal(st_socket_receive_all(fd, frame, sizeof(frame), UINT64_MAX), 0);
    assert_int_equal(st_socket_send_all(fd, &yes, 1, UINT64_MAX), 0);
    close(fd);
    assert_int_equal(pthread_join(members[0].thread, NULL), 0);
    assert_member(&members[0], STRATA_E_IO, "rank 2 is gone (during the meeting of the ranks)");
}

/* One has met the others and listens no longer: who connects to it says which rank, where, and why not. */
TEST(a_rank_that_does_not_listen_is_named)
{
    struct member members[RANKS];
    struct st_hello hello = {.rank = 1, .ranks = RANKS, .key = st_meet_key(cf_port()), .port = 1};
    uint8_t bytes[ST_HELLO_BYTES], frame[ST_REPLY_BYTES], yes = 1;
    atomic_bool failed = false;
    int fd;

    snprintf(hello.version, sizeof(hello.version), "%s", strata_version());
    st_hello_put(bytes, &hello);
    prepare(members, RANKS);
    for (uint32_t r = 0; r < RANKS; r++) {
        members[r].opts.cancelled = members[r].failed = &failed;
        members[r].opts.sockets_only = true;
    }
    start(&members[0]);
    fd = cf_knock(bytes, sizeof(bytes));
    assert_int_equal(st_socket_receive_all(fd, frame, sizeof(frame), UINT64_MAX), 0);
    assert_int_equal(st_socket_send_all(fd, &yes, 1, UINT64_MAX), 0);
    start(&members[2]);
    assert_int_equal(pthread_join(members[2].thread, NULL), 0);
    assert_int_equal(pthread_join(members[0].thread, NULL), 0);
    close(fd);
    assert_member(&members[2], STRATA_E_IO, "rank 1 cannot be reached at port 1: Connection refused");
}

/* Until a rank has said that it waits, nobody counts on it: it may come as often as it likes. */
TEST(a_rank_that_goes_before_it_waits_may_come_again)
{
    struct member members[RANKS];
    struct st_hello hello = {.rank = 2, .ranks = RANKS, .key = st_meet_key(cf_port()), .port = 1};
    uint8_t bytes[ST_HELLO_BYTES], frame[ST_REPLY_BYTES];

    snprintf(hello.version, sizeof(hello.version), "%s", strata_version());
    st_hello_put(bytes, &hello);
    prepare(members, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.deadline_ns = 20 * SECOND_NS;
    start(&members[0]);
    for (int i = 0; i < 3; i++) {
        const int fd = cf_knock(bytes, sizeof(bytes));

        assert_int_equal(st_socket_receive_all(fd, frame, sizeof(frame), UINT64_MAX), 0);
        close(fd);
    }
    for (uint32_t r = 1; r < RANKS; r++)
        start(&members[r]);
    for (uint32_t r = 0; r < RANKS; r++)
        assert_int_equal(pthread_join(members[r].thread, NULL), 0);
    assert_members_ok(members, RANKS);
}

TEST(another_version_does_not_come_in)
{
    struct st_hello hello = {.rank = 1, .ranks = 2, .key = st_meet_key(cf_port()), .port = 1, .version = "0.0.0-other"};
    uint8_t bytes[ST_HELLO_BYTES];
    struct member members[2];
    int fd;

    st_hello_put(bytes, &hello);
    prepare(members, 2);
    members[0].opts.deadline_ns = 20 * SECOND_NS;
    start(&members[0]);
    fd = cf_knock(bytes, sizeof(bytes));
    assert_int_equal(pthread_join(members[0].thread, NULL), 0);
    assert_member(&members[0], STRATA_E_CONFIG, "rank 1 runs version 0.0.0-other, rank 0 runs ");
    close(fd);
}

TEST(nobody_at_the_address_is_said)
{
    struct member members[2];

    prepare(members, 2);
    members[1].opts.deadline_ns = SECOND_NS / 10;
    start(&members[1]);
    assert_int_equal(pthread_join(members[1].thread, NULL), 0);
    assert_member(&members[1], STRATA_E_IO, "rank 0 did not answer at 127.0.0.1, ports ");
    members[1].opts.address = "not an address";
    start(&members[1]);
    assert_int_equal(pthread_join(members[1].thread, NULL), 0);
    assert_member(&members[1], STRATA_E_INPUT, "the address of rank 0, 'not an address', is not found: ");
}

static void count_line(void *ctx, enum st_log_level level, const char *line)
{
    (void)level;
    (void)line;
    atomic_fetch_add((atomic_uint *)ctx, 1);
}

/* Ranks never start at one moment: only who has waited for long says so, be it the one that is looked for or one that looks. */
TEST(who_has_only_begun_to_wait_says_nothing)
{
    atomic_uint lines = 0;

    st_log_configure(count_line, &lines, ST_LOG_NOTICE);
    for (uint32_t r = 0; r < 2; r++) {
        struct member members[2];

        prepare(members, 2);
        members[r].opts.deadline_ns = SECOND_NS / 10;
        start(&members[r]);
        assert_int_equal(pthread_join(members[r].thread, NULL), 0);
        assert_int_equal(members[r].status, STRATA_E_IO);
    }
    st_log_configure(NULL, NULL, ST_LOG_INFO);
    assert_int_equal(atomic_load(&lines), 0);
}

TEST(who_does_not_want_to_wait_is_let_go)
{
    struct member members[RANKS];
    atomic_bool cancelled = false;

    prepare(members, RANKS);
    for (uint32_t r = 0; r < 2; r++) { /* one at the door, and one that has come */
        members[r].opts.cancelled = &cancelled;
        start(&members[r]);
    }
    atomic_store(&cancelled, true);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(pthread_join(members[r].thread, NULL), 0);
    assert_member(&members[0], STRATA_E_CANCELLED, "cancelled while the ranks met");
    assert_true(members[1].status == STRATA_E_CANCELLED || members[1].status == STRATA_E_IO);
}

/* Whatever fails is an error with a sentence, and leaves no descriptor. */
TEST(every_single_failure_is_clean)
{
    struct fault_walk walk = {.result = -EIO};
    struct member members[2];

    while (fault_walk_next(&walk)) {
        atomic_bool failed = false;
        strata_status st;

        prepare(members, 2);
        for (uint32_t r = 0; r < 2; r++) {
            members[r].opts.cancelled = members[r].failed = &failed; /* the other one would wait for it */
            members[r].opts.sockets_only = walk.runs % 2 == 0;       /* both, in turn */
        }
        run(members, 2);
        for (uint32_t r = 0; r < 2; r++)
            if (members[r].status != STRATA_OK && members[r].error[0] == '\0')
                fail_msg("passage %u: rank %u: status %d and no sentence", walk.after, r, members[r].status);
        st = members[0].status != STRATA_OK ? members[0].status : members[1].status;
        if (st != STRATA_OK)
            st = st_error(st, "%s", members[0].status != STRATA_OK ? members[0].error : members[1].error);
        fault_walk_end(&walk, st);
    }
    assert_true(walk.failed > 20);
}
