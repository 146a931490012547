/* bench/io/io_load.c - the calling thread keeps each directory's queue full: a request's done() issues the next one with its
 * buffer.
 *
 * Sequential patterns go through a file from beginning to end, again and again; a mix reads from the start and writes from the
 * middle, choosing either with probability 1/2 for each request.  `optimizer` is the update's pattern: extents of EXTENT_BYTES
 * are read in order and written back two extents behind, with reads and writes alternating. */
#include "bench/io/io_load.h"
#include "core/base/error.h"
#include "core/base/rng.h"
#include "core/system/clock.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define EXTENT_BYTES   (UINT64_C(40) << 20) /* low half and both moments of a chunk of 4 Mi parameters */
#define EXTENTS_BEHIND 2u

const char *const io_pattern_names[IO_PATTERNS] = {
    [IO_READ] = "read",           [IO_WRITE] = "write",         [IO_RW] = "rw",
    [IO_RANDREAD] = "randread",   [IO_RANDWRITE] = "randwrite", [IO_RANDRW] = "randrw",
    [IO_OPTIMIZER] = "optimizer",
};

/* The position of a directory's next request. */
struct stream {
    uint64_t issued, reads, writes; /* requests */
};

struct load;

struct slot {
    struct st_io_req req; /* first member: done() casts it to the slot */
    struct load *load;
    uint32_t dir;
    uint64_t start_ns;
};

struct load {
    const struct io_case *c;
    const struct st_io_ops *ops;
    struct st_io *io;
    struct st_latency *latency;   /* may be NULL */
    uint64_t block_count, behind; /* blocks of a file; of the write stream behind the read stream */
    uint64_t end_ns;
    struct stream streams[IO_DIRS_MAX];
    struct slot *slots;
    uint32_t slot_count, in_flight;
    struct io_sample sum;
    strata_status status; /* first failure */
    char error[1024];
};

/* --- which block comes next --- */

static uint64_t random_of(const struct load *l, uint32_t dir, uint64_t index)
{
    return st_rng_u64(2 + dir, l->c->pattern, index);
}

static enum st_io_op next_op(const struct load *l, uint32_t dir, uint64_t index)
{
    switch (l->c->pattern) {
    case IO_WRITE:
    case IO_RANDWRITE:
        return ST_IO_WRITE;
    case IO_RW:
    case IO_RANDRW:
        return (random_of(l, dir, index) & 1) != 0 ? ST_IO_WRITE : ST_IO_READ;
    case IO_OPTIMIZER:
        return index % 2 == 0 ? ST_IO_READ : ST_IO_WRITE;
    case IO_READ:
    case IO_RANDREAD:
    case IO_PATTERNS:
        break;
    }
    return ST_IO_READ;
}

static uint64_t next_block(const struct load *l, uint32_t dir, enum st_io_op op, const struct stream *s)
{
    const uint64_t at = op == ST_IO_READ ? s->reads : s->writes;

    switch (l->c->pattern) {
    case IO_RANDREAD:
    case IO_RANDWRITE:
    case IO_RANDRW:
        return (random_of(l, dir, s->issued) >> 1) % l->block_count;
    case IO_RW:
        return (op == ST_IO_READ ? at : at + l->block_count / 2) % l->block_count;
    case IO_OPTIMIZER:
        return (op == ST_IO_READ ? at + l->behind : at) % l->block_count;
    case IO_READ:
    case IO_WRITE:
    case IO_PATTERNS:
        break;
    }
    return at % l->block_count;
}

static void aim(struct slot *slot, uint64_t now_ns)
{
    struct load *l = slot->load;
    struct stream *s = &l->streams[slot->dir];

    slot->req.op = next_op(l, slot->dir, s->issued);
    slot->req.offset = next_block(l, slot->dir, slot->req.op, s) * l->c->block_bytes;
    slot->start_ns = now_ns;
    s->issued++;
    *(slot->req.op == ST_IO_READ ? &s->reads : &s->writes) += 1;
}

/* --- running --- */

static void fail(struct load *l, strata_status st)
{
    if (l->status != STRATA_OK)
        return;
    l->status = st;
    strncpy(l->error, strata_last_error(), sizeof(l->error) - 1);
}

static void count(struct slot *slot, uint64_t now_ns)
{
    struct load *l = slot->load;

    *(slot->req.op == ST_IO_READ ? &l->sum.bytes_read : &l->sum.bytes_written) += slot->req.bytes;
    l->sum.ops++;
    if (l->latency != NULL)
        st_latency_add(l->latency, now_ns - slot->start_ns);
}

static void slot_done(struct st_io_req *req, strata_status st)
{
    struct slot *slot = (struct slot *)(void *)req;
    struct load *l = slot->load;
    const uint64_t now_ns = st_clock_ns();

    l->in_flight--;
    if (st == STRATA_OK)
        count(slot, now_ns);
    else
        fail(l, st);
    if (now_ns >= l->end_ns || l->status != STRATA_OK)
        return;
    aim(slot, now_ns);
    st = l->ops->submit(l->io, &(struct st_io_req *){req}, 1);
    if (st == STRATA_OK)
        l->in_flight++;
    else
        fail(l, st);
}

