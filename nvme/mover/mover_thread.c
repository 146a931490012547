/* nvme/mover/mover_thread.c - the I/O thread: cuts transfers into requests of one block and keeps the queue of every drive full.
 *
 * Any thread puts transfers into `inbox` and changes of the volumes into `changes`; everything else belongs to the I/O thread; no
 * other thread touches the io method.  It sleeps on `work` when nothing is in flight and in reap() otherwise; a submitter wakes
 * it from either.  One ring serves all files: a thread and ring for each drive took more processor time per byte (docs/design.md,
 * 7), and done() would run on several threads. */
#include "nvme/mover/mover_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#define BATCH_MAX 32u                 /* requests per submit() */
#define USERS_NS  UINT64_C(250000000) /* between counts of the swaps that share a directory */

enum { READ = ST_MOVER_READ, WRITE = ST_MOVER_WRITE, SYNC = ST_MOVER_SYNC };

void st_mover_queue_push(struct st_mover_queue *queue, struct st_transfer *t)
{
    t->next = NULL;
    if (queue->first == NULL)
        queue->first = t;
    else
        queue->last->next = t;
    queue->last = t;
}

static struct st_transfer *queue_pop(struct st_mover_queue *queue)
{
    struct st_transfer *t = queue->first;

    if (t != NULL)
        queue->first = t->next;
    return t;
}

/* The queue that t waits in. */
static struct st_mover_queue *queue_of(struct st_mover *m, const struct st_transfer *t)
{
    return &m->waiting[t->op == ST_IO_SYNC ? SYNC : t->op == ST_IO_READ ? READ : WRITE];
}

/* --- what is in flight --- */

static void tally_start(struct st_mover *m, struct st_mover_tally *tally, int direction)
{
    if (tally->in_flight[direction]++ > 0)
        return;
    pthread_mutex_lock(&m->lock);
    tally->busy_since_ns[direction] = st_clock_ns();
    pthread_mutex_unlock(&m->lock);
}

static void tally_end(struct st_mover *m, struct st_mover_tally *tally, int direction, uint64_t bytes_moved)
{
    const uint64_t bytes = atomic_load_explicit(&tally->bytes[direction], memory_order_relaxed) + bytes_moved;

    atomic_store_explicit(&tally->bytes[direction], bytes, memory_order_relaxed);
    if (--tally->in_flight[direction] > 0)
        return;
    pthread_mutex_lock(&m->lock);
    tally->busy_ns[direction] += st_clock_ns() - tally->busy_since_ns[direction];
    tally->busy_since_ns[direction] = 0;
    pthread_mutex_unlock(&m->lock);
}

static uint32_t in_flight_of(const struct st_mover_drive *drive)
{
    return drive->tally.in_flight[READ] + drive->tally.in_flight[WRITE];
}

static void set_limit(const struct st_mover *m, struct st_mover_drive *drive)
{
    const uint32_t depth = m->opts.io.queue_depth > 0 ? m->opts.io.queue_depth : drive->depth.depth;

    atomic_store_explicit(&drive->limit, st_users_part(depth, atomic_load_explicit(&drive->holders, memory_order_relaxed)),
                          memory_order_relaxed);
}

static void count_start(struct st_mover *m, struct st_mover_drive *drive, enum st_io_op op)
{
    m->in_flight++;
    if (op == ST_IO_SYNC)
        return;
    tally_start(m, &m->tally, op == ST_IO_READ ? READ : WRITE);
    tally_start(m, &drive->tally, op == ST_IO_READ ? READ : WRITE);
}

static void count_end(struct st_mover *m, struct st_mover_drive *drive, enum st_io_op op, uint64_t bytes_moved)
{
    const bool full = in_flight_of(drive) >= atomic_load_explicit(&drive->limit, memory_order_relaxed);
    const int direction = op == ST_IO_READ ? READ : WRITE;

    m->in_flight--;
    if (op == ST_IO_SYNC)
        return;
    tally_end(m, &m->tally, direction, bytes_moved);
    tally_end(m, &drive->tally, direction, bytes_moved);
    if (m->opts.io.queue_depth == 0 && bytes_moved > 0) {
        st_depth_done(&drive->depth, st_clock_ns(), (uint32_t)bytes_moved, direction == READ, full);
        set_limit(m, drive);
    }
}

