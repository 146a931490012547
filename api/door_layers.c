/* api/door_layers.c - strata/layers.h: models of layers that the caller computes, and their steps. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/config/config_options.h"
#include "offload/engine/caller.h"
#include "offload/optim/lr_schedule.h"
#include "run/checkpointer.h"
#include "run/ranks_agree.h"
#include "strata/layers.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define RATE_MOST 1e3 /* of rates and decays */
#define BETA_MOST 0.9999999

/* --- opening --- */

static strata_status check_config(const struct st_config *c)
{
    const char *key = c->freeze_count > 0                       ? "strata.freeze"
                      : c->lora[0] != '\0'                      ? "strata.lora"
                      : c->quantization != ST_QUANTIZATION_NONE ? "strata.quantization"
                                                                : NULL;

    if (key == NULL)
        return STRATA_OK;
    return st_error_remedy(st_error(STRATA_E_CONFIG, "%s is for models that strata computes, and this one is of layers", key),
                           key, "leave it out; STRATA_FROZEN freezes a tensor");
}

static strata_status take_opts(struct strata_model *m, const struct strata_config *config, const struct strata_layers_opts *o)
{
    atomic_init(&m->users, 1);
    atomic_flag_clear(&m->has_engine);
    m->config = config->values;
    m->nvme_named = config->nvme_named;
    m->use = o->use;
    m->size.seq = 1;
    m->saved_checkpoints = o->saved_checkpoints;
    m->comm = o->comm;
    m->progress.fn = o->progress;
    m->progress.ctx = o->progress_ctx;
    m->caller = (struct st_handle_caller){
        .threads = o->caller_threads,
        .bytes = {[STRATA_TIER_DEVICE] = o->caller_device_bytes, [STRATA_TIER_HOST] = o->caller_host_bytes}};
    if (m->config.dtype == STRATA_DTYPE_INVALID)
        m->config.dtype = STRATA_F32;
    return st_handle_text(&m->name, o->name != NULL ? o->name : "layers");
}

static strata_status open_layers(struct strata_model *m, const struct strata_config *config, const struct strata_layers_opts *o)
{
    struct st_layers_batch batch = {.workers = 1};
    struct st_run run;
    strata_status st = take_opts(m, config, o);

    batch.dtype = m->config.dtype;
    batch.micro_batch = m->config.micro_batch;
    batch.grad_accum = m->config.grad_accum;
    batch.weight_decay = m->config.optimizer.weight_decay;
    if (st == STRATA_OK)
        st = check_config(&m->config);
    if (st == STRATA_OK)
        st = st_layers_create(&m->layers, o, &batch);
    if (st == STRATA_OK && o->use == STRATA_USE_TRAIN && m->layers->workload.params == 0)
        st = st_error(STRATA_E_INVAL, "every tensor is frozen: there is nothing to train");
    if (st != STRATA_OK)
        return st;
    run = st_handle_run(m);
    return st_ranks_agree_layers(st_handle_comm(m), &run, m->use);
}

static strata_status check_opts(const struct strata_config *config, const struct strata_layers_opts *o)
{
    if (strata_config_problem(config, 0) != NULL)
        return st_error(STRATA_E_INVAL, "strata_layers_open: the configuration has problems: %s",
                        strata_config_problem(config, 0));
    if (o->use != STRATA_USE_TRAIN && o->use != STRATA_USE_EVAL && o->use != STRATA_USE_PLAN)
        return st_error(STRATA_E_INVAL, "layers cannot have use %u: use STRATA_USE_TRAIN, _EVAL or _PLAN", (unsigned)o->use);
    if (o->comm != NULL && o->comm->world.ranks > 1 && o->use == STRATA_USE_PLAN)
        return st_error(STRATA_E_INVAL, "a comm is for training and evaluation: leave it out for a plan");
    return o->use == STRATA_USE_PLAN ? STRATA_OK
                                     : st_handle_check_ranks(&config->values, st_handle_ranks(o->comm).ranks, "model");
}

