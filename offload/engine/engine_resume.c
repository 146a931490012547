/* engine_resume.c - puts a checkpoint's planes where this run's plan wants them, whatever the plan of the run that saved it.
 *
 * Called instead of a load.  What lies on NVMe stays in the checkpoint's files where both runs cut and lay it out alike (it is
 * adopted: updates write to a set of this run's own, so that the checkpoint never changes).  Everything else is read in pieces of
 * whole tiles, several ahead; each tile is checked before it is used.  Two cursors walk over the same pieces: one starts the
 * reads, the other takes what has arrived.  Before that an engine that has something to lose reads all of them once, adopted ones
 * too, and only compares sums: the bounce memory is all that changes. */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "offload/checkpoint/extents.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A run of whole tiles of one plane of a chunk of this run, within one row of the checkpoint. */
struct piece {
    uint32_t chunk;
    enum st_plane plane;
    const struct st_extent_row *row;
    uint64_t first, elems; /* in the group */
};

/* The next piece is of this chunk and plane, from this element of the chunk on. */
struct cursor {
    uint32_t chunk, plane;
    uint64_t at;
};

struct resume {
    struct st_engine *eng;
    const struct st_extents *from;
    const struct st_resume_opts *opts;
    bool adopts, checks; /* checks: sums are compared, and nothing is placed */
    struct st_ring bounce, states, weights;
    struct cursor ahead, here;
    uint32_t pieces_ahead;
    unsigned char *weight, *state; /* of the chunk at `here`, in its page and of its own */
};

static const struct st_chunk *chunk_of(const struct resume *r, uint32_t chunk)
{
    return &r->eng->program->chunks[chunk];
}

/* Whether this plane of the chunk is to be read: it is only checked, it is not adopted, or the device keeps a copy. */
static bool is_wanted(const struct resume *r, const struct st_chunk *chunk, enum st_plane plane)
{
    const struct st_page_place *place = &r->eng->program->pages[chunk->page];

    if (!st_chunk_has_plane(r->eng->program, chunk, plane))
        return false;
    if (r->checks)
        return true;
    if (plane == ST_PLANE_WEIGHT)
        return !r->adopts || place->home != ST_WHERE_NVME || place->weights == ST_WHERE_DEVICE;
    return !r->adopts || chunk->state != ST_WHERE_NVME;
}

/* --- pieces --- */

/* The most elements of whole tiles of a plane that a bounce slot holds, wherever in a block they begin. */
static uint64_t piece_most(const struct resume *r, const struct st_chunk *chunk, enum st_plane plane)
{
    const uint64_t tile = st_chunk_plane_bytes(r->eng->program, chunk, plane, ST_TILE_ELEMS);

    return (ST_BOUNCE_BYTES - 2 * ST_EXTENT_ALIGN) / tile * ST_TILE_ELEMS;
}

static struct piece piece_at(const struct resume *r, const struct cursor *c)
{
    const struct st_chunk *chunk = chunk_of(r, c->chunk);
    struct piece p = {.chunk = c->chunk, .plane = (enum st_plane)c->plane};
    uint64_t first, left;
    const uint32_t group = st_chunk_group(r->eng->program, chunk, &first);
    const uint64_t most = piece_most(r, chunk, p.plane);

    p.first = first + c->at;
    p.row = st_extents_row(r->from, chunk->page, group, p.plane, p.first);
    left = p.row->first + p.row->elems - p.first;
    p.elems = chunk->elems - c->at;
    p.elems = left < p.elems ? left : p.elems;
    p.elems = most < p.elems ? most : p.elems;
    return p;
}

/* Moves a cursor to the next piece that is to be read; false: there is none. */
static bool cursor_find(const struct resume *r, struct cursor *c)
{
    for (; c->chunk < r->eng->program->chunk_count; c->chunk++, c->plane = 0, c->at = 0)
        for (; c->plane < ST_PLANE_COUNT; c->plane++, c->at = 0)
            if (c->at < chunk_of(r, c->chunk)->elems && is_wanted(r, chunk_of(r, c->chunk), (enum st_plane)c->plane))
                return true;
    return false;
}

/* Bytes of the row's plane that lie before the piece. */
static uint64_t bytes_before(const struct resume *r, const struct piece *p)
{
    return st_chunk_plane_bytes(r->eng->program, chunk_of(r, p->chunk), p->plane, p->first - p->row->first);
}

