/* engine_caller_calls.c - the calls of caller.h: a caller enters layers, adds gradients, and ends or drops its step. */
#include "offload/engine/caller_internal.h"

#include "core/system/clock.h"
#include "kernels/widen.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define NUMBER_BYTES  12
#define DIVISOR_LEAST 1e-9 /* gradients that are finite stay so, far from the ends of fp32 */
#define DIVISOR_MOST  1e18

static bool is_divisor(double divisor)
{
    return divisor >= DIVISOR_LEAST && divisor <= DIVISOR_MOST;
}

/* --- the plan's order --- */

/* The next layer that the caller computes, from number i of the lane's ops on; the lane's count: there is none. */
static uint32_t next_layer(const struct st_engine *eng, uint32_t i)
{
    const uint32_t count = st_caller_count(eng);

    while (i < count) {
        const struct st_op *op = &eng->program->ops[st_caller_op(eng, i)];

        if (st_caller_is_layer(op) && st_caller_takes(eng->caller, op))
            break;
        i++;
    }
    return i;
}

/* Of a frozen layer, whose gradients nobody may want. */
static bool may_be_left_out(const struct st_engine *eng, const struct st_op *op)
{
    return op->kind == ST_OP_LAYER_BACKWARD && st_op_access(eng->program->accesses, op, ST_ROLE_SUM) == NULL;
}

/* The op of this kind, page and micro-batch; ST_NO_OP: there is none. */
static uint32_t find_op(const struct st_engine *eng, enum st_op_kind kind, uint32_t page, uint32_t micro)
{
    const uint32_t count = st_caller_count(eng);

    for (uint32_t i = 0; i < count; i++) {
        const struct st_op *op = &eng->program->ops[st_caller_op(eng, i)];

        if (op->kind == kind && op->page == page && op->micro == micro)
            return st_caller_op(eng, i);
    }
    return ST_NO_OP;
}

/* The op's access of a page's sum; NULL: it has none. */
static const struct st_access *sum_of(const struct st_engine *eng, const struct st_op *op, uint32_t page)
{
    for (uint32_t i = op->access_first; i < op->access_first + op->access_count; i++) {
        const struct st_access *a = &eng->program->accesses[i];

        if (a->role == ST_ROLE_SUM && a->index % eng->program->workload.page_count == page)
            return a;
    }
    return NULL;
}

/* The caller has not used an op, which ends now if it was handed over, else as soon as it is issued; under the lock. */
static void give_back(struct st_engine *eng, uint32_t op)
{
    if (eng->caller->state[op] == ST_CALLER_HANDED)
        st_caller_finish(eng, op);
    else
        eng->caller->state[op] = ST_CALLER_OVER;
}

/* The caller has used an op: what it has enqueued of it counts, too.  Under the lock, which is given up meanwhile: a mark may
 * wait for the device's reports. */
static strata_status end_op(struct st_engine *eng, uint32_t op, uint64_t since_ns)
{
    struct st_caller *c = eng->caller;
    strata_status st;

    if (c->state[op] != ST_CALLER_HANDED || !st_caller_has_stream(eng)) {
        give_back(eng, op);
        return STRATA_OK;
    }
    c->state[op] = ST_CALLER_OVER;
    pthread_mutex_unlock(&eng->lock);
    st = st_engine_await_caller(eng, op, since_ns, c->records != NULL ? c->records[op] : NULL);
    pthread_mutex_lock(&eng->lock);
    return st;
}

/* --- the caller's side --- */

/* The lock is held.  Not while the engine's thread runs: then the step goes on. */
static strata_status failure(struct st_engine *eng)
{
    const struct st_caller *c = eng->caller;

    return c->status != STRATA_OK ? st_error_again(c->status, &c->error)
                                  : st_error(STRATA_E_INTERNAL, "engine: the step ended without its caller");
}

/* Under the lock: whether the step's cycle goes on. */
static bool runs(struct st_engine *eng)
{
    struct st_caller *c = eng->caller;

    if (atomic_load_explicit(&eng->cancelled, memory_order_relaxed)) { /* it may sleep until the caller calls */
        st_caller_wake(eng);
        while (c->running)
            pthread_cond_wait(&c->moved, &eng->lock);
    }
    return c->running;
}

