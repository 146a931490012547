/* program_backward.c - gradients of a run of micro-batches: their fp32 sums, the one rounding, and where they go.
 *
 * A page's sum opens with its first micro-batch (zeroed), is brought back from host memory if it was parked there, and closes
 * with the last: rounded once, its norm taken, sent where the update will be.  A frozen page has no sum; activation gradients
 * pass. */
#include "offload/program_emit.h"

#include <assert.h>

static bool trained(const struct st_emitter *e, uint32_t p)
{
    return e->plan->pages[p].trained;
}

/* The device buffer that page p's gradient is summed in for these micro-batches. */
static uint32_t open_sum(struct st_emitter *e, uint32_t p, const struct st_micros *micros)
{
    const struct st_page_place *place = &e->plan->pages[p];
    struct st_op *op;
    uint32_t slot;

    if (!place->trained)
        return ST_NO_BUFFER;
    if (place->accum_region != ST_NO_BUFFER && !place->parked)
        return place->accum_region;
    slot = st_pool_take(st_place_is_small(e->plan, p) ? &e->lay->small_grads : &e->lay->grads, p);
    if (micros->opens)
        return slot;
    op = st_emit_copy(e, ST_OP_UPLOAD_ACCUM, ST_LANE_UPLOAD, BACKWARD, place->accum_region, slot, ST_HOLDS_ACCUM, p,
                      e->plan->workload.pages[p].elems * 4);
    if (op != NULL)
        op->page = p;
    return slot;
}

/* Micro-batch m adds to page p's sum; the step's first one starts it.  Always an op's last access. */
static void touch_sum(struct st_emitter *e, struct st_op *op, uint32_t p, uint32_t sum, bool first)
{
    if (sum == ST_NO_BUFFER)
        return;
    st_emit_touch(e, op, sum, first ? ST_WRITE : ST_MODIFY, ST_HOLDS_ACCUM, p);
    if (op != NULL)
        op->first = first;
}

static void park_sum(struct st_emitter *e, uint32_t p, uint32_t sum)
{
    struct st_op *op = st_emit_copy(e, ST_OP_DOWNLOAD_ACCUM, ST_LANE_DOWNLOAD, BACKWARD, sum, e->plan->pages[p].accum_region,
                                    ST_HOLDS_ACCUM, p, e->plan->workload.pages[p].elems * 4);

    if (op != NULL)
        op->page = p;
}

static uint32_t lowest_block(const struct st_emitter *e);

/* The last gradients to leave wait until after the step's end: before it, the download lane would bring them ahead of what the
 * norm waits for, and their own updates come later anyway.  Each holds its slot for so long. */
static bool held_back(const struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->plan->workload;

    return !st_emit_in_backward(e) && (p == w->position_page || p == w->block_first + lowest_block(e));
}

static void download_grad(struct st_emitter *e, uint32_t p, uint32_t from)
{
    struct st_op *op = st_emit_copy(e, ST_OP_DOWNLOAD_GRAD, ST_LANE_DOWNLOAD, BACKWARD, from, e->plan->pages[p].grad_region,
                                    ST_HOLDS_GRAD, p, st_emit_page_bytes(e, p));

    if (op != NULL)
        op->page = p;
}

void st_emit_held(struct st_emitter *e)
{
    for (uint32_t i = 0; i < e->held_count; i++)
        download_grad(e, e->held[i].page, e->held[i].from);
    e->held_count = 0;
}

/* Round once, take the norm, send it where the update will be; then update, where nothing has to be waited for. */
static void finish_grad(struct st_emitter *e, uint32_t p, uint32_t sum)
{
    struct st_plan *plan = e->plan;
    const struct st_page_place *place = &plan->pages[p];
    uint32_t rounded = sum;
    struct st_op *op = st_emit_start(e, ST_OP_FINISH_GRAD, ST_LANE_COMPUTE, BACKWARD);

    if (place->device_update)
        rounded = place->grad_region;
    else if (plan->workload.dtype != STRATA_F32)
        rounded = st_pool_take(st_place_is_small(plan, p) ? &e->lay->small_rounded : &e->lay->rounded, p);
    st_emit_touch(e, op, sum, ST_READ, ST_HOLDS_ACCUM, p);
    st_emit_touch(e, op, rounded, ST_WRITE, ST_HOLDS_GRAD, p);
    st_emit_touch(e, op, e->lay->scalars_device, ST_MODIFY, ST_HOLDS_SCALARS, 0);
    st_emit_touch(e, op, e->lay->block_sums, ST_WRITE, ST_HOLDS_SCRATCH, 0);
    if (op != NULL)
        op->page = p;
    if (!place->device_update && held_back(e, p)) {
        assert(e->held_count < ST_HELD_MAX);
        e->held[e->held_count].page = p;
        e->held[e->held_count++].from = rounded;
    } else if (!place->device_update) {
        download_grad(e, p, rounded);
    }
    if (st_emit_in_backward(e))
        st_emit_gate(e, p);
}

