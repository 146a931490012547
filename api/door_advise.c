/* api/door_advise.c - see door_advise.h. */
#include "api/door_advise.h"
#include "api/handles.h"
#include "strata/data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIR_ELSEWHERE "/local_nvme"

struct asked {
    const struct strata_advice_opts *o;
    struct strata_model_opts model; /* with the preset that its name means */
    struct strata_machine *on;
    struct st_advisor question;
};

/* --- configurations as cases --- */

static strata_status open_model(struct strata_model **model, const struct asked *a, const char *config_text)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL;
    strata_status st;

    opts.text = config_text;
    opts.ranks = a->question.ranks;
    opts.overrides = a->o->overrides;
    opts.override_count = a->o->override_count;
    if ((st = strata_config_open(&config, &opts)) == STRATA_OK)
        st = strata_model_open(model, config, &a->model);
    strata_config_close(config);
    return st;
}

static strata_status open_case(void *ctx, struct st_case *out, void **handle, const char *config)
{
    const struct asked *a = ctx;
    struct strata_model *model = NULL;
    const strata_status st = open_model(&model, a, config);

    if (st == STRATA_OK)
        st_handle_case(out, model, a->on);
    *handle = model;
    return st;
}

static void close_case(void *handle)
{
    strata_model_close(handle);
}

static bool goes_on(void *ctx, uint64_t done)
{
    const struct strata_model_opts *o = &((const struct asked *)ctx)->model;

    return o->progress == NULL || o->progress(o->progress_ctx, ST_ADVISOR_COMPARES, done, 0);
}

/* --- the machine --- */

static strata_status open_setting(struct strata_model **model, const struct asked *a, const struct st_tried *t)
{
    char *text = NULL;
    strata_status st = st_advisor_config(&text, t, &a->question, ST_METHOD_FULL);

    if (st == STRATA_OK)
        st = open_model(model, a, text);
    free(text);
    return st;
}

/* Its rates are measured, with those of its drives if it has any. */
static strata_status measure_machine(struct asked *a, struct strata_model *model)
{
    struct st_advisor *q = &a->question;
    struct strata_plan *plan = NULL;
    strata_status st = strata_plan_make(&plan, model, a->on);

    if (st == STRATA_OK)
        st = strata_plan_measure(plan);
    if (st == STRATA_OK || st == STRATA_E_NOFIT) {
        q->machine = plan->facts.machine;
        q->rates_known = plan->facts.rates_known;
        q->rates_evaluate = st_case_evaluator(&plan->facts, &plan->facts.machine) != NULL;
        st = STRATA_OK;
    }
    strata_plan_destroy(plan);
    return st;
}

/* As a run reads them, of the model's vocabulary and in sequences of its length. */
static strata_status count_data(struct st_advice *out, const struct strata_model *model, const struct strata_advice_opts *o)
{
    struct strata_data *data = NULL;
    strata_status st;

    if (o->data_count == 0)
        return STRATA_OK;
    if ((st = strata_data_open(&data, model, o->data, o->data_count)) == STRATA_OK)
        out->data_sequences = strata_data_count(data);
    strata_data_close(data);
    return st;
}

static strata_status describe_model(struct st_advice *out, struct asked *a, struct strata_model *model)
{
    const char *preset = a->model.model != NULL ? st_model_preset_of(a->model.model) : NULL;
    struct strata_model_info info = STRATA_MODEL_INFO_INIT;
    strata_status st = strata_model_get_info(model, &info);

    if (st != STRATA_OK)
        return st;
    a->question.seq = info.seq_len;
    out->params = info.params;
    out->here = a->question.ranks > 1 ? a->on->planned.local_ranks : 1;
    snprintf(out->model, sizeof(out->model), "%s", info.name);
    if (preset != NULL && strcmp(model->name, preset) == 0)
        a->model.model = preset; /* said once */
    return STRATA_OK;
}

/* Finds the machine, with the capacity of its drives if it has any, and its rates. */
static strata_status find_machine(struct st_advice *out, struct asked *a)
{
    const bool here = st_handle_is_here(a->on);
    const strata_tier tier = !here ? STRATA_TIER_DEVICE : a->o->nvme != NULL ? STRATA_TIER_NVME : STRATA_TIER_HOST;
    struct st_tried t = {.tiers = {tier, tier, STRATA_TIER_COUNT, 3}, .micro_batch = 1, .grad_accum = 1};
    struct st_advisor *q = &a->question;
    struct strata_model *model = NULL;
    strata_status st = open_setting(&model, a, &t);

    if (st == STRATA_OK && (st = describe_model(out, a, model)) == STRATA_OK) {
        q->hardware = a->on->hardware;
        st = st_handle_machine(&q->machine, &q->rates_known, model, a->on);
        q->rates_evaluate = q->rates_known;
    }
    if (st == STRATA_OK)
        st = count_data(out, model, a->o);
    if (st == STRATA_OK && here) {
        strata_model_close(model); /* again in the precision, and with the tiers, that its GPU has */
        model = NULL;
        if (!st_tiers_there(&t.tiers, &q->machine.capacity))
            t.tiers.optimizer = t.tiers.param = STRATA_TIER_DEVICE;
        if ((st = open_setting(&model, a, &t)) == STRATA_OK)
            st = measure_machine(a, model);
    }
    strata_model_close(model);
    return st;
}

/* --- the answer --- */

/* As strata plan has it with the file of the best one. */
static strata_status take_plan(struct strata_plan **plan, struct st_advice *out, const struct asked *a)
{
    const struct st_advisor *q = &a->question;
    struct strata_model *model = NULL;
    strata_status st = open_model(&model, a, out->config);

    if (st == STRATA_OK)
        st = st_handle_adopt(plan, model, a->on, &out->plan, &q->machine, q->rates_known, q->rates_evaluate);
    strata_model_close(model);
    return st;
}

strata_status strata_advice_make(struct st_advice *out, struct strata_plan **plan, const struct strata_advice_opts *opts)
{
    struct asked a = {.o = opts, .model = *opts->model};
    strata_status st;

    a.question = (struct st_advisor){.source = {&a, open_case, close_case, goes_on},
                                      .nvme = opts->nvme != NULL ? opts->nvme : DIR_ELSEWHERE,
                                      .ranks = opts->machine->ranks > 1 ? opts->machine->ranks : 1,
                                      .batch_tokens = opts->batch_tokens};
    *out = (struct st_advice){0};
    *plan = NULL;
    if ((st = strata_machine_open(&a.on, opts->machine)) == STRATA_OK && (st = find_machine(out, &a)) == STRATA_OK)
        st = st_advisor_ask(out, &a.question);
    if (st == STRATA_OK && out->config != NULL)
        st = take_plan(plan, out, &a);
    strata_machine_close(a.on);
    if (st != STRATA_OK)
        st_advice_free(out);
    return st;
}
