/* engine_load.c - loads whole planes: puts initial values on their tiers, a page at a time.
 *
 * Called between steps, with no update pending; the program's slots serve as buffers, so nothing is allocated. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"

#include <string.h>

static uint64_t tiles_in(const struct st_chunk *chunk)
{
    return (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;
}

void *st_engine_host_slot(const struct st_engine *eng, enum st_op_kind kind)
{
    for (uint32_t i = 0; i < eng->program->op_count; i++)
        if (eng->program->ops[i].kind == kind)
            return st_engine_operand(eng, &eng->program->ops[i], ST_ROLE_TO);
    return NULL;
}

struct fill_job {
    struct st_engine *eng;
    const struct st_chunk *chunk;
    st_engine_fill_fn *fill;
    void *ctx;
    unsigned char *weight; /* chunk's part, host or device */
    unsigned char *state;  /* host or device; NULL: none */
    size_t width, master_width;
    bool weight_on_device, state_on_device;
    pthread_mutex_t lock; /* guards status, error */
    strata_status status;
    char error[1024];
};

static strata_status put(struct fill_job *j, bool on_device, void *to, const void *from, size_t bytes)
{
    if (on_device)
        return st_engine_put(j->eng, to, from, bytes);
    memcpy(to, from, bytes);
    return STRATA_OK;
}

/* Stores the weights, and the master with them if there is one.  A bf16 weight without a low half, frozen or of a run without
 * updates, is rounded to even, as torch rounds it; one with a low half is rounded as the updates round it. */
static strata_status put_master(struct fill_job *j, uint64_t first, uint64_t elems, const float *values, unsigned char *halves)
{
    const struct st_kernels *k = j->eng->kernels;
    uint16_t *weight = (uint16_t *)(void *)halves;
    int16_t *low_half = (int16_t *)(void *)(halves + 2 * ST_TILE_ELEMS);
    const void *rounded = weight, *master = low_half;
    strata_status st;

    if (j->eng->program->workload.dtype == STRATA_F32) {
        rounded = values;
    } else if (j->eng->program->workload.dtype == STRATA_F16) {
        k->f32_to_f16(weight, values, elems);
        master = values;
    } else if (j->state == NULL) {
        k->f32_to_bf16(weight, values, elems);
    } else {
        k->master_split(weight, low_half, values, elems);
    }
    st = put(j, j->weight_on_device, j->weight + first * j->width, rounded, elems * j->width);
    if (st != STRATA_OK || j->state == NULL || j->master_width == 0)
        return st;
    return put(j, j->state_on_device, j->state + first * j->master_width, master, elems * j->master_width);
}

/* Stores the values of one tile, rounded or split; moments are zero, which is all bytes 0 in every format. */
static strata_status fill_one(struct fill_job *j, uint64_t tile, float *values, unsigned char *halves)
{
    const struct st_chunk *chunk = j->chunk;
    const uint64_t first = tile * ST_TILE_ELEMS, left = chunk->elems - first;
    const uint64_t elems = left < ST_TILE_ELEMS ? left : ST_TILE_ELEMS;
    const enum st_moment_format format = j->eng->program->moment_format;
    const uint64_t bytes = st_moment_bytes(format, elems), at = st_moment_bytes(format, first);
    strata_status st = j->fill(j->ctx, chunk->page, chunk->first + first, elems, values);

    if (st == STRATA_OK)
        st = put_master(j, first, elems, values, halves);
    if (st != STRATA_OK || j->state == NULL)
        return st;
    memset(values, 0, bytes);
    st = put(j, j->state_on_device, j->state + chunk->moment1_offset + at, values, bytes);
    if (st == STRATA_OK && chunk->moment2_offset != 0)
        st = put(j, j->state_on_device, j->state + chunk->moment2_offset + at, values, bytes);
    return st;
}

static void fill_tile(void *ctx, uint64_t tile, uint32_t worker)
{
    struct fill_job *j = ctx;
    strata_status st = fill_one(j, tile, j->eng->scratch + (uint64_t)worker * ST_TILE_ELEMS,
                                j->eng->staging + (uint64_t)worker * ST_TILE_ELEMS * 4);

    if (st == STRATA_OK)
        return;
    pthread_mutex_lock(&j->lock);
    j->status = st;
    memcpy(j->error, strata_last_error(), strnlen(strata_last_error(), sizeof(j->error) - 1) + 1);
    pthread_mutex_unlock(&j->lock);
}

