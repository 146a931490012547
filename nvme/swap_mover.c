/* nvme/swap_mover.c - the I/O thread: cuts transfers into requests of one block and keeps the queue full.
 *
 * Any thread puts transfers into `inbox`; all else belongs to the I/O thread, which alone touches the io method.  It sleeps
 * on `work` when nothing is in flight and in reap() otherwise; a submitter wakes it from either. */
#include "nvme/swap_parts.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/thread.h"
#include "nvme/io_method.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX   32u /* requests per submit() */
#define ERROR_BYTES 1024

enum { READ = 0, WRITE = 1, DIRECTIONS = 2 };

struct queue {
    struct st_transfer *first, *last;
};

/* One request in flight, or free. */
struct slot {
    struct st_io_req req; /* first: done() gets it back by a cast */
    struct st_mover *mover;
    struct st_transfer *transfer;
    struct slot *next; /* free list */
};

struct st_mover {
    struct st_mover_opts opts;
    char path[PATH_MAX];
    pthread_t thread;

    pthread_mutex_t lock; /* guards the block below */
    pthread_cond_t work;  /* inbox is not empty, or stopping */
    pthread_cond_t ready; /* `started` */
    struct queue inbox;
    bool in_reap; /* the thread may block in reap(): wake() it */
    bool stopping;
    bool started; /* the three below are final */
    bool registered;
    strata_status start_status;
    char start_error[ERROR_BYTES];
    pthread_t self;
    struct st_swap_counters counters;
    uint64_t busy_since_ns[DIRECTIONS]; /* 0: idle */

    struct st_io *io;                 /* the thread's, as all below */
    struct queue waiting[DIRECTIONS]; /* transfers with requests still to issue; the head may be part issued */
    uint32_t in_flight[DIRECTIONS];
    struct slot *slots; /* [queue_depth] */
    struct slot *free_slots;
};

static void queue_push(struct queue *queue, struct st_transfer *t)
{
    t->next = NULL;
    if (queue->first == NULL)
        queue->first = t;
    else
        queue->last->next = t;
    queue->last = t;
}

static struct st_transfer *queue_pop(struct queue *queue)
{
    struct st_transfer *t = queue->first;

    if (t != NULL)
        queue->first = t->next;
    return t;
}

static int direction_of(const struct st_transfer *t)
{
    return t->op == ST_IO_READ ? READ : WRITE;
}

static uint64_t *busy_counter(struct st_swap_counters *counters, int direction)
{
    return direction == READ ? &counters->busy_read_ns : &counters->busy_write_ns;
}

static void count_start(struct st_mover *m, int direction)
{
    if (m->in_flight[direction]++ > 0)
        return;
    pthread_mutex_lock(&m->lock);
    m->busy_since_ns[direction] = st_clock_ns();
    pthread_mutex_unlock(&m->lock);
}

static void count_end(struct st_mover *m, int direction, uint64_t bytes_moved)
{
    m->in_flight[direction]--;
    pthread_mutex_lock(&m->lock);
    *(direction == READ ? &m->counters.bytes_read : &m->counters.bytes_written) += bytes_moved;
    if (m->in_flight[direction] == 0) {
        *busy_counter(&m->counters, direction) += st_clock_ns() - m->busy_since_ns[direction];
        m->busy_since_ns[direction] = 0;
    }
    pthread_mutex_unlock(&m->lock);
}

/* All requests of t have ended; t belongs to its caller again. */
static void transfer_end(struct st_mover *m, struct st_transfer *t)
{
    if (t->status != STRATA_OK) {
        st_io_request_error(t->op, t->failed_offset, t->failed_bytes, t->failed_result);
        st_error_prefix(t->status, "%s", m->path);
    }
    t->done(t, t->status);
}

static void slot_free(struct st_mover *m, struct slot *slot)
{
    slot->next = m->free_slots;
    m->free_slots = slot;
}

static void request_failed(struct st_mover *m, struct st_transfer *t, const struct st_io_req *req, strata_status st)
{
    t->status = st;
    t->failed_offset = req->offset;
    t->failed_bytes = req->bytes;
    t->failed_result = req->result;
    if (t->bytes_issued < t->bytes) { /* the rest is not worth issuing */
        assert(m->waiting[direction_of(t)].first == t);
        queue_pop(&m->waiting[direction_of(t)]);
        t->bytes_issued = t->bytes;
    }
}

