/* engine_update.c - the update of one chunk: checks checksums, updates planes and weights in one pass, and renews the
 * checksums. */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"

#include <string.h>

/* --- one chunk on the host --- */

struct chunk_job {
    struct st_engine *eng;
    const struct st_chunk *chunk;
    unsigned char *master; /* chunk's planes; low half or fp32 master, NULL: weight is the master */
    size_t master_width;
    struct st_moments moments;
    unsigned char *weight;
    const unsigned char *grad;
    const uint64_t *grad_sums;         /* [tiles of the chunk], of a gradient that comes from NVMe; else NULL */
    const struct st_update_coef *coef; /* NULL: skip */
    bool state_swapped, weight_swapped, weight_unchecked;
    bool state_saved, weight_saved; /* they live in memory, and this cycle writes them to a checkpoint */
    bool fresh;                     /* the moments were never written: zero */
    _Atomic uint64_t bad;           /* 1 + plane * 2^32 + tile; ST_PLANE_COUNT: the gradient */
    _Atomic uint64_t overflowed;
};

/* Checks (or renews) the checksum of one plane's tile. */
static void checksum(struct chunk_job *job, enum st_plane plane, const void *data, size_t bytes, uint64_t tile, bool check)
{
    uint64_t *stored = &job->eng->checksums[plane][job->chunk->tile_first + tile];
    const uint64_t sum = st_checksum64(data, bytes);

    if (!check)
        *stored = sum;
    else if (*stored != sum)
        atomic_store(&job->bad, 1 + ((uint64_t)plane << 32) + tile);
}

static void checksum_moment(struct chunk_job *job, enum st_plane plane, void *data, uint64_t elems, uint64_t tile, bool check)
{
    const uint64_t bytes = st_moment_bytes(job->moments.format, elems);

    if (check && job->fresh)
        memset(data, 0, bytes);
    else
        checksum(job, plane, data, bytes, tile, check);
}

static void check_grad(struct chunk_job *job, uint64_t tile, uint64_t at, uint64_t elems)
{
    const strata_dtype format = job->chunk->format;

    if (job->grad_sums[tile] != st_checksum64(job->grad + st_format_bytes(format, at), st_format_bytes(format, elems)))
        atomic_store(&job->bad, 1 + ((uint64_t)ST_PLANE_COUNT << 32) + tile);
}

static void checksum_tile(struct chunk_job *job, uint64_t tile, uint64_t at, uint64_t elems, bool check)
{
    if (job->state_swapped || (job->state_saved && !check)) {
        const struct st_moments moments = st_moments_at(&job->moments, at);

        if (job->master != NULL)
            checksum(job, ST_PLANE_MASTER, job->master + at * job->master_width, elems * job->master_width, tile, check);
        checksum_moment(job, ST_PLANE_MOMENT1, moments.moment1, elems, tile, check);
        if (moments.moment2 != NULL)
            checksum_moment(job, ST_PLANE_MOMENT2, moments.moment2, elems, tile, check);
    }
    if (check ? job->weight_swapped && job->weight_unchecked : job->weight_swapped || job->weight_saved)
        checksum(job, ST_PLANE_WEIGHT, job->weight + st_format_bytes(job->chunk->format, at),
             st_format_bytes(job->chunk->format, elems), tile, check);
}

/* Updates one tile with the layout's kernel; returns how many weights rounded to infinity. */
static uint64_t update_elems(const struct chunk_job *job, uint64_t at, uint64_t elems)
{
    const struct st_kernels *k = job->eng->kernels;
    const strata_dtype dt = job->chunk->format; /* of the gradient, too */
    void *weight = job->weight + st_format_bytes(dt, at);
    void *master = job->master == NULL ? NULL : job->master + at * job->master_width;
    const void *grad = job->grad + st_format_bytes(dt, at);
    const struct st_moments moments = st_moments_at(&job->moments, at);

    switch (job->chunk->master) {
    case ST_MASTER_SPLIT:
        return k->update_split(weight, master, &moments, grad, dt, elems, job->coef);
    case ST_MASTER_FULL:
        return k->update_master(master, weight, dt, &moments, grad, dt, elems, job->coef);
    default:
        return k->update_master(weight, NULL, STRATA_DTYPE_INVALID, &moments, grad, dt, elems, job->coef);
    }
}

