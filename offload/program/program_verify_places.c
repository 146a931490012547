/* program_verify_places.c - see program_verify.h: buffers, extents, second places. */
#include "offload/program/program_verify.h"

#include "core/base/error.h"

#include <stdlib.h>

/* --- buffers --- */

static int by_place(const void *a, const void *b)
{
    const struct st_buffer *x = *(const struct st_buffer *const *)a, *y = *(const struct st_buffer *const *)b;

    if (x->tier != y->tier)
        return x->tier < y->tier ? -1 : 1;
    if (x->space != y->space)
        return x->space < y->space ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Bytes of what a buffer lies in: 0 if there is no such space. */
static uint64_t bytes_around(const struct st_program *program, const struct st_buffer *b)
{
    if (b->tier != STRATA_TIER_NVME)
        return b->space == 0 ? program->needed[b->tier] : 0;
    return b->space < ST_SPACE_COUNT ? program->space_bytes[b->space] : 0;
}

static strata_status verify_buffers(const struct st_program *program)
{
    const struct st_buffer **sorted = malloc((program->buffer_count + 1) * sizeof(*sorted));
    strata_status st = STRATA_OK;

    if (sorted == NULL)
        return st_nomem((program->buffer_count + 1) * sizeof(*sorted));
    for (uint32_t i = 0; i < program->buffer_count; i++)
        sorted[i] = &program->buffers[i];
    qsort(sorted, program->buffer_count, sizeof(*sorted), by_place);
    for (uint32_t i = 0; i < program->buffer_count && st == STRATA_OK; i++) {
        const struct st_buffer *b = sorted[i], *before = i > 0 ? sorted[i - 1] : NULL;

        if (b->offset + b->bytes > bytes_around(program, b))
            st = st_error(STRATA_E_INTERNAL, "verify: buffer %u ends past tier %d, space %u", (unsigned)(b - program->buffers),
                          (int)b->tier, b->space);
        else if (before != NULL && before->tier == b->tier && before->space == b->space &&
                 before->offset + before->bytes > b->offset)
            st = st_error(STRATA_E_INTERNAL, "verify: buffers %u and %u overlap", (unsigned)(before - program->buffers),
                          (unsigned)(b - program->buffers));
    }
    free(sorted);
    return st;
}

/* --- extents --- */

/* Whether a buffer is an extent of this space that has room for so many bytes, and nothing else has taken it. */
static bool takes_extent(const struct st_program *program, bool *taken, uint32_t buffer, enum st_space space, uint64_t bytes)
{
    const struct st_buffer *b = &program->buffers[buffer < program->buffer_count ? buffer : 0];

    if (bytes == 0 || buffer == ST_NO_BUFFER)
        return bytes == 0 && buffer == ST_NO_BUFFER;
    if (buffer >= program->buffer_count || taken[buffer] || b->tier != STRATA_TIER_NVME || b->space != space || b->bytes < bytes)
        return false;
    taken[buffer] = true;
    return true;
}

static bool page_is_kept(const struct st_program *program, bool *taken, uint32_t p)
{
    const struct st_page *page = &program->shards[p];
    const struct st_page_place *place = &program->pages[p];
    const bool on_nvme = place->home == ST_WHERE_NVME;

    if (program->sets == 0)
        return place->base_extent == ST_NO_BUFFER && place->extent == (on_nvme ? place->home_region : ST_NO_BUFFER) &&
               takes_extent(program, taken, place->extent, ST_SPACE_SCRATCH, on_nvme ? page->bytes : 0);
    return takes_extent(program, taken, place->extent, ST_SPACE_SET, st_page_set_bytes(page)) &&
           takes_extent(program, taken, place->base_extent, ST_SPACE_BASE, st_page_base_bytes(page)) &&
           (!on_nvme || place->home_region == (place->extent != ST_NO_BUFFER ? place->extent : place->base_extent));
}

/* A gradient that the host updates from has a place in memory, passes through slots, or waits on NVMe. */
static bool grad_is_kept(const struct st_program *program, bool *taken, uint32_t p)
{
    const struct st_page_place *place = &program->pages[p];
    const bool swapped = place->grad_extent != ST_NO_BUFFER;

    return (!swapped || (program->swaps_grads && place->grad == ST_WHERE_HOST && place->grad_region == ST_NO_BUFFER)) &&
           takes_extent(program, taken, place->grad_extent, ST_SPACE_SCRATCH, swapped ? program->shards[p].trained_bytes : 0);
}

static bool chunk_is_kept(const struct st_program *program, bool *taken, const struct st_chunk *chunk)
{
    const bool on_nvme = chunk->state == ST_WHERE_NVME, kept = program->sets > 0 ? chunk->state != ST_WHERE_NONE : on_nvme;

    return (!on_nvme || chunk->region == chunk->extent) &&
           takes_extent(program, taken, chunk->extent, program->sets > 0 ? ST_SPACE_SET : ST_SPACE_SCRATCH,
                        kept ? chunk->bytes : 0);
}

static strata_status verify_extents(const struct st_program *program)
{
    bool *taken = calloc((size_t)program->buffer_count + 1, sizeof(*taken));
    strata_status st = STRATA_OK;

    if (taken == NULL)
        return st_nomem(((size_t)program->buffer_count + 1) * sizeof(*taken));
    if (program->needed[STRATA_TIER_NVME] != st_spaces_bytes(program->space_bytes, program->sets))
        st = st_error(STRATA_E_INTERNAL, "verify: the spaces and %u sets are not what NVMe needs", program->sets);
    for (uint32_t p = 0; p < program->workload.page_count && st == STRATA_OK; p++)
        if (!page_is_kept(program, taken, p))
            st = st_error(STRATA_E_INTERNAL, "verify: the weights of page %u have no extents of their own", p);
        else if (!grad_is_kept(program, taken, p))
            st = st_error(STRATA_E_INTERNAL, "verify: the gradient of page %u has no extent of its own", p);
    for (uint32_t c = 0; c < program->chunk_count && st == STRATA_OK; c++)
        if (!chunk_is_kept(program, taken, &program->chunks[c]))
            st = st_error(STRATA_E_INTERNAL, "verify: the state of chunk %u has no extent of its own", c);
    free(taken);
    return st;
}

/* What is updated early has another place of its own, as large and on the same tier, and nothing else has one. */
static bool has_other(const struct st_program *program, bool *taken, uint32_t buffer, bool early)
{
    const uint32_t other = buffer == ST_NO_BUFFER ? 0 : program->buffers[buffer].other;
    const struct st_buffer *a = &program->buffers[buffer == ST_NO_BUFFER ? 0 : buffer], *b = &program->buffers[other];

    if (other == 0 || !early)
        return other == 0 && !early;
    if (other >= program->buffer_count || taken[other] || b->other != 0 || b->tier != a->tier || b->space != ST_SPACE_SCRATCH ||
        b->bytes < a->bytes)
        return false;
    taken[other] = true;
    return true;
}

static strata_status verify_others(const struct st_program *program)
{
    bool *taken = calloc((size_t)program->buffer_count + 1, sizeof(*taken));
    strata_status st = taken == NULL ? st_nomem((size_t)program->buffer_count + 1) : STRATA_OK;

    for (uint32_t p = 0; p < program->workload.page_count && st == STRATA_OK; p++)
        if ((program->pages[p].early && program->pages[p].grad != ST_WHERE_HOST) ||
            !has_other(program, taken, program->pages[p].home_region, program->pages[p].early))
            st = st_error(STRATA_E_INTERNAL, "verify: the weights of page %u have no second place of their own", p);
    for (uint32_t c = 0; c < program->chunk_count && st == STRATA_OK; c++)
        if (!has_other(program, taken, program->chunks[c].region, program->pages[program->chunks[c].page].early))
            st = st_error(STRATA_E_INTERNAL, "verify: the state of chunk %u has no second place of its own", c);
    for (uint32_t i = 0; i < program->access_count && st == STRATA_OK; i++)
        if (program->accesses[i].buffer < program->buffer_count && taken[program->accesses[i].buffer])
            st = st_error(STRATA_E_INTERNAL, "verify: an op names buffer %u, the second place of another one",
                          program->accesses[i].buffer);
    free(taken);
    return st;
}

strata_status st_verify_places(const struct st_program *program)
{
    strata_status st;

    if ((st = verify_buffers(program)) != STRATA_OK || (st = verify_extents(program)) != STRATA_OK)
        return st;
    return verify_others(program);
}
