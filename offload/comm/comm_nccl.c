/* comm_nccl.c - see offload/comm/comm_nccl.h.
 *
 * NCCL is used without blocking: a call that would wait for other ranks returns NCCL_IN_PROGRESS, and its state is asked for.  So
 * each wait here has a deadline, and only one thread calls NCCL: abort() by another one only makes that thread look up.
 * With its data each rank sends every other one a head of 64 bytes, in the same group of messages, that says what it does. */
#include "offload/comm/comm_nccl.h"
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "offload/comm/comm_internal.h"
#include "offload/comm/nap.h"
#include "offload/comm/nccl_library_internal.h"
#include "offload/device/cuda/cuda_stream.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DRAIN_NS UINT64_C(2000000000) /* for an aborted stream to end */

/* A foreign call behind a fault site.  If a test requests a failure, the call is not made. */
#define NCCL_PASS(site, call) (st_fault((site), 0) != 0 ? NCCL_INTERNAL_ERROR : (call))

struct nccl_head {
    uint64_t sequence; /* of the exchange, from 1 */
    uint64_t cuts;     /* hash of the sizes of the parts that go to the receiver of this head */
    char what[48];
};

/* What each rank tells all others before NCCL starts. */
struct nccl_start {
    uint32_t ready; /* 0: why not */
    int32_t version;
    nccl_id_t id; /* rank 0's */
    char why[ST_COMM_REASON_BYTES];
};

struct comm_nccl {
    struct st_comm base;
    struct st_comm *host;
    struct st_nccl lib;
    struct st_cuda_stream stream; /* its note: heads out [ranks], heads in [ranks] */
    nccl_comm_t nccl;
    uint64_t sequence;
    bool stuck; /* an aborted stream has not ended */
};

static struct comm_nccl *nccl_of(struct st_comm *comm)
{
    return (struct comm_nccl *)(void *)comm;
}

static strata_status nccl_status(const struct comm_nccl *n, int error, const char *what)
{
    if (error == NCCL_SUCCESS || error == NCCL_IN_PROGRESS)
        return STRATA_OK;
    return st_error(STRATA_E_IO, "nccl: NCCL fails (during %s): %s", what, n->lib.error_string(error));
}

/* --- waiting --- */

/* *ready: NCCL has enqueued all, and, with `ended`, the stream has done it. */
static strata_status look(const struct comm_nccl *n, const char *what, bool ended, bool *ready)
{
    int state = NCCL_SUCCESS;
    const int error = NCCL_PASS("nccl.poll", n->lib.async_error(n->nccl, &state));
    strata_status st = nccl_status(n, error != NCCL_SUCCESS ? error : state, what);

    *ready = state != NCCL_IN_PROGRESS;
    return st == STRATA_OK && *ready && ended ? st_cuda_stream_ended(&n->stream, ready) : st;
}

static strata_status wait_for(const struct comm_nccl *n, const char *what, bool ended, uint64_t until_ns)
{
    struct st_nap nap;
    bool ready = false;
    strata_status st;

    st_nap_begin(&nap);
    while ((st = look(n, what, ended, &ready)) == STRATA_OK && !ready) {
        if (atomic_load(&n->base.failed))
            return st_error(n->base.status, "%s", n->base.reason);
        if (atomic_load(&n->host->failed))
            return st_error(n->host->status, "%s", n->host->reason);
        if (st_clock_ns() > until_ns)
            return st_error(STRATA_E_IO,
                            "%s has not ended after %.6g seconds: a rank hangs or has ended (see their output), or "
                            "strata.comm_deadline is too short",
                            what, (double)n->base.deadline_ns * 1e-9);
        (void)st_nap(&nap);
    }
    return st;
}

/* After a failure: NCCL's kernels leave the stream, and memory is the caller's again. */
static void give_up(struct comm_nccl *n)
{
    const uint64_t limit = n->host->deadline_ns < DRAIN_NS ? n->host->deadline_ns : DRAIN_NS, until = st_clock_ns() + limit;
    struct st_nap nap;
    bool ended = false;

    if (n->nccl != NULL)
        (void)n->lib.abort(n->nccl);
    n->nccl = NULL;
    st_nap_begin(&nap);
    while (st_cuda_stream_ended(&n->stream, &ended) == STRATA_OK && !ended && st_clock_ns() < until)
        (void)st_nap(&nap);
    n->stuck = !ended;
}

/* --- exchange --- */

static uint64_t cuts_of(const struct st_comm_part *parts, uint32_t count)
{
    uint64_t hash = 0;

    for (uint32_t i = 0; i < count; i++)
        if (parts[i].bytes > 0) {
            const uint64_t both[2] = {hash, parts[i].bytes};

            hash = st_checksum64(both, sizeof(both));
        }
    return hash;
}

static struct nccl_head *head_at(const struct comm_nccl *n, unsigned char *note, bool in, uint32_t rank)
{
    return (struct nccl_head *)(void *)note + (in ? n->base.world.ranks : 0) + rank;
}

