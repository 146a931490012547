/* program_forward.c - embedding, blocks, head and loss of a run of micro-batches. */
#include "offload/program_emit.h"

static void gather_host(struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->plan->workload;
    struct st_op *op;
    uint32_t weight = st_emit_host_weight(e, p, FORWARD);

    op = st_emit_start(e, ST_OP_GATHER_HOST, ST_LANE_UPDATE, FORWARD);
    st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
    st_emit_touch(e, op, e->lay->tokens_host, ST_READ, ST_HOLDS_TOKENS, 0);
    st_emit_touch(e, op, e->lay->rows_host, p == w->table_first ? ST_WRITE : ST_MODIFY, ST_HOLDS_ROWS, 0);
    if (op != NULL)
        op->page = p;
}

static void embed_rows(struct st_emitter *e, uint32_t micro, uint32_t act)
{
    const struct st_workload *w = &e->plan->workload;
    struct st_op *op;

    if (!st_place_gather_on_host(e->plan)) {
        op = st_emit_start(e, ST_OP_GATHER_DEVICE, ST_LANE_COMPUTE, FORWARD);
        st_emit_touch(e, op, act, ST_WRITE, ST_HOLDS_ACT, st_emit_act_id(e, 0, micro));
        st_emit_touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
        for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++)
            st_emit_touch(e, op, e->plan->pages[p].weight_region, ST_READ, ST_HOLDS_WEIGHT, p);
    } else {
        op = st_emit_start(e, ST_OP_UPLOAD_ROWS, ST_LANE_UPLOAD, FORWARD);
        st_emit_touch(e, op, e->lay->rows_host, ST_READ, ST_HOLDS_ROWS, 0);
        st_emit_touch(e, op, act, ST_WRITE, ST_HOLDS_ACT, st_emit_act_id(e, 0, micro));
        if (op != NULL)
            op->bytes = w->activation_bytes;
    }
    if (op != NULL)
        op->micro = micro;
}

static void embed_forward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->plan->workload;
    const bool positions = w->position_page != ST_NO_PAGE;
    uint32_t weight = ST_NO_BUFFER;

    for (uint32_t p = w->table_first; micros->opens && p < w->table_first + w->table_count; p++) {
        if (st_emit_gated(e))
            st_emit_gate(e, p);
        if (st_place_gather_on_host(e->plan))
            gather_host(e, p);
    }
    if (positions && micros->opens && st_emit_gated(e))
        st_emit_gate(e, w->position_page);
    if (positions)
        weight = st_emit_device_weight(e, w->position_page, FORWARD);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint32_t act = st_emit_act_fresh(e, 0, m);

        embed_rows(e, m, act);
        if (positions) {
            struct st_op *op = st_emit_start(e, ST_OP_EMBED_FORWARD, ST_LANE_COMPUTE, FORWARD);

            st_emit_touch(e, op, act, ST_MODIFY, ST_HOLDS_ACT, st_emit_act_id(e, 0, m));
            st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->position_page);
            if (op != NULL) {
                op->page = w->position_page;
                op->micro = m;
            }
        }
        st_emit_act_keep(e, 0, m, act);
    }
}

/* The first block's update and upload run beside the table's, which the host looks up meanwhile. */
static void first_block_ahead(struct st_emitter *e, const struct st_micros *micros)
{
    const uint32_t p = e->plan->workload.block_first;

    if (!e->first_ahead)
        return;
    if (micros->opens && st_emit_gated(e))
        st_emit_gate(e, p);
    (void)st_emit_device_weight(e, p, FORWARD);
}

/* A table that stays on the device follows piece by piece; the head is the first that needs it. */
static void table_after_block(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const struct st_workload *w = &e->plan->workload;
    const uint64_t tiles = w->table_count;

    if (!micros->opens || !st_emit_uploads_later(e))
        return;
    for (uint64_t t = tiles * b / w->block_count; t < tiles * (b + 1) / w->block_count; t++)
        st_emit_table_tile(e, (uint32_t)t);
}

