/* verify.c - see verify.h. */
#include "offload/checkpoint/verify.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdlib.h>
#include <string.h>

struct spans {
    struct st_reader_span *items;
    uint64_t count;
};

/* Bytes that have been read, for progress. */
struct watched {
    st_verify_progress_fn *progress;
    void *ctx;
    const struct st_checkpoint *ck;
    uint64_t done, total;
};

static strata_status watch(struct watched *w, uint64_t bytes)
{
    w->done += bytes;
    return w->progress == NULL || w->progress(w->ctx, w->done, w->total)
               ? STRATA_OK
               : st_error(STRATA_E_CANCELLED, "%s: ended before all of it was read", w->ck->path);
}

static uint64_t plane_bytes(const struct st_checkpoint *ck, const struct st_extent_row *row, uint64_t elems)
{
    const struct st_manifest *m = &ck->manifest;

    return st_plane_bytes((enum st_plane)row->plane, st_manifest_group(m, row->page, row->group)->format, m->moment_format,
                          elems);
}

static strata_status alloc(struct spans *spans, uint64_t most)
{
    spans->count = 0;
    spans->items = st_fault("verify.alloc", 0) < 0 ? NULL : malloc((most + 1) * sizeof(*spans->items));
    return spans->items != NULL ? STRATA_OK : st_nomem((most + 1) * sizeof(*spans->items));
}

static struct st_reader_span whole_row(const struct st_extent_row *row)
{
    return (struct st_reader_span){.row = row, .first = row->first, .elems = row->elems};
}

void st_verify_amount(const struct st_checkpoint *ck, uint64_t *bytes, uint64_t *tiles)
{
    *bytes = 0;
    *tiles = ck->extents.sum_count;
    for (uint64_t i = 0; i < ck->extents.row_count; i++)
        *bytes += ck->extents.rows[i].bytes;
}

/* --- every tile --- */

struct verification {
    struct watched watched;
    void (*damaged)(void *ctx, const struct st_damage *damage);
    uint64_t damages;
};

static strata_status tile_right(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data)
{
    struct verification *v = ctx;

    (void)data;
    (void)first;
    return watch(&v->watched, plane_bytes(v->watched.ck, row, elems));
}

static strata_status tile_damaged(void *ctx, const struct st_damage *damage)
{
    struct verification *v = ctx;

    v->damages++;
    if (v->damaged != NULL)
        v->damaged(v->watched.ctx, damage);
    return watch(&v->watched, 0);
}

static int by_place(const void *a, const void *b)
{
    const struct st_extent_row *x = ((const struct st_reader_span *)a)->row, *y = ((const struct st_reader_span *)b)->row;

    if (x->space != y->space)
        return (x->space > y->space) - (x->space < y->space);
    return (x->offset > y->offset) - (x->offset < y->offset);
}

strata_status st_verify(const struct st_checkpoint *ck, st_verify_progress_fn *progress,
                        void (*damaged)(void *ctx, const struct st_damage *damage), void *ctx, uint64_t *damages)
{
    struct verification v = {.watched = {.progress = progress, .ctx = ctx, .ck = ck}, .damaged = damaged};
    const struct st_reader_sink sink = {.data = tile_right, .damaged = tile_damaged, .ctx = &v};
    struct st_reader *r;
    struct spans spans;
    uint64_t tiles;
    strata_status st = alloc(&spans, ck->extents.row_count);

    if (st != STRATA_OK)
        return st;
    st_verify_amount(ck, &v.watched.total, &tiles);
    for (uint64_t i = 0; i < ck->extents.row_count; i++)
        spans.items[spans.count++] = whole_row(&ck->extents.rows[i]);
    qsort(spans.items, spans.count, sizeof(*spans.items), by_place);
    st = st_reader_open(&r, ck, NULL);
    if (st == STRATA_OK) {
        st = st_reader_read(r, spans.items, spans.count, &sink);
        st_reader_close(r);
    }
    free(spans.items);
    *damages = v.damages;
    if (st == STRATA_OK && v.damages > 0)
        return st_error(STRATA_E_CORRUPT, "%s: %llu of its %llu tiles are damaged", ck->path, (unsigned long long)v.damages,
                        (unsigned long long)tiles);
    return st;
}

