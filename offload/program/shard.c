/* shard.c - see shard.h. */
#include "offload/program/shard.h"

#include "kernels/kernels.h"

#include <assert.h>

uint64_t st_shard_unit(const struct st_workload *w, uint32_t page)
{
    uint64_t unit = w->hidden;

    static_assert((ST_TILE_ELEMS & (ST_TILE_ELEMS - 1)) == 0, "doubled often enough, every number is a multiple of it");
    if (w->pages[page].row_count == 0)
        return ST_TILE_ELEMS;
    while (unit % ST_TILE_ELEMS != 0)
        unit *= 2;
    return unit;
}

static uint64_t units_of(const struct st_group *g, uint64_t unit)
{
    return (g->elems + unit - 1) / unit;
}

/* Slice s begins at this unit. */
static uint64_t slice_begin(uint64_t units, uint32_t ranks, uint64_t s)
{
    return units / ranks * s + units % ranks * s / ranks;
}

static uint32_t shift_of(uint32_t page, uint32_t group, uint32_t ranks)
{
    return (uint32_t)(((uint64_t)page + group) % ranks);
}

struct st_slice st_slice_of(const struct st_workload *w, uint32_t page, uint32_t group, uint32_t ranks, uint32_t rank)
{
    const struct st_group *g = &w->pages[page].groups[group];
    const uint64_t unit = st_shard_unit(w, page), units = units_of(g, unit);
    const uint64_t s = (rank + ranks - shift_of(page, group, ranks)) % ranks;
    const uint64_t first = slice_begin(units, ranks, s) * unit, end = slice_begin(units, ranks, s + 1) * unit;

    return (struct st_slice){.first = first, .elems = (end < g->elems ? end : g->elems) - (first < g->elems ? first : g->elems)};
}

uint32_t st_slice_owner(const struct st_workload *w, uint32_t page, uint32_t group, uint32_t ranks, uint64_t element)
{
    const struct st_group *g = &w->pages[page].groups[group];
    const uint64_t unit = st_shard_unit(w, page), units = units_of(g, unit), at = element / unit;
    uint64_t s = units > 0 ? at * ranks / units : 0; /* or the one before or after it */

    assert(element < g->elems);
    while (s > 0 && slice_begin(units, ranks, s) > at)
        s--;
    while (slice_begin(units, ranks, s + 1) <= at)
        s++;
    return st_slice_rank(page, group, ranks, (uint32_t)s);
}

uint32_t st_slice_rank(uint32_t page, uint32_t group, uint32_t ranks, uint32_t s)
{
    return (s + shift_of(page, group, ranks)) % ranks;
}

uint32_t st_slice_runs(struct st_slice slice)
{
    const uint64_t end = (slice.first + slice.elems + ST_TILE_ELEMS - 1) / ST_TILE_ELEMS;
    uint32_t runs = 0;

    for (uint64_t tile = slice.first / ST_TILE_ELEMS; slice.elems > 0 && tile < end; tile += st_norm_run(tile, end))
        runs++;
    return runs;
}

void st_shard_make(struct st_page *out, const struct st_workload *w, uint32_t page, uint32_t ranks)
{
    const struct st_page *p = &w->pages[page];
    const uint64_t unit = st_shard_unit(w, page);

    if (ranks == 1) {
        *out = *p;
        return;
    }
    *out = (struct st_page){
        .flags = p->flags, .uses = p->uses, .layer = p->layer, .row_first = p->row_first, .row_count = p->row_count};
    for (uint32_t i = 0; i < p->group_count; i++) {
        const struct st_group *g = &p->groups[i];
        const uint64_t room = (units_of(g, unit) + ranks - 1) / ranks * unit;

        (void)st_page_add_to(out, g->set, g->kind, g->format, room < g->elems ? room : g->elems);
    }
}

uint32_t st_shard_pieces(struct st_shard_piece *out, const struct st_workload *w, uint32_t page, uint32_t ranks, uint32_t rank,
                         uint64_t first, uint64_t bytes)
{
    struct st_page shard;
    uint32_t count = 0;

    if (ranks == 1) {
        *out = (struct st_shard_piece){.shard_at = first, .page_at = first, .bytes = bytes};
        return bytes > 0;
    }
    st_shard_make(&shard, w, page, ranks);
    for (uint32_t i = 0; i < shard.group_count; i++) {
        const struct st_group *room = &shard.groups[i], *whole = &w->pages[page].groups[i];
        const struct st_slice slice = st_slice_of(w, page, i, ranks, rank);
        const uint64_t room_end = room->at + st_format_bytes(room->format, slice.elems);
        const uint64_t from = first > room->at ? first : room->at, end = first + bytes < room_end ? first + bytes : room_end;

        if (from < end)
            out[count++] =
                (struct st_shard_piece){.shard_at = from,
                                        .page_at = whole->at + st_format_bytes(room->format, slice.first) + (from - room->at),
                                        .bytes = end - from};
    }
    return count;
}
