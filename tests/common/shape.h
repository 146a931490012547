/* tests/common/shape.h - where a decoder's pages and layers are in its workload: a table, positions, blocks, a norm, a head. */
#ifndef TESTS_COMMON_SHAPE_H
#define TESTS_COMMON_SHAPE_H

#include "offload/workload.h"

struct decoder_shape {
    uint32_t table_count, position_page, block_first, block_count, norm_page, head_first, head_count;
    bool tied;
    uint64_t activation_bytes, block_internal_bytes, head_internal_bytes;
    struct st_layer *block, *head; /* the first block */
};

static inline struct decoder_shape shape_of(const struct st_workload *w)
{
    struct st_layer *const last = &w->layers[w->layer_count - 1], *const block = &w->layers[1];

    return (struct decoder_shape){
        .table_count = w->gathered_count,
        .position_page = w->layers[0].use_count > w->gathered_count ? w->gathered_count : ST_NO_PAGE,
        .block_first = w->uses[block->use_first],
        .block_count = w->layer_count - 2,
        .norm_page = w->uses[last->use_first],
        .head_first = w->uses[last->use_first + 1],
        .head_count = last->use_count - 1,
        .tied = w->pages[0].uses > 1,
        .activation_bytes = w->layers[0].boundary_bytes,
        .block_internal_bytes = block->internal_bytes,
        .head_internal_bytes = last->internal_bytes,
        .block = block,
        .head = last,
    };
}

#endif
