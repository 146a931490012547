/* tests/offload/test_comm.c - the contract in offload/comm/comm.h, run over every implementation that needs no other program. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "offload/comm/comm.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS  20u
#define HANG_NS UINT64_C(50000000) /* a deadline that is meant to pass */

static const char *const kinds[] = {"threads", "paced", "tcp", "shared", "mpi"};

/* A closed world has none of the memory that its ranks shared. */
static void shares_no_memory(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];

    assert_non_null(maps);
    while (fgets(line, sizeof(line), maps) != NULL)
        assert_null(strstr(line, "memfd:strata-ranks"));
    fclose(maps);
}

/* Runs a body in worlds of 2, 3 and 4 ranks of every kind, and has the outcome checked. */
static void in_every_world(cf_body *body, void *ctx, uint64_t deadline_ns, void (*check)(const struct cf_world *))
{
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        for (uint32_t ranks = 2; ranks <= CF_RANKS_MAX; ranks++) {
            struct cf_world world = {.kind = kinds[k], .ranks = ranks, .deadline_ns = deadline_ns, .body = body, .ctx = ctx};

            cf_run(&world);
            check(&world);
            shares_no_memory();
        }
}

/* --- bytes --- */

/* How many bytes go from one rank to another in a round: some nothing, some more than any buffer on the way holds. */
static uint64_t bytes_between(uint32_t from, uint32_t to, uint32_t round)
{
    static const uint64_t sizes[] = {0, 1, 63, 4096, 70001, 3000017};

    return sizes[(from * 5 + to * 3 + round) % (sizeof(sizes) / sizeof(sizes[0]))];
}

static uint8_t byte_of(uint32_t from, uint32_t to, uint32_t round, uint64_t i)
{
    return (uint8_t)((i * 2654435761u >> 7) + from * 31 + to * 17 + round);
}

/* Cuts [bytes] into parts of uneven sizes, with empty ones between; one side cuts otherwise than the other one. */
static uint32_t cut(struct st_comm_part *parts, uint32_t count, uint8_t *data, uint64_t bytes, uint32_t seed)
{
    uint64_t at = 0;

    for (uint32_t i = 0; i + 1 < count; i++) {
        const uint64_t most = bytes - at, size = i % 3 == 1 ? 0 : (most / (2 + (seed + i) % 5));

        parts[i] = (struct st_comm_part){.data = data + at, .bytes = size};
        at += size;
    }
    parts[count - 1] = (struct st_comm_part){.data = data + at, .bytes = bytes - at};
    return count;
}

struct traffic {
    uint8_t *send[CF_RANKS_MAX], *recv[CF_RANKS_MAX];
    struct st_comm_part send_parts[CF_RANKS_MAX][8], recv_parts[CF_RANKS_MAX][8];
    struct st_comm_peer peers[CF_RANKS_MAX];
};

static void prepare(struct traffic *t, const struct st_world *world, uint32_t round)
{
    memset(t, 0, sizeof(*t));
    for (uint32_t r = 0; r < world->ranks; r++) {
        const uint64_t out = bytes_between(world->rank, r, round), in = bytes_between(r, world->rank, round);

        if (r == world->rank)
            continue;
        t->send[r] = malloc(out + 1);
        t->recv[r] = calloc(in + 1, 1);
        for (uint64_t i = 0; i < out; i++)
            t->send[r][i] = byte_of(world->rank, r, round, i);
        t->recv[r][in] = 0xa5;
        t->peers[r].send = t->send_parts[r];
        t->peers[r].send_count = cut(t->send_parts[r], 1 + round % 7, t->send[r], out, round);
        t->peers[r].recv = t->recv_parts[r];
        t->peers[r].recv_count = cut(t->recv_parts[r], 1 + (round + 3) % 7, t->recv[r], in, world->rank);
    }
}

/* What is sent may be changed at once; what was received is right, and nothing behind it was written. */
static strata_status check_and_free(struct traffic *t, const struct st_world *world, uint32_t round)
{
    strata_status st = STRATA_OK;

    for (uint32_t r = 0; r < world->ranks; r++) {
        const uint64_t in = bytes_between(r, world->rank, round);

        if (r == world->rank)
            continue;
        memset(t->send[r], 0xee, bytes_between(world->rank, r, round));
        for (uint64_t i = 0; i < in && st == STRATA_OK; i++)
            if (t->recv[r][i] != byte_of(r, world->rank, round, i))
                st = st_error(STRATA_E_CORRUPT, "round %u: byte %llu from rank %u", round, (unsigned long long)i, r);
        if (t->recv[r][in] != 0xa5)
            st = st_error(STRATA_E_CORRUPT, "round %u: written past the end", round);
        free(t->send[r]);
        free(t->recv[r]);
    }
    return st;
}

