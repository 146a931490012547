/* api/door_engine.c - strata/engine.h: steps, forwards and digests; checks the order of calls. */
#include "api/handles.h"
#include "core/base/error.h"
#include "offload/config/config_options.h"
#include "run/checkpointer.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LR_MOST 1e3

/* --- steps --- */

static strata_status check_batch(const struct strata_engine *e, const char *function, const int32_t *tokens,
                                 const int32_t *targets, bool trains)
{
    const strata_status st = st_handle_check_decoder(e->plan->model, function);

    if (st != STRATA_OK)
        return st;
    if (tokens == NULL || targets == NULL)
        return st_error_missing(function, tokens == NULL ? "tokens" : "targets");
    if (e->plan->model->use == STRATA_USE_GENERATE || (trains && e->plan->model->use != STRATA_USE_TRAIN))
        return st_error(STRATA_E_INVAL, "%s: the model was opened for another use", function);
    return STRATA_OK;
}

void st_handle_take_step(struct strata_step *out, const struct st_step_result *r)
{
    *out = (struct strata_step){
        .loss = r->loss,
        .grad_norm = r->grad_norm,
        .lr = r->lr,
        .loss_scale = r->loss_scale,
        .skipped = r->skipped,
        .dropped = r->dropped,
        .weights_overflowed = r->weights_overflowed,
        .tokens = r->tokens,
        .seconds = r->seconds,
        .forward_ms = r->forward_ms,
        .backward_ms = r->backward_ms,
        .stall_ms = r->stall_ms,
        .other_ms = r->other_ms,
        .stalled_by = (uint32_t)r->stalled_by,
        .upload_bytes = r->bytes.upload,
        .download_bytes = r->bytes.download,
        .read_bytes = r->bytes.read,
        .write_bytes = r->bytes.write,
        .comm_bytes = r->bytes.comm,
        .requests = (uint32_t)r->requests,
        .aux_loss = r->aux_loss,
        .token_loss = r->token_loss,
        .early_made = r->early_made,
        .early_kept = r->early_kept,
        .early_redone = r->early_redone,
        .redone_bytes = r->redone_bytes,
        .wasted_bytes = r->wasted_bytes,
    };
    memcpy(out->busy_ms, r->busy_ms, sizeof(r->busy_ms));
    memcpy(out->lane_stall_ms, r->lane_stall_ms, sizeof(r->lane_stall_ms));
}

strata_status st_handle_check_schedule(const struct strata_engine *e, const char *function)
{
    if (e->lr_set || !st_config_lacks_steps(&e->plan->model->config))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL,
                    "%s: the schedule of the learning rate needs the number of steps: set strata_config_opts.max_steps, or call "
                    "strata_model_set_steps() or strata_engine_set_lr()",
                    function);
}

static strata_status run_step(struct strata_engine *engine, const int32_t *tokens, const int32_t *targets,
                              const int32_t *positions, struct strata_step *result)
{
    strata_status st = STRATA_OK;
    struct strata_step step = {0};
    struct st_step_result r;

    if (result != NULL) /* an invalid struct size is found before anything runs */
        st = st_handle_room(result, sizeof(struct strata_step), "strata_step");
    if (st == STRATA_OK)
        st = st_handle_check_schedule(engine, "strata_engine_step");
    if (st != STRATA_OK)
        return st;
    st_config_set_rates(&engine->plan->model->config, engine->run.engine);
    if (engine->lr_set)
        st_engine_set_lr(engine->run.engine, engine->lr);
    st = engine->run.checkpointer != NULL ? st_checkpointer_step(engine->run.checkpointer, tokens, targets, positions, &r)
                                          : st_engine_step(engine->run.engine, tokens, targets, positions, &r);
    if (st != STRATA_OK || result == NULL)
        return st;
    st_handle_take_step(&step, &r);
    return st_handle_result(result, &step, sizeof(step), "strata_step");
}

struct fed {
    strata_feed_fn *feed;
    void *ctx;
};