static void request_done(struct st_io_req *req, strata_status st)
{
    struct slot *slot = (struct slot *)req;
    struct st_mover *m = slot->mover;
    struct st_transfer *t = slot->transfer;

    count_end(m, direction_of(t), st == STRATA_OK ? req->bytes : 0);
    if (st == STRATA_OK)
        t->bytes_finished += req->bytes;
    else if (t->status == STRATA_OK)
        request_failed(m, t, req, st);
    slot_free(m, slot);
    if (--t->in_flight == 0 && t->bytes_issued == t->bytes)
        transfer_end(m, t);
}

/* The transfer of this direction that issues next; one without bytes ends here. */
static struct st_transfer *next_of(struct st_mover *m, int direction)
{
    struct queue *queue = &m->waiting[direction];

    while (queue->first != NULL && queue->first->bytes == 0)
        transfer_end(m, queue_pop(queue));
    return queue->first;
}

/* Reads and writes share the queue: the direction with fewer requests in flight goes first. */
static struct st_transfer *choose(struct st_mover *m)
{
    struct st_transfer *read = next_of(m, READ), *write = next_of(m, WRITE);

    if (read == NULL || write == NULL)
        return read != NULL ? read : write;
    return m->in_flight[READ] <= m->in_flight[WRITE] ? read : write;
}

static struct slot *cut(struct st_mover *m, struct st_transfer *t)
{
    const uint64_t left = t->bytes - t->bytes_issued;
    struct slot *slot = m->free_slots;

    m->free_slots = slot->next;
    slot->transfer = t;
    slot->req.op = t->op;
    slot->req.bytes = (uint32_t)(left < m->opts.block_bytes ? left : m->opts.block_bytes);
    slot->req.offset = t->offset + t->bytes_issued;
    slot->req.buf = (char *)t->buf + t->bytes_issued;
    t->bytes_issued += slot->req.bytes;
    t->in_flight++;
    count_start(m, direction_of(t));
    if (t->bytes_issued == t->bytes)
        queue_pop(&m->waiting[direction_of(t)]);
    return slot;
}

static void issue(struct st_mover *m)
{
    for (;;) {
        struct st_io_req *batch[BATCH_MAX];
        struct st_transfer *t;
        strata_status st;
        uint32_t count = 0;

        while (count < BATCH_MAX && m->free_slots != NULL && (t = choose(m)) != NULL)
            batch[count++] = &cut(m, t)->req;
        if (count == 0)
            return;
        st = m->opts.ops->submit(m->io, batch, count);
        for (uint32_t i = 0; st != STRATA_OK && i < count; i++) {
            batch[i]->result = -EIO;
            request_done(batch[i], st);
        }
    }
}

static bool is_idle(const struct st_mover *m)
{
    return m->in_flight[READ] + m->in_flight[WRITE] == 0 && m->waiting[READ].first == NULL && m->waiting[WRITE].first == NULL;
}

/* Sleeps while there is nothing to do, then takes the inbox.  False: stopping, and all is done. */
static bool take_work(struct st_mover *m)
{
    const bool idle = is_idle(m);
    struct st_transfer *t;
    bool go_on;

    pthread_mutex_lock(&m->lock);
    m->in_reap = false;
    while (idle && m->inbox.first == NULL && !m->stopping)
        pthread_cond_wait(&m->work, &m->lock);
    go_on = !idle || m->inbox.first != NULL;
    t = m->inbox.first;
    m->inbox.first = NULL;
    m->in_reap = true;
    pthread_mutex_unlock(&m->lock);

    while (t != NULL) {
        struct st_transfer *next = t->next;

        queue_push(&m->waiting[direction_of(t)], t);
        t = next;
    }
    return go_on;
}

static strata_status slots_create(struct st_mover *m)
{
    const uint32_t count = m->opts.io.queue_depth;
    strata_status st = st_io_alloc((void **)&m->slots, "I/O requests", count, sizeof(*m->slots));

    for (uint32_t i = 0; st == STRATA_OK && i < count; i++) {
        m->slots[i].mover = m;
        m->slots[i].req.done = request_done;
        slot_free(m, &m->slots[i]);
    }
    return st;
}

