/* tests/offload/test_comm_tcp.c - ranks over sockets and shared memory that are processes: what becomes of those that die. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/comm/comm.h"
#include "tests/common/child.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define RANKS     3u
#define BIG_BYTES (3u << 20)
#define SECOND_NS UINT64_C(1000000000)

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
    uint64_t fewer;          /* bytes that rank 1 lacks of what the others await; 0: none */
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
        if (round == p->round && comm->world.rank == 1)
            out.bytes -= p->fewer;
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

/* Starts the ranks, and kills one of them when it has come to the round, unless it stops or fails there. */
static void run_processes(struct processes *p)
{
    const bool fails = p->refused != 0 || p->fewer != 0;
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
    if (!p->stops && !fails)
        assert_int_equal(kill(p->pid[1], SIGKILL), 0);
    assert_int_equal(child_wait(p->pid[0]), 0);
    assert_int_equal(child_wait(p->pid[2]), 0);
    if (fails)
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

TEST(a_rank_that_is_killed_is_named_at_once)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct processes p = {.sockets_only = i % 2 == 0, .round = i / 2};

        run_processes(&p);
        assert_outcomes(&p, "rank 1 is gone (during exchange_grad of page 7)");
    }
}

TEST(a_rank_that_hangs_is_named_at_the_deadline)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct processes p = {.sockets_only = i == 0, .round = 3, .stops = true, .deadline_ns = 2 * SECOND_NS};

        run_processes(&p);
        assert_outcomes(&p, "nothing was heard of rank 1 for 2 seconds (during exchange_grad of page 7)");
    }
}

/* A connection that fails where both of its ranks live: the one that sees it says so, and the other, whoever tells it, not that
 * it is gone itself. */
