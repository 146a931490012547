/* nvme/handle/io_handle.c - the public handle (strata/io.h): opening it, starting requests, and waiting for them.
 *
 * Any thread may call it; shared data is guarded by the handle's lock, which is held for a few instructions at a time.  Request
 * records are kept in chunks that never move; their number grows with the most requests ever outstanding. */
#include "nvme/handle/io_handle_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define DEPTH_DEFAULT     32u
#define BLOCK_DEFAULT     (1u << 20)
#define BOUNCE_BYTES_MAX  (1u << 20) /* largest piece that is copied */
#define SECONDS_UNLIMITED 1e9

bool st_handle_is_own(const struct strata_io *io)
{
    return getpid() == io->pid;
}

strata_status st_handle_check(const struct strata_io *io)
{
    if (io == NULL)
        return st_error(STRATA_E_INVAL, "io is NULL: strata_io_open() gives a handle");
    if (st_handle_is_own(io))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL,
                    "this I/O handle was opened by process %ld, where its thread runs: process %ld must open its own",
                    (long)io->pid, (long)getpid());
}

void st_handle_wait_ended(struct strata_io *io)
{
    io->waiters++;
    pthread_cond_wait(&io->ended, &io->lock);
    io->waiters--;
}

/* --- opening --- */

static strata_status check_opts(struct strata_io_opts *o, const struct strata_io_opts *opts)
{
    strata_status st;

    *o = (struct strata_io_opts){.opts_size = sizeof(*o)};
    if (opts != NULL) {
        if (opts->opts_size != sizeof(*o))
            return st_error(STRATA_E_INVAL, "io options: opts_size is %zu: set it to sizeof(struct strata_io_opts)",
                            opts->opts_size);
        memcpy(o, opts, sizeof(*o));
    }
    o->queue_depth = o->queue_depth == 0 ? DEPTH_DEFAULT : o->queue_depth;
    o->block_bytes = o->block_bytes == 0 ? BLOCK_DEFAULT : o->block_bytes;
    if (o->block_bytes % ST_IO_ALIGN != 0 || o->block_bytes > ST_IO_BYTES_MAX)
        return st_error(STRATA_E_INVAL, "io options: block_bytes is %" PRIu32 ": it must be a multiple of %u, at most %u",
                        o->block_bytes, ST_IO_ALIGN, ST_IO_BYTES_MAX);
    if ((st = st_io_check_threads(o->threads)) != STRATA_OK)
        return st;
    return st_io_check_depth(o->queue_depth);
}

/* Maps one bounce buffer per slot.  This reserves address space; memory is used when a buffer is first touched. */
static strata_status create_slots(struct strata_io *io)
{
    const uint32_t depth = io->thread.opts.queue_depth;
    const size_t bytes = (size_t)depth * io->bounce_bytes;
    strata_status st = st_io_alloc((void **)&io->slots, depth, sizeof(*io->slots));
    void *map;

    if (st != STRATA_OK)
        return st;
    map = st_fault_refuses("nvme.mmap")
              ? MAP_FAILED
              : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return st_error(STRATA_E_NOMEM, "%zu bytes for unaligned transfers could not be mapped: see ulimit -v", bytes);
    io->bounce = map;
    for (uint32_t i = 0; i < depth; i++) {
        io->slots[i].io = io;
        io->slots[i].req.done = st_handle_piece_done;
        io->slots[i].bounce = io->bounce + (size_t)i * io->bounce_bytes;
        io->slots[i].next = io->free_slots;
        io->free_slots = &io->slots[i];
    }
    return STRATA_OK;
}

static uint32_t chunk_records(uint32_t chunk)
{
    return ST_HANDLE_CHUNK_FIRST << chunk;
}

