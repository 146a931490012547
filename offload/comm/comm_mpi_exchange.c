/* comm_mpi_exchange.c - one exchange over MPI: heads, chunks, waiting.  See offload/comm/comm_mpi_internal.h. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "offload/comm/comm_mpi_internal.h"
#include "offload/comm/nap.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define DROP_NS 50000000u /* for what is under way to end */

/* --- messages --- */

static uint32_t slot_of(uint32_t rank, uint32_t k)
{
    return rank * MPI_SLOTS + k;
}

static strata_status post(struct comm_mpi *m, uint32_t rank, uint32_t k, void *data, uint32_t bytes, const char *what)
{
    const bool is_send = k == MPI_SLOT_HEAD_OUT || (k >= MPI_SLOT_OUT && k < MPI_SLOT_IN);
    const uint32_t slot = slot_of(rank, k);
    const int rc = is_send ? MPI_PASS("mpi.send", m->plugin->send(m->mpi, slot, data, bytes, rank, ST_MPI_TAG_STREAM))
                           : MPI_PASS("mpi.receive", m->plugin->receive(m->mpi, slot, data, bytes, rank, ST_MPI_TAG_STREAM));

    if (rc != 0)
        return st_mpi_status(m, rc, what, rank);
    m->peers[rank].busy[k] = true;
    m->under_way++;
    return STRATA_OK;
}

static strata_status post_heads(struct comm_mpi *m, uint32_t rank, const struct st_comm_peer *peer, const char *what)
{
    struct mpi_peer *p = &m->peers[rank];
    strata_status st;

    st_mpi_stream_begin(&p->out, peer->send, peer->send_count);
    st_mpi_stream_begin(&p->in, peer->recv, peer->recv_count);
    p->accepted = false;
    memset(p->head_out, 0, sizeof(*p->head_out) - sizeof(p->head_out->stream));
    p->head_out->sequence = m->sequence;
    p->head_out->sends = p->out.bytes;
    p->head_out->expects = p->in.bytes;
    snprintf(p->head_out->what, MPI_WHAT_BYTES, "%s", what);
    if (p->out.bytes <= sizeof(p->head_out->stream))
        st_mpi_stream_take(&p->out, p->head_out->stream);
    st = post(m, rank, MPI_SLOT_HEAD_IN, p->head_in, MPI_HEAD_BYTES, what);
    return st == STRATA_OK ? post(m, rank, MPI_SLOT_HEAD_OUT, p->head_out, MPI_HEAD_BYTES, what) : st;
}

/* Chunks where there is room: of the stream out at once, of the stream in once the other rank's head agrees. */
static strata_status post_chunks(struct comm_mpi *m, uint32_t rank, const char *what)
{
    struct mpi_peer *p = &m->peers[rank];
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < MPI_WINDOW && st == STRATA_OK; i++) {
        struct mpi_chunk *out = &p->out.chunks[i], *in = &p->in.chunks[i];

        if (!p->busy[MPI_SLOT_OUT + i] && p->out.posted < p->out.bytes) {
            void *data = st_mpi_chunk_out(&p->out, out, m->chunk_bytes);

            st = post(m, rank, MPI_SLOT_OUT + i, data, out->bytes, what);
        }
        if (st == STRATA_OK && p->accepted && !p->busy[MPI_SLOT_IN + i] && p->in.posted < p->in.bytes) {
            void *data = st_mpi_chunk_in(&p->in, in, m->chunk_bytes);

            st = post(m, rank, MPI_SLOT_IN + i, data, in->bytes, what);
        }
    }
    return st;
}

/* --- what has come --- */

static strata_status accept_head(struct comm_mpi *m, uint32_t rank, uint32_t bytes, const char *what)
{
    struct mpi_peer *p = &m->peers[rank];
    struct mpi_head *in = p->head_in;
    const struct mpi_head *out = p->head_out;
    const uint32_t self = m->base.world.rank;

    if (bytes != MPI_HEAD_BYTES)
        return st_error(STRATA_E_IO, "mpi: %s: a message of rank %u has %u bytes, not %u: do all ranks run the same program?",
                        what, rank, bytes, MPI_HEAD_BYTES);
    in->what[MPI_WHAT_BYTES - 1] = '\0';
    if (strcmp(in->what, out->what) != 0)
        return strcmp(in->what, MPI_END) == 0 ? st_comm_gone(rank, what) : st_comm_elsewhere(rank, in->what, self, what);
    if (in->sequence != out->sequence)
        return st_error(STRATA_E_IO,
                        "rank %" PRIu32 " is at %s as its exchange %" PRIu64 ", rank %" PRIu32 " as its exchange %" PRIu64
                        ": they run different programs",
                        rank, what, in->sequence, self, out->sequence);
    if (in->sends != out->expects)
        return st_comm_sizes(rank, in->sends, self, out->expects, what);
    if (in->expects != out->sends)
        return st_comm_sizes(self, out->sends, rank, in->expects, what);
    p->accepted = true;
    if (p->in.bytes <= sizeof(in->stream))
        st_mpi_stream_put(&p->in, in->stream);
    return STRATA_OK;
}

static strata_status take_word(struct comm_mpi *m, const char *what)
{
    m->word_in.sentence[sizeof(m->word_in.sentence) - 1] = '\0';
    m->told = true;
    return st_comm_aborted(m->word_in.rank, m->base.world.rank, (strata_status)m->word_in.status, what, m->word_in.sentence);
}

