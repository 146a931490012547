/* nvme/mover/mover.c - the mover's calls for any thread: start, stop, submit; volumes that come and go.
 *
 * The method belongs to the I/O thread, so a change of the volumes is handed to it and waited for. */
#include "nvme/mover/mover_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* --- volumes --- */

static void volume_free(struct st_volume *v)
{
    if (v == NULL)
        return;
    for (uint32_t i = 0; i < v->file_count; i++)
        free(v->parts[i].path);
    free(v);
}

static strata_status volume_create(struct st_volume **out, struct st_mover *m, const struct st_volume_opts *opts)
{
    const uint32_t spaces = opts->spaces > 0 ? opts->spaces : 1, dirs = opts->stripe->dir_count, count = spaces * dirs;
    struct st_volume *v;
    strata_status st;

    assert(opts->bytes % ST_MOVER_ALIGN == 0 && (count == 1 || !opts->loose));
    if ((st = st_io_alloc((void **)&v, 1, sizeof(*v) + count * sizeof(v->parts[0]))) != STRATA_OK)
        return st;
    v->stripe = *opts->stripe;
    v->bytes = opts->loose ? UINT64_MAX : spaces * opts->bytes;
    v->space_bytes = opts->loose ? UINT64_MAX : opts->bytes;
    v->file_count = count;
    v->read_only = opts->read_only;
    v->loose = opts->loose;
    for (uint32_t i = 0; i < count; i++) {
        const size_t length = strlen(opts->files[i].path) + 1;
        struct st_volume_part *part = &v->parts[i];

        assert(opts->files[i].drive < m->opts.drive_count);
        part->fd = opts->files[i].fd;
        part->bytes = st_stripe_file_bytes(opts->stripe, i % dirs, opts->bytes);
        part->drive = &m->drives[opts->files[i].drive];
        if ((st = st_io_alloc((void **)&part->path, length, 1)) != STRATA_OK) {
            volume_free(v);
            return st;
        }
        memcpy(part->path, opts->files[i].path, length);
    }
    *out = v;
    return STRATA_OK;
}

struct st_stripe_place st_volume_at(const struct st_volume *v, uint64_t offset)
{
    struct st_stripe_place place;
    uint64_t space, at;

    if (v->file_count == 1)
        return (struct st_stripe_place){0, offset, v->bytes - offset};
    space = v->space_bytes > 0 ? offset / v->space_bytes : 0;
    at = offset - space * v->space_bytes;
    place = st_stripe_at(&v->stripe, at);
    place.dir += (uint32_t)space * v->stripe.dir_count;
    if (place.bytes > v->space_bytes - at)
        place.bytes = v->space_bytes - at;
    return place;
}

/* Has the I/O thread make the change, and waits for it. */
static strata_status change(struct st_mover *m, struct st_mover_change *c)
{
    assert(!st_mover_is_self(m));
    pthread_mutex_lock(&m->lock);
    c->next = m->changes;
    m->changes = c;
    st_mover_nudge(m);
    while (!c->ended)
        pthread_cond_wait(&m->ended, &m->lock);
    pthread_mutex_unlock(&m->lock);
    volume_free(c->volume);
    return c->status == STRATA_OK ? STRATA_OK : st_error_again(c->status, &c->error);
}

strata_status st_mover_add(struct st_mover *m, const struct st_volume_opts *opts, uint32_t *volume)
{
    struct st_mover_change c = {.index = ST_MOVER_NO_VOLUME};
    strata_status st = volume_create(&c.volume, m, opts);

    if (st == STRATA_OK && (st = change(m, &c)) == STRATA_OK)
        *volume = c.index;
    return st;
}

strata_status st_mover_replace(struct st_mover *m, uint32_t volume, const struct st_volume_opts *opts)
{
    struct st_mover_change c = {.index = volume};
    const strata_status st = volume_create(&c.volume, m, opts);

    return st == STRATA_OK ? change(m, &c) : st;
}

