/* Ranks with a GPU each, by NCCL: over the emulator and a stand-in of NCCL, ranks being threads.  Their host comm is of threads,
 * too. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/comm/comm_nccl.h"
#include "offload/device/cuda/gpu_report.h"
#include "tests/common/assert_status.h"
#include "tests/common/test.h"
#include "tests/cuda/emulator/nccl.h"
#include "tests/cuda/emulator/twin.h"
#include "tests/offload/comm_fixture.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROUNDS    8u
#define PARTS     3u
#define HANG_NS   UINT64_C(100000000) /* a deadline that is meant to pass */
#define ENDS_NS   UINT64_C(500000000) /* the same, where aborted work must end within it on a busy machine */
#define PART_MOST (300u << 10)

static struct twin_nccl *nccl;
static char *nccl_file;

static void run_within(cf_body *body, uint32_t ranks, uint64_t deadline_ns, void *ctx, struct cf_world *out)
{
    *out = (struct cf_world){.kind = "threads", .ranks = ranks, .deadline_ns = deadline_ns, .body = body, .ctx = ctx};
    cf_run(out);
}

/* --- bytes --- */

struct traffic {
    unsigned char *out, *in; /* [ranks][PARTS][PART_MOST], of the GPU */
    struct st_comm_part send[CF_RANKS_MAX][PARTS], recv[CF_RANKS_MAX][PARTS];
    struct st_comm_peer peers[CF_RANKS_MAX];
};

static uint64_t bytes_between(uint32_t from, uint32_t to, uint32_t round, uint32_t part)
{
    static const uint64_t sizes[] = {0, 1, 4096, PART_MOST, 77777};

    return sizes[(from * 7 + to * 3 + round + part) % 5];
}

static unsigned char value_of(uint32_t from, uint32_t to, uint32_t round, uint32_t part)
{
    return (unsigned char)(1 + from * 64 + to * 16 + round * 3 + part);
}

static size_t traffic_bytes(const struct st_world *w)
{
    return (size_t)w->ranks * PARTS * PART_MOST;
}

static strata_status traffic_open(struct traffic *t, const struct st_world *w)
{
    *t = (struct traffic){0};
    if (cudaMalloc((void **)&t->out, traffic_bytes(w)) != cudaSuccess ||
        cudaMalloc((void **)&t->in, traffic_bytes(w)) != cudaSuccess)
        return st_error(STRATA_E_DEVICE_OOM, "no memory for the test");
    return STRATA_OK;
}

static void traffic_close(struct traffic *t)
{
    (void)cudaFree(t->out);
    (void)cudaFree(t->in);
}

static strata_status prepare(struct traffic *t, const struct st_world *w, uint32_t round)
{
    cudaError_t err = cudaMemset(t->in, 0, traffic_bytes(w));

    for (uint32_t r = 0; r < w->ranks; r++) {
        for (uint32_t p = 0; p < PARTS; p++) {
            const size_t at = (size_t)(r * PARTS + p) * PART_MOST;

            t->send[r][p] = (struct st_comm_part){t->out + at, bytes_between(w->rank, r, round, p)};
            t->recv[r][p] = (struct st_comm_part){t->in + at, bytes_between(r, w->rank, round, p)};
            if (err == cudaSuccess)
                err = cudaMemset(t->out + at, value_of(w->rank, r, round, p), PART_MOST);
        }
        t->peers[r] = r == w->rank ? (struct st_comm_peer){0} : (struct st_comm_peer){t->send[r], t->recv[r], PARTS, PARTS};
    }
    return err == cudaSuccess ? STRATA_OK : st_error(STRATA_E_INTERNAL, "the GPU cannot fill memory for the test");
}

/* got: [ranks][PARTS][PART_MOST], what `in` holds. */
static strata_status compare(const struct traffic *t, const struct st_world *w, uint32_t round, const unsigned char *got)
{
    for (uint32_t r = 0; r < w->ranks; r++)
        for (uint32_t p = 0; p < PARTS && r != w->rank; p++)
            for (uint64_t i = 0; i < PART_MOST; i++) {
                const unsigned char want = i < t->recv[r][p].bytes ? value_of(r, w->rank, round, p) : 0;

                if (got[(size_t)(r * PARTS + p) * PART_MOST + i] != want)
                    return st_error(STRATA_E_CORRUPT, "round %u: byte %llu of part %u from rank %u", round, (unsigned long long)i,
                                    p, r);
            }
    return STRATA_OK;
}

static strata_status check(const struct traffic *t, const struct st_world *w, uint32_t round)
{
    unsigned char *got = malloc(traffic_bytes(w));
    strata_status st;

    if (got == NULL || cudaMemcpy(got, t->in, traffic_bytes(w), cudaMemcpyDeviceToHost) != cudaSuccess)
        st = st_error(STRATA_E_INTERNAL, "the test cannot read what arrived");
    else
        st = compare(t, w, round, got);
    free(got);
    return st;
}

