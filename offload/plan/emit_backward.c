/* emit_backward.c - gradients of a run of micro-batches: their fp32 sums, the one rounding, and where they go.
 *
 * A page's sum opens with its first micro-batch, over what lies there, is brought back from its host accumulator if it has one,
 * and closes with the last: rounded once, its norm taken, sent where the update will be.  With several leaves (program.h) it is a
 * stack of sums.  A frozen page has no sum; activation gradients pass. */
#include "offload/plan/emit_internal.h"

#include <assert.h>

static bool trained(const struct st_emitter *e, uint32_t p)
{
    return e->program->pages[p].grad != ST_WHERE_NONE;
}

static void conclude(struct st_emitter *e);

/* The next slot of a pool of sums.  If an exchange has it, that is concluded first. */
static uint32_t take_sum(struct st_emitter *e, struct st_pool *pool, uint32_t p)
{
    if (e->underway.page != ST_NO_PAGE && pool->buffer[pool->next] == e->underway.sum)
        conclude(e);
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

/* The device buffer of page p's sum at a depth; `sum`: the one that is open. */
static uint32_t sum_at(const struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t depth)
{
    if (depth == 0 || one_at_a_time(e, p))
        return sum;
    return st_place_horizontal(e->plan) ? waiting_sum(e, p, depth) : e->lay->reductions.buffer[depth - 1];
}

/* Adds the sum at a depth to the one below it, which is open from then on. */
static uint32_t reduce_sum(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t depth)
{
    const uint32_t addend = sum_at(e, p, sum, depth);
    uint32_t below = sum_at(e, p, sum, depth - 1);

    if (one_at_a_time(e, p)) {
        below = take_sum(e, &e->lay->reductions, p);
        st_emit_copy(e, ST_OP_UPLOAD_ACCUM, BACKWARD, waiting_sum(e, p, depth - 1), below, sum_index(e, p, depth - 1),
                     st_emit_sum_bytes(e, p))
            ->page = p;
    }
    st_emit_op(e, ST_OP_REDUCE_SUM, BACKWARD)->page = p;
    st_emit_operand(e, ST_ROLE_SUM, below, sum_index(e, p, depth - 1));
    st_emit_operand(e, ST_ROLE_ADDEND, addend, sum_index(e, p, depth));
    return one_at_a_time(e, p) ? below : sum;
}

/* --- sums --- */

/* The device buffer in which page p's gradient is summed for these micro-batches. */
static uint32_t open_sum(struct st_emitter *e, uint32_t p, const struct st_micros *micros)
{
    const struct st_page_place *place = &e->program->pages[p];
    uint32_t slot, depth;

    if (place->grad == ST_WHERE_NONE)
        return ST_NO_BUFFER;
    if (place->sum == ST_WHERE_DEVICE)
        return place->accum_region;
    slot = take_sum(e, st_place_is_small(e->plan, p) ? &e->lay->small_grads : &e->lay->grads, p);
    if (begins_leaf(e, micros->first))
        return slot;
    depth = depth_of(e, micros->first);
    st_emit_copy(e, ST_OP_UPLOAD_ACCUM, BACKWARD, waiting_sum(e, p, depth), slot, sum_index(e, p, depth), st_emit_sum_bytes(e, p))
        ->page = p;
    return slot;
}

/* Makes the op begun last, of micro-batch m, add to page p's sum; a leaf's first micro-batch starts one, its last is followed by
 * what it completes.  Returns the sum that is open now. */
static uint32_t add_to_sum(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t m)
{
    const uint32_t depth = depth_of(e, m);

    if (sum == ST_NO_BUFFER)
        return sum;
    e->op->first = begins_leaf(e, m);
    st_emit_operand(e, ST_ROLE_SUM, sum_at(e, p, sum, depth), sum_index(e, p, depth));
    for (uint32_t i = 0; i < reductions_after(e, m); i++)
        sum = reduce_sum(e, p, sum, depth - i);
    return sum;
}

/* Has each rank send its sum of page p to those who have slices of it; they are added up by conclude(). */
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
    conclude(e);
    e->underway.page = p;
    e->underway.sum = sum;
    e->underway.wire = wire;
    e->underway.micro = m;
}