static void block_forward(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t p = w->block_first + b;
    uint32_t weight;

    if (micros->opens && st_emit_gated(e) && !(b == 0 && e->first_ahead))
        st_emit_gate(e, p);
    weight = st_emit_device_weight(e, p, FORWARD);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint64_t id = (uint64_t)b * w->grad_accum + m;
        const uint32_t in = st_emit_act_get(e, b, m, FORWARD);
        const uint32_t out = st_emit_act_fresh(e, b + 1, m);
        struct st_op *op = st_emit_start(e, ST_OP_BLOCK_FORWARD, ST_LANE_COMPUTE, FORWARD);

        st_emit_touch(e, op, in, ST_READ, ST_HOLDS_ACT, st_emit_act_id(e, b, m));
        st_emit_touch(e, op, out, ST_WRITE, ST_HOLDS_ACT, st_emit_act_id(e, b + 1, m));
        st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
        st_emit_touch(e, op, e->lay->internals[id], ST_WRITE, ST_HOLDS_INTERNALS, id);
        st_emit_touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        if (op != NULL) {
            op->page = p;
            op->block = b;
            op->micro = m;
        }
        st_emit_act_keep(e, b + 1, m, out);
    }
}

static void head_forward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->plan->workload;
    struct st_op *op;
    uint32_t weight;

    if (micros->opens && st_emit_gated(e))
        st_emit_gate(e, w->norm_page);
    weight = st_emit_device_weight(e, w->norm_page, FORWARD);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint32_t act = st_emit_act_get(e, w->block_count, m, FORWARD);

        op = st_emit_start(e, ST_OP_HEAD_NORM, ST_LANE_COMPUTE, FORWARD);
        st_emit_touch(e, op, act, ST_READ, ST_HOLDS_ACT, st_emit_act_id(e, w->block_count, m));
        st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->norm_page);
        st_emit_touch(e, op, e->lay->head[m], ST_WRITE, ST_HOLDS_HEAD, m);
        if (op != NULL) {
            op->page = w->norm_page;
            op->micro = m;
        }
    }
    for (uint32_t t = 0; t < w->head_count; t++) {
        if (micros->opens && !w->tied && st_emit_gated(e))
            st_emit_gate(e, w->head_first + t);
        weight = st_emit_device_weight(e, w->head_first + t, FORWARD);
        for (uint32_t m = micros->first; m < micros->end; m++) {
            op = st_emit_start(e, ST_OP_HEAD_STATS, ST_LANE_COMPUTE, FORWARD);
            st_emit_touch(e, op, e->lay->head[m], ST_MODIFY, ST_HOLDS_HEAD, m);
            st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->head_first + t);
            st_emit_touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
            st_emit_touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
            if (t < e->plan->kept_tiles)
                st_emit_touch(e, op, e->lay->logits[(uint64_t)t * w->grad_accum + m], ST_WRITE, ST_HOLDS_LOGITS,
                              (uint64_t)t * w->grad_accum + m);
            if (op != NULL) {
                op->page = w->head_first + t;
                op->micro = m;
                op->tile = t;
            }
        }
    }
    for (uint32_t m = micros->first; m < micros->end; m++) {
        op = st_emit_start(e, ST_OP_HEAD_LOSS, ST_LANE_COMPUTE, FORWARD);
        st_emit_touch(e, op, e->lay->head[m], ST_READ, ST_HOLDS_HEAD, m);
        st_emit_touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
        st_emit_touch(e, op, e->lay->scalars_device, ST_MODIFY, ST_HOLDS_SCALARS, 0);
        if (op != NULL)
            op->micro = m;
    }
}

void st_emit_forward(struct st_emitter *e, const struct st_micros *micros)
{
    first_block_ahead(e, micros);
    embed_forward(e, micros);
    st_emit_forget_weights(e, e->plan->workload.block_first);
    for (uint32_t b = 0; b < e->plan->workload.block_count; b++) {
        block_forward(e, micros, b);
        table_after_block(e, micros, b);
    }
    head_forward(e, micros);
}
