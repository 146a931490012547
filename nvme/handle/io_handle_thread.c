/* nvme/handle/io_handle_thread.c - what a handle does on the mover's I/O thread: requests arrive, start in order, and end.
 *
 * All of it runs in done() of transfers.  Of a file at most queue_depth requests run at a time: as many keep the queue full, and
 * only they are searched for conflicts. */
#include "nvme/handle/io_handle_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"

#include <inttypes.h>
#include <string.h>

/* --- the requests of a file --- */

static void enter(struct strata_io_file *file, struct st_hreq *req)
{
    req->before = file->last;
    req->behind = NULL;
    *(file->last != NULL ? &file->last->behind : &file->first) = req;
    file->last = req;
    if (file->waiting == NULL)
        file->waiting = req;
}

static void leave(struct strata_io_file *file, struct st_hreq *req)
{
    *(req->before != NULL ? &req->before->behind : &file->first) = req->behind;
    *(req->behind != NULL ? &req->behind->before : &file->last) = req->before;
    if (file->waiting == req)
        file->waiting = req->behind;
    file->running -= req->running ? 1 : 0;
}

/* --- requests that end --- */

/* The first failure counts.  Its sentence is in strata_last_error(). */
static void fail(struct st_hreq *req, strata_status st, int system_error, uint64_t offset)
{
    if (req->result.status != STRATA_OK)
        return;
    req->result.status = st == STRATA_E_BUSY ? STRATA_E_IO : st; /* to a waiting caller E_BUSY means "still running" */
    req->result.system_error = system_error;
    req->result.failed_offset = offset;
    req->sentence = strdup(strata_last_error());
}

static void count(struct strata_io *io, const struct st_hreq *req)
{
    struct strata_io_counters *c = &io->counters;

    if (req->result.status == STRATA_E_CANCELLED) {
        c->cancelled++;
    } else if (req->result.status != STRATA_OK) {
        c->failed++;
    } else if (req->op == ST_IO_READ) {
        c->reads++;
        c->bytes_read += req->end - req->offset;
    } else {
        c->writes++;
        c->bytes_written += req->end - req->offset;
    }
    c->bytes_bounced = io->bytes_bounced;
    c->blocks_merged = io->blocks_merged;
    c->outstanding--;
}

/* Lock held.  Publishes the request's status to the threads that wait. */
static void publish(struct strata_io *io, struct st_hreq *req)
{
    req->result.seconds = (double)(st_clock_ns() - req->start_ns) * 1e-9;
    req->going = false;
    *(req->older != NULL ? &req->older->younger : &io->oldest) = req->younger;
    *(req->younger != NULL ? &req->younger->older : &io->youngest) = req->older;
    count(io, req);
    req->file->outstanding--;
    if (req->waiters > 0)
        pthread_cond_broadcast(&req->ended);
    if (req->detached && req->result.status != STRATA_OK && io->detached_failed == NULL)
        io->detached_failed = req; /* for wait_all() */
    else if (req->detached)
        st_handle_give_record(io, req);
    if (io->waiters > 0)
        pthread_cond_broadcast(&io->ended);
    st_handle_tell_ended(io);
}

/* The request's last part has ended, or it never gets one. */
static void end(struct st_hreq *req)
{
    struct strata_io_file *file = req->file;
    struct strata_io *io = file->io;
    uint64_t bytes = file->bytes;
    strata_status st;
    int err = 0;

    if (req->running && req->op == ST_IO_WRITE && (st = st_handle_file_settle(file, req, &bytes, &err)) != STRATA_OK)
        fail(req, st, err, req->end);
    if (req->result.status == STRATA_OK && req->result.bytes_moved < req->end - req->offset) {
        st = st_error(STRATA_E_CANCELLED,
                      "%s: %s of %" PRIu64 " bytes at offset %" PRIu64 " was cancelled: %" PRIu64 " bytes of it were moved",
                      file->path, req->op == ST_IO_READ ? "read" : "write", req->end - req->offset, req->offset,
                      req->result.bytes_moved);
        fail(req, st, 0, req->offset);
    }
    leave(file, req);
    pthread_mutex_lock(&io->lock);
    file->bytes = bytes;
    req->over = true;
    if (!req->cancel_asked || req->cancel_came)
        publish(io, req);
    pthread_mutex_unlock(&io->lock);
}

/* --- requests that start --- */

static struct st_hbounce *take_bounce(struct strata_io *io, struct st_hreq *req)
{
    struct st_hbounce *bounce = io->free_bounces;

    io->free_bounces = bounce->next;
    bounce->request = req;
    st_handle_cut_bounced(req, bounce);
    io->bytes_bounced += bounce->user_bytes;
    io->blocks_merged += bounce->fetching ? 1 : 0;
    return bounce;
}

static struct st_transfer *idle_of(struct st_hreq *req)
{
    return req->in_place[0].bytes == 0 ? &req->in_place[0] : req->in_place[1].bytes == 0 ? &req->in_place[1] : NULL;
}

/* Behind the others. */
static void get_hungry(struct strata_io *io, struct st_hreq *req)
{
    struct st_hreq **link = &io->hungry;

    while (*link != NULL)
        link = &(*link)->next_hungry;
    req->next_hungry = NULL;
    *link = req;
}

/* Cuts as much as there are transfers and bounce buffers for; goes on when one of them is free. */
static void cut(struct strata_io *io, struct st_hreq *req)
{
    while (req->at < req->end) {
        const uint64_t bytes = st_handle_in_place(req);
        struct st_transfer *transfer = idle_of(req);

        if (bytes == 0 && io->free_bounces == NULL)
            get_hungry(io, req);
        if (bytes > 0 ? transfer == NULL : io->free_bounces == NULL)
            return;
        req->parts++;
        if (bytes > 0)
            st_handle_cut(req, transfer, bytes);
        else
            transfer = &take_bounce(io, req)->transfer;
        st_handle_submit(io, transfer);
    }
}

