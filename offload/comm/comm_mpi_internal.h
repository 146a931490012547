/* offload/comm/comm_mpi_internal.h - ranks that MPI has started: what goes between two of them, for comm_mpi*.c only.
 *
 * An exchange sends one message of MPI_HEAD_BYTES, the head, to each other rank: which exchange it is, its name, and how many
 * bytes go in either direction.  A stream that fits travels in the head; a longer one follows in chunks of a size that all ranks
 * know, MPI_WINDOW of them under way at a time.  Nothing of a rank's stream is received before its head was compared, so no
 * message is ever longer than the memory it is received in, and ranks that disagree say so. A chunk that lies in one part is sent
 * and received where it is; one that is scattered over parts goes through a buffer.
 *
 * A rank that gives up sends its sentence to all others, which wait for one at any time; after that MPI is not called again.
 *
 * Threads.  One thread exchanges; any may abort.  All calls of MPI happen under one lock, which is never held while a thread
 * naps. */
#ifndef OFFLOAD_COMM_COMM_MPI_INTERNAL_H
#define OFFLOAD_COMM_COMM_MPI_INTERNAL_H

#include "core/base/fault.h"
#include "offload/comm/comm_internal.h"
#include "offload/comm/comm_mpi.h"
#include "offload/comm/mpi_plugin.h"

#include <pthread.h>
#include <stdbool.h>

#define MPI_WINDOW     2u
#define MPI_HEAD_BYTES 4096u
#define MPI_WHAT_BYTES 72u

enum {
    MPI_SLOT_HEAD_OUT,
    MPI_SLOT_HEAD_IN,
    MPI_SLOT_WORD, /* in the own rank's row: whoever gives up; in the others': this rank's word to them */
    MPI_SLOT_OUT,
    MPI_SLOT_IN = MPI_SLOT_OUT + MPI_WINDOW,
    MPI_SLOTS = MPI_SLOT_IN + MPI_WINDOW
};

#define MPI_FAULT            INT32_MIN /* the error of a call that a test has refused */
#define MPI_PASS(site, call) (st_fault((site), 0) != 0 ? MPI_FAULT : (call))

struct mpi_head {
    uint64_t sequence;       /* of the exchange, from 1 */
    uint64_t sends, expects; /* bytes, to and from the receiver of this head */
    char what[MPI_WHAT_BYTES];
    unsigned char stream[MPI_HEAD_BYTES - 24 - MPI_WHAT_BYTES]; /* all of it, if it fits */
};
_Static_assert(sizeof(struct mpi_head) == MPI_HEAD_BYTES, "a head is one message");

struct mpi_word {
    uint32_t rank;
    int32_t status;
    char sentence[ST_MPI_TEXT_BYTES];
};

/* A piece of a stream under way. */
struct mpi_chunk {
    unsigned char *buffer; /* [chunk_bytes] */
    struct st_comm_cursor from;
    uint32_t bytes;
    bool staged; /* in the buffer */
};

struct mpi_stream {
    struct st_comm_cursor next; /* behind what is posted */
    uint64_t bytes, posted, done;
    struct mpi_chunk chunks[MPI_WINDOW];
};

struct mpi_peer {
    struct mpi_head *head_out, *head_in;
    bool busy[MPI_SLOTS];
    bool accepted; /* its head */
    struct mpi_stream out, in;
};

struct comm_mpi {
    struct st_comm base;
    const struct st_mpi_plugin *plugin;
    void *mpi;
    pthread_mutex_t lock; /* guards all below, and the calls of the plugin */
    bool told;            /* the others know of a failure, or one of them has told it */
    bool stuck; /* something of a failed exchange has not ended: to call MPI could write to memory that is the caller's again */
    uint64_t sequence;
    uint32_t chunk_bytes;
    uint32_t under_way; /* slots of an exchange that are busy */
    unsigned char *memory;
    struct mpi_peer *peers;   /* [ranks] */
    struct st_mpi_done *done; /* [MPI_SLOTS * ranks] */
    struct mpi_word word_in, word_out;
};

/* comm_mpi.c: the status of a call of MPI. */
strata_status st_mpi_status(const struct comm_mpi *m, int error, const char *what, uint32_t rank);

/* comm_mpi_exchange.c */
strata_status st_mpi_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what);
/* what MPI_END: by close; waits without a limit. */
#define MPI_END "the end"
/* Under the lock: ends what is under way; waits for a moment at most. */
void st_mpi_drop(struct comm_mpi *m);

/* comm_mpi_stream.c */
void st_mpi_stream_begin(struct mpi_stream *s, const struct st_comm_part *parts, uint32_t count);
/* The whole stream, to or from memory. */
void st_mpi_stream_take(struct mpi_stream *s, unsigned char *to);
void st_mpi_stream_put(struct mpi_stream *s, unsigned char *from);
/* The next chunk, and where it is to be sent from or received in. */
void *st_mpi_chunk_out(struct mpi_stream *s, struct mpi_chunk *chunk, uint32_t bytes_most);
void *st_mpi_chunk_in(struct mpi_stream *s, struct mpi_chunk *chunk, uint32_t bytes_most);
/* A received chunk goes where it belongs. */
void st_mpi_chunk_landed(const struct mpi_chunk *chunk);

/* mpi_find.c */
strata_status st_mpi_find(const struct st_mpi_plugin **out);

#endif
