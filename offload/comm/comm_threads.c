/* offload/comm/comm_threads.c - see comm.h: ranks that are threads of one process.
 *
 * One lock for the world.  A rank that exchanges posts its peers, copies what it receives out of each other rank's parts as soon
 * as that one has posted, and leaves when all have copied from it.  Copies run without the lock; a rank that fails still waits
 * for those that are reading its parts, which is no longer than a memcpy. */
#include "offload/comm/comm_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct shared;

struct rank {
    struct st_comm comm; /* first */
    struct shared *shared;
    /* Guarded by the world's lock. */
    const struct st_comm_peer *peers; /* posted; NULL: none */
    const char *what;
    uint64_t posted;  /* calls, this one included */
    uint64_t ended;   /* calls that ended well */
    uint32_t taken;   /* ranks that have done with what this one posted */
    uint32_t readers; /* ranks that are copying from it now */
    bool closed, aborted;
    char sentence[ST_COMM_REASON_BYTES]; /* of the abort */
};

struct shared {
    pthread_mutex_t lock;  /* guards the ranks' members that say so, and open */
    pthread_cond_t change; /* any of them */
    uint32_t ranks, open;  /* open: not closed yet */
    struct rank rank[];
};

/* --- one exchange, with the lock held where nothing else is said --- */

/* Whether the call can still end well: none has given up, or closed, that this call needs. */
static strata_status world_state(const struct rank *self, const char *what)
{
    const struct shared *shared = self->shared;

    if (self->aborted)
        return st_error(STRATA_E_IO, "%s", self->sentence);
    for (uint32_t r = 0; r < shared->ranks; r++) {
        if (shared->rank[r].aborted && shared->rank[r].ended < self->posted)
            return st_comm_aborted(r, self->comm.world.rank, shared->rank[r].comm.status, what, shared->rank[r].sentence);
        if (shared->rank[r].closed && shared->rank[r].posted < self->posted)
            return st_comm_gone(r, what);
    }
    return STRATA_OK;
}

static strata_status wait_change(const struct rank *self, uint64_t until_ns, uint32_t of, const char *what)
{
    if (st_cond_wait(&self->shared->change, &self->shared->lock, until_ns) || st_clock_ns() < until_ns)
        return world_state(self, what);
    return st_comm_silent(of, what, self->comm.deadline_ns);
}

static strata_status await_posted(const struct rank *self, const struct rank *other, const char *what)
{
    const uint64_t until_ns = st_clock_ns() + self->comm.deadline_ns;
    strata_status st = world_state(self, what);

    while (st == STRATA_OK && (other->peers == NULL || other->posted < self->posted))
        st = wait_change(self, until_ns, other->comm.world.rank, what);
    return st;
}

static strata_status compare(const struct rank *self, const struct rank *other)
{
    const struct st_comm_peer *mine = &self->peers[other->comm.world.rank], *theirs = &other->peers[self->comm.world.rank];
    const uint64_t sends = st_comm_bytes(theirs->send, theirs->send_count);
    const uint64_t awaits = st_comm_bytes(mine->recv, mine->recv_count);
    const uint32_t of = other->comm.world.rank, by = self->comm.world.rank;

    if (strcmp(other->what, self->what) != 0)
        return st_comm_elsewhere(of, other->what, by, self->what);
    return sends == awaits ? STRATA_OK : st_comm_sizes(of, sends, by, awaits, self->what);
}

/* Without the lock; the parts of both directions have equally many bytes. */
static void copy(const struct st_comm_peer *to, const struct st_comm_peer *from)
{
    struct st_comm_cursor out = st_comm_cursor_at(to->recv, to->recv_count), in = st_comm_cursor_at(from->send, from->send_count);
    uint64_t room, left;
    void *dst, *src;

    while ((src = st_comm_cursor_run(&in, &left)) != NULL && (dst = st_comm_cursor_run(&out, &room)) != NULL) {
        const uint64_t bytes = left < room ? left : room;

        memcpy(dst, src, bytes);
        st_comm_cursor_skip(&in, bytes);
        st_comm_cursor_skip(&out, bytes);
    }
}

static strata_status take(struct rank *self, struct rank *other)
{
    const struct st_comm_peer *to, *from;
    strata_status st = await_posted(self, other, self->what);

    if (st != STRATA_OK || (st = compare(self, other)) != STRATA_OK)
        return st;
    to = &self->peers[other->comm.world.rank];
    from = &other->peers[self->comm.world.rank];
    other->readers++;
    pthread_mutex_unlock(&self->shared->lock);
    copy(to, from);
    pthread_mutex_lock(&self->shared->lock);
    other->readers--;
    other->taken++;
    pthread_cond_broadcast(&self->shared->change);
    return STRATA_OK;
}

