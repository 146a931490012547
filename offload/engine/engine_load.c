/* engine_load.c - loads whole planes: puts initial values on their tiers, chunk after chunk.
 *
 * Called between steps, with no update pending; the program's slots and the workers' scratch serve as buffers, so nothing is
 * allocated.  The workers draw (or read) and round; what lies in host memory they write where it belongs.  What goes to the
 * device waits in two halves of the scratch: one is uploaded while the other is filled.  What goes to NVMe waits in the slots of
 * the program's reads: one is written while the next is filled.  Moments are zero: arenas that nothing has run on hold zeros, the
 * device zeroes its own, and on NVMe they are not even written (fresh chunks, engine_internal.h). */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define STAGED_ELEMS (ST_SCRATCH_ELEMS / 2) /* of one worker, in each half of the scratch */

struct load {
    struct st_engine *eng;
    st_engine_fill_fn *fill;
    void *ctx;
    struct st_ring states, weights;
    uint32_t half;     /* of the scratch, to be filled next */
    uint64_t zero_sum; /* checksum of a whole tile's moments */
};

/* --- values --- */

/* A plane's part: in host memory, or on the device, to which it goes through the scratch. */
struct target {
    enum st_plane plane;
    unsigned char *to;
    bool on_device;
};

struct fill_job {
    struct load *load;
    const struct st_chunk *chunk;
    struct target weight, master; /* master.to NULL: the chunk has no state, or its weight is its master */
    struct st_moments moments;    /* to be zeroed here; moment1 NULL: not here */
    bool has_state, staged;
    uint64_t first, elems, item_elems; /* the part of the chunk that is filled now, and what a worker takes of it */
    pthread_mutex_t lock;              /* guards status, error */
    strata_status status;
    struct st_sentence error;
};

/* Where the values of a part wait for their upload, and behind it rounded ones: weights, then low halves. */
static float *half_values(const struct load *l)
{
    return l->eng->scratch + (uint64_t)l->half * st_workers_count(l->eng->workers) * STAGED_ELEMS;
}

static unsigned char *half_rounded(const struct load *l, bool low)
{
    const uint64_t elems = (uint64_t)st_workers_count(l->eng->workers) * STAGED_ELEMS;

    return l->eng->staging + (l->half * 2 + low) * elems * sizeof(uint16_t);
}

static uint64_t target_bytes(const struct fill_job *j, const struct target *t, uint64_t elems)
{
    return st_chunk_plane_bytes(j->load->eng->program, j->chunk, t->plane, elems);
}

/* Where to put an item's part of a plane whose part of the chunk waits at `staged` if it goes to the device. */
static void *place(const struct fill_job *j, const struct target *t, void *staged, uint64_t at)
{
    return t->on_device ? (unsigned char *)staged + target_bytes(j, t, at) : t->to + target_bytes(j, t, j->first + at);
}

/* Elements of a record share a scale, which one that is not finite would spoil. */
static strata_status check_finite(const struct fill_job *j, uint64_t at, const float *values, uint64_t elems)
{
    for (uint64_t i = 0; i < elems; i++)
        if (!isfinite(values[i]))
            return st_error(STRATA_E_NUMERICS, "page %u, element %" PRIu64 " is %g: what is not finite cannot be quantised",
                            j->chunk->page, j->chunk->page_first + j->first + at + i, (double)values[i]);
    return STRATA_OK;
}

/* Draws one item and rounds it.  A bf16 weight without a low half, frozen or of a run without updates, is rounded to even, as
 * torch rounds it; one with a low half is rounded as the updates round it. */
static strata_status fill_values(struct fill_job *j, uint64_t at, uint64_t elems, float *spare)
{
    const struct st_kernels *k = j->load->eng->kernels;
    const strata_dtype dt = j->chunk->format;
    void *weight = place(j, &j->weight, dt == STRATA_F32 ? (void *)half_values(j->load) : half_rounded(j->load, false), at);
    void *master = NULL;
    float *values = dt == STRATA_F32 ? weight : spare;
    strata_status st;

    if (j->master.to != NULL)
        master = place(j, &j->master, dt == STRATA_F16 ? (void *)half_values(j->load) : half_rounded(j->load, true), at);
    if (dt == STRATA_F16 && master != NULL)
        values = master;
    st = j->load->fill(j->load->ctx, j->chunk->page, j->chunk->page_first + j->first + at, elems, values);
    if (st != STRATA_OK || dt == STRATA_F32)
        return st;
    if (dt == STRATA_NF4 && (st = check_finite(j, at, values, elems)) != STRATA_OK)
        return st;
    if (dt == STRATA_NF4)
        k->nf4_quantise(weight, values, elems);
    else if (dt == STRATA_F16)
        k->f32_to_f16(weight, values, elems);
    else if (master == NULL)
        k->f32_to_bf16(weight, values, elems);
    else
        k->master_split(weight, master, values, elems);
    return STRATA_OK;
}

