/* reader.c - see reader.h.
 *
 * Spans are cut into pieces of whole tiles.  A ring of slots holds the pieces in flight in their order; the caller's thread takes
 * the oldest when it has arrived, compares it, hands it on and submits the next one in its slot. */
#include "offload/checkpoint/reader.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "nvme/method/io.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SLOTS       8u
#define PIECE_TILES ((UINT64_C(1) << 20) / ST_TILE_ELEMS)
#define PIECE_BYTES (PIECE_TILES * ST_TILE_ELEMS * sizeof(float) + UINT64_C(2) * ST_MOVER_ALIGN)
#define BLOCK_BYTES (1u << 20)

/* Whole tiles of a row, and what of them a span wants. */
struct piece {
    const struct st_extent_row *row;
    uint64_t tile, tile_count; /* of the row */
    uint64_t first, elems;     /* wanted, from the group's start */
    uint64_t at, bytes;        /* of the tiles, in the space */
};

struct slot {
    struct st_transfer transfer;
    struct piece piece;
    unsigned char *buf; /* [PIECE_BYTES] aligned to ST_MOVER_ALIGN */
    bool arrived;       /* guarded by the reader's lock */
    strata_status status;
    char sentence[512];
};

struct st_reader {
    const struct st_checkpoint *ck;
    struct st_mover *mover;
    struct st_checkpoint_volume volumes[ST_SPACE_COUNT];
    uint32_t volume[ST_SPACE_COUNT]; /* the mover's numbers; ST_MOVER_NO_VOLUME: the space is empty */
    pthread_mutex_t lock;
    pthread_cond_t arrival;
    unsigned char *memory; /* of all slots */
    struct slot slots[SLOTS];
};

/* Where the next piece begins. */
struct cursor {
    const struct st_reader_span *spans;
    uint64_t count, span, done; /* elements of the span that pieces have */
};

/* --- opening --- */