/* A world's body: opens NCCL over its host comm, and does `rounds` exchanges of this name. */
static strata_status exchange(struct st_comm *host, uint32_t rounds, const char *what)
{
    struct st_comm *comm = NULL;
    struct traffic t = {0};
    strata_status st = st_comm_nccl_open(&comm, host, 0);

    if (st == STRATA_OK && (!comm->ops->on_device || memcmp(&comm->world, &host->world, sizeof(comm->world)) != 0))
        st = st_error(STRATA_E_INTERNAL, "another world");
    if (st == STRATA_OK)
        st = traffic_open(&t, &host->world);
    for (uint32_t round = 0; round < rounds && st == STRATA_OK; round++) {
        st = prepare(&t, &host->world, round);
        if (st == STRATA_OK)
            st = st_comm_exchange(comm, t.peers, what);
        if (st == STRATA_OK)
            st = check(&t, &host->world, round);
    }
    if (st != STRATA_OK && comm != NULL)
        st_comm_abort(host, strata_last_error());
    st_comm_close(comm);
    traffic_close(&t);
    return st;
}

static strata_status rounds_of_bytes(struct st_comm *host, struct cf_world *world)
{
    (void)world;
    return exchange(host, ROUNDS, "gather_weight of page 7");
}

static int after_each(void **state)
{
    const struct twin_holdings held = twin_held();

    (void)state;
    assert_int_equal(held.device_bytes, 0);
    assert_int_equal(held.pinned_bytes, 0);
    assert_int_equal(held.streams, 0);
    assert_int_equal(nccl->comms, 0);
    return 0;
}

static int before_each(void **state)
{
    (void)state;
    twin_reset();
    setenv("STRATA_NCCL", nccl_file, 1);
    return 0;
}

TEST_SETUP(bytes_arrive, before_each, after_each)
{
    for (uint32_t ranks = 2; ranks <= CF_RANKS_MAX; ranks++) {
        struct cf_world world;

        run_within(rounds_of_bytes, ranks, 0, NULL, &world);
        cf_assert_ok(&world);
    }
}

/* --- ranks that do something else --- */

static strata_status elsewhere(struct st_comm *host, struct cf_world *world)
{
    return exchange(host, 2, host->world.rank + 1 == world->ranks ? "gather_grad of page 7" : "gather_weight of page 7");
}

TEST_SETUP(another_call_is_told, before_each, after_each)
{
    for (uint32_t ranks = 2; ranks <= CF_RANKS_MAX; ranks++) {
        struct cf_world world;

        run_within(elsewhere, ranks, 0, NULL, &world);
        cf_assert_failed(&world, ranks - 1, "is at gather_weight of page 7 where rank ");
        for (uint32_t r = 0; r + 1 < ranks; r++)
            cf_assert_failed(&world, r, "is at gather_grad of page 7 where rank ");
    }
}

/* Rank 1 sends in one part what rank 0 awaits in two. */
static strata_status other_cuts(struct st_comm *host, struct cf_world *world)
{
    const bool odd = host->world.rank == 1;
    struct st_comm *comm = NULL;
    struct traffic t = {0};
    struct st_comm_part send[2], recv[2];
    struct st_comm_peer peers[2] = {0};
    strata_status st = st_comm_nccl_open(&comm, host, 0);

    (void)world;
    if (st == STRATA_OK)
        st = traffic_open(&t, &host->world);
    for (uint32_t i = 0; i < 2; i++) {
        send[i] = (struct st_comm_part){t.out + 100 * i, odd ? (i == 0 ? 200 : 0) : 100};
        recv[i] = (struct st_comm_part){t.in + 100 * i, 100};
    }
    peers[!odd] = (struct st_comm_peer){send, recv, odd ? 1 : 2, odd ? 2 : 1};
    if (!odd)
        peers[1].recv_count = 2;
    if (st == STRATA_OK)
        st = st_comm_exchange(comm, peers, "gather_weight of page 7");
    st_comm_close(comm);
    traffic_close(&t);
    return st;
}

TEST_SETUP(other_cuts_end_at_the_deadline_or_are_told, before_each, after_each)
{
    struct cf_world world;

    run_within(other_cuts, 2, HANG_NS, NULL, &world);
    cf_assert_failed(&world, 0, "gather_weight of page 7 has not ended after 0.1 seconds: a rank hangs");
    cf_assert_failed(&world, 1, "gather_weight of page 7 has not ended after 0.1 seconds: a rank hangs");
}

