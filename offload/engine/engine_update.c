/* engine_update.c - the update of one chunk: checks checksums, updates planes and weights in one pass, and renews the
 * checksums. */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"

#include <string.h>

/* --- one chunk on the host --- */

struct chunk_job {
    struct st_engine *eng;
    const struct st_chunk *chunk;
    const unsigned char *from_planes, *from_weight;         /* the version that is updated, if it stays as it is; else NULL */
    uint64_t *found[ST_PLANE_COUNT], *left[ST_PLANE_COUNT]; /* [tiles of the chunk] checksums of that and of what it becomes */
    unsigned char *planes;
    unsigned char *master; /* chunk's planes; low half or fp32 master, NULL: weight is the master */
    size_t master_width;
    struct st_moments moments;
    unsigned char *weight;
    const unsigned char *grad;
    const uint64_t *grad_sums;         /* [tiles of the chunk], of a gradient that comes from NVMe; else NULL */
    const struct st_update_coef *coef; /* NULL: skip */
    bool state_swapped, weight_swapped, weight_unchecked;
    bool state_saved, weight_saved; /* they live in memory, and this cycle writes them to a checkpoint */
    bool moves;                     /* what they leave is another version */
    bool fresh;                     /* the moments were never written: zero */
    _Atomic uint64_t bad;           /* 1 + plane * 2^32 + tile; ST_PLANE_COUNT: the gradient */
    _Atomic uint64_t overflowed;
};

/* Checks (or renews) the checksum of one plane's tile. */
static void checksum(struct chunk_job *job, enum st_plane plane, const void *data, size_t bytes, uint64_t tile, bool check)
{
    uint64_t *stored = &(check ? job->found : job->left)[plane][tile];
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

static void copy_plane(const struct chunk_job *job, void *to, uint64_t bytes)
{
    memcpy(to, job->from_planes + ((unsigned char *)to - job->planes), bytes);
}

/* The new version begins as the old one. */
static void copy_tile(const struct chunk_job *job, uint64_t at, uint64_t elems)
{
    const struct st_moments moments = st_moments_at(&job->moments, at);
    const uint64_t bytes = st_moment_bytes(job->moments.format, elems), weights = st_format_bytes(job->chunk->format, at);

    if (job->from_weight != NULL)
        memcpy(job->weight + weights, job->from_weight + weights, st_format_bytes(job->chunk->format, elems));
    if (job->from_planes == NULL)
        return;
    if (job->master != NULL)
        copy_plane(job, job->master + at * job->master_width, elems * job->master_width);
    copy_plane(job, moments.moment1, bytes);
    if (moments.moment2 != NULL)
        copy_plane(job, moments.moment2, bytes);
}

static void update_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    struct chunk_job *job = ctx;
    const uint64_t at = tile * ST_TILE_ELEMS, left = job->chunk->elems - at;
    const uint64_t elems = left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS;
    uint64_t overflowed;

    (void)worker;
    copy_tile(job, at, elems);
    checksum_tile(job, tile, at, elems, true);
    if (job->grad_sums != NULL)
        check_grad(job, tile, at, elems);
    overflowed = job->coef != NULL ? update_elems(job, at, elems) : 0;
    if (overflowed != 0)
        atomic_fetch_add(&job->overflowed, overflowed);
    if (job->coef != NULL || job->state_saved || job->weight_saved || job->moves)
        checksum_tile(job, tile, at, elems, false);
}

static const struct st_update_coef *coef_of(const struct st_engine *eng, uint32_t c, bool early)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    uint64_t first;
    const uint32_t group = st_chunk_group(eng->program, chunk, &first);

    if (eng->train.update.skip && !early)
        return NULL;
    return &(early ? eng->early.coefs
                   : eng->coefs)[eng->program->workload.pages[chunk->page].groups[group].set][chunk->group == ST_GROUP_DECAY];
}

