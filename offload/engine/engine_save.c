/* engine_save.c - brings all that a run has learnt into one set of the swap, and says what lies where in it.
 *
 * Called between steps; or a step does it itself, by the program's ops of phase SAVE.  What lives on NVMe lies in the set that
 * updates write already; what lives in memory is written to its place there now, what is frozen once, to the base.  After
 * st_engine_use_set() updates write to another set, so that this one stays as it is: where it became no checkpoint and no update
 * has followed, it is what is saved again.  A failure here is only the save's: the engine goes on. */
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

/* What goes to an extent.  Of a page that lies whole on the device: the bytes of its shard, piece by piece. */
struct source {
    const unsigned char *from; /* its first byte; of a whole page, the page's */
    uint64_t first, bytes;     /* of a whole page: in its shard; else first is 0 */
    uint32_t page;             /* ST_NO_PAGE: the bytes follow each other */
    bool remote, whole;        /* whole: the memory has whole blocks */
};

static strata_status copy_run(const struct save *s, const struct source *src, unsigned char *to, uint64_t at, uint64_t bytes)
{
    if (src->remote)
        return st_engine_get(s->eng, to, src->from + at, bytes);
    memcpy(to, src->from + at, bytes);
    return STRATA_OK;
}

/* Copies bytes [at, at + bytes) of a source. */
static strata_status copy_part(const struct save *s, const struct source *src, unsigned char *to, uint64_t at, uint64_t bytes)
{
    struct st_shard_piece pieces[ST_GROUPS_MAX];
    strata_status st = STRATA_OK;
    uint32_t count;

    if (src->page == ST_NO_PAGE)
        return copy_run(s, src, to, at, bytes);
    memset(to, 0, bytes);
    count = st_program_pieces(pieces, s->eng->program, src->page, src->first + at, bytes);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = copy_run(s, src, to + (pieces[i].shard_at - src->first - at), pieces[i].page_at, pieces[i].bytes);
    return st;
}

/* Starts the write of one part of an extent from memory, by way of a bounce slot. */
static strata_status write_part(struct save *s, uint32_t extent, const struct source *src, uint64_t at, uint64_t bytes)
{
    unsigned char *slot;
    strata_status st = st_ring_take(&s->bounce, s->eng, &slot);

    if (st != STRATA_OK || (st = copy_part(s, src, slot, at, bytes)) != STRATA_OK)
        return st;
    memset(slot + bytes, 0, whole_blocks(bytes) - bytes);
    return st_ring_start(&s->bounce, s->eng, ST_IO_WRITE, extent, at, whole_blocks(bytes));
}

/* Writes memory to the start of an extent, whose last block is filled with zeros. */
static strata_status write_out(struct save *s, uint32_t extent, const struct source *src)
{
    strata_status st = STRATA_OK;

    if (!src->remote && src->whole && (uintptr_t)src->from % ST_EXTENT_ALIGN == 0) {
        unsigned char *slot;

        if ((st = st_ring_take(&s->direct, s->eng, &slot)) != STRATA_OK)
            return st;
        s->direct.slot[s->direct.next] = (unsigned char *)(uintptr_t)src->from; /* only read */
        return st_ring_start(&s->direct, s->eng, ST_IO_WRITE, extent, 0, whole_blocks(src->bytes));
    }
    for (uint64_t at = 0; at < src->bytes && st == STRATA_OK; at += ST_BOUNCE_BYTES) {
        const uint64_t left = src->bytes - at;

        st = write_part(s, extent, src, at, left < ST_BOUNCE_BYTES ? left : ST_BOUNCE_BYTES);
    }
    return st;
}

/* Bytes of a page's shard, from `first` on, where they live. */
static struct source shard_of(const struct st_engine *eng, uint32_t p, const unsigned char *weights, uint64_t first,
                              uint64_t bytes)
{
    if (st_page_sliced(&eng->program->pages[p]))
        return (struct source){weights + first, 0, bytes, ST_NO_PAGE, is_remote(eng, ST_WHERE_DEVICE), false};
    if (eng->program->pages[p].home == ST_WHERE_DEVICE)
        return (struct source){weights, first, bytes, p, is_remote(eng, ST_WHERE_DEVICE), false};
    return (struct source){weights + first, 0, bytes, ST_NO_PAGE, false, true};
}

static strata_status save_page(struct save *s, uint32_t p)
{
    struct st_engine *eng = s->eng;
    const struct st_page_place *place = &eng->program->pages[p];
    const struct st_page *shard = &eng->program->shards[p];
    const uint64_t base = st_page_base_at(shard);
    const unsigned char *from;
    struct source trained, frozen;
    strata_status st = STRATA_OK;

    if (place->home == ST_WHERE_NVME)
        return STRATA_OK;
    from = st_engine_pointer(eng, st_page_home(place));
    trained = shard_of(eng, p, from, 0, st_page_set_bytes(shard));
    frozen = shard_of(eng, p, from, base, shard->bytes - base);
    if (trained.remote)
        st = st_engine_hash_remote_weights(eng, p, from, !eng->base_saved);
    else if (eng->base_saved)
        st_engine_hash_updated(eng, p, from);
    else
        st_engine_hash_weights(eng, p, from);
    if (st == STRATA_OK && place->extent != ST_NO_BUFFER && !s->base_alone)
        st = write_out(s, place->extent, &trained);
    if (st == STRATA_OK && place->base_extent != ST_NO_BUFFER && !eng->base_saved)
        st = write_out(s, place->base_extent, &frozen);
    return st;
}

