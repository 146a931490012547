/* engine_integrity.c - checksums of data on NVMe: one XXH3-64 per plane and tile, kept in host memory. */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static uint64_t tile_elems(const struct st_chunk *chunk, uint64_t tile)
{
    const uint64_t left = chunk->elems - tile * ST_TILE_ELEMS;

    return left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS;
}

uint64_t *st_engine_sums_at(const struct st_engine *eng, const struct st_chunk *chunk, enum st_plane plane, bool other)
{
    return (other ? eng->early_sums : eng->checksums)[plane] + chunk->tile_first;
}

uint64_t *st_engine_sums(const struct st_engine *eng, const struct st_chunk *chunk, enum st_plane plane)
{
    const uint32_t home = plane == ST_PLANE_WEIGHT ? eng->program->pages[chunk->page].home_region : chunk->region;

    return st_engine_sums_at(eng, chunk, plane, st_engine_is_turned(eng, home));
}

static uint64_t tile_count(const struct st_chunk *chunk)
{
    return (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;
}

uint32_t st_engine_extent(const struct st_program *program, const struct st_chunk *chunk, enum st_plane plane, uint64_t *at)
{
    const struct st_page_place *place = &program->pages[chunk->page];

    if (plane != ST_PLANE_WEIGHT) {
        *at = plane == ST_PLANE_MOMENT1 ? chunk->moment1_offset : plane == ST_PLANE_MOMENT2 ? chunk->moment2_offset : 0;
        return chunk->extent;
    }
    *at = chunk->at;
    if (chunk->group != ST_GROUP_FROZEN || place->base_extent == ST_NO_BUFFER)
        return place->extent;
    *at -= st_page_base_at(&program->shards[chunk->page]);
    return place->base_extent;
}

/* Reports that `what`, read from NVMe from byte `at` of an extent on, differs from what was written. */
static strata_status mismatch(const struct st_engine *eng, uint32_t of, uint64_t at, const char *what)
{
    const uint32_t extent = st_engine_in_force(eng, of);
    const uint32_t volume = eng->volumes != NULL ? eng->volumes[extent] : st_swap_volume(eng->swap, ST_SPACE_SCRATCH, 0);
    uint64_t place;
    const char *path = st_swap_place(eng->swap, volume, eng->program->buffers[extent].offset + at, &place);

    return st_error(STRATA_E_CORRUPT,
                    "%s: checksum mismatch in %s at byte %" PRIu64
                    ": the drive or its path changed data, which is not used: see smartctl and dmesg",
                    path, what, place);
}

strata_status st_engine_tile_error(struct st_engine *eng, uint32_t c, enum st_plane plane, uint64_t tile)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const uint64_t first = tile * ST_TILE_ELEMS;
    uint64_t at;
    const uint32_t extent = st_engine_extent(eng->program, chunk, plane, &at);
    char what[96];

    snprintf(what, sizeof(what), "plane %s of page %u, elements from %" PRIu64, st_plane_name(plane), chunk->page,
             chunk->page_first + first);
    return mismatch(eng, extent, at + st_chunk_plane_bytes(eng->program, chunk, plane, first), what);
}

struct scan {
    struct st_engine *eng;
    const struct st_chunk *chunk;
    uint64_t first;                       /* tile that `plane` begins with */
    unsigned char *plane[ST_PLANE_COUNT]; /* start of the chunk's part of each plane, or NULL */
    bool check, zero;                     /* zero: moments, which were never written, rather than checking them */
    _Atomic uint64_t bad;                 /* 1 + plane * 2^32 + tile of a mismatch */
};

