/* engine_export.c - reads whole planes for exports and digests, wherever they are stored, a page at a time.
 *
 * Called between steps, with no update pending; the program's slots serve as buffers, so nothing is allocated. */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"

/* Hands a span of a plane to the sink, wherever it is stored; device spans go through staging, part by part. */
static strata_status emit_span(struct st_engine *eng, const unsigned char *from, bool on_device, uint64_t elems, size_t width,
                               strata_status (*emit)(void *ctx, uint64_t first, uint64_t count, const void *data), void *ctx)
{
    strata_status st = STRATA_OK;

    for (uint64_t first = 0; first < elems && st == STRATA_OK; first += ST_SCRATCH_ELEMS) {
        const uint64_t count = elems - first < ST_SCRATCH_ELEMS ? elems - first : ST_SCRATCH_ELEMS;
        const void *data = from + first * width;

        if (on_device) {
            st = st_engine_get(eng, eng->staging, data, count * width);
            data = eng->staging;
        }
        if (st == STRATA_OK)
            st = emit(ctx, first, count, data);
    }
    return st;
}

struct sink_span {
    st_engine_sink_fn *sink;
    void *ctx;
    uint32_t page;
    uint64_t base;
};

static strata_status sink_emit(void *ctx, uint64_t first, uint64_t count, const void *data)
{
    const struct sink_span *s = ctx;

    return s->sink(s->ctx, s->page, s->base + first, count, data);
}

static strata_status page_weights(struct st_engine *eng, uint32_t p, const unsigned char **out, bool *on_device)
{
    const struct st_page_place *place = &eng->program->pages[p];
    struct st_engine_io io;
    unsigned char *slot;
    strata_status st;

    *on_device = place->home == ST_WHERE_DEVICE;
    if (place->home != ST_WHERE_NVME) {
        *out = st_engine_pointer(eng, *on_device ? place->weight_region : place->home_region);
        return STRATA_OK;
    }
    slot = st_engine_host_slot(eng, ST_OP_READ_WEIGHT);
    *out = slot;
    if ((st = st_engine_page_start(eng, &io, ST_IO_READ, p, slot)) != STRATA_OK ||
        (st = st_engine_transfer_wait(eng, &io)) != STRATA_OK)
        return st;
    return st_engine_verify_weights(eng, p, slot);
}

/* The page whose weights are loaded; loading another replaces it. */
struct page_view {
    uint32_t page;
    const unsigned char *weights;
    bool on_device;
};

static strata_status export_span(struct st_engine *eng, struct page_view *view, const struct st_span *span,
                                 st_engine_sink_fn *sink, void *ctx)
{
    const struct st_page *page = &eng->program->workload.pages[span->page];
    const size_t width = strata_dtype_bytes(eng->program->workload.dtype); /* every group's format */
    struct sink_span to = {.sink = sink, .ctx = ctx, .page = span->page, .base = span->offset};
    strata_status st = STRATA_OK;

    if (view->page != span->page)
        st = page_weights(eng, span->page, &view->weights, &view->on_device);
    if (st != STRATA_OK)
        return st;
    view->page = span->page;
    return emit_span(eng, view->weights + st_page_at(page, span->offset), view->on_device, span->elems, width, sink_emit, &to);
}

static strata_status export_groups(struct st_engine *eng, struct page_view *view, uint32_t p, st_engine_sink_fn *sink, void *ctx)
{
    const struct st_page *page = &eng->program->workload.pages[p];
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < page->group_count && st == STRATA_OK; i++) {
        const struct st_span span = {.page = p, .offset = page->groups[i].offset, .elems = page->groups[i].elems};

        st = export_span(eng, view, &span, sink, ctx);
    }
    return st;
}

strata_status st_engine_export(struct st_engine *eng, st_engine_sink_fn *sink, void *ctx)
{
    struct page_view view = {.page = ST_NO_PAGE};
    strata_status st = st_engine_flush(eng, NULL);

    for (uint32_t p = 0; p < eng->program->workload.page_count && st == STRATA_OK; p++)
        st = export_groups(eng, &view, p, sink, ctx);
    return st;
}