static int send_to(const struct comm_nccl *n, uint32_t rank, const void *data, uint64_t bytes)
{
    return NCCL_PASS("nccl.send", n->lib.send(data, bytes, NCCL_UINT8, (int)rank, n->nccl, n->stream.handle));
}

static int receive_from(const struct comm_nccl *n, uint32_t rank, void *data, uint64_t bytes)
{
    return NCCL_PASS("nccl.receive", n->lib.receive(data, bytes, NCCL_UINT8, (int)rank, n->nccl, n->stream.handle));
}

/* The messages between this rank and another one, in the order in which either side gives them. */
static int post(const struct comm_nccl *n, uint32_t rank, const struct st_comm_peer *peer)
{
    unsigned char *note = n->stream.device_note;
    int error = send_to(n, rank, head_at(n, note, false, rank), sizeof(struct nccl_head));

    if (error == NCCL_SUCCESS)
        error = receive_from(n, rank, head_at(n, note, true, rank), sizeof(struct nccl_head));
    for (uint32_t i = 0; i < peer->send_count && error == NCCL_SUCCESS; i++)
        if (peer->send[i].bytes > 0)
            error = send_to(n, rank, peer->send[i].data, peer->send[i].bytes);
    for (uint32_t i = 0; i < peer->recv_count && error == NCCL_SUCCESS; i++)
        if (peer->recv[i].bytes > 0)
            error = receive_from(n, rank, peer->recv[i].data, peer->recv[i].bytes);
    return error;
}

/* A group that has begun is ended, whatever came in between: NCCL counts them. */
static strata_status post_all(const struct comm_nccl *n, const struct st_comm_peer *peers, const char *what)
{
    int error = NCCL_PASS("nccl.group", n->lib.group_start()), ended;

    if (error != NCCL_SUCCESS)
        return nccl_status(n, error, what);
    for (uint32_t r = 0; r < n->base.world.ranks && error == NCCL_SUCCESS; r++)
        if (r != n->base.world.rank)
            error = post(n, r, &peers[r]);
    ended = n->lib.group_end();
    if (error == NCCL_SUCCESS)
        error = (int)st_fault("nccl.group", 0) != 0 ? NCCL_INTERNAL_ERROR : ended;
    return nccl_status(n, error, what);
}

static void write_heads(const struct comm_nccl *n, const struct st_comm_peer *peers, const char *what)
{
    for (uint32_t r = 0; r < n->base.world.ranks; r++) {
        struct nccl_head *head = head_at(n, n->stream.note, false, r);

        memset(head, 0, sizeof(*head));
        head->sequence = n->sequence;
        head->cuts = cuts_of(peers[r].send, peers[r].send_count);
        snprintf(head->what, sizeof(head->what), "%s", what);
    }
}

static strata_status compare_heads(const struct comm_nccl *n, const struct st_comm_peer *peers, const char *what)
{
    const uint32_t self = n->base.world.rank;

    for (uint32_t r = 0; r < n->base.world.ranks; r++) {
        struct nccl_head *theirs = head_at(n, n->stream.note, true, r), *ours = head_at(n, n->stream.note, false, r);

        if (r == self)
            continue;
        theirs->what[sizeof(theirs->what) - 1] = '\0';
        if (strcmp(theirs->what, ours->what) != 0)
            return st_comm_elsewhere(r, theirs->what, self, what);
        if (theirs->sequence != ours->sequence)
            return st_error(STRATA_E_IO,
                            "rank %" PRIu32 " is at %s as its exchange %" PRIu64 ", rank %" PRIu32 " as its exchange %" PRIu64
                            ": they run different programs",
                            r, what, theirs->sequence, self, ours->sequence);
        if (theirs->cuts != cuts_of(peers[r].recv, peers[r].recv_count))
            return st_error(STRATA_E_IO,
                            "rank %" PRIu32 " sends other pieces than rank %" PRIu32
                            " awaits (during %s): they run different programs",
                            r, self, what);
    }
    return STRATA_OK;
}

static strata_status exchange(struct comm_nccl *n, const struct st_comm_peer *peers, const char *what)
{
    const uint64_t until = st_clock_ns() + n->base.deadline_ns, bytes = n->stream.note_bytes / 2;
    strata_status st = st_cuda_stream_use(&n->stream);

    n->sequence++;
    write_heads(n, peers, what);
    if (st == STRATA_OK)
        st = st_cuda_stream_send_note(&n->stream, 0, bytes);
    if (st == STRATA_OK)
        st = post_all(n, peers, what);
    if (st == STRATA_OK)
        st = wait_for(n, what, false, until);
    if (st == STRATA_OK)
        st = st_cuda_stream_take_note(&n->stream, bytes, bytes);
    if (st == STRATA_OK)
        st = wait_for(n, what, true, until);
    return st == STRATA_OK ? compare_heads(n, peers, what) : st;
}

static strata_status nccl_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    struct comm_nccl *n = nccl_of(comm);
    struct st_sentence sentence;
    strata_status st = exchange(n, peers, what);

    if (st == STRATA_OK)
        return STRATA_OK;
    st_error_keep(&sentence);
    give_up(n);
    return st_error_again(STRATA_E_IO, &sentence);
}