/* A few times a second while there is work. */
void st_mover_look_at_users(struct st_mover *m)
{
    const uint64_t now_ns = st_clock_ns();

    if (m->users_ns != 0 && now_ns - m->users_ns < USERS_NS)
        return;
    m->users_ns = now_ns;
    for (uint32_t i = 0; i < m->opts.drive_count; i++) {
        struct st_mover_drive *drive = &m->drives[i];

        if (drive->users != NULL)
            atomic_store_explicit(&drive->holders, st_users_holders(drive->users), memory_order_relaxed);
        set_limit(m, drive);
    }
}

/* --- transfers and requests that end --- */

/* All requests of t have ended; t belongs to its caller again. */
static void transfer_end(struct st_mover *m, struct st_transfer *t)
{
    struct st_volume *v = m->volumes[t->volume];

    if (t->given_up) {
        t->status = st_mover_unanswered(m, t, v->parts[t->failed_file].path);
    } else if (t->refused) {
        t->status = st_error_prefix(st_error_again(t->status, &m->refusal), "%s", v->parts[t->failed_file].path);
    } else if (t->status != STRATA_OK) {
        (void)st_io_request_error(t->op, t->failed_offset, t->failed_bytes, t->failed_result);
        t->status =
            st_error_prefix(t->status, "%s", v->parts[t->failed_file].path); /* only sets the sentence; the status stays */
    }
    atomic_fetch_sub_explicit(&v->transfers, 1, memory_order_release); /* pairs with the look of unbind() */
    t->done(t, t->status);
}

void st_mover_slot_free(struct st_mover *m, struct st_mover_slot *slot)
{
    slot->transfer = NULL;
    slot->next = m->free_slots;
    m->free_slots = slot;
}

static void request_failed(struct st_mover *m, const struct st_mover_slot *slot, strata_status st)
{
    struct st_transfer *t = slot->transfer;

    t->status = st;
    t->failed_file = (uint32_t)(slot->part - m->volumes[t->volume]->parts) & 0x3fffffffu;
    t->failed_offset = slot->req.offset;
    t->failed_bytes = slot->req.bytes;
    t->failed_result = (int32_t)slot->req.result;
    t->given_up = slot->given_up;
    t->refused = !slot->taken;
    if (t->issued < t->goal) { /* do not issue the rest */
        assert(queue_of(m, t)->first == t);
        queue_pop(queue_of(m, t));
        t->issued = t->goal;
    }
}

void st_mover_request_done(struct st_io_req *req, strata_status st)
{
    struct st_mover_slot *slot = (struct st_mover_slot *)req;
    struct st_mover *m = slot->mover;
    struct st_transfer *t = slot->transfer;

    if (m->in_reap) { /* reap() returns after this one: no wake is needed */
        pthread_mutex_lock(&m->lock);
        m->in_reap = false;
        pthread_mutex_unlock(&m->lock);
    }
    count_end(m, slot->part->drive, req->op, st == STRATA_OK ? req->bytes : 0);
    t->moved += st == STRATA_OK ? req->bytes : 0;
    if (st != STRATA_OK && t->status == STRATA_OK)
        request_failed(m, slot, st);
    st_mover_slot_free(m, slot);
    if (--t->in_flight == 0 && t->issued == t->goal)
        transfer_end(m, t);
}

/* --- issuing --- */

void st_mover_come(struct st_mover *m, struct st_transfer *t)
{
    if (t->goal > 0)
        st_mover_queue_push(queue_of(m, t), t);
    else
        transfer_end(m, t);
}

