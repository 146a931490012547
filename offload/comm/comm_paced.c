/* offload/comm/comm_paced.c - see comm.h: another comm's bytes, at the pace of links that are not present.
 *
 * An exchange begins when the last rank has come to it, which they tell each other by their clocks, so all must be on one
 * machine; it ends when the bytes have moved, and not before the links would have moved them.  By how much a rank woke up too
 * late it comes to the next one earlier, so that late wake-ups do not add up. */
#include "offload/comm/comm_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"

#include <stdlib.h>

struct paced {
    struct st_comm comm; /* first */
    struct st_comm *under;
    struct st_comm_pace pace;
    uint64_t late_ns;  /* by which the last exchange ended too late, for lack of a core */
    uint64_t *came_ns; /* [ranks] when each rank came to its call, by st_clock_ns() */
};

static strata_status last_arrival(struct paced *p, uint64_t *ns, const char *what)
{
    const uint64_t now = st_clock_ns() - p->late_ns;
    const strata_status st = st_comm_gather(p->under, &now, sizeof(now), p->came_ns, what);

    *ns = now;
    for (uint32_t r = 0; r < p->comm.world.ranks && st == STRATA_OK; r++)
        *ns = p->came_ns[r] > *ns ? p->came_ns[r] : *ns;
    return st;
}

/* The time that the bytes themselves take beyond the pace is no lateness. */
static void sleep_until(struct paced *p, uint64_t ns)
{
    p->late_ns = 0;
    if (st_clock_ns() >= ns)
        return;
    st_clock_sleep_until(ns);
    p->late_ns = st_clock_ns() - ns;
}

static strata_status paced_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    struct paced *p = (struct paced *)comm;
    uint64_t begin_ns, bytes = 0;
    strata_status st = last_arrival(p, &begin_ns, what);

    if (st == STRATA_OK)
        st = st_comm_exchange(p->under, peers, what);
    for (uint32_t r = 0; r < comm->world.ranks; r++)
        bytes += st_comm_bytes(peers[r].recv, peers[r].recv_count);
    if (st == STRATA_OK)
        sleep_until(p, begin_ns + (uint64_t)((p->pace.latency + (double)bytes / p->pace.rate) * 1e9));
    return st;
}

static void paced_abort(struct st_comm *comm, const char *sentence)
{
    st_comm_abort_as(((struct paced *)comm)->under, comm->status, sentence);
}

static void paced_close(struct st_comm *comm)
{
    struct paced *p = (struct paced *)comm;

    st_comm_close(p->under);
    st_comm_fini(comm);
    free(p->came_ns);
    free(p);
}

static const struct st_comm_ops paced_ops = {
    .name = "paced",
    .exchange = paced_exchange,
    .abort = paced_abort,
    .close = paced_close,
};

strata_status st_comm_paced_open(struct st_comm **out, struct st_comm *under, const struct st_comm_pace *pace)
{
    struct paced *p = st_fault_refuses("comm.paced") ? NULL : calloc(1, sizeof(*p));
    strata_status st;

    if (p == NULL || (p->came_ns = calloc(under->world.ranks, sizeof(*p->came_ns))) == NULL) {
        free(p);
        return st_nomem(0);
    }
    p->under = under;
    p->pace = *pace;
    if ((st = st_comm_init(&p->comm, &paced_ops, &under->world, under->deadline_ns)) != STRATA_OK) {
        free(p->came_ns);
        free(p);
        return st;
    }
    *out = &p->comm;
    return STRATA_OK;
}