static void handle_free(struct strata_io *io)
{
    for (uint32_t k = 0; k < io->chunk_count; k++) {
        for (uint32_t i = 0; i < chunk_records(k); i++) {
            free(io->chunks[k][i].sentence);
            pthread_cond_destroy(&io->chunks[k][i].ended);
        }
        free(io->chunks[k]);
    }
    st_handle_free_buffers(io);
    st_arena_destroy(&io->region);
    if (io->bounce != NULL)
        munmap(io->bounce, (size_t)io->thread.opts.queue_depth * io->bounce_bytes);
    free(io->slots);
    pthread_cond_destroy(&io->ended);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

static strata_status start_best(struct strata_io *io, const char *method)
{
    strata_status st = st_io_thread_start(&io->thread);
    const struct st_io_ops *next;

    while (st != STRATA_OK && st_io_is_auto(method) && (next = st_io_next(io->thread.ops, st)) != NULL) {
        io->thread.ops = next;
        st = st_io_thread_start(&io->thread);
    }
    return st;
}

strata_status st_handle_open(struct strata_io **out, const struct strata_io_opts *opts, const struct st_io_opts *fake)
{
    struct strata_io_opts o;
    struct strata_io *io;
    strata_status st;

    if ((st = check_opts(&o, opts)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&io, 1, sizeof(*io))) != STRATA_OK)
        return st;
    pthread_mutex_init(&io->lock, NULL);
    st_cond_init(&io->ended);
    io->pid = getpid();
    io->block_bytes = o.block_bytes;
    io->bounce_bytes = o.block_bytes < BOUNCE_BYTES_MAX ? o.block_bytes : BOUNCE_BYTES_MAX;
    io->thread = (struct st_io_thread){.ops = st_io_find(o.method, NULL),
                                       .opts = fake != NULL ? *fake : (struct st_io_opts){0},
                                       .lock = &io->lock,
                                       .owner = io,
                                       .take = st_handle_take,
                                       .run = st_handle_run};
    io->thread.opts.queue_depth = o.queue_depth;
    io->thread.opts.start_in_reap = true; /* a reap() follows each submit() */
    io->thread.opts.threads = o.threads;
    if (io->thread.ops == NULL) {
        st = st_error(STRATA_E_INVAL, "io method \"%s\" is unknown: auto, uring, aio, threads", o.method);
        goto fail;
    }
    io->fake = strcmp(io->thread.ops->name, "fake") == 0;
    if ((st = create_slots(io)) != STRATA_OK)
        goto fail;
    if ((st = st_arena_create(&io->region, "I/O buffers", o.buffer_bytes, NULL)) != STRATA_OK)
        goto fail;
    io->thread.region = io->region.base;
    io->thread.region_bytes = io->region.bytes;
    if ((st = start_best(io, o.method)) != STRATA_OK)
        goto fail;
    *out = io;
    return STRATA_OK;

fail:
    handle_free(io);
    return st;
}

strata_status strata_io_open(struct strata_io **io, const struct strata_io_opts *opts)
{
    return io != NULL ? st_handle_open(io, opts, NULL) : st_error_missing(__func__, "io");
}

/* --- closing --- */

static void wait_idle(struct strata_io *io)
{
    pthread_mutex_lock(&io->lock);
    while (io->oldest != NULL)
        st_handle_wait_ended(io);
    pthread_mutex_unlock(&io->lock);
}

/* The earliest failure whose status was not taken; nothing runs any more. */
static strata_status untaken_failure(const struct strata_io *io)
{
    const struct st_hreq *first = NULL;

    for (uint32_t k = 0; k < io->chunk_count; k++)
        for (uint32_t i = 0; i < chunk_records(k); i++) {
            const struct st_hreq *req = &io->chunks[k][i];

            if (req->used && req->result.status != STRATA_OK && (first == NULL || req->sequence < first->sequence))
                first = req;
        }
    if (first != NULL)
        return st_error(first->result.status, "%s",
                        first->sentence != NULL ? first->sentence : strata_status_text(first->result.status));
    if (io->detached_status != STRATA_OK)
        return st_error(io->detached_status, "%s", io->detached_error);
    return STRATA_OK;
}

strata_status strata_io_close(struct strata_io *io)
{
    strata_status st, worst = STRATA_OK;

    if (io == NULL)
        return STRATA_OK;
    if ((st = st_handle_check(io)) != STRATA_OK)
        return st;
    wait_idle(io);
    while (io->files != NULL)
        if ((st = strata_io_close_file(io->files)) != STRATA_OK)
            worst = st;
    st_io_thread_stop(&io->thread);
    if ((st = untaken_failure(io)) != STRATA_OK)
        worst = st;
    handle_free(io);
    return worst;
}

/* --- the table of requests; lock held --- */

static bool grow(struct strata_io *io)
{
    const uint32_t count = chunk_records(io->chunk_count);
    struct st_hreq *chunk;

    if (io->chunk_count == ST_HANDLE_CHUNKS_MAX ||
        st_io_alloc((void **)&chunk, count, sizeof(*chunk)) != STRATA_OK)
        return false;
    for (uint32_t i = count; i-- > 0;) {
        chunk[i].index = io->record_count + i;
        chunk[i].generation = 1;
        st_cond_init(&chunk[i].ended);
        chunk[i].next = io->free_records;
        io->free_records = &chunk[i];
    }
    io->record_count += count;
    io->chunks[io->chunk_count++] = chunk;
    return true;
}

static struct st_hreq *take_record(struct strata_io *io)
{
    struct st_hreq *req;

    if (io->free_records == NULL && !grow(io))
        return NULL;
    req = io->free_records;
    io->free_records = req->next;
    return req;
}