static strata_status read_ahead(struct resume *r)
{
    while (r->pieces_ahead < r->bounce.count && cursor_find(r, &r->ahead)) {
        const struct piece p = piece_at(r, &r->ahead);
        const uint64_t at = p.row->offset + bytes_before(r, &p), begin = at / ST_EXTENT_ALIGN * ST_EXTENT_ALIGN;
        const uint64_t bytes = st_chunk_plane_bytes(r->eng->program, chunk_of(r, p.chunk), p.plane, p.elems);
        const strata_status st =
            st_ring_read_volume(&r->bounce, r->eng, r->opts->volumes[p.row->space], begin, st_extent_bytes(at - begin + bytes));

        if (st != STRATA_OK)
            return st;
        r->ahead.at += p.elems;
        r->pieces_ahead++;
    }
    return STRATA_OK;
}

/* --- checking and placing --- */

struct place_job {
    const struct resume *r;
    const struct piece *piece;
    const unsigned char *data;
    unsigned char *to;    /* NULL: the host cannot write there */
    _Atomic uint64_t bad; /* 1 + tile */
};

static void place_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    struct place_job *j = ctx;
    const struct piece *p = j->piece;
    const struct st_program *program = j->r->eng->program;
    const struct st_chunk *chunk = chunk_of(j->r, p->chunk);
    const uint64_t left = p->elems - tile * ST_TILE_ELEMS;
    const uint64_t at = st_chunk_plane_bytes(program, chunk, p->plane, tile * ST_TILE_ELEMS);
    const uint64_t bytes = st_chunk_plane_bytes(program, chunk, p->plane, left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS);

    (void)worker;
    if (st_checksum64(j->data + at, bytes) !=
        j->r->from->sums[p->row->sum_first + (p->first - p->row->first) / ST_TILE_ELEMS + tile])
        atomic_store(&j->bad, 1 + tile);
    else if (j->to != NULL)
        memcpy(j->to + at, j->data + at, bytes);
}

static strata_status damaged(const struct resume *r, const struct piece *p, uint64_t tile)
{
    const uint64_t before = st_chunk_plane_bytes(r->eng->program, chunk_of(r, p->chunk), p->plane, tile * ST_TILE_ELEMS);
    uint64_t place;
    const char *path =
        st_swap_place(r->eng->swap, r->opts->volumes[p->row->space], p->row->offset + bytes_before(r, p) + before, &place);

    return st_error(STRATA_E_CORRUPT,
                    "%s: checksum mismatch in plane %s of page %u, elements from %" PRIu64 ", at byte %" PRIu64
                    ": the checkpoint is damaged; strata verify lists all",
                    path, st_plane_name(p->plane), chunk_of(r, p->chunk)->page, p->first + tile * ST_TILE_ELEMS, place);
}

/* Where a plane of the chunk begins, in memory or in the slot that its extent is written from. */
static unsigned char *plane_start(const struct resume *r, const struct st_chunk *chunk, enum st_plane plane)
{
    if (plane == ST_PLANE_WEIGHT)
        return r->weight + st_chunk_home_at(r->eng->program, chunk);
    return r->state + (plane == ST_PLANE_MOMENT1 ? chunk->moment1_offset : plane == ST_PLANE_MOMENT2 ? chunk->moment2_offset : 0);
}