/* Exports in parameter order, so that the result does not depend on what is frozen. */
static strata_status export_ordered(struct st_engine *eng, st_engine_sink_fn *sink, void *ctx)
{
    const struct st_workload *w = &eng->program->workload;
    struct page_view view = {.page = ST_NO_PAGE};
    strata_status st;

    if (w->order == NULL)
        return st_engine_export(eng, sink, ctx);
    st = st_engine_flush(eng, NULL);
    for (uint32_t i = 0; i < w->order_count && st == STRATA_OK; i++)
        st = export_span(eng, &view, &w->order[i], sink, ctx);
    return st;
}

struct digest_span {
    struct st_digest *digest;
    size_t width;
};

static strata_status digest_emit(void *ctx, uint64_t first, uint64_t count, const void *data)
{
    const struct digest_span *d = ctx;

    (void)first;
    st_digest_update(d->digest, data, count * d->width);
    return STRATA_OK;
}

static strata_status digest_sink(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    (void)page;
    return digest_emit(ctx, first, count, weight);
}

/* Reads a chunk's state from NVMe, of a fresh one what is there, and checks it. */
static strata_status read_state(struct st_engine *eng, uint32_t c, void *state)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    struct st_engine_io io;
    strata_status st = st_engine_transfer_start(eng, &io, ST_IO_READ, chunk->region, 0, state,
                                                eng->fresh[c] ? st_chunk_fresh_bytes(chunk) : chunk->bytes, false);

    if (st != STRATA_OK || (st = st_engine_transfer_wait(eng, &io)) != STRATA_OK)
        return st;
    return st_engine_verify_state(eng, c, state);
}

static strata_status digest_chunk_state(struct st_engine *eng, uint32_t c, struct st_digest *const planes[3])
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const uint64_t moment = st_moment_bytes(eng->program->moment_format, chunk->elems);
    const uint64_t bytes[3] = {chunk->elems * st_master_width(chunk->master), moment, moment};
    const uint64_t offsets[3] = {0, chunk->moment1_offset, chunk->moment2_offset};
    unsigned char *state =
        chunk->state == ST_WHERE_NVME ? st_engine_host_slot(eng, ST_OP_READ_STATE) : st_engine_pointer(eng, chunk->region);
    strata_status st = STRATA_OK;

    if (chunk->state == ST_WHERE_NVME)
        st = read_state(eng, c, state);
    for (uint32_t i = bytes[0] != 0 ? 0 : 1; i < 1 + eng->program->moments && st == STRATA_OK; i++) {
        struct digest_span span = {.digest = planes[i], .width = 1};

        st = emit_span(eng, state + offsets[i], chunk->state == ST_WHERE_DEVICE, bytes[i], 1, digest_emit, &span);
    }
    return st;
}

/* The state digest is the digest of the three planes' digests, so that one pass over the extents is enough. */
static strata_status digest_state(struct st_engine *eng, struct st_digest *whole, struct st_digest *const planes[3])
{
    for (uint32_t c = 0; c < eng->program->chunk_count; c++) {
        strata_status st = eng->program->chunks[c].state == ST_WHERE_NONE ? STRATA_OK : digest_chunk_state(eng, c, planes);

        if (st != STRATA_OK)
            return st;
    }
    for (uint32_t i = 0; i < 3; i++) {
        char hex[33];

        st_digest_hex(planes[i], hex);
        st_digest_update(whole, hex, 32);
    }
    return STRATA_OK;
}

strata_status st_engine_digest(struct st_engine *eng, char weights[33], char state[33])
{
    struct st_digest *d[5] = {NULL};
    struct digest_span span;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < 5 && st == STRATA_OK; i++)
        st = st_digest_create(&d[i]);
    if (st == STRATA_OK) {
        span = (struct digest_span){.digest = d[0], .width = strata_dtype_bytes(eng->program->workload.dtype)};
        st = export_ordered(eng, digest_sink, &span);
    }
    if (st == STRATA_OK)
        st = digest_state(eng, d[1], &d[2]);
    if (st == STRATA_OK) {
        st_digest_hex(d[0], weights);
        st_digest_hex(d[1], state);
    }
    for (uint32_t i = 0; i < 5; i++)
        st_digest_destroy(d[i]);
    return st;
}