/* What happens to page p's sum when these micro-batches are through it.  The table's stays open for the lookup's share. */
static void close_sum(struct st_emitter *e, uint32_t p, uint32_t sum, const struct st_micros *micros)
{
    const struct st_page_place *place = &e->plan->pages[p];

    if (sum == ST_NO_BUFFER)
        return;
    if (place->parked && (!micros->closes || st_place_is_table(e->plan, p)))
        park_sum(e, p, sum);
    else if (micros->closes && !st_place_is_table(e->plan, p))
        finish_grad(e, p, sum);
}

static void head_tile_backward(struct st_emitter *e, const struct st_micros *micros, uint32_t t)
{
    const uint32_t p = e->plan->workload.head_first + t;
    const uint64_t g = e->plan->workload.grad_accum;
    const uint32_t weight = st_emit_device_weight(e, p, BACKWARD);
    const uint32_t sum = open_sum(e, p, micros);

    for (uint32_t m = micros->first; m < micros->end; m++) {
        struct st_op *op = st_emit_start(e, ST_OP_HEAD_GRAD, ST_LANE_COMPUTE, BACKWARD);

        st_emit_touch(e, op, e->lay->head[m], ST_MODIFY, ST_HOLDS_HEAD, m);
        st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
        st_emit_touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
        st_emit_touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        if (t < e->plan->kept_tiles)
            st_emit_touch(e, op, e->lay->logits[(uint64_t)t * g + m], ST_READ, ST_HOLDS_LOGITS, (uint64_t)t * g + m);
        touch_sum(e, op, p, sum, m == 0);
        if (op != NULL) {
            op->page = p;
            op->micro = m;
            op->tile = t;
            op->recompute = t >= e->plan->kept_tiles;
        }
    }
    close_sum(e, p, sum, micros);
}

static void head_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->plan->workload;
    uint32_t weight, sum;

    for (uint32_t t = 0; t < w->head_count; t++)
        head_tile_backward(e, micros, t);
    weight = st_emit_device_weight(e, w->norm_page, BACKWARD);
    sum = open_sum(e, w->norm_page, micros);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint32_t act = st_emit_act_get(e, w->block_count, m, BACKWARD);
        struct st_op *op = st_emit_start(e, ST_OP_HEAD_BACKWARD, ST_LANE_COMPUTE, BACKWARD);

        st_emit_touch(e, op, act, ST_READ, ST_HOLDS_ACT, st_emit_act_id(e, w->block_count, m));
        st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, w->norm_page);
        st_emit_touch(e, op, e->lay->head[m], ST_READ, ST_HOLDS_HEAD, m);
        st_emit_touch(e, op, e->lay->dact[m], ST_WRITE, ST_HOLDS_DACT, m);
        st_emit_touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        touch_sum(e, op, w->norm_page, sum, m == 0);
        if (op != NULL) {
            op->page = w->norm_page;
            op->micro = m;
        }
    }
    close_sum(e, w->norm_page, sum, micros);
}

static void block_backward(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t p = w->block_first + b;
    const uint32_t weight = st_emit_device_weight(e, p, BACKWARD);
    const uint32_t sum = open_sum(e, p, micros);
    const bool recompute = b < w->block_count - e->plan->kept_blocks;

    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint64_t id = (uint64_t)b * w->grad_accum + m;
        const uint32_t act = st_emit_act_get(e, b, m, BACKWARD);
        struct st_op *op = st_emit_start(e, ST_OP_BLOCK_BACKWARD, ST_LANE_COMPUTE, BACKWARD);

        st_emit_touch(e, op, act, ST_READ, ST_HOLDS_ACT, st_emit_act_id(e, b, m));
        st_emit_touch(e, op, weight, ST_READ, ST_HOLDS_WEIGHT, p);
        st_emit_touch(e, op, e->lay->internals[id], recompute ? ST_WRITE : ST_READ, ST_HOLDS_INTERNALS, id);
        st_emit_touch(e, op, e->lay->dact[m], ST_MODIFY, ST_HOLDS_DACT, m);
        st_emit_touch(e, op, e->lay->workspace, ST_WRITE, ST_HOLDS_SCRATCH, 0);
        touch_sum(e, op, p, sum, m == 0);
        if (op != NULL) {
            op->page = p;
            op->block = b;
            op->micro = m;
            op->recompute = recompute;
        }
    }
    close_sum(e, p, sum, micros);
}