strata_status strata_layers_open(struct strata_model **model, const struct strata_config *config,
                                 const struct strata_layers_opts *opts)
{
    struct strata_layers_opts o;
    struct strata_model *m;
    fenv_t floats;
    strata_status st;

    if (model == NULL || config == NULL || opts == NULL)
        return st_error_missing(__func__, model == NULL ? "model" : config == NULL ? "config" : "opts");
    if ((st = st_handle_opts(&o, sizeof(o), opts, "strata_layers_opts")) != STRATA_OK ||
        (st = check_opts(config, &o)) != STRATA_OK)
        return st;
    m = st_fault_refuses("api.model") ? NULL : calloc(1, sizeof(*m));
    if (m == NULL)
        return st_nomem(sizeof(*m));
    st_floats_plain(&floats);
    m->origins = st_handle_origins(config);
    st = m->origins != NULL ? open_layers(m, config, &o) : st_nomem(0);
    st_floats_restore(&floats);
    if (st == STRATA_OK)
        *model = m;
    else
        strata_model_close(m);
    return st;
}

/* --- begin --- */

static strata_status check_numbers(const double *numbers, uint32_t count, double most, const char *what, const char *function)
{
    for (uint32_t i = 0; numbers != NULL && i < count; i++)
        if (!(numbers[i] >= 0 && numbers[i] <= most))
            return st_error(STRATA_E_INVAL, "%s: %s of parameter group %u is %.9g: 0 to %.9g are possible", function, what, i,
                            numbers[i], most);
    return STRATA_OK;
}

/* Each may be NULL. */
static strata_status check_rates(const struct strata_engine *e, const struct st_caller_step *rates, const char *function)
{
    const uint32_t groups = e->plan->model->layers->group_count;
    strata_status st = check_numbers(rates->lr, groups, RATE_MOST, "the rate", function);

    if (st == STRATA_OK)
        st = check_numbers(rates->weight_decay, groups, RATE_MOST, "the weight decay", function);
    if (st == STRATA_OK)
        st = check_numbers(rates->beta1, groups, BETA_MOST, "beta1", function);
    return st == STRATA_OK ? check_numbers(rates->beta2, groups, BETA_MOST, "beta2", function) : st;
}

static strata_status check_step(const struct strata_engine *e, const struct strata_layers_step *s)
{
    const struct strata_model *m = e->plan->model;
    const uint32_t most = m->config.grad_accum;
    const struct st_caller_step rates = {.lr = s->lr, .weight_decay = s->weight_decay, .beta1 = s->beta1, .beta2 = s->beta2};
    strata_status st;

    if (m->layers == NULL)
        return st_error(STRATA_E_INVAL, "strata_engine_begin: strata computes %s: strata_engine_step() is its step", m->name);
    if (!s->evaluates && m->use != STRATA_USE_TRAIN)
        return st_error(STRATA_E_INVAL, "strata_engine_begin: the model was opened for another use than training: set evaluates");
    if (s->micros > most)
        return st_error(STRATA_E_INVAL, "strata_engine_begin: %u micro-batches: gradient_accumulation_steps allows %u", s->micros,
                        most);
    if ((st = check_rates(e, &rates, "strata_engine_begin")) != STRATA_OK)
        return st;
    return s->evaluates || s->lr != NULL ? STRATA_OK : st_handle_check_schedule(e, "strata_engine_begin");
}

