/* emit_sum.c - gradients of a run of micro-batches: their fp32 sums, the one rounding, and where they go.
 *
 * A page's sum opens with its first use of the first micro-batch, over what lies there, is brought back from its host accumulator
 * if it has one, and closes with the last: rounded once, its norm taken, sent where the update will be.  With several leaves
 * (program.h) it is a stack of sums.  A frozen page has no sum; activation gradients pass. */
#include "offload/plan/emit_internal.h"

#include <assert.h>

/* The next slot of a pool of sums.  If an exchange has it, that is concluded first. */
static uint32_t take_sum(struct st_emitter *e, struct st_pool *pool, uint32_t p)
{
    if (e->underway.page != ST_NO_PAGE && pool->buffer[pool->next] == e->underway.sum)
        st_emit_conclude(e);
    return st_pool_take(pool, p);
}

/* --- leaves --- */

static bool begins_leaf(const struct st_emitter *e, uint32_t m)
{
    return m % st_leaf_micros(e->program) == 0;
}

static bool ends_leaf(const struct st_emitter *e, uint32_t m)
{
    return (m + 1) % st_leaf_micros(e->program) == 0;
}

/* Where in the page's stack micro-batch m adds. */
static uint32_t depth_of(const struct st_emitter *e, uint32_t m)
{
    return (uint32_t)__builtin_popcount(m / st_leaf_micros(e->program));
}

/* How many sums below its own are added up when the leaf of micro-batch m, its last, is there: all after the step's last. */
static uint32_t reductions_after(const struct st_emitter *e, uint32_t m)
{
    if (!ends_leaf(e, m))
        return 0;
    return m + 1 == e->program->workload.grad_accum ? depth_of(e, m) : depth_of(e, m) + 1 - depth_of(e, m + 1);
}

static uint64_t sum_index(const struct st_emitter *e, uint32_t p, uint32_t depth)
{
    return p + (uint64_t)depth * e->program->workload.page_count;
}

/* Where page p's sum at a depth waits between micro-batches. */
static uint32_t waiting_sum(const struct st_emitter *e, uint32_t p, uint32_t depth)
{
    const struct st_page_place *place = &e->program->pages[p];

    return depth == 0 ? place->accum_region : place->leaf_regions + depth - 1;
}

/* Whether of page p's sums only one is on the device, the others are in host memory. */
static bool one_at_a_time(const struct st_emitter *e, uint32_t p)
{
    return st_place_horizontal(e->plan) && e->program->pages[p].sum == ST_WHERE_HOST;
}

/* The device buffer of a page's sum at a depth. */
static uint32_t sum_at(const struct st_emitter *e, const struct st_open_sum *s, uint32_t depth)
{
    if (depth == 0 || one_at_a_time(e, s->page))
        return s->buffer;
    if (st_place_horizontal(e->plan))
        return waiting_sum(e, s->page, depth);
    return e->lay->reductions.buffer[s->number * st_leaf_depth(e->program->leaves) + depth - 1];
}

/* Adds the sum at a depth to the one below it, which is open from then on. */
static void reduce_sum(struct st_emitter *e, struct st_open_sum *s, uint32_t depth)
{
    const uint32_t p = s->page, addend = sum_at(e, s, depth);
    uint32_t below = sum_at(e, s, depth - 1);

    if (one_at_a_time(e, p)) {
        below = take_sum(e, &e->lay->reductions, p);
        st_emit_copy(e, ST_OP_UPLOAD_ACCUM, BACKWARD, waiting_sum(e, p, depth - 1), below, sum_index(e, p, depth - 1),
                     st_emit_sum_bytes(e, p))
            ->page = p;
        s->buffer = below;
    }
    st_emit_op(e, ST_OP_REDUCE_SUM, BACKWARD)->page = p;
    st_emit_operand(e, ST_ROLE_SUM, below, sum_index(e, p, depth - 1));
    st_emit_operand(e, ST_ROLE_ADDEND, addend, sum_index(e, p, depth));
}

/* --- sums --- */

/* Whether a layer is the first in backward, or the last, to add to a page's sum. */
static bool opens_sum(const struct st_workload *w, uint32_t p, uint32_t layer)
{
    for (uint32_t l = layer + 1; l < w->layer_count && st_page_adds(&w->pages[p]) > 1; l++)
        if (st_layer_has(w, l, p))
            return false;
    return true;
}