static void position_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const uint32_t p = e->plan->workload.position_page;
    const uint32_t sum = open_sum(e, p, micros);

    for (uint32_t m = micros->first; m < micros->end; m++) {
        struct st_op *op = st_emit_start(e, ST_OP_EMBED_BACKWARD, ST_LANE_COMPUTE, BACKWARD);

        st_emit_touch(e, op, e->lay->dact[m], ST_READ, ST_HOLDS_DACT, m);
        touch_sum(e, op, p, sum, m == 0);
        if (op != NULL) {
            op->page = p;
            op->micro = m;
        }
    }
    close_sum(e, p, sum, micros);
}

/* The lowest block that backward must reach: the lowest trained one, or 0 when the embedding is trained. */
static uint32_t lowest_block(const struct st_emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    uint32_t b = 0;

    if (trained(e, w->table_first) || (w->position_page != ST_NO_PAGE && trained(e, w->position_page)))
        return 0;
    while (b < w->block_count && !trained(e, w->block_first + b))
        b++;
    return b;
}

void st_emit_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->plan->workload;

    head_backward(e, micros);
    for (uint32_t b = w->block_count; b-- > lowest_block(e);)
        block_backward(e, micros, b);
    if (w->position_page != ST_NO_PAGE && trained(e, w->position_page))
        position_backward(e, micros);
}

/* --- the table --- */

static void scatter_device(struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t sum = e->plan->pages[p].accum_region;
    struct st_op *op = st_emit_start(e, ST_OP_SCATTER_DEVICE, ST_LANE_COMPUTE, BACKWARD);

    st_emit_touch(e, op, sum, w->tied ? ST_MODIFY : ST_WRITE, ST_HOLDS_ACCUM, p);
    st_emit_touch(e, op, e->lay->tokens_device, ST_READ, ST_HOLDS_TOKENS, 0);
    for (uint32_t m = 0; m < w->grad_accum; m++)
        st_emit_touch(e, op, e->lay->dact[m], ST_READ, ST_HOLDS_DACT, m);
    if (op != NULL) {
        op->page = p;
        op->first = !w->tied;
    }
    finish_grad(e, p, sum);
}

static void scatter_host(struct st_emitter *e, uint32_t micro)
{
    const struct st_workload *w = &e->plan->workload;
    const bool first = !w->tied && micro == 0;
    struct st_op *op = st_emit_copy(e, ST_OP_DOWNLOAD_DACT, ST_LANE_DOWNLOAD, BACKWARD, e->lay->dact[micro], e->lay->dact_host,
                                    ST_HOLDS_DACT, micro, w->activation_bytes);

    if (op != NULL)
        op->micro = micro;
    op = st_emit_start(e, ST_OP_SCATTER_HOST, ST_LANE_UPDATE, BACKWARD);
    st_emit_touch(e, op, e->lay->dact_host, ST_READ, ST_HOLDS_DACT, micro);
    st_emit_touch(e, op, e->lay->tokens_host, ST_READ, ST_HOLDS_TOKENS, 0);
    for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++)
        st_emit_touch(e, op, e->plan->pages[p].accum_region, first ? ST_WRITE : ST_MODIFY, ST_HOLDS_ACCUM, p);
    if (op != NULL) {
        op->micro = micro;
        op->first = first;
    }
}

static void finish_host(struct st_emitter *e, uint32_t p)
{
    struct st_op *op = st_emit_start(e, ST_OP_FINISH_HOST, ST_LANE_UPDATE, BACKWARD);

    st_emit_touch(e, op, e->plan->pages[p].accum_region, ST_READ, ST_HOLDS_ACCUM, p);
    st_emit_touch(e, op, e->plan->pages[p].grad_region, ST_WRITE, ST_HOLDS_GRAD, p);
    st_emit_touch(e, op, e->lay->norms_host, ST_MODIFY, ST_HOLDS_SCALARS, 1);
    if (op != NULL)
        op->page = p;
    if (st_emit_in_backward(e))
        st_emit_gate(e, p);
}

void st_emit_table_backward(struct st_emitter *e)
{
    const struct st_workload *w = &e->plan->workload;
    const uint32_t end = w->table_first + w->table_count;

    if (!trained(e, w->table_first))
        return;
    if (!e->plan->pages[w->table_first].parked) {
        for (uint32_t p = w->table_first; p < end; p++)
            scatter_device(e, p);
        return;
    }
    for (uint32_t m = 0; m < w->grad_accum; m++)
        scatter_host(e, m);
    for (uint32_t p = w->table_first; p < end; p++)
        finish_host(e, p);
}