strata_status st_engine_update_chunk(struct st_engine *eng, const struct st_chunk_update *u)
{
    const struct st_chunk *chunk = &eng->program->chunks[u->chunk];
    const struct st_page_place *place = &eng->program->pages[chunk->page];
    struct chunk_job job = {
        .eng = eng,
        .chunk = chunk,
        .planes = u->state.to,
        .from_planes = u->state.from != u->state.to ? u->state.from : NULL,
        .from_weight = u->weight.from != u->weight.to ? u->weight.from + chunk->at : NULL,
        .master = chunk->master == ST_MASTER_WEIGHT ? NULL : u->state.to,
        .master_width = st_master_width(chunk->master),
        .moments = st_engine_moments(eng->program, chunk, u->state.to),
        .weight = u->weight.to + chunk->at,
        .grad = (const unsigned char *)u->grad + chunk->at,
        .grad_sums = st_page_swaps_grad(eng->program, chunk->page) ? eng->grad_checksums + chunk->tile_first : NULL,
        .coef = coef_of(eng, u->chunk, u->early),
        .state_swapped = chunk->state == ST_WHERE_NVME,
        .weight_swapped = place->home == ST_WHERE_NVME,
        .state_saved = st_engine_saves(eng) && !u->early && chunk->state != ST_WHERE_NVME,
        .weight_saved = st_engine_saves(eng) && !u->early && place->home != ST_WHERE_NVME,
        .moves = u->state.from_other != u->state.to_other || u->weight.from_other != u->weight.to_other,
        .fresh = eng->fresh[u->chunk],
    };

    for (uint32_t i = 0; i < ST_PLANE_COUNT && eng->checksums[i] != NULL; i++) {
        const struct st_update_ends *e = i == ST_PLANE_WEIGHT ? &u->weight : &u->state;

        job.found[i] = st_engine_sums_at(eng, chunk, (enum st_plane)i, e->from_other);
        job.left[i] = st_engine_sums_at(eng, chunk, (enum st_plane)i, e->to_other);
    }
    /* The page's weights were read for this update: each chunk checks its own part. */
    job.weight_unchecked = job.weight_swapped;
    st_workers_run(eng->workers, update_tile, &job, (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS);
    if (job.bad > (uint64_t)ST_PLANE_COUNT << 32)
        return st_engine_grad_error(eng, u->chunk, (job.bad - 1) & UINT32_MAX);
    if (job.bad != 0)
        return st_engine_tile_error(eng, u->chunk, (enum st_plane)((job.bad - 1) >> 32), (job.bad - 1) & UINT32_MAX);
    *(u->early ? &eng->early.overflowed : &eng->train.overflowed_host) += job.overflowed;
    return STRATA_OK;
}

static struct st_update_ends ends_of(const struct st_engine *eng, const struct st_op *op, enum st_role role, uint32_t home)
{
    const uint32_t buffer = st_op_access(eng->program->accesses, op, role)->buffer;
    struct st_update_ends e = {.from = st_engine_pointer(eng, buffer),
                               .from_other = st_engine_is_turned(eng, home),
                               .to_other = st_engine_leaves_other(eng, op, home)};

    e.to = buffer != home ? e.from : st_engine_pointer_at(eng, e.to_other ? eng->program->buffers[home].other : home);
    return e;
}

/* What the gate leaves in memory is in force from then on; of the weights once all of the page's chunks have been updated. */
static void settle(struct st_engine *eng, const struct st_op *op)
{
    const uint32_t region = eng->program->chunks[op->chunk].region, home = eng->program->pages[op->page].home_region;

    if (eng->turned == NULL || op->early)
        return;
    if (st_op_access(eng->program->accesses, op, ST_ROLE_STATE)->buffer == region)
        eng->turned[region] = false;
    if (st_op_access(eng->program->accesses, op, ST_ROLE_WEIGHT)->buffer == home && st_engine_ends_check(eng, op))
        eng->turned[home] = false;
}

strata_status st_engine_update_op(struct st_engine *eng, const struct st_op *op)
{
    const struct st_chunk_update u = {
        .chunk = op->chunk,
        .early = op->early,
        .state = ends_of(eng, op, ST_ROLE_STATE, eng->program->chunks[op->chunk].region),
        .weight = ends_of(eng, op, ST_ROLE_WEIGHT, eng->program->pages[op->page].home_region),
        .grad = st_engine_operand(eng, op, ST_ROLE_GRAD),
    };
    const strata_status st = st_engine_update_chunk(eng, &u);

    if (st == STRATA_OK)
        settle(eng, op);
    return st;
}

/* --- one chunk on the device --- */

strata_status st_engine_update_chunk_device(struct st_engine *eng, const struct st_op *op)
{
    const struct st_chunk *chunk = &eng->program->chunks[op->chunk];
    unsigned char *state = st_engine_operand(eng, op, ST_ROLE_STATE);
    unsigned char *weight = st_engine_operand(eng, op, ST_ROLE_WEIGHT);
    const unsigned char *grad = st_engine_operand(eng, op, ST_ROLE_GRAD);
    const struct st_moments moments = st_engine_moments(eng->program, chunk, state);
    const struct st_update_coef *coef = coef_of(eng, op->chunk, false);
    const bool sliced = st_page_sliced(&eng->program->pages[chunk->page]);

    if (coef == NULL || chunk->elems == 0)
        return STRATA_OK;
    return eng->device->ops->update(eng->device, weight + (sliced ? chunk->at : chunk->page_at),
                                    chunk->master == ST_MASTER_SPLIT ? (int16_t *)(void *)state : NULL,
                                    chunk->master == ST_MASTER_FULL ? (float *)(void *)state : NULL, &moments, grad + chunk->at,
                                    chunk->format, chunk->elems, coef, st_engine_operand(eng, op, ST_ROLE_OVERFLOWS));
}
