/* comm_mpi.c - joining MPI's ranks, leaving them, and giving up.  See offload/comm/comm_mpi_internal.h. */
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "core/system/signals.h"
#include "offload/comm/comm_mpi_internal.h"
#include "offload/comm/nap.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MEMORY_MOST (UINT64_C(16) << 20) /* of all chunks together, as long as they have CHUNK_LEAST */
#define CHUNK_MOST  (1u << 20)
#define CHUNK_LEAST (16u << 10)
#define NS_PER_S    1000000000L
#define LOCK_NS     2000000000u /* after which a thread that holds the lock is stuck in MPI */
#define TELL_NS     500000000u  /* for a word to leave */
#define EXIT_CODE   4           /* of processes that MPI_Abort ends: STRATA_E_IO's */

static struct comm_mpi *mpi_of(struct st_comm *comm)
{
    return (struct comm_mpi *)(void *)comm;
}

strata_status st_mpi_status(const struct comm_mpi *m, int error, const char *what, uint32_t rank)
{
    char text[ST_MPI_TEXT_BYTES] = "a test refuses it";

    if (error != MPI_FAULT)
        m->plugin->error_text(error, text);
    if (rank == m->base.world.rank)
        return st_error(STRATA_E_IO, "mpi: MPI fails (during %s): %s", what, text);
    return st_error(STRATA_E_IO, "mpi: MPI fails with rank %u (during %s): %s", rank, what, text);
}

/* --- giving up --- */

/* Sends the word to all, and waits for it to leave: a message of this size does without its receiver. */
static void tell(struct comm_mpi *m, const char *sentence)
{
    const uint64_t until = st_clock_ns() + TELL_NS;
    uint32_t leaving = 0, count = 0;
    struct st_nap nap;

    m->word_out.rank = m->base.world.rank;
    m->word_out.status = (int32_t)m->base.status;
    snprintf(m->word_out.sentence, sizeof(m->word_out.sentence), "%s", sentence);
    for (uint32_t r = 0; r < m->base.world.ranks; r++)
        if (r != m->base.world.rank && MPI_PASS("mpi.send", m->plugin->send(m->mpi, r * MPI_SLOTS + MPI_SLOT_WORD, &m->word_out,
                                                                            sizeof(m->word_out), r, ST_MPI_TAG_WORD)) == 0)
            leaving++;
    st_nap_begin(&nap);
    while (leaving > 0 && !m->stuck && st_clock_ns() < until) {
        if (MPI_PASS("mpi.test", m->plugin->test(m->mpi, m->done, &count)) != 0)
            return;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t rank = m->done[i].slot / MPI_SLOTS, k = m->done[i].slot % MPI_SLOTS;

            m->under_way -= m->peers[rank].busy[k] && k != MPI_SLOT_WORD ? 1u : 0;
            m->peers[rank].busy[k] = false;
            leaving -= k == MPI_SLOT_WORD && rank != m->base.world.rank ? 1u : 0;
        }
        (void)st_nap(&nap);
    }
}

/* False: a thread has not come out of MPI for so long that it may never. */
static bool take_lock(struct comm_mpi *m)
{
    const uint64_t wait_ns = m->base.deadline_ns < LOCK_NS ? m->base.deadline_ns : LOCK_NS;
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until); /* the clock of mutexes */
    until.tv_nsec += (long)(wait_ns % NS_PER_S);
    until.tv_sec += (time_t)(wait_ns / NS_PER_S) + until.tv_nsec / NS_PER_S;
    until.tv_nsec %= NS_PER_S;
    return pthread_mutex_timedlock(&m->lock, &until) == 0;
}

static void mpi_abort(struct st_comm *comm, const char *sentence)
{
    struct comm_mpi *m = mpi_of(comm);

    if (!take_lock(m)) {
        st_log(ST_LOG_ERROR, "%s", sentence);
        st_log(ST_LOG_ERROR, "mpi: a call of MPI does not return: all ranks are ended by MPI_Abort");
        m->plugin->end(m->mpi, EXIT_CODE);
        return;
    }
    if (!m->told)
        tell(m, sentence);
    m->told = true;
    pthread_mutex_unlock(&m->lock);
}

/* --- open and close --- */

static void discard(struct comm_mpi *m)
{
    if (m->base.ops != NULL)
        st_comm_fini(&m->base);
    pthread_mutex_destroy(&m->lock);
    free(m->done);
    free(m->peers);
    free(m->memory);
    free(m);
}

/* The receive of a word ends, with nothing received. */
static bool withdraw(struct comm_mpi *m)
{
    bool *waits = &m->peers[m->base.world.rank].busy[MPI_SLOT_WORD];
    const uint64_t until = st_clock_ns() + TELL_NS;
    uint32_t count = 0;
    struct st_nap nap;

    if (m->plugin->cancel(m->mpi, m->base.world.rank * MPI_SLOTS + MPI_SLOT_WORD) != 0)
        return false;
    st_nap_begin(&nap);
    while (*waits && st_clock_ns() < until) {
        if (MPI_PASS("mpi.test", m->plugin->test(m->mpi, m->done, &count)) != 0)
            return false;
        *waits = count == 0;
        (void)st_nap(&nap);
    }
    return !*waits;
}

/* True: all ranks close, and nothing is under way. */
static bool part(struct comm_mpi *m)
{
    if (atomic_load(&m->base.failed))
        return false;
    for (uint32_t r = 0; r < m->base.world.ranks; r++)
        m->base.gather_peers[r] = (struct st_comm_peer){0};
    return st_mpi_exchange(&m->base, m->base.gather_peers, MPI_END) == STRATA_OK && withdraw(m);
}

