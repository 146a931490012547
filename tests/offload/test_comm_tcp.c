/* tests/offload/test_comm_tcp.c - ranks over sockets and shared memory: how they meet, and what becomes of those that die. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/comm/comm.h"
#include "offload/comm/comm_tcp_internal.h"
#include "strata/strata.h"
#include "tests/common/assert_status.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/offload/comm_fixture.h"

#include <arpa/inet.h>
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define RANKS      3u
#define BIG_BYTES  (3u << 20)
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

static void ranks_meet_by_ipv6_and_by_name(void **state)
{
    static const char *const addresses[] = {"::1", "localhost"};
    struct member members[RANKS];

    (void)state;
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

static void ports_that_are_taken_are_passed_by(void **state)
{
    struct member members[RANKS];
    int held[ST_MEET_PORTS];

    (void)state;
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
static void a_port_without_answers_is_passed_by(void **state)
{
    struct member members[RANKS];
    int mute;

    (void)state;
    mute = st_socket_listen(st_meet_port(OTHER_PORT + 100, 0));
    assert_true(mute >= 0);
    prepare(members, RANKS);
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.port = OTHER_PORT + 100;
    run(members, RANKS);
    assert_members_ok(members, RANKS);
    close(mute);
}

static void the_last_ports_are_no_ports_beyond(void **state)
{
    (void)state;
    assert_int_equal(st_meet_port(29500, 0), 29501);
    assert_int_equal(st_meet_port(29500, 7), 29508);
    assert_int_equal(st_meet_port(65527, 7), 65535);
    assert_int_equal(st_meet_port(65528, 0), 65527);
    assert_int_equal(st_meet_port(65535, 7), 65527);
}

/* What a rank hears of another one's address is what it connects to: link-local addresses with their interface, and an IPv4
 * address as such whatever socket saw it. */
static void addresses_survive_the_table(void **state)
{
    static const struct {
        const char *address, *as; /* as: NULL: itself */
        uint32_t scope;
        bool loopback;
    } rows[] = {
        {"192.0.2.7", NULL, 0, false},
        {"127.0.0.1", NULL, 0, true},
        {"127.1.2.3", NULL, 0, true},
        {"128.0.0.1", NULL, 0, false},
        {"2001:db8::7", NULL, 0, false},
        {"fe80::1234", NULL, 3, false},
        {"::ffff:192.0.2.9", "192.0.2.9", 0, false},
        {"::ffff:127.0.0.1", "127.0.0.1", 0, true},
        {"::1", NULL, 0, true},
    };
    enum { PLACES = sizeof(rows) / sizeof(rows[0]) };
    struct st_place places[PLACES] = {{0}}, back[PLACES];
    uint8_t *table = malloc(ST_TABLE_BYTES);
    uint64_t cookie;

    (void)state;
    for (uint32_t i = 0; i < PLACES; i++) {
        union st_address at = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons(9), .sin6_scope_id = rows[i].scope}};

        if (strchr(rows[i].address, ':') == NULL) {
            at = (union st_address){.v4 = {.sin_family = AF_INET, .sin_port = htons(9)}};
            assert_int_equal(inet_pton(AF_INET, rows[i].address, &at.v4.sin_addr), 1);
        } else {
            assert_int_equal(inet_pton(AF_INET6, rows[i].address, &at.v6.sin6_addr), 1);
        }
        assert_int_equal(st_address_is_loopback(&at), rows[i].loopback);
        places[i].port = (uint16_t)(4000 + i);
        st_address_to_place(&places[i], &at);
    }
    assert_true(st_table_get(&cookie, back, PLACES, table, st_table_put(table, 77, places, PLACES)));
    assert_int_equal(cookie, 77);
    for (uint32_t i = 0; i < PLACES; i++) {
        const union st_address at = st_address_of_place(&back[i]);
        const bool v4 = at.any.sa_family == AF_INET;
        char text[64];

        assert_non_null(inet_ntop(at.any.sa_family, v4 ? (const void *)&at.v4.sin_addr : &at.v6.sin6_addr, text, sizeof(text)));
        assert_string_equal(text, rows[i].as != NULL ? rows[i].as : rows[i].address);
        assert_int_equal(ntohs(v4 ? at.v4.sin_port : at.v6.sin6_port), 4000 + i);
        assert_int_equal(v4 ? 0 : at.v6.sin6_scope_id, rows[i].scope);
    }
    free(table);
}

