/* nvme/handle/io_handle.c - the public handle (strata/io.h): opening it, starting requests, and waiting for them.
 *
 * Any thread may call it; shared data is guarded by the handle's lock, which is held for a few instructions at a time.  Request
 * records never move; their number grows with the most requests ever outstanding. */
#include "nvme/handle/io_handle_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <assert.h>
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

bool st_handle_wait_ended(struct strata_io *io, uint64_t deadline_ns)
{
    bool in_time;

    io->waiters++;
    in_time = st_cond_wait(&io->ended, &io->lock, deadline_ns);
    io->waiters--;
    return in_time;
}

void st_handle_submit(struct strata_io *io, struct st_transfer *transfer)
{
    const strata_status st = st_mover_submit(io->mover, transfer);

    assert(st == STRATA_OK); /* the volume is there, and takes any range */
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

/* Maps as many bounce buffers as fill the queue.  This reserves address space; memory is used when a buffer is first touched. */
static strata_status create_bounces(struct strata_io *io)
{
    const size_t bytes = (size_t)io->queue_depth * io->bounce_bytes;
    strata_status st = st_io_alloc((void **)&io->bounces, io->queue_depth, sizeof(*io->bounces));
    void *map;

    if (st != STRATA_OK)
        return st;
    map = st_fault_refuses("nvme.mmap")
              ? MAP_FAILED
              : mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED)
        return st_error(STRATA_E_NOMEM, "%zu bytes for unaligned transfers could not be mapped: see ulimit -v", bytes);
    io->bounce_memory = map;
    for (uint32_t i = 0; i < io->queue_depth; i++) {
        struct st_hbounce *bounce = &io->bounces[i];

        bounce->memory = io->bounce_memory + (size_t)i * io->bounce_bytes;
        bounce->transfer = (struct st_transfer){.buf = bounce->memory, .done = st_handle_bounce_done, .owner = bounce};
        bounce->next = io->free_bounces;
        io->free_bounces = bounce;
    }
    return STRATA_OK;
}

static void handle_free(struct strata_io *io)
{
    for (uint32_t i = 0; i < io->record_count; i++) {
        free(io->records[i]->sentence);
        pthread_cond_destroy(&io->records[i]->ended);
        free(io->records[i]);
    }
    free(io->records);
    st_handle_free_buffers(io);
    st_arena_destroy(&io->region);
    if (io->bounce_memory != NULL)
        munmap(io->bounce_memory, (size_t)io->queue_depth * io->bounce_bytes);
    free(io->bounces);
    if (io->event_fd >= 0)
        close(io->event_fd);
    pthread_cond_destroy(&io->ended);
    pthread_mutex_destroy(&io->lock);
    free(io);
}

/* Where "auto" may choose, the next method is tried. */
static strata_status start_mover(struct strata_io *io, const struct strata_io_opts *o, const struct st_io_opts *fake)
{
    struct st_mover_opts opts = {.ops = io->ops,
                                 .io = fake != NULL ? *fake : (struct st_io_opts){0},
                                 .drive_count = 1,
                                 .block_bytes = o->block_bytes,
                                 .region = io->region.base,
                                 .region_bytes = io->region.bytes,
                                 .patience = {.report_ns = UINT64_MAX}}; /* strata_io_wait() says what takes long */
    strata_status st;

    opts.io.queue_depth = o->queue_depth;
    opts.io.start_in_reap = true; /* a reap() follows each submit() */
    opts.io.threads = o->threads;
    opts.io.files = ST_IO_FILES_MAX;
    st = st_mover_start(&io->mover, &opts, &io->registered);
    while (st != STRATA_OK && st_io_is_auto(o->method) && (opts.ops = st_io_next(opts.ops, st)) != NULL)
        st = st_mover_start(&io->mover, &opts, &io->registered);
    io->ops = opts.ops;
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
    io->event_fd = -1;
    io->queue_depth = o.queue_depth;
    io->turn_bytes = (uint64_t)o.queue_depth * o.block_bytes;
    io->bounce_bytes = o.block_bytes < BOUNCE_BYTES_MAX ? o.block_bytes : BOUNCE_BYTES_MAX;
    if ((io->ops = st_io_find(o.method, NULL)) == NULL) {
        st = st_error(STRATA_E_INVAL, "io method \"%s\" is unknown: auto, uring, aio, threads", o.method);
        goto fail;
    }
    if ((st = create_bounces(io)) != STRATA_OK ||
        (st = st_arena_create(&io->region, "I/O buffers", o.buffer_bytes, NULL)) != STRATA_OK ||
        (st = start_mover(io, &o, fake)) != STRATA_OK)
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
        (void)st_handle_wait_ended(io, 0);
    pthread_mutex_unlock(&io->lock);
}