static void scan_tile(void *ctx, uint64_t item, uint32_t worker)
{
    struct scan *s = ctx;
    const struct st_program *program = s->eng->program;
    const uint64_t tile = s->first + item, elems = tile_elems(s->chunk, tile);

    (void)worker;
    for (uint32_t p = 0; p < ST_PLANE_COUNT; p++) {
        const enum st_plane plane = (enum st_plane)p;
        const uint64_t bytes = st_chunk_plane_bytes(program, s->chunk, plane, elems);
        unsigned char *data = s->plane[p];
        uint64_t *stored, sum;

        if (data == NULL)
            continue;
        data += st_chunk_plane_bytes(program, s->chunk, plane, item * ST_TILE_ELEMS);
        if (s->zero && (plane == ST_PLANE_MOMENT1 || plane == ST_PLANE_MOMENT2)) {
            memset(data, 0, bytes);
            continue;
        }
        stored = &st_engine_sums(s->eng, s->chunk, plane)[tile];
        sum = st_checksum64(data, bytes);
        if (!s->check)
            *stored = sum;
        else if (*stored != sum)
            atomic_store(&s->bad, 1 + ((uint64_t)p << 32) + tile);
    }
}

static strata_status scan_chunk(struct scan *s)
{
    st_workers_run(s->eng->workers, scan_tile, s, tile_count(s->chunk));
    if (s->bad != 0)
        return st_engine_tile_error(s->eng, (uint32_t)(s->chunk - s->eng->program->chunks), (enum st_plane)((s->bad - 1) >> 32),
                                    (s->bad - 1) & UINT32_MAX);
    return STRATA_OK;
}

/* The planes of a chunk's state; nothing is written to them unless s.zero is set. */
static struct scan state_of(struct st_engine *eng, uint32_t c, const void *state)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    unsigned char *base = (unsigned char *)(uintptr_t)state;
    struct scan s = {.eng = eng, .chunk = chunk};

    s.plane[ST_PLANE_MASTER] = chunk->master != ST_MASTER_WEIGHT ? base : NULL;
    s.plane[ST_PLANE_MOMENT1] = base + chunk->moment1_offset;
    s.plane[ST_PLANE_MOMENT2] = chunk->moment2_offset != 0 ? base + chunk->moment2_offset : NULL;
    return s;
}

static strata_status scan_weights(struct st_engine *eng, uint32_t page, const void *weights, bool check, bool frozen)
{
    const struct st_page_place *place = &eng->program->pages[page];
    strata_status st = STRATA_OK;

    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count && st == STRATA_OK; c++) {
        struct scan s = {.eng = eng, .chunk = &eng->program->chunks[c], .check = check};

        if (s.chunk->group == ST_GROUP_FROZEN && !frozen)
            continue;
        s.plane[ST_PLANE_WEIGHT] = (unsigned char *)(uintptr_t)weights + st_chunk_home_at(eng->program, s.chunk); /* only read */
        st = scan_chunk(&s);
    }
    return st;
}

strata_status st_engine_verify_state(struct st_engine *eng, uint32_t chunk, void *state)
{
    struct scan s = state_of(eng, chunk, state);

    s.check = true;
    s.zero = eng->fresh[chunk];
    return scan_chunk(&s);
}

void st_engine_hash_state(struct st_engine *eng, uint32_t chunk, const void *state)
{
    struct scan s = state_of(eng, chunk, state);

    (void)scan_chunk(&s); /* cannot fail if it does not check */
}

void st_engine_hash_master(struct st_engine *eng, uint32_t chunk, const void *state)
{
    struct scan s = state_of(eng, chunk, state);

    s.plane[ST_PLANE_MOMENT1] = s.plane[ST_PLANE_MOMENT2] = NULL;
    if (s.plane[ST_PLANE_MASTER] != NULL)
        (void)scan_chunk(&s);
}

strata_status st_engine_verify_weights(struct st_engine *eng, uint32_t page, const void *weights)
{
    return scan_weights(eng, page, weights, true, true);
}

void st_engine_hash_weights(struct st_engine *eng, uint32_t page, const void *weights)
{
    (void)scan_weights(eng, page, weights, false, true);
}

void st_engine_hash_updated(struct st_engine *eng, uint32_t page, const void *weights)
{
    (void)scan_weights(eng, page, weights, false, false);
}

