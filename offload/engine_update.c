/* engine_update.c - the end of a step (norm, clip factor, skip) and the update of one chunk that follows from it. */
#include "offload/engine_state.h"

#include "core/checksum.h"
#include "core/error.h"
#include "core/log.h"
#include "offload/lr_schedule.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

/* --- end of step --- */

static void fold_coefficients(struct st_engine *eng, double clip_factor)
{
    const struct st_config *c = &eng->config;
    struct st_update_scalars *u = &eng->update;
    const double correction1 = c->bias_correction ? 1.0 - eng->beta1_power : 1.0;
    const double correction2 = c->bias_correction ? 1.0 - eng->beta2_power : 1.0;
    struct st_adam_coef coef = {
        .grad_scale = (float)(1.0 / clip_factor),
        .beta1 = (float)c->beta1,
        .one_minus_beta1 = (float)(1.0 - c->beta1),
        .beta2 = (float)c->beta2,
        .one_minus_beta2 = (float)(1.0 - c->beta2),
        .eps = (float)c->eps,
        .step_size = (float)(u->lr / correction1),
        .vhat_scale = (float)(1.0 / sqrt(correction2)),
        .decay = 1.0f,
        .l2 = 0.0f,
    };

    u->no_decay = coef;
    if (c->optimizer == ST_OPTIMIZER_ADAMW)
        coef.decay = (float)(1.0 - u->lr * c->weight_decay);
    else
        coef.l2 = (float)c->weight_decay;
    u->decay = coef;
}

/* Sums over pages in index order; each page's own sum was taken in block order. */
static void sum_norms(const struct st_engine *eng, const struct st_scalars *device, const struct st_scalars *host, double *norm2,
                      uint64_t *nonfinite, uint32_t *first_bad)
{
    *norm2 = 0;
    *nonfinite = 0;
    *first_bad = ST_NO_PAGE;
    for (uint32_t p = 0; p < eng->plan->workload.page_count; p++) {
        const struct st_norm *n = eng->plan->pages[p].parked ? &host->norms[p] : &device->norms[p];

        *norm2 += n->norm2;
        *nonfinite += n->nonfinite;
        if (n->nonfinite > 0 && *first_bad == ST_NO_PAGE)
            *first_bad = p;
    }
}

static strata_status close_training_step(struct st_engine *eng, const struct st_scalars *device, const struct st_scalars *host)
{
    struct st_update_scalars *u = &eng->update;
    uint64_t nonfinite;
    uint32_t first_bad;
    double norm2, factor = 1.0;

    sum_norms(eng, device, host, &norm2, &nonfinite, &first_bad);
    u->grad_norm = sqrt(norm2);
    u->skip = nonfinite > 0;
    if (u->skip && !eng->config.check_grad_overflow)
        return st_error(STRATA_E_NUMERICS,
                        "%" PRIu64 " gradient values are not finite, the first in page %u: lower the learning rate, or set "
                        "bf16.check_grad_overflow to true to skip such updates",
                        nonfinite, first_bad);
    if (u->skip) {
        eng->steps_skipped++;
        st_log(ST_LOG_WARN, "update skipped: %" PRIu64 " gradient values are not finite, the first in page %u", nonfinite,
               first_bad);
        return STRATA_OK;
    }
    if (eng->config.gradient_clipping > 0)
        factor = fmax(1.0, (u->grad_norm + 1e-6) / eng->config.gradient_clipping);
    eng->steps_applied++;
    eng->beta1_power *= eng->config.beta1;
    eng->beta2_power *= eng->config.beta2;
    u->step = eng->steps_applied;
    u->lr = st_lr_at(&eng->config, u->step);
    fold_coefficients(eng, factor);
    return STRATA_OK;
}

strata_status st_engine_end_of_step(struct st_engine *eng)
{
    struct st_scalars *device = st_engine_pointer(eng, eng->plan->at.scalars_host);
    const struct st_scalars *host = st_engine_pointer(eng, eng->plan->at.norms_host);
    const struct st_workload *w = &eng->plan->workload;
    const double *losses = st_scalars_losses(device, w->page_count);
    double sum = 0;

    for (uint32_t m = 0; m < w->grad_accum; m++)
        sum += losses[m];
    eng->update.loss = eng->target_count > 0 ? sum / (double)eng->target_count : 0;
    eng->result.weights_overflowed = eng->overflowed_host + device->weights_overflowed - eng->overflowed_seen;
    eng->overflowed_seen = eng->overflowed_host + device->weights_overflowed;
    if (eng->phase == ST_PHASE_EVAL)
        return STRATA_OK;
    return close_training_step(eng, device, host);
}

/* --- one chunk on the host --- */

struct chunk_job {
    struct st_engine *eng;
    const struct st_chunk *chunk;
    int16_t *residual; /* chunk's planes; residual NULL: weight is the fp32 master */
    float *moment1, *moment2;
    unsigned char *weight;
    const unsigned char *grad;
    size_t width;                    /* bytes of a weight and of a gradient */
    const struct st_adam_coef *coef; /* NULL: skip */
    bool state_swapped, weight_swapped, weight_unchecked;
    _Atomic uint64_t bad; /* 1 + plane * 2^32 + tile */
    _Atomic uint64_t overflowed;
};

