/* nvme/mover/mover_thread.c - the I/O thread: cuts transfers into requests of one block and keeps the queue of every file full.
 *
 * Any thread puts transfers into `inbox`; everything else belongs to the I/O thread; no other thread touches the io method.  It
 * sleeps on `work` when nothing is in flight and in reap() otherwise; a submitter wakes it from either.  One ring serves all
 * files: a thread and ring for each took more processor time per byte (docs/design.md, 7), and done() would run on several
 * threads. */
#include "nvme/mover/mover.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "core/system/thread.h"
#include "nvme/method/io_method.h"
#include "nvme/mover/depth.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define BATCH_MAX   32u /* requests per submit() */
#define ERROR_BYTES 1024
#define USERS_NS    UINT64_C(250000000) /* between counts of the swaps that share a directory */

enum { READ = 0, WRITE = 1, DIRECTIONS = 2 };

struct queue {
    struct st_transfer *first, *last;
};

/* One request in flight, or free. */
struct slot {
    struct st_io_req req; /* first member: done() casts it back */
    struct st_mover *mover;
    struct st_transfer *transfer;
    struct slot *next; /* free list */
};

/* Requests by direction, the bytes they moved, and since when at least one is in flight (0: none is). */
struct tally {
    struct st_mover_counters counters;  /* guarded by the mover's lock */
    uint64_t busy_since_ns[DIRECTIONS]; /* guarded by the same lock */
    uint32_t in_flight[DIRECTIONS];     /* the thread's */
};

struct file {
    struct st_mover_file opts;
    struct tally tally;
    struct st_depth depth;           /* the thread's */
    _Atomic uint32_t limit, holders; /* requests allowed in flight; stored by the thread, read for info */
};

struct st_mover {
    struct st_mover_opts opts;
    struct st_stripe stripe;
    struct file *files; /* [stripe.dir_count] */
    pthread_t thread;

    pthread_mutex_t lock; /* guards the block below */
    pthread_cond_t work;  /* inbox is not empty, or stopping */
    pthread_cond_t ready; /* `started` */
    struct queue inbox;
    bool in_reap; /* the thread may block in reap(): wake() it */
    bool stopping;
    bool started; /* the three members below are final */
    bool registered;
    strata_status start_status;
    char start_error[ERROR_BYTES];
    pthread_t self;
    struct tally tally; /* of all files */

