/* engine_export.c - reads whole planes for exports and digests, wherever they are stored, a page at a time.
 *
 * Called between steps, with no update pending; the program's slots serve as buffers, so nothing is allocated.  With ranks every
 * one walks through all elements in the same order: who has them gives them, and rank 0 takes them (st_relay_run()). */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"

#include <string.h>

/* --- weights --- */

struct sink_span {
    st_engine_sink_fn *sink;
    void *ctx;
    uint32_t page;
    uint64_t base, end; /* elements from the page's start */
    strata_dtype format;
};

/* Elements in `bytes`: whole ones; for NF4 those of whole records. */
static uint64_t elems_of(strata_dtype format, uint64_t bytes)
{
    return format == STRATA_NF4 ? bytes / sizeof(struct st_nf4_block) * ST_NF4_ELEMS : bytes / strata_dtype_bytes(format);
}

static strata_status sink_emit(void *ctx, uint64_t at, uint64_t bytes, const void *data)
{
    const struct sink_span *s = ctx;

    const uint64_t first = s->base + elems_of(s->format, at), count = elems_of(s->format, bytes);

    return s->sink(s->ctx, s->page, first, count < s->end - first ? count : s->end - first, data);
}

static strata_status page_weights(struct st_engine *eng, uint32_t p, const unsigned char **out, bool *on_device)
{
    const struct st_page_place *place = &eng->program->pages[p];
    struct st_engine_io io;
    unsigned char *slot;
    strata_status st;

    *on_device = place->home == ST_WHERE_DEVICE;
    if (place->home != ST_WHERE_NVME) {
        *out = st_engine_pointer(eng, st_page_home(place));
        return STRATA_OK;
    }
    slot = st_engine_host_slot(eng, ST_OP_READ_WEIGHT);
    *out = slot;
    if ((st = st_engine_page_start(eng, &io, ST_IO_READ, p, slot)) != STRATA_OK ||
        (st = st_engine_transfer_wait(eng, &io)) != STRATA_OK)
        return st;
    return st_engine_verify_weights(eng, p, slot);
}

/* The page whose weights are loaded, as this rank has them; loading another replaces it. */
struct page_view {
    struct st_relay relay;
    uint32_t page;
    const unsigned char *weights;
    bool on_device;
    st_engine_sink_fn *sink;
    void *ctx;
};

/* Elements of a group that lie side by side and have one owner. */
struct run {
    uint32_t page, group, owner;
    struct st_slice slice; /* the owner's */
    uint64_t first, elems; /* in the group */
};

/* The run that begins with an element of a page and ends at `end` at the latest, both counted from the page's start. */
static struct run run_at(const struct st_program *program, uint32_t p, uint64_t element, uint64_t end)
{
    const struct st_page *page = &program->workload.pages[p];
    const uint32_t cuts = st_program_cuts(program);
    struct run r = {.page = p, .group = page->group_count - 1};
    const struct st_group *group;
    uint64_t left;

    while (r.group > 0 && element < page->groups[r.group].offset)
        r.group--;
    group = &page->groups[r.group];
    r.first = element - group->offset;
    r.owner = st_slice_owner(&program->workload, p, r.group, cuts, r.first);
    r.slice = st_slice_of(&program->workload, p, r.group, cuts, r.owner);
    left = r.slice.first + r.slice.elems - r.first;
    r.elems = end - element < left ? end - element : left;
    return r;
}

/* Where this rank, the owner, has a run's weights. */
static const unsigned char *weights_at(const struct st_program *program, const struct page_view *view, const struct run *r)
{
    const struct st_group *whole = &program->workload.pages[r->page].groups[r->group];
    const struct st_group *room = &program->shards[r->page].groups[r->group];

    if (view->on_device && !st_page_sliced(&program->pages[r->page]))
        return view->weights + whole->at + st_format_bytes(whole->format, r->first);
    return view->weights + room->at + st_format_bytes(room->format, r->first - r->slice.first);
}

static void export_run(struct page_view *view, const struct run *r)
{
    struct st_engine *eng = view->relay.eng;
    const struct st_group *group = &eng->program->workload.pages[r->page].groups[r->group];
    const uint64_t base = group->offset + r->first;
    struct sink_span to = {
        .sink = view->sink, .ctx = view->ctx, .page = r->page, .base = base, .end = base + r->elems, .format = group->format};
    struct st_relay_run run = {.owner = r->owner,
                               .bytes = st_format_bytes(group->format, r->elems),
                               .most = st_format_bytes(group->format, ST_SCRATCH_ELEMS),
                               .emit = sink_emit,
                               .ctx = &to};

    if (r->owner == eng->program->rank && view->relay.failure == STRATA_OK) {
        if (view->page != r->page)
            st_relay_fail(&view->relay, page_weights(eng, r->page, &view->weights, &view->on_device));
        view->page = r->page;
        run.from = weights_at(eng->program, view, r);
        run.on_device = view->on_device;
    }
    st_relay_run(&view->relay, &run);
}

