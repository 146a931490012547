/* tests/offload/test_comm_measure.c - links between ranks are measured, each pair and together; every rank gets the same figures,
 * which are those of ranks whose exchanges take known times. */
#include "offload/comm/comm_internal.h"
#include "offload/comm/comm_measure.h"
#include "tests/common/assert_status.h"
#include "tests/common/test.h"
#include "tests/offload/comm_fixture.h"

#include <math.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct nodes {
    const uint16_t *of;
    struct st_links links[CF_RANKS_MAX]; /* out, by rank */
};

static strata_status measure(struct st_comm *comm, struct cf_world *world)
{
    struct nodes *n = world->ctx;

    return st_comm_measure(&n->links[comm->world.rank], comm, n->of);
}

static void measure_world(const char *kind, struct nodes *n)
{
    struct cf_world world = {.kind = kind, .ranks = 3, .body = measure, .ctx = n};

    cf_run(&world);
    cf_assert_ok(&world);
    for (uint32_t r = 1; r < world.ranks; r++)
        assert_memory_equal(&n->links[r], &n->links[0], sizeof(n->links[0]));
    assert_int_equal(n->links[0].ranks, 3);
    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t b = 0; b < 3; b++)
            assert_int_equal(n->links[0].pair[a][b] > 0, a < b);
}

TEST(pairs_and_nodes_are_measured)
{
    static const struct {
        const char *kind;
        uint16_t of[3];
        uint32_t here;
    } rows[] = {{"threads", {0, 0, 0}, 3}, {"shared", {0, 0, 2}, 2}, {"tcp", {0, 1, 2}, 1}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct nodes n = {.of = rows[i].of};
        const struct st_links *l = &n.links[0];

        measure_world(rows[i].kind, &n);
        assert_int_equal(l->here, rows[i].here);
        assert_int_equal(l->link_node > 0, rows[i].here > 1);
        assert_int_equal(l->latency_node > 0, rows[i].here > 1);
        assert_int_equal(l->link_nodes > 0, rows[i].here < 3);
        assert_int_equal(l->latency_nodes > 0, rows[i].here < 3);
    }
}

/* --- four ranks on two nodes, on a clock that their exchanges turn --- */

#define INSIDE_RATE     4e9 /* what a rank receives of its node in a second */
#define BETWEEN_RATE    1e9 /* and of the other */
#define INSIDE_LATENCY  2e-5
#define BETWEEN_LATENCY 5e-5

static const uint16_t two_nodes[4] = {0, 0, 1, 1};
static bool modelled;
static double modelled_seconds;

int clock_gettime(clockid_t id, struct timespec *out)
{
    if (!modelled)
        return (int)syscall(SYS_clock_gettime, id, out);
    *out = (struct timespec){.tv_sec = (time_t)modelled_seconds,
                             .tv_nsec = (long)((modelled_seconds - floor(modelled_seconds)) * 1e9)};
    return 0;
}

/* What rank 0 sends comes back to it from everybody. */
static strata_status model_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    uint64_t bytes[2] = {0};

    (void)what;
    for (uint32_t r = 1; r < comm->world.ranks; r++) {
        if (peers[r].recv_count == 0)
            continue;
        memcpy(peers[r].recv[0].data, peers[r].send[0].data, peers[r].recv[0].bytes);
        bytes[two_nodes[r]] += peers[r].recv[0].bytes;
    }
    modelled_seconds += bytes[0] > 0 ? INSIDE_LATENCY + (double)bytes[0] / INSIDE_RATE : 0;
    modelled_seconds += bytes[1] > 0 ? BETWEEN_LATENCY + (double)bytes[1] / BETWEEN_RATE : 0;
    return STRATA_OK;
}

static void assert_near(double got, double want)
{
    if (fabs(got - want) > 0.01 * want)
        fail_msg("%g, not %g", got, want);
}

/* The network of a node is that of all its ranks; links between ranks of a node are a rank's own. */
TEST(rates_are_of_a_rank_inside_and_of_a_node_between)
{
    static const struct st_comm_ops ops = {.name = "model", .exchange = model_exchange};
    const struct st_world world = {.ranks = 4, .local_ranks = 2};
    struct st_comm comm = {0};
    struct st_links l;

    assert_ok(st_comm_init(&comm, &ops, &world, 0));
    modelled = true;
    assert_ok(st_comm_measure(&l, &comm, two_nodes));
    modelled = false;
    assert_int_equal(l.here, 2);
    assert_near(l.link_node, INSIDE_RATE);
    assert_near(l.link_nodes, 2 * BETWEEN_RATE);
    assert_near(l.latency_node, INSIDE_LATENCY);
    assert_near(l.latency_nodes, BETWEEN_LATENCY);
    assert_near(l.pair[0][1], INSIDE_RATE);
    assert_near(l.pair[0][2], BETWEEN_RATE);
    st_comm_fini(&comm);
}