void st_handle_give_record(struct strata_io *io, struct st_hreq *req)
{
    free(req->sentence);
    req->sentence = NULL;
    req->used = false;
    req->next = io->free_records;
    io->free_records = req;
}

static struct st_hreq *find(const struct strata_io *io, strata_io_request request)
{
    uint32_t index = (uint32_t)request.bits;
    const uint32_t generation = (uint32_t)(request.bits >> 32);

    if (index >= io->record_count)
        return NULL;
    for (uint32_t k = 0; k < io->chunk_count; index -= chunk_records(k), k++)
        if (index < chunk_records(k)) {
            struct st_hreq *req = &io->chunks[k][index];

            return req->used && !req->detached && req->generation == generation ? req : NULL;
        }
    return NULL;
}

static strata_status unknown_request(strata_io_request request)
{
    return st_error(STRATA_E_INVAL, "request %#" PRIx64 " is not in progress: its status was taken, or it was never started here",
                    request.bits);
}

/* --- starting --- */

static void fill(struct st_hreq *req, struct strata_io_file *file, enum st_io_op op, uint64_t offset, char *buf, uint64_t bytes)
{
    const struct st_hreq old = *req;

    /* Do not reinitialise the condition: other threads may still be leaving it. */
    req->used = req->going = true;
    req->cancel_asked = req->running = req->stopped = req->extends = req->pads = false;
    req->generation = old.generation + 1 == 0 ? 1 : old.generation + 1;
    req->next = req->next_cancel = NULL;
    req->result = (struct strata_io_result){.status = STRATA_OK};
    req->file = file;
    req->op = op;
    req->buf = buf;
    req->offset = req->at = offset;
    req->end = offset + bytes;
    req->start_ns = st_clock_ns();
    req->pieces = 0;
    req->bytes_moved = 0;
    req->status = STRATA_OK;
}

static void enqueue(struct strata_io *io, struct st_hreq *req)
{
    req->sequence = io->next_sequence++;
    req->older = io->youngest;
    req->younger = NULL;
    *(io->youngest != NULL ? &io->youngest->younger : &io->oldest) = req;
    io->youngest = req;
    req->file->outstanding++;
    io->counters.outstanding++;
    if (io->inbox.first == NULL)
        io->inbox.first = req;
    else
        io->inbox.last->next = req;
    io->inbox.last = req;
    st_io_thread_nudge(&io->thread);
}

static strata_status start(struct strata_io_file *file, enum st_io_op op, uint64_t offset, char *buf, uint64_t bytes,
                           strata_io_request *request)
{
    const char *verb = op == ST_IO_READ ? "read" : "write";
    struct st_hreq *req;
    struct strata_io *io;
    strata_status st;

    if (file == NULL)
        return st_error_missing(verb, "file");
    io = file->io;
    if ((st = st_handle_check(io)) != STRATA_OK)
        return st;
    if ((file->flags & (op == ST_IO_READ ? STRATA_IO_READ : STRATA_IO_WRITE)) == 0)
        return st_error(STRATA_E_INVAL, "%s: %s refused: the file was not opened for it", file->path, verb);
    if (offset > INT64_MAX - ST_IO_ALIGN || bytes > INT64_MAX - ST_IO_ALIGN - offset || (buf == NULL && bytes > 0))
        return st_error(STRATA_E_INVAL, "%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ": %s", file->path, verb, bytes, offset,
                        buf == NULL ? "no buffer" : "larger than any file can be");
    pthread_mutex_lock(&io->lock);
    if ((req = take_record(io)) == NULL) {
        pthread_mutex_unlock(&io->lock);
        return st_nomem(0);
    }
    fill(req, file, op, offset, buf, bytes);
    req->detached = request == NULL;
    if (request != NULL)
        request->bits = (uint64_t)req->generation << 32 | req->index;
    enqueue(io, req);
    pthread_mutex_unlock(&io->lock);
    return STRATA_OK;
}

strata_status strata_io_read(struct strata_io_file *file, uint64_t offset, void *buf, uint64_t bytes, strata_io_request *request)
{
    return start(file, ST_IO_READ, offset, buf, bytes, request);
}

strata_status strata_io_write(struct strata_io_file *file, uint64_t offset, const void *buf, uint64_t bytes,
                              strata_io_request *request)
{
    union {
        const void *in;
        char *out;
    } memory = {buf}; /* one record serves reads and writes; a write only reads from it */

    return start(file, ST_IO_WRITE, offset, memory.out, bytes, request);
}

/* --- waiting for requests --- */

