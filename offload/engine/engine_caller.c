/* engine_caller.c - see caller.h.
 *
 * Ops of the caller's lane are issued like all others, when everything that they name is there: then the op is handed over, and
 * it is finished by the call that ends it, on the caller's thread.  An op that nobody will compute is finished as it is issued:
 * of a micro-batch that the step does not have, of a frozen layer that was passed over, or of a step that was dropped.  Whatever
 * begins a sum finds zeros, padding included.
 *
 * On a device with streams an op is handed over when the device was seen to have what it names, so nothing there waits for the
 * engine.  In the other direction a mark on the caller's stream finishes the op (engine_async.c). */
#include "offload/engine/caller_internal.h"

#include "core/system/clock.h"
#include "core/system/thread.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* --- handing over --- */

void st_engine_caller_hand(struct st_engine *eng, uint32_t index)
{
    struct st_caller *c = eng->caller;
    const struct st_op *op = &eng->program->ops[index];
    const bool at_once = op->kind == ST_OP_PAGE_USE || op->kind == ST_OP_CALLER_END;

    pthread_mutex_lock(&eng->lock);
    if (at_once || c->dropped || !st_caller_takes(c, op) || c->state[index] == ST_CALLER_OVER)
        st_caller_finish(eng, index);
    else
        c->state[index] = ST_CALLER_HANDED;
    pthread_cond_broadcast(&c->moved);
    pthread_mutex_unlock(&eng->lock);
}

void st_engine_caller_took(struct st_engine *eng, uint32_t op, uint64_t ns)
{
    struct st_caller *c = eng->caller;
    const struct st_op *o = &eng->program->ops[op];
    const uint32_t pass = o->kind == ST_OP_LAYER_FORWARD ? ST_PASS_FORWARD : ST_PASS_BACKWARD;

    c->pass_ns[pass] += ns;
    if (st_caller_is_layer(o) && c->timed < ST_TIMED_STEPS && !c->step.evaluates) {
        uint64_t *least = &c->layer_ns[st_caller_layer(o)][pass];

        if (*least == 0 || ns < *least)
            *least = ns > 0 ? ns : 1;
    }
}

void st_engine_caller_left(struct st_engine *eng, uint32_t op)
{
    pthread_mutex_lock(&eng->lock);
    st_caller_finish(eng, op);
    pthread_mutex_unlock(&eng->lock);
}

void st_caller_wait_stream(struct st_engine *eng)
{
    strata_status st;

    if (!eng->caller->joined)
        return;
    eng->caller->joined = false;
    if ((st = eng->device->ops->finish(eng->device, ST_QUEUE_CALLER)) != STRATA_OK)
        st_engine_note(eng, st);
}

/* Losses and divisor, where the device has the step's scalars; a step that was dropped has divisor 0. */
static strata_status put_losses(struct st_engine *eng)
{
    const struct st_program *program = eng->program;
    struct st_caller *c = eng->caller;
    struct st_norm *scalars = st_engine_pointer(eng, program->at.scalars_device);
    const uint32_t g = program->workload.grad_accum;
    strata_status st;

    st = eng->device->ops->upload(eng->device, st_scalars_losses(program, scalars) + (uint64_t)program->rank * g, c->losses,
                                  g * sizeof(*c->losses));
    if (st != STRATA_OK)
        return st;
    return eng->device->ops->upload(eng->device, st_scalars_divisors(program, scalars) + program->rank, &c->losses[g],
                                    sizeof(*c->losses));
}

static bool begins_sum(const struct st_access *a)
{
    return a->role == ST_ROLE_SUM && a->mode == ST_WRITE;
}

strata_status st_engine_caller_prepare(struct st_engine *eng, const struct st_op *op)
{
    strata_status st = op->kind == ST_OP_CALLER_END ? put_losses(eng) : STRATA_OK;

    for (uint32_t i = op->access_first; i < op->access_first + op->access_count && st == STRATA_OK; i++) {
        const struct st_access *a = &eng->program->accesses[i];
        const struct st_page *page = &eng->program->workload.pages[a->index % eng->program->workload.page_count];

        if (begins_sum(a))
            st = eng->device->ops->zero(eng->device, st_engine_pointer(eng, a->buffer), page->trained_elems * sizeof(float));
    }
    return st;
}

