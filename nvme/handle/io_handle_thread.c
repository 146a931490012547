/* nvme/handle/io_handle_thread.c - what a handle does on its I/O thread (nvme/method/io_thread.h): takes requests, keeps the
 * method's queue full, ends requests.
 *
 * A method has room for ST_IO_FILES_DEFAULT files at a time: a file is bound when it has a piece to move, and may be replaced by
 * another while it has no piece in flight. */
#include "nvme/handle/io_handle_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX 32u /* pieces per submit() */

/* --- the method --- */

static void unbind(struct strata_io *io, struct strata_io_file *file)
{
    assert(file->in_flight == 0);
    io->thread.ops->remove_file(io->thread.io, (uint32_t)file->place);
    io->bound[file->place] = NULL;
    file->place = -1;
}

/* Frees the place of a file that has no pieces in flight, going round in turn.  False: there is none. */
static bool make_room(struct strata_io *io)
{
    assert(!io->fake); /* its bytes would be lost with the place */
    for (uint32_t i = 0; i < ST_IO_FILES_DEFAULT; i++) {
        struct strata_io_file *file;

        io->hand = (io->hand + 1) % ST_IO_FILES_DEFAULT;
        if ((file = io->bound[io->hand]) == NULL || file->in_flight > 0)
            continue;
        unbind(io, file);
        return true;
    }
    return false;
}

static strata_status add_file(struct strata_io *io, struct strata_io_file *file)
{
    const uint64_t bytes = (file->bytes + ST_IO_ALIGN - 1) & ~(uint64_t)(ST_IO_ALIGN - 1);
    uint32_t index;
    const strata_status st = io->thread.ops->add_file(io->thread.io, file->fd, bytes, &index);

    if (st != STRATA_OK)
        return st;
    io->bound[index] = file;
    file->place = (int)index;
    return STRATA_OK;
}

enum bound { BOUND, NO_ROOM, FAILED };

/* Makes the piece's file known to the method; from here on the piece is in flight. */
static enum bound bind(struct strata_io *io, struct st_hslot *slot, strata_status *st)
{
    struct strata_io_file *file = slot->request->file;

    while (file->place < 0 && (*st = add_file(io, file)) != STRATA_OK)
        if (*st != STRATA_E_INVAL) /* full */
            return FAILED;
        else if (!make_room(io))
            return io->in_flight > 0 ? NO_ROOM : FAILED;
    slot->req.file = (uint32_t)file->place;
    slot->issued = true;
    file->in_flight++;
    io->in_flight++;
    return BOUND;
}

/* --- requests that end --- */

void st_handle_fail(struct st_hreq *req, strata_status st, int system_error, uint64_t offset)
{
    if (req->status != STRATA_OK)
        return;
    if (st == STRATA_E_BUSY) /* to a waiting caller E_BUSY means "still running" */
        st = STRATA_E_IO;
    req->status = st_error_prefix(st, "%s", req->file->path);
    req->sentence = strdup(strata_last_error());
    req->result.system_error = system_error;
    req->result.failed_offset = offset;
}

static void count(struct strata_io *io, const struct st_hreq *req)
{
    struct strata_io_counters *c = &io->counters;

    if (req->status == STRATA_E_CANCELLED) {
        c->cancelled++;
    } else if (req->status != STRATA_OK) {
        c->failed++;
    } else if (req->op == ST_IO_READ) {
        c->reads++;
        c->bytes_read += req->end - req->offset;
    } else {
        c->writes++;
        c->bytes_written += req->end - req->offset;
    }
    c->outstanding--;
}

/* Lock held.  No thread waits for this request, so its failure is kept for wait_all(). */
static void end_detached(struct strata_io *io, struct st_hreq *req)
{
    if (req->status != STRATA_OK && io->detached_status == STRATA_OK) {
        io->detached_status = req->status;
        snprintf(io->detached_error, sizeof(io->detached_error), "%s",
                 req->sentence != NULL ? req->sentence : strata_status_text(req->status));
    }
    st_handle_give_record(io, req);
}