/* The value of st_clock_ns() in `seconds` from now; 0: no limit. */
static uint64_t deadline_of(double seconds)
{
    return seconds >= 0 && seconds < SECONDS_UNLIMITED ? st_clock_ns() + (uint64_t)(seconds * 1e9) : 0;
}

static double age(const struct st_hreq *req)
{
    return (double)(st_clock_ns() - req->start_ns) * 1e-9;
}

/* Lock held; at least one request has not ended. */
static strata_status out_of_time(const struct strata_io *io, double seconds)
{
    const struct st_hreq *oldest = io->oldest;

    return st_error(STRATA_E_BUSY,
                    "not done within %.6g s; the oldest of %" PRIu64 " outstanding requests is a %s of %" PRIu64
                    " bytes at offset %" PRIu64 " of %s, %.3f s old",
                    seconds, io->counters.outstanding, oldest->op == ST_IO_READ ? "read" : "write", oldest->end - oldest->offset,
                    oldest->offset, oldest->file->path, age(oldest));
}

static void put_result(struct strata_io_result *result, const struct st_hreq *req)
{
    if (result == NULL)
        return;
    *result = req->result;
    if (req->going)
        *result = (struct strata_io_result){.status = STRATA_E_BUSY, .seconds = age(req)};
}

/* Lock held: the request has ended. */
static strata_status take(struct strata_io *io, struct st_hreq *req)
{
    strata_status st = req->result.status;

    if (st != STRATA_OK)
        st = st_error(st, "%s", req->sentence != NULL ? req->sentence : strata_status_text(st));
    st_handle_give_record(io, req);
    return st;
}

strata_status strata_io_wait(struct strata_io *io, strata_io_request request, double seconds, struct strata_io_result *result)
{
    const uint64_t deadline = deadline_of(seconds);
    bool late = seconds == 0;
    struct st_hreq *req;
    strata_status st = st_handle_check(io);

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&io->lock);
    while ((req = find(io, request)) != NULL && req->going && !late) {
        req->waiters++;
        late = !st_cond_wait(&req->ended, &io->lock, deadline);
        req->waiters--;
    }
    if (req != NULL)
        put_result(result, req);
    st = req == NULL ? unknown_request(request) : req->going ? out_of_time(io, seconds) : take(io, req);
    pthread_mutex_unlock(&io->lock);
    return st;
}

strata_status strata_io_poll(struct strata_io *io, strata_io_request request, struct strata_io_result *result)
{
    struct st_hreq *req;
    strata_status st = st_handle_check(io);

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&io->lock);
    req = find(io, request);
    if (req != NULL)
        put_result(result, req);
    st = req == NULL ? unknown_request(request) : req->going ? STRATA_E_BUSY : take(io, req);
    pthread_mutex_unlock(&io->lock);
    return st;
}

strata_status strata_io_cancel(struct strata_io *io, strata_io_request request)
{
    struct st_hreq *req;
    strata_status st = st_handle_check(io);

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&io->lock);
    req = find(io, request);
    if (req != NULL && req->going && !req->cancel_asked) {
        req->cancel_asked = true;
        req->next_cancel = io->cancels;
        io->cancels = req;
        st_io_thread_nudge(&io->thread);
    }
    pthread_mutex_unlock(&io->lock);
    return req != NULL ? STRATA_OK : unknown_request(request);
}

strata_status strata_io_wait_all(struct strata_io *io, double seconds)
{
    const uint64_t deadline = deadline_of(seconds);
    bool late = seconds == 0;
    uint64_t mark;
    strata_status st = st_handle_check(io);

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&io->lock);
    mark = io->next_sequence;
    while (io->oldest != NULL && io->oldest->sequence < mark && !late) {
        io->waiters++;
        late = !st_cond_wait(&io->ended, &io->lock, deadline);
        io->waiters--;
    }
    if (io->oldest != NULL && io->oldest->sequence < mark) {
        st = out_of_time(io, seconds);
    } else if (io->detached_status != STRATA_OK) {
        st = st_error(io->detached_status, "%s", io->detached_error);
        io->detached_status = STRATA_OK;
    }
    pthread_mutex_unlock(&io->lock);
    return st;
}

/* --- about the handle --- */

void strata_io_get_counters(struct strata_io *io, struct strata_io_counters *counters)
{
    if (counters == NULL)
        return;
    *counters = (struct strata_io_counters){0};
    if (io == NULL || !st_handle_is_own(io))
        return;
    pthread_mutex_lock(&io->lock);
    *counters = io->counters;
    pthread_mutex_unlock(&io->lock);
}

const char *strata_io_get_method(const struct strata_io *io)
{
    return io != NULL ? io->thread.ops->name : "";
}

bool strata_io_get_registered(const struct strata_io *io)
{
    return io != NULL && io->thread.registered;
}