static strata_status open_io(struct st_mover *m)
{
    const struct st_io_ops *ops = m->opts.ops;
    uint32_t file;
    strata_status st = ops->open(&m->io, &m->opts.io);

    if (st != STRATA_OK)
        return st;
    if ((st = ops->add_file(m->io, m->opts.fd, m->opts.bytes, &file)) != STRATA_OK)
        return st;
    assert(file == 0);
    if (m->opts.region == NULL || ops->register_region == NULL)
        return STRATA_OK;
    if (ops->register_region(m->io, m->opts.region, m->opts.region_bytes) == STRATA_OK)
        m->registered = true;
    else
        st_log(ST_LOG_NOTICE, "%s; transfers go on without registered memory", strata_last_error());
    return STRATA_OK;
}

static void report_start(struct st_mover *m, strata_status st)
{
    pthread_mutex_lock(&m->lock);
    m->start_status = st;
    snprintf(m->start_error, sizeof(m->start_error), "%s", strata_last_error());
    m->self = pthread_self();
    m->started = true;
    pthread_cond_signal(&m->ready);
    pthread_mutex_unlock(&m->lock);
}

static void *mover_main(void *arg)
{
    struct st_mover *m = arg;
    const strata_status st = open_io(m);

    report_start(m, st);
    while (st == STRATA_OK && take_work(m)) {
        issue(m);
        if (m->in_flight[READ] + m->in_flight[WRITE] > 0 && m->opts.ops->reap(m->io, 1) != STRATA_OK)
            st_fatal("%s: %s", m->path, strata_last_error());
    }
    m->opts.ops->close(m->io);
    return NULL;
}

static void mover_free(struct st_mover *m)
{
    pthread_cond_destroy(&m->ready);
    pthread_cond_destroy(&m->work);
    pthread_mutex_destroy(&m->lock);
    free(m->slots);
    free(m);
}

/* Waits for the thread's word on its io. */
static strata_status wait_started(struct st_mover *m)
{
    pthread_mutex_lock(&m->lock);
    while (!m->started)
        pthread_cond_wait(&m->ready, &m->lock);
    pthread_mutex_unlock(&m->lock);
    if (m->start_status == STRATA_OK)
        return STRATA_OK;
    pthread_join(m->thread, NULL);
    return st_error(m->start_status, "%s", m->start_error);
}

strata_status st_mover_start(struct st_mover **out, const struct st_mover_opts *opts, bool *registered)
{
    struct st_mover *m;
    strata_status st = st_io_alloc((void **)&m, "I/O thread", 1, sizeof(*m));

    if (st != STRATA_OK)
        return st;
    m->opts = *opts;
    snprintf(m->path, sizeof(m->path), "%s", opts->path);
    m->opts.path = m->path;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, NULL);
    pthread_cond_init(&m->ready, NULL);
    if ((st = slots_create(m)) != STRATA_OK)
        goto fail;
    if ((st = st_thread_start(&m->thread, "strata-io", mover_main, m)) != STRATA_OK)
        goto fail;
    if ((st = wait_started(m)) != STRATA_OK)
        goto fail;
    *registered = m->registered;
    *out = m;
    return STRATA_OK;

fail:
    mover_free(m);
    return st;
}

void st_mover_stop(struct st_mover *m)
{
    if (m == NULL)
        return;
    pthread_mutex_lock(&m->lock);
    m->stopping = true;
    pthread_cond_signal(&m->work);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    mover_free(m);
}

void st_mover_submit(struct st_mover *m, struct st_transfer *t)
{
    pthread_mutex_lock(&m->lock);
    /* The first into an empty inbox wakes the thread; it takes them all.  done() runs on that thread, which is awake.  Woken
     * under the lock: after it, the transfer may end and its owner close the swap. */
    if (m->inbox.first == NULL) {
        if (!m->in_reap)
            pthread_cond_signal(&m->work);
        else if (!pthread_equal(m->self, pthread_self()))
            m->opts.ops->wake(m->io);
    }
    queue_push(&m->inbox, t);
    pthread_mutex_unlock(&m->lock);
}

void st_mover_counters(struct st_mover *m, struct st_swap_counters *out)
{
    pthread_mutex_lock(&m->lock);
    *out = m->counters;
    for (int direction = 0; direction < DIRECTIONS; direction++)
        if (m->busy_since_ns[direction] != 0)
            *busy_counter(out, direction) += st_clock_ns() - m->busy_since_ns[direction];
    pthread_mutex_unlock(&m->lock);
}
