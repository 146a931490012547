/* emit.c - writes the op list of one step.
 *
 * Ops are written in an order in which they could run one after another; each states its accesses, and the waits follow from
 * them (program_wait.c).  Nothing here knows rates or time. */
#include "offload/plan/emit_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(struct st_emitter *e, void **array, uint32_t *room, uint32_t count, size_t size)
{
    uint32_t more = *room == 0 ? 1024 : *room;
    void *grown;

    if (count <= *room)
        return true;
    while (more < count)
        more *= 2;
    grown = st_fault("plan.program", 0) < 0 ? NULL : realloc(*array, (size_t)more * size);
    if (grown == NULL) {
        e->no_memory = true;
        return false;
    }
    *array = grown;
    *room = more;
    return true;
}

struct st_op *st_emit_op(struct st_emitter *e, enum st_op_kind kind, unsigned phases)
{
    struct st_program *program = e->program;

    e->op = &e->dummy;
    if (reserve(e, (void **)&program->ops, &program->op_room, program->op_count + 1, sizeof(*program->ops)))
        e->op = &program->ops[program->op_count++];
    *e->op = (struct st_op){.kind = (uint8_t)kind,
                            .lane = (uint8_t)st_op_rows[kind].lane,
                            .phases = (uint8_t)phases,
                            .page = ST_NO_PAGE,
                            .access_first = program->access_count};
    return e->op;
}

void st_emit_operand(struct st_emitter *e, enum st_role role, uint32_t buffer, uint64_t index)
{
    const struct st_operand *operand = st_operand_of((enum st_op_kind)e->op->kind, role);
    struct st_program *program = e->program;

    assert(operand != NULL && buffer < program->buffer_count);
    if (!reserve(e, (void **)&program->accesses, &program->access_room, program->access_count + 1, sizeof(*program->accesses)))
        return;
    program->accesses[program->access_count++] = (struct st_access){.buffer = buffer,
                                                                    .mode = (uint8_t)st_operand_mode(operand, e->op),
                                                                    .content = operand->content,
                                                                    .role = (uint8_t)role,
                                                                    .index = (uint32_t)index};
    e->op->access_count++;
}

struct st_op *st_emit_copy(struct st_emitter *e, enum st_op_kind kind, unsigned phases, uint32_t from, uint32_t to,
                           uint64_t index, uint64_t bytes)
{
    struct st_op *op = st_emit_op(e, kind, phases);

    st_emit_operand(e, ST_ROLE_FROM, from, index);
    st_emit_operand(e, ST_ROLE_TO, to, index);
    op->bytes = bytes;
    return op;
}

/* --- slots --- */

uint32_t st_pool_find(const struct st_pool *pool, uint32_t what)
{
    for (uint32_t i = 0; i < pool->count; i++)
        if (pool->holds[i] == what)
            return pool->buffer[i];
    return ST_NO_BUFFER;
}

uint32_t st_pool_take(struct st_pool *pool, uint32_t what)
{
    const uint32_t slot = pool->next;

    assert(pool->count > 0);
    pool->next = (pool->next + 1) % pool->count;
    pool->holds[slot] = what;
    return pool->buffer[slot];
}

void st_pool_forget(struct st_pool *pool)
{
    memset(pool->holds, 0xff, sizeof(pool->holds));
}

void st_pool_drop(struct st_pool *pool, uint32_t what)
{
    for (uint32_t i = 0; i < pool->count; i++)
        if (pool->holds[i] == what)
            pool->holds[i] = ST_NO_BUFFER;
}

/* --- helpers over the plan --- */

uint64_t st_emit_page_bytes(const struct st_emitter *e, uint32_t p)
{
    return e->program->shards[p].bytes;
}

uint64_t st_emit_grad_bytes(const struct st_emitter *e, uint32_t p)
{
    return e->program->shards[p].trained_bytes;
}

uint64_t st_emit_sum_bytes(const struct st_emitter *e, uint32_t p)
{
    return (e->program->pages[p].sum_cut ? &e->program->shards[p] : &e->program->workload.pages[p])->trained_elems *
           sizeof(float);
}

bool st_emit_gated(const struct st_emitter *e)
{
    return e->plan->policy.update == ST_UPDATE_GATED && !e->plan->policy.forward_only;
}

bool st_emit_in_backward(const struct st_emitter *e)
{
    return e->plan->policy.update == ST_UPDATE_IN_BACKWARD;
}

bool st_emit_at_once(const struct st_emitter *e, uint32_t p)
{
    return st_emit_in_backward(e) || e->program->pages[p].early;
}

/* --- one cycle --- */

static void upload_tokens(struct st_emitter *e)
{
    const uint64_t bytes = st_program_tokens_bytes(e->program);

    if (bytes == 0)
        return;
    if (e->program->ranks > 1) {
        st_emit_op(e, ST_OP_GATHER_TOKENS, FORWARD)->bytes = bytes / e->program->ranks * (e->program->ranks - 1);
        st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    }
    (void)st_emit_copy(e, ST_OP_UPLOAD_TOKENS, FORWARD, e->lay->at.tokens_host, e->lay->at.tokens_device, 0, bytes);
}

static bool updates_on_device(const struct st_plan *plan)
{
    for (uint32_t p = 0; p < plan->program.workload.page_count; p++)
        if (plan->program.pages[p].grad == ST_WHERE_DEVICE)
            return true;
    return false;
}

