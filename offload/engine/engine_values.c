/* engine_values.c - reads and writes a part of a page's weights or moments as numbers, wherever they are stored.
 *
 * Called between steps; makes pending updates first.  The program's slots, the workers' scratch and the staging serve as buffers,
 * so nothing is allocated.  Of several ranks each has its slices: a read is completed by a gather, a write is made by all. */
#include "offload/engine/engine_internal.h"

#include "core/base/checksum.h"
#include "core/base/error.h"
#include "kernels/moment_codes.h"
#include "kernels/widen.h"

#include <assert.h>
#include <string.h>

#define TILE_BYTES (ST_TILE_ELEMS * sizeof(float))

_Static_assert(2 * TILE_BYTES <= ST_SCRATCH_BYTES,
               "the staging of one worker holds a tile of weights and one of a state's plane");

/* A call, and the page whose weights are at hand. */
struct values {
    struct st_engine *eng;
    const struct st_values *what;
    unsigned char *out;      /* reads: [elems] of what->dtype */
    const unsigned char *in; /* writes: the same */
    unsigned char *weights;  /* this rank's shard, or the page that the device has whole */
    bool remote;             /* those are on a device whose memory the host cannot read */
};

static bool is_remote(const struct st_engine *eng, enum st_where where)
{
    return where == ST_WHERE_DEVICE && !eng->device->ops->arena_is_host;
}

/* --- one tile --- */

/* A tile's part of a plane: where it is stored, or its copy in the staging. */
struct part {
    unsigned char *home, *here;
    uint64_t bytes;
    bool remote;
};

static struct part part_at(const struct values *v, unsigned char *home, bool remote, uint64_t bytes, uint32_t half)
{
    return (struct part){
        .home = home, .here = remote ? v->eng->staging + half * TILE_BYTES : home, .bytes = bytes, .remote = remote};
}

static strata_status fetch(const struct values *v, const struct part *p)
{
    return p->remote ? st_engine_get(v->eng, p->here, p->home, p->bytes) : STRATA_OK;
}

static strata_status store(const struct values *v, const struct part *p)
{
    return p->remote ? st_engine_put(v->eng, p->home, p->here, p->bytes) : STRATA_OK;
}

static struct part weight_part(const struct values *v, const struct st_chunk *chunk, uint64_t at, uint64_t elems)
{
    unsigned char *home = v->weights + st_chunk_home_at(v->eng->program, chunk) + st_format_bytes(chunk->format, at);

    return part_at(v, home, v->remote, st_format_bytes(chunk->format, elems), 0);
}

static struct part state_part(const struct values *v, const struct st_chunk *chunk, unsigned char *state, enum st_plane plane,
                              uint64_t at, uint64_t elems)
{
    const struct st_program *program = v->eng->program;
    const uint64_t first = plane == ST_PLANE_MOMENT1   ? chunk->moment1_offset
                           : plane == ST_PLANE_MOMENT2 ? chunk->moment2_offset
                                                       : 0;

    return part_at(v, state + first + st_chunk_plane_bytes(program, chunk, plane, at), is_remote(v->eng, chunk->state),
                   st_chunk_plane_bytes(program, chunk, plane, elems), 1);
}

static void narrow(const struct st_kernels *k, void *out, const float *in, strata_dtype dtype, uint64_t elems)
{
    if (dtype == STRATA_BF16)
        k->f32_to_bf16(out, in, elems);
    else if (dtype == STRATA_F16)
        k->f32_to_f16(out, in, elems);
    else
        memmove(out, in, elems * sizeof(*in));
}

static strata_dtype moment_dtype(const struct st_program *program)
{
    return program->moment_format == ST_MOMENTS_BF16 ? STRATA_BF16 : STRATA_F32;
}