static void zero_moments(const struct fill_job *j, uint64_t at, uint64_t elems)
{
    const struct st_moments moments = st_moments_at(&j->moments, j->first + at);
    const uint64_t bytes = st_moment_bytes(moments.format, elems);

    memset(moments.moment1, 0, bytes);
    if (moments.moment2 != NULL)
        memset(moments.moment2, 0, bytes);
}

static void fill_item(void *ctx, uint64_t item, uint32_t worker)
{
    struct fill_job *j = ctx;
    const uint64_t at = item * j->item_elems, left = j->elems - at;
    const uint64_t elems = left < j->item_elems ? left : j->item_elems;
    float *spare = j->staged ? half_values(j->load) + at : j->load->eng->scratch + (uint64_t)worker * ST_SCRATCH_ELEMS;
    const strata_status st = fill_values(j, at, elems, spare);

    if (j->moments.moment1 != NULL)
        zero_moments(j, at, elems);
    if (st == STRATA_OK)
        return;
    pthread_mutex_lock(&j->lock);
    j->status = st;
    st_error_keep(&j->error);
    pthread_mutex_unlock(&j->lock);
}

/* --- chunks --- */

static strata_status upload_part(struct fill_job *j, const struct target *t, const void *from)
{
    struct st_device *dev = j->load->eng->device;

    return dev->ops->upload(dev, t->to + target_bytes(j, t, j->first), from, target_bytes(j, t, j->elems));
}

/* Uploads the half that has been filled, once the other one's uploads are done; then that one is free. */
static strata_status upload_half(struct fill_job *j)
{
    struct load *l = j->load;
    const strata_dtype dt = j->chunk->format;
    strata_status st = l->eng->device->ops->finish(l->eng->device, ST_QUEUE_UPLOAD);

    if (st == STRATA_OK && j->weight.on_device)
        st = upload_part(j, &j->weight, dt == STRATA_F32 ? (const void *)half_values(l) : half_rounded(l, false));
    if (st == STRATA_OK && j->master.to != NULL && j->master.on_device)
        st = upload_part(j, &j->master, dt == STRATA_F16 ? (const void *)half_values(l) : half_rounded(l, true));
    l->half ^= 1;
    return st;
}

/* For other uses of the scratch than its halves: the last upload may still read from it. */
static strata_status free_scratch(const struct load *l)
{
    return l->eng->device->ops->finish(l->eng->device, ST_QUEUE_UPLOAD);
}

/* Fills the chunk's weights and master, in parts that the scratch has room for if any of them goes through it. */
static strata_status fill_chunk(struct fill_job *j)
{
    const uint64_t room = (uint64_t)st_workers_count(j->load->eng->workers) * STAGED_ELEMS;
    strata_status st = STRATA_OK;

    j->staged = j->weight.on_device || (j->master.to != NULL && j->master.on_device);
    j->item_elems = j->staged ? STAGED_ELEMS : ST_SCRATCH_ELEMS;
    if (!j->staged && (st = free_scratch(j->load)) != STRATA_OK)
        return st;
    pthread_mutex_init(&j->lock, NULL);
    for (j->first = 0; j->first < j->chunk->elems && st == STRATA_OK; j->first += j->elems) {
        const uint64_t left = j->chunk->elems - j->first;

        j->elems = j->staged && left > room ? room : left;
        st_workers_run(j->load->eng->workers, fill_item, j, (j->elems + j->item_elems - 1) / j->item_elems);
        st = j->status == STRATA_OK ? STRATA_OK : st_error_again(j->status, &j->error);
        if (st == STRATA_OK && atomic_load_explicit(&j->load->eng->cancelled, memory_order_relaxed))
            st = st_error(STRATA_E_CANCELLED, "cancelled");
        if (st == STRATA_OK && j->staged)
            st = upload_half(j);
    }
    pthread_mutex_destroy(&j->lock);
    return st;
}

/* Whether the chunk's moments hold zeros since their arena was taken. */
static bool never_written(const struct st_engine *eng, const struct st_chunk *chunk)
{
    return !eng->has_moments && (chunk->state == ST_WHERE_HOST || eng->device->ops->arena_is_host);
}