/* A rank that may be what the others wait for: one that has not come to this call, or else any. */
static uint32_t late_rank(const struct rank *self)
{
    const struct shared *shared = self->shared;

    for (uint32_t r = 0; r < shared->ranks; r++)
        if (shared->rank[r].posted < self->posted)
            return r;
    return self->comm.world.rank == 0;
}

/* Until all others have what they wanted of this rank. */
static strata_status await_taken(const struct rank *self)
{
    uint64_t until_ns = st_clock_ns() + self->comm.deadline_ns;
    strata_status st = STRATA_OK;

    while (st == STRATA_OK && self->taken < self->shared->ranks - 1) {
        const uint32_t taken = self->taken;

        st = wait_change(self, until_ns, late_rank(self), self->what);
        if (self->taken > taken)
            until_ns = st_clock_ns() + self->comm.deadline_ns;
    }
    return st;
}

static strata_status threads_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    struct rank *self = (struct rank *)comm;
    struct shared *shared = self->shared;
    strata_status st = STRATA_OK;

    pthread_mutex_lock(&shared->lock);
    self->peers = peers;
    self->what = what;
    self->posted++;
    self->taken = 0;
    pthread_cond_broadcast(&shared->change);
    for (uint32_t i = 1; i < shared->ranks && st == STRATA_OK; i++)
        st = take(self, &shared->rank[(comm->world.rank + i) % shared->ranks]);
    if (st == STRATA_OK)
        st = await_taken(self);
    if (st == STRATA_OK)
        self->ended = self->posted;
    self->peers = NULL; /* nobody begins to copy any more; after a failure some may not have ended */
    while (self->readers > 0)
        pthread_cond_wait(&shared->change, &shared->lock);
    pthread_mutex_unlock(&shared->lock);
    return st;
}

/* --- the table --- */

static void threads_abort(struct st_comm *comm, const char *sentence)
{
    struct rank *self = (struct rank *)comm;

    pthread_mutex_lock(&self->shared->lock);
    snprintf(self->sentence, sizeof(self->sentence), "%s", sentence);
    self->aborted = true;
    pthread_cond_broadcast(&self->shared->change);
    pthread_mutex_unlock(&self->shared->lock);
}

static void shared_free(struct shared *shared)
{
    pthread_cond_destroy(&shared->change);
    pthread_mutex_destroy(&shared->lock);
    free(shared);
}

/* The last one that closes frees all. */
static void threads_close(struct st_comm *comm)
{
    struct rank *self = (struct rank *)comm;
    struct shared *shared = self->shared;
    bool last;

    st_comm_fini(comm);
    pthread_mutex_lock(&shared->lock);
    self->closed = true;
    last = --shared->open == 0;
    pthread_cond_broadcast(&shared->change);
    pthread_mutex_unlock(&shared->lock);
    if (last)
        shared_free(shared);
}

static const struct st_comm_ops threads_ops = {
    .name = "threads",
    .exchange = threads_exchange,
    .abort = threads_abort,
    .close = threads_close,
};

strata_status st_comm_threads_open(struct st_comm **out, uint32_t ranks, uint64_t deadline_ns)
{
    struct shared *shared = calloc(1, sizeof(*shared) + ranks * sizeof(shared->rank[0]));
    strata_status st = STRATA_OK;

    if (shared == NULL)
        return st_nomem(sizeof(*shared) + ranks * sizeof(shared->rank[0]));
    pthread_mutex_init(&shared->lock, NULL);
    st_cond_init(&shared->change);
    shared->ranks = ranks;
    for (uint32_t r = 0; r < ranks && st == STRATA_OK; r++) {
        const struct st_world world = {.rank = r, .ranks = ranks, .local_rank = r, .local_ranks = ranks};

        shared->rank[r].shared = shared;
        if ((st = st_comm_init(&shared->rank[r].comm, &threads_ops, &world, deadline_ns)) == STRATA_OK)
            shared->open++;
    }
    if (st == STRATA_OK) {
        for (uint32_t r = 0; r < ranks; r++)
            out[r] = &shared->rank[r].comm;
        return STRATA_OK;
    }
    while (shared->open > 0)
        st_comm_fini(&shared->rank[--shared->open].comm);
    shared_free(shared);
    return st;
}