/* The thread that exchanges sees the failure at its next look, and gives up there. */
static void nccl_abort(struct st_comm *comm, const char *sentence)
{
    (void)comm, (void)sentence;
}

/* --- open and close --- */

/* What is not ended is left to the driver: to free it would wait for it. */
static void discard(struct comm_nccl *n)
{
    if (!n->stuck)
        st_cuda_stream_close(&n->stream);
    if (n->base.ops != NULL)
        st_comm_fini(&n->base);
    free(n);
}

static void nccl_close(struct st_comm *comm)
{
    struct comm_nccl *n = nccl_of(comm);

    if (atomic_load(&n->base.failed) && n->nccl != NULL)
        give_up(n);
    if (n->nccl != NULL && st_fault("nccl.end", n->lib.destroy(n->nccl)) != NCCL_SUCCESS)
        st_log(ST_LOG_WARN, "nccl: NCCL does not end well");
    discard(n);
}

static const struct st_comm_ops comm_nccl_ops = {
    .name = "nccl",
    .on_device = true,
    .exchange = nccl_exchange,
    .abort = nccl_abort,
    .close = nccl_close,
};

/* What this rank can do alone; what fails here the others are told of before they wait for it. */
static strata_status prepare(struct comm_nccl *n, uint32_t device, nccl_id_t *id)
{
    strata_status st = st_nccl_open(&n->lib);
    int error = NCCL_SUCCESS;

    if (st == STRATA_OK)
        st = st_cuda_stream_open(&n->stream, device, 2ull * n->host->world.ranks * sizeof(struct nccl_head));
    if (st == STRATA_OK && n->host->world.rank == 0)
        error = NCCL_PASS("nccl.id", n->lib.unique_id(id));
    return st == STRATA_OK ? nccl_status(n, error, "ncclGetUniqueId") : st;
}

static strata_status compare_starts(const struct nccl_start *all, uint32_t ranks)
{
    for (uint32_t r = 0; r < ranks; r++)
        if (all[r].ready == 0)
            return st_error(STRATA_E_NOSYS, "rank %" PRIu32 " cannot use NCCL: %.*s", r, (int)sizeof(all[r].why) - 1, all[r].why);
    for (uint32_t r = 1; r < ranks; r++)
        if (all[r].version != all[0].version)
            return st_error(STRATA_E_CONFIG,
                            "nccl: rank 0 has NCCL %d.%d.%d and rank %" PRIu32 " NCCL %d.%d.%d: all ranks need the same one",
                            all[0].version / 10000, all[0].version / 100 % 100, all[0].version % 100, r, all[r].version / 10000,
                            all[r].version / 100 % 100, all[r].version % 100);
    return STRATA_OK;
}

/* Everybody has what it needs, and rank 0's id. */
static strata_status agree(struct comm_nccl *n, uint32_t device, nccl_id_t *id)
{
    const uint32_t ranks = n->host->world.ranks;
    struct nccl_start *all = calloc(ranks, sizeof(*all)), mine = {.ready = 1};
    strata_status st;

    if (all == NULL)
        return st_nomem(ranks * sizeof(*all));
    st = prepare(n, device, &mine.id);
    if (st != STRATA_OK) {
        mine.ready = 0;
        snprintf(mine.why, sizeof(mine.why), "%s", strata_last_error());
    }
    mine.version = n->lib.found;
    st = st_comm_gather(n->host, &mine, sizeof(mine), all, "the start of NCCL");
    if (st == STRATA_OK)
        st = compare_starts(all, ranks);
    *id = all[0].id;
    free(all);
    return st;
}

static strata_status join(struct comm_nccl *n, nccl_id_t id)
{
    struct nccl_config config = NCCL_CONFIG;
    const struct st_world *w = &n->host->world;
    const uint64_t until = st_clock_ns() + n->host->deadline_ns;
    strata_status st = st_comm_init(&n->base, &comm_nccl_ops, w, n->host->deadline_ns);

    if (st != STRATA_OK) {
        n->base.ops = NULL; /* nothing to undo */
        return st;
    }
    st = nccl_status(n, NCCL_PASS("nccl.init", n->lib.init(&n->nccl, (int)w->ranks, id, (int)w->rank, &config)),
                     "the start of NCCL");
    return st == STRATA_OK ? wait_for(n, "the start of NCCL", false, until) : st;
}

strata_status st_comm_nccl_open(struct st_comm **out, struct st_comm *host, uint32_t device)
{
    struct comm_nccl *n = calloc(1, sizeof(*n));
    struct st_sentence sentence;
    nccl_id_t id;
    strata_status st;

    if (n == NULL)
        return st_nomem(sizeof(*n));
    n->host = host;
    st = agree(n, device, &id);
    if (st == STRATA_OK)
        st = join(n, id);
    if (st == STRATA_OK) {
        *out = &n->base;
        return STRATA_OK;
    }
    st_error_keep(&sentence);
    if (n->nccl != NULL)
        give_up(n);
    discard(n);
    return st_error_again(st, &sentence);
}