    struct st_io *io;                 /* the I/O thread's, like everything below */
    struct queue waiting[DIRECTIONS]; /* transfers with requests still to issue; the head may be part issued */
    uint64_t users_ns;                /* when the holders were counted */
    uint32_t slot_count;
    struct slot *slots; /* [slot_count] */
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

static uint64_t *busy_counter(struct st_mover_counters *counters, int direction)
{
    return direction == READ ? &counters->busy_read_ns : &counters->busy_write_ns;
}

static void tally_start(struct st_mover *m, struct tally *tally, int direction)
{
    if (tally->in_flight[direction]++ > 0)
        return;
    pthread_mutex_lock(&m->lock);
    tally->busy_since_ns[direction] = st_clock_ns();
    pthread_mutex_unlock(&m->lock);
}

/* With the lock held. */
static void tally_end(struct tally *tally, int direction, uint64_t bytes_moved, uint64_t now_ns)
{
    *(direction == READ ? &tally->counters.bytes_read : &tally->counters.bytes_written) += bytes_moved;
    if (--tally->in_flight[direction] > 0)
        return;
    *busy_counter(&tally->counters, direction) += now_ns - tally->busy_since_ns[direction];
    tally->busy_since_ns[direction] = 0;
}

static uint32_t in_flight_of(const struct tally *tally)
{
    return tally->in_flight[READ] + tally->in_flight[WRITE];
}

static void set_limit(const struct st_mover *m, struct file *file)
{
    const uint32_t depth = m->opts.io.queue_depth > 0 ? m->opts.io.queue_depth : file->depth.depth;

    atomic_store_explicit(&file->limit, st_users_part(depth, atomic_load_explicit(&file->holders, memory_order_relaxed)),
                          memory_order_relaxed);
}

static void count_start(struct st_mover *m, struct file *file, int direction)
{
    tally_start(m, &m->tally, direction);
    tally_start(m, &file->tally, direction);
}

static void count_end(struct st_mover *m, struct file *file, int direction, uint64_t bytes_moved)
{
    const bool full = in_flight_of(&file->tally) >= atomic_load_explicit(&file->limit, memory_order_relaxed);
    const uint64_t now_ns = st_clock_ns();

    pthread_mutex_lock(&m->lock);
    tally_end(&m->tally, direction, bytes_moved, now_ns);
    tally_end(&file->tally, direction, bytes_moved, now_ns);
    pthread_mutex_unlock(&m->lock);
    if (m->opts.io.queue_depth == 0 && bytes_moved > 0) {
        st_depth_done(&file->depth, now_ns, (uint32_t)bytes_moved, direction == READ, full);
        set_limit(m, file);
    }
}

/* Counts the other users of the directories, a few times a second while there is work. */
static void look_at_users(struct st_mover *m)
{
    const uint64_t now_ns = st_clock_ns();

    if (m->users_ns != 0 && now_ns - m->users_ns < USERS_NS)
        return;
    m->users_ns = now_ns;
    for (uint32_t i = 0; i < m->stripe.dir_count; i++) {
        struct file *file = &m->files[i];

        if (file->opts.users != NULL)
            atomic_store_explicit(&file->holders, st_users_holders(file->opts.users), memory_order_relaxed);
        set_limit(m, file);
    }
}

/* All requests of t have ended; t belongs to its caller again. */
static void transfer_end(struct st_mover *m, struct st_transfer *t)
{
    if (t->status != STRATA_OK) {
        (void)st_io_request_error(t->op, t->failed_offset, t->failed_bytes, t->failed_result);
        t->status =
            st_error_prefix(t->status, "%s", m->files[t->failed_file].opts.path); /* only sets the sentence; the status stays */
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
    t->failed_file = req->file;
    t->failed_offset = req->offset;
    t->failed_bytes = req->bytes;
    t->failed_result = req->result;
    if (t->bytes_issued < t->bytes) { /* do not issue the rest */
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

    count_end(m, &m->files[req->file], direction_of(t), st == STRATA_OK ? req->bytes : 0);
    if (st == STRATA_OK)
        t->bytes_finished += req->bytes;
    else if (t->status == STRATA_OK)
        request_failed(m, t, req, st);
    slot_free(m, slot);
    if (--t->in_flight == 0 && t->bytes_issued == t->bytes)
        transfer_end(m, t);
}

/* The transfer of this direction that issues next; an empty transfer ends here. */
static struct st_transfer *next_of(struct st_mover *m, int direction)
{
    struct queue *queue = &m->waiting[direction];

    while (queue->first != NULL && queue->first->bytes == 0)
        transfer_end(m, queue_pop(queue));
    return queue->first;
}

/* Whether the file that t continues in takes another request. */
static bool has_room(const struct st_mover *m, const struct st_transfer *t)
{
    const struct file *file;

    if (t == NULL)
        return false;
    file = &m->files[st_stripe_at(&m->stripe, t->offset + t->bytes_issued).dir];
    return in_flight_of(&file->tally) < atomic_load_explicit(&file->limit, memory_order_relaxed);
}

/* Reads and writes share the queue: the direction with fewer requests in flight goes first. */
static struct st_transfer *choose(struct st_mover *m)
{
    struct st_transfer *next[DIRECTIONS];
    const int first = m->tally.in_flight[READ] <= m->tally.in_flight[WRITE] ? READ : WRITE;

    next[READ] = next_of(m, READ);
    next[WRITE] = next_of(m, WRITE);
    if (has_room(m, next[first]))
        return next[first];
    return has_room(m, next[!first]) ? next[!first] : NULL;
}

static struct slot *cut(struct st_mover *m, struct st_transfer *t)
{
    const struct st_stripe_place place = st_stripe_at(&m->stripe, t->offset + t->bytes_issued);
    const uint64_t left = t->bytes - t->bytes_issued;
    const uint64_t most = place.bytes < m->opts.block_bytes ? place.bytes : m->opts.block_bytes;
    struct slot *slot = m->free_slots;

    m->free_slots = slot->next;
    slot->transfer = t;
    slot->req.op = t->op;
    slot->req.file = place.dir;
    slot->req.bytes = (uint32_t)(left < most ? left : most);
    slot->req.offset = place.offset;
    slot->req.buf = (char *)t->buf + t->bytes_issued;
    t->bytes_issued += slot->req.bytes;
    t->in_flight++;
    count_start(m, &m->files[place.dir], direction_of(t));
    if (t->bytes_issued == t->bytes)
        queue_pop(&m->waiting[direction_of(t)]);
    return slot;
}

static void issue(struct st_mover *m)
{
    look_at_users(m);
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
    return in_flight_of(&m->tally) == 0 && m->waiting[READ].first == NULL && m->waiting[WRITE].first == NULL;
}

/* Sleeps while there is nothing to do, then takes the inbox.  False: stopping, and everything has ended. */
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
    const uint32_t count = m->slot_count;
    strata_status st = st_io_alloc((void **)&m->slots, "I/O requests", count, sizeof(*m->slots));

    for (uint32_t i = 0; st == STRATA_OK && i < count; i++) {
        m->slots[i].mover = m;
        m->slots[i].req.done = request_done;
        slot_free(m, &m->slots[i]);
    }
    return st;
}

/* Each file may have its own depth in flight, all of them together at most what an io takes. */
static strata_status files_create(struct st_mover *m, const struct st_mover_file *files)
{
    const uint32_t count = m->stripe.dir_count, depth = m->opts.io.queue_depth;
    strata_status st = depth > 0 ? st_io_check_depth(depth) : STRATA_OK;

    if (st != STRATA_OK || (st = st_io_alloc((void **)&m->files, "swap files", count, sizeof(*m->files))) != STRATA_OK)
        return st;
    m->slot_count = count * (depth > 0 ? depth : ST_DEPTH_MAX);
    if (m->slot_count > ST_IO_DEPTH_MAX)
        m->slot_count = ST_IO_DEPTH_MAX;
    for (uint32_t i = 0; i < count; i++) {
        m->files[i].opts = files[i];
        st_depth_init(&m->files[i].depth);
        atomic_store_explicit(&m->files[i].holders, 1, memory_order_relaxed);
    }
    look_at_users(m);
    return STRATA_OK;
}

static strata_status open_io(struct st_mover *m)
{
    const struct st_io_ops *ops = m->opts.ops;
    struct st_io_opts io = m->opts.io;
    strata_status st;

    io.queue_depth = m->slot_count;
    if ((st = ops->open(&m->io, &io)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < m->stripe.dir_count; i++) {
        uint32_t index;

        if ((st = ops->add_file(m->io, m->files[i].opts.fd, m->files[i].opts.bytes, &index)) != STRATA_OK)
            return st;
        assert(index == i);
    }
    if (m->opts.region == NULL || ops->register_region == NULL || io.unregistered)
        return STRATA_OK;
    if (ops->register_region(m->io, m->opts.region, m->opts.region_bytes) == STRATA_OK)
        m->registered = true;
    else
        st_log(ST_LOG_NOTICE, "%s; transfers continue without registered memory", strata_last_error());
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
        if (in_flight_of(&m->tally) > 0) {
            const strata_status reaped = m->opts.ops->reap(m->io, 1);

            assert(reaped == STRATA_OK); /* a method that breaks ends its requests itself */
        }
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
    free(m->files);
    free(m);
}

/* Waits until the thread says whether its io opened. */
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
    m->stripe = *opts->stripe;
    m->opts.files = NULL; /* copied */
    m->opts.stripe = NULL;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->work, NULL);
    pthread_cond_init(&m->ready, NULL);
    if ((st = files_create(m, opts->files)) != STRATA_OK || (st = slots_create(m)) != STRATA_OK)
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
    /* The first transfer put into an empty inbox wakes the thread, which takes all of them.  No wake is needed from done(), which
     * runs on that thread.  The wake happens under the lock: once it is released, the transfer may end and its owner may close
     * the swap. */
    if (m->inbox.first == NULL) {
        if (!m->in_reap)
            pthread_cond_signal(&m->work);
        else if (!pthread_equal(m->self, pthread_self()))
            m->opts.ops->wake(m->io);
    }
    queue_push(&m->inbox, t);
    pthread_mutex_unlock(&m->lock);
}

static void tally_read(struct st_mover *m, const struct tally *tally, struct st_mover_counters *out)
{
    pthread_mutex_lock(&m->lock);
    *out = tally->counters;
    for (int direction = 0; direction < DIRECTIONS; direction++)
        if (tally->busy_since_ns[direction] != 0)
            *busy_counter(out, direction) += st_clock_ns() - tally->busy_since_ns[direction];
    pthread_mutex_unlock(&m->lock);
}

void st_mover_counters(struct st_mover *m, struct st_mover_counters *out)
{
    tally_read(m, &m->tally, out);
}

void st_mover_file_counters(struct st_mover *m, uint32_t file, struct st_mover_counters *out)
{
    tally_read(m, &m->files[file].tally, out);
}

void st_mover_file_depth(struct st_mover *m, uint32_t file, uint32_t *queue_depth, uint32_t *holders)
{
    *queue_depth = atomic_load_explicit(&m->files[file].limit, memory_order_relaxed);
    *holders = atomic_load_explicit(&m->files[file].holders, memory_order_relaxed);
}