/* Stage 0: every rank needs all of the rounded gradient. */
static void gather_grad(struct st_emitter *e, uint32_t p, uint32_t grad)
{
    struct st_op *op;

    if (e->program->ranks == 1 || e->program->stage > 0)
        return;
    op = st_emit_op(e, ST_OP_GATHER_GRAD, BACKWARD);
    op->page = p;
    op->bytes = st_program_gathered_grads(e->program, p);
    st_emit_operand(e, ST_ROLE_TO, grad, p);
}

/* After micro-batch m. */
static void sum_to_host(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t m)
{
    const uint32_t depth = depth_of(e, m) - reductions_after(e, m);

    st_emit_copy(e, ST_OP_DOWNLOAD_ACCUM, BACKWARD, sum, waiting_sum(e, p, depth), sum_index(e, p, depth),
                 st_emit_sum_bytes(e, p))
        ->page = p;
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

/* Rounds once, computes the norm, and sends the gradient to where the update will be; then updates, if the update need not
 * wait. */
static void finish_grad(struct st_emitter *e, uint32_t p, uint32_t sum)
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
    gather_grad(e, p, rounded);
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

/* After the step's last micro-batch, m: a sum is rounded; the table's stays open for the lookup's gradients. */
static void end_sum(struct st_emitter *e, uint32_t p, uint32_t sum, uint32_t m)
{
    if (!st_place_is_table(e->plan, p))
        finish_grad(e, p, sum);
    else if (e->program->pages[p].sum == ST_WHERE_HOST)
        sum_to_host(e, p, sum, m);
}

/* Adds up what the exchange that is under way has brought. */
static void conclude(struct st_emitter *e)
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

    return !st_emit_in_backward(e) || place->weights == ST_WHERE_DEVICE || place->home == ST_WHERE_DEVICE ||
           (place->grad == ST_WHERE_HOST && place->home == ST_WHERE_HOST);
}

/* Deals with page p's sum after these micro-batches. */
static void close_sum(struct st_emitter *e, uint32_t p, uint32_t sum, const struct st_micros *micros)
{
    const uint32_t last = micros->end - 1;

    if (sum == ST_NO_BUFFER)
        return;
    if (!micros->closes) {
        if (e->program->pages[p].sum == ST_WHERE_HOST)
            sum_to_host(e, p, sum, last);
        return;
    }
    if (e->program->ranks == 1) {
        end_sum(e, p, sum, last);
        return;
    }
    exchange_sum(e, p, sum, last);
    if (!may_wait(e, p))
        conclude(e);
}

/* Brings the weights of the page that comes next ahead of this one's exchange, behind which they would wait; not if an update that
 * is made here may want their slot. */
static void bring_ahead(struct st_emitter *e, const struct st_micros *micros, uint32_t next)
{
    const bool safe = !st_emit_in_backward(e) || st_page_sliced(&e->program->pages[next]);

    if (e->program->ranks > 1 && micros->closes && safe && e->lay->weights.count != 1)
        (void)st_emit_device_weight(e, next, BACKWARD);
}

static void head_slice_backward(struct st_emitter *e, const struct st_micros *micros, uint32_t t)
{
    const uint32_t p = e->program->workload.head_first + t;
    const uint64_t g = e->program->workload.grad_accum;
    const uint32_t weight = st_emit_device_weight(e, p, BACKWARD);
    uint32_t sum = open_sum(e, p, micros);

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
        sum = add_to_sum(e, p, sum, m);
    }
    bring_ahead(e, micros, t + 1 < e->program->workload.head_count ? p + 1 : e->program->workload.norm_page);
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
        sum = add_to_sum(e, w->norm_page, sum, m);
    }
    if (e->plan->sums->lowest_block < w->block_count)
        bring_ahead(e, micros, w->block_first + w->block_count - 1);
    close_sum(e, w->norm_page, sum, micros);
}

