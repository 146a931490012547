/* emit_caller.c - pages of a workload whose layers the caller computes that stay on the device: it uses them in any order, so
 * they are there before everything else, and their sums are open throughout a micro-batch. */
#include "offload/plan/emit_internal.h"

void st_emit_use_pages(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;

    for (uint32_t i = 0; micros->opens && i < w->layers[0].use_count; i++) {
        const uint32_t p = st_layer_page(w, 0, i);
        uint32_t weight;

        if (st_emit_gated(e))
            st_emit_update(e, p);
        weight = st_emit_device_weight(e, p, FORWARD);
        st_emit_op(e, ST_OP_PAGE_USE, FORWARD)->page = p;
        st_emit_operand(e, ST_ROLE_WEIGHT, weight, p);
    }
    for (uint32_t i = 0; !e->plan->policy.forward_only && i < w->layers[0].use_count; i++) {
        const uint32_t p = st_layer_page(w, 0, i);
        const struct st_open_sum sum = st_emit_open_sum(e, p, 0, i, micros->first);
        struct st_op *op;

        if (sum.buffer == ST_NO_BUFFER)
            continue;
        op = st_emit_op(e, ST_OP_PAGE_GRAD, BACKWARD);
        op->page = p;
        op->micro = micros->first;
        st_emit_operand(e, ST_ROLE_WEIGHT, e->program->pages[p].weight_region, p);
        st_emit_add(e, &sum, micros->first);
    }
}

void st_emit_close_pages(struct st_emitter *e, const struct st_micros *micros)
{
    const struct st_workload *w = &e->program->workload;

    for (uint32_t i = w->layers[0].use_count; i-- > 0;) {
        struct st_open_sum sum = st_emit_open_sum(e, st_layer_page(w, 0, i), 0, i, micros->first);

        st_emit_reduce(e, &sum, micros->first);
        st_emit_close_sum(e, &sum, micros);
    }
}

void st_emit_caller_end(struct st_emitter *e)
{
    (void)st_emit_op(e, ST_OP_CALLER_END, FORWARD);
    st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_device, 0);
}