static strata_status begin(struct strata_engine *e, const struct strata_layers_step *s, double *scale)
{
    const struct strata_model *m = e->plan->model;
    double lr[STRATA_PARAM_GROUPS_MAX], decay[STRATA_PARAM_GROUPS_MAX], rate;
    struct st_caller_step step = {
        .evaluates = s->evaluates, .micros = s->micros, .lr = lr, .weight_decay = decay, .beta1 = s->beta1, .beta2 = s->beta2};
    strata_status st = check_step(e, s);

    if (st != STRATA_OK)
        return st;
    if (e->run.checkpointer != NULL && !s->evaluates)
        step.saved = st_checkpointer_begin_step(e->run.checkpointer);
    if (!s->evaluates)
        st_config_set_rates(&m->config, e->run.engine);
    rate = e->lr_set ? e->lr : st_lr_at(&m->config.schedule, &m->config.optimizer, st_engine_steps(e->run.engine) + 1);
    if (e->lr_set)
        st_engine_set_lr(e->run.engine, e->lr);
    step.sets = m->layers->group_count;
    for (uint32_t i = 0; i < step.sets; i++) {
        lr[i] = s->lr != NULL ? s->lr[i] : rate * m->layers->groups[i].lr_scale;
        decay[i] = s->weight_decay != NULL ? s->weight_decay[i] : m->layers->groups[i].weight_decay;
    }
    step.divisor = s->divisor;
    step.stream = s->stream;
    if ((st = st_engine_caller_begin(e->run.engine, &step, scale)) != STRATA_OK)
        return st;
    e->micros = s->micros != 0 ? s->micros : m->config.grad_accum;
    e->entered = ST_HANDLE_NO_LAYER;
    e->evaluates = s->evaluates;
    return STRATA_OK;
}

strata_status strata_engine_begin(struct strata_engine *engine, const struct strata_layers_step *step, double *loss_scale)
{
    struct strata_layers_step s;
    double scale = 1;
    strata_status st = st_handle_opts(&s, sizeof(s), step, "strata_layers_step");

    if (st != STRATA_OK ||
        (st = st_handle_enter(engine, __func__, s.evaluates ? ST_HANDLE_LOADED : ST_HANDLE_TRAINS)) != STRATA_OK)
        return st;
    st = begin(engine, &s, &scale);
    if (st == STRATA_OK && loss_scale != NULL)
        *loss_scale = scale;
    st_handle_leave(engine);
    return st;
}

/* --- layers --- */

/* Ends a call, as st_handle_leave(). */
static strata_status left(struct strata_engine *e, strata_status st)
{
    st_handle_leave(e);
    return st;
}

static strata_status check_layer(const struct strata_engine *e, uint32_t layer, bool resident, const char *function)
{
    const struct st_layers *l = e->plan->model->layers;

    if (layer >= l->layer_count)
        return st_error(STRATA_E_INVAL, "%s: layer %u, and the model has %u", function, layer, l->layer_count);
    if ((l->layers[layer].ordered == ST_LAYERS_RESIDENT) != resident)
        return st_error(STRATA_E_INVAL, "%s: layer %s is %s", function, l->layers[layer].name,
                        resident ? "ordered: strata_engine_enter() enters it" : "resident: strata_engine_use() gives it");
    return STRATA_OK;
}

static strata_status check_view(const struct strata_engine *e, enum strata_pass pass, const struct strata_layer_view *view,
                                const char *function)
{
    if ((unsigned)pass > STRATA_BACKWARD)
        return st_error(STRATA_E_INVAL, "%s: pass %u: STRATA_FORWARD and STRATA_BACKWARD are possible", function, (unsigned)pass);
    if (pass == STRATA_BACKWARD && e->evaluates)
        return st_error(STRATA_E_INVAL, "%s: an evaluation has no backward", function);
    return view == NULL ? st_error_missing(function, "view") : st_handle_room(view, sizeof(*view), "strata_layer_view");
}

static strata_status enter(struct strata_engine *e, enum strata_pass pass, uint32_t layer, struct strata_layer_view *view)
{
    const struct st_layers *l = e->plan->model->layers;
    struct strata_layer_view out = {.layer = layer};
    struct st_caller_view v = {0};
    strata_status st = check_view(e, pass, view, "strata_engine_enter");

    if (st == STRATA_OK)
        st = check_layer(e, layer, false, "strata_engine_enter");
    if (st == STRATA_OK)
        st = st_engine_caller_enter(e->run.engine, pass == STRATA_FORWARD ? ST_PASS_FORWARD : ST_PASS_BACKWARD,
                                    l->layers[layer].ordered, &v);
    if (st != STRATA_OK)
        return st;
    e->entered = layer;
    e->pass = pass;
    out.weights = v.weight;
    out.sum = v.sum;
    out.boundary = v.boundary;
    out.boundary_bytes = v.boundary_bytes;
    out.micro = v.micro;
    return st_handle_result(view, &out, sizeof(out), "strata_layer_view");
}