/* Whether the caller has said that the step is over. */
static bool has_ended(struct st_engine *eng)
{
    bool ended;

    pthread_mutex_lock(&eng->lock);
    ended = eng->caller->ended || eng->caller->dropped;
    pthread_mutex_unlock(&eng->lock);
    return ended;
}

/* An op whose sum begins here, or that has the losses, first passes a queue of the device. */
static bool is_prepared(const struct st_engine *eng, const struct st_op *op)
{
    bool begins = op->kind == ST_OP_CALLER_END;

    for (uint32_t i = op->access_first; i < op->access_first + op->access_count; i++)
        begins |= begins_sum(&eng->program->accesses[i]);
    return begins;
}

strata_status st_engine_caller_issue(struct st_engine *eng)
{
    struct st_dispatch *d = &eng->dispatch;
    strata_status st = STRATA_OK;

    for (uint32_t op; st == STRATA_OK && (op = st_dispatch_ready(d, STRATA_LANE_CALLER)) != ST_NO_OP;) {
        const struct st_op *o = &eng->program->ops[op];

        if (o->kind == ST_OP_CALLER_END && !has_ended(eng))
            return STRATA_OK;
        if (st_caller_is_layer(o) && eng->trace != NULL)
            eng->caller->records[op] = st_trace_begin(eng->trace, ST_TRACE_ITEM, op, ST_TRACE_NONE, st_clock_ns());
        if (eng->async != NULL && is_prepared(eng, o)) {
            st = st_engine_issue(eng, op);
        } else if ((st = st_engine_caller_prepare(eng, o)) == STRATA_OK) {
            st_engine_caller_hand(eng, op);
        }
        if (st == STRATA_OK)
            st_dispatch_pass(d, STRATA_LANE_CALLER);
    }
    return st;
}

bool st_engine_caller_waits(struct st_engine *eng)
{
    bool waits;

    pthread_mutex_lock(&eng->lock);
    waits = eng->caller->waiting;
    pthread_mutex_unlock(&eng->lock);
    return waits;
}

/* --- the engine's thread --- */

static strata_status evaluate(struct st_engine *eng, struct st_step_result *result)
{
    strata_status st = st_engine_flush_now(eng, NULL);

    memset(&eng->result, 0, sizeof(eng->result)); /* the flush's */
    if (st != STRATA_OK || (st = st_engine_timed_cycle(eng, ST_PHASE_EVAL)) != STRATA_OK)
        return st;
    eng->result.loss = st_engine_caller_loss(eng);
    eng->result.dropped = eng->divisor == 0;
    *result = eng->result;
    return STRATA_OK;
}

static strata_status run_step(struct st_engine *eng)
{
    struct st_caller *c = eng->caller;
    struct st_saved *saved = c->step.saved;
    strata_status st;

    if (c->step.evaluates)
        return evaluate(eng, &c->result);
    if (saved == NULL)
        return st_engine_run_step(eng, &c->result);
    st = st_engine_run_saving(eng, &c->result, saved);
    if (st == STRATA_OK && saved->status != STRATA_OK)
        st_error_keep(&c->error); /* not the step's, but it has none */
    return st;
}

static void *thread_main(void *arg)
{
    struct st_engine *eng = arg;
    struct st_caller *c = eng->caller;

    pthread_mutex_lock(&eng->lock);
    for (;;) {
        strata_status st;

        while (!c->running && !c->stop)
            pthread_cond_wait(&c->work, &eng->lock);
        if (!c->running)
            break;
        pthread_mutex_unlock(&eng->lock);
        st = run_step(eng);
        pthread_mutex_lock(&eng->lock);
        c->status = st;
        if (st != STRATA_OK)
            st_error_keep(&c->error);
        c->running = false;
        pthread_cond_broadcast(&c->moved);
    }
    pthread_mutex_unlock(&eng->lock);
    return NULL;
}