static void feed(struct strata_io *io)
{
    struct st_hreq *req;

    while ((req = io->hungry) != NULL && io->free_bounces != NULL) {
        io->hungry = req->next_hungry;
        cut(io, req);
    }
}

/* For a read past the known end, looks at the size again: the file may have grown by other means. */
static bool fits(struct strata_io *io, struct st_hreq *req)
{
    struct strata_io_file *file = req->file;
    const int64_t bytes = st_handle_file_look(file);
    strata_status st;

    pthread_mutex_lock(&io->lock);
    if (bytes > 0 && (uint64_t)bytes > file->bytes)
        file->bytes = (uint64_t)bytes;
    pthread_mutex_unlock(&io->lock);
    st_handle_claim(req);
    if (!req->extends)
        return true;
    if (bytes < 0)
        st = st_error_errno((int)-bytes, "%s: the file's size cannot be seen", file->path);
    else
        st = st_error(STRATA_E_TRUNC,
                      "%s: read of %" PRIu64 " bytes at offset %" PRIu64 ": the file ends before that: it has %" PRIu64 " bytes",
                      file->path, req->end - req->offset, req->offset, file->bytes);
    fail(req, st, bytes < 0 ? (int)-bytes : 0, req->offset);
    return false;
}

/* Starts the file's waiting requests in their order, up to one that conflicts with a running one; those that need no transfer end
 * here. */
static void start_waiting(struct strata_io_file *file)
{
    struct strata_io *io = file->io;
    struct st_hreq *req;

    while ((req = file->waiting) != NULL && file->running < io->queue_depth) {
        st_handle_claim(req);
        for (const struct st_hreq *r = file->first; r != req; r = r->behind)
            if (st_handle_conflict(r, req))
                return;
        if (req->offset == req->end || (req->op == ST_IO_READ && req->extends && !fits(io, req))) {
            end(req);
            continue;
        }
        file->waiting = req->behind;
        file->running++;
        req->running = true;
        cut(io, req);
    }
}

void st_handle_arrived(struct st_transfer *transfer, strata_status st)
{
    struct st_hreq *req = transfer->owner, *last, *next;
    struct strata_io *io = req->file->io;

    (void)st; /* nothing has moved */
    pthread_mutex_lock(&io->lock);
    last = io->youngest;
    io->arriving = false;
    pthread_mutex_unlock(&io->lock);
    for (; req != NULL; req = next) {
        next = req != last ? req->younger : NULL; /* only this thread takes requests out of the list */
        enter(req->file, req);
        start_waiting(req->file);
    }
}

/* --- parts that end --- */

static void part_end(struct st_hreq *req)
{
    struct strata_io_file *file = req->file;

    if (--req->parts > 0 || (!req->stopped && req->at < req->end))
        return;
    end(req);
    start_waiting(file);
}

/* Starts no further parts, and ends those that have begun if that is possible.  A part must be left that the caller ends. */
static void stop(struct st_hreq *req)
{
    struct strata_io *io = req->file->io;
    struct st_hreq **link = &io->hungry;

    req->stopped = true;
    while (*link != NULL && *link != req)
        link = &(*link)->next_hungry;
    if (*link == req)
        *link = req->next_hungry;
    for (uint32_t i = 0; i < 2; i++)
        st_mover_cancel(io->mover, &req->in_place[i]);
    for (uint32_t i = 0; i < io->queue_depth; i++)
        if (io->bounces[i].request == req)
            st_mover_cancel(io->mover, &io->bounces[i].transfer);
}

static void part_failed(struct st_hreq *req, const struct st_transfer *transfer, strata_status st)
{
    fail(req, st, transfer->failed_result < 0 ? -transfer->failed_result : 0, transfer->failed_offset);
    stop(req);
}

void st_handle_part_done(struct st_transfer *transfer, strata_status st)
{
    struct st_hreq *req = transfer->owner;

    req->result.bytes_moved += transfer->moved;
    transfer->bytes = 0;
    if (st != STRATA_OK)
        part_failed(req, transfer, st);
    else if (!req->stopped && req->at < req->end && st_handle_in_place(req) > 0)
        cut(req->file->io, req);
    part_end(req);
}

void st_handle_bounce_done(struct st_transfer *transfer, strata_status st)
{
    struct st_hbounce *bounce = transfer->owner;
    struct st_hreq *req = bounce->request;
    struct strata_io *io = req->file->io;

    if (st != STRATA_OK) {
        part_failed(req, transfer, st);
    } else if (bounce->fetching && !req->stopped) {
        st_handle_merge(bounce);
        st_handle_submit(io, transfer);
        return;
    } else if (!bounce->fetching && transfer->moved > 0) { /* not cancelled */
        if (req->op == ST_IO_READ)
            memcpy(bounce->user, bounce->memory + bounce->into, bounce->user_bytes);
        req->result.bytes_moved += bounce->user_bytes;
    }
    bounce->request = NULL;
    bounce->next = io->free_bounces;
    io->free_bounces = bounce;
    feed(io); /* before requests that start now */
    part_end(req);
}

void st_handle_cancel_arrived(struct st_transfer *transfer, strata_status st)
{
    struct st_hreq *req = transfer->owner;
    struct strata_io *io = req->file->io;

    (void)st; /* nothing has moved */
    req->cancel_came = true;
    if (req->over) {
        pthread_mutex_lock(&io->lock);
        publish(io, req);
        pthread_mutex_unlock(&io->lock);
        return;
    }
    req->parts++; /* the part of stop() */
    stop(req);
    part_end(req);
}
