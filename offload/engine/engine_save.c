/* engine_save.c - brings all that a run has learnt into one set of the swap, and says what lies where in it.
 *
 * Called between steps; or a step does it itself, by the program's ops of phase SAVE.  What lives on NVMe lies in the set that
 * updates write already; what lives in memory is written to its place there now, what is frozen once, to the base.  After
 * st_engine_use_set() updates write to another set, so that this one stays as it is.  A failure here is the save's alone: the
 * engine goes on. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"
#include "offload/checkpoint/extents.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct save {
    struct st_engine *eng;
    struct st_ring bounce; /* slots of the engine's bounce memory */
    struct st_ring direct; /* no slots: transfers straight from the arena */
    bool base_alone;       /* only what is frozen */
};

/* Whether the host cannot read what lies there. */
static bool is_remote(const struct st_engine *eng, enum st_where where)
{
    return where == ST_WHERE_DEVICE && !eng->device->ops->arena_is_host;
}

static uint64_t whole_blocks(uint64_t bytes)
{
    return st_extent_bytes(bytes);
}

/* --- what lives in memory --- */

/* Starts the write of one part of an extent from memory, by way of a bounce slot. */
static strata_status write_part(struct save *s, uint32_t extent, uint64_t at, const unsigned char *from, uint64_t bytes,
                                bool remote)
{
    unsigned char *slot;
    strata_status st = st_ring_take(&s->bounce, s->eng, &slot);

    if (st != STRATA_OK)
        return st;
    if (remote)
        st = st_engine_get(s->eng, slot, from, bytes);
    else
        memcpy(slot, from, bytes);
    if (st != STRATA_OK)
        return st;
    memset(slot + bytes, 0, whole_blocks(bytes) - bytes);
    return st_ring_start(&s->bounce, s->eng, ST_IO_WRITE, extent, at, whole_blocks(bytes));
}

/* Writes memory to the start of an extent, whose last block is filled with zeros.  whole: the memory has whole blocks. */
static strata_status write_out(struct save *s, uint32_t extent, const unsigned char *from, uint64_t bytes, bool remote,
                               bool whole)
{
    strata_status st = STRATA_OK;

    if (!remote && whole && (uintptr_t)from % ST_EXTENT_ALIGN == 0) {
        unsigned char *slot;

        if ((st = st_ring_take(&s->direct, s->eng, &slot)) != STRATA_OK)
            return st;
        s->direct.slot[s->direct.next] = (unsigned char *)(uintptr_t)from; /* only read */
        return st_ring_start(&s->direct, s->eng, ST_IO_WRITE, extent, 0, whole_blocks(bytes));
    }
    for (uint64_t at = 0; at < bytes && st == STRATA_OK; at += ST_BOUNCE_BYTES) {
        const uint64_t left = bytes - at;

        st = write_part(s, extent, at, from + at, left < ST_BOUNCE_BYTES ? left : ST_BOUNCE_BYTES, remote);
    }
    return st;
}

static strata_status save_page(struct save *s, uint32_t p)
{
    struct st_engine *eng = s->eng;
    const struct st_page_place *place = &eng->program->pages[p];
    const struct st_page *page = &eng->program->workload.pages[p];
    const bool remote = is_remote(eng, place->home), on_host = place->home == ST_WHERE_HOST;
    const unsigned char *from;
    strata_status st = STRATA_OK;

    if (place->home == ST_WHERE_NVME)
        return STRATA_OK;
    from = st_engine_pointer(eng, place->home == ST_WHERE_DEVICE ? place->weight_region : place->home_region);
    if (remote)
        st = st_engine_hash_remote_weights(eng, p, from, !eng->base_saved);
    else if (eng->base_saved)
        st_engine_hash_updated(eng, p, from);
    else
        st_engine_hash_weights(eng, p, from);
    if (st == STRATA_OK && place->extent != ST_NO_BUFFER && !s->base_alone)
        st = write_out(s, place->extent, from, st_page_set_bytes(page), remote, on_host);
    if (st == STRATA_OK && place->base_extent != ST_NO_BUFFER && !eng->base_saved)
        st = write_out(s, place->base_extent, from + st_page_base_at(page), page->bytes - st_page_base_at(page), remote, on_host);
    return st;
}

static strata_status save_state(struct save *s, uint32_t c)
{
    struct st_engine *eng = s->eng;
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const bool remote = is_remote(eng, chunk->state);
    const unsigned char *from;
    strata_status st = STRATA_OK;

    if (chunk->state == ST_WHERE_NONE || chunk->state == ST_WHERE_NVME)
        return STRATA_OK;
    from = st_engine_pointer(eng, chunk->region);
    if (remote)
        st = st_engine_hash_remote_state(eng, c, from);
    else
        st_engine_hash_state(eng, c, from);
    return st != STRATA_OK ? st : write_out(s, chunk->extent, from, chunk->bytes, remote, true);
}