/* Locks, and returns OK for a call that may come now. */
static strata_status lock_inside(struct st_engine *eng, const char *what)
{
    struct st_caller *c = eng->caller;

    if (c == NULL)
        return st_error(STRATA_E_INVAL, "%s: the engine computes this model's layers itself", what);
    if (!c->inside)
        return st_error(STRATA_E_INVAL, "%s: no step has begun: call begin first", what);
    pthread_mutex_lock(&eng->lock);
    if (runs(eng))
        return STRATA_OK;
    pthread_mutex_unlock(&eng->lock);
    return failure(eng);
}

static strata_status refuse(struct st_engine *eng, strata_status st)
{
    pthread_mutex_unlock(&eng->lock);
    return st;
}

/* Under the lock: wait until an op was handed over, or is over already. */
static strata_status wait_for(struct st_engine *eng, uint32_t op)
{
    struct st_caller *c = eng->caller;

    c->waiting = true;
    if (c->state[op] == ST_CALLER_AHEAD)
        st_caller_wake(eng); /* so that its sleep counts as the caller's */
    while (c->running && c->state[op] == ST_CALLER_AHEAD)
        pthread_cond_wait(&c->moved, &eng->lock);
    c->waiting = false;
    return c->running ? STRATA_OK : failure(eng);
}

static strata_status check_step(const struct st_engine *eng, const struct st_caller_step *step)
{
    const struct st_program *program = eng->program;
    const bool at_begin = program->update == ST_UPDATE_IN_BACKWARD && !step->evaluates;

    if (step->micros > program->workload.grad_accum)
        return st_error(STRATA_E_INVAL, "begin: %u micro-batches, and the plan is for %u", step->micros,
                        program->workload.grad_accum);
    if (step->sets > ST_SETS_MAX)
        return st_error(STRATA_E_INVAL, "begin: %u parameter sets, and there are at most %u", step->sets, ST_SETS_MAX);
    if (at_begin && !is_divisor(step->divisor))
        return st_error(STRATA_E_INVAL,
                        "begin: divisor %g: with strata.update \"in_backward\" it must be given here, from %g to %g",
                        step->divisor, DIVISOR_LEAST, DIVISOR_MOST);
    if (!step->evaluates && program->forward_only)
        return st_error(STRATA_E_INVAL, "begin: this plan is for evaluation: begin an evaluation");
    return STRATA_OK;
}

static void take_rates(struct st_engine *eng, const struct st_caller_step *step)
{
    for (uint32_t s = 0; s < step->sets; s++) {
        if (step->lr != NULL)
            eng->sets[s].lr = step->lr[s];
        if (step->weight_decay != NULL)
            eng->sets[s].weight_decay = step->weight_decay[s];
        if (step->beta1 != NULL)
            eng->sets[s].beta1 = step->beta1[s];
        if (step->beta2 != NULL)
            eng->sets[s].beta2 = step->beta2[s];
    }
}

strata_status st_engine_caller_begin(struct st_engine *eng, const struct st_caller_step *step, double *loss_scale)
{
    struct st_caller *c = eng->caller;
    strata_status st;

    if (c == NULL)
        return st_error(STRATA_E_INVAL, "begin: the engine computes this model's layers itself: call step");
    if ((st = st_engine_outside(eng, "begin")) != STRATA_OK || (st = st_engine_ended(eng)) != STRATA_OK ||
        (st = check_step(eng, step)) != STRATA_OK)
        return st;
    if (st_caller_has_stream(eng) && (st = eng->device->ops->join(eng->device, step->stream)) != STRATA_OK)
        return st;
    c->joined = st_caller_has_stream(eng);
    take_rates(eng, step);
    memset(&eng->result, 0, sizeof(eng->result));
    memset(c->state, ST_CALLER_AHEAD, eng->program->op_count);
    c->step = *step;
    c->micros = step->micros != 0 ? step->micros : eng->program->workload.grad_accum;
    c->micro = c->next = 0;
    c->entered = ST_NO_OP;
    c->dropped = c->ended = false;
    memset(c->pass_ns, 0, sizeof(c->pass_ns));
    memset(c->losses, 0, (eng->program->workload.grad_accum + 1ull) * sizeof(*c->losses));
    *loss_scale = step->evaluates ? 1 : eng->train.scaler.scale;
    c->inside = true;
    pthread_mutex_lock(&eng->lock);
    c->running = true;
    pthread_cond_signal(&c->work);
    pthread_mutex_unlock(&eng->lock);
    return STRATA_OK;
}

