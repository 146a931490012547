/* offload/comm/comm.c - see comm.h: what follows from a failure, and the collectives that are made of exchange(). */
#include "offload/comm/comm_internal.h"

#include "core/base/error.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

strata_status st_comm_init(struct st_comm *comm, const struct st_comm_ops *ops, const struct st_world *world,
                           uint64_t deadline_ns)
{
    const uint32_t ranks = world->ranks;

    assert(ranks >= 2 && ranks <= ST_COMM_RANKS_MAX && world->rank < ranks);
    comm->ops = ops;
    comm->pid = getpid();
    comm->world = *world;
    comm->deadline_ns = deadline_ns > 0 ? deadline_ns : ST_COMM_DEADLINE_NS;
    comm->gather_peers = calloc(ranks, sizeof(*comm->gather_peers));
    comm->gather_parts = calloc(ranks, sizeof(*comm->gather_parts));
    if (comm->gather_peers == NULL || comm->gather_parts == NULL) {
        free(comm->gather_peers);
        free(comm->gather_parts);
        return st_nomem(0);
    }
    pthread_mutex_init(&comm->lock, NULL);
    return STRATA_OK;
}

void st_comm_fini(struct st_comm *comm)
{
    pthread_mutex_destroy(&comm->lock);
    free(comm->gather_peers);
    free(comm->gather_parts);
}

bool st_comm_is_parents(const struct st_comm *comm)
{
    return comm->pid != getpid();
}

/* --- failure --- */

strata_status st_comm_verdict(strata_status st)
{
    return st == STRATA_E_INVAL || st == STRATA_E_CONFIG || st == STRATA_E_INPUT || st == STRATA_E_NUMERICS ? st : STRATA_E_IO;
}

/* Keeps the first reason; false: there is one already. */
static bool keep_reason(struct st_comm *comm, strata_status st, const char *reason)
{
    bool first;

    pthread_mutex_lock(&comm->lock);
    first = !atomic_load(&comm->failed);
    if (first) {
        comm->status = st_comm_verdict(st);
        snprintf(comm->reason, sizeof(comm->reason), "%s", reason);
    }
    atomic_store(&comm->failed, true);
    pthread_mutex_unlock(&comm->lock);
    return first;
}

strata_status st_comm_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    strata_status st;

    assert(peers[comm->world.rank].send_count == 0 && peers[comm->world.rank].recv_count == 0);
    if (st_comm_is_parents(comm))
        return st_error(STRATA_E_INVAL,
                        "process %ld is rank %" PRIu32 ", its child %ld is not: call this in the rank's process (%s)",
                        (long)comm->pid, comm->world.rank, (long)getpid(), what);
    if (!atomic_load(&comm->failed)) {
        if ((st = comm->ops->exchange(comm, peers, what)) == STRATA_OK)
            return STRATA_OK;
        st_comm_abort_as(comm, st, strata_last_error()); /* who waits for this rank waits in vain */
    }
    return st_error(comm->status, "%s", comm->reason);
}

void st_comm_abort_as(struct st_comm *comm, strata_status st, const char *sentence)
{
    if (comm != NULL && !st_comm_is_parents(comm) && keep_reason(comm, st, sentence))
        comm->ops->abort(comm, comm->reason);
}

void st_comm_abort(struct st_comm *comm, const char *sentence)
{
    st_comm_abort_as(comm, STRATA_E_IO, sentence);
}

void st_comm_close(struct st_comm *comm)
{
    if (comm != NULL && !st_comm_is_parents(comm)) /* a parent goes on with what it has */
        comm->ops->close(comm);
}

strata_status st_comm_gone(uint32_t rank, const char *what)
{
    return st_error(STRATA_E_IO, "rank %" PRIu32 " is gone (during %s): its own output says why", rank, what);
}