static strata_status save_memory(struct st_engine *eng, bool base_alone)
{
    struct save s = {.eng = eng, .base_alone = base_alone, .direct = {.count = ST_RING_SLOTS_MAX, .apart = true}};
    strata_status st = STRATA_OK, one;

    s.bounce.apart = true;
    st = st_ring_bounce(&s.bounce, eng);
    for (uint32_t p = 0; p < eng->program->workload.page_count && st == STRATA_OK; p++)
        st = save_page(&s, p);
    for (uint32_t c = 0; c < eng->program->chunk_count && st == STRATA_OK && !base_alone; c++)
        st = save_state(&s, c);
    one = st_ring_close(&s.bounce, eng);
    st = st == STRATA_OK ? one : st;
    one = st_ring_close(&s.direct, eng);
    st = st == STRATA_OK ? one : st;
    if (st == STRATA_OK)
        eng->base_saved = true;
    return st;
}

/* --- what lies where --- */

static void add_row(struct st_extents *e, const struct st_engine *eng, uint32_t group, const struct st_chunk *chunk,
                    enum st_plane plane)
{
    const struct st_program *program = eng->program;
    struct st_extent_row *row = &e->rows[e->row_count++];
    const struct st_buffer *extent;
    uint64_t at;

    extent = &program->buffers[st_engine_extent(program, chunk, plane, &at)];
    *row = (struct st_extent_row){.page = chunk->page,
                                  .group = (uint8_t)group,
                                  .plane = (uint8_t)plane,
                                  .space = extent->space,
                                  .format = st_extent_format(plane, chunk->format, program->moment_format),
                                  .first = chunk->first - program->workload.pages[chunk->page].groups[group].offset,
                                  .elems = chunk->elems,
                                  .offset = extent->offset + at,
                                  .bytes = st_chunk_plane_bytes(program, chunk, plane, chunk->elems),
                                  .sum_first = e->sum_count,
                                  .sum_count = (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS};
    memcpy(e->sums + e->sum_count, eng->checksums[plane] + chunk->tile_first, row->sum_count * sizeof(*e->sums));
    e->sum_count += row->sum_count;
}

static void add_group(struct st_extents *e, const struct st_engine *eng, uint32_t p, uint32_t group)
{
    const struct st_page_place *place = &eng->program->pages[p];
    const struct st_group *g = &eng->program->workload.pages[p].groups[group];

    for (uint32_t i = 0; i < ST_PLANE_COUNT; i++)
        for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++) {
            const struct st_chunk *chunk = &eng->program->chunks[c];

            if (chunk->first >= g->offset && chunk->first - g->offset < g->elems &&
                st_chunk_has_plane(eng->program, chunk, (enum st_plane)i))
                add_row(e, eng, group, chunk, (enum st_plane)i);
        }
}

static strata_status list_extents(const struct st_engine *eng, struct st_extents *out)
{
    const struct st_program *program = eng->program;
    struct st_extents e = {.rows = calloc(program->chunk_count * ST_PLANE_COUNT, sizeof(*e.rows)),
                           .sums = calloc(program->tile_count * ST_PLANE_COUNT, sizeof(*e.sums))};

    if (e.rows == NULL || e.sums == NULL) {
        st_extents_fini(&e);
        return st_error(STRATA_E_NOMEM, "no memory for the %u rows of a checkpoint's extents",
                        program->chunk_count * ST_PLANE_COUNT);
    }
    for (uint32_t p = 0; p < program->workload.page_count; p++)
        for (uint32_t group = 0; group < program->workload.pages[p].group_count; group++)
            add_group(&e, eng, p, group);
    *out = e;
    return STRATA_OK;
}

strata_status st_engine_save(struct st_engine *eng, struct st_extents *out)
{
    strata_status st = st_engine_flush(eng, NULL);

    assert(eng->program->sets > 0);
    if (st == STRATA_OK)
        st = save_memory(eng, false);
    return st != STRATA_OK ? st : list_extents(eng, out);
}

strata_status st_engine_save_base(struct st_engine *eng)
{
    return eng->base_saved ? STRATA_OK : save_memory(eng, true);
}

/* Writes of the cycle may still be in flight. */
strata_status st_engine_save_ended(struct st_engine *eng, struct st_extents *out)
{
    strata_status st = st_engine_drain(eng);

    if (st == STRATA_OK)
        st = st_engine_apart(eng);
    return st != STRATA_OK ? st : list_extents(eng, out);
}

const struct st_train_state *st_engine_train_state(const struct st_engine *eng)
{
    return &eng->train;
}

uint32_t st_engine_set(const struct st_engine *eng)
{
    return eng->set;
}

void st_engine_use_set(struct st_engine *eng, uint32_t set)
{
    eng->set = set;
}

struct st_swap *st_engine_swap(const struct st_engine *eng)
{
    return eng->swap;
}