static void keep_sums(const struct resume *r, const struct piece *p, uint64_t at)
{
    const uint64_t *sums = r->from->sums + p->row->sum_first + (p->first - p->row->first) / ST_TILE_ELEMS;

    if (r->eng->checksums[p->plane] != NULL)
        memcpy(r->eng->checksums[p->plane] + chunk_of(r, p->chunk)->tile_first + at / ST_TILE_ELEMS, sums,
               (p->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS * sizeof(*sums));
}

static strata_status take_piece(struct resume *r, const struct piece *p, uint64_t at)
{
    struct st_engine *eng = r->eng;
    const struct st_chunk *chunk = chunk_of(r, p->chunk);
    const enum st_where where = p->plane == ST_PLANE_WEIGHT ? eng->program->pages[chunk->page].home : chunk->state;
    const bool remote = where == ST_WHERE_DEVICE && !eng->device->ops->arena_is_host;
    unsigned char *slot, *to = NULL;
    struct place_job j = {.r = r, .piece = p};
    strata_status st = st_ring_wait(&r->bounce, eng, r->pieces_ahead, &slot);

    if (st != STRATA_OK)
        return st;
    if (!r->checks)
        to = plane_start(r, chunk, p->plane) + st_chunk_plane_bytes(eng->program, chunk, p->plane, at);
    j.to = remote ? NULL : to;
    j.data = slot + (p->row->offset + bytes_before(r, p)) % ST_EXTENT_ALIGN;
    st_workers_run(eng->workers, place_tile, &j, (p->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS);
    r->pieces_ahead--;
    if (j.bad != 0)
        return damaged(r, p, j.bad - 1);
    if (remote && to != NULL)
        st = st_engine_put(eng, to, j.data, st_chunk_plane_bytes(eng->program, chunk, p->plane, p->elems));
    return st;
}

static strata_status take_plane(struct resume *r, uint32_t c, enum st_plane plane)
{
    const struct st_chunk *chunk = chunk_of(r, c);
    const bool wanted = is_wanted(r, chunk, plane);
    strata_status st = STRATA_OK;

    if (!st_chunk_has_plane(r->eng->program, chunk, plane))
        return STRATA_OK;
    for (struct cursor here = {.chunk = c, .plane = plane}; here.at < chunk->elems && st == STRATA_OK;) {
        const struct piece p = piece_at(r, &here);

        if (wanted && (st = read_ahead(r)) == STRATA_OK)
            st = take_piece(r, &p, here.at);
        if (!r->checks)
            keep_sums(r, &p, here.at);
        here.at += p.elems;
        if (st == STRATA_OK && atomic_load_explicit(&r->eng->cancelled, memory_order_relaxed))
            st = st_error(STRATA_E_CANCELLED, "cancelled");
        if (st == STRATA_OK && r->opts->progress != NULL)
            st = r->opts->progress(r->opts->ctx, p.elems);
    }
    return st;
}

/* --- chunks and pages --- */

static strata_status take_chunk(struct resume *r, uint32_t c)
{
    struct st_engine *eng = r->eng;
    const struct st_chunk *chunk = chunk_of(r, c);
    const bool swapped = chunk->state == ST_WHERE_NVME && !r->adopts;
    strata_status st = STRATA_OK;

    r->state = NULL;
    if (swapped)
        st = st_ring_take(&r->states, eng, &r->state);
    else if (chunk->state != ST_WHERE_NONE && chunk->state != ST_WHERE_NVME)
        r->state = st_engine_pointer(eng, chunk->region);
    for (uint32_t plane = 0; plane < ST_PLANE_COUNT && st == STRATA_OK; plane++)
        st = take_plane(r, c, (enum st_plane)plane);
    eng->fresh[c] = false;
    return st != STRATA_OK || !swapped ? st : st_ring_start(&r->states, eng, ST_IO_WRITE, chunk->region, 0, chunk->bytes);
}

static strata_status take_page(struct resume *r, uint32_t p)
{
    struct st_engine *eng = r->eng;
    const struct st_page_place *place = &eng->program->pages[p];
    const bool on_device = place->home == ST_WHERE_DEVICE, copied = place->weights == ST_WHERE_DEVICE && !on_device;
    const bool swapped = place->home == ST_WHERE_NVME, slotted = swapped && (copied || !r->adopts);
    strata_status st = STRATA_OK;

    r->weight = NULL;
    if (!swapped)
        r->weight = st_engine_pointer(eng, st_page_home(place));
    else if (slotted && (st = st_ring_take(&r->weights, eng, &r->weight)) == STRATA_OK)
        st_engine_zero_gaps(eng, p, r->weight);
    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count && st == STRATA_OK; c++)
        st = take_chunk(r, c);
    if (st == STRATA_OK && copied)
        st = st_engine_put_shard(eng, p, r->weight);
    return st != STRATA_OK || !swapped || r->adopts ? st : st_ring_start_page(&r->weights, eng, ST_IO_WRITE, p);
}

/* --- all of it --- */

/* Where the rank's part of a row's space begins. */
static uint64_t part_at(const struct st_program *program, const struct st_resume_opts *opts, const struct st_extent_row *row)
{
    return opts->own != NULL ? program->rank * opts->part_bytes[row->space] : 0;
}

/* Whether what this run has on NVMe lies in the checkpoint as it would lie here. */
static bool is_alike(const struct st_engine *eng, const struct st_resume_opts *opts)
{
    const struct st_program *program = eng->program;

    if ((opts->own != NULL) != (st_program_cuts(program) > 1))
        return false; /* no part is this rank's */

    for (uint32_t c = 0; c < program->chunk_count && program->sets > 0; c++) {
        const struct st_chunk *chunk = &program->chunks[c];
        uint64_t first;
        const uint32_t group = st_chunk_group(program, chunk, &first);

        for (uint32_t i = 0; i < ST_PLANE_COUNT; i++) {
            const enum st_plane plane = (enum st_plane)i;
            const struct st_buffer *extent;
            const struct st_extent_row *row;
            uint64_t at;

            if (!st_chunk_has_plane(program, chunk, plane) || chunk->elems == 0)
                continue;
            extent = &program->buffers[st_engine_extent(program, chunk, plane, &at)];
            row = st_extents_row(opts->extents, chunk->page, group, plane, first);
            if (row->first != first || row->elems != chunk->elems || row->space != extent->space ||
                row->offset != part_at(program, opts, row) + extent->offset + at)
                return false;
        }
    }
    return program->sets > 0;
}

/* What lies on NVMe stays in the checkpoint's files. */
static void adopt(struct st_engine *eng, const uint32_t *volumes)
{
    for (uint32_t b = 0; b < eng->program->buffer_count; b++)
        if (eng->program->buffers[b].tier == STRATA_TIER_NVME && eng->program->buffers[b].space != ST_SPACE_SCRATCH)
            eng->volumes[b] = volumes[eng->program->buffers[b].space];

    eng->base_saved = eng->adopted = true;
}

/* Waits for everything that is under way, whatever has failed; the first failure is the resume's. */
static strata_status finish(struct resume *r, strata_status st)
{
    struct st_ring *const rings[] = {&r->bounce, &r->states, &r->weights};
    struct st_sentence error;

    st_error_keep(&error);
    for (uint32_t i = 0; i < 3; i++) {
        const strata_status one = st_ring_close(rings[i], r->eng);

        if (st == STRATA_OK && (st = one) != STRATA_OK)
            st_error_keep(&error);
    }
    return st == STRATA_OK ? STRATA_OK : st_error_again(st, &error);
}

/* The run's numbers go on; what its configuration decides is this run's, which has begun with it. */
static void take_train(struct st_engine *eng, const struct st_resume_opts *opts)
{
    struct st_loss_scaler scaler = eng->train.scaler;

    if (!opts->rescales)
        st_loss_scaler_resume(&scaler, &opts->train->scaler);
    eng->train = *opts->train;
    eng->train.scaler = scaler;
    /* What no step has told of yet; where ranks add their counts up, the first has it. */
    eng->train.overflowed_host = 0;
    eng->train.overflowed_seen = 0;
    if ((eng->program->stage == 0 || eng->program->rank == 0) && opts->train->overflowed_host > opts->train->overflowed_seen)
        eng->train.overflowed_host = opts->train->overflowed_host - opts->train->overflowed_seen;
}

static strata_status resume_all(struct st_engine *eng, const struct st_resume_opts *opts)
{
    struct resume r = {.eng = eng, .from = opts->extents, .opts = opts};
    strata_status st = st_engine_drain(eng);

    assert(!opts->train->pending);
    if (st != STRATA_OK || (st = st_engine_load_constants(eng)) != STRATA_OK)
        return st;
    st_engine_start_run(eng);
    eng->has_moments = true;
    r.adopts = !opts->copies && is_alike(eng, opts);
    if (r.adopts)
        adopt(eng, opts->own != NULL ? opts->own : opts->volumes);
    st = st_ring_bounce(&r.bounce, eng);
    st_ring_open(&r.states, eng, ST_OP_READ_STATE);
    st_ring_open(&r.weights, eng, ST_OP_READ_WEIGHT);
    for (uint32_t p = 0; p < eng->program->workload.page_count && st == STRATA_OK; p++)
        st = take_page(&r, p);
    st = finish(&r, st);
    if (st == STRATA_OK)
        take_train(eng, opts);
    return st;
}

static strata_status check_all(struct st_engine *eng, const struct st_resume_opts *opts)
{
    struct resume r = {.eng = eng, .from = opts->extents, .opts = opts, .checks = true};
    strata_status st = st_engine_drain(eng); /* whatever is under way may use the workers */

    r.bounce.apart = true;
    if (st == STRATA_OK)
        st = st_ring_bounce(&r.bounce, eng);
    for (uint32_t c = 0; c < eng->program->chunk_count; c++)
        for (uint32_t plane = 0; plane < ST_PLANE_COUNT && st == STRATA_OK; plane++)
            st = take_plane(&r, c, (enum st_plane)plane);
    return finish(&r, st);
}

strata_status st_engine_check_resume(struct st_engine *eng, const struct st_resume_opts *opts)
{
    const strata_status st = st_engine_outside(eng, "resume");

    return st == STRATA_OK ? st_engine_agree(eng, check_all(eng, opts), "the check of a checkpoint") : st;
}

strata_status st_engine_resume(struct st_engine *eng, const struct st_resume_opts *opts)
{
    strata_status st = st_engine_outside(eng, "resume");

    if (st != STRATA_OK)
        return st;
    st = st_engine_agree(eng, resume_all(eng, opts), "the end of a resume");
    return st == STRATA_OK ? st_engine_gather_pages(eng) : st;
}

bool st_engine_adopted(const struct st_engine *eng)
{
    return eng->adopted;
}
