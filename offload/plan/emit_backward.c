/* emit_backward.c - gradients of a run of micro-batches: their fp32 sums, the one rounding, and where they go.
 *
 * A page's sum opens with its first micro-batch (zeroed), is brought back from its host accumulator if it has one, and closes
 * with the last: rounded once, its norm taken, sent where the update will be.  A frozen page has no sum; activation gradients
 * pass. */
#include "offload/plan/emit_internal.h"

#include <assert.h>

static bool trained(const struct st_emitter *e, uint32_t p)
{
    return e->program->pages[p].grad != ST_WHERE_NONE;
}

/* The device buffer in which page p's gradient is summed for these micro-batches. */
static uint32_t open_sum(struct st_emitter *e, uint32_t p, const struct st_micros *micros)
{
    const struct st_page_place *place = &e->program->pages[p];
    uint32_t slot;

    if (place->grad == ST_WHERE_NONE)
        return ST_NO_BUFFER;
    if (place->sum == ST_WHERE_DEVICE)
        return place->accum_region;
    slot = st_pool_take(st_place_is_small(e->plan, p) ? &e->lay->small_grads : &e->lay->grads, p);
    if (micros->opens)
        return slot;
    st_emit_copy(e, ST_OP_UPLOAD_ACCUM, BACKWARD, place->accum_region, slot, p, st_emit_sum_bytes(e, p))->page = p;
    return slot;
}

/* Makes the op begun last, of micro-batch m, add to page p's sum; the step's first micro-batch starts the sum. */
static void add_to_sum(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t m)
{
    if (sum == ST_NO_BUFFER)
        return;
    e->op->first = m == 0;
    st_emit_operand(e, ST_ROLE_SUM, sum, p);
}

static void sum_to_host(struct st_emitter *e, uint32_t p, uint32_t sum)
{
    st_emit_copy(e, ST_OP_DOWNLOAD_ACCUM, BACKWARD, sum, e->program->pages[p].accum_region, p, st_emit_sum_bytes(e, p))->page = p;
}

/* The last gradients to leave wait until after the step's end: before it, the download lane would bring them ahead of the data
 * that the norm waits for, and their own updates come later anyway. Each holds its slot until then. */
static bool held_back(const struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->program->workload;

    return !st_emit_in_backward(e) &&
           (w->pages[p].kind == ST_PAGE_POSITIONS || p == w->block_first + e->plan->sums->lowest_block);
}

static void download_grad(struct st_emitter *e, uint32_t p, uint32_t from)
{
    st_emit_copy(e, ST_OP_DOWNLOAD_GRAD, BACKWARD, from, e->program->pages[p].grad_region, p, st_emit_grad_bytes(e, p))->page = p;
}

void st_emit_held(struct st_emitter *e)
{
    for (uint32_t i = 0; i < e->held_count; i++)
        download_grad(e, e->held[i].page, e->held[i].from);
    e->held_count = 0;
}

/* Rounds once, computes the norm, and sends the gradient to where the update will be; then updates, if the update need not
 * wait. */
static void finish_grad(struct st_emitter *e, uint32_t p, uint32_t sum)
{
    const struct st_program *program = e->program;
    const struct st_page_place *place = &program->pages[p];
    uint32_t rounded = sum;

    if (place->grad == ST_WHERE_DEVICE)
        rounded = place->grad_region;
    else if (program->workload.dtype != STRATA_F32)
        rounded = st_pool_take(st_place_is_small(e->plan, p) ? &e->lay->small_rounded : &e->lay->rounded, p);
    st_emit_op(e, ST_OP_FINISH_GRAD, BACKWARD)->page = p;
    st_emit_operand(e, ST_ROLE_SUM, sum, p);
    st_emit_operand(e, ST_ROLE_GRAD, rounded, p);
    st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_device, 0);
    st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->block_sums, 0);
    if (place->grad != ST_WHERE_DEVICE && held_back(e, p)) {
        assert(e->held_count < ST_HELD_MAX);
        e->held[e->held_count].page = p;
        e->held[e->held_count++].from = rounded;
    } else if (place->grad != ST_WHERE_DEVICE) {
        download_grad(e, p, rounded);
    }
    if (st_emit_in_backward(e))
        st_emit_update(e, p);
}

/* Deals with page p's sum after these micro-batches.  The table's stays open for the lookup's gradients. */
static void close_sum(struct st_emitter *e, uint32_t p, uint32_t sum, const struct st_micros *micros)
{
    const struct st_page_place *place = &e->program->pages[p];

    if (sum == ST_NO_BUFFER)
        return;
    if (place->sum == ST_WHERE_HOST && (!micros->closes || st_place_is_table(e->plan, p)))
        sum_to_host(e, p, sum);
    else if (micros->closes && !st_place_is_table(e->plan, p))
        finish_grad(e, p, sum);
}

static void head_slice_backward(struct st_emitter *e, const struct st_micros *micros, uint32_t t)
{
    const uint32_t p = e->program->workload.head_first + t;
    const uint64_t g = e->program->workload.grad_accum;
    const uint32_t weight = st_emit_device_weight(e, p, BACKWARD);
    const uint32_t sum = open_sum(e, p, micros);

    for (uint32_t m = micros->first; m < micros->end; m++) {
        struct st_op *op = st_emit_op(e, ST_OP_HEAD_GRAD, BACKWARD);

        op->page = p;
        op->micro = m;
        op->slice = t;
        op->recompute = t >= e->plan->decided.kept_slices;
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->head[m], m);
        st_emit_operand(e, ST_ROLE_WEIGHT, weight, p);
        st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
        st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->workspace, 0);
        if (!op->recompute)
            st_emit_operand(e, ST_ROLE_LOGITS, e->lay->logits[t * g + m], t * g + m);
        add_to_sum(e, p, sum, m);
    }
    close_sum(e, p, sum, micros);
}