static strata_status exchange_rounds(struct st_comm *comm, struct cf_world *world)
{
    strata_status st = STRATA_OK;

    (void)world;
    for (uint32_t round = 0; round < ROUNDS && st == STRATA_OK; round++) {
        struct traffic t;
        strata_status checked;

        prepare(&t, &comm->world, round);
        st = st_comm_exchange(comm, t.peers, "exchange_grad of page 1");
        checked = check_and_free(&t, &comm->world, round);
        st = st != STRATA_OK ? st : checked;
    }
    return st;
}

TEST(bytes_arrive_however_they_are_cut)
{
    in_every_world(exchange_rounds, NULL, 0, cf_assert_ok);
}

static strata_status gather_rounds(struct st_comm *comm, struct cf_world *world)
{
    uint64_t all[CF_RANKS_MAX];

    (void)world;
    for (uint32_t round = 0; round < ROUNDS; round++) {
        uint64_t mine = comm->world.rank * 1000 + round;
        const bool in_place = round % 2 == 1;
        strata_status st;

        memset(all, 0, sizeof(all));
        if (in_place)
            all[comm->world.rank] = mine;
        st = st_comm_gather(comm, in_place ? &all[comm->world.rank] : &mine, sizeof(mine), all, "gather_scalars");
        if (st != STRATA_OK || (st = st_comm_barrier(comm, "barrier")) != STRATA_OK)
            return st;
        for (uint32_t r = 0; r < comm->world.ranks; r++)
            if (all[r] != r * 1000 + round)
                return st_error(STRATA_E_CORRUPT, "round %u: rank %u's number is %llu", round, r, (unsigned long long)all[r]);
    }
    return STRATA_OK;
}

TEST(all_get_everybodys_numbers)
{
    const uint64_t mine = 7;
    uint64_t all = 0;

    in_every_world(gather_rounds, NULL, 0, cf_assert_ok);
    assert_int_equal(st_comm_gather(NULL, &mine, sizeof(mine), &all, "alone"), STRATA_OK);
    assert_int_equal(all, 7);
}

/* --- pace --- */

#define PACED_BYTES  1000000u
#define PACED_RATE   200e6
#define PACED_WAIT_S 1e-3 /* latency */
#define PACED_TIMES  5u

static strata_status exchange_at_pace(struct st_comm *comm, struct cf_world *world)
{
    const double least = PACED_TIMES * (PACED_WAIT_S + PACED_BYTES / PACED_RATE);
    const uint64_t begin_ns = st_clock_ns();
    unsigned char *out = calloc(2, PACED_BYTES);
    const struct st_comm_part send = {.data = out, .bytes = PACED_BYTES},
                              recv = {.data = out + PACED_BYTES, .bytes = PACED_BYTES};
    struct st_comm_peer peers[2] = {{0}};
    strata_status st = out != NULL ? STRATA_OK : STRATA_E_NOMEM;

    (void)world;
    peers[1 - comm->world.rank] = (struct st_comm_peer){&send, &recv, 1, 1};
    for (uint32_t i = 0; i < PACED_TIMES && st == STRATA_OK; i++)
        st = st_comm_exchange(comm, peers, "exchange_grad of page 1");
    free(out);
    if (st == STRATA_OK && (double)(st_clock_ns() - begin_ns) * 1e-9 < least)
        st = st_error(STRATA_E_INTERNAL, "faster than its links");
    return st;
}

/* One after the other, too: what a rank overslept is not more than made up for. */
TEST(paced_exchanges_are_never_faster_than_their_links)
{
    const struct st_comm_pace pace = {.rate = PACED_RATE, .latency = PACED_WAIT_S};
    struct cf_world world = {.kind = "paced", .ranks = 2, .body = exchange_at_pace};
    struct st_comm *comm[CF_RANKS_MAX];

    assert_int_equal(st_comm_threads_open(comm, 2, 0), STRATA_OK);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(st_comm_paced_open(&comm[r], comm[r], &pace), STRATA_OK);
    cf_run_opened(&world, comm);
    cf_assert_ok(&world);
}