static void export_span(struct page_view *view, const struct st_span *span)
{
    const uint64_t end = span->offset + span->elems;

    for (uint64_t at = span->offset; at < end && st_relay_goes_on(&view->relay);) {
        const struct run r = run_at(view->relay.eng->program, span->page, at, end);

        export_run(view, &r);
        at += r.elems;
    }
}

static void export_page(struct page_view *view, uint32_t p)
{
    const struct st_page *page = &view->relay.eng->program->workload.pages[p];

    for (uint32_t i = 0; i < page->group_count; i++)
        export_span(view, &(struct st_span){.page = p, .offset = page->groups[i].offset, .elems = page->groups[i].elems});
}

/* ordered: in parameter order, so that the result does not depend on what is frozen. */
static strata_status export_all(struct st_engine *eng, st_engine_sink_fn *sink, void *ctx, bool ordered)
{
    const struct st_workload *w = &eng->program->workload;
    struct page_view view = {.page = ST_NO_PAGE, .sink = sink, .ctx = ctx};

    st_relay_begin(&view.relay, eng);
    st_relay_fail(&view.relay, st_engine_flush(eng, NULL));
    for (uint32_t i = 0; ordered && w->order != NULL && i < w->order_count; i++)
        export_span(&view, &w->order[i]);
    for (uint32_t p = 0; (!ordered || w->order == NULL) && p < w->page_count; p++)
        export_page(&view, p);
    return st_relay_end(&view.relay);
}

strata_status st_engine_export(struct st_engine *eng, st_engine_sink_fn *sink, void *ctx)
{
    const strata_status st = st_engine_outside(eng, "export");

    return st != STRATA_OK ? st : export_all(eng, sink, ctx, false);
}

/* --- digests --- */

static strata_status digest_emit(void *ctx, uint64_t at, uint64_t bytes, const void *data)
{
    (void)at;
    st_digest_update(ctx, data, bytes);
    return STRATA_OK;
}

struct weights_digest {
    struct st_digest *digest;
    const struct st_workload *workload;
};