static void head_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;
    uint32_t weight, sum;

    for (uint32_t t = 0; t < w->head_count; t++)
        head_slice_backward(e, micros, t);
    weight = st_emit_device_weight(e, w->norm_page, BACKWARD);
    sum = open_sum(e, w->norm_page, micros);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint32_t act = st_emit_act_get(e, w->block_count, m, BACKWARD);
        struct st_op *op = st_emit_op(e, ST_OP_HEAD_BACKWARD, BACKWARD);

        op->page = w->norm_page;
        op->micro = m;
        st_emit_operand(e, ST_ROLE_ACT, act, st_emit_act_id(e, w->block_count, m));
        st_emit_operand(e, ST_ROLE_WEIGHT, weight, w->norm_page);
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->head[m], m);
        st_emit_operand(e, ST_ROLE_DACT, e->lay->dact[m], m);
        st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->workspace, 0);
        add_to_sum(e, w->norm_page, sum, m);
    }
    close_sum(e, w->norm_page, sum, micros);
}

static void block_backward(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t p = w->block_first + b;
    const uint32_t weight = st_emit_device_weight(e, p, BACKWARD);
    const uint32_t sum = open_sum(e, p, micros);

    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint64_t id = (uint64_t)b * w->grad_accum + m;
        const uint32_t act = st_emit_act_get(e, b, m, BACKWARD);
        struct st_op *op = st_emit_op(e, ST_OP_BLOCK_BACKWARD, BACKWARD);

        op->page = p;
        op->block = b;
        op->micro = m;
        op->recompute = b < w->block_count - e->plan->decided.kept_blocks;
        st_emit_operand(e, ST_ROLE_ACT, act, st_emit_act_id(e, b, m));
        st_emit_operand(e, ST_ROLE_WEIGHT, weight, p);
        st_emit_operand(e, ST_ROLE_INTERNALS, e->lay->internals[id], id);
        st_emit_operand(e, ST_ROLE_DACT, e->lay->dact[m], m);
        st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->workspace, 0);
        add_to_sum(e, p, sum, m);
    }
    close_sum(e, p, sum, micros);
}

static void position_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const uint32_t p = e->program->workload.position_page;
    const uint32_t sum = open_sum(e, p, micros);

    for (uint32_t m = micros->first; m < micros->end; m++) {
        struct st_op *op = st_emit_op(e, ST_OP_EMBED_BACKWARD, BACKWARD);

        op->page = p;
        op->micro = m;
        st_emit_operand(e, ST_ROLE_DACT, e->lay->dact[m], m);
        add_to_sum(e, p, sum, m);
    }
    close_sum(e, p, sum, micros);
}

void st_emit_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;

    head_backward(e, micros);
    for (uint32_t b = w->block_count; b-- > e->plan->sums->lowest_block;)
        block_backward(e, micros, b);
    if (w->position_page != ST_NO_PAGE && trained(e, w->position_page))
        position_backward(e, micros);
}

/* --- the table --- */

static void scatter_device(struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t sum = e->program->pages[p].accum_region;
    struct st_op *op = st_emit_op(e, ST_OP_SCATTER_DEVICE, BACKWARD);

    op->page = p;
    op->first = !w->tied;
    st_emit_operand(e, ST_ROLE_SUM, sum, p);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
    for (uint32_t m = 0; m < w->grad_accum; m++)
        st_emit_operand(e, ST_ROLE_DACT, e->lay->dact[m], m);
    finish_grad(e, p, sum);
}

static void scatter_host(struct st_emitter *e, uint32_t micro)
{
    const struct st_workload *w = &e->program->workload;
    struct st_op *op =
        st_emit_copy(e, ST_OP_DOWNLOAD_DACT, BACKWARD, e->lay->dact[micro], e->lay->dact_host, micro, w->activation_bytes);

    op->micro = micro;
    op = st_emit_op(e, ST_OP_SCATTER_HOST, BACKWARD);
    op->micro = micro;
    op->first = !w->tied && micro == 0;
    st_emit_operand(e, ST_ROLE_DACT, e->lay->dact_host, micro);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++)
        st_emit_operand(e, ST_ROLE_SUM, e->program->pages[p].accum_region, p);
}

static void finish_host(struct st_emitter *e, uint32_t p)
{
    st_emit_op(e, ST_OP_FINISH_HOST, BACKWARD)->page = p;
    st_emit_operand(e, ST_ROLE_SUM, e->program->pages[p].accum_region, p);
    st_emit_operand(e, ST_ROLE_GRAD, e->program->pages[p].grad_region, p);
    st_emit_operand(e, ST_ROLE_NORMS, e->lay->at.norms_host, 1);
    if (st_emit_in_backward(e))
        st_emit_update(e, p);
}

void st_emit_table_backward(struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t end = w->table_first + w->table_count;

    if (!trained(e, w->table_first))
        return;
    if (e->program->pages[w->table_first].sum != ST_WHERE_HOST) {
        for (uint32_t p = w->table_first; p < end; p++)
            scatter_device(e, p);
        return;
    }
    for (uint32_t m = 0; m < w->grad_accum; m++)
        scatter_host(e, m);
    for (uint32_t p = w->table_first; p < end; p++)
        finish_host(e, p);
}
