/* tests/model/layout_gaps.c - see layout_gaps.h. */
#include "layout_gaps.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <string.h>

#define GAP_BYTE 0xb7

/* A buffer, and a layout of it: the offsets of its parts, each of which a gap ends, and its bytes. */
struct laid_out {
    const char *name;
    unsigned char *at;
    const uint64_t *offsets;
    size_t count;
};

/* What is done with each gap; `part`: the offset behind it in the layout's struct. */
typedef void gap_body(unsigned char *gap, const struct laid_out *l, size_t part);

static void fill(unsigned char *gap, const struct laid_out *l, size_t part)
{
    (void)l;
    (void)part;
    memset(gap, GAP_BYTE, ST_LAYOUT_GAP);
}

static void check(unsigned char *gap, const struct laid_out *l, size_t part)
{
    for (uint32_t i = 0; i < ST_LAYOUT_GAP; i++)
        if (gap[i] != GAP_BYTE)
            fail_msg("%s: what lies before offset %zu of its layout, %llu, was overrun", l->name, part,
                     (unsigned long long)l->offsets[part]);
}

static void each_of(const struct laid_out *l, gap_body *body)
{
    for (size_t i = 0; i < l->count && l->at != NULL; i++)
        if (l->offsets[i] > 0)
            body(l->at + l->offsets[i] - ST_LAYOUT_GAP, l, i);
}

#define LAID_OUT(name, at, layout)                                                                                               \
    (&(struct laid_out){(name), (at), (const uint64_t *)(const void *)&(layout), sizeof(layout) / sizeof(uint64_t)})

static void each_gap(const struct st_model *m, const struct st_call *call, gap_body *body)
{
    const bool sparse = call->kind >= ST_CALL_ROUTE_FORWARD;
    const struct st_block_values values = st_block_values_layout(m, sparse);
    const struct st_route_values route = st_route_values_layout(m);
    const struct st_slice_workspace experts = st_slice_workspace_layout(m);
    const struct st_block_cache cache = st_block_cache_layout(m);
    const struct st_block_workspace workspace = st_block_workspace_layout(m);
    const struct st_head_internals head = st_head_internals_layout(m);
    const struct st_head_workspace slice = st_head_workspace_layout(m);

    if (sparse)
        each_of(LAID_OUT("what a sparse block's calls leave each other",
                         (unsigned char *)call->internals + st_block_internal_bytes(m, true) - route.bytes, route),
                body);
    switch (call->kind) {
    case ST_CALL_EXPERTS_FORWARD:
    case ST_CALL_EXPERTS_BACKWARD:
        each_of(LAID_OUT("a slice's workspace", (unsigned char *)call->workspace + workspace.slice, experts), body);
        return;
    case ST_CALL_BLOCK_FORWARD:
    case ST_CALL_BLOCK_BACKWARD:
    case ST_CALL_ROUTE_FORWARD:
    case ST_CALL_ROUTE_AGAIN:
    case ST_CALL_ROUTE_BACKWARD:
        each_of(LAID_OUT("a block's workspace", call->workspace, workspace), body);
        if (m->batch.generate)
            each_of(LAID_OUT("a block's cache", call->internals, cache), body);
        else
            each_of(LAID_OUT("a block's internals", call->internals, values), body);
        return;
    case ST_CALL_HEAD_NORM:
    case ST_CALL_HEAD_STATS:
    case ST_CALL_HEAD_LOSS:
    case ST_CALL_HEAD_GRAD:
    case ST_CALL_HEAD_BACKWARD:
        each_of(LAID_OUT("the head's workspace", call->workspace, slice), body);
        each_of(LAID_OUT("the head's internals", call->internals, head), body);
        return;
    default:
        return;
    }
}

void layout_gaps_fill(const struct st_model *m, const struct st_call *call)
{
    each_gap(m, call, fill);
}

void layout_gaps_check(const struct st_model *m, const struct st_call *call)
{
    each_gap(m, call, check);
}