/* Moments of 8 bits lie in packs that share scales: those of a tile's whole packs, here. */
static strata_status take_codes(const struct values *v, const struct st_chunk *chunk, unsigned char *state, uint64_t at,
                                uint64_t elems, float *values)
{
    const struct st_program *program = v->eng->program;
    const uint64_t first = at / ST_NORM_BLOCK * ST_NORM_BLOCK;
    const uint64_t whole = (at + elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK * ST_NORM_BLOCK;
    const uint64_t room = (whole < chunk->elems ? whole : chunk->elems) - first;
    const struct part p = state_part(v, chunk, state, v->what->plane, first, room);
    const struct st_moments moments = {
        .format = program->moment_format, .moment1 = p.here, .moment2 = p.here, .position = chunk->position + first};
    const struct st_moment_part part = {.moments = &moments,
                                        .rule = st_rule_of(v->eng->training.optimizer.type),
                                        .which = v->what->plane == ST_PLANE_MOMENT2,
                                        .first = at - first,
                                        .elems = elems,
                                        .room = room};
    strata_status st = fetch(v, &p);

    if (st != STRATA_OK)
        return st;
    if (v->in == NULL) {
        st_moment_codes_read(values, &part);
        return st;
    }
    st_moment_codes_write(&part, values);
    return store(v, &p);
}

/* Whether a chunk's weights are its masters' business, too; rounded as they are stored, they are themselves.  Once training has
 * ended there are no masters. */
static bool takes_master(const struct values *v, const struct st_chunk *chunk)
{
    return v->what->plane == ST_PLANE_WEIGHT && chunk->state != ST_WHERE_NONE && chunk->master != ST_MASTER_WEIGHT &&
           (v->in != NULL || (v->what->dtype != chunk->format && !v->eng->state_ends));
}

static strata_status read_tile(struct values *v, const struct st_chunk *chunk, unsigned char *state, uint64_t at, uint64_t elems,
                               float *values)
{
    const struct st_kernels *k = v->eng->kernels;
    const bool weight = v->what->plane == ST_PLANE_WEIGHT, master = takes_master(v, chunk);
    struct part p, low;
    strata_status st = STRATA_OK;

    if (!weight && v->eng->program->moment_format == ST_MOMENTS_8BIT)
        return take_codes(v, chunk, state, at, elems, values);
    if (!weight) {
        p = state_part(v, chunk, state, v->what->plane, at, elems);
        if ((st = fetch(v, &p)) == STRATA_OK)
            st_widen(k, values, p.here, moment_dtype(v->eng->program), elems);
        return st;
    }
    if (master) {
        low = state_part(v, chunk, state, ST_PLANE_MASTER, at, elems);
        st = fetch(v, &low);
    }
    if (st == STRATA_OK && master && chunk->format == STRATA_F16) {
        memcpy(values, low.here, elems * sizeof(*values));
        return st;
    }
    p = weight_part(v, chunk, at, elems);
    if (st == STRATA_OK && (st = fetch(v, &p)) != STRATA_OK)
        return st;
    if (master)
        k->master_join(values, (const uint16_t *)p.here, (const int16_t *)low.here, elems);
    else
        st_widen(k, values, p.here, chunk->format, elems);
    return st;
}

/* As a load rounds them (engine_load.c). */
static strata_status write_tile(struct values *v, const struct st_chunk *chunk, unsigned char *state, uint64_t at, uint64_t elems,
                                float *values)
{
    const struct st_kernels *k = v->eng->kernels;
    const bool weight = v->what->plane == ST_PLANE_WEIGHT, master = takes_master(v, chunk);
    struct part p, low;
    strata_status st = STRATA_OK;

    if (!weight && v->eng->program->moment_format == ST_MOMENTS_8BIT)
        return take_codes(v, chunk, state, at, elems, values);
    if (!weight) {
        p = state_part(v, chunk, state, v->what->plane, at, elems);
        narrow(k, p.here, values, moment_dtype(v->eng->program), elems);
        return store(v, &p);
    }
    p = weight_part(v, chunk, at, elems);
    if (master)
        low = state_part(v, chunk, state, ST_PLANE_MASTER, at, elems);
    if (master && chunk->format == STRATA_BF16)
        k->master_split((uint16_t *)p.here, (int16_t *)low.here, values, elems);
    else
        narrow(k, p.here, values, chunk->format, elems);
    if (master && chunk->format == STRATA_F16)
        memcpy(low.here, values, elems * sizeof(*values));
    if (master)
        st = store(v, &low);
    return st == STRATA_OK ? store(v, &p) : st;
}

/* --- chunks --- */

/* The part of a chunk that is asked for, counted from the chunk's first element. */
static bool overlap(const struct values *v, const struct st_chunk *chunk, uint64_t *at, uint64_t *end)
{
    const uint64_t first = v->what->first, last = first + v->what->elems;

    *at = first > chunk->page_first ? first - chunk->page_first : 0;
    *end = last > chunk->page_first ? last - chunk->page_first : 0;
    *end = *end < chunk->elems ? *end : chunk->elems;
    return *at < *end;
}

static strata_status each_tile(struct values *v, const struct st_chunk *chunk, unsigned char *state, uint64_t at, uint64_t end)
{
    const strata_dtype dtype = v->what->dtype;
    const struct st_kernels *k = v->eng->kernels;
    float *values = v->eng->scratch;
    strata_status st = STRATA_OK;

    for (uint64_t elems; at < end && st == STRATA_OK; at += elems) {
        const uint64_t place = (chunk->page_first + at - v->what->first) * strata_dtype_bytes(dtype);

        elems = end - at < ST_TILE_ELEMS ? end - at : ST_TILE_ELEMS;
        if (v->in != NULL) {
            st_widen(k, values, v->in + place, dtype, elems);
            st = write_tile(v, chunk, state, at, elems, values);
        } else if ((st = read_tile(v, chunk, state, at, elems, values)) == STRATA_OK) {
            narrow(k, v->out + place, values, dtype, elems);
        }
    }
    return st;
}

static strata_status move_state(struct st_engine *eng, uint32_t c, unsigned char *slot, enum st_io_op op)
{
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const uint64_t bytes = op == ST_IO_READ && eng->fresh[c] ? st_chunk_fresh_bytes(chunk) : chunk->bytes;
    struct st_engine_io io;
    const strata_status st = st_engine_transfer_start(eng, &io, op, chunk->region, 0, slot, bytes, false);

    return st == STRATA_OK ? st_engine_transfer_wait(eng, &io) : st;
}

static strata_status take_chunk(struct values *v, uint32_t c)
{
    struct st_engine *eng = v->eng;
    const struct st_chunk *chunk = &eng->program->chunks[c];
    const bool needed = v->what->plane != ST_PLANE_WEIGHT || takes_master(v, chunk);
    const bool swapped = needed && chunk->state == ST_WHERE_NVME;
    unsigned char *state = NULL;
    uint64_t at, end;
    strata_status st = STRATA_OK;

    if (!overlap(v, chunk, &at, &end))
        return STRATA_OK;
    if (swapped) {
        state = st_engine_host_slot(eng, ST_OP_READ_STATE);
        if ((st = move_state(eng, c, state, ST_IO_READ)) == STRATA_OK)
            st = st_engine_verify_state(eng, c, state);
    } else if (needed) {
        state = st_engine_pointer(eng, chunk->region);
    }
    if (st == STRATA_OK)
        st = each_tile(v, chunk, state, at, end);
    if (st != STRATA_OK || !swapped || v->in == NULL)
        return st;
    st_engine_hash_state(eng, c, state);
    eng->fresh[c] = false;
    return move_state(eng, c, state, ST_IO_WRITE);
}

/* --- the page's weights --- */

static strata_status bring_page(struct values *v)
{
    struct st_engine *eng = v->eng;
    const struct st_page_place *place = &eng->program->pages[v->what->page];
    struct st_engine_io io;
    strata_status st;

    v->remote = is_remote(eng, place->home);
    if (place->home != ST_WHERE_NVME) {
        v->weights = st_engine_pointer(eng, st_page_home(place));
        return STRATA_OK;
    }
    v->weights = st_engine_host_slot(eng, ST_OP_READ_WEIGHT);
    if ((st = st_engine_page_start(eng, &io, ST_IO_READ, v->what->page, v->weights)) != STRATA_OK ||
        (st = st_engine_transfer_wait(eng, &io)) != STRATA_OK)
        return st;
    return st_engine_verify_weights(eng, v->what->page, v->weights);
}

/* What is trained goes to the set in use; what is frozen, to where all checkpoints will have it. */
static strata_status return_page(struct values *v)
{
    struct st_engine *eng = v->eng;
    const uint32_t p = v->what->page;
    const struct st_page_place *place = &eng->program->pages[p];
    const uint64_t bytes = place->home == ST_WHERE_NVME ? eng->program->buffers[place->home_region].bytes : 0;
    const bool frozen = v->what->first >= eng->program->workload.pages[p].trained_elems;
    struct st_engine_io io;
    strata_status st = STRATA_OK;

    if (place->weights == ST_WHERE_DEVICE && place->home != ST_WHERE_DEVICE)
        st = st_engine_put_shard(eng, p, v->weights);
    if (st != STRATA_OK || place->home != ST_WHERE_NVME)
        return st;
    st_engine_hash_weights(eng, p, v->weights);
    st = frozen ? st_engine_page_start(eng, &io, ST_IO_WRITE, p, v->weights)
                : st_engine_transfer_start(eng, &io, ST_IO_WRITE, place->home_region, 0, v->weights, bytes, false);
    return st == STRATA_OK ? st_engine_transfer_wait(eng, &io) : st;
}

static strata_status run(struct values *v)
{
    const struct st_page_place *place = &v->eng->program->pages[v->what->page];
    const bool weight = v->what->plane == ST_PLANE_WEIGHT;
    strata_status st = st_engine_flush(v->eng, NULL);

    if (st == STRATA_OK && weight)
        st = bring_page(v);
    for (uint32_t c = place->chunk_first; c < place->chunk_first + place->chunk_count && st == STRATA_OK; c++)
        st = take_chunk(v, c);
    return st == STRATA_OK && weight && v->in != NULL ? return_page(v) : st;
}

/* --- ranks --- */

/* Each rank has filled in its slices: all get all of it. */
static strata_status share(struct values *v)
{
    struct st_engine *eng = v->eng;
    const struct st_workload *w = &eng->program->workload;
    const uint32_t ranks = eng->program->ranks, page = v->what->page;
    const uint64_t width = strata_dtype_bytes(v->what->dtype), room = st_workers_count(eng->workers) * ST_SCRATCH_BYTES;
    const struct st_group *group = st_page_group(&w->pages[page], v->what->first);
    const uint32_t g = (uint32_t)(group - w->pages[page].groups);
    const uint64_t most = room / ranks / width, first = v->what->first - group->offset;
    strata_status st = STRATA_OK;

    for (uint64_t at = 0, elems; at < v->what->elems && st == STRATA_OK; at += elems) {
        elems = v->what->elems - at < most ? v->what->elems - at : most;
        st = st_engine_gather(eng, v->out + at * width, elems * width, eng->staging, "values of a tensor");
        for (uint64_t done = 0, run_elems; done < elems && st == STRATA_OK; done += run_elems) {
            const uint32_t owner = st_slice_owner(w, page, g, ranks, first + at + done);
            const struct st_slice slice = st_slice_of(w, page, g, ranks, owner);
            const uint64_t left = slice.first + slice.elems - (first + at + done);

            run_elems = left < elems - done ? left : elems - done;
            memcpy(v->out + (at + done) * width, eng->staging + (owner * elems + done) * width, run_elems * width);
        }
    }
    return st;
}

/* Before anything is read or written: whether all ranks ask for the same part, and give the same values. */
static strata_status check_alike(struct values *v)
{
    const struct st_values *w = v->what;
    const uint64_t words[] = {w->page, w->plane, w->first, w->elems, w->dtype};
    uint64_t mine = st_checksum64(words, sizeof(words)), *const all = (uint64_t *)(void *)v->eng->answers;
    strata_status st = STRATA_OK;

    if (v->eng->program->ranks == 1)
        return st;
    if (v->in != NULL)
        mine += st_checksum64(v->in, w->elems * strata_dtype_bytes(w->dtype));
    st = st_engine_gather(v->eng, &mine, sizeof(mine), all, "the digest of a part of a tensor");
    for (uint32_t r = 1; r < v->eng->program->ranks && st == STRATA_OK; r++)
        if (all[r] != all[0])
            st = st_error(STRATA_E_CONFIG, "rank %u names another part of a tensor than rank 0, or gives other values", r);
    return st;
}

strata_status st_engine_read_values(struct st_engine *eng, const struct st_values *what, void *out)
{
    struct values v = {.eng = eng, .what = what, .out = out};
    const bool cut = st_program_cuts(eng->program) > 1;
    strata_status st = check_alike(&v);

    if (st != STRATA_OK)
        return st;
    if (cut)
        memset(out, 0, what->elems * strata_dtype_bytes(what->dtype));
    st = st_engine_agree(eng, run(&v), "a part of a tensor");
    return st == STRATA_OK && cut ? share(&v) : st;
}

strata_status st_engine_write_values(struct st_engine *eng, const struct st_values *what, const void *in)
{
    struct values v = {.eng = eng, .what = what, .in = in};
    strata_status st;

    if (eng->base_saved && what->first >= eng->program->workload.pages[what->page].trained_elems)
        return st_error(STRATA_E_INVAL, "what is frozen belongs to the checkpoints of this run: write it before the first save");
    if ((st = check_alike(&v)) != STRATA_OK)
        return st;
    eng->has_moments = eng->has_moments || what->plane != ST_PLANE_WEIGHT;
    st = st_engine_agree(eng, run(&v), "a part of a tensor");
    if (st == STRATA_OK && st_program_cuts(eng->program) > 1 && eng->program->pages[what->page].weight_region != ST_NO_BUFFER)
        st = st_engine_gather_page(eng, what->page);
    return st;
}