static void update_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    struct chunk_job *job = ctx;
    const uint64_t at = tile * ST_TILE_ELEMS, left = job->chunk->elems - at;
    const uint64_t elems = left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS;
    uint64_t overflowed;

    (void)worker;
    checksum_tile(job, tile, at, elems, true);
    if (job->grad_sums != NULL)
        check_grad(job, tile, at, elems);
    overflowed = job->coef != NULL ? update_elems(job, at, elems) : 0;
    if (overflowed != 0)
        atomic_fetch_add(&job->overflowed, overflowed);
    if (job->coef != NULL || job->state_saved || job->weight_saved)
        checksum_tile(job, tile, at, elems, false);
}

static const struct st_update_coef *coef_of(const struct st_engine *eng, const struct st_chunk *chunk)
{
    uint64_t first;

    if (eng->train.update.skip)
        return NULL;
    return &eng->coefs[eng->program->workload.pages[chunk->page].groups[st_chunk_group(eng->program, chunk, &first)].set]
                      [chunk->group == ST_GROUP_DECAY];
}

strata_status st_engine_update_chunk(struct st_engine *eng, uint32_t c, void *state, void *weight_page, const void *grad_page)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const struct st_page_place *place = &eng->program->pages[chunk->page];
    unsigned char *planes = state;
    struct chunk_job job = {
        .eng = eng,
        .chunk = chunk,
        .master = chunk->master == ST_MASTER_WEIGHT ? NULL : planes,
        .master_width = st_master_width(chunk->master),
        .moments = st_engine_moments(eng->program, chunk, planes),
        .weight = (unsigned char *)weight_page + chunk->at,
        .grad = (const unsigned char *)grad_page + chunk->at,
        .grad_sums = st_page_swaps_grad(eng->program, chunk->page) ? eng->grad_checksums + chunk->tile_first : NULL,
        .coef = coef_of(eng, chunk),
        .state_swapped = chunk->state == ST_WHERE_NVME,
        .weight_swapped = place->home == ST_WHERE_NVME,
        .state_saved = st_engine_saves(eng) && chunk->state != ST_WHERE_NVME,
        .weight_saved = st_engine_saves(eng) && place->home != ST_WHERE_NVME,
        .fresh = eng->fresh[c],
    };

    /* The page's weights were read for this update: each chunk checks its own part. */
    job.weight_unchecked = job.weight_swapped;
    st_workers_run(eng->workers, update_tile, &job, (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS);
    if (job.bad > (uint64_t)ST_PLANE_COUNT << 32)
        return st_engine_grad_error(eng, c, (job.bad - 1) & UINT32_MAX);
    if (job.bad != 0)
        return st_engine_tile_error(eng, c, (enum st_plane)((job.bad - 1) >> 32), (job.bad - 1) & UINT32_MAX);
    eng->train.overflowed_host += job.overflowed;
    return STRATA_OK;
}

/* --- one chunk on the device --- */

strata_status st_engine_update_chunk_device(struct st_engine *eng, const struct st_op *op)
{
    const struct st_chunk *chunk = &eng->program->chunks[op->chunk];
    unsigned char *state = st_engine_operand(eng, op, ST_ROLE_STATE);
    unsigned char *weight = st_engine_operand(eng, op, ST_ROLE_WEIGHT);
    const unsigned char *grad = st_engine_operand(eng, op, ST_ROLE_GRAD);
    const struct st_moments moments = st_engine_moments(eng->program, chunk, state);
    const struct st_update_coef *coef = coef_of(eng, chunk);
    const bool sliced = st_page_sliced(&eng->program->pages[chunk->page]);

    if (coef == NULL || chunk->elems == 0)
        return STRATA_OK;
    return eng->device->ops->update(eng->device, weight + (sliced ? chunk->at : chunk->page_at),
                                    chunk->master == ST_MASTER_SPLIT ? (int16_t *)(void *)state : NULL,
                                    chunk->master == ST_MASTER_FULL ? (float *)(void *)state : NULL, &moments, grad + chunk->at,
                                    chunk->format, chunk->elems, coef, st_engine_operand(eng, op, ST_ROLE_OVERFLOWS));
}