/* Bytes of the other ranks' norms, losses and tallies. */
static uint64_t gathered_scalars(const struct st_program *program)
{
    const struct st_workload *w = &program->workload;
    uint64_t own = sizeof(struct st_tally) + st_scalars_numbers(program) * sizeof(double);

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++)
            if (w->pages[p].groups[i].kind != ST_GROUP_FROZEN)
                own += st_slice_runs(st_slice_of(w, p, i, program->ranks, program->rank)) * sizeof(struct st_norm);
    return st_scalars_bytes(program) + program->ranks * sizeof(struct st_tally) - own;
}

static void end_of_step(struct st_emitter *e)
{
    if (st_program_called(e->program))
        st_emit_caller_end(e);
    (void)st_emit_copy(e, ST_OP_DOWNLOAD_SCALARS, FORWARD, e->lay->at.scalars_device, e->lay->at.scalars_host, 0,
                       st_scalars_bytes(e->program));
    if (updates_on_device(e->plan))
        (void)st_emit_copy(e, ST_OP_DOWNLOAD_SCALARS, BACKWARD, e->lay->at.overflows_device, e->lay->at.overflows_host, 0,
                           sizeof(uint64_t));
    if (e->program->ranks > 1) {
        st_emit_op(e, ST_OP_GATHER_SCALARS, FORWARD)->bytes = gathered_scalars(e->program);
        st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_host, 0);
        st_emit_operand(e, ST_ROLE_NORMS, e->lay->at.norms_host, 1);
        st_emit_operand(e, ST_ROLE_OVERFLOWS, e->lay->at.overflows_host, 0);
    }
    (void)st_emit_op(e, ST_OP_END, FORWARD);
    st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_host, 0);
    st_emit_operand(e, ST_ROLE_NORMS, e->lay->at.norms_host, 1);
    st_emit_operand(e, ST_ROLE_OVERFLOWS, e->lay->at.overflows_host, 0);
}

/* At a cycle's start the state slots hold what the previous backward read ahead; the contents of all other slots are unknown. */
static void forget_slots(struct st_emitter *e)
{
    struct st_pool *states = &e->lay->states;

    st_emit_forget_weights(e, ST_NO_PAGE);
    st_pool_forget(&e->lay->grads);
    st_pool_forget(&e->lay->rounded);
    st_pool_forget(&e->lay->host_grads);
    st_pool_forget(&e->lay->small_grads);
    st_pool_forget(&e->lay->small_rounded);
    st_pool_forget(&e->lay->wires);
    st_pool_forget(&e->lay->dact_wires);
    st_pool_forget(&e->lay->acts);
    st_pool_forget(&e->lay->host_acts);
    st_pool_forget(states);
    e->lay->weights.next = e->lay->host_weights.next = e->lay->grads.next = e->lay->rounded.next = states->next = 0;
    e->lay->host_grads.next = e->lay->host_acts.next = e->lay->wires.next = e->lay->dact_wires.next = 0;
    memset(e->lay->acts.used, 0, sizeof(e->lay->acts.used));
    memcpy(states->holds, e->ahead, e->tail_reads * sizeof(*states->holds));
    states->next = states->count == 0 ? 0 : e->tail_reads % states->count;
}

static void emit_pass(struct st_emitter *e, const struct st_micros *micros)
{
    st_emit_forward(e, micros);
    /* A step's traffic must depend on the schedule, not on what slots happen to hold, so each pass brings its weights in. */
    st_emit_forget_weights(e, ST_NO_PAGE);
    if (e->plan->policy.forward_only)
        return;
    if (st_emit_gated(e) && micros->closes)
        st_emit_read_ahead(e, e->early_left > 0 ? LATE : BACKWARD);
    st_emit_backward(e, micros);
    st_emit_forget_weights(e, ST_NO_PAGE);
}

/* Vertical: all micro-batches go through a layer together.  Horizontal: one micro-batch goes through all layers, then the
 * next. */
static void emit_cycle(struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;
    const bool horizontal = e->plan->decided.accumulation == ST_ACCUMULATE_HORIZONTAL;
    const uint32_t together = horizontal ? 1 : w->grad_accum;

    e->program->op_count = e->program->access_count = 0;
    forget_slots(e);
    upload_tokens(e);
    for (uint32_t m = 0; m < w->grad_accum; m += together) {
        const struct st_micros micros = {
            .first = m, .end = m + together, .opens = m == 0, .closes = m + together == w->grad_accum};

        emit_pass(e, &micros);
    }
    if (!e->plan->policy.forward_only)
        st_emit_table_backward(e);
    end_of_step(e);
    st_emit_held(e);
    if (e->plan->policy.update != ST_UPDATE_SERIAL || e->plan->policy.forward_only)
        return;
    st_emit_forget_weights(e, ST_NO_PAGE);
    for (uint32_t p = 0; p < w->page_count; p++)
        st_emit_update(e, p);
}

strata_status st_emit_program(struct st_plan *plan, struct st_layout *lay)
{
    struct st_emitter e = {.plan = plan, .program = &plan->program, .lay = lay, .underway.page = ST_NO_PAGE};

    e.update_phases = st_emit_gated(&e) ? BODY | EPI : BODY | PRO;
    e.early_left = e.program->early_pages;
    st_emit_order(&e);
    emit_cycle(&e);
    if (e.no_memory)
        return st_nomem(0);
    return st_program_wait(&plan->program, &plan->scratch);
}