/* --- layers --- */

static const char *pass_name(enum st_pass pass)
{
    return pass == ST_PASS_FORWARD ? "forward" : "backward";
}

static const char *op_pass_name(const struct st_op *op)
{
    return pass_name(op->kind == ST_OP_LAYER_FORWARD ? ST_PASS_FORWARD : ST_PASS_BACKWARD);
}

/* A layer's name, or its number in `text`. */
static const char *layer_name(const struct st_engine *eng, uint32_t layer, char text[NUMBER_BYTES])
{
    if (eng->layer_names != NULL && layer < st_block_count(&eng->program->workload))
        return eng->layer_names[layer];
    snprintf(text, NUMBER_BYTES, "%u", layer);
    return text;
}

/* The number, among the lane's ops, of the layer that is entered: the next one, but for frozen ones that are passed over. */
static strata_status find_layer(const struct st_engine *eng, enum st_pass pass, uint32_t layer, uint32_t *out)
{
    const struct st_caller *c = eng->caller;
    const enum st_op_kind kind = pass == ST_PASS_FORWARD ? ST_OP_LAYER_FORWARD : ST_OP_LAYER_BACKWARD;
    const uint32_t count = st_caller_count(eng);
    char text[NUMBER_BYTES], other[NUMBER_BYTES];
    const char *name = layer_name(eng, layer, text);
    uint32_t i = next_layer(eng, c->next);

    for (; i < count; i = next_layer(eng, i + 1)) {
        const struct st_op *op = &eng->program->ops[st_caller_op(eng, i)];

        *out = i;
        if (op->micro != c->micro)
            return st_error(STRATA_E_INVAL, "enter: %s of layer %s: micro-batch %u has no more layers: end it", pass_name(pass),
                            name, c->micro);
        if (op->kind == kind && st_caller_layer(op) == layer)
            return STRATA_OK;
        if (!may_be_left_out(eng, op))
            return st_error(STRATA_E_INVAL, "enter: %s of layer %s is out of order: %s of layer %s is next", pass_name(pass),
                            name, op_pass_name(op), layer_name(eng, st_caller_layer(op), other));
    }
    return st_error(STRATA_E_INVAL, "enter: %s of layer %s: the step has no more layers: end it", pass_name(pass), name);
}

/* Frozen layers before the next one end without the caller. */
static void pass_over(struct st_engine *eng, uint32_t next)
{
    for (uint32_t i = next_layer(eng, eng->caller->next); i < next; i = next_layer(eng, i + 1))
        give_back(eng, st_caller_op(eng, i));
    eng->caller->next = next;
}

/* Of a layer with several pages the weights and the sum of its first. */
static void fill_view(const struct st_engine *eng, const struct st_op *op, struct st_caller_view *view)
{
    const struct st_access *weight = st_op_access(eng->program->accesses, op, ST_ROLE_WEIGHT);
    const struct st_access *act = st_op_access(eng->program->accesses, op, ST_ROLE_ACT);
    const struct st_access *sum = sum_of(eng, op, op->page);

    *view = (struct st_caller_view){.page = op->page, .micro = op->micro};
    if (weight != NULL)
        view->weight = st_engine_pointer(eng, weight->buffer);
    if (sum != NULL)
        view->sum = st_engine_pointer(eng, sum->buffer);
    if (act == NULL || eng->caller->step.evaluates)
        return;
    view->boundary = st_engine_pointer(eng, act->buffer);
    view->boundary_bytes = st_program_boundary_bytes(eng->program, op);
}

strata_status st_engine_caller_enter(struct st_engine *eng, enum st_pass pass, uint32_t layer, struct st_caller_view *view)
{
    struct st_caller *c = eng->caller;
    strata_status st = lock_inside(eng, "enter");
    char text[NUMBER_BYTES];
    uint32_t next = 0;

    if (st != STRATA_OK)
        return st;
    if (c->entered != ST_NO_OP)
        return refuse(eng, st_error(STRATA_E_INVAL, "enter: layer %s is still entered: leave it first",
                                    layer_name(eng, st_caller_layer(&eng->program->ops[c->entered]), text)));
    if ((st = find_layer(eng, pass, layer, &next)) != STRATA_OK)
        return refuse(eng, st);
    pass_over(eng, next);
    if ((st = wait_for(eng, st_caller_op(eng, next))) != STRATA_OK)
        return refuse(eng, st);
    c->entered = st_caller_op(eng, next);
    c->entered_ns = st_clock_ns();
    if (c->records != NULL && c->records[c->entered] != NULL)
        c->records[c->entered]->start_ns = c->entered_ns;
    pthread_mutex_unlock(&eng->lock);
    fill_view(eng, &eng->program->ops[c->entered], view);
    return STRATA_OK;
}