/* Tiles of a plane, at byte `from` of a thing, that begin before byte `end` of the thing. */
static uint64_t tiles_before(const struct st_engine *eng, const struct st_chunk *chunk, enum st_plane plane, uint64_t from,
                             uint64_t end)
{
    const uint64_t bytes = st_chunk_plane_bytes(eng->program, chunk, plane, ST_TILE_ELEMS), all = tile_count(chunk);
    const uint64_t before = end > from ? (end - from + bytes - 1) / bytes : 0;

    return before < all ? before : all;
}

static void hash_part_of(struct st_engine *eng, const struct st_op *op, const struct st_chunk *chunk, enum st_plane plane,
                         const unsigned char *data)
{
    const uint64_t at = st_part_at(eng->program, op);
    struct scan s = {.eng = eng, .chunk = chunk};
    uint64_t from, end;

    (void)st_engine_extent(eng->program, chunk, plane, &from);
    s.first = tiles_before(eng, chunk, plane, from, at);
    end = tiles_before(eng, chunk, plane, from, at + eng->program->part_bytes);
    if (s.first == end)
        return;
    from += st_chunk_plane_bytes(eng->program, chunk, plane, s.first * ST_TILE_ELEMS);
    s.plane[plane] = (unsigned char *)(uintptr_t)data + (from - at); /* only read */
    st_workers_run(eng->workers, scan_tile, &s, end - s.first);
}

void st_engine_hash_part(struct st_engine *eng, const struct st_op *op, const void *data)
{
    const struct st_program *program = eng->program;
    const struct st_page_place *place = &program->pages[op->page];
    const bool state = st_op_rows[op->kind].operands[0].content == ST_HOLDS_STATE;

    for (uint32_t i = 0; i < ST_PLANE_WEIGHT && state; i++)
        if (st_chunk_has_plane(program, &program->chunks[op->chunk], (enum st_plane)i))
            hash_part_of(eng, op, &program->chunks[op->chunk], (enum st_plane)i, data);
    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count && !state; c++)
        if (program->chunks[c].group != ST_GROUP_FROZEN)
            hash_part_of(eng, op, &program->chunks[c], ST_PLANE_WEIGHT, data);
}

/* A plane that lies on the device, some tiles at a time by way of the staging. */
static strata_status hash_remote(struct st_engine *eng, uint32_t c, enum st_plane plane, const unsigned char *from)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const uint64_t tiles = tile_count(chunk), most = st_workers_count(eng->workers) * (ST_SCRATCH_ELEMS / ST_TILE_ELEMS);
    strata_status st = STRATA_OK;

    for (uint64_t tile = 0; tile < tiles && st == STRATA_OK; tile += most) {
        const uint64_t count = tiles - tile < most ? tiles - tile : most, first = tile * ST_TILE_ELEMS;
        const uint64_t left = chunk->elems - first, elems = count * ST_TILE_ELEMS < left ? count * ST_TILE_ELEMS : left;
        struct scan s = {.eng = eng, .chunk = chunk, .first = tile};

        s.plane[plane] = eng->staging;
        st = st_engine_get(eng, eng->staging, from + st_chunk_plane_bytes(eng->program, chunk, plane, first),
                           st_chunk_plane_bytes(eng->program, chunk, plane, elems));
        if (st == STRATA_OK)
            st_workers_run(eng->workers, scan_tile, &s, count);
    }
    return st;
}

strata_status st_engine_hash_remote_state(struct st_engine *eng, uint32_t chunk, const unsigned char *from)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < ST_PLANE_WEIGHT && st == STRATA_OK; i++) {
        const struct st_chunk *c = &eng->program->chunks[chunk];
        uint64_t at;

        (void)st_engine_extent(eng->program, c, (enum st_plane)i, &at);
        if (st_chunk_has_plane(eng->program, c, (enum st_plane)i))
            st = hash_remote(eng, chunk, (enum st_plane)i, from + at);
    }
    return st;
}

strata_status st_engine_hash_remote_weights(struct st_engine *eng, uint32_t page, const unsigned char *from, bool frozen)
{
    const struct st_page_place *place = &eng->program->pages[page];
    strata_status st = STRATA_OK;

    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count && st == STRATA_OK; c++)
        if (frozen || eng->program->chunks[c].group != ST_GROUP_FROZEN)
            st = hash_remote(eng, c, ST_PLANE_WEIGHT, from + st_chunk_home_at(eng->program, &eng->program->chunks[c]));
    return st;
}