static strata_status feed_turn(void *ctx, struct st_turn *t)
{
    const struct fed *fed = ctx;
    struct strata_turn turn = {.kind = (enum strata_turn_kind)t->kind,
                               .micro = t->micro,
                               .tokens = t->tokens,
                               .targets = t->targets,
                               .positions = t->positions,
                               .loss = t->loss,
                               .lr = t->lr,
                               .weight_decay = t->weight_decay,
                               .beta1 = t->beta1,
                               .beta2 = t->beta2};
    const strata_status st = fed->feed(fed->ctx, &turn);

    t->weight = turn.weight;
    t->lr = turn.lr;
    t->weight_decay = turn.weight_decay;
    t->beta1 = turn.beta1;
    t->beta2 = turn.beta2;
    t->drop = turn.drop;
    return st == STRATA_OK ? st : st_error(st, "the step's feed has ended it");
}

strata_status strata_engine_step_fed(struct strata_engine *engine, strata_feed_fn *feed, void *ctx, struct strata_step *result)
{
    struct fed fed = {feed, ctx};
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_TRAINS);

    if (st != STRATA_OK)
        return st;
    st = feed == NULL ? st_error_missing(__func__, "feed") : st_handle_check_decoder(engine->plan->model, __func__);
    if (st == STRATA_OK && engine->plan->model->use != STRATA_USE_TRAIN)
        st = st_error(STRATA_E_INVAL, "%s: the model was opened for another use", __func__);
    if (st == STRATA_OK && (st = st_engine_feed(engine->run.engine, feed_turn, &fed)) == STRATA_OK) {
        st = run_step(engine, NULL, NULL, NULL, result);
        (void)st_engine_feed(engine->run.engine, NULL, NULL);
    }
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_step(struct strata_engine *engine, const int32_t *tokens, const int32_t *targets,
                                 const int32_t *positions, struct strata_step *result)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_TRAINS);

    if (st != STRATA_OK)
        return st;
    if ((st = check_batch(engine, __func__, tokens, targets, true)) == STRATA_OK)
        st = run_step(engine, tokens, targets, positions, result);
    st_handle_leave(engine);
    return st;
}

void strata_engine_request(struct strata_engine *engine, uint32_t bits)
{
    if (engine != NULL)
        st_engine_request(engine->run.engine, bits);
}

static strata_status set_lr(struct strata_engine *engine, double lr)
{
    static const char name[] = "strata_engine_set_lr";

    if (engine->plan->model->use != STRATA_USE_TRAIN)
        return st_error(STRATA_E_INVAL, "%s: the model was opened for another use than training", name);
    if (!(lr >= 0 && lr <= LR_MOST))
        return st_error(STRATA_E_INVAL, "%s: a learning rate of %g is out of range: 0 to %g", name, lr, LR_MOST);
    engine->lr_set = true;
    engine->lr = lr;
    return STRATA_OK;
}

strata_status strata_engine_set_lr(struct strata_engine *engine, double lr)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_TRAINS);

    if (st != STRATA_OK)
        return st;
    st = set_lr(engine, lr);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_flush(struct strata_engine *engine)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    st = st_engine_flush(engine->run.engine, NULL);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_end_training(struct strata_engine *engine)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    if ((st = st_checkpointer_check_due(engine->run.checkpointer, __func__)) == STRATA_OK)
        st = st_engine_end_training(engine->run.engine);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_eval(struct strata_engine *engine, const int32_t *tokens, const int32_t *targets,
                                 const int32_t *positions, double *loss_sum, uint64_t *targets_seen)
{
    double sum = 0;
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    st = check_batch(engine, __func__, tokens, targets, false);
    if (st == STRATA_OK && (loss_sum == NULL || targets_seen == NULL))
        st = st_error_missing(__func__, loss_sum == NULL ? "loss_sum" : "targets_seen");
    if (st == STRATA_OK)
        st = st_engine_eval(engine->run.engine, tokens, targets, positions, &sum, targets_seen);
    if (st == STRATA_OK)
        *loss_sum = sum;
    st_handle_leave(engine);
    return st;
}