strata_status st_engine_caller_leave(struct st_engine *eng)
{
    struct st_caller *c = eng->caller;
    strata_status st = lock_inside(eng, "leave");
    uint64_t now;

    if (st != STRATA_OK)
        return st;
    if (c->entered == ST_NO_OP)
        return refuse(eng, st_error(STRATA_E_INVAL, "leave: no layer is entered"));
    now = st_clock_ns();
    if (!st_caller_has_stream(eng)) {
        st_engine_caller_took(eng, c->entered, now - c->entered_ns);
        if (c->records != NULL)
            st_trace_end(c->records[c->entered], now);
    }
    st = end_op(eng, c->entered, c->entered_ns);
    c->entered = ST_NO_OP;
    c->next++;
    pthread_mutex_unlock(&eng->lock);
    return st;
}

/* --- pages that stay on the device --- */

strata_status st_engine_caller_use(struct st_engine *eng, uint32_t page, const void **weight)
{
    strata_status st = lock_inside(eng, "use");
    uint32_t op;

    if (st != STRATA_OK)
        return st;
    if ((op = find_op(eng, ST_OP_PAGE_USE, page, 0)) == ST_NO_OP)
        return refuse(eng, st_error(STRATA_E_INVAL, "use: page %u does not stay on the device: enter its layer", page));
    st = wait_for(eng, op);
    pthread_mutex_unlock(&eng->lock);
    if (st == STRATA_OK)
        *weight = st_engine_operand(eng, &eng->program->ops[op], ST_ROLE_WEIGHT);
    return st;
}

/* The op in which the caller may add to a page's sum now. */
static strata_status find_sum(const struct st_engine *eng, uint32_t page, uint32_t *out)
{
    const struct st_caller *c = eng->caller;
    const uint32_t resident = find_op(eng, ST_OP_PAGE_USE, page, 0);

    if (page >= eng->program->workload.page_count || c->step.evaluates)
        return st_error(STRATA_E_INVAL, "add: page %u: %s", page,
                        c->step.evaluates ? "an evaluation has no gradients" : "there is no such page");
    if (eng->program->pages[page].grad == ST_WHERE_NONE)
        return st_error(STRATA_E_INVAL, "add: page %u is frozen", page);
    *out = resident == ST_NO_OP ? c->entered : find_op(eng, ST_OP_PAGE_GRAD, page, c->micro);
    if (resident != ST_NO_OP && c->micro >= c->micros)
        return st_error(STRATA_E_INVAL, "the step's last micro-batch is over");
    if (*out == ST_NO_OP || sum_of(eng, &eng->program->ops[*out], page) == NULL)
        return st_error(STRATA_E_INVAL, "add: page %u: enter its layer's backward first", page);
    return STRATA_OK;
}

static strata_status add(struct st_engine *eng, float *sum, strata_dtype dtype, uint64_t elems, const void *grad)
{
    strata_status st;

    if (!st_caller_has_stream(eng)) {
        st_widen_add(eng->kernels, sum, grad, dtype, elems);
        return STRATA_OK;
    }
    if ((st = eng->device->ops->add(eng->device, sum, grad, dtype, elems)) != STRATA_OK)
        st_engine_note(eng, st); /* a part may be missing */
    return st;
}

strata_status st_engine_caller_reads(struct st_engine *eng, const void *grad)
{
    return st_caller_has_stream(eng) ? eng->device->ops->reads(eng->device, grad) : STRATA_OK;
}

