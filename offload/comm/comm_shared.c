/* offload/comm/comm_shared.c - see comm_shared.h.
 *
 * head and tail only grow.  The writer's store of head (release) pairs with the reader's load of it (acquire), and so do the
 * reader's of tail and the writer's load.  A waiter stores its flag, then looks again; the other one stores its index, then looks
 * at the flag; the fences between make one of the two see the other's store, so that no wake is lost. */
#include "offload/comm/comm_shared.h"

#include "core/base/fault.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE  (UINT64_C(64) << 10) /* bytes after which the other side may go on */
#define MEMORY (2 * sizeof(struct st_ring_shared))
#define SEALS  (F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL)

static int map(struct st_ring_pair *pair, int fd, uint32_t first)
{
    const int flags = MAP_SHARED | MAP_POPULATE; /* no exchange meets memory that is new */
    void *memory = st_fault_refuses("comm.map") ? MAP_FAILED : mmap(NULL, MEMORY, PROT_READ | PROT_WRITE, flags, fd, 0);

    if (memory == MAP_FAILED)
        return -errno;
    pair->memory = memory;
    pair->out = (struct st_ring){.shared = &pair->memory[first]};
    pair->in = (struct st_ring){.shared = &pair->memory[1 - first]};
    return 0;
}

int st_ring_create(struct st_ring_pair *pair, int *fd)
{
    int err;

    *fd = st_fault_refuses("comm.memory") ? -1 : memfd_create("strata-ranks", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (*fd < 0)
        return -errno;
    if (ftruncate(*fd, MEMORY) == 0 && fcntl(*fd, F_ADD_SEALS, SEALS) == 0)
        err = map(pair, *fd, 0);
    else
        err = -errno;
    if (err == 0)
        return 0;
    close(*fd);
    *fd = -1;
    return err;
}

int st_ring_attach(struct st_ring_pair *pair, int fd)
{
    struct stat stat;

    if (st_fault_refuses("comm.memory") || fstat(fd, &stat) != 0)
        return -errno;
    if ((uint64_t)stat.st_size != MEMORY || fcntl(fd, F_GET_SEALS) != SEALS) /* one that shrinks would end this process */
        return -EPROTO;
    return map(pair, fd, 1);
}

void st_ring_detach(struct st_ring_pair *pair)
{
    if (pair->memory != NULL)
        (void)munmap(pair->memory, MEMORY);
    pair->memory = NULL;
}

/* Copies between the ring, from place `at` on, and a part; both have that many bytes. */
static void copy(struct st_ring_shared *shared, uint64_t at, void *part, uint64_t bytes, bool into)
{
    const uint64_t from = at % ST_RING_BYTES;
    const uint64_t first = bytes < ST_RING_BYTES - from ? bytes : ST_RING_BYTES - from;

    if (into) {
        memcpy(shared->data + from, part, first);
        memcpy(shared->data, (uint8_t *)part + first, bytes - first);
    } else {
        memcpy(part, shared->data + from, first);
        memcpy((uint8_t *)part + first, shared->data, bytes - first);
    }
}

/* Whether the other end has gone to sleep, and is to be woken. */
static bool take_waiter(atomic_bool *waits)
{
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(waits, memory_order_relaxed) && atomic_exchange_explicit(waits, false, memory_order_relaxed);
}

static bool room_of(const struct st_ring *ring, uint64_t *room)
{
    const uint64_t used = ring->at - atomic_load_explicit(&ring->shared->tail, memory_order_acquire);

    *room = ST_RING_BYTES - used;
    return used <= ST_RING_BYTES;
}

static bool bytes_of(const struct st_ring *ring, uint64_t *bytes)
{
    *bytes = atomic_load_explicit(&ring->shared->head, memory_order_acquire) - ring->at;
    return *bytes <= ST_RING_BYTES;
}

/* Moves what it can; the two directions differ in whose index is looked at and whose is moved. */
static int64_t transfer(struct st_ring *ring, const struct iovec *parts, uint32_t count, bool into, bool *wake)
{
    _Atomic uint64_t *own = into ? &ring->shared->head : &ring->shared->tail;
    atomic_bool *waits = into ? &ring->shared->reader_waits : &ring->shared->writer_waits;
    uint64_t done = 0;

    *wake = false;
    for (uint32_t i = 0; i < count; i++)
        for (uint64_t at = 0; at < parts[i].iov_len;) {
            const uint64_t left = parts[i].iov_len - at, piece = left < PIECE ? left : PIECE;
            uint64_t can;

            if (!(into ? room_of(ring, &can) : bytes_of(ring, &can)))
                return -EPROTO;
            can = can < piece ? can : piece;
            if (can == 0)
                return done > 0 ? (int64_t)done : -EAGAIN;
            copy(ring->shared, ring->at, (uint8_t *)parts[i].iov_base + at, can, into);
            ring->at += can;
            atomic_store_explicit(own, ring->at, memory_order_release);
            *wake = take_waiter(waits) || *wake;
            at += can;
            done += can;
        }
    return (int64_t)done;
}

int64_t st_ring_write(struct st_ring *ring, const struct iovec *parts, uint32_t count, bool *wake)
{
    return transfer(ring, parts, count, true, wake);
}

int64_t st_ring_read(struct st_ring *ring, const struct iovec *parts, uint32_t count, bool *wake)
{
    return transfer(ring, parts, count, false, wake);
}

/* Where the ring is spoilt there is nothing to wait for: the next transfer says so. */
bool st_ring_wait_room(struct st_ring *ring)
{
    uint64_t room;

    atomic_store_explicit(&ring->shared->writer_waits, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    return room_of(ring, &room) && room == 0;
}

bool st_ring_wait_bytes(struct st_ring *ring)
{
    uint64_t bytes;

    atomic_store_explicit(&ring->shared->reader_waits, true, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    return bytes_of(ring, &bytes) && bytes == 0;
}
