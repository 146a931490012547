/* offload/comm/comm_shared.h - bytes between two processes of one node, through memory that both see.
 *
 * A pair has one memory with a ring for each direction; it has no name, so that nothing is left when processes die.  One thread
 * of one process writes a ring, one of the other one reads it.  Who finds it full or empty says so by st_ring_wait_room() and is
 * woken by other means: write and read tell when that is due. */
#ifndef OFFLOAD_COMM_COMM_SHARED_H
#define OFFLOAD_COMM_COMM_SHARED_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define ST_RING_BYTES (UINT64_C(1) << 20) /* of each direction; larger ones leave the caches */

/* In the shared memory; each member on its own cache line. */
struct st_ring_shared {
    _Alignas(64) _Atomic uint64_t head; /* bytes written ever; the writer's */
    _Alignas(64) _Atomic uint64_t tail; /* bytes read ever; the reader's */
    _Alignas(64) atomic_bool reader_waits;
    _Alignas(64) atomic_bool writer_waits;
    _Alignas(64) uint8_t data[ST_RING_BYTES];
};

/* One end of one ring. */
struct st_ring {
    struct st_ring_shared *shared;
    uint64_t at; /* own bytes ever; what the other process writes is believed only where it can be */
};

struct st_ring_pair {
    struct st_ring out, in;
    struct st_ring_shared *memory; /* [2]; NULL: none */
};

/** New memory: *fd is to be handed to the other process, and closed.  Negative errno. */
int st_ring_create(struct st_ring_pair *pair, int *fd);
/** The other end of it.  -EPROTO: the descriptor is none of such memory.  The descriptor stays the caller's. */
int st_ring_attach(struct st_ring_pair *pair, int fd);
void st_ring_detach(struct st_ring_pair *pair); /* of one without memory: nothing */

/** As many bytes as there is room for, or are there: a count, -EAGAIN, or -EPROTO where the other process has spoilt it.  *wake:
 * the other one waits for this. */
int64_t st_ring_write(struct st_ring *ring, const struct iovec *parts, uint32_t count, bool *wake);
int64_t st_ring_read(struct st_ring *ring, const struct iovec *parts, uint32_t count, bool *wake);

/** Says that this end waits; false: there is room, or are bytes, already. */
bool st_ring_wait_room(struct st_ring *ring);
bool st_ring_wait_bytes(struct st_ring *ring);

#endif
