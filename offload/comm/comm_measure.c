/* comm_measure.c - see comm_measure.h: the same bytes again and again between ranks that a rule pairs; the slowest rank's time
 * counts, since all wait for it. */
#include "offload/comm/comm_measure.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"

#include <stdlib.h>
#include <string.h>

#define PROBE_BYTES UINT64_C(33554432) /* that a rank sends in one exchange, and receives */
#define PROBE_NS    UINT64_C(200000000)
#define REPEATS_MAX 64u
#define WHAT        "the links between ranks"

enum pairing {
    PAIR_TWO,    /* only ranks a and b */
    PAIR_INSIDE, /* ranks of one node, on all nodes at once */
    PAIR_BETWEEN /* ranks of different nodes */
};

struct probe {
    struct st_comm *comm;
    const uint16_t *node_of;
    enum pairing pairing;
    uint32_t a, b;
    unsigned char *memory; /* [2][PROBE_BYTES] what is sent, and room for what comes */
    struct st_comm_peer peers[ST_LINKS_RANKS_MAX];
    struct st_comm_part send, recv[ST_LINKS_RANKS_MAX];
};

static bool paired(const struct probe *p, uint32_t x, uint32_t y)
{
    if (x == y)
        return false;
    if (p->pairing == PAIR_TWO)
        return (x == p->a && y == p->b) || (x == p->b && y == p->a);
    return (p->node_of[x] == p->node_of[y]) == (p->pairing == PAIR_INSIDE);
}

/* Ranks that a rank exchanges with. */
static uint32_t count_peers(const struct probe *p, uint32_t rank)
{
    uint32_t count = 0;

    for (uint32_t r = 0; r < p->comm->world.ranks; r++)
        count += paired(p, rank, r);
    return count;
}

/* Every rank sends each of its peers the same bytes. */
static void list_peers(struct probe *p, uint64_t bytes)
{
    const uint32_t self = p->comm->world.rank;
    unsigned char *into = p->memory + PROBE_BYTES;

    memset(p->peers, 0, sizeof(p->peers));
    p->send = (struct st_comm_part){.data = p->memory, .bytes = bytes};
    for (uint32_t r = 0; r < p->comm->world.ranks; r++) {
        if (!paired(p, self, r))
            continue;
        p->recv[r] = (struct st_comm_part){.data = into, .bytes = bytes};
        p->peers[r] = (struct st_comm_peer){.send = &p->send, .recv = &p->recv[r], .send_count = 1, .recv_count = 1};
        into += bytes;
    }
}

/* Seconds of one exchange in the mean of `repeats`, on the rank where they take longest. */
static strata_status time_exchanges(struct probe *p, uint32_t repeats, double *seconds)
{
    uint64_t ns, all[ST_LINKS_RANKS_MAX];
    strata_status st = st_comm_barrier(p->comm, WHAT);

    ns = st_clock_ns();
    for (uint32_t i = 0; i < repeats && st == STRATA_OK; i++)
        st = st_comm_exchange(p->comm, p->peers, WHAT);
    ns = st_clock_ns() - ns;
    if (st == STRATA_OK)
        st = st_comm_gather(p->comm, &ns, sizeof(ns), all, WHAT);
    *seconds = 0;
    for (uint32_t r = 0; r < p->comm->world.ranks && st == STRATA_OK; r++)
        *seconds = (double)all[r] * 1e-9 / repeats > *seconds ? (double)all[r] * 1e-9 / repeats : *seconds;
    return st;
}

/* After a first exchange, which maps memory and opens windows, as many as the time allows. */
static strata_status probe_seconds(struct probe *p, uint64_t bytes, double *seconds)
{
    strata_status st;
    double repeats;

    list_peers(p, bytes);
    if ((st = time_exchanges(p, 1, seconds)) != STRATA_OK)
        return st;
    repeats = PROBE_NS * 1e-9 / *seconds;
    return time_exchanges(p, repeats < 1 ? 1 : repeats > REPEATS_MAX ? REPEATS_MAX : (uint32_t)repeats, seconds);
}

static strata_status measure_pairs(struct probe *p, struct st_links *out)
{
    strata_status st = STRATA_OK;
    double seconds;

    p->pairing = PAIR_TWO;
    for (p->a = 0; p->a < out->ranks; p->a++)
        for (p->b = p->a + 1; p->b < out->ranks && st == STRATA_OK; p->b++) {
            st = probe_seconds(p, PROBE_BYTES, &seconds);
            out->pair[p->a][p->b] = st == STRATA_OK ? (double)PROBE_BYTES / seconds : 0;
        }
    return st;
}

/* What rank 0 receives of its peers while all exchange with theirs. */
static strata_status measure_all(struct probe *p, enum pairing pairing, double *rate, double *latency)
{
    const uint64_t most = p->comm->world.ranks - 1, bytes = PROBE_BYTES / most;
    strata_status st;
    double seconds;

    p->pairing = pairing;
    *rate = *latency = 0;
    if (count_peers(p, 0) == 0)
        return STRATA_OK;
    if ((st = probe_seconds(p, 64, latency)) == STRATA_OK && (st = probe_seconds(p, bytes, &seconds)) == STRATA_OK)
        *rate = (double)(count_peers(p, 0) * bytes) / seconds;
    return st;
}

strata_status st_comm_measure(struct st_links *out, struct st_comm *comm, const uint16_t *node_of)
{
    struct probe p = {.comm = comm, .node_of = node_of};
    strata_status st;

    *out = (struct st_links){.ranks = comm->world.ranks};
    if (out->ranks > ST_LINKS_RANKS_MAX)
        return st_error(STRATA_E_INVAL,
                        "links are measured among at most %u ranks, and there are %u: start a few on each machine",
                        ST_LINKS_RANKS_MAX, out->ranks);
    for (uint32_t r = 0; r < out->ranks; r++)
        out->here += node_of[r] == node_of[0];
    p.memory = st_fault_refuses("comm.links") ? NULL : calloc(2, PROBE_BYTES);
    if (p.memory == NULL)
        return st_nomem(2 * PROBE_BYTES);
    memset(p.memory, 1, 2 * PROBE_BYTES); /* pages that have not been touched are all one */
    if ((st = measure_pairs(&p, out)) == STRATA_OK &&
        (st = measure_all(&p, PAIR_INSIDE, &out->link_node, &out->latency_node)) == STRATA_OK)
        st = measure_all(&p, PAIR_BETWEEN, &out->link_nodes, &out->latency_nodes);
    out->link_nodes *= out->here;
    free(p.memory);
    return st;
}