static strata_status shorter(struct st_comm *host, struct cf_world *world)
{
    struct st_comm *comm = NULL;
    struct traffic t = {0};
    struct st_comm_peer peers[2] = {0};
    const uint32_t other = !host->world.rank;
    strata_status st = st_comm_nccl_open(&comm, host, 0);

    (void)world;
    if (st == STRATA_OK)
        st = traffic_open(&t, &host->world);
    t.send[0][0] = (struct st_comm_part){t.out, host->world.rank == 1 ? 99 : 100};
    t.recv[0][0] = (struct st_comm_part){t.in, 100};
    peers[other] = (struct st_comm_peer){t.send[0], t.recv[0], 1, 1};
    if (st == STRATA_OK)
        st = st_comm_exchange(comm, peers, "gather_weight of page 7");
    st_comm_close(comm);
    traffic_close(&t);
    return st;
}

TEST_SETUP(cuts_that_pass_are_told, before_each, after_each)
{
    struct cf_world world;

    nccl->lenient = 1;
    run_within(shorter, 2, 0, NULL, &world);
    nccl->lenient = 0;
    cf_assert_failed(&world, 0, "rank 1 sends other pieces than rank 0 awaits (during gather_weight of page 7)");
    assert_int_equal(world.status[1], STRATA_OK);
}

/* --- failures --- */

/* Only rank 0 exchanges; what it waits for, and what ends it, is the other one's affair. */
struct lonely {
    pthread_barrier_t open, gone;
    struct st_comm *host[2], *comm[2];
    void (*end)(struct lonely *lonely);
    bool hangs; /* the GPU, from rank 0's exchange until rank 0 has closed: to free its memory would wait for it */
};

static strata_status lonely_rank(struct st_comm *host, struct cf_world *world)
{
    struct lonely *l = world->ctx;
    const uint32_t rank = host->world.rank;
    struct traffic t = {0};
    strata_status st = st_comm_nccl_open(&l->comm[rank], host, 0);

    l->host[rank] = host;
    if (st == STRATA_OK)
        st = traffic_open(&t, &host->world);
    if (st == STRATA_OK)
        st = prepare(&t, &host->world, 0);
    pthread_barrier_wait(&l->open);
    if (l->hangs && rank == 0)
        twin_hang(0);
    if (rank == 0 && st == STRATA_OK)
        st = st_comm_exchange(l->comm[0], t.peers, "exchange_grad of page 3");
    else if (l->end != NULL)
        l->end(l);
    if (l->hangs && rank == 0)
        st_comm_close(l->comm[0]);
    pthread_barrier_wait(&l->gone);
    if (l->hangs && rank == 0)
        return st;
    if (l->hangs)
        twin_release();
    st_comm_close(l->comm[rank]);
    traffic_close(&t);
    return st;
}

static void lonely_on(bool hangs, void (*end)(struct lonely *), uint64_t deadline_ns, const char *part)
{
    struct lonely l = {.end = end, .hangs = hangs};
    struct cf_world world;

    pthread_barrier_init(&l.open, NULL, 2);
    pthread_barrier_init(&l.gone, NULL, 2);
    run_within(lonely_rank, 2, deadline_ns, &l, &world);
    pthread_barrier_destroy(&l.open);
    pthread_barrier_destroy(&l.gone);
    cf_assert_failed(&world, 0, part);
    assert_int_equal(world.status[1], STRATA_OK);
}

static void lonely(void (*end)(struct lonely *), uint64_t deadline_ns, const char *part)
{
    lonely_on(false, end, deadline_ns, part);
}

static void abort_device(struct lonely *l)
{
    st_comm_abort(l->comm[0], "swap: no space left on device");
}

static void abort_host(struct lonely *l)
{
    st_comm_abort(l->host[0], "rank 1 failed (during gather_scalars): swap: no space left on device");
}

static void break_nccl(struct lonely *l)
{
    (void)l;
    nccl->state = 6;
}

TEST_SETUP(a_rank_that_does_not_come_is_given_up, before_each, after_each)
{
    lonely(NULL, HANG_NS, "exchange_grad of page 3 has not ended after 0.1 seconds");
}

TEST_SETUP(an_abort_ends_what_is_under_way, before_each, after_each)
{
    lonely(abort_device, 0, "swap: no space left on device");
}

TEST_SETUP(a_failure_of_the_host_comm_ends_it_too, before_each, after_each)
{
    lonely(abort_host, 0, "rank 1 failed (during gather_scalars): swap: no space left on device");
}

TEST_SETUP(an_error_of_nccl_is_told, before_each, after_each)
{
    lonely(break_nccl, 0,
           "nccl: NCCL fails (during exchange_grad of page 3): remote process exited or there was a network error");
    nccl->state = 0;
}