/* --- digests --- */

enum { DIGEST_WEIGHTS, DIGEST_STATE, DIGEST_PLANES, DIGEST_COUNT = DIGEST_PLANES + 3 };

struct digests {
    struct watched watched;
    struct st_digest *d[DIGEST_COUNT];
};

static strata_status digest_data(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data)
{
    struct digests *s = ctx;
    const struct st_checkpoint *ck = s->watched.ck;
    const uint64_t from = first - row->first;
    const uint64_t bytes = plane_bytes(ck, row, from + elems) - plane_bytes(ck, row, from);

    st_digest_update(s->d[row->plane == ST_PLANE_WEIGHT ? DIGEST_WEIGHTS : DIGEST_PLANES + row->plane], data, bytes);
    return watch(&s->watched, bytes);
}

/* Weights in parameter order: tensor by tensor, or page by page where there is no list.  spans NULL: only counted. */
static uint64_t list_weights(struct st_reader_span *spans, const struct st_checkpoint *ck)
{
    const struct st_manifest *m = &ck->manifest;
    uint64_t count = 0;

    for (uint32_t i = 0; i < m->tensor_count; i++)
        count += st_reader_spans(spans != NULL ? spans + count : NULL, ck, ST_PLANE_WEIGHT, m->tensors[i].page,
                                 m->tensors[i].offset, m->tensors[i].elems);
    for (uint32_t i = 0; m->tensor_count == 0 && i < m->group_count; i++)
        count += st_reader_spans(spans != NULL ? spans + count : NULL, ck, ST_PLANE_WEIGHT, m->groups[i].page,
                                 m->groups[i].offset, m->groups[i].elems);
    return count;
}

static strata_status list_all(struct spans *spans, const struct st_checkpoint *ck)
{
    const strata_status st = alloc(spans, list_weights(NULL, ck) + ck->extents.row_count);

    if (st != STRATA_OK)
        return st;
    spans->count = list_weights(spans->items, ck);
    for (uint64_t i = 0; i < ck->extents.row_count; i++)
        if (ck->extents.rows[i].plane != ST_PLANE_WEIGHT)
            spans->items[spans->count++] = whole_row(&ck->extents.rows[i]);
    return STRATA_OK;
}

/* The state's digest is that of its planes' digests, so that all can be made in one pass. */
static void end_digests(struct digests *s, char weights[ST_DIGEST_TEXT], char state[ST_DIGEST_TEXT])
{
    for (uint32_t i = DIGEST_PLANES; i < DIGEST_COUNT; i++) {
        char hex[ST_DIGEST_TEXT];

        st_digest_hex(s->d[i], hex);
        st_digest_update(s->d[DIGEST_STATE], hex, 32);
    }
    st_digest_hex(s->d[DIGEST_WEIGHTS], weights);
    st_digest_hex(s->d[DIGEST_STATE], state);
}

strata_status st_verify_digest(const struct st_checkpoint *ck, st_verify_progress_fn *progress, void *ctx,
                               char weights[ST_DIGEST_TEXT], char state[ST_DIGEST_TEXT])
{
    struct digests s = {.watched = {.progress = progress, .ctx = ctx, .ck = ck}};
    const struct st_reader_sink sink = {.data = digest_data, .ctx = &s};
    struct spans spans = {0};
    struct st_reader *r = NULL;
    uint64_t tiles;
    strata_status st = STRATA_OK;

    st_verify_amount(ck, &s.watched.total, &tiles);
    for (uint32_t i = 0; i < DIGEST_COUNT && st == STRATA_OK; i++)
        st = st_digest_create(&s.d[i]);
    if (st == STRATA_OK)
        st = list_all(&spans, ck);
    if (st == STRATA_OK)
        st = st_reader_open(&r, ck, NULL);
    if (st == STRATA_OK)
        st = st_reader_read(r, spans.items, spans.count, &sink);
    if (st == STRATA_OK)
        end_digests(&s, weights, state);
    st_reader_close(r);
    free(spans.items);
    for (uint32_t i = 0; i < DIGEST_COUNT; i++)
        st_digest_destroy(s.d[i]);
    return st;
}