/* Rank 1 alone receives: as long as its link takes, whatever it sends. */
static strata_status receive_at_pace(struct st_comm *comm, struct cf_world *world)
{
    const uint64_t begin_ns = st_clock_ns();
    unsigned char *data = calloc(1, PACED_BYTES);
    const struct st_comm_part part = {.data = data, .bytes = PACED_BYTES};
    struct st_comm_peer peers[2] = {{0}};
    strata_status st;

    (void)world;
    peers[1 - comm->world.rank] = comm->world.rank == 0 ? (struct st_comm_peer){.send = &part, .send_count = 1}
                                                        : (struct st_comm_peer){.recv = &part, .recv_count = 1};
    st = data != NULL ? st_comm_exchange(comm, peers, "gather_weight of page 1") : STRATA_E_NOMEM;
    free(data);
    if (st == STRATA_OK && comm->world.rank == 1 && (double)(st_clock_ns() - begin_ns) * 1e-9 < PACED_BYTES / PACED_RATE)
        st = st_error(STRATA_E_INTERNAL, "faster than its link");
    return st;
}

TEST(a_pace_is_of_what_is_received)
{
    const struct st_comm_pace pace = {.rate = PACED_RATE};
    struct cf_world world = {.kind = "paced", .ranks = 2, .body = receive_at_pace};
    struct st_comm *comm[CF_RANKS_MAX];

    assert_int_equal(st_comm_threads_open(comm, 2, 0), STRATA_OK);
    for (uint32_t r = 0; r < 2; r++)
        assert_int_equal(st_comm_paced_open(&comm[r], comm[r], &pace), STRATA_OK);
    cf_run_opened(&world, comm);
    cf_assert_ok(&world);
}

TEST(a_pace_needs_memory)
{
    const struct st_comm_pace pace = {.rate = PACED_RATE};
    struct st_comm *comm[2], *paced;

    assert_int_equal(st_comm_threads_open(comm, 2, 0), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "comm.paced", .count = 1, .result = -ENOMEM});
    assert_int_equal(st_comm_paced_open(&paced, comm[0], &pace), STRATA_E_NOMEM);
    assert_int_equal(st_fault_disarm(), 1);
    for (uint32_t r = 0; r < 2; r++)
        st_comm_close(comm[r]);
}

/* --- agreement --- */

/* The last rank has another of one fact; ctx: its index, or none. */
static strata_status agree(struct st_comm *comm, struct cf_world *world)
{
    static const char long_a[] =
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789 here";
    static const char long_b[] =
        "0123456789012345678901234567890123456789012345678901234567890123456789012345678901234567890123456789"
        "0123456789012345678901234567890123456789 there";
    const int odd = comm->world.rank + 1 == comm->world.ranks && world->ctx != NULL ? *(const int *)world->ctx : -1;
    const struct st_comm_fact facts[] = {
        {.name = "version", .text = odd == 0 ? "0.2.0" : "0.1.0"},
        {.name = "zero_optimization.stage", .number = odd == 1 ? 2 : 3},
        {.name = "data", .text = odd == 2 ? long_b : long_a, .status = STRATA_E_INPUT},
        {.name = odd == 3 ? "plans" : "plan", .text = ""},
    };
    strata_status st = st_comm_agree(comm, facts, 4, "agreement at the start");

    /* It is no failure of the comm: the ranks can still speak, to end together. */
    return st != STRATA_OK && st_comm_barrier(comm, "end") != STRATA_OK ? STRATA_E_INTERNAL : st;
}

static void check_fact(int odd, strata_status want, const char *part, const char *rest)
{
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        for (uint32_t ranks = 2; ranks <= CF_RANKS_MAX; ranks++) {
            struct cf_world world = {.kind = kinds[k], .ranks = ranks, .body = agree, .ctx = &odd};
            char text[256];

            cf_run(&world);
            snprintf(text, sizeof(text), "%s%u%s", part, ranks - 1, rest);
            for (uint32_t r = 0; r < ranks; r++) {
                assert_int_equal(world.status[r], want);
                assert_string_equal(world.error[r], world.error[0]);
                if (strstr(world.error[r], text) == NULL)
                    fail_msg("%s: '%s' without '%s'", world.kind, world.error[r], text);
            }
        }
}

TEST(what_differs_is_named_with_both_values)
{
    in_every_world(agree, NULL, 0, cf_assert_ok);
    check_fact(0, STRATA_E_CONFIG, "version differs among the ranks: rank 0 has 0.1.0, rank ", " has 0.2.0");
    check_fact(1, STRATA_E_CONFIG, "zero_optimization.stage differs among the ranks: rank 0 has 3, rank ", " has 2");
    check_fact(2, STRATA_E_INPUT, "), rank ", " has 0123456789012345678901234567890123456789");
    check_fact(3, STRATA_E_CONFIG, "ranks 0 and ", " run different versions of the program");
    assert_int_equal(st_comm_agree(NULL, &(struct st_comm_fact){.name = "alone"}, 1, "alone"), STRATA_OK);
}