/* Check (or renew) the checksum of one plane's tile. */
static void seal(struct chunk_job *job, enum st_plane plane, const void *data, size_t bytes, uint64_t tile, bool check)
{
    uint64_t *stored = &job->eng->checksums[plane][job->chunk->tile_first + tile];
    const uint64_t sum = st_checksum64(data, bytes);

    if (!check)
        *stored = sum;
    else if (*stored != sum)
        atomic_store(&job->bad, 1 + ((uint64_t)plane << 32) + tile);
}

static void seal_tile(struct chunk_job *job, uint64_t tile, uint64_t at, uint64_t elems, bool check)
{
    if (job->state_swapped) {
        if (job->residual != NULL)
            seal(job, ST_PLANE_RESIDUAL, job->residual + at, elems * 2, tile, check);
        seal(job, ST_PLANE_MOMENT1, job->moment1 + at, elems * 4, tile, check);
        seal(job, ST_PLANE_MOMENT2, job->moment2 + at, elems * 4, tile, check);
    }
    if (job->weight_swapped && (!check || job->weight_unchecked))
        seal(job, ST_PLANE_WEIGHT, job->weight + at * job->width, elems * job->width, tile, check);
}

static void update_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    struct chunk_job *job = ctx;
    const struct st_kernels *k = job->eng->kernels;
    const strata_dtype dt = job->eng->plan->workload.dtype;
    const uint64_t at = tile * ST_TILE_ELEMS, left = job->chunk->elems - at;
    const uint64_t elems = left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS;
    unsigned char *weight = job->weight + at * job->width;
    const void *grad = job->grad + at * job->width;
    uint64_t overflowed;

    (void)worker;
    seal_tile(job, tile, at, elems, true);
    if (job->coef == NULL)
        return;
    if (job->residual != NULL)
        overflowed = k->adam_split((uint16_t *)(void *)weight, job->residual + at, job->moment1 + at, job->moment2 + at, grad, dt,
                                   elems, job->coef);
    else
        overflowed = k->adam_master((float *)(void *)weight, NULL, STRATA_F32, job->moment1 + at, job->moment2 + at, grad, dt,
                                    elems, job->coef);
    if (overflowed != 0)
        atomic_fetch_add(&job->overflowed, overflowed);
    seal_tile(job, tile, at, elems, false);
}

static const struct st_adam_coef *coef_of(const struct st_engine *eng, const struct st_chunk *chunk)
{
    if (eng->update.skip)
        return NULL;
    return chunk->group == ST_GROUP_DECAY ? &eng->update.decay : &eng->update.no_decay;
}

strata_status st_engine_update_chunk(struct st_engine *eng, uint32_t c, void *state, void *weight_page, const void *grad_page)
{
    const struct st_chunk *chunk = &eng->plan->chunks[c];
    const struct st_page_place *place = &eng->plan->pages[chunk->page];
    const size_t width = strata_dtype_bytes(eng->plan->workload.dtype);
    unsigned char *planes = state;
    struct chunk_job job = {
        .eng = eng,
        .chunk = chunk,
        .residual = eng->plan->split_master ? (int16_t *)state : NULL,
        .moment1 = (float *)(void *)(planes + chunk->moment1_offset),
        .moment2 = (float *)(void *)(planes + chunk->moment2_offset),
        .weight = (unsigned char *)weight_page + chunk->first * width,
        .grad = (const unsigned char *)grad_page + chunk->first * width,
        .width = width,
        .coef = coef_of(eng, chunk),
        .state_swapped = chunk->tier == STRATA_TIER_NVME,
        .weight_swapped = place->weight_home == STRATA_TIER_NVME,
    };

    /* The page's weights were read for this update: each chunk checks its own part. */
    job.weight_unchecked = job.weight_swapped;
    st_workers_run(eng->workers, update_tile, &job, (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS);
    if (job.bad != 0)
        return st_engine_tile_error(eng, c, (enum st_plane)((job.bad - 1) >> 32), (job.bad - 1) & UINT32_MAX);
    eng->overflowed_host += job.overflowed;
    return STRATA_OK;
}

/* --- one chunk on the device --- */

strata_status st_engine_update_chunk_device(struct st_engine *eng, const struct st_op *op)
{
    const struct st_access *a = &eng->plan->accesses[op->access_first];
    const struct st_chunk *chunk = &eng->plan->chunks[op->chunk];
    const strata_dtype dt = eng->plan->workload.dtype;
    const size_t width = strata_dtype_bytes(dt);
    unsigned char *state = st_engine_pointer(eng, a[0].buffer);
    unsigned char *weight = st_engine_pointer(eng, a[1].buffer);
    const unsigned char *grad = st_engine_pointer(eng, a[2].buffer);
    struct st_scalars *scalars = st_engine_pointer(eng, eng->plan->at.scalars_device);
    const struct st_adam_coef *coef = coef_of(eng, chunk);

    if (coef == NULL)
        return STRATA_OK;
    return eng->device->ops->adam(
        eng->device, weight + chunk->first * width, eng->plan->split_master ? (int16_t *)(void *)state : NULL, NULL,
        (float *)(void *)(state + chunk->moment1_offset), (float *)(void *)(state + chunk->moment2_offset),
        grad + chunk->first * width, dt, chunk->elems, coef, &scalars->weights_overflowed);
}