static strata_status load_chunk(struct st_engine *eng, uint32_t c, st_engine_fill_fn *fill, void *ctx, unsigned char *weight_page,
                                bool weight_on_device)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    struct fill_job j = {.eng = eng, .chunk = chunk, .fill = fill, .ctx = ctx, .weight_on_device = weight_on_device};
    const bool swapped = chunk->state == ST_WHERE_NVME;

    j.width = st_format_bytes(chunk->format, 1);
    j.master_width = st_master_width(chunk->master);
    j.weight = weight_page + chunk->at;
    if (chunk->state != ST_WHERE_NONE)
        j.state = swapped ? st_engine_host_slot(eng, ST_OP_READ_STATE) : st_engine_pointer(eng, chunk->region);
    j.state_on_device = chunk->state == ST_WHERE_DEVICE;
    pthread_mutex_init(&j.lock, NULL);
    if (swapped)
        memset(j.state, 0, chunk->bytes);
    if (j.state_on_device || weight_on_device) { /* several threads must not upload at once */
        for (uint64_t tile = 0; tile < tiles_in(chunk) && j.status == STRATA_OK; tile++)
            fill_tile(&j, tile, 0);
    } else {
        st_workers_run(eng->workers, fill_tile, &j, tiles_in(chunk));
    }
    pthread_mutex_destroy(&j.lock);
    if (j.status != STRATA_OK)
        return st_error(j.status, "%s", j.error);
    if (!swapped)
        return STRATA_OK;
    st_engine_hash_state(eng, c, j.state);
    return st_engine_transfer(eng, ST_IO_WRITE, chunk->region, j.state);
}

static strata_status load_page(struct st_engine *eng, uint32_t p, st_engine_fill_fn *fill, void *ctx)
{
    const struct st_page_place *place = &eng->program->pages[p];
    const uint64_t bytes = eng->program->workload.pages[p].bytes;
    const bool on_device = place->home == ST_WHERE_DEVICE;
    unsigned char *weight;
    strata_status st = STRATA_OK;

    if (on_device)
        weight = st_engine_pointer(eng, place->weight_region);
    else if (place->home == ST_WHERE_HOST)
        weight = st_engine_pointer(eng, place->home_region);
    else
        weight = st_engine_host_slot(eng, ST_OP_READ_WEIGHT);
    if (place->home == ST_WHERE_NVME)
        memset(weight, 0, eng->program->buffers[place->home_region].bytes);
    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count && st == STRATA_OK; c++)
        st = load_chunk(eng, c, fill, ctx, weight, on_device);
    if (st == STRATA_OK && place->home == ST_WHERE_NVME) {
        st_engine_hash_weights(eng, p, weight);
        st = st_engine_transfer(eng, ST_IO_WRITE, place->home_region, weight);
    }
    if (st == STRATA_OK && place->weights == ST_WHERE_DEVICE && !on_device)
        st = st_engine_put(eng, st_engine_pointer(eng, place->weight_region), weight, bytes);
    return st;
}

/* Loads what the device keeps beside the model: the layers' constants and the count of overflows. */
static strata_status load_constants(struct st_engine *eng)
{
    const uint64_t bytes = eng->program->workload.constants_bytes, none = 0;
    const strata_status st = st_engine_put(eng, st_engine_pointer(eng, eng->program->at.overflows_device), &none, sizeof(none));

    memcpy(st_engine_pointer(eng, eng->program->at.overflows_host), &none, sizeof(none));
    if (st != STRATA_OK || bytes == 0)
        return st;
    return st_engine_put(eng, st_engine_pointer(eng, eng->program->at.constants), eng->compute.constants, bytes);
}

strata_status st_engine_load(struct st_engine *eng, st_engine_fill_fn *fill, void *ctx)
{
    strata_status ready = st_engine_drain(eng); /* an earlier run's last step may still read and write the slots */

    if (ready != STRATA_OK || (ready = load_constants(eng)) != STRATA_OK)
        return ready;
    st_engine_start_run(eng);
    for (uint32_t p = 0; p < eng->program->workload.page_count; p++) {
        strata_status st = load_page(eng, p, fill, ctx);

        if (st != STRATA_OK)
            return st;
        if (atomic_load_explicit(&eng->cancelled, memory_order_relaxed))
            return st_error(STRATA_E_CANCELLED, "cancelled");
    }
    return STRATA_OK;
}