/* ctx: characters of a value of which the ranks' last ones differ. */
static strata_status agree_on_text(struct st_comm *comm, struct cf_world *world)
{
    const size_t length = *(const size_t *)world->ctx;
    char text[512];

    memset(text, 'x', length);
    text[length - 1] = comm->world.rank == 0 ? 'a' : 'b';
    text[length] = '\0';
    return st_comm_agree(comm, &(struct st_comm_fact){.name = "data", .text = text}, 1, "agreement at the start");
}

/* However long the values are, what is said of them is not the same. */
TEST(long_values_are_told_apart)
{
    static const size_t lengths[] = {1, 79, 80, 81, 99, 100, 101, 102, 191, 192, 193, 400};

    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        size_t length = lengths[i];
        struct cf_world world = {.kind = "threads", .ranks = 2, .body = agree_on_text, .ctx = &length};
        const char *first, *second;

        cf_run(&world);
        for (uint32_t r = 0; r < 2; r++) {
            assert_int_equal(world.status[r], STRATA_E_CONFIG);
            assert_non_null(first = strstr(world.error[r], "rank 0 has "));
            assert_non_null(second = strstr(world.error[r], ", rank 1 has "));
            first += strlen("rank 0 has ");
            assert_true(strncmp(first, second + strlen(", rank 1 has "), (size_t)(second - first)) != 0);
            assert_true(length > 100 || (size_t)(second - first) == length);
        }
    }
}

/* --- failures --- */

/* The last rank calls something else; everybody else is told of it, and says so again when it is asked again. */
static strata_status disagree(struct st_comm *comm, struct cf_world *world)
{
    const bool odd = comm->world.rank == comm->world.ranks - 1;
    const char *const what = world->ctx != NULL && odd ? world->ctx : "gather_weight of page 7";
    uint8_t mine[16] = {0}, all[CF_RANKS_MAX * 16];

    for (uint32_t i = 2; i < comm->world.ranks; i++) { /* two ranks differ at once, more of them later */
        const strata_status st = st_comm_gather(comm, mine, 16, all, "what all call");

        if (st != STRATA_OK)
            return st;
    }
    (void)!st_comm_gather(comm, mine, world->ctx == NULL && odd ? 8 : 16, all, what);
    return st_comm_gather(comm, mine, 16, all, "what comes next");
}

static void check_sizes(const struct cf_world *world)
{
    for (uint32_t r = 0; r + 1 < world->ranks; r++) {
        cf_assert_failed(world, r, "bytes to rank ");
        cf_assert_failed(world, r, "(during gather_weight of page 7)");
    }
}

TEST(other_sizes_are_an_error_not_a_hang)
{
    in_every_world(disagree, NULL, 0, check_sizes);
}

static void check_elsewhere(const struct cf_world *world)
{
    for (uint32_t r = 0; r < world->ranks; r++)
        cf_assert_failed(world, r, "is at gather_weight of page 7");
    cf_assert_failed(world, 0, "is at gather_grad of page 7");
}

TEST(another_call_is_an_error_not_a_hang)
{
    in_every_world(disagree, "gather_grad of page 7", 0, check_elsewhere);
}

/* The last rank is at a call that sends nothing, or is the only one that sends something, or nobody sends anything; and then it
 * waits there. */
static strata_status disagree_silently(struct st_comm *comm, struct cf_world *world)
{
    const bool odd = comm->world.rank == comm->world.ranks - 1, *sends = world->ctx;
    const char *const what = odd ? "gather_grad of page 7" : "gather_weight of page 7";
    const struct st_comm_peer nothing[CF_RANKS_MAX] = {0};
    uint8_t mine[16] = {0}, all[CF_RANKS_MAX * 16];
    strata_status st = sends[odd] ? st_comm_gather(comm, mine, 16, all, what) : st_comm_exchange(comm, nothing, what);

    return st != STRATA_OK ? st : st_comm_barrier(comm, "what comes next");
}

