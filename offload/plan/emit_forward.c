/* emit_forward.c - embedding, blocks, head and loss of a run of micro-batches. */
#include "offload/plan/emit_internal.h"

static void gather_host(struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t weight = st_emit_host_weight(e, p, FORWARD);
    struct st_op *op = st_emit_op(e, ST_OP_GATHER_HOST, FORWARD);

    op->page = p;
    op->first = p == w->table_first;
    st_emit_operand(e, ST_ROLE_WEIGHT, weight, p);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    st_emit_operand(e, ST_ROLE_ROWS, e->lay->rows_host, 0);
    if (st_program_cuts(e->program) == 1)
        return;
    op = st_emit_op(e, ST_OP_EXCHANGE_ROWS, FORWARD);
    op->page = p;
    op->bytes = w->activation_bytes * w->grad_accum / w->table_count / e->program->ranks * (e->program->ranks - 1);
    st_emit_operand(e, ST_ROLE_WEIGHT, weight, p);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    st_emit_operand(e, ST_ROLE_ROWS, e->lay->rows_host, 0);
}

static void embed_rows(struct st_emitter *e, uint32_t micro, uint32_t act)
{
    const struct st_workload *w = &e->program->workload;
    struct st_op *op;

    if (!st_place_gather_on_host(e->plan)) {
        op = st_emit_op(e, ST_OP_GATHER_DEVICE, FORWARD);
        st_emit_operand(e, ST_ROLE_ACT_OUT, act, st_emit_act_id(e, 0, micro));
        st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
        for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++)
            st_emit_operand(e, ST_ROLE_WEIGHT, e->program->pages[p].weight_region, p);
    } else {
        op = st_emit_op(e, ST_OP_UPLOAD_ROWS, FORWARD);
        op->bytes = w->activation_bytes;
        st_emit_operand(e, ST_ROLE_ROWS, e->lay->rows_host, 0);
        st_emit_operand(e, ST_ROLE_ACT_OUT, act, st_emit_act_id(e, 0, micro));
    }
    op->micro = micro;
}

static void embed_forward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;
    const bool positions = w->position_page != ST_NO_PAGE;
    uint32_t weight = ST_NO_BUFFER;

    for (uint32_t p = w->table_first; micros->opens && p < w->table_first + w->table_count; p++) {
        if (st_emit_gated(e))
            st_emit_update(e, p);
        if (st_place_gather_on_host(e->plan))
            gather_host(e, p);
    }
    if (positions && micros->opens && st_emit_gated(e))
        st_emit_update(e, w->position_page);
    if (positions)
        weight = st_emit_device_weight(e, w->position_page, FORWARD);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint32_t act = st_emit_act_fresh(e, 0, m);

        embed_rows(e, m, act);
        if (positions) {
            struct st_op *op = st_emit_op(e, ST_OP_EMBED_FORWARD, FORWARD);

            op->page = w->position_page;
            op->micro = m;
            st_emit_operand(e, ST_ROLE_ACT, act, st_emit_act_id(e, 0, m));
            st_emit_operand(e, ST_ROLE_WEIGHT, weight, w->position_page);
        }
        st_emit_act_keep(e, 0, m, act);
    }
}

/* The first block's update and upload run in parallel with the table's, while the host does the look-ups. */
static void first_block_ahead(struct st_emitter *e, const struct st_micros *micros)
{
    const uint32_t p = e->program->workload.block_first;

    if (!e->first_ahead)
        return;
    if (micros->opens && st_emit_gated(e))
        st_emit_update(e, p);
    (void)st_emit_device_weight(e, p, FORWARD);
}

/* A table that stays on the device is uploaded piece by piece; the head is the first to need it. */
static void table_after_block(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const struct st_workload *w = &e->program->workload;
    const uint64_t slices = w->table_count;

    if (!micros->opens || !st_emit_uploads_later(e))
        return;
    for (uint64_t t = slices * b / w->block_count; t < slices * (b + 1) / w->block_count; t++)
        st_emit_table_slice(e, (uint32_t)t);
}