static strata_status digest_sink(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    const struct weights_digest *d = ctx;
    const strata_dtype format = st_page_group(&d->workload->pages[page], first)->format;

    return digest_emit(d->digest, first, st_format_bytes(format, count), weight);
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

/* What the owner of `elems` elements of a chunk's room has of it goes to the planes' digests. */
static void digest_chunk_state(struct st_relay *relay, uint32_t c, uint32_t owner, uint64_t elems,
                               struct st_digest *const planes[3])
{
    struct st_engine *eng = relay->eng;
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const uint64_t moment = st_moment_bytes(eng->program->moment_format, elems);
    const uint64_t bytes[3] = {elems * st_master_width(chunk->master), moment, moment};
    const uint64_t offsets[3] = {0, chunk->moment1_offset, chunk->moment2_offset};
    const bool swapped = chunk->state == ST_WHERE_NVME;
    unsigned char *state = NULL;

    if (owner == eng->program->rank && relay->failure == STRATA_OK) {
        state = swapped ? st_engine_host_slot(eng, ST_OP_READ_STATE) : st_engine_pointer(eng, chunk->region);
        if (swapped)
            st_relay_fail(relay, read_state(eng, c, state));
    }
    for (uint32_t i = 0; i < 1 + eng->program->moments; i++)
        st_relay_run(relay, &(struct st_relay_run){.owner = owner,
                                                   .from = state != NULL ? state + offsets[i] : NULL,
                                                   .on_device = chunk->state == ST_WHERE_DEVICE,
                                                   .bytes = bytes[i],
                                                   .most = ST_SCRATCH_BYTES,
                                                   .emit = digest_emit,
                                                   .ctx = planes[i]});
}

/* The owner's part of the group's state, chunk by chunk: each rank has cut its own in the same places. */
static void digest_run_state(struct st_relay *relay, const struct run *r, struct st_digest *const planes[3])
{
    const struct st_program *program = relay->eng->program;
    const struct st_page_place *place = &program->pages[r->page];
    const struct st_group *room = &program->shards[r->page].groups[r->group];
    const uint32_t end = place->chunk_first + place->chunk_count;

    for (uint32_t c = place->chunk_first; c < end; c++) {
        const struct st_chunk *chunk = &program->chunks[c];
        const bool last = c + 1 == end || chunk[1].first >= room->offset + room->elems;
        const uint64_t at = chunk->first - room->offset, stop = last ? room->elems : chunk[1].first - room->offset;
        const uint64_t filled = stop < r->slice.elems ? stop : r->slice.elems;

        if (chunk->first >= room->offset && at < filled)
            digest_chunk_state(relay, c, r->owner, filled - at, planes);
    }
}

static void digest_group_state(struct st_relay *relay, uint32_t p, const struct st_group *group,
                               struct st_digest *const planes[3])
{
    struct run r;

    for (uint64_t at = 0; at < group->elems; at += r.elems) {
        r = run_at(relay->eng->program, p, group->offset + at, group->offset + group->elems);
        digest_run_state(relay, &r, planes);
    }
}

static void digest_kind_state(struct st_relay *relay, uint32_t p, enum st_group_kind kind, struct st_digest *const planes[3])
{
    const struct st_page *page = &relay->eng->program->workload.pages[p];

    for (uint32_t g = 0; g < page->group_count; g++)
        if (page->groups[g].kind == kind)
            digest_group_state(relay, p, &page->groups[g], planes);
}

/* Pages from `p` on, whose state is taken kind by kind: of slices of experts all of their layer, so that the order does not
 * depend on how many experts a page has. */
static uint32_t pages_together(const struct st_workload *w, uint32_t p)
{
    const struct st_layer *layer = &w->layers[w->pages[p].layer];

    return layer->kind == ST_LAYER_EXPERTS && p == w->uses[layer->use_first + 1] ? layer->use_count - 1 : 1;
}

/* The state digest is the digest of the three planes' digests, so that one pass over the extents is enough. */
static strata_status digest_state(struct st_engine *eng, struct st_digest *whole, struct st_digest *const planes[3])
{
    const struct st_program *program = eng->program;
    const struct st_workload *w = &program->workload;
    struct st_relay relay;
    strata_status st;

    st_relay_begin(&relay, eng);
    for (uint32_t p = 0, end; p < w->page_count && !program->forward_only; p = end) {
        end = p + pages_together(w, p);
        for (enum st_group_kind kind = ST_GROUP_DECAY; kind < ST_GROUP_FROZEN; kind++)
            for (uint32_t q = p; q < end; q++)
                digest_kind_state(&relay, q, kind, planes);
    }
    st = st_relay_end(&relay);
    for (uint32_t i = 0; i < 3 && st == STRATA_OK; i++) {
        char hex[33];

        st_digest_hex(planes[i], hex);
        st_digest_update(whole, hex, 32);
    }
    return st;
}

/* Rank 0's are everybody's. */
static strata_status share(struct st_engine *eng, char weights[33], char state[33])
{
    struct st_engine_answer mine = {0};
    strata_status st;

    if (eng->host_comm == NULL)
        return STRATA_OK;
    memcpy(mine.sentence, weights, 33);
    memcpy(mine.sentence + 33, state, 33);
    st = st_comm_gather(eng->host_comm, &mine, sizeof(mine), eng->answers, "digests");
    memcpy(weights, eng->answers[0].sentence, 33);
    memcpy(state, eng->answers[0].sentence + 33, 33);
    return st;
}

strata_status st_engine_digest(struct st_engine *eng, char weights[33], char state[33])
{
    struct st_digest *d[5] = {NULL};
    struct weights_digest to;
    strata_status st = st_engine_outside(eng, "digest");

    if (st != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < 5 && st == STRATA_OK; i++)
        st = st_digest_create(&d[i]);
    st = st_engine_agree(eng, st, "the beginning of a digest");
    if (st == STRATA_OK) {
        to = (struct weights_digest){.digest = d[0], .workload = &eng->program->workload};
        st = export_all(eng, digest_sink, &to, true);
    }
    if (st == STRATA_OK)
        st = digest_state(eng, d[1], &d[2]);
    if (st == STRATA_OK) {
        st_digest_hex(d[0], weights);
        st_digest_hex(d[1], state);
        st = share(eng, weights, state);
    }
    for (uint32_t i = 0; i < 5; i++)
        st_digest_destroy(d[i]);
    return st;
}
