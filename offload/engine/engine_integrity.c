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

static uint64_t tile_count(const struct st_chunk *chunk)
{
    return (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;
}

/* Bytes of a plane's first `elems` elements: whole tiles, or all. */
static uint64_t plane_bytes(const struct st_program *program, const struct st_chunk *chunk, enum st_plane plane, uint64_t elems)
{
    return st_plane_bytes(plane, chunk->format, program->moment_format, elems);
}

/* Reports that `what`, read from NVMe from byte `at` of an extent on, differs from what was written. */
static strata_status mismatch(const struct st_engine *eng, uint32_t extent, uint64_t at, const char *what)
{
    uint64_t place;
    const char *path = st_swap_place(eng->swap, 0, eng->program->buffers[extent].offset + at, &place);

    return st_error(STRATA_E_CORRUPT,
                    "%s: checksum mismatch in %s at byte %" PRIu64
                    ": the drive or its path changed data; the run stops before using it. Check the drive (smartctl, dmesg)",
                    path, what, place);
}

strata_status st_engine_tile_error(struct st_engine *eng, uint32_t c, enum st_plane plane, uint64_t tile)
{
    const struct st_program *program = eng->program;
    const struct st_chunk *chunk = &program->chunks[c];
    const uint64_t first = tile * ST_TILE_ELEMS;
    char what[96];

    snprintf(what, sizeof(what), "plane %s of page %u, elements from %" PRIu64, st_plane_name(plane), chunk->page,
             chunk->first + first);
    if (plane == ST_PLANE_WEIGHT)
        return mismatch(eng, program->pages[chunk->page].home_region, chunk->at + plane_bytes(program, chunk, plane, first),
                        what);
    return mismatch(eng, chunk->region,
                    plane_bytes(program, chunk, plane, first) + (plane == ST_PLANE_MOMENT1   ? chunk->moment1_offset
                                                                 : plane == ST_PLANE_MOMENT2 ? chunk->moment2_offset
                                                                                             : 0),
                    what);
}

struct scan {
    struct st_engine *eng;
    const struct st_chunk *chunk;
    unsigned char *plane[ST_PLANE_COUNT]; /* start of the chunk's part of each plane, or NULL */
    bool check, zero;                     /* zero: moments, which were never written, rather than checking them */
    _Atomic uint64_t bad;                 /* 1 + plane * 2^32 + tile of a mismatch */
};

static void scan_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    struct scan *s = ctx;
    const struct st_program *program = s->eng->program;
    const uint64_t elems = tile_elems(s->chunk, tile);

    (void)worker;
    for (uint32_t p = 0; p < ST_PLANE_COUNT; p++) {
        const enum st_plane plane = (enum st_plane)p;
        const uint64_t bytes = plane_bytes(program, s->chunk, plane, elems);
        unsigned char *data = s->plane[p];
        uint64_t *stored, sum;

        if (data == NULL)
            continue;
        data += plane_bytes(program, s->chunk, plane, tile * ST_TILE_ELEMS);
        if (s->zero && (plane == ST_PLANE_MOMENT1 || plane == ST_PLANE_MOMENT2)) {
            memset(data, 0, bytes);
            continue;
        }
        stored = &s->eng->checksums[p][s->chunk->tile_first + tile];
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
        s.plane[ST_PLANE_WEIGHT] = (unsigned char *)(uintptr_t)weights + s.chunk->at; /* only read */
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
    const uint64_t pieces = st_act_pieces(&eng->program->workload);
    struct act_scan s = {
        .act = act, .bytes = eng->program->workload.activation_bytes, .sums = eng->act_checksums + id * pieces, .check = check};

    st_workers_run(eng->workers, scan_piece, &s, pieces);
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