void st_mover_cancel(struct st_mover *m, struct st_transfer *t)
{
    struct st_mover_queue *queue = queue_of(m, t), left = {NULL, NULL};
    struct st_transfer *other;

    if (t->issued == t->goal && t->in_flight == 0)
        return;
    if (t->issued < t->goal) {
        while ((other = queue_pop(queue)) != NULL)
            if (other != t)
                st_mover_queue_push(&left, other);
        *queue = left;
        t->goal = t->issued;
    }
    for (uint32_t i = 0; i < m->slot_count; i++)
        if (m->slots[i].transfer == t && m->slots[i].taken)
            m->opts.ops->cancel(m->io, &m->slots[i].req);
    if (t->in_flight == 0)
        transfer_end(m, t);
}

static struct st_stripe_place place_of(const struct st_mover *m, const struct st_transfer *t)
{
    return st_volume_at(m->volumes[t->volume], t->offset + t->issued);
}

/* Whether the drive that t continues on takes another request. */
static bool has_room(const struct st_mover *m, const struct st_transfer *t)
{
    const struct st_mover_drive *drive;

    if (t == NULL)
        return false;
    drive = m->volumes[t->volume]->parts[place_of(m, t).dir].drive;
    return in_flight_of(drive) < atomic_load_explicit(&drive->limit, memory_order_relaxed);
}

/* Reads and writes share the queue: the direction with fewer requests in flight goes first. */
static struct st_transfer *choose(struct st_mover *m)
{
    struct st_transfer *next[ST_MOVER_DIRECTIONS];
    const int first = m->tally.in_flight[READ] <= m->tally.in_flight[WRITE] ? READ : WRITE;

    if (m->waiting[SYNC].first != NULL)
        return m->waiting[SYNC].first;
    next[READ] = m->waiting[READ].first;
    next[WRITE] = m->waiting[WRITE].first;
    if (has_room(m, next[first]))
        return next[first];
    return has_room(m, next[!first]) ? next[!first] : NULL;
}

/* A request of t on one of its volume's files, still to be filled in. */
static struct st_io_req *request_of(struct st_mover *m, struct st_transfer *t, uint64_t file)
{
    struct st_mover_slot *slot = m->free_slots;

    m->free_slots = slot->next;
    slot->transfer = t;
    slot->since_ns = m->awake_ns;
    slot->given_up = slot->taken = false;
    slot->part = &m->volumes[t->volume]->parts[file];
    slot->req = (struct st_io_req){.op = t->op, .file = slot->part->place, .done = st_mover_request_done};
    t->in_flight++;
    count_start(m, slot->part->drive, t->op);
    return &slot->req;
}

static struct st_io_req *cut(struct st_mover *m, struct st_transfer *t)
{
    struct st_io_req *req;

    if (t->op == ST_IO_SYNC) {
        req = request_of(m, t, t->issued++);
    } else {
        const struct st_stripe_place place = place_of(m, t);
        const uint64_t left = t->bytes - t->issued;
        const uint64_t most = place.bytes < m->opts.block_bytes ? place.bytes : m->opts.block_bytes;

        req = request_of(m, t, place.dir);
        req->bytes = (uint32_t)(left < most ? left : most);
        req->bytes_least = t->bytes_least;
        req->offset = place.offset;
        req->buf = (char *)t->buf + t->issued;
        t->issued += req->bytes;
    }
    if (t->issued == t->goal)
        queue_pop(queue_of(m, t));
    return req;
}

/* Cuts the next request off t; of a drive that was given up it ends at once. */
static uint32_t stage(struct st_mover *m, struct st_transfer *t, struct st_io_req **staged)
{
    struct st_mover_slot *slot = (struct st_mover_slot *)cut(m, t);

    *staged = &slot->req;
    if (!slot->part->drive->given_up)
        return 1;
    slot->given_up = true;
    st_mover_request_done(&slot->req, STRATA_E_IO);
    return 0;
}