/* Somebody else knocks at rank 0's door, once there is one, and says something. */
static int knock(const void *words, size_t bytes)
{
    union st_address address = {
        .v4 = {.sin_family = AF_INET, .sin_port = htons(st_meet_port(cf_port(), 0)), .sin_addr = {htonl(INADDR_LOOPBACK)}}};
    int fd;

    while ((fd = st_socket_connect(&address, UINT64_MAX)) < 0)
        assert_int_equal(fd, -ECONNREFUSED);
    assert_int_equal(st_socket_send_all(fd, words, bytes, UINT64_MAX), 0);
    return fd;
}

static void strangers_are_turned_away(void **state)
{
    struct member members[RANKS];
    uint8_t hello[ST_HELLO_BYTES], byte;
    int mute, half, wrong, other;

    (void)state;
    prepare(members, RANKS);
    start(&members[0]);
    mute = knock("", 0);
    half = knock("GET / HTTP/1.0\r\n\r\n", 18);
    memset(hello, 'x', sizeof(hello));
    wrong = knock(hello, sizeof(hello));
    st_hello_put(hello, &(struct st_hello){.rank = 1, .ranks = RANKS, .key = 12345, .port = 1});
    other = knock(hello, sizeof(hello));
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
static void contradictions_end_the_meeting(void **state)
{
    struct member members[RANKS];
    atomic_bool failed = false;

    (void)state;
    prepare(members, RANKS);
    members[2].opts.world.ranks = 4;
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.cancelled = members[r].failed = &failed; /* who comes when the meeting is off would wait */
    run(members, RANKS);
    for (uint32_t r = 0; r < RANKS; r += 2) /* both are there when it is said */
        assert_member(&members[r], STRATA_E_CONFIG, "rank 2 was started in a world of 4 ranks, rank 0 in one of 3");
    assert_true(members[1].status != STRATA_OK);
}

static void one_rank_cannot_come_twice(void **state)
{
    struct member members[RANKS];
    atomic_bool failed = false;

    (void)state;
    prepare(members, RANKS);
    members[2].opts.world.rank = 1;
    for (uint32_t r = 0; r < RANKS; r++)
        members[r].opts.cancelled = members[r].failed = &failed;
    run(members, RANKS);
    assert_member(&members[0], STRATA_E_CONFIG, "two processes call themselves rank 1");
}

static void a_rank_that_does_not_come_is_named(void **state)
{
    struct member members[RANKS];

    (void)state;
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
static void a_rank_that_goes_before_all_have_come_ends_the_meeting(void **state)
{
    struct member members[RANKS];
    struct st_hello hello = {.rank = 2, .ranks = RANKS, .key = st_meet_key(cf_port()), .port = 1};
    uint8_t bytes[ST_HELLO_BYTES], frame[ST_REPLY_BYTES], yes = 1;
    int fd;

    (void)state;
    snprintf(hello.version, sizeof(hello.version), "%s", strata_version());
    st_hello_put(bytes, &hello);
    prepare(members, RANKS);
    members[0].opts.deadline_ns = 20 * SECOND_NS;
    start(&members[0]);
    fd = knock(bytes, sizeof(bytes));
    assert_int_equal(st_socket_receive_all(fd, frame, sizeof(frame), UINT64_MAX), 0);
    assert_int_equal(st_socket_send_all(fd, &yes, 1, UINT64_MAX), 0);
    close(fd);
    assert_int_equal(pthread_join(members[0].thread, NULL), 0);
    assert_member(&members[0], STRATA_E_IO, "rank 2 is gone (during the meeting of the ranks)");
}

static void another_version_does_not_come_in(void **state)
{
    struct st_hello hello = {.rank = 1, .ranks = 2, .key = st_meet_key(cf_port()), .port = 1, .version = "0.0.0-other"};
    uint8_t bytes[ST_HELLO_BYTES];
    struct member members[2];
    int fd;

    (void)state;
    st_hello_put(bytes, &hello);
    prepare(members, 2);
    members[0].opts.deadline_ns = 20 * SECOND_NS;
    start(&members[0]);
    fd = knock(bytes, sizeof(bytes));
    assert_int_equal(pthread_join(members[0].thread, NULL), 0);
    assert_member(&members[0], STRATA_E_CONFIG, "rank 1 runs version 0.0.0-other, rank 0 runs ");
    close(fd);
}

static void nobody_at_the_address_is_said(void **state)
{
    struct member members[2];

    (void)state;
    prepare(members, 2);
    members[1].opts.deadline_ns = SECOND_NS / 10;
    start(&members[1]);
    assert_int_equal(pthread_join(members[1].thread, NULL), 0);
    assert_member(&members[1], STRATA_E_IO, "rank 0 did not answer at 127.0.0.1, ports ");
    members[1].opts.address = "not an address";
    start(&members[1]);
    assert_int_equal(pthread_join(members[1].thread, NULL), 0);
    assert_member(&members[1], STRATA_E_INPUT, "the address of rank 0, 'not an address', is none: ");
}

static void who_does_not_want_to_wait_is_let_go(void **state)
{
    struct member members[RANKS];
    atomic_bool cancelled = false;

    (void)state;
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
static void every_single_failure_is_clean(void **state)
{
    struct fault_walk walk = {.result = -EIO};
    struct member members[2];

    (void)state;
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

/* --- ranks that are processes --- */

struct outcome {
    strata_status status;
    char error[1024];
};

struct processes {
    bool sockets_only;
    uint16_t port;
    uint64_t deadline_ns;
    uint32_t round; /* before which the victim, rank 1, says that it is there, or stops for ever */
    bool stops;
    int refused;    /* errno of a receive of the victim, which lives; 0: none */
    int started[2]; /* a pipe */
    pid_t pid[RANKS];
    struct outcome *outcome; /* [RANKS] shared */
};

/* Large exchanges until one fails. */
static strata_status exchange_on(struct st_comm *comm, const struct processes *p)
{
    uint8_t *data = calloc(RANKS + 1, BIG_BYTES);
    struct st_comm_part out = {.data = data, .bytes = BIG_BYTES}, in[RANKS];
    struct st_comm_peer peers[RANKS] = {{0}};
    strata_status st = STRATA_OK;

    for (uint32_t r = 0; r < RANKS; r++) {
        in[r] = (struct st_comm_part){.data = data + (r + 1) * (size_t)BIG_BYTES, .bytes = BIG_BYTES};
        if (r != comm->world.rank)
            peers[r] = (struct st_comm_peer){.send = &out, .recv = &in[r], .send_count = 1, .recv_count = 1};
    }
    for (uint32_t round = 0; st == STRATA_OK; round++) {
        if (round == p->round && comm->world.rank == 1 && (write(p->started[1], "", 1) != 1 || (p->stops && raise(SIGSTOP) != 0)))
            abort();
        if (round == p->round && comm->world.rank == 1 && p->refused != 0)
            st_fault_arm(&(struct st_fault_spec){.site = "comm.receive", .count = 1, .result = -p->refused});
        st = st_comm_exchange(comm, peers, "exchange_grad of page 7");
    }
    free(data);
    return st;
}

static void child_main(const struct processes *p, uint32_t rank)
{
    const struct st_comm_tcp_opts opts = {.world = {.rank = rank, .ranks = RANKS, .local_rank = rank, .local_ranks = RANKS},
                                          .address = "127.0.0.1",
                                          .port = p->port,
                                          .sockets_only = p->sockets_only};
    struct st_comm *comm = NULL;
    strata_status st;

    alarm(100);
    if ((st = st_comm_tcp_open(&comm, &opts)) == STRATA_OK) {
        if (p->deadline_ns > 0)
            comm->deadline_ns = p->deadline_ns;
        st = exchange_on(comm, p);
    }
    p->outcome[rank].status = st;
    snprintf(p->outcome[rank].error, sizeof(p->outcome[rank].error), "%s", strata_last_error());
    st_comm_close(comm);
    _exit(0);
}

/* Starts the ranks, and kills one of them when it has come to the round, unless it stops there. */
static void run_processes(struct processes *p)
{
    char byte;

    p->port = cf_port();
    assert_int_equal(pipe(p->started), 0);
    p->outcome = mmap(NULL, RANKS * sizeof(*p->outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(p->outcome != MAP_FAILED);
    for (uint32_t r = 0; r < RANKS; r++) {
        p->pid[r] = child_fork();
        if (p->pid[r] == 0)
            child_main(p, r);
    }
    assert_int_equal(read(p->started[0], &byte, 1), 1);
    if (!p->stops && p->refused == 0)
        assert_int_equal(kill(p->pid[1], SIGKILL), 0);
    assert_int_equal(child_wait(p->pid[0]), 0);
    assert_int_equal(child_wait(p->pid[2]), 0);
    if (p->refused != 0)
        assert_int_equal(child_wait(p->pid[1]), 0);
    else
        child_kill(p->pid[1]);
    close(p->started[0]);
    close(p->started[1]);
}

static void assert_outcomes(struct processes *p, const char *part)
{
    for (uint32_t r = 0; r < RANKS; r += 2)
        if (p->outcome[r].status != STRATA_E_IO || strstr(p->outcome[r].error, part) == NULL)
            fail_msg("round %u, %s: rank %u: status %d: '%s' without '%s'", p->round,
                     p->sockets_only ? "sockets" : "shared memory", r, p->outcome[r].status, p->outcome[r].error, part);
    assert_int_equal(munmap(p->outcome, RANKS * sizeof(*p->outcome)), 0);
}

static void a_rank_that_is_killed_is_named_at_once(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        struct processes p = {.sockets_only = i % 2 == 0, .round = i / 2};

        run_processes(&p);
        assert_outcomes(&p, "rank 1 is gone (during exchange_grad of page 7)");
    }
}

static void a_rank_that_hangs_is_named_at_the_deadline(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < 2; i++) {
        struct processes p = {.sockets_only = i == 0, .round = 3, .stops = true, .deadline_ns = 2 * SECOND_NS};

        run_processes(&p);
        assert_outcomes(&p, "nothing was heard of rank 1 for 2 seconds (during exchange_grad of page 7)");
    }
}

/* A connection that fails where both of its ranks live: the one that sees it says so, and the other, whoever tells it, not that
 * it is gone itself. */
static void a_receive_that_fails_is_named_on_all(void **state)
{
    static const struct {
        int refused;
        const char *own, *other;
    } rows[] = {
        {EIO, "the connection with rank ", "rank 1 failed (during exchange_grad of page 7): the connection with rank "},
        {ECONNRESET, " is gone (during exchange_grad of page 7)",
         " failed (during exchange_grad of page 7): a connection with rank "},
    };

    (void)state;
    for (uint32_t i = 0; i < 4; i++) {
        struct processes p = {.sockets_only = i % 2 == 0, .round = 3, .refused = rows[i / 2].refused};
        const char *own;
        uint32_t blamed;

        run_processes(&p);
        own = p.outcome[1].error;
        blamed = strstr(own, "rank 0 ") != NULL ? 0 : 2;
        if (p.outcome[1].status != STRATA_E_IO || strstr(own, rows[i / 2].own) == NULL)
            fail_msg("rank 1 says '%s'", own);
        if (strstr(p.outcome[blamed].error, rows[i / 2].other) == NULL)
            fail_msg("rank 1 says '%s', and rank %u '%s'", own, blamed, p.outcome[blamed].error);
        assert_int_equal(munmap(p.outcome, RANKS * sizeof(*p.outcome)), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_that_is_killed_is_named_at_once), /* first: children of a process without threads */
        cmocka_unit_test(a_rank_that_hangs_is_named_at_the_deadline),
        cmocka_unit_test(a_receive_that_fails_is_named_on_all),
        cmocka_unit_test(ranks_meet_by_ipv6_and_by_name),
        cmocka_unit_test(ports_that_are_taken_are_passed_by),
        cmocka_unit_test(a_port_without_answers_is_passed_by),
        cmocka_unit_test(the_last_ports_are_no_ports_beyond),
        cmocka_unit_test(addresses_survive_the_table),
        cmocka_unit_test(strangers_are_turned_away),
        cmocka_unit_test(contradictions_end_the_meeting),
        cmocka_unit_test(one_rank_cannot_come_twice),
        cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_rank_that_goes_before_all_have_come_ends_the_meeting),
        cmocka_unit_test(another_version_does_not_come_in),
        cmocka_unit_test(nobody_at_the_address_is_said),
        cmocka_unit_test(who_does_not_want_to_wait_is_let_go),
        cmocka_unit_test(every_single_failure_is_clean),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