strata_status st_engine_caller_add(struct st_engine *eng, uint32_t page, uint64_t first, strata_dtype dtype, uint64_t elems,
                                   const void *grad)
{
    strata_status st = lock_inside(eng, "add");
    uint32_t op = ST_NO_OP;
    uint64_t room;

    if (st != STRATA_OK)
        return st;
    if (dtype != STRATA_F32 && dtype != STRATA_BF16 && dtype != STRATA_F16)
        return refuse(eng, st_error(STRATA_E_INVAL, "add: gradients are fp32, bf16 or fp16, not %s", strata_dtype_name(dtype)));
    if ((st = find_sum(eng, page, &op)) != STRATA_OK)
        return refuse(eng, st);
    room = eng->program->workload.pages[page].trained_elems;
    if (first > room || elems > room - first)
        return refuse(eng, st_error(STRATA_E_INVAL, "add: elements %" PRIu64 " to %" PRIu64 " of page %u, which has %" PRIu64,
                                    first, first + elems, page, room));
    st = wait_for(eng, op);
    pthread_mutex_unlock(&eng->lock);
    if (st != STRATA_OK)
        return st;
    return add(eng, (float *)st_engine_pointer(eng, sum_of(eng, &eng->program->ops[op], page)->buffer) + first, dtype, elems,
               grad);
}

strata_status st_engine_caller_sum(struct st_engine *eng, uint32_t page, float **sum)
{
    strata_status st = lock_inside(eng, "sum");
    uint32_t op = ST_NO_OP;

    if (st != STRATA_OK)
        return st;
    *sum = NULL;
    if (page < eng->program->workload.page_count && eng->program->pages[page].grad == ST_WHERE_NONE)
        return refuse(eng, STRATA_OK);
    if ((st = find_sum(eng, page, &op)) != STRATA_OK || (st = wait_for(eng, op)) != STRATA_OK)
        return refuse(eng, st);
    pthread_mutex_unlock(&eng->lock);
    *sum = st_engine_pointer(eng, sum_of(eng, &eng->program->ops[op], page)->buffer);
    return STRATA_OK;
}

/* --- ends --- */

strata_status st_engine_caller_micro_end(struct st_engine *eng)
{
    struct st_caller *c = eng->caller;
    strata_status st = lock_inside(eng, "micro_end");
    const uint32_t count = st == STRATA_OK ? st_caller_count(eng) : 0;
    char text[NUMBER_BYTES];
    uint32_t next;

    if (st != STRATA_OK)
        return st;
    if (c->entered != ST_NO_OP || c->micro >= c->micros)
        return refuse(eng, st_error(STRATA_E_INVAL, "micro_end: %s",
                                    c->entered != ST_NO_OP ? "a layer is still entered: leave it first"
                                                           : "the step's micro-batches are all over: end it"));
    for (next = next_layer(eng, c->next); next < count; next = next_layer(eng, next + 1)) {
        const struct st_op *op = &eng->program->ops[st_caller_op(eng, next)];

        if (op->micro != c->micro)
            break;
        if (!may_be_left_out(eng, op))
            return refuse(eng, st_error(STRATA_E_INVAL, "micro_end: %s of layer %s of micro-batch %u was left out",
                                        op_pass_name(op), layer_name(eng, st_caller_layer(op), text), c->micro));
    }
    pass_over(eng, next);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        if (eng->program->ops[st_caller_op(eng, i)].kind == ST_OP_PAGE_GRAD &&
            eng->program->ops[st_caller_op(eng, i)].micro == c->micro)
            st = end_op(eng, st_caller_op(eng, i), st_clock_ns());
    c->micro++;
    pthread_mutex_unlock(&eng->lock);
    return st;
}

/* A step that has failed is over. */
static strata_status step_over(struct st_engine *eng, strata_status st)
{
    struct st_sentence said;

    if (eng->caller == NULL)
        return st;
    st_error_keep(&said);
    st_caller_wait_stream(eng);
    eng->caller->inside = false;
    return st_error_again(st, &said);
}

strata_status st_engine_caller_rates(struct st_engine *eng, const struct st_caller_step *rates)
{
    const strata_status st = lock_inside(eng, "end");

    if (st != STRATA_OK)
        return st;
    if (eng->program->update == ST_UPDATE_IN_BACKWARD && !eng->caller->step.evaluates)
        return refuse(eng, st_error(STRATA_E_INVAL, "end: rates: with strata.update \"in_backward\" updates have been made"));
    take_rates(eng, rates);
    pthread_mutex_unlock(&eng->lock);
    return STRATA_OK;
}