strata_status strata_engine_enter(struct strata_engine *engine, enum strata_pass pass, uint32_t layer,
                                  struct strata_layer_view *view)
{
    const strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_STEP);

    return st != STRATA_OK ? st : left(engine, enter(engine, pass, layer, view));
}

strata_status strata_engine_leave(struct strata_engine *engine)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_STEP);

    if (st != STRATA_OK)
        return st;
    if ((st = st_engine_caller_leave(engine->run.engine)) == STRATA_OK)
        engine->entered = ST_HANDLE_NO_LAYER;
    st_handle_leave(engine);
    return st;
}

/* The engine knows pages, the caller layers. */
static strata_status name_layer(const struct strata_engine *e, uint32_t layer, strata_status st, const char *function)
{
    return st != STRATA_E_INVAL
               ? st
               : st_error(st, "%s: layer %s: %s", function, e->plan->model->layers->layers[layer].name, strata_last_error());
}

static strata_status use(struct strata_engine *e, enum strata_pass pass, uint32_t layer, struct strata_layer_view *view)
{
    const struct st_layers *l = e->plan->model->layers;
    struct strata_layer_view out = {.layer = layer};
    strata_status st = check_view(e, pass, view, "strata_engine_use");

    if (st == STRATA_OK)
        st = check_layer(e, layer, true, "strata_engine_use");
    if (st == STRATA_OK)
        st = st_engine_caller_use(e->run.engine, l->layers[layer].page, &out.weights);
    if (st == STRATA_OK && pass == STRATA_BACKWARD)
        st = name_layer(e, layer, st_engine_caller_sum(e->run.engine, l->layers[layer].page, &out.sum), "strata_engine_use");
    return st == STRATA_OK ? st_handle_result(view, &out, sizeof(out), "strata_layer_view") : st;
}

strata_status strata_engine_use(struct strata_engine *engine, enum strata_pass pass, uint32_t layer,
                                struct strata_layer_view *view)
{
    const strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_STEP);

    return st != STRATA_OK ? st : left(engine, use(engine, pass, layer, view));
}

/* --- gradients --- */

static strata_status check_grad(const struct strata_engine *e, const struct strata_grad *g)
{
    const struct st_layers *l = e->plan->model->layers;
    const size_t width = strata_dtype_bytes(g->dtype);
    const struct st_tensor *t;

    if (g->tensor >= l->tensor_count)
        return st_error(STRATA_E_INVAL, "strata_engine_grad: tensor %u, and the model has %u", g->tensor, l->tensor_count);
    t = &l->tensors[g->tensor];
    if (width == 0 || g->values == NULL || (uintptr_t)g->values % width != 0)
        return st_error(STRATA_E_INVAL, "strata_engine_grad: %s: values are missing, misaligned, or of no dtype", t->name);
    if (g->first > t->elems || g->elems > t->elems - g->first || (g->elems == 0 && g->first == t->elems))
        return st_error(STRATA_E_INVAL, "strata_engine_grad: %s has %llu elements: the part is outside", t->name,
                        (unsigned long long)t->elems);
    if (e->evaluates)
        return st_error(STRATA_E_INVAL, "strata_engine_grad: an evaluation has no gradients");
    if (l->layers[t->layer].ordered != ST_LAYERS_RESIDENT && (e->entered != t->layer || e->pass != STRATA_BACKWARD))
        return st_error(STRATA_E_INVAL, "strata_engine_grad: %s is of layer %s, whose backward is not entered", t->name,
                        l->layers[t->layer].name);
    if (st_engine_caller_reads(e->run.engine, g->values) != STRATA_OK)
        return st_error_prefix(STRATA_E_INVAL, "strata_engine_grad: %s", t->name);
    return STRATA_OK;
}