TEST(a_call_without_bytes_is_an_error_not_a_hang)
{
    static const bool rows[][2] = {{true, false}, {false, true}, {false, false}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        in_every_world(disagree_silently, (void *)(uintptr_t)rows[i], 0, check_elsewhere);
}

/* Rank 1 leaves after a few rounds. */
static strata_status leave(struct st_comm *comm, struct cf_world *world)
{
    strata_status st = STRATA_OK;

    (void)world;
    for (uint32_t round = 0; st == STRATA_OK && !(comm->world.rank == 1 && round == 3); round++)
        st = st_comm_barrier(comm, "gather_weight of page 7");
    return st;
}

static void check_left(const struct cf_world *world)
{
    assert_int_equal(world->status[1], STRATA_OK);
    for (uint32_t r = 0; r < world->ranks; r++)
        if (r != 1)
            cf_assert_failed(world, r, "rank 1 is gone (during gather_weight of page 7)");
}

TEST(a_rank_that_is_gone_is_named)
{
    in_every_world(leave, NULL, 0, check_left);
}

/* Rank 0 gives up; the others learn why. */
static strata_status give_up(struct st_comm *comm, struct cf_world *world)
{
    strata_status st = st_comm_barrier(comm, "start");

    (void)world;
    if (comm->world.rank == 0) {
        st_comm_abort(comm, "write of swap: no space left on device");
        st_comm_abort(comm, "a second reason");
    }
    return st == STRATA_OK ? st_comm_barrier(comm, "gather_weight of page 7") : st;
}

/* It may still be on its way out of the first call: which one is named depends. */
static void check_given_up(const struct cf_world *world)
{
    cf_assert_failed(world, 0, "write of swap: no space left on device");
    for (uint32_t r = 1; r < world->ranks; r++)
        cf_assert_failed(world, r, "): write of swap: no space left on device");
}

TEST(a_reason_reaches_all_ranks)
{
    in_every_world(give_up, NULL, 0, check_given_up);
}

/* Rank 0 gives up with the status that ctx has. */
static strata_status give_up_as(struct st_comm *comm, struct cf_world *world)
{
    const strata_status *mine = world->ctx;
    strata_status st = st_comm_barrier(comm, "start");

    if (comm->world.rank == 0)
        st_comm_abort_as(comm, *mine, "a.bin: no such file");
    return st == STRATA_OK ? st_comm_barrier(comm, "the plan") : st;
}

static void check_given_up_as(const struct cf_world *world)
{
    const strata_status *mine = world->ctx;
    const bool verdict =
        *mine == STRATA_E_INVAL || *mine == STRATA_E_CONFIG || *mine == STRATA_E_INPUT || *mine == STRATA_E_NUMERICS;

    for (uint32_t r = 0; r < world->ranks; r++)
        if (world->status[r] != (verdict ? *mine : STRATA_E_IO) || strstr(world->error[r], "a.bin: no such file") == NULL)
            fail_msg("%s: rank %u of %u, given up with %d: status %d: '%s'", world->kind, r, world->ranks, *mine,
                     world->status[r], world->error[r]);
}

/* What every rank would have found is the same status on all, whichever found it first; a rank's own failure is E_IO on others.
 */
TEST(a_verdict_is_the_same_on_all_ranks)
{
    static strata_status given[] = {STRATA_E_INVAL,    STRATA_E_CONFIG, STRATA_E_INPUT,
                                    STRATA_E_NUMERICS, STRATA_E_NOFIT,  STRATA_E_CANCELLED};

    for (size_t i = 0; i < sizeof(given) / sizeof(given[0]); i++)
        in_every_world(give_up_as, &given[i], 0, check_given_up_as);
}

/* The last rank does not come, until all others have given it up. */
static strata_status hang(struct st_comm *comm, struct cf_world *world)
{
    pthread_barrier_t *others = world->ctx;
    strata_status st = STRATA_OK;

    if (comm->world.rank + 1 < comm->world.ranks)
        st = st_comm_barrier(comm, "gather_weight of page 7");
    pthread_barrier_wait(others);
    return st;
}

static void check_hung(const struct cf_world *world)
{
    uint32_t named = 0;

    for (uint32_t r = 0; r + 1 < world->ranks; r++) {
        cf_assert_failed(world, r, "(during gather_weight of page 7)");
        named += strstr(world->error[r], "nothing was heard of rank") != NULL;
    }
    assert_true(named > 0);
}

TEST(silence_ends_at_the_deadline)
{
    for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
        for (uint32_t ranks = 2; ranks <= CF_RANKS_MAX; ranks++) {
            pthread_barrier_t barrier;
            struct cf_world world = {.kind = kinds[k], .ranks = ranks, .deadline_ns = HANG_NS, .body = hang, .ctx = &barrier};

            pthread_barrier_init(&barrier, NULL, ranks);
            cf_run(&world);
            pthread_barrier_destroy(&barrier);
            check_hung(&world);
        }
}