/* A stream that does not end although NCCL was aborted: what it holds is left to the driver, and nothing waits for it. */
TEST_SETUP(a_gpu_that_hangs_is_left_alone, before_each, after_each)
{
    lonely_on(true, NULL, HANG_NS, "exchange_grad of page 3 has not ended after 0.1 seconds");
    assert_int_equal(twin_held().streams, 1);
    twin_reset();
}

/* --- the library --- */

static void assert_all(uint32_t ranks, strata_status st, const char *part)
{
    struct cf_world world;

    run_within(rounds_of_bytes, ranks, 0, NULL, &world);
    for (uint32_t r = 0; r < ranks; r++)
        if (world.status[r] != st || strstr(world.error[r], part) == NULL)
            fail_msg("rank %u: status %d: '%s' without '%s'", r, world.status[r], world.error[r], part);
}

TEST_SETUP(all_ranks_are_told_who_lacks_nccl, before_each, after_each)
{
    nccl->version = 20803;
    assert_all(3, STRATA_E_NOSYS, "is NCCL 2.8.3, and 2.14 or a later 2.x is needed");
    assert_all(3, STRATA_E_NOSYS, "rank 0 cannot use NCCL: ");
    nccl->version = 30000;
    assert_all(2, STRATA_E_NOSYS, "is NCCL 3.0.0, and 2.14 or a later 2.x is needed");
    nccl->version = 22809;
    nccl->version_step = 1;
    assert_all(2, STRATA_E_CONFIG, ": all ranks need the same one");
    nccl->version_step = 0;
    nccl->version = 22809;
    setenv("STRATA_NCCL", LACKING, 1);
    assert_all(2, STRATA_E_NOSYS, "has no ncclCommInitRankConfig: NCCL 2.14 or a later 2.x is needed");
    setenv("STRATA_NCCL", "/nonexistent/libnccl.so.2", 1);
    assert_all(2, STRATA_E_NOSYS, "STRATA_NCCL names /nonexistent/libnccl.so.2, which cannot be used: ");
    setenv("STRATA_NCCL", nccl_file, 1);
    twin_set_devices(0, 0);
    assert_all(2, STRATA_E_NOSYS, "rank 0 cannot use NCCL: cuda: cudaSetDevice: no CUDA-capable device is detected");
}

TEST_SETUP(a_report_names_the_same_file, before_each, after_each)
{
    struct st_gpu_report report = {0};

    st_gpu_report_nccl(&report);
    assert_string_equal(report.nccl, nccl_file);
    assert_int_equal(report.nccl_version, 22809);
}

/* Each foreign call refused, early and late in a run: every rank ends, with its data right or with a sentence, and nothing is
 * held. */
TEST_SETUP(every_refused_call_ends_all_ranks, before_each, after_each)
{
    static const char *const sites[] = {
        "cuda.nccl", "nccl.version", "nccl.id",     "nccl.init", "nccl.group",  "nccl.send",   "nccl.receive",  "nccl.poll",
        "nccl.end",  "cuda.device",  "cuda.stream", "cuda.pin",  "cuda.malloc", "cuda.upload", "cuda.download", "cuda.query"};

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++)
        for (uint32_t after = 0; after < 6; after += 1 + after) {
            struct cf_world world = {.kind = "threads", .ranks = 2, .deadline_ns = ENDS_NS, .body = rounds_of_bytes};
            struct st_comm *comm[2];
            uint32_t fired;

            cf_open(&world, comm);
            st_fault_arm(&(struct st_fault_spec){.site = sites[i], .after = after, .count = 1, .result = -1});
            cf_run_opened(&world, comm);
            fired = st_fault_disarm();
            if (after == 0 && fired == 0)
                fail_msg("%s is passed by no call", sites[i]);
            for (uint32_t r = 0; r < 2; r++)
                if (world.status[r] != STRATA_OK && world.error[r][0] == '\0')
                    fail_msg("%s, passage %u: rank %u has status %d and no sentence", sites[i], after, r, world.status[r]);
            assert_int_equal(nccl->comms, 0);
            assert_int_equal(twin_held().streams, 0);
            assert_int_equal(twin_held().pinned_bytes, 0);
        }
}

TEST_MAIN(argc, argv)
{
    void *library;

    nccl_file = getenv("STRATA_NCCL");
    nccl_file = nccl_file != NULL ? strdup(nccl_file) : NULL;
    library = nccl_file != NULL ? dlopen(nccl_file, RTLD_NOW | RTLD_NODELETE) : NULL;
    nccl = library != NULL ? dlsym(library, TWIN_NCCL_SYMBOL) : NULL;
    if (nccl == NULL) {
        fputs("STRATA_NCCL must name the stand-in\n", stderr);
        return 1;
    }
    return test_run(NULL, NULL);
}