static void block_backward(struct st_emitter *e, const struct st_micros *micros, uint32_t b)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t p = w->block_first + b;
    const uint32_t weight = st_emit_device_weight(e, p, BACKWARD);
    uint32_t sum = open_sum(e, p, micros);

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
        sum = add_to_sum(e, p, sum, m);
    }
    if (b > e->plan->sums->lowest_block)
        bring_ahead(e, micros, p - 1);
    close_sum(e, p, sum, micros);
}

static void position_backward(struct st_emitter *e, const struct st_micros *micros)
{
    const uint32_t p = e->program->workload.position_page;
    uint32_t sum = open_sum(e, p, micros);

    for (uint32_t m = micros->first; m < micros->end; m++) {
        struct st_op *op = st_emit_op(e, ST_OP_EMBED_BACKWARD, BACKWARD);

        op->page = p;
        op->micro = m;
        st_emit_operand(e, ST_ROLE_DACT, e->lay->dact[m], m);
        sum = add_to_sum(e, p, sum, m);
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
    conclude(e);
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

static void scatter_host(struct st_emitter *e, uint32_t micro, uint32_t dact, bool first)
{
    const struct st_workload *w = &e->program->workload;
    struct st_op *op = st_emit_copy(e, ST_OP_DOWNLOAD_DACT, BACKWARD, dact, e->lay->dact_host, micro, w->activation_bytes);

    op->micro = micro;
    op = st_emit_op(e, ST_OP_SCATTER_HOST, BACKWARD);
    op->micro = micro;
    op->first = first;
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
    gather_grad(e, p, e->program->pages[p].grad_region);
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
    const bool own = micro < w->grad_accum, first = !w->tied && global == 0;
    const uint32_t dact = own ? e->lay->dact[micro] : st_pool_take(&e->lay->dact_wires, micro);
    struct st_op *op = st_emit_op(e, ST_OP_EXCHANGE_DACT, BACKWARD);

    op->micro = micro;
    op->first = !own;
    op->bytes = own ? 0 : w->activation_bytes / e->program->ranks;
    st_emit_operand(e, ST_ROLE_DACT, dact, micro);
    st_emit_operand(e, ST_ROLE_TOKENS, e->lay->at.tokens_host, 0);
    if (e->program->pages[w->table_first].sum == ST_WHERE_HOST)
        scatter_host(e, micro, dact, first);
    else
        for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++)
            scatter_micro(e, p, micro, dact, first);
}

static void table_of_ranks(struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;

    for (uint32_t i = 0; i < e->program->ranks * w->grad_accum; i++)
        scatter_global(e, i);
    for (uint32_t p = w->table_first; p < w->table_first + w->table_count; p++) {
        if (e->program->pages[p].sum == ST_WHERE_HOST)
            finish_host(e, p);
        else
            finish_grad(e, p, e->program->pages[p].accum_region);
    }
}

void st_emit_table_backward(struct st_emitter *e)
{
    const struct st_workload *w = &e->program->workload;
    const uint32_t end = w->table_first + w->table_count;

    if (!trained(e, w->table_first))
        return;
    if (e->program->ranks > 1) {
        table_of_ranks(e);
        return;
    }
    if (e->program->pages[w->table_first].sum != ST_WHERE_HOST) {
        for (uint32_t p = w->table_first; p < end; p++)
            scatter_device(e, p);
        return;
    }
    for (uint32_t m = 0; m < w->grad_accum; m++)
        scatter_host(e, m, e->lay->dact[m], !w->tied && m == 0);
    for (uint32_t p = w->table_first; p < end; p++)
        finish_host(e, p);
}