/* With its sentence. */
static strata_status status_of(const struct st_hreq *req)
{
    const strata_status st = req->result.status;

    return st == STRATA_OK ? st : st_error(st, "%s", req->sentence != NULL ? req->sentence : strata_status_text(st));
}

/* The earliest failure whose status was not taken; nothing runs any more. */
static strata_status untaken_failure(const struct strata_io *io)
{
    const struct st_hreq *first = NULL;

    for (uint32_t i = 0; i < io->record_count; i++) {
        const struct st_hreq *req = io->records[i];

        if (req->used && req->result.status != STRATA_OK && (first == NULL || req->sequence < first->sequence))
            first = req;
    }
    return first != NULL ? status_of(first) : STRATA_OK;
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
    st_mover_stop(io->mover);
    if ((st = untaken_failure(io)) != STRATA_OK)
        worst = st;
    handle_free(io);
    return worst;
}

/* --- the table of requests; lock held --- */

static bool grow(struct strata_io *io)
{
    const uint32_t room = io->record_room > 0 ? 2 * io->record_room : 256;
    struct st_hreq **more;

    if (io->record_count < io->record_room)
        return true;
    if (st_io_alloc((void **)&more, room, sizeof(struct st_hreq *)) != STRATA_OK)
        return false;
    for (uint32_t i = 0; i < io->record_count; i++)
        more[i] = io->records[i];
    free(io->records);
    io->records = more;
    io->record_room = room;
    return true;
}

static struct st_hreq *take_record(struct strata_io *io)
{
    struct st_hreq *req = io->free_records;

    if (req != NULL) {
        io->free_records = req->next;
        return req;
    }
    if (!grow(io) || st_io_alloc((void **)&req, 1, sizeof(*req)) != STRATA_OK)
        return NULL;
    st_cond_init(&req->ended);
    req->in_place[0].owner = req->in_place[1].owner = req->cancel.owner = req;
    req->cancel.done = st_handle_cancel_arrived;
    req->index = io->record_count;
    io->records[io->record_count++] = req;
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
    const uint32_t index = (uint32_t)request.bits, generation = (uint32_t)(request.bits >> 32);
    struct st_hreq *req = index < io->record_count ? io->records[index] : NULL;

    return req != NULL && req->used && !req->detached && req->generation == generation ? req : NULL;
}

static strata_status unknown_request(strata_io_request request)
{
    return st_error(STRATA_E_INVAL, "request %#" PRIx64 " is not in progress: its status was taken, or it was never started here",
                    request.bits);
}

/* --- starting --- */

static void fill(struct st_hreq *req, const struct strata_io_transfer *t)
{
    /* Do not reinitialise the condition: other threads may still be leaving it. */
    req->used = req->going = true;
    req->cancel_asked = req->running = req->stopped = req->over = req->cancel_came = false;
    req->generation = req->generation + 1 == 0 ? 1 : req->generation + 1;
    req->result = (struct strata_io_result){.status = STRATA_OK};
    req->file = t->file;
    req->op = t->write ? ST_IO_WRITE : ST_IO_READ;
    req->buf = t->buf;
    req->offset = req->at = t->offset;
    req->end = t->offset + t->bytes;
    req->start_ns = st_clock_ns();
    req->parts = 0;
    req->in_place[0].op = req->in_place[1].op = req->cancel.op = req->op;
    req->in_place[0].volume = req->in_place[1].volume = req->cancel.volume = t->file->volume;
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
    if (io->arriving)
        return;
    io->arriving = true;
    req->in_place[0].done = st_handle_arrived;
    st_handle_submit(io, &req->in_place[0]);
}

static strata_status check_transfer(const struct strata_io *io, const struct strata_io_transfer *t)
{
    const char *verb = t->write ? "write" : "read";

    if (t->file->io != io)
        return st_error(STRATA_E_INVAL, "%s: %s refused: the file was opened in another handle", t->file->path, verb);
    if ((t->file->flags & (t->write ? STRATA_IO_WRITE : STRATA_IO_READ)) == 0)
        return st_error(STRATA_E_INVAL, "%s: %s refused: the file was not opened for it", t->file->path, verb);
    if (t->offset > INT64_MAX - ST_IO_ALIGN || t->bytes > INT64_MAX - ST_IO_ALIGN - t->offset || (t->buf == NULL && t->bytes > 0))
        return st_error(STRATA_E_INVAL, "%s: %s of %" PRIu64 " bytes at offset %" PRIu64 ": %s", t->file->path, verb, t->bytes,
                        t->offset, t->buf == NULL ? "no buffer" : "larger than any file can be");
    return STRATA_OK;
}

/* Lock held.  A list of records, linked by `next`; NULL: there is no memory for all of them. */
static struct st_hreq *take_records(struct strata_io *io, uint32_t count)
{
    struct st_hreq *list = NULL, *req = NULL;