static strata_status save_state(struct save *s, uint32_t c)
{
    struct st_engine *eng = s->eng;
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const bool remote = is_remote(eng, chunk->state);
    struct source state = {.bytes = chunk->bytes, .page = ST_NO_PAGE, .remote = remote, .whole = true};
    strata_status st = STRATA_OK;

    if (chunk->state == ST_WHERE_NONE || chunk->state == ST_WHERE_NVME)
        return STRATA_OK;
    state.from = st_engine_pointer(eng, chunk->region);
    if (remote)
        st = st_engine_hash_remote_state(eng, c, state.from);
    else
        st_engine_hash_state(eng, c, state.from);
    return st != STRATA_OK ? st : write_out(s, chunk->extent, &state);
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

/* The run's set that a volume is; the one in use, if it is none of them. */
static uint32_t set_of(const struct st_engine *eng, uint32_t volume)
{
    for (uint32_t set = 0; set < eng->program->sets; set++)
        if (st_swap_volume(eng->swap, ST_SPACE_SET, set) == volume)
            return set;
    return eng->set;
}

/* The set where that is which lives on NVMe: every update writes all of it. */
static uint32_t set_of_nvme(const struct st_engine *eng)
{
    const struct st_program *program = eng->program;

    for (uint32_t c = 0; c < program->chunk_count; c++)
        if (program->chunks[c].elems > 0 && program->chunks[c].state == ST_WHERE_NVME)
            return set_of(eng, eng->volumes[program->chunks[c].extent]);
    for (uint32_t p = 0; p < program->workload.page_count; p++)
        if (program->pages[p].home == ST_WHERE_NVME && program->pages[p].extent != ST_NO_BUFFER)
            return set_of(eng, eng->volumes[program->pages[p].extent]);
    return eng->set;
}

static void add_row(struct st_extents *e, const struct st_engine *eng, const struct st_chunk *chunk, enum st_plane plane)
{
    const struct st_program *program = eng->program;
    struct st_extent_row *row = &e->rows[e->row_count++];
    uint64_t at, first;
    const uint32_t group = st_chunk_group(program, chunk, &first), buffer = st_engine_extent(program, chunk, plane, &at);
    const struct st_buffer *extent = &program->buffers[buffer];

    assert(extent->space != ST_SPACE_SET || eng->volumes[buffer] == st_swap_volume(eng->swap, ST_SPACE_SET, eng->set));
    *row = (struct st_extent_row){.page = chunk->page,
                                  .group = (uint8_t)group,
                                  .plane = (uint8_t)plane,
                                  .space = extent->space,
                                  .format = st_extent_format(plane, chunk->format, program->moment_format),
                                  .first = first,
                                  .elems = chunk->elems,
                                  .offset = extent->offset + at,
                                  .bytes = st_chunk_plane_bytes(program, chunk, plane, chunk->elems),
                                  .sum_first = e->sum_count,
                                  .sum_count = (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS};
    memcpy(e->sums + e->sum_count, st_engine_sums(eng, chunk, plane), row->sum_count * sizeof(*e->sums));
    e->sum_count += row->sum_count;
}

static void add_group(struct st_extents *e, const struct st_engine *eng, uint32_t p, uint32_t group)
{
    const struct st_page_place *place = &eng->program->pages[p];

    for (uint32_t i = 0; i < ST_PLANE_COUNT; i++)
        for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++) {
            const struct st_chunk *chunk = &eng->program->chunks[c];
            uint64_t first;

            if (chunk->elems > 0 && st_chunk_group(eng->program, chunk, &first) == group &&
                st_chunk_has_plane(eng->program, chunk, (enum st_plane)i))
                add_row(e, eng, chunk, (enum st_plane)i);
        }
}

static strata_status list_extents(const struct st_engine *eng, struct st_extents *out)
{
    const struct st_program *program = eng->program;
    struct st_extents e = {.rows = calloc(program->chunk_count * ST_PLANE_COUNT, sizeof(*e.rows)),
                           .sums = calloc(program->tile_count * ST_PLANE_COUNT, sizeof(*e.sums))};

    if (e.rows == NULL || e.sums == NULL) {
        st_extents_fini(&e);
        return st_nomem(0);
    }
    for (uint32_t p = 0; p < program->workload.page_count; p++)
        for (uint32_t group = 0; group < program->workload.pages[p].group_count; group++)
            add_group(&e, eng, p, group);
    *out = e;
    return STRATA_OK;
}

strata_status st_engine_save(struct st_engine *eng, struct st_extents *out)
{
    const uint32_t next = eng->set;
    strata_status st = st_engine_outside(eng, "save");

    assert(eng->program->sets > 0);
    if (st == STRATA_OK)
        st = st_engine_flush_now(eng, NULL);
    if (st == STRATA_OK)
        st = st_engine_take_overflows(eng);
    if (st != STRATA_OK)
        return st;
    eng->set = set_of_nvme(eng);
    if ((st = save_memory(eng, false)) == STRATA_OK)
        st = list_extents(eng, out);
    if (st != STRATA_OK)
        eng->set = next;
    return st;
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
    if (st == STRATA_OK && !st_program_gated(eng->program)) /* of a gated one the step itself tells */
        st = st_engine_take_overflows(eng);
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