void st_mover_remove(struct st_mover *m, uint32_t volume)
{
    struct st_mover_change c = {.index = volume};
    const strata_status st = change(m, &c);

    assert(st == STRATA_OK); /* nothing is bound, so nothing can fail */
}

const char *st_mover_place(struct st_mover *m, uint32_t volume, uint64_t offset, uint64_t *file_offset)
{
    const struct st_volume *v;
    struct st_stripe_place place;

    pthread_mutex_lock(&m->lock);
    assert(volume < m->volume_count);
    v = m->volumes[volume];
    pthread_mutex_unlock(&m->lock);
    assert(v != NULL);
    place = st_volume_at(v, offset);
    *file_offset = place.offset;
    return v->parts[place.dir].path;
}

/* --- starting and stopping --- */

static strata_status slots_create(struct st_mover *m)
{
    const uint32_t count = m->slot_count;
    strata_status st = st_io_alloc((void **)&m->slots, count, sizeof(*m->slots));

    for (uint32_t i = 0; st == STRATA_OK && i < count; i++) {
        m->slots[i].mover = m;
        st_mover_slot_free(m, &m->slots[i]);
    }
    return st;
}

/* Each drive may have its own depth in flight, all of them together at most what an io takes. */
static strata_status drives_create(struct st_mover *m)
{
    const uint32_t count = m->opts.drive_count, depth = m->opts.io.queue_depth;
    strata_status st = depth > 0 ? st_io_check_depth(depth) : STRATA_OK;

    assert(count >= 1 && count <= ST_MOVER_DRIVES_MAX);
    if (st != STRATA_OK || (st = st_io_alloc((void **)&m->drives, count, sizeof(*m->drives))) != STRATA_OK)
        return st;
    m->slot_count = count * (depth > 0 ? depth : ST_DEPTH_MAX);
    if (m->slot_count > ST_IO_DEPTH_MAX)
        m->slot_count = ST_IO_DEPTH_MAX;
    for (uint32_t i = 0; i < count; i++) {
        m->drives[i].users = m->opts.drive_users != NULL ? m->opts.drive_users[i] : NULL;
        st_depth_init(&m->drives[i].depth);
        atomic_store_explicit(&m->drives[i].holders, 1, memory_order_relaxed);
    }
    m->opts.drive_users = NULL; /* copied */
    st_mover_look_at_users(m);
    return STRATA_OK;
}

static void mover_free(struct st_mover *m)
{
    pthread_cond_destroy(&m->ended);
    pthread_mutex_destroy(&m->lock);
    for (uint32_t i = 0; i < m->volume_count; i++)
        volume_free(m->volumes[i]);
    free(m->volumes);
    free(m->slots);
    free(m->drives);
    free(m);
}

strata_status st_mover_start(struct st_mover **out, const struct st_mover_opts *opts, bool *registered)
{
    struct st_mover *m;
    strata_status st = st_io_alloc((void **)&m, 1, sizeof(*m));

    if (st != STRATA_OK)
        return st;
    m->opts = *opts;
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->ended, NULL);
    if ((st = drives_create(m)) != STRATA_OK || (st = slots_create(m)) != STRATA_OK)
        goto fail;
    st_mover_patience_init(m);
    if ((st = st_mover_loop_start(m)) != STRATA_OK)
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
    st_mover_loop_stop(m);
    mover_free(m);
}

/* --- transfers --- */