static void issue(struct st_mover *m)
{
    st_mover_look_at_users(m);
    for (;;) {
        struct st_io_req *batch[BATCH_MAX];
        struct st_transfer *t;
        strata_status st;
        uint32_t count = 0;

        while (count < BATCH_MAX && m->free_slots != NULL && (t = choose(m)) != NULL)
            count += stage(m, t, &batch[count]);
        if (count == 0)
            return;
        st = m->opts.ops->submit(m->io, batch, count);
        if (st != STRATA_OK)
            st_error_keep(&m->refusal);
        for (uint32_t i = 0; i < count; i++)
            if (st == STRATA_OK)
                ((struct st_mover_slot *)batch[i])->taken = true;
            else
                st_mover_request_done(batch[i], st);
    }
}

/* --- volumes --- */

static void unbind(struct st_mover *m, const struct st_volume *v, uint32_t parts)
{
    assert(atomic_load_explicit(&v->transfers, memory_order_acquire) == 0);
    while (parts-- > 0)
        m->opts.ops->remove_file(m->io, v->parts[parts].place);
}

/* Makes the volume's files known to the method: all, or none. */
static strata_status bind(struct st_mover *m, struct st_volume *v)
{
    for (uint32_t i = 0; i < v->file_count; i++) {
        struct st_volume_part *part = &v->parts[i];
        const strata_status st = m->opts.ops->add_file(m->io, part->fd, part->bytes, &part->place);

        if (st != STRATA_OK) {
            unbind(m, v, i);
            return st_error_prefix(st, "%s", part->path);
        }
    }
    return STRATA_OK;
}

/* Doubles the table of volumes. */
static strata_status grow(struct st_mover *m)
{
    const uint32_t count = m->volume_count > 0 ? 2 * m->volume_count : 8;
    struct st_volume **old = m->volumes, **more;
    const strata_status st = st_io_alloc((void **)&more, count, sizeof(struct st_volume *));

    if (st != STRATA_OK)
        return st;
    pthread_mutex_lock(&m->lock);
    for (uint32_t i = 0; i < m->volume_count; i++)
        more[i] = old[i];
    m->volumes = more;
    m->volume_count = count;
    pthread_mutex_unlock(&m->lock);
    free(old);
    return STRATA_OK;
}

static strata_status make(struct st_mover *m, struct st_mover_change *c)
{
    struct st_volume *old;
    strata_status st;

    for (uint32_t i = 0; c->index == ST_MOVER_NO_VOLUME && i < m->volume_count; i++)
        if (m->volumes[i] == NULL)
            c->index = i;
    if (c->index == ST_MOVER_NO_VOLUME) {
        c->index = m->volume_count;
        if ((st = grow(m)) != STRATA_OK)
            return st;
    }
    if (c->volume != NULL && (st = bind(m, c->volume)) != STRATA_OK)
        return st;
    if ((old = m->volumes[c->index]) != NULL)
        unbind(m, old, old->file_count);
    pthread_mutex_lock(&m->lock);
    m->volumes[c->index] = c->volume;
    pthread_mutex_unlock(&m->lock);
    c->volume = old;
    return STRATA_OK;
}

static void make_changes(struct st_mover *m, struct st_mover_change *c)
{
    while (c != NULL) {
        struct st_mover_change *next = c->next; /* its owner takes c away once it has ended */

        c->status = make(m, c);
        if (c->status != STRATA_OK)
            st_error_keep(&c->error);
        pthread_mutex_lock(&m->lock);
        c->ended = true;
        pthread_cond_broadcast(&m->ended);
        pthread_mutex_unlock(&m->lock);
        c = next;
    }
}

uint32_t st_mover_run(struct st_mover *m)
{
    struct st_transfer *t = m->taken.first;

    if (m->tick_ns > 0)
        st_mover_look_at_time(m);
    make_changes(m, m->taken_changes);
    m->taken_changes = NULL;
    m->taken.first = NULL;
    while (t != NULL) {
        struct st_transfer *next = t->next;

        st_mover_come(m, t);
        t = next;
    }
    issue(m);
    return m->in_flight;
}