/* Publishes the request's status to the threads that wait. */
static void publish(struct strata_io *io, struct st_hreq *req, uint64_t file_bytes)
{
    struct strata_io_file *file = req->file;

    pthread_mutex_lock(&io->lock);
    file->bytes = file_bytes;
    req->result.status = req->status;
    req->result.bytes_moved = req->bytes_moved;
    req->result.seconds = (double)(st_clock_ns() - req->start_ns) * 1e-9;
    req->going = false;
    *(req->older != NULL ? &req->older->younger : &io->oldest) = req->younger;
    *(req->younger != NULL ? &req->younger->older : &io->youngest) = req->older;
    count(io, req);
    file->outstanding--;
    if (req->cancel_asked) { /* perhaps since the list of cancels was last taken */
        struct st_hreq **link = &io->cancels;

        while (*link != NULL && *link != req)
            link = &(*link)->next_cancel;
        if (*link == req)
            *link = req->next_cancel;
    }
    if (req->waiters > 0)
        pthread_cond_broadcast(&req->ended);
    if (req->detached)
        end_detached(io, req);
    if (io->waiters > 0)
        pthread_cond_broadcast(&io->ended);
    pthread_mutex_unlock(&io->lock);
}

static void make_ready(struct strata_io *io, struct strata_io_file *file)
{
    if (file->ready || (file->cutting == NULL && file->waiting.first == NULL))
        return;
    file->ready = true;
    file->next_ready = NULL;
    if (io->ready_last != NULL)
        io->ready_last->next_ready = file;
    else
        io->ready_first = file;
    io->ready_last = file;
}

static struct strata_io_file *pop_ready(struct strata_io *io)
{
    struct strata_io_file *file = io->ready_first;

    io->ready_first = file->next_ready;
    if (io->ready_first == NULL)
        io->ready_last = NULL;
    file->ready = false;
    return file;
}

void st_handle_end(struct strata_io *io, struct st_hreq *req)
{
    struct strata_io_file *file = req->file;
    uint64_t bytes = file->bytes;
    strata_status st;
    int err = 0;

    if (req->running && req->op == ST_IO_WRITE && (st = st_handle_file_settle(file, req, &bytes, &err)) != STRATA_OK)
        st_handle_fail(req, st, err, req->end);
    if (req->status == STRATA_OK && req->bytes_moved < req->end - req->offset) {
        st = st_error(STRATA_E_CANCELLED,
                      "%s of %" PRIu64 " bytes at offset %" PRIu64 " was cancelled: %" PRIu64 " bytes of it were moved",
                      req->op == ST_IO_READ ? "read" : "write", req->end - req->offset, req->offset, req->bytes_moved);
        st_handle_fail(req, st, 0, req->offset);
    }
    if (file->cutting == req)
        file->cutting = NULL;
    st_handle_list_remove(req->running ? &file->running : &file->waiting, req);
    make_ready(io, file); /* requests that waited for this one */
    publish(io, req, bytes);
}

/* --- pieces --- */

static void slot_free(struct strata_io *io, struct st_hslot *slot)
{
    slot->next = io->free_slots;
    io->free_slots = slot;
    io->pieces--;
}

/* A piece has ended, successfully or not; the last one ends the request. */
static void piece_end(struct strata_io *io, struct st_hslot *slot)
{
    struct st_hreq *req = slot->request;

    slot_free(io, slot);
    if (--req->pieces == 0 && (req->stopped || req->at == req->end))
        st_handle_end(io, req);
}

static void stop(struct st_hreq *req)
{
    req->stopped = true;
    if (req->file->cutting == req)
        req->file->cutting = NULL;
}

static void piece_failed(struct st_hslot *slot, strata_status st)
{
    const int64_t result = slot->req.result;

    st_handle_fail(slot->request, st, result < 0 ? (int)-result : 0, slot->req.offset);
    stop(slot->request); /* do not issue the rest */
}

static void again(struct strata_io *io, struct st_hslot *slot)
{
    slot->next = NULL;
    if (io->again_last != NULL)
        io->again_last->next = slot;
    else
        io->again_first = slot;
    io->again_last = slot;
}