/* Under the lock: wait until the cycle is over, and close the step. */
static strata_status close_step(struct st_engine *eng, struct st_step_result *result)
{
    struct st_caller *c = eng->caller;
    const struct st_saved *saved = c->step.evaluates ? NULL : c->step.saved;
    strata_status st;

    c->waiting = true;
    st_caller_wake(eng);
    while (c->running)
        pthread_cond_wait(&c->moved, &eng->lock);
    c->waiting = c->inside = false;
    if ((st = c->status) != STRATA_OK)
        st = st_error_again(st, &c->error);
    else if (saved != NULL && saved->status != STRATA_OK)
        (void)!st_error_again(saved->status, &c->error);
    if (st == STRATA_OK && result != NULL)
        *result = c->result;
    pthread_mutex_unlock(&eng->lock);
    return st;
}

strata_status st_engine_caller_end(struct st_engine *eng, const double *losses, double divisor, struct st_step_result *result)
{
    struct st_caller *c = eng->caller;
    strata_status st = lock_inside(eng, "end");

    if (st != STRATA_OK)
        return step_over(eng, st);
    if (c->micro < c->micros)
        return refuse(eng, st_error(STRATA_E_INVAL, "end: micro-batch %u of %u is not over", c->micro, c->micros));
    if (!is_divisor(divisor))
        return refuse(eng,
                      st_error(STRATA_E_INVAL, "end: divisor %g: it can be from %g to %g", divisor, DIVISOR_LEAST, DIVISOR_MOST));
    pthread_mutex_unlock(&eng->lock);
    st_caller_wait_stream(eng);
    pthread_mutex_lock(&eng->lock);
    for (uint32_t m = 0; m < c->micros; m++)
        c->losses[m] = losses != NULL ? losses[m] : (double)NAN;
    c->losses[eng->program->workload.grad_accum] = divisor;
    c->ended = true;
    st = close_step(eng, result);
    c->timed += st == STRATA_OK && !c->step.evaluates && c->timed <= ST_TIMED_STEPS;
    return st;
}

bool st_engine_caller_timed(const struct st_engine *eng, struct st_workload *w)
{
    const struct st_caller *c = eng->caller;
    const uint32_t first = w->layer_count - st_block_count(w);

    if (c->timed != ST_TIMED_STEPS || c->step.evaluates)
        return false;
    for (uint32_t l = first; l < w->layer_count; l++) {
        w->layers[l].forward_seconds = (double)c->layer_ns[l - first][ST_PASS_FORWARD] * 1e-9;
        w->layers[l].backward_seconds = (double)c->layer_ns[l - first][ST_PASS_BACKWARD] * 1e-9;
    }
    return true;
}

strata_status st_engine_caller_drop(struct st_engine *eng, struct st_step_result *result)
{
    struct st_caller *c = eng->caller;
    const strata_status st = lock_inside(eng, "drop");
    const uint32_t count = st == STRATA_OK ? st_caller_count(eng) : 0;

    if (st != STRATA_OK)
        return step_over(eng, st);
    if (eng->program->update == ST_UPDATE_IN_BACKWARD && !c->step.evaluates)
        return refuse(eng,
                      st_error(STRATA_E_INVAL, "drop: with strata.update \"in_backward\" updates have been made: use \"gated\""));
    pthread_mutex_unlock(&eng->lock);
    st_caller_wait_stream(eng);
    pthread_mutex_lock(&eng->lock);
    c->dropped = true;
    c->entered = ST_NO_OP;
    for (uint32_t i = 0; i < count; i++)
        if (c->state[st_caller_op(eng, i)] == ST_CALLER_HANDED)
            st_caller_finish(eng, st_caller_op(eng, i));
    return close_step(eng, result);
}

bool st_engine_caller_inside(const struct st_engine *eng)
{
    return eng->caller != NULL && eng->caller->inside;
}

bool st_engine_caller_runs(struct st_engine *eng)
{
    bool is;

    if (!st_engine_caller_inside(eng))
        return false;
    pthread_mutex_lock(&eng->lock);
    is = runs(eng);
    pthread_mutex_unlock(&eng->lock);
    return is;
}

strata_status st_engine_outside(struct st_engine *eng, const char *what)
{
    if (!st_engine_caller_runs(eng))
        return STRATA_OK;
    return st_error(STRATA_E_BUSY, "%s: a step is under way: end it or drop it first", what);
}