TEST(a_receive_that_fails_is_named_on_all)
{
    static const struct {
        int refused;
        const char *own, *other;
    } rows[] = {
        {EIO, "the connection with rank ", "rank 1 failed (during exchange_grad of page 7): the connection with rank "},
        {ECONNRESET, " is gone (during exchange_grad of page 7)",
         " failed (during exchange_grad of page 7): it lost its connection with "},
    };

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

/* Less than what is awaited is no exchange, either: nothing waits for the rest. */
TEST(a_rank_that_sends_less_is_named)
{
    for (int sockets = 0; sockets < 2; sockets++) {
        struct processes p = {.sockets_only = sockets == 1, .round = 3, .fewer = 8, .deadline_ns = UINT64_C(5000000000)};

        run_processes(&p);
        assert_outcomes(&p, ", which awaits ");
    }
}

/* Each rank is a process that does what `rank` says and ends with 0, by sockets alone, too. */
static void all_ranks_end_well(void (*rank)(uint16_t port, uint32_t rank, bool sockets_only))
{
    for (int sockets_only = 0; sockets_only < 2; sockets_only++) {
        const uint16_t port = cf_port();
        pid_t pids[RANKS];

        for (uint32_t r = 0; r < RANKS; r++) {
            pids[r] = child_fork();
            if (pids[r] == 0)
                rank(port, r, sockets_only != 0);
        }
        for (uint32_t r = 0; r < RANKS; r++)
            assert_int_equal(child_wait(pids[r]), 0);
    }
}

static int failed[2], heard[2]; /* pipes: rank 1 has failed; another one has heard of it */

/* Rank 1 fails once it has sent its part; rank 2 comes later than that.  The exchange needs nothing more of rank 1, so that the
 * others have it whole; the next one they hear of it. */
static void rank_of_last_words(uint16_t port, uint32_t rank, bool sockets_only)
{
    const struct st_comm_tcp_opts opts = {.world = {.rank = rank, .ranks = RANKS, .local_rank = rank, .local_ranks = RANKS},
                                          .address = "127.0.0.1",
                                          .port = port,
                                          .sockets_only = sockets_only};
    struct st_comm *comm = NULL;
    uint8_t mine = (uint8_t)(10 + rank), all[RANKS] = {0};
    strata_status st;

    alarm(100);
    if (st_comm_tcp_open(&comm, &opts) != STRATA_OK)
        _exit(1);
    if (rank == 1) /* it has sent what it has, and waits for rank 2 */
        st_fault_arm(&(struct st_fault_spec){.site = "comm.poll", .count = 1, .result = -EIO});
    if (rank == 2 && read(failed[0], &mine, 1) != 1)
        _exit(2);
    mine = (uint8_t)(10 + rank);
    st = st_comm_gather(comm, &mine, 1, all, "the last gather");
    if (rank == 1)
        _exit(st != STRATA_OK && write(failed[1], "", 1) == 1 && read(heard[0], all, 1) == 1 && read(heard[0], all, 1) == 1 ? 0
                                                                                                                            : 3);
    if (st != STRATA_OK || all[0] != 10 || all[1] != 11 || all[2] != 12)
        _exit(4);
    st = st_comm_gather(comm, &mine, 1, all, "one more gather");
    if (st == STRATA_OK || strstr(strata_last_error(), "the other ranks are waited for") == NULL)
        _exit(5);
    st_comm_close(comm);
    _exit(write(heard[1], "", 1) == 1 ? 0 : 6);
}

TEST(words_are_heard_after_the_bytes_before_them)
{
    assert_int_equal(pipe(failed), 0);
    assert_int_equal(pipe(heard), 0);
    all_ranks_end_well(rank_of_last_words);
    for (int i = 0; i < 2; i++) {
        close(failed[i]);
        close(heard[i]);
    }
}

/* What a child of a rank tries; its exit code. */
static int try_in_child(struct st_comm *comm)
{
    uint8_t mine = 7, all[RANKS];

    alarm(10);
    if (st_comm_gather(comm, &mine, 1, all, "a gather of a child") != STRATA_E_INVAL)
        return 1;
    if (strstr(strata_last_error(), "is rank 0, its child ") == NULL)
        return 2;
    st_comm_abort(comm, "a child gives up");
    st_comm_close(comm);
    return 0;
}

static void rank_with_child(uint16_t port, uint32_t rank, bool sockets_only)
{
    const struct st_comm_tcp_opts opts = {.world = {.rank = rank, .ranks = RANKS, .local_rank = rank, .local_ranks = RANKS},
                                          .address = "127.0.0.1",
                                          .port = port,
                                          .sockets_only = sockets_only};
    struct st_comm *comm = NULL;
    strata_status st;

    alarm(100);
    if ((st = st_comm_tcp_open(&comm, &opts)) == STRATA_OK && rank == 0) {
        const pid_t helper = child_fork();
        int code;

        if (helper == 0)
            _exit(try_in_child(comm));
        if ((code = child_wait(helper)) != 0)
            _exit(100 + code);
    }
    for (int i = 0; i < 2 && st == STRATA_OK; i++)
        st = st_comm_barrier(comm, "a barrier of ranks");
    st_comm_close(comm);
    _exit(st == STRATA_OK ? 0 : 1);
}

/* A process that a rank has forked is none: what it tries with its parent's comm is refused, and no rank notices. */
TEST(a_child_of_a_rank_is_none)
{
    all_ranks_end_well(rank_with_child);
}

/* Its exit code: 0, if the descriptor that a program without an input has free was a socket's, and is free again. */
static void rank_without_input(uint16_t port, uint32_t rank, bool sockets_only)
{
    const struct st_comm_tcp_opts opts = {.world = {.rank = rank, .ranks = RANKS, .local_rank = rank, .local_ranks = RANKS},
                                          .address = "127.0.0.1",
                                          .port = port,
                                          .sockets_only = sockets_only};
    struct st_comm *comm = NULL;
    bool taken;

    alarm(100);
    close(STDIN_FILENO);
    if (st_comm_tcp_open(&comm, &opts) != STRATA_OK || st_comm_barrier(comm, "a barrier of ranks") != STRATA_OK)
        _exit(1);
    taken = fcntl(STDIN_FILENO, F_GETFD) >= 0;
    st_comm_close(comm);
    _exit(fcntl(STDIN_FILENO, F_GETFD) >= 0 ? 2 : taken ? 0 : 3);
}

TEST(ranks_without_an_input_close_all_their_sockets)
{
    all_ranks_end_well(rank_without_input);
}