static bool closes_sum(const struct st_workload *w, uint32_t p, uint32_t layer)
{
    return st_page_adds(&w->pages[p]) == 1 || w->pages[p].layer == layer;
}

struct st_open_sum st_emit_open_sum(struct st_emitter *e, uint32_t p, uint32_t layer, uint32_t number, uint32_t micro)
{
    const struct st_workload *w = &e->program->workload;
    const struct st_page_place *place = &e->program->pages[p];
    struct st_open_sum s = {.page = p, .number = number, .buffer = ST_NO_BUFFER};
    uint32_t depth;

    if (place->grad == ST_WHERE_NONE)
        return s;
    s.opens = opens_sum(w, p, layer);
    s.closes = closes_sum(w, p, layer);
    if (place->sum == ST_WHERE_DEVICE) {
        s.buffer = place->accum_region;
        return s;
    }
    s.buffer = take_sum(e, st_place_is_small(e->plan, p) ? &e->lay->small_grads : &e->lay->grads, p);
    if (begins_leaf(e, micro) && s.opens)
        return s;
    depth = depth_of(e, micro);
    st_emit_copy(e, ST_OP_UPLOAD_ACCUM, BACKWARD, waiting_sum(e, p, depth), s.buffer, sum_index(e, p, depth),
                 st_emit_sum_bytes(e, p))
        ->page = p;
    return s;
}

void st_emit_add(struct st_emitter *e, const struct st_open_sum *s, uint32_t micro)
{
    const uint32_t depth = depth_of(e, micro);

    e->op->first = begins_leaf(e, micro) && s->opens;
    st_emit_operand(e, ST_ROLE_SUM, sum_at(e, s, depth), sum_index(e, s->page, depth));
}

void st_emit_reduce(struct st_emitter *e, struct st_open_sum *s, uint32_t micro)
{
    for (uint32_t i = 0; s->buffer != ST_NO_BUFFER && s->closes && i < reductions_after(e, micro); i++)
        reduce_sum(e, s, depth_of(e, micro) - i);
}

/* Has each rank send its sum of page p to those who have slices of it; they are added up by st_emit_conclude(). */
static void exchange_sum(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t m)
{
    const uint32_t wire = st_pool_take(&e->lay->wires, p);
    struct st_op *op;

    if (e->program->wire_bf16) {
        st_emit_op(e, ST_OP_ROUND_SUM, BACKWARD)->page = p;
        st_emit_operand(e, ST_ROLE_SUM, sum, p);
        st_emit_operand(e, ST_ROLE_WIRE, wire, p);
        st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->block_sums, 0);
        op = st_emit_op(e, ST_OP_EXCHANGE_ROUNDED, BACKWARD);
    } else {
        op = st_emit_op(e, ST_OP_EXCHANGE_GRAD, BACKWARD);
        st_emit_operand(e, ST_ROLE_SUM, sum, p);
    }
    op->page = p;
    op->bytes = st_program_wire_bytes(e->program, p);
    st_emit_operand(e, ST_ROLE_WIRE, wire, p);
    st_emit_conclude(e);
    e->underway.page = p;
    e->underway.sum = sum;
    e->underway.wire = wire;
    e->underway.micro = m;
}

void st_emit_gather_grad(struct st_emitter *e, uint32_t p, uint32_t grad)
{
    struct st_op *op;

    if (e->program->ranks == 1 || e->program->stage > 0)
        return;
    op = st_emit_op(e, ST_OP_GATHER_GRAD, BACKWARD);
    op->page = p;
    op->bytes = st_program_gathered_grads(e->program, p);
    st_emit_operand(e, ST_ROLE_TO, grad, p);
}

/* After micro-batch m; `reduced`: the sums below it have been added up. */
static void sum_to_host(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t m, bool reduced)
{
    const uint32_t depth = depth_of(e, m) - (reduced ? reductions_after(e, m) : 0);

    st_emit_copy(e, ST_OP_DOWNLOAD_ACCUM, BACKWARD, sum, waiting_sum(e, p, depth), sum_index(e, p, depth),
                 st_emit_sum_bytes(e, p))
        ->page = p;
}

/* The last gradients to leave wait until after the step's end: before it, the download lane would bring them ahead of the data
 * that the norm waits for, and their own updates come later anyway. Each holds its slot until then. */
static bool held_back(const struct st_emitter *e, uint32_t p)
{
    return !st_emit_at_once(e, p) && (p == e->plan->sums->last[0] || p == e->plan->sums->last[1]);
}