static void piece_moved(struct st_hslot *slot)
{
    struct st_hreq *req = slot->request;

    if (slot->bounced && req->op == ST_IO_READ)
        memcpy(slot->user, slot->bounce + slot->into, slot->user_bytes);
    req->bytes_moved += slot->user_bytes;
}

void st_handle_piece_done(struct st_io_req *done, strata_status st)
{
    struct st_hslot *slot = (struct st_hslot *)done;
    struct strata_io *io = slot->io;

    io->in_flight--;
    slot->request->file->in_flight--;
    slot->issued = false;
    if (st == STRATA_OK && slot->fetching && !slot->request->stopped) {
        st_handle_merge(slot);
        again(io, slot);
        return;
    }
    if (st != STRATA_OK)
        piece_failed(slot, st);
    else if (!slot->fetching)
        piece_moved(slot);
    piece_end(io, slot);
}

/* --- issuing --- */

/* For a read past the known end, looks at the size again: the file may have grown by other means. */
static bool fits(struct strata_io *io, struct strata_io_file *file, struct st_hreq *req)
{
    const int64_t bytes = st_handle_file_look(file);
    strata_status st;

    pthread_mutex_lock(&io->lock);
    if (bytes > 0 && (uint64_t)bytes > file->bytes)
        file->bytes = (uint64_t)bytes;
    pthread_mutex_unlock(&io->lock);
    st_handle_claim(req);
    if (!req->extends)
        return true;
    if (bytes < 0) {
        st = st_error_errno((int)-bytes, "the file's size cannot be seen");
        st_handle_fail(req, st, (int)-bytes, req->offset);
        return false;
    }
    st = st_error(STRATA_E_TRUNC,
                  "read of %" PRIu64 " bytes at offset %" PRIu64 ": the file ends before that: it has %" PRIu64 " bytes",
                  req->end - req->offset, req->offset, file->bytes);
    st_handle_fail(req, st, 0, req->offset);
    return false;
}

/* Starts the file's first waiting request unless a running one conflicts with it; requests that need no transfer end here. */
static void start_next(struct strata_io *io, struct strata_io_file *file)
{
    struct st_hreq *req;

    while (file->cutting == NULL && (req = file->waiting.first) != NULL) {
        st_handle_claim(req);
        for (const struct st_hreq *r = file->running.first; r != NULL; r = r->behind)
            if (st_handle_conflict(r, req))
                return;
        if (req->offset == req->end || (req->op == ST_IO_READ && req->extends && !fits(io, file, req))) {
            st_handle_end(io, req);
            continue;
        }
        st_handle_list_remove(&file->waiting, req);
        st_handle_list_push(&file->running, req);
        req->running = true;
        file->cutting = req;
    }
}

static void count_piece(struct strata_io *io, const struct st_hslot *slot)
{
    if (!slot->bounced)
        return;
    pthread_mutex_lock(&io->lock);
    io->counters.bytes_bounced += slot->user_bytes;
    io->counters.blocks_merged += slot->fetching ? 1 : 0;
    pthread_mutex_unlock(&io->lock);
}

/* Cuts a new piece; files take turns.  NULL: no file has one. */
static struct st_hslot *cut_next(struct strata_io *io)
{
    while (io->ready_first != NULL) {
        struct strata_io_file *file = pop_ready(io);
        struct st_hslot *slot = io->free_slots;
        struct st_hreq *req;

        start_next(io, file);
        if ((req = file->cutting) == NULL)
            continue; /* ready again when one of its pieces ends */
        io->free_slots = slot->next;
        io->pieces++;
        req->pieces++;
        st_handle_cut(req, slot, io->block_bytes, io->bounce_bytes);
        count_piece(io, slot);
        if (req->at == req->end)
            file->cutting = NULL;
        make_ready(io, file);
        return slot;
    }
    return NULL;
}

static struct st_hslot *next_piece(struct strata_io *io)
{
    struct st_hslot *slot;

    while ((slot = io->again_first) != NULL) {
        io->again_first = slot->next;
        if (io->again_first == NULL)
            io->again_last = NULL;
        if (!slot->request->stopped)
            return slot;
        piece_end(io, slot);
    }
    return io->free_slots != NULL ? cut_next(io) : NULL;
}

