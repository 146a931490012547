/* api/door_advise.c - strata/advise.h: configurations as cases, and the machine that they are compared on. */
#include "advise/advisor.h"
#include "advise/predict.h"
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"
#include "core/base/wrap.h"
#include "strata/advise.h"
#include "strata/data.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DIR_ELSEWHERE "/local_nvme"
#define NVME          "strata.nvme="

struct strata_advice {
    struct st_advice facts;   /* but for its plan, which is the handle's */
    struct strata_plan *plan; /* NULL: nothing fits */
    char *json;               /* NULL: not asked for yet */
};

struct asked {
    struct strata_advice_opts o;    /* the overrides without those of strata.nvme */
    struct strata_model_opts model; /* with the preset that its name means */
    struct strata_machine *on;
    struct st_advisor advisor;
    char nvme[ST_CONFIG_DIRS_MAX * ST_CONFIG_PATH_MAX]; /* directories, separated by commas; "": none here */
};

/* --- configurations as cases --- */

static strata_status open_model(struct strata_model **model, const struct asked *a, const char *config_text)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL;
    strata_status st;

    opts.text = config_text;
    opts.ranks = a->advisor.ranks;
    opts.overrides = a->o.overrides;
    opts.override_count = a->o.override_count;
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

    return o->progress == NULL || o->progress(o->progress_ctx, STRATA_ADVICE_COMPARES, done, 0);
}

/* --- the machine --- */

static strata_status open_setting(struct strata_model **model, const struct asked *a, const struct st_tried *t)
{
    char *text = NULL;
    strata_status st = st_advisor_config(&text, t, &a->advisor, ST_METHOD_FULL);

    if (st == STRATA_OK)
        st = open_model(model, a, text);
    free(text);
    return st;
}

/* Its rates are measured, with those of its drives if it has any. */
static strata_status measure_machine(struct asked *a, struct strata_model *model)
{
    struct st_advisor *q = &a->advisor;
    struct strata_plan *plan = NULL;
    strata_status st = st_handle_plan(&plan, model, a->on);

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
    a->advisor.seq = info.seq_len;
    out->params = info.params;
    out->here = a->advisor.ranks > 1 ? a->on->planned.local_ranks : 1;
    snprintf(out->model, sizeof(out->model), "%s", info.name);
    if (preset != NULL && strcmp(model->name, preset) == 0)
        a->model.model = preset; /* said once */
    return STRATA_OK;
}