/* A reason that says already which rank it is about is handed on as it is, unless that rank is the one that hears it. */
strata_status st_comm_aborted(uint32_t rank, uint32_t self, strata_status st, const char *what, const char *reason)
{
    char gone[32];
    const int length = snprintf(gone, sizeof(gone), "rank %" PRIu32 " is gone", self);

    if (strncmp(reason, gone, (size_t)length) == 0)
        return st_error(STRATA_E_IO, "rank %" PRIu32 " failed (during %s): it lost its connection with this one, rank %" PRIu32,
                        rank, what, self);
    if (strncmp(reason, "rank ", 5) == 0)
        return st_error(st_comm_verdict(st), "%s", reason);
    return st_error(st_comm_verdict(st), "rank %" PRIu32 " failed (during %s): %s", rank, what, reason);
}

strata_status st_comm_silent(uint32_t rank, const char *what, uint64_t deadline_ns)
{
    return st_error(STRATA_E_IO,
                    "nothing was heard of rank %" PRIu32
                    " for %.6g seconds (during %s): it hangs, or strata.comm_deadline is too short",
                    rank, (double)deadline_ns * 1e-9, what);
}

strata_status st_comm_elsewhere(uint32_t rank, const char *theirs, uint32_t self, const char *what)
{
    return st_error(STRATA_E_IO, "rank %" PRIu32 " is at %s where rank %" PRIu32 " is at %s: they run different programs", rank,
                    theirs, self, what);
}

strata_status st_comm_sizes(uint32_t rank, uint64_t sends, uint32_t self, uint64_t awaits, const char *what)
{
    return st_error(STRATA_E_IO,
                    "rank %" PRIu32 " sends %" PRIu64 " bytes to rank %" PRIu32 ", which awaits %" PRIu64
                    " (during %s): they run different programs",
                    rank, sends, self, awaits, what);
}

/* --- parts --- */

uint64_t st_comm_bytes(const struct st_comm_part *parts, uint32_t count)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < count; i++)
        bytes += parts[i].bytes;
    return bytes;
}

struct st_comm_cursor st_comm_cursor_at(const struct st_comm_part *parts, uint32_t count)
{
    return (struct st_comm_cursor){.part = parts, .end = count > 0 ? parts + count : parts};
}

void *st_comm_cursor_run(struct st_comm_cursor *cursor, uint64_t *bytes)
{
    while (cursor->part < cursor->end && cursor->at == cursor->part->bytes) {
        cursor->part++;
        cursor->at = 0;
    }
    *bytes = 0;
    if (cursor->part == cursor->end)
        return NULL;
    *bytes = cursor->part->bytes - cursor->at;
    return (char *)cursor->part->data + cursor->at;
}

void st_comm_cursor_skip(struct st_comm_cursor *cursor, uint64_t bytes)
{
    assert(bytes == 0 || bytes <= cursor->part->bytes - cursor->at);
    cursor->at += bytes;
}

/* --- what is made of exchange() --- */

strata_status st_comm_gather(struct st_comm *comm, const void *mine, uint64_t bytes, void *all, const char *what)
{
    const uint32_t rank = comm != NULL ? comm->world.rank : 0, ranks = comm != NULL ? comm->world.ranks : 1;
    struct st_comm_part own = {.data = (char *)all + rank * bytes, .bytes = bytes};

    if (own.data != mine && bytes > 0)
        memcpy(own.data, mine, bytes);
    if (comm == NULL)
        return STRATA_OK;
    assert(!comm->ops->on_device);
    for (uint32_t r = 0; r < ranks; r++) {
        comm->gather_parts[r] = (struct st_comm_part){.data = (char *)all + r * bytes, .bytes = bytes};
        comm->gather_peers[r] =
            (struct st_comm_peer){.send = &own, .recv = &comm->gather_parts[r], .send_count = r != rank, .recv_count = r != rank};
    }
    return st_comm_exchange(comm, comm->gather_peers, what);
}

strata_status st_comm_barrier(struct st_comm *comm, const char *what)
{
    uint8_t here = 0, all[ST_COMM_RANKS_MAX];

    return st_comm_gather(comm, &here, sizeof(here), all, what);
}