static strata_status start(struct load *l, const struct io_files *files, const struct st_arena *buffers)
{
    struct st_io_req **all;
    strata_status st;

    l->slots = calloc(l->slot_count, sizeof(*l->slots));
    all = calloc(l->slot_count, sizeof(struct st_io_req *));
    if (l->slots == NULL || all == NULL) {
        free(all);
        return st_nomem(0);
    }
    for (uint32_t i = 0; i < l->slot_count; i++) {
        struct slot *slot = &l->slots[i];

        slot->load = l;
        slot->dir = i % files->count;
        slot->req = (struct st_io_req){.file = slot->dir,
                                       .bytes = l->c->block_bytes,
                                       .buf = buffers->base + (uint64_t)i * l->c->block_bytes,
                                       .done = slot_done};
        aim(slot, st_clock_ns());
        all[i] = &slot->req;
    }
    l->in_flight = l->slot_count;
    st = l->ops->submit(l->io, all, l->slot_count);
    if (st != STRATA_OK)
        l->in_flight = 0;
    free(all);
    return st;
}

static double seconds_of(struct timeval t)
{
    return (double)t.tv_sec + (double)t.tv_usec * 1e-6;
}

/* Processor time of the process, which includes threads of the method and kernel threads that work for it. */
static void cpu_seconds(double *user, double *sys)
{
    struct rusage usage;

    getrusage(RUSAGE_SELF, &usage);
    *user = seconds_of(usage.ru_utime);
    *sys = seconds_of(usage.ru_stime);
}

/* The last done() of a burst may have found that the time is over: then nothing is in flight, and reap() has nothing to wait
 * for. */
static strata_status drive(struct load *l, const struct io_files *files, const struct st_arena *buffers, double seconds)
{
    double user, sys;
    uint64_t begin_ns;
    strata_status st;

    cpu_seconds(&user, &sys);
    begin_ns = st_clock_ns();
    l->end_ns = begin_ns + (uint64_t)(seconds * 1e9);
    st = start(l, files, buffers);
    while (st == STRATA_OK && l->in_flight > 0)
        st = l->ops->reap(l->io, UINT32_MAX);
    if (st != STRATA_OK)
        return st;
    l->sum.seconds = (double)(st_clock_ns() - begin_ns) * 1e-9;
    cpu_seconds(&l->sum.user_seconds, &l->sum.sys_seconds);
    l->sum.user_seconds -= user;
    l->sum.sys_seconds -= sys;
    return l->status == STRATA_OK ? STRATA_OK : st_error(l->status, "%s", l->error);
}

static strata_status open_io(struct load *l, const struct io_files *files, const struct st_arena *buffers)
{
    const struct st_io_opts opts = {.queue_depth = l->slot_count,
                                    .unregistered = l->c->unregistered,
                                    .poll_device = l->c->poll_device,
                                    .poll_kernel = l->c->poll_kernel};
    strata_status st = l->ops->open(&l->io, &opts);

    if (st == STRATA_E_NOMEM) /* of what a user may lock, say: fewer requests may work */
        return STRATA_E_NOSYS;
    for (uint32_t i = 0; i < files->count && st == STRATA_OK; i++) {
        uint32_t index;

        st = l->ops->add_file(l->io, files->fds[i], files->bytes, &index);
    }
    if (st == STRATA_OK && l->ops->register_region != NULL && !l->c->unregistered)
        l->sum.registered =
            l->ops->register_region(l->io, buffers->base, (uint64_t)l->slot_count * l->c->block_bytes) == STRATA_OK;
    return st;
}

strata_status io_run(struct io_sample *out, struct st_latency *latency, const struct io_files *files, const struct io_case *c,
                     const struct st_arena *buffers, double seconds)
{
    struct load l = {.c = c, .ops = c->method, .latency = latency};
    const uint64_t extent = EXTENT_BYTES / c->block_bytes > 0 ? EXTENT_BYTES / c->block_bytes : 1;
    strata_status st;

    l.slot_count = c->queue_depth * files->count;
    l.block_count = files->bytes / c->block_bytes;
    l.behind = EXTENTS_BEHIND * extent < l.block_count ? EXTENTS_BEHIND * extent : l.block_count / 2;
    assert(l.block_count > 0 && (uint64_t)l.slot_count * c->block_bytes <= buffers->bytes);
    st = open_io(&l, files, buffers);
    if (st == STRATA_OK)
        st = drive(&l, files, buffers, seconds);
    if (l.io != NULL)
        l.ops->close(l.io);
    free(l.slots);
    if (st == STRATA_OK)
        *out = l.sum;
    return st;
}