/* Finds the machine, with the capacity of its drives if it has any, and its rates. */
static strata_status find_machine(struct st_advice *out, struct asked *a)
{
    const bool here = st_handle_is_here(a->on);
    const strata_tier tier = !here ? STRATA_TIER_DEVICE : a->nvme[0] != '\0' ? STRATA_TIER_NVME : STRATA_TIER_HOST;
    struct st_tried t = {.tiers = {tier, tier, STRATA_TIER_COUNT, 3}, .micro_batch = 1, .grad_accum = 1};
    struct st_advisor *q = &a->advisor;
    struct strata_model *model = NULL;
    strata_status st = open_setting(&model, a, &t);

    if (st == STRATA_OK && (st = describe_model(out, a, model)) == STRATA_OK) {
        q->hardware = a->on->hardware;
        st = st_handle_machine(&q->machine, &q->rates_known, model, a->on);
        q->rates_evaluate = q->rates_known;
    }
    if (st == STRATA_OK)
        st = count_data(out, model, &a->o);
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

/* --- what is asked --- */

/* Directories as a configuration reads them, which names them in one text. */
static strata_status take_dirs(struct asked *a, const char *override)
{
    const struct strata_config_opts opts = {.opts_size = sizeof(opts), .overrides = &override, .override_count = 1};
    struct strata_config *config = NULL;
    const strata_status st = strata_config_open(&config, &opts);
    size_t length = 0;

    a->nvme[0] = '\0';
    for (uint32_t i = 0; st == STRATA_OK && i < config->values.nvme_dir_count; i++)
        length +=
            (size_t)snprintf(a->nvme + length, sizeof(a->nvme) - length, "%s%s", i > 0 ? "," : "", config->values.nvme_dirs[i]);
    for (uint32_t i = 0; st == STRATA_OK && i < config->values.nvme_dir_count; i++)
        if (strchr(config->values.nvme_dirs[i], ',') != NULL || !st_text_is_utf8(config->values.nvme_dirs[i])) {
            strata_config_close(config);
            return st_error_remedy(
                st_error(STRATA_E_INVAL, "%s: a comma ends a directory's name in a configuration, which is UTF-8", override),
                "strata.nvme", "give a link to it");
        }
    strata_config_close(config);
    return st;
}

/* The directories go to the configurations, so that these say where they are.  Free a->o.overrides. */
static strata_status take_opts(struct asked *a, const struct strata_advice_opts *opts)
{
    const char **overrides;
    strata_status st = st_handle_opts(&a->o, sizeof(a->o), opts, "strata_advice_opts");

    a->o.overrides = NULL;
    if (st != STRATA_OK)
        return st;
    if (a->o.model == NULL)
        return st_error_missing("strata_advice_make", "opts.model");
    a->model = *a->o.model;
    overrides = st_fault_refuses("api.advice") ? NULL : calloc(a->o.override_count + 1u, sizeof(*overrides));
    if (overrides == NULL)
        return st_nomem((a->o.override_count + 1u) * sizeof(*overrides));
    a->o.overrides = overrides;
    a->o.override_count = 0;
    for (uint32_t i = 0; st == STRATA_OK && i < opts->override_count; i++)
        if (strncmp(opts->overrides[i], NVME, strlen(NVME)) == 0)
            st = take_dirs(a, opts->overrides[i]);
        else
            overrides[a->o.override_count++] = opts->overrides[i];
    return st;
}

/* --- the answer --- */

/* As strata plan has it with the file of the best one. */
static strata_status take_plan(struct strata_advice *out, const struct asked *a)
{
    const struct st_advisor *q = &a->advisor;
    struct strata_model *model = NULL;
    strata_status st = open_model(&model, a, out->facts.config);

    if (st == STRATA_OK)
        st = st_handle_adopt(&out->plan, model, a->on, &out->facts.plan, &q->machine, q->rates_known, q->rates_evaluate);
    strata_model_close(model);
    if (st != STRATA_OK)
        return st;
    st_handle_note_memory(out->plan);
    out->facts.plan_of = &out->plan->facts;
    st_endurance_planned(&out->facts.written, out->facts.plan_of, (uint64_t)out->facts.steps);
    return STRATA_OK;
}

/* How long the run is, as a run counts it: an epoch ends with a smaller step. */
static void take_length(struct st_advice *facts, const struct strata_advice_opts *o)
{
    const double step = (double)facts->sequences * facts->seq, epochs = o->epochs > 0 ? o->epochs : 1,
                 of_data = (double)facts->data_sequences;

    facts->steps = o->tokens > 0 ? ceil(o->tokens / step) : (double)o->steps;
    facts->tokens = o->tokens > 0 ? o->tokens : facts->steps * step;
    if (facts->steps > 0 || facts->data_sequences == 0)
        return;
    facts->steps = ceil(epochs * ceil(of_data / facts->sequences));
    facts->tokens = epochs * of_data * facts->seq;
}

static strata_status ask(struct strata_advice *out, struct asked *a)
{
    struct st_advice *facts = &out->facts;
    strata_status st = find_machine(facts, a);

    if (st == STRATA_OK)
        st = st_advisor_ask(facts, &a->advisor);
    if (st != STRATA_OK)
        return st;
    take_length(facts, &a->o);
    return facts->config != NULL ? take_plan(out, a)
                                 : st_error(STRATA_E_NOFIT, "%s the machine",
                                            st_advice_adapters_fit(facts) ? "full training does not fit" : "nothing fits");
}

static strata_status make_advice(struct strata_advice *out, struct asked *a)
{
    const struct strata_machine_opts here = {.opts_size = sizeof(here)};
    struct strata_machine *own = NULL;
    fenv_t floats;
    strata_status st = STRATA_OK;

    a->on = a->o.machine;
    if (a->on == NULL && (st = strata_machine_open(&own, &here)) == STRATA_OK)
        a->on = own;
    if (st != STRATA_OK)
        return st;
    a->advisor = (struct st_advisor){.source = {a, open_case, close_case, goes_on},
                                     .nvme = a->nvme[0] != '\0' ? a->nvme : DIR_ELSEWHERE,
                                     .ranks = st_handle_world(a->on).ranks,
                                     .batch_tokens = a->o.batch_tokens};
    st_floats_plain(&floats);
    st = ask(out, a);
    st_floats_restore(&floats);
    strata_machine_close(own);
    return st;
}

strata_status strata_advice_make(struct strata_advice **advice, const struct strata_advice_opts *opts)
{
    struct strata_advice *out;
    struct asked a = {0};
    strata_status st;

    if (advice == NULL || opts == NULL)
        return st_error_missing(__func__, advice == NULL ? "advice" : "opts");
    out = st_fault_refuses("api.advice") ? NULL : calloc(1, sizeof(*out));
    if (out == NULL)
        return st_nomem(sizeof(*out));
    if ((st = take_opts(&a, opts)) == STRATA_OK)
        st = make_advice(out, &a);
    free((void *)a.o.overrides);
    if (st == STRATA_OK || st == STRATA_E_NOFIT)
        *advice = out;
    else
        strata_advice_destroy(out);
    return st;
}

const char *strata_advice_config(const struct strata_advice *advice)
{
    return advice != NULL ? advice->facts.config : NULL;
}

struct strata_plan *strata_advice_plan(const struct strata_advice *advice)
{
    return advice != NULL ? advice->plan : NULL;
}

strata_status strata_advice_print(const struct strata_advice *advice, FILE *file)
{
    FILE *wrapped;

    if (advice == NULL || file == NULL)
        return st_error_missing(__func__, advice == NULL ? "advice" : "file");
    wrapped = st_wrap_open(file);
    st_advice_print(&advice->facts, wrapped);
    st_wrap_close(wrapped, file);
    return STRATA_OK;
}

strata_status strata_advice_json(struct strata_advice *advice, const char **json)
{
    struct st_json_writer w;
    struct st_kept_text t;
    strata_status st;

    if (advice == NULL || json == NULL)
        return st_error_missing(__func__, advice == NULL ? "advice" : "json");
    st_handle_text_begin(&t, &advice->json, "api.text");
    if (t.file != NULL) {
        st_json_begin(&w, t.file);
        st_advice_put(&advice->facts, &w);
        st_json_end_line(&w);
    }
    if ((st = st_handle_text_end(&t, STRATA_OK)) == STRATA_OK)
        *json = advice->json;
    return st;
}

void strata_advice_destroy(struct strata_advice *advice)
{
    if (advice == NULL)
        return;
    strata_plan_destroy(advice->plan);
    st_advice_free(&advice->facts);
    free(advice->json);
    free(advice);
}