static strata_status check(const struct st_volume *v, const struct st_transfer *t)
{
    if (v == NULL)
        return st_error(STRATA_E_INVAL, "transfer: there is no volume %" PRIu32, t->volume);
    if (!v->loose && (t->offset | t->bytes | (uint64_t)(uintptr_t)t->buf) % ST_MOVER_ALIGN != 0)
        return st_error(STRATA_E_INVAL, "transfer of %" PRIu64 " bytes at offset %" PRIu64 ": not aligned to %u", t->bytes,
                        t->offset, ST_MOVER_ALIGN);
    if (t->offset > v->bytes || t->bytes > v->bytes - t->offset)
        return st_error(STRATA_E_INVAL,
                        "transfer of %" PRIu64 " bytes at offset %" PRIu64 " ends outside the volume's %" PRIu64 " bytes",
                        t->bytes, t->offset, v->bytes);
    if (v->read_only && t->op == ST_IO_WRITE)
        return st_error(STRATA_E_INVAL, "%s: written to, though it was attached to be read", v->parts[0].path);
    return STRATA_OK;
}

/* The lock is held, or this is the I/O thread. */
static strata_status admit(struct st_mover *m, struct st_transfer *t)
{
    struct st_volume *v = t->volume < m->volume_count ? m->volumes[t->volume] : NULL;
    const strata_status st = check(v, t);

    if (st != STRATA_OK)
        return st;
    t->goal = t->op == ST_IO_SYNC ? v->file_count : t->bytes;
    atomic_fetch_add_explicit(&v->transfers, 1, memory_order_relaxed);
    return STRATA_OK;
}

strata_status st_mover_submit(struct st_mover *m, struct st_transfer *t)
{
    strata_status st;

    assert(t->op == ST_IO_READ || t->op == ST_IO_WRITE || (t->op == ST_IO_SYNC && t->offset == 0 && t->bytes == 0));
    assert(t->done != NULL);
    t->issued = t->moved = 0;
    t->in_flight = 0;
    t->status = STRATA_OK;
    t->given_up = t->refused = false;
    if (st_mover_is_self(m)) {
        if ((st = admit(m, t)) == STRATA_OK)
            st_mover_come(m, t);
        return st;
    }
    pthread_mutex_lock(&m->lock);
    if ((st = admit(m, t)) == STRATA_OK) {
        st_mover_queue_push(&m->inbox, t);
        st_mover_nudge(m); /* under the lock: after it the transfer may end and its owner may stop the mover */
    }
    pthread_mutex_unlock(&m->lock);
    return st;
}

/* --- what is known of it --- */

static void tally_read(struct st_mover *m, const struct st_mover_tally *tally, struct st_mover_counters *out)
{
    const uint64_t *since = tally->busy_since_ns;

    out->bytes_read = atomic_load_explicit(&tally->bytes[ST_MOVER_READ], memory_order_relaxed);
    out->bytes_written = atomic_load_explicit(&tally->bytes[ST_MOVER_WRITE], memory_order_relaxed);
    pthread_mutex_lock(&m->lock);
    out->busy_read_ns = tally->busy_ns[ST_MOVER_READ];
    out->busy_write_ns = tally->busy_ns[ST_MOVER_WRITE];
    if (since[ST_MOVER_READ] != 0)
        out->busy_read_ns += st_clock_ns() - since[ST_MOVER_READ];
    if (since[ST_MOVER_WRITE] != 0)
        out->busy_write_ns += st_clock_ns() - since[ST_MOVER_WRITE];
    pthread_mutex_unlock(&m->lock);
}

void st_mover_counters(struct st_mover *m, struct st_mover_counters *out)
{
    tally_read(m, &m->tally, out);
}

void st_mover_drive_counters(struct st_mover *m, uint32_t drive, struct st_mover_counters *out)
{
    assert(drive < m->opts.drive_count);
    tally_read(m, &m->drives[drive].tally, out);
}

void st_mover_drive_depth(struct st_mover *m, uint32_t drive, uint32_t *queue_depth, uint32_t *holders)
{
    assert(drive < m->opts.drive_count);
    *queue_depth = atomic_load_explicit(&m->drives[drive].limit, memory_order_relaxed);
    *holders = atomic_load_explicit(&m->drives[drive].holders, memory_order_relaxed);
}
