/* api/door_eval.c - strata_engine_eval_data(): runs forward over all of the data, one step's sequences at a time, of which each
 * rank has its part. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "run/ranks_agree.h"

#include <math.h>
#include <stdlib.h>

/* What has been evaluated so far, and room for the tokens of a step. */
struct evaluation {
    uint32_t sequences;        /* of a step of this rank, */
    uint32_t world, part;      /* of all ranks; where this one's begin */
    int32_t *tokens, *targets; /* [sequences * seq] */
    int32_t *positions;        /* the same, where the model was opened for documents; else NULL */
    double loss_sum;
    uint64_t targets_seen, windows;
};

static strata_status evaluate(struct strata_engine *engine, const struct strata_data *data, struct evaluation *e)
{
    static const char what[] = "evaluating";
    const uint64_t all = strata_data_count(data);
    strata_status st = st_engine_flush(engine->run.engine, NULL); /* ends what ranks still exchange, before they talk */

    while (st == STRATA_OK && e->windows < all) {
        const uint64_t left = all - e->windows;
        uint64_t targets;

        st = st_handle_watch(engine->plan->model, what, e->windows, all);
        st = st_ranks_end_alike(st_handle_comm(engine->plan->model), st, what);
        if (st == STRATA_OK)
            st = strata_data_read_part(data, STRATA_DATA_IN_ORDER, 0, e->windows, e->world, e->part, e->sequences, e->tokens,
                                       e->targets, e->positions);
        if (st == STRATA_OK)
            st = st_engine_eval(engine->run.engine, e->tokens, e->targets, e->positions, &e->loss_sum, &targets);
        if (st != STRATA_OK)
            break;
        e->targets_seen += targets;
        e->windows += left < e->world ? left : e->world;
    }
    return st;
}

static struct strata_eval result_of(const struct evaluation *e, const struct strata_data *data)
{
    struct strata_eval r = {.targets = e->targets_seen, .sequences = e->windows};

    r.loss = e->targets_seen > 0 ? e->loss_sum / (double)e->targets_seen : (double)NAN;
    r.perplexity = exp(r.loss);
    r.bits_per_byte = strata_data_bits_per_byte(data, r.loss);
    return r;
}

static strata_status check(const struct strata_engine *engine, const struct strata_data *data, const struct strata_eval *result)
{
    if (data == NULL || result == NULL)
        return st_error_missing("strata_engine_eval_data", data == NULL ? "data" : "result");
    if (engine->plan->model->use == STRATA_USE_GENERATE)
        return st_error(STRATA_E_INVAL, "strata_engine_eval_data: the model was opened for another use");
    if (data->seq != engine->plan->model->size.seq)
        return st_error(STRATA_E_INVAL, "the data's sequences have %u tokens, the model's %u: open the data with this model",
                        data->seq, engine->plan->model->size.seq);
    if (st_token_set_documents(data->set) && !engine->plan->model->size.documents)
        return st_error(STRATA_E_INVAL, "strata_engine_eval_data: sequences hold several documents: open the model with "
                                        "strata_model_opts.documents");
    return STRATA_OK;
}

static strata_status eval_data(struct strata_engine *engine, const struct strata_data *data, struct strata_eval *result)
{
    const struct st_world world = st_handle_world(engine->plan->on);
    const bool documents = engine->plan->model->size.documents;
    strata_status st = check(engine, data, result);
    struct evaluation e = {0};
    struct strata_eval r = {0};
    size_t count;

    if (st == STRATA_OK) /* an invalid struct size is found before anything runs */
        st = st_handle_result(result, &r, sizeof(r), "strata_eval");
    if (st != STRATA_OK)
        return st;
    e.sequences = engine->plan->model->config.micro_batch * engine->plan->model->config.grad_accum;
    e.world = e.sequences * world.ranks;
    e.part = e.sequences * world.rank;
    count = (size_t)e.sequences * data->seq;
    if (!st_fault_refuses("api.eval")) {
        e.tokens = calloc(count, sizeof(*e.tokens));
        e.targets = calloc(count, sizeof(*e.targets));
        e.positions = documents ? calloc(count, sizeof(*e.positions)) : NULL;
    }
    st = e.tokens != NULL && e.targets != NULL && (e.positions != NULL || !documents) ? evaluate(engine, data, &e) : st_nomem(0);
    free(e.tokens);
    free(e.targets);
    free(e.positions);
    r = result_of(&e, data);
    (void)!st_handle_result(result, &r, sizeof(r), "strata_eval");
    return st;
}

strata_status strata_engine_eval_data(struct strata_engine *engine, const struct strata_data *data, struct strata_eval *result)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    st = eval_data(engine, data, result);
    st_handle_leave(engine);
    return st;
}