static strata_status zero_on_device(struct st_engine *eng, const struct st_moments *moments, uint64_t elems)
{
    const uint64_t bytes = st_moment_bytes(moments->format, elems);
    strata_status st = eng->device->ops->zero(eng->device, moments->moment1, bytes);

    if (st == STRATA_OK && moments->moment2 != NULL)
        st = eng->device->ops->zero(eng->device, moments->moment2, bytes);
    return st;
}

/* The checksum of `elems` zero moments, at most a tile's. */
static uint64_t zeros_sum(struct st_engine *eng, uint64_t elems)
{
    const uint64_t bytes = st_moment_bytes(eng->program->moment_format, elems);

    memset(eng->scratch, 0, bytes);
    return st_checksum64(eng->scratch, bytes);
}

/* Sets the checksums of a fresh chunk's moments: what they are once somebody zeroes them. */
static void checksum_zeros(struct load *l, const struct st_chunk *chunk)
{
    const uint64_t tiles = (chunk->elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS, rest = chunk->elems % ST_TILE_ELEMS;
    const uint64_t last = rest != 0 ? zeros_sum(l->eng, rest) : l->zero_sum;

    for (uint32_t p = 0; p < l->eng->program->moments; p++) {
        uint64_t *sums = l->eng->checksums[ST_PLANE_MOMENT1 + p] + chunk->tile_first;

        for (uint64_t tile = 0; tile < tiles; tile++)
            sums[tile] = tile + 1 < tiles ? l->zero_sum : last;
    }
}

/* In all of this, what lies in an arena that is host memory is not on the device. */
static strata_status load_chunk(struct load *l, uint32_t c, unsigned char *weight_page, bool weight_on_device)
{
    struct st_engine *eng = l->eng;
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const bool swapped = chunk->state == ST_WHERE_NVME;
    const bool state_on_device = chunk->state == ST_WHERE_DEVICE && !eng->device->ops->arena_is_host;
    struct fill_job j = {.load = l,
                         .chunk = chunk,
                         .weight = {ST_PLANE_WEIGHT, weight_page + st_chunk_home_at(eng->program, chunk), weight_on_device}};
    unsigned char *state = NULL;
    strata_status st = STRATA_OK;

    if (swapped)
        st = st_ring_take(&l->states, eng, &state);
    else if (chunk->state != ST_WHERE_NONE)
        state = st_engine_pointer(eng, chunk->region);
    if (st != STRATA_OK)
        return st;
    if (state != NULL && chunk->master != ST_MASTER_WEIGHT)
        j.master = (struct target){ST_PLANE_MASTER, state, state_on_device};
    if (state != NULL && !swapped && !never_written(eng, chunk)) {
        const struct st_moments moments = st_engine_moments(eng->program, chunk, state);

        if (state_on_device)
            st = zero_on_device(eng, &moments, chunk->elems);
        else
            j.moments = moments;
    }
    if (st == STRATA_OK && swapped && (st = free_scratch(l)) == STRATA_OK)
        checksum_zeros(l, chunk);
    if (st == STRATA_OK)
        st = fill_chunk(&j);
    if (st != STRATA_OK || !swapped)
        return st;
    st_engine_hash_master(eng, c, state);
    eng->fresh[c] = true;
    return st_ring_start(&l->states, eng, ST_IO_WRITE, chunk->region, 0, st_chunk_fresh_bytes(chunk));
}

/* --- pages --- */

void st_engine_zero_gaps(const struct st_engine *eng, uint32_t p, unsigned char *slot)
{
    const struct st_page_place *place = &eng->program->pages[p];
    const uint64_t bytes = st_extent_bytes(eng->program->shards[p].bytes);
    uint64_t end = 0;

    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count; c++) {
        const struct st_chunk *chunk = &eng->program->chunks[c];

        memset(slot + end, 0, chunk->at - end);
        end = chunk->at + st_format_bytes(chunk->format, chunk->elems);
    }
    memset(slot + end, 0, bytes - end);
}

strata_status st_engine_put_shard(struct st_engine *eng, uint32_t p, const unsigned char *shard)
{
    unsigned char *page = st_engine_pointer(eng, eng->program->pages[p].weight_region);
    struct st_shard_piece pieces[ST_GROUPS_MAX];
    const uint32_t count = st_program_pieces(pieces, eng->program, p, 0, eng->program->shards[p].bytes);
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = st_engine_put(eng, page + pieces[i].page_at, shard + pieces[i].shard_at, pieces[i].bytes);
    return st;
}