static strata_status grad(struct strata_engine *e, const struct strata_grad *grads, uint32_t count)
{
    const struct st_layers *l = e->plan->model->layers;
    strata_status st = grads == NULL && count > 0 ? st_error_missing("strata_engine_grad", "grads") : STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = check_grad(e, &grads[i]);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        const struct st_tensor *t = &l->tensors[grads[i].tensor];

        if (t->frozen)
            continue;
        st = st_engine_caller_add(e->run.engine, t->page, t->offset + grads[i].first, grads[i].dtype,
                                  grads[i].elems != 0 ? grads[i].elems : t->elems - grads[i].first, grads[i].values);
        st = name_layer(e, t->layer, st, "strata_engine_grad");
    }
    return st;
}

strata_status strata_engine_grad(struct strata_engine *engine, const struct strata_grad *grads, uint32_t count)
{
    const strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_STEP);

    return st != STRATA_OK ? st : left(engine, grad(engine, grads, count));
}

/* --- the end --- */

strata_status strata_engine_micro_end(struct strata_engine *engine)
{
    const strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_STEP);

    return st != STRATA_OK ? st : left(engine, st_engine_caller_micro_end(engine->run.engine));
}

/* The engine has ended its part. */
static strata_status give_result(struct strata_engine *e, strata_status st, const struct st_step_result *r,
                                 struct strata_step *result)
{
    struct strata_step step = {0};

    if (!st_engine_caller_inside(e->run.engine))
        e->entered = ST_HANDLE_NO_LAYER;
    if (e->run.checkpointer != NULL && !e->evaluates)
        st = st_checkpointer_end_step(e->run.checkpointer, st);
    if (st == STRATA_OK)
        st_handle_time_layers(e->plan, e->run.engine);
    if (st != STRATA_OK || result == NULL)
        return st;
    st_handle_take_step(&step, r);
    return st_handle_result(result, &step, sizeof(step), "strata_step");
}

static strata_status check_end(const struct strata_engine *e, const struct strata_layers_end *end,
                               const struct st_caller_step *rates, const struct strata_step *result)
{
    const strata_status st = check_rates(e, rates, "strata_engine_end");

    if (st != STRATA_OK)
        return st;
    if (!(end->divisor >= 0) || !isfinite(end->divisor))
        return st_error(STRATA_E_INVAL, "strata_engine_end: a divisor of %g: it is finite and above 0", end->divisor);
    return result != NULL ? st_handle_room(result, sizeof(*result), "strata_step") : STRATA_OK;
}

static strata_status end_step(struct strata_engine *e, const struct strata_layers_end *end, struct strata_step *result)
{
    const struct st_caller_step rates = {.lr = end->lr,
                                         .weight_decay = end->weight_decay,
                                         .beta1 = end->beta1,
                                         .beta2 = end->beta2,
                                         .sets = e->plan->model->layers->group_count};
    const bool given = end->lr != NULL || end->weight_decay != NULL || end->beta1 != NULL || end->beta2 != NULL;
    struct st_step_result r = {0};
    strata_status st = check_end(e, end, &rates, result);

    if (st == STRATA_OK && given)
        st = st_engine_caller_rates(e->run.engine, &rates);
    if (st != STRATA_OK)
        return st;
    st = st_engine_caller_end(e->run.engine, end->losses, end->divisor > 0 ? end->divisor : e->micros, &r);
    return give_result(e, st, &r, result);
}

strata_status strata_engine_end(struct strata_engine *engine, const struct strata_layers_end *end, struct strata_step *result)
{
    struct strata_layers_end o;
    strata_status st = st_handle_opts(&o, sizeof(o), end, "strata_layers_end");

    if (st != STRATA_OK || (st = st_handle_enter(engine, __func__, ST_HANDLE_STEP)) != STRATA_OK)
        return st;
    st = end_step(engine, &o, result);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_drop(struct strata_engine *engine, struct strata_step *result)
{
    struct st_step_result r = {0};
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_STEP);

    if (st != STRATA_OK)
        return st;
    if (result != NULL)
        st = st_handle_room(result, sizeof(*result), "strata_step");
    if (st == STRATA_OK)
        st = give_result(engine, st_engine_caller_drop(engine->run.engine, &r), &r, result);
    st_handle_leave(engine);
    return st;
}