/* --- rounded gradients --- */

struct grad_scan {
    const struct st_chunk *chunk;
    const unsigned char *grad; /* of the chunk */
    uint64_t *sums;            /* [tile_count(chunk)] */
};

static void hash_grad_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    const struct grad_scan *s = ctx;
    const strata_dtype format = s->chunk->format;

    (void)worker;
    s->sums[tile] = st_checksum64(s->grad + st_format_bytes(format, tile * ST_TILE_ELEMS),
                                  st_format_bytes(format, tile_elems(s->chunk, tile)));
}

void st_engine_hash_grad(struct st_engine *eng, uint32_t page, const void *grad)
{
    const struct st_page_place *place = &eng->program->pages[page];

    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++) {
        const struct st_chunk *chunk = &eng->program->chunks[c];
        struct grad_scan s = {chunk, (const unsigned char *)grad + chunk->at, eng->grad_checksums + chunk->tile_first};

        if (chunk->group != ST_GROUP_FROZEN)
            st_workers_run(eng->workers, hash_grad_tile, &s, tile_count(chunk));
    }
}

strata_status st_engine_grad_error(struct st_engine *eng, uint32_t c, uint64_t tile)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const uint64_t first = tile * ST_TILE_ELEMS;
    char what[96];

    snprintf(what, sizeof(what), "the gradient of page %u, elements from %" PRIu64, chunk->page, chunk->page_first + first);
    return mismatch(eng, eng->program->pages[chunk->page].grad_extent, chunk->at + st_format_bytes(chunk->format, first), what);
}

/* --- activation checkpoints --- */

struct act_scan {
    const unsigned char *act;
    uint64_t bytes;
    uint64_t *sums; /* [pieces] */
    bool check;
    _Atomic uint64_t bad; /* 1 + piece */
};

static void scan_piece(void *ctx, uint64_t piece, uint32_t worker)
{
    struct act_scan *s = ctx;
    const uint64_t at = piece * ST_ACT_PIECE, left = s->bytes - at;
    const uint64_t sum = st_checksum64(s->act + at, left < ST_ACT_PIECE ? left : ST_ACT_PIECE);

    (void)worker;
    if (!s->check)
        s->sums[piece] = sum;
    else if (s->sums[piece] != sum)
        atomic_store(&s->bad, 1 + piece);
}

static bool scan_act(struct st_engine *eng, uint32_t id, const void *act, bool check)
{
    const struct st_workload *w = &eng->program->workload;
    struct act_scan s = {.act = act,
                         .bytes = w->layers[id / w->grad_accum].boundary_bytes,
                         .sums = eng->act_checksums + id * st_act_pieces(w),
                         .check = check};

    st_workers_run(eng->workers, scan_piece, &s, (s.bytes + ST_ACT_PIECE - 1) / ST_ACT_PIECE);
    return s.bad == 0;
}

void st_engine_hash_act(struct st_engine *eng, uint32_t id, const void *act)
{
    (void)scan_act(eng, id, act, false);
}

strata_status st_engine_verify_act(struct st_engine *eng, uint32_t id, const void *act)
{
    const struct st_program *program = eng->program;
    const uint32_t g = program->workload.grad_accum;
    uint32_t op = 0;
    char what[96];

    if (scan_act(eng, id, act, true))
        return STRATA_OK;
    while (program->ops[op].kind != ST_OP_READ_ACT ||
           st_op_access(program->accesses, &program->ops[op], ST_ROLE_TO)->index != id) {
        op++;
        assert(op < program->op_count);
    }
    snprintf(what, sizeof(what), "the activation checkpoint of layer %u, micro-batch %u", id / g, id % g);
    return mismatch(eng, st_op_access(program->accesses, &program->ops[op], ST_ROLE_FROM)->buffer, 0, what);
}
