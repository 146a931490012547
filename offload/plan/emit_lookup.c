/* emit_lookup.c - a lookup's layer: rows of the gathered pages by token, and their gradients at the step's end. */
#include "offload/plan/emit_internal.h"

static void gather_host(struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t weight = st_emit_host_weight(e, p, FORWARD);
    struct st_op *op = st_emit_op(e, ST_OP_GATHER_HOST, FORWARD);

    op->page = p;
    op->first = p == 0;
    st_emit_operand(e, ST_ROLE_WEIGHT, weight, p);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    st_emit_operand(e, ST_ROLE_ROWS, e->lay->rows_host, 0);
    if (st_program_cuts(e->program) == 1)
        return;
    op = st_emit_op(e, ST_OP_EXCHANGE_ROWS, FORWARD);
    op->page = p;
    op->bytes = w->layers[0].boundary_bytes * w->grad_accum / w->gathered_count / e->program->ranks * (e->program->ranks - 1);
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
        for (uint32_t p = 0; p < w->gathered_count; p++)
            st_emit_operand(e, ST_ROLE_WEIGHT, e->program->pages[p].weight_region, p);
    } else {
        op = st_emit_op(e, ST_OP_UPLOAD_ROWS, FORWARD);
        op->bytes = w->layers[0].boundary_bytes;
        st_emit_operand(e, ST_ROLE_ROWS, e->lay->rows_host, 0);
        st_emit_operand(e, ST_ROLE_ACT_OUT, act, st_emit_act_id(e, 0, micro));
    }
    op->micro = micro;
}

/* The page that is added to the rows. */
static uint32_t added_page(const struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;

    return w->layers[0].use_count > w->gathered_count ? w->gathered_count : ST_NO_PAGE;
}

void st_emit_lookup(struct st_emitter *e, const struct st_micros *micros)
{
    const uint32_t added = added_page(e);
    const struct st_unit unit = {.use = added, .count = 1};
    uint32_t weight = ST_NO_BUFFER;

    for (uint32_t p = 0; micros->opens && p < e->program->workload.gathered_count; p++) {
        if (st_emit_gated(e))
            st_emit_update(e, p);
        if (st_place_gather_on_host(e->plan))
            gather_host(e, p);
    }
    if (added != ST_NO_PAGE && micros->opens && st_emit_gated(e))
        st_emit_update(e, added);
    if (added != ST_NO_PAGE)
        weight = st_emit_device_weight(e, added, FORWARD);
    for (uint32_t m = micros->first; m < micros->end; m++) {
        const uint32_t act = st_emit_act_fresh(e, 0, m);

        embed_rows(e, m, act);
        if (added != ST_NO_PAGE)
            st_emit_call(e, &unit, ST_OP_EMBED_FORWARD, FORWARD, m, &weight, NULL);
        st_emit_act_keep(e, 0, m, act, FORWARD);
    }
}

/* --- the table --- */

static void scatter_device(struct st_emitter *e, uint32_t p)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t sum = e->program->pages[p].accum_region;
    struct st_op *op = st_emit_op(e, ST_OP_SCATTER_DEVICE, BACKWARD);

    op->page = p;
    op->first = st_page_adds(&w->pages[0]) == 0;
    st_emit_operand(e, ST_ROLE_SUM, sum, p);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
    for (uint32_t m = 0; m < w->grad_accum; m++)
        st_emit_operand(e, ST_ROLE_DACT, e->lay->dact[m], m);
    st_emit_finish_grad(e, p, sum);
}

static void scatter_host(struct st_emitter *e, uint32_t micro, uint32_t dact, bool first)
{
    const struct st_workload *w = &e->program->workload;
    struct st_op *op =
        st_emit_copy(e, ST_OP_DOWNLOAD_DACT, BACKWARD, dact, e->lay->dact_host, micro, w->layers[0].boundary_bytes);

    op->micro = micro;
    op = st_emit_op(e, ST_OP_SCATTER_HOST, BACKWARD);
    op->micro = micro;
    op->first = first;
    st_emit_operand(e, ST_ROLE_DACT, e->lay->dact_host, micro);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    for (uint32_t p = 0; p < w->gathered_count; p++)
        st_emit_operand(e, ST_ROLE_SUM, e->program->pages[p].accum_region, p);
}

static void finish_host(struct st_emitter *e, uint32_t p)
{
    st_emit_op(e, ST_OP_FINISH_HOST, BACKWARD)->page = p;
    st_emit_operand(e, ST_ROLE_SUM, e->program->pages[p].accum_region, p);
    st_emit_operand(e, ST_ROLE_GRAD, e->program->pages[p].grad_region, p);
    st_emit_operand(e, ST_ROLE_NORMS, e->lay->at.norms_host, 1);
    st_emit_gather_grad(e, p, e->program->pages[p].grad_region);
    if (st_emit_in_backward(e))
        st_emit_update(e, p);
}

/* --- the same with several ranks --- */

static void scatter_micro(struct st_emitter *e, uint32_t p, uint32_t micro, uint32_t dact, bool first)
{
    struct st_op *op = st_emit_op(e, ST_OP_SCATTER_MICRO, BACKWARD);

    op->page = p;
    op->micro = micro;
    op->first = first;
    st_emit_operand(e, ST_ROLE_SUM, e->program->pages[p].accum_region, p);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_device, 0);
    st_emit_operand(e, ST_ROLE_DACT, dact, micro);
}

/* Has the rank that computed a micro-batch's gradients of rows send each to who has the row, who adds it. */
static void scatter_global(struct st_emitter *e, uint32_t global)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t micro = st_program_micro(e->program, global);
    const bool own = micro < w->grad_accum, first = st_page_adds(&w->pages[0]) == 0 && global == 0;
    const uint32_t dact = own ? e->lay->dact[micro] : st_pool_take(&e->lay->dact_wires, micro);
    struct st_op *op = st_emit_op(e, ST_OP_EXCHANGE_DACT, BACKWARD);

    op->micro = micro;
    op->first = !own;
    op->bytes = own ? 0 : w->layers[0].boundary_bytes / e->program->ranks;
    st_emit_operand(e, ST_ROLE_DACT, dact, micro);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    if (e->program->pages[0].sum == ST_WHERE_HOST)
        scatter_host(e, micro, dact, first);
    else
        for (uint32_t p = 0; p < w->gathered_count; p++)
            scatter_micro(e, p, micro, dact, first);
}

static void table_of_ranks(struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;

    for (uint32_t i = 0; i < e->program->ranks * w->grad_accum; i++)
        scatter_global(e, i);
    for (uint32_t p = 0; p < w->gathered_count; p++) {
        if (e->program->pages[p].sum == ST_WHERE_HOST)
            finish_host(e, p);
        else
            st_emit_finish_grad(e, p, e->program->pages[p].accum_region);
    }
}

void st_emit_table_backward(struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t end = w->gathered_count;

    if (end == 0 || e->program->pages[0].grad == ST_WHERE_NONE)
        return;
    if (e->program->ranks > 1) {
        table_of_ranks(e);
        return;
    }
    if (e->program->pages[0].sum != ST_WHERE_HOST) {
        for (uint32_t p = 0; p < end; p++)
            scatter_device(e, p);
        return;
    }
    for (uint32_t m = 0; m < w->grad_accum; m++)
        scatter_host(e, m, e->lay->dact[m], st_page_adds(&w->pages[0]) == 0 && m == 0);
    for (uint32_t p = 0; p < end; p++)
        finish_host(e, p);
}