static strata_status load_page(struct load *l, uint32_t p)
{
    struct st_engine *eng = l->eng;
    const struct st_page_place *place = &eng->program->pages[p];
    const bool on_device = place->home == ST_WHERE_DEVICE, swapped = place->home == ST_WHERE_NVME;
    unsigned char *weight = NULL;
    strata_status st = STRATA_OK;

    if (swapped)
        st = st_ring_take(&l->weights, eng, &weight);
    else
        weight = st_engine_pointer(eng, st_page_home(place));
    if (st == STRATA_OK && swapped)
        st_engine_zero_gaps(eng, p, weight);
    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count && st == STRATA_OK; c++)
        st = load_chunk(l, c, weight, on_device && !eng->device->ops->arena_is_host);
    if (st == STRATA_OK && place->weights == ST_WHERE_DEVICE && !on_device)
        st = st_engine_put_shard(eng, p, weight);
    if (st != STRATA_OK || !swapped)
        return st;
    st_engine_hash_weights(eng, p, weight);
    return st_ring_start_page(&l->weights, eng, ST_IO_WRITE, p);
}

static strata_status zero_overflows(struct st_engine *eng)
{
    const uint64_t none = 0;

    memcpy(st_engine_pointer(eng, eng->program->at.overflows_host), &none, sizeof(none));
    return st_engine_put(eng, st_engine_pointer(eng, eng->program->at.overflows_device), &none, sizeof(none));
}

strata_status st_engine_take_overflows(struct st_engine *eng)
{
    uint64_t count;
    const strata_status st = st_engine_get(eng, &count, st_engine_pointer(eng, eng->program->at.overflows_device), sizeof(count));

    if (st != STRATA_OK)
        return st;
    eng->train.overflowed_host += count;
    return zero_overflows(eng);
}

strata_status st_engine_load_constants(struct st_engine *eng)
{
    const uint64_t bytes = eng->program->workload.constants_bytes;
    const strata_status st = zero_overflows(eng);

    if (st != STRATA_OK || bytes == 0)
        return st;
    return st_engine_put(eng, st_engine_pointer(eng, eng->program->at.constants), eng->compute.constants, bytes);
}

/* Waits for everything that is under way, whatever has failed; the first failure is the load's. */
static strata_status finish(struct load *l, strata_status st)
{
    struct st_engine *eng = l->eng;
    struct st_sentence error;

    st_error_keep(&error);
    for (uint32_t i = 0; i < 4; i++) {
        const strata_status one = i == 0   ? eng->device->ops->finish(eng->device, ST_QUEUE_UPLOAD)
                                  : i == 1 ? eng->device->ops->finish(eng->device, ST_QUEUE_COMPUTE)
                                  : i == 2 ? st_ring_close(&l->states, eng)
                                           : st_ring_close(&l->weights, eng);

        if (st == STRATA_OK && (st = one) != STRATA_OK)
            st_error_keep(&error);
    }
    return st == STRATA_OK ? STRATA_OK : st_error_again(st, &error);
}

/* What is written of a chunk's state is a small part of a slot. */
static void open_states(struct load *l)
{
    const struct st_program *program = l->eng->program;
    uint64_t most = 0, fresh = 0;

    for (uint32_t c = 0; c < program->chunk_count; c++) {
        const struct st_chunk *chunk = &program->chunks[c];

        if (chunk->state != ST_WHERE_NVME)
            continue;
        most = most > chunk->bytes ? most : chunk->bytes;
        fresh = fresh > st_chunk_fresh_bytes(chunk) ? fresh : st_chunk_fresh_bytes(chunk);
    }
    st_ring_open(&l->states, l->eng, ST_OP_READ_STATE);
    if (most > 0)
        st_ring_split(&l->states, most, fresh);
}

static strata_status load_all(struct st_engine *eng, st_engine_fill_fn *fill, void *ctx)
{
    struct load l = {.eng = eng, .fill = fill, .ctx = ctx};
    strata_status st = st_engine_drain(eng); /* an earlier run's last step may still read and write the slots */

    if (st != STRATA_OK || (st = st_engine_load_constants(eng)) != STRATA_OK)
        return st;
    st_engine_start_run(eng);
    open_states(&l);
    st_ring_open(&l.weights, eng, ST_OP_READ_WEIGHT);
    if (l.states.count > 0)
        l.zero_sum = zeros_sum(eng, ST_TILE_ELEMS);
    for (uint32_t p = 0; p < eng->program->workload.page_count && st == STRATA_OK; p++)
        st = load_page(&l, p);
    return finish(&l, st);
}

strata_status st_engine_load(struct st_engine *eng, st_engine_fill_fn *fill, void *ctx)
{
    strata_status st = st_engine_outside(eng, "load");

    if (st != STRATA_OK)
        return st;
    st = st_engine_agree(eng, load_all(eng, fill, ctx), "the end of a load");
    return st == STRATA_OK ? st_engine_gather_pages(eng) : st;
}