static void download_grad(struct st_emitter *e, uint32_t p, uint32_t from)
{
    const uint32_t to = st_emit_host_grad(e, p);

    st_emit_copy(e, ST_OP_DOWNLOAD_GRAD, BACKWARD, from, to, p, st_emit_grad_bytes(e, p))->page = p;
    st_emit_store_grad(e, p, to);
}

void st_emit_held(struct st_emitter *e)
{
    for (uint32_t i = 0; i < e->held_count; i++)
        download_grad(e, e->held[i].page, e->held[i].from);
    e->held_count = 0;
}

void st_emit_finish_grad(struct st_emitter *e, uint32_t p, uint32_t sum)
{
    const struct st_program *program = e->program;
    const struct st_page_place *place = &program->pages[p];
    const bool is_small = st_place_is_small(e->plan, p);
    uint32_t rounded = sum;

    if (place->grad == ST_WHERE_DEVICE)
        rounded = place->grad_region;
    else if (!st_place_rounds_in_place(e->plan))
        rounded = st_pool_take(is_small ? &e->lay->small_rounded : &e->lay->rounded, p);
    else if (program->leaves > 1 && one_at_a_time(e, p)) /* no gradient holds a slot of the sums to come */
        rounded = st_pool_take(is_small ? &e->lay->small_grads : &e->lay->grads, p);
    st_emit_op(e, ST_OP_FINISH_GRAD, BACKWARD)->page = p;
    st_emit_operand(e, ST_ROLE_SUM, sum, p);
    st_emit_operand(e, ST_ROLE_GRAD, rounded, p);
    st_emit_operand(e, ST_ROLE_SCALARS, e->lay->at.scalars_device, 0);
    st_emit_operand(e, ST_ROLE_WORKSPACE, e->lay->block_sums, 0);
    st_emit_gather_grad(e, p, rounded);
    if (place->grad != ST_WHERE_DEVICE && held_back(e, p)) {
        assert(e->held_count < ST_HELD_MAX);
        e->held[e->held_count].page = p;
        e->held[e->held_count++].from = rounded;
    } else if (place->grad != ST_WHERE_DEVICE) {
        download_grad(e, p, rounded);
    }
    if (st_emit_in_backward(e))
        st_emit_update(e, p);
    else if (place->early)
        st_emit_early(e, p);
}

/* After the step's last micro-batch, m: a sum is rounded; the table's stays open for the lookup's gradients. */
static void end_sum(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t m)
{
    if (!st_place_is_table(e->plan, p))
        st_emit_finish_grad(e, p, sum);
    else if (e->program->pages[p].sum == ST_WHERE_HOST)
        sum_to_host(e, p, sum, m, true);
}

void st_emit_conclude(struct st_emitter *e)
{
    const uint32_t p = e->underway.page;

    if (p == ST_NO_PAGE)
        return;
    e->underway.page = ST_NO_PAGE;
    st_emit_op(e, ST_OP_REDUCE_RANKS, BACKWARD)->page = p;
    st_emit_operand(e, ST_ROLE_SUM, e->underway.sum, p);
    st_emit_operand(e, ST_ROLE_WIRE, e->underway.wire, p);
    end_sum(e, p, e->underway.sum, e->underway.micro);
}

/* Whether page p's exchange may go on while the next page is computed: not if its update is made here and wants slots that the
 * next page's weights take. */
static bool may_wait(const struct st_emitter *e, uint32_t p)
{
    const struct st_page_place *place = &e->program->pages[p];

    return !st_emit_at_once(e, p) || place->weights == ST_WHERE_DEVICE || place->home == ST_WHERE_DEVICE ||
           (place->grad == ST_WHERE_HOST && place->home == ST_WHERE_HOST);
}

void st_emit_close_sum(struct st_emitter *e, const struct st_open_sum *s, const struct st_micros *micros)
{
    const uint32_t p = s->page, last = micros->end - 1;

    if (s->buffer == ST_NO_BUFFER)
        return;
    if (!micros->closes || !s->closes) {
        if (e->program->pages[p].sum == ST_WHERE_HOST)
            sum_to_host(e, p, s->buffer, last, s->closes);
        return;
    }
    if (e->program->ranks == 1) {
        end_sum(e, p, s->buffer, last);
        return;
    }
    exchange_sum(e, p, s->buffer, last);
    if (!may_wait(e, p))
        st_emit_conclude(e);
}