void st_engine_caller_times(struct st_engine *eng)
{
    struct st_step_result *r = &eng->result;

    pthread_mutex_lock(&eng->lock);
    r->forward_ms = (double)eng->caller->pass_ns[ST_PASS_FORWARD] * 1e-6;
    r->backward_ms = (double)eng->caller->pass_ns[ST_PASS_BACKWARD] * 1e-6;
    pthread_mutex_unlock(&eng->lock);
    r->busy_ms[STRATA_LANE_CALLER] = r->forward_ms + r->backward_ms;
}

double st_engine_caller_divisor(const struct st_engine *eng)
{
    const struct st_caller *c = eng->caller;

    return eng->program->update == ST_UPDATE_IN_BACKWARD && !c->step.evaluates ? c->step.divisor : 1;
}

double st_engine_caller_loss(struct st_engine *eng)
{
    const struct st_program *program = eng->program;
    struct st_norm *scalars = st_engine_pointer(eng, program->at.scalars_host);
    const double *losses = st_scalars_losses(program, scalars), *divisors = st_scalars_divisors(program, scalars);
    double loss = 0, divisor = 0;
    bool dropped = false;

    for (uint32_t m = 0; m < program->ranks * program->workload.grad_accum; m++)
        loss += losses[m];
    for (uint32_t r = 0; r < program->ranks; r++) {
        divisor += divisors[r];
        dropped |= divisors[r] == 0;
    }
    if (program->update == ST_UPDATE_IN_BACKWARD && !eng->caller->step.evaluates) /* its gradients have been divided */
        divisor = eng->divisor;
    eng->divisor = dropped ? 0 : divisor;
    return dropped ? (double)NAN : loss / divisor;
}

/* --- create and destroy --- */

strata_status st_engine_caller_create(struct st_engine *eng)
{
    const struct st_program *program = eng->program;
    struct st_caller *c;
    struct st_tables t;
    strata_status st;

    if (!st_program_called(program))
        return STRATA_OK;
    if ((c = calloc(1, sizeof(*c))) == NULL)
        return st_nomem(sizeof(*c));
    eng->caller = c;
    pthread_cond_init(&c->moved, NULL);
    pthread_cond_init(&c->work, NULL);
    (void)st_tables_size(&t, program, st_workers_count(eng->workers), eng->async != NULL);
    c->state = calloc(1, program->op_count + 1ull);
    c->layer_ns = calloc(1, t.caller - program->op_count + 1);
    c->losses = calloc(program->workload.grad_accum + 1ull, sizeof(*c->losses));
    if (eng->trace != NULL)
        c->records = calloc(program->op_count + 1ull, sizeof(struct st_trace_record *));
    if (c->state == NULL || c->layer_ns == NULL || c->losses == NULL || (eng->trace != NULL && c->records == NULL))
        return st_nomem(0);
    if ((st = st_thread_start(&c->thread, "strata-engine", thread_main, eng)) != STRATA_OK)
        return st;
    c->thread_runs = true;
    return STRATA_OK;
}

/* A step under way is cancelled. */
void st_engine_caller_destroy(struct st_engine *eng)
{
    struct st_caller *c = eng->caller;

    if (c == NULL)
        return;
    if (c->thread_runs) {
        pthread_mutex_lock(&eng->lock);
        if (c->running)
            st_engine_cancel(eng);
        c->stop = true;
        st_caller_wake(eng);
        pthread_cond_signal(&c->work);
        pthread_mutex_unlock(&eng->lock);
        pthread_join(c->thread, NULL);
        st_caller_wait_stream(eng);
    }
    pthread_cond_destroy(&c->moved);
    pthread_cond_destroy(&c->work);
    free(c->state);
    free(c->layer_ns);
    free(c->losses);
    free(c->records);
    free(c);
    eng->caller = NULL;
}