static strata_status open_spaces(struct st_reader *r)
{
    for (uint32_t space = ST_SPACE_BASE; space < ST_SPACE_COUNT; space++) {
        strata_status st = st_checkpoint_volume_open(&r->volumes[space], r->ck, (enum st_space)space, ST_CHECKPOINT_PARTS);

        if (st == STRATA_OK && r->volumes[space].opts.bytes > 0)
            st = st_mover_add(r->mover, &r->volumes[space].opts, &r->volume[space]);
        if (st != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

/* Where "auto" may choose, the next method is tried. */
static strata_status start_mover(struct st_reader *r, const char *method)
{
    struct st_mover_opts opts = {.drive_count = 1,
                                 .io = {.files = ST_IO_FILES_MAX},
                                 .block_bytes = BLOCK_BYTES,
                                 .patience = {.deadline_ns = ST_PATIENCE_DEADLINE_NS},
                                 .ops = st_io_find(method, NULL)};
    bool registered;
    strata_status st;

    if (opts.ops == NULL)
        return st_error(STRATA_E_INVAL, "I/O method \"%s\" is unknown: auto, uring, aio or threads", method);
    st = st_mover_start(&r->mover, &opts, &registered);
    while (st != STRATA_OK && st_io_is_auto(method) && (opts.ops = st_io_next(opts.ops, st)) != NULL)
        st = st_mover_start(&r->mover, &opts, &registered);
    return st;
}

static strata_status start(struct st_reader *r, const char *method)
{
    strata_status st;

    r->memory = st_fault("reader.alloc", 0) < 0 ? NULL : aligned_alloc(ST_MOVER_ALIGN, SLOTS * PIECE_BYTES);
    if (r->memory == NULL)
        return st_nomem(SLOTS * PIECE_BYTES);
    for (uint32_t i = 0; i < SLOTS; i++)
        r->slots[i].buf = r->memory + i * PIECE_BYTES;
    st = start_mover(r, method);
    return st == STRATA_OK ? open_spaces(r) : st;
}

strata_status st_reader_open(struct st_reader **out, const struct st_checkpoint *ck, const char *method)
{
    struct st_reader *r = st_fault("reader.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*r));
    strata_status st;

    if (r == NULL)
        return st_nomem(sizeof(*r));
    r->ck = ck;
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->arrival, NULL);
    for (uint32_t space = 0; space < ST_SPACE_COUNT; space++)
        r->volume[space] = ST_MOVER_NO_VOLUME;
    st = start(r, method);
    if (st != STRATA_OK) {
        st_reader_close(r);
        return st;
    }
    *out = r;
    return STRATA_OK;
}

void st_reader_close(struct st_reader *r)
{
    if (r == NULL)
        return;
    st_mover_stop(r->mover);
    for (uint32_t space = 0; space < ST_SPACE_COUNT; space++)
        st_checkpoint_volume_close(&r->volumes[space]);
    pthread_cond_destroy(&r->arrival);
    pthread_mutex_destroy(&r->lock);
    free(r->memory);
    free(r);
}

/* --- pieces --- */

/* Bytes of the first `elems` elements of a row. */
static uint64_t row_bytes(const struct st_reader *r, const struct st_extent_row *row, uint64_t elems)
{
    const struct st_manifest *m = &r->ck->manifest;

    return st_plane_bytes((enum st_plane)row->plane, st_manifest_group(m, row->page, row->group)->format, m->moment_format,
                          elems);
}

static uint64_t tile_end(const struct st_extent_row *row, uint64_t tile)
{
    const uint64_t end = tile * ST_TILE_ELEMS;

    return end < row->elems ? end : row->elems;
}

/* False: there is none left. */
static bool next_piece(const struct st_reader *r, struct cursor *c, struct piece *p)
{
    const struct st_reader_span *span;
    uint64_t from, end;

    while (c->span < c->count && c->done == c->spans[c->span].elems) {
        c->span++;
        c->done = 0;
    }
    if (c->span == c->count)
        return false;
    span = &c->spans[c->span];
    from = span->first + c->done - span->row->first; /* in the row */
    p->row = span->row;
    p->tile = from / ST_TILE_ELEMS;
    end = tile_end(p->row, p->tile + PIECE_TILES);
    if (end > span->first + span->elems - span->row->first)
        end = span->first + span->elems - span->row->first;
    p->tile_count = (end - 1) / ST_TILE_ELEMS - p->tile + 1;
    p->first = span->row->first + from;
    p->elems = end - from;
    p->at = p->row->offset + row_bytes(r, p->row, p->tile * ST_TILE_ELEMS);
    p->bytes = p->row->offset + row_bytes(r, p->row, tile_end(p->row, p->tile + p->tile_count)) - p->at;
    c->done += p->elems;
    return true;
}

static void piece_done(struct st_transfer *t, strata_status st)
{
    struct st_reader *r = t->owner;
    struct slot *s = (struct slot *)(void *)t; /* its first member */

    pthread_mutex_lock(&r->lock);
    s->status = st;
    if (st != STRATA_OK)
        snprintf(s->sentence, sizeof(s->sentence), "%s", strata_last_error());
    s->arrived = true;
    pthread_cond_signal(&r->arrival);
    pthread_mutex_unlock(&r->lock);
}

static void submit(struct st_reader *r, struct slot *s)
{
    const struct piece *p = &s->piece;
    const uint64_t begin = p->at / ST_MOVER_ALIGN * ST_MOVER_ALIGN;
    const uint64_t end = (p->at + p->bytes + ST_MOVER_ALIGN - 1) / ST_MOVER_ALIGN * ST_MOVER_ALIGN;
    strata_status st;

    assert(end - begin <= PIECE_BYTES);
    s->arrived = false;
    s->status = STRATA_OK;
    s->transfer = (struct st_transfer){.op = ST_IO_READ,
                                       .volume = r->volume[p->row->space],
                                       .offset = begin,
                                       .bytes = end - begin,
                                       .buf = s->buf,
                                       .done = piece_done,
                                       .owner = r,
                                       .what = "checkpoint"};
    if ((st = st_mover_submit(r->mover, &s->transfer)) != STRATA_OK)
        piece_done(&s->transfer, st);
}

static void wait_for(struct st_reader *r, struct slot *s)
{
    pthread_mutex_lock(&r->lock);
    while (!s->arrived)
        pthread_cond_wait(&r->arrival, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

/* --- what arrived --- */

static strata_status report(struct st_reader *r, const struct st_reader_sink *sink, struct st_damage *damage, uint64_t at)
{
    damage->path = st_mover_place(r->mover, r->volume[damage->row->space], at, &damage->offset);
    if (sink->damaged != NULL)
        return sink->damaged(sink->ctx, damage);
    return st_error(STRATA_E_CORRUPT, "%s: plane %s of page %u, group %u, from byte %llu on: %s: this checkpoint is damaged",
                    damage->path, st_plane_name((enum st_plane)damage->row->plane), damage->row->page, damage->row->group,
                    (unsigned long long)damage->offset, damage->why);
}

/* *whole: every tile is what was written. */
static strata_status compare(struct st_reader *r, const struct slot *s, const struct st_reader_sink *sink, bool *whole)
{
    const struct piece *p = &s->piece;
    const unsigned char *data = s->buf + p->at % ST_MOVER_ALIGN;
    strata_status st = STRATA_OK;

    *whole = true;
    for (uint64_t tile = p->tile; tile < p->tile + p->tile_count && st == STRATA_OK; tile++) {
        const uint64_t from = row_bytes(r, p->row, tile * ST_TILE_ELEMS), end = row_bytes(r, p->row, tile_end(p->row, tile + 1));
        struct st_damage damage = {.row = p->row,
                                   .first = p->row->first + tile * ST_TILE_ELEMS,
                                   .elems = tile_end(p->row, tile + 1) - tile * ST_TILE_ELEMS,
                                   .why = "its checksum is wrong"};

        if (st_checksum64(data + (p->row->offset + from - p->at), end - from) == r->ck->extents.sums[p->row->sum_first + tile])
            continue;
        *whole = false;
        st = report(r, sink, &damage, p->row->offset + from);
    }
    return st;
}

static strata_status take(struct st_reader *r, const struct slot *s, const struct st_reader_sink *sink)
{
    const struct piece *p = &s->piece;
    bool whole;
    strata_status st;

    if (s->status != STRATA_OK) {
        struct st_damage damage = {.row = p->row, .first = p->first, .elems = p->elems, .why = s->sentence};

        return report(r, sink, &damage, p->at);
    }
    st = compare(r, s, sink, &whole);
    if (st != STRATA_OK || !whole || sink->data == NULL)
        return st;
    return sink->data(sink->ctx, p->row, p->first, p->elems,
                      s->buf + p->at % ST_MOVER_ALIGN +
                          (row_bytes(r, p->row, p->first - p->row->first) - row_bytes(r, p->row, p->tile * ST_TILE_ELEMS)));
}

strata_status st_reader_read(struct st_reader *r, const struct st_reader_span *spans, uint64_t count,
                             const struct st_reader_sink *sink)
{
    struct cursor c = {.spans = spans, .count = count};
    uint64_t submitted = 0, taken = 0;
    strata_status st = STRATA_OK;
    bool more = true;

    while (more || taken < submitted) {
        while (more && submitted - taken < SLOTS) {
            struct slot *s = &r->slots[submitted % SLOTS];

            more = st == STRATA_OK && next_piece(r, &c, &s->piece);
            if (more) {
                submit(r, s);
                submitted++;
            }
        }
        if (taken == submitted)
            break;
        wait_for(r, &r->slots[taken % SLOTS]);
        if (st == STRATA_OK)
            st = take(r, &r->slots[taken % SLOTS], sink);
        taken++;
    }
    return st;
}

/* --- spans --- */

/* The first of a page's groups that ends behind an element. */
static bool group_at(const struct st_manifest *m, uint32_t page, uint64_t element, uint32_t *group)
{
    const struct st_manifest_group *g;

    for (*group = 0; (g = st_manifest_group(m, page, *group)) != NULL; ++*group)
        if (element < g->offset + g->elems)
            return element >= g->offset;
    return false;
}

uint64_t st_reader_spans(struct st_reader_span *out, const struct st_checkpoint *ck, enum st_plane plane, uint32_t page,
                         uint64_t first, uint64_t elems)
{
    const struct st_extent_row *row;
    uint64_t count = 0, end;
    uint32_t group;

    if (!group_at(&ck->manifest, page, first, &group))
        return 0;
    first -= st_manifest_group(&ck->manifest, page, group)->offset;
    end = first + elems;
    row = st_checkpoint_rows(ck, page, group, plane, first, elems, &count);
    for (uint64_t i = 0; out != NULL && i < count; i++, row++) {
        const uint64_t from = row->first > first ? row->first : first, row_end = row->first + row->elems;

        out[i] = (struct st_reader_span){.row = row, .first = from, .elems = (row_end < end ? row_end : end) - from};
    }
    return count;
}