/* Whether block b is in its slot before the one below it, or the table, has been computed. */
static bool comes_ahead(const struct st_emitter *e, uint32_t b)
{
    return b == 0 ? e->first_ahead
                  : e->lay->weights.count > 1 && st_page_sliced(&e->program->pages[e->program->workload.block_first + b]);
}

/* A block in slices is updated and placed ahead of the one below it, in whose queue both would wait, so that the other ranks'
 * slices come while that one is computed. */
static void next_block_ahead(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const uint32_t p = e->program->workload.block_first + b + 1;

    if (b + 1 == e->program->workload.block_count || !comes_ahead(e, b + 1))
        return;
    if (micros->opens && st_emit_gated(e))
        st_emit_update(e, p);
    (void)st_emit_device_weight(e, p, FORWARD);
}

static void block_forward(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t p = w->block_first + b;
    uint32_t weight;

    if (micros->opens && st_emit_gated(e) && !comes_ahead(e, b))
        st_emit_update(e, p);
    weight = st_emit_device_weight(e, p, FORWARD);
    next_block_ahead(e, micros, b);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint64_t id = (uint64_t)b * w->grad_accum + m;
        const uint32_t in = st_emit_act_get(e, b, m, FORWARD);
        const uint32_t out = st_emit_act_fresh(e, b + 1, m);
        struct st_op *op = st_emit_op(e, ST_OP_BLOCK_FORWARD, FORWARD);

        op->page = p;
        op->block = b;
        op->micro = m;
        st_emit_operand(e, ST_ROLE_ACT, in, st_emit_act_id(e, b, m));
        st_emit_operand(e, ST_ROLE_ACT_OUT, out, st_emit_act_id(e, b + 1, m));
        st_emit_operand(e, ST_ROLE_WEIGHT, weight, p);
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->internals[id], id);
        st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->workspace, 0);
        st_emit_act_keep(e, b + 1, m, out);
    }
}

static void head_forward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;
    struct st_op *op;
    uint32_t weight;

    if (micros->opens && st_emit_gated(e))
        st_emit_update(e, w->norm_page);
    weight = st_emit_device_weight(e, w->norm_page, FORWARD);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint32_t act = st_emit_act_get(e, w->block_count, m, FORWARD);

        op = st_emit_op(e, ST_OP_HEAD_NORM, FORWARD);
        op->page = w->norm_page;
        op->micro = m;
        st_emit_operand(e, ST_ROLE_ACT, act, st_emit_act_id(e, w->block_count, m));
        st_emit_operand(e, ST_ROLE_WEIGHT, weight, w->norm_page);
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->head[m], m);
    }
    for (uint32_t t = 0; t < w->head_count; t++) {
        if (micros->opens && !w->tied && st_emit_gated(e))
            st_emit_update(e, w->head_first + t);
        weight = st_emit_device_weight(e, w->head_first + t, FORWARD);
        for (uint32_t m = micros->first; m < micros->end; m++) {
            const uint64_t id = (uint64_t)t * w->grad_accum + m;

            op = st_emit_op(e, ST_OP_HEAD_STATS, FORWARD);
            op->page = w->head_first + t;
            op->micro = m;
            op->slice = t;
            st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->head[m], m);
            st_emit_operand(e, ST_ROLE_WEIGHT, weight, w->head_first + t);
            st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
            st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->workspace, 0);
            if (t < e->plan->decided.kept_slices)
                st_emit_operand(e, ST_ROLE_LOGITS, e->lay->logits[id], id);
        }
    }
    for (uint32_t m = micros->first; m < micros->end; m++) {
        st_emit_op(e, ST_OP_HEAD_LOSS, FORWARD)->micro = m;
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->head[m], m);
        st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
        st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_device, 0);
    }
}

void st_emit_forward(struct st_emitter *e, const struct st_micros *micros)
{
    first_block_ahead(e, micros);
    embed_forward(e, micros);
    st_emit_forget_weights(e, e->program->workload.block_first);
    for (uint32_t b = 0; b < e->program->workload.block_count; b++) {
        block_forward(e, micros, b);
        table_after_block(e, micros, b);
    }
    head_forward(e, micros);
}