static void mpi_close(struct st_comm *comm)
{
    struct comm_mpi *m = mpi_of(comm);
    const bool whole = part(m);

    if (st_fault("mpi.close", m->plugin->close(m->mpi, whole)) != 0)
        st_log(ST_LOG_WARN, "mpi: MPI does not end well");
    discard(m);
}

static const struct st_comm_ops comm_mpi_ops = {
    .name = "mpi",
    .exchange = st_mpi_exchange,
    .abort = mpi_abort,
    .close = mpi_close,
};

static uint32_t chunk_bytes_of(uint32_t ranks)
{
    uint32_t bytes = CHUNK_MOST;

    while (bytes > CHUNK_LEAST && 2ull * MPI_WINDOW * ranks * bytes > MEMORY_MOST)
        bytes /= 2;
    return bytes;
}

static strata_status allocate(struct comm_mpi *m)
{
    const uint64_t ranks = m->base.world.ranks;
    const uint64_t each = 2 * MPI_HEAD_BYTES + 2ull * MPI_WINDOW * (m->chunk_bytes = chunk_bytes_of((uint32_t)ranks));

    m->memory = st_fault("mpi.memory", 0) == 0 ? aligned_alloc(4096, ranks * each) : NULL;
    m->peers = calloc(ranks, sizeof(*m->peers));
    m->done = calloc(ranks * MPI_SLOTS, sizeof(*m->done));
    if (m->memory == NULL || m->peers == NULL || m->done == NULL)
        return st_nomem((ranks * each));
    for (uint64_t r = 0; r < ranks; r++) {
        unsigned char *at = m->memory + r * each;

        m->peers[r].head_out = (void *)at;
        m->peers[r].head_in = (void *)(at + MPI_HEAD_BYTES);
        at += 2 * MPI_HEAD_BYTES;
        for (uint32_t i = 0; i < MPI_WINDOW; i++) {
            m->peers[r].out.chunks[i].buffer = at + 2ull * i * m->chunk_bytes;
            m->peers[r].in.chunks[i].buffer = at + (2ull * i + 1) * m->chunk_bytes;
        }
    }
    return STRATA_OK;
}

static strata_status listen(struct comm_mpi *m)
{
    const uint32_t rank = m->base.world.rank;
    const int rc = MPI_PASS("mpi.receive", m->plugin->receive(m->mpi, rank * MPI_SLOTS + MPI_SLOT_WORD, &m->word_in,
                                                              sizeof(m->word_in), ST_MPI_ANY_RANK, ST_MPI_TAG_WORD));

    m->peers[rank].busy[MPI_SLOT_WORD] = rc == 0;
    return rc == 0 ? STRATA_OK : st_mpi_status(m, rc, "the start", rank);
}

/* MPI's own threads take no signals of the program's: it starts them here. */
static strata_status start(struct comm_mpi *m, struct st_mpi_world *world)
{
    sigset_t before;
    int rc;

    st_signals_block(&before);
    rc = MPI_PASS("mpi.open", m->plugin->open(&m->mpi, MPI_SLOTS, world));
    st_signals_restore(&before);
    if (rc != 0)
        return st_error(STRATA_E_IO, "mpi: MPI does not start (error %d): run under mpirun or srun, or use tcp", rc);
    world->library[ST_MPI_TEXT_BYTES - 1] = '\0';
    if (world->serialized == 0)
        return st_error(STRATA_E_NOSYS,
                        "mpi: %s has no MPI_THREAD_SERIALIZED support, which strata needs: use an MPI built with threads, or tcp",
                        world->library);
    if (world->ranks > ST_COMM_RANKS_MAX)
        return st_error(STRATA_E_CONFIG, "mpi: %u ranks are more than %u", world->ranks, ST_COMM_RANKS_MAX);
    return STRATA_OK;
}

static strata_status join(struct comm_mpi *m, const struct st_mpi_world *world, uint64_t deadline_ns)
{
    const struct st_world own = {world->rank, world->ranks, world->local_rank, world->local_ranks};
    strata_status st = st_comm_init(&m->base, &comm_mpi_ops, &own, deadline_ns);

    if (st != STRATA_OK) {
        m->base.ops = NULL; /* nothing to undo */
        return st;
    }
    st = allocate(m);
    return st == STRATA_OK ? listen(m) : st;
}

strata_status st_comm_mpi_open_over(struct st_comm **out, const struct st_mpi_plugin *plugin, uint64_t deadline_ns)
{
    struct comm_mpi *m = calloc(1, sizeof(*m));
    struct st_mpi_world world = {0};
    bool alone;
    strata_status st;

    if (m == NULL)
        return st_nomem(sizeof(*m));
    m->plugin = plugin;
    pthread_mutex_init(&m->lock, NULL);
    st = start(m, &world);
    alone = st == STRATA_OK && world.ranks == 1;
    if (st == STRATA_OK && !alone)
        st = join(m, &world, deadline_ns);
    if (st == STRATA_OK)
        *out = alone ? NULL : &m->base;
    if (st == STRATA_OK && !alone)
        return STRATA_OK;
    if (m->mpi != NULL)
        (void)plugin->close(m->mpi, alone); /* the launcher sees what was not ended */
    discard(m);
    return st;
}

strata_status st_comm_mpi_open(struct st_comm **out, uint64_t deadline_ns)
{
    const struct st_mpi_plugin *plugin = NULL;
    const strata_status st = st_mpi_find(&plugin);

    return st == STRATA_OK ? st_comm_mpi_open_over(out, plugin, deadline_ns) : st;
}