static void put_back(struct strata_io *io, struct st_hslot *slot)
{
    slot->next = io->again_first;
    io->again_first = slot;
    if (io->again_last == NULL)
        io->again_last = slot;
}

/* Gathers pieces for one submit(); *no_room: the next piece waits until some file has none in flight. */
static uint32_t gather(struct strata_io *io, struct st_io_req **batch, bool *no_room)
{
    uint32_t gathered = 0;
    struct st_hslot *slot;

    while (gathered < BATCH_MAX && !*no_room && (slot = next_piece(io)) != NULL) {
        strata_status st = STRATA_OK;

        switch (bind(io, slot, &st)) {
        case BOUND:
            batch[gathered++] = &slot->req;
            break;
        case NO_ROOM:
            put_back(io, slot);
            *no_room = true;
            break;
        case FAILED:
            slot->req.result = 0;
            piece_failed(slot, st);
            piece_end(io, slot);
            break;
        }
    }
    return gathered;
}

static void submit(struct strata_io *io, struct st_io_req **batch, uint32_t batch_count)
{
    char sentence[ST_HANDLE_ERROR_BYTES];
    strata_status st;

    if ((st = io->thread.ops->submit(io->thread.io, batch, batch_count)) == STRATA_OK)
        return;
    snprintf(sentence, sizeof(sentence), "%s", strata_last_error());
    for (uint32_t i = 0; i < batch_count; i++) {
        batch[i]->result = 0;
        st_handle_piece_done(batch[i], st_error(st, "%s", sentence));
    }
}

static void issue(struct strata_io *io)
{
    for (;;) {
        struct st_io_req *batch[BATCH_MAX];
        bool no_room = false;
        const uint32_t gathered = gather(io, batch, &no_room);

        if (gathered > 0)
            submit(io, batch, gathered);
        if (gathered == 0 || (no_room && io->in_flight > 0))
            return;
    }
}

/* --- requests from other threads --- */

static void cancel(struct strata_io *io, struct st_hreq *req)
{
    stop(req);
    if (req->pieces == 0) {
        st_handle_end(io, req);
        return;
    }
    for (uint32_t i = 0; i < io->thread.opts.queue_depth; i++)
        if (io->slots[i].issued && io->slots[i].request == req)
            io->thread.ops->cancel(io->thread.io, &io->slots[i].req);
}

static void leave_ready(struct strata_io *io, const struct strata_io_file *file)
{
    struct strata_io_file *first = io->ready_first;

    io->ready_first = io->ready_last = NULL;
    while (first != NULL) {
        struct strata_io_file *next = first->next_ready;

        first->ready = false;
        if (first != file)
            make_ready(io, first);
        first = next;
    }
}

static void take_closing(struct strata_io *io, struct strata_io_file *file)
{
    leave_ready(io, file);
    if (file->place >= 0)
        unbind(io, file);
    st_handle_file_close(file);
}

void st_handle_take(void *handle)
{
    struct strata_io *io = handle;

    io->taken = io->inbox.first;
    io->taken_cancels = io->cancels;
    io->taken_closing = io->closing;
    io->inbox = (struct st_hlist){NULL, NULL};
    io->cancels = NULL;
    io->closing = NULL;
}

static void do_work(struct strata_io *io)
{
    struct strata_io_file *file = io->taken_closing;
    struct st_hreq *req = io->taken;

    while (req != NULL) {
        struct st_hreq *next = req->next;

        st_handle_list_push(&req->file->waiting, req);
        make_ready(io, req->file);
        req = next;
    }
    for (req = io->taken_cancels; req != NULL;) { /* each ends only in its own turn of this loop */
        struct st_hreq *next = req->next_cancel;

        cancel(io, req);
        req = next;
    }
    while (file != NULL) {
        struct strata_io_file *next = file->next_closing;

        take_closing(io, file);
        file = next;
    }
    io->taken = io->taken_cancels = NULL;
    io->taken_closing = NULL;
}

uint32_t st_handle_run(void *handle)
{
    struct strata_io *io = handle;

    do_work(io);
    issue(io);
    return io->in_flight;
}