    for (uint32_t i = 0; i < count && (req = take_record(io)) != NULL; i++) {
        req->next = list;
        list = req;
    }
    if (req != NULL)
        return list;
    while ((req = list) != NULL) {
        list = req->next;
        st_handle_give_record(io, req);
    }
    return NULL;
}

/* `detached`: nobody waits for them, and no request is written. */
static strata_status start(struct strata_io *io, struct strata_io_transfer *transfers, uint32_t count, bool detached)
{
    struct st_hreq *req, *next;
    strata_status st = st_handle_check(io);

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = transfers[i].file != NULL ? check_transfer(io, &transfers[i]) : st_error_missing("strata_io_start", "file");
    if (st != STRATA_OK || count == 0)
        return st;
    pthread_mutex_lock(&io->lock);
    if ((req = take_records(io, count)) == NULL) {
        pthread_mutex_unlock(&io->lock);
        return st_nomem(0);
    }
    for (struct strata_io_transfer *t = transfers; req != NULL; req = next, t++) {
        next = req->next;
        fill(req, t);
        req->detached = detached;
        t->request.bits = (uint64_t)req->generation << 32 | req->index;
        enqueue(io, req);
    }
    pthread_mutex_unlock(&io->lock);
    return STRATA_OK;
}

strata_status strata_io_start(struct strata_io *io, struct strata_io_transfer *transfers, uint32_t count)
{
    return transfers != NULL || count == 0 ? start(io, transfers, count, false) : st_error_missing(__func__, "transfers");
}

static strata_status start_one(struct strata_io_transfer *transfer, strata_io_request *request)
{
    strata_status st;

    if (transfer->file == NULL)
        return st_error_missing(transfer->write ? "write" : "read", "file");
    st = start(transfer->file->io, transfer, 1, request == NULL);
    if (st == STRATA_OK && request != NULL)
        *request = transfer->request;
    return st;
}

strata_status strata_io_read(struct strata_io_file *file, uint64_t offset, void *buf, uint64_t bytes, strata_io_request *request)
{
    return start_one(&(struct strata_io_transfer){.file = file, .offset = offset, .buf = buf, .bytes = bytes}, request);
}

strata_status strata_io_write(struct strata_io_file *file, uint64_t offset, const void *buf, uint64_t bytes,
                              strata_io_request *request)
{
    union {
        const void *in;
        void *out;
    } memory = {buf}; /* one record serves reads and writes; a write only reads from it */

    return start_one(
        &(struct strata_io_transfer){.file = file, .offset = offset, .buf = memory.out, .bytes = bytes, .write = true}, request);
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
                    "not done within %.6g s; of %" PRIu64 " requests outstanding the oldest is a %s of %" PRIu64
                    " bytes at offset %" PRIu64 " of %s, %.3f s old",
                    seconds, io->counters.outstanding, oldest->op == ST_IO_READ ? "read" : "write", oldest->end - oldest->offset,
                    oldest->offset, oldest->file->path, age(oldest));
}

static void put_result(struct strata_io_result *result, const struct st_hreq *req)
{
    if (result == NULL)
        return;
    if (req->going) /* the rest is the I/O thread's */
        *result = (struct strata_io_result){.status = STRATA_E_BUSY, .seconds = age(req)};
    else
        *result = req->result;
}

/* Lock held: the request has ended. */
static strata_status take(struct strata_io *io, struct st_hreq *req)
{
    const strata_status st = status_of(req);

    st_handle_give_record(io, req);
    return st;
}

static strata_status wait_for(struct strata_io *io, strata_io_request request, double seconds, struct strata_io_result *result,
                              bool polls)
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
    st = req == NULL ? unknown_request(request) : !req->going ? take(io, req) : polls ? STRATA_E_BUSY : out_of_time(io, seconds);
    pthread_mutex_unlock(&io->lock);
    return st;
}

strata_status strata_io_wait(struct strata_io *io, strata_io_request request, double seconds, struct strata_io_result *result)
{
    return wait_for(io, request, seconds, result, false);
}

strata_status strata_io_poll(struct strata_io *io, strata_io_request request, struct strata_io_result *result)
{
    return wait_for(io, request, 0, result, true);
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
        st_handle_submit(io, &req->cancel);
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
    while (io->oldest != NULL && io->oldest->sequence < mark && !late)
        late = !st_handle_wait_ended(io, deadline);
    if (io->oldest != NULL && io->oldest->sequence < mark) {
        st = out_of_time(io, seconds);
    } else if (io->detached_failed != NULL) {
        st = take(io, io->detached_failed);
        io->detached_failed = NULL;
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
    return io != NULL ? io->ops->name : "";
}

bool strata_io_get_registered(const struct strata_io *io)
{
    return io != NULL && io->registered;
}