static strata_status check_forward(const struct strata_engine *engine, const int32_t *tokens, uint32_t count, uint32_t position,
                                   const float *logits)
{
    static const char name[] = "strata_engine_forward";
    const struct strata_model *m = engine->plan->model;

    if (tokens == NULL || logits == NULL)
        return st_error_missing(name, tokens == NULL ? "tokens" : "logits");
    if (m->use != STRATA_USE_GENERATE)
        return st_error(STRATA_E_INVAL, "%s: the model was opened for another use than generation", name);
    if (count == 0 || count > m->size.seq || (uint64_t)position + count > m->size.context)
        return st_error(STRATA_E_INVAL, "%s: %u tokens at position %u: 1 to %u at a time and %u in all are possible", name, count,
                        position, m->size.seq, m->size.context);
    if (position > engine->cached)
        return st_error(STRATA_E_INVAL, "%s: a token at position %u, but the sequence has %u: give those before it first", name,
                        position, engine->cached);
    return STRATA_OK;
}

strata_status st_handle_forward(struct strata_engine *e, const int32_t *tokens, uint32_t count, uint32_t position, float *logits)
{
    strata_status st = check_forward(e, tokens, count, position, logits);

    if (st != STRATA_OK)
        return st;
    st = st_engine_forward(e->run.engine, tokens, count, position, logits);
    e->forwards++;
    if (st == STRATA_OK)
        e->cached = position + count; /* what came from there on is forgotten */
    return st;
}

strata_status strata_engine_forward(struct strata_engine *engine, const int32_t *tokens, uint32_t count, uint32_t position,
                                    float *logits)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    st = st_handle_forward(engine, tokens, count, position, logits);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_check(const struct strata_engine *engine)
{
    struct strata_engine *e = (struct strata_engine *)(uintptr_t)engine; /* only its flag changes */
    strata_status st = st_handle_enter(e, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    st = st_engine_learnt(e->run.engine);
    st_handle_leave(e);
    return st;
}

strata_status strata_engine_digest(struct strata_engine *engine, char weights[33], char state[33])
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_TRAINS);

    if (st != STRATA_OK)
        return st;
    st = weights == NULL || state == NULL ? st_error_missing(__func__, weights == NULL ? "weights" : "state")
                                          : st_engine_digest(engine->run.engine, weights, state);
    st_handle_leave(engine);
    return st;
}

void strata_engine_cancel(struct strata_engine *engine)
{
    if (engine != NULL)
        st_engine_cancel(engine->run.engine);
}

const char *strata_lane_name(uint32_t lane)
{
    return lane < STRATA_LANE_COUNT ? st_lane_name((enum strata_lane)lane) : NULL;
}

strata_status strata_engine_get_info(struct strata_engine *engine, struct strata_engine_info *info)
{
    struct strata_engine_info i = {0};
    struct st_engine_info from;
    strata_status st;

    if (engine == NULL || info == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : "info");
    if ((st = st_handle_enter(engine, __func__, ST_HANDLE_EXISTS)) != STRATA_OK)
        return st;
    st_engine_info(engine->run.engine, &from);
    if (engine->run.checkpointer != NULL)
        snprintf(i.run, sizeof(i.run), "%s", st_checkpointer_run(engine->run.checkpointer));
    st_handle_leave(engine);
    memcpy(i.device, from.device, sizeof(i.device));
    memcpy(i.isa, from.isa, sizeof(i.isa));
    memcpy(i.io_method, from.io_method, sizeof(i.io_method));
    i.io_direct = from.io_direct;
    i.io_registered = from.io_registered;
    i.workers = from.workers;
    i.steps = from.steps_done;
    i.skipped_steps = from.skipped_steps;
    i.upload_bytes = from.moved.upload;
    i.download_bytes = from.moved.download;
    i.read_bytes = from.moved.read;
    i.comm_bytes = from.moved.comm;
    i.write_bytes = from.moved.write;
    i.sequences = from.sequences_done;
    i.loss_scale = from.loss_scale;
    i.early_made = from.early.made;
    i.early_kept = from.early.kept;
    i.early_redone = from.early.redone;
    i.redone_bytes = from.early.redone_bytes;
    i.wasted_bytes = from.early.wasted_bytes;
    return st_handle_result(info, &i, sizeof(i), "strata_engine_info");
}