static strata_status finish(struct comm_mpi *m, const struct st_mpi_done *done, const char *what)
{
    const uint32_t rank = done->slot / MPI_SLOTS, k = done->slot % MPI_SLOTS;
    struct mpi_peer *p = &m->peers[rank];

    p->busy[k] = false;
    if (done->error != 0)
        return st_mpi_status(m, done->error, what, rank);
    if (k == MPI_SLOT_WORD)
        return take_word(m, what);
    m->under_way--;
    if (k == MPI_SLOT_HEAD_IN)
        return accept_head(m, rank, done->bytes, what);
    if (k >= MPI_SLOT_IN) {
        const struct mpi_chunk *chunk = &p->in.chunks[k - MPI_SLOT_IN];

        if (done->bytes != chunk->bytes)
            return st_error(STRATA_E_IO, "mpi: %s: a message of rank %u has %u bytes, not %u", what, rank, done->bytes,
                            chunk->bytes);
        st_mpi_chunk_landed(chunk);
        p->in.done += chunk->bytes;
    } else if (k >= MPI_SLOT_OUT) {
        p->out.done += p->out.chunks[k - MPI_SLOT_OUT].bytes;
    }
    return STRATA_OK;
}

/* What MPI has done since, and what can follow it. */
static strata_status advance(struct comm_mpi *m, const char *what, bool *moved)
{
    uint32_t count = 0;
    const int rc = MPI_PASS("mpi.test", m->plugin->test(m->mpi, m->done, &count));
    strata_status st = rc != 0 ? st_mpi_status(m, rc, what, m->base.world.rank) : STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = finish(m, &m->done[i], what);
    for (uint32_t r = 0; r < m->base.world.ranks && st == STRATA_OK && count > 0; r++)
        if (r != m->base.world.rank)
            st = post_chunks(m, r, what);
    *moved = count > 0;
    return st;
}

/* --- waiting --- */

/* The rank to name when nothing is heard: the first one that has not come to this exchange, or else the first with bytes left. */
static uint32_t silent_rank(const struct comm_mpi *m)
{
    uint32_t slow = m->base.world.rank == 0;

    for (uint32_t r = m->base.world.ranks; r-- > 0;) {
        const struct mpi_peer *p = &m->peers[r];

        if (r != m->base.world.rank && (p->in.done < p->in.bytes || p->out.done < p->out.bytes))
            slow = r;
    }
    for (uint32_t r = m->base.world.ranks; r-- > 0;)
        if (r != m->base.world.rank && !m->peers[r].accepted)
            slow = r;
    return slow;
}

static strata_status begin(struct comm_mpi *m, const struct st_comm_peer *peers, const char *what)
{
    strata_status st = STRATA_OK;

    m->sequence++;
    for (uint32_t r = 0; r < m->base.world.ranks && st == STRATA_OK; r++)
        if (r != m->base.world.rank)
            st = post_heads(m, r, &peers[r], what);
    for (uint32_t r = 0; r < m->base.world.ranks && st == STRATA_OK; r++)
        if (r != m->base.world.rank)
            st = post_chunks(m, r, what);
    return st;
}

/* Naps without the lock, so that another thread can abort. */
static strata_status nap(struct comm_mpi *m, struct st_nap *idle, const char *what)
{
    uint64_t idle_ns;

    pthread_mutex_unlock(&m->lock);
    idle_ns = st_nap(idle);
    pthread_mutex_lock(&m->lock);
    if (atomic_load(&m->base.failed))
        return st_error(STRATA_E_IO, "%s", m->base.reason);
    if (idle_ns > m->base.deadline_ns && strcmp(what, MPI_END) != 0)
        return st_comm_silent(silent_rank(m), what, m->base.deadline_ns);
    return STRATA_OK;
}

strata_status st_mpi_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what)
{
    struct comm_mpi *m = (struct comm_mpi *)(void *)comm;
    struct st_nap idle;
    strata_status st;

    pthread_mutex_lock(&m->lock);
    st = begin(m, peers, what);
    st_nap_begin(&idle);
    while (st == STRATA_OK && m->under_way > 0) {
        bool moved = false;

        st = advance(m, what, &moved);
        if (moved)
            st_nap_begin(&idle);
        else if (st == STRATA_OK)
            st = nap(m, &idle, what);
    }
    if (st != STRATA_OK)
        st_mpi_drop(m);
    pthread_mutex_unlock(&m->lock);
    return st;
}

void st_mpi_drop(struct comm_mpi *m)
{
    const uint64_t until = st_clock_ns() + DROP_NS;
    struct st_nap idle;

    for (uint32_t r = 0; r < m->base.world.ranks; r++)
        for (uint32_t k = 0; k < MPI_SLOTS; k++)
            if (m->peers[r].busy[k] && (k == MPI_SLOT_HEAD_IN || k >= MPI_SLOT_IN))
                (void)m->plugin->cancel(m->mpi, slot_of(r, k));
    st_nap_begin(&idle);
    m->stuck = true;
    while (m->under_way > 0 && st_clock_ns() < until) {
        uint32_t count = 0;

        if (MPI_PASS("mpi.test", m->plugin->test(m->mpi, m->done, &count)) != 0)
            return;
        for (uint32_t i = 0; i < count; i++) {
            const uint32_t k = m->done[i].slot % MPI_SLOTS;

            m->peers[m->done[i].slot / MPI_SLOTS].busy[k] = false;
            if (k == MPI_SLOT_WORD)
                m->told = true;
            else
                m->under_way--;
        }
        (void)st_nap(&idle);
    }
    m->stuck = m->under_way > 0;
}
