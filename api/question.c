/* api/question.c - see question.h. */
#include "api/question.h"
#include "api/handles.h"
#include "api/predict.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/print.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MICRO_MOST    64u           /* sequences of a micro-batch */
#define MICROS_JUDGED 3u            /* of each pair of tiers: the largest that fit */
#define UNIT          (64ull << 20) /* to which the least memory is found */
#define PLENTY        (1ull << 50)
#define PARTS_MOST    12u /* that are added until something fits */
#define DIR_ELSEWHERE "/local_nvme"

/* From the fastest memory to the slowest; weights are never on a slower tier than the state. */
static const strata_tier pairs[][2] = {{STRATA_TIER_DEVICE, STRATA_TIER_DEVICE}, {STRATA_TIER_HOST, STRATA_TIER_DEVICE},
                                       {STRATA_TIER_HOST, STRATA_TIER_HOST},     {STRATA_TIER_NVME, STRATA_TIER_DEVICE},
                                       {STRATA_TIER_NVME, STRATA_TIER_HOST},     {STRATA_TIER_NVME, STRATA_TIER_NVME}};
#define PAIRS (sizeof(pairs) / sizeof(pairs[0]))
_Static_assert(PAIRS *MICROS_JUDGED <= ST_QUESTION_TRIED_MAX, "room for all that are judged");

struct scene {
    const struct st_question *q;
    const char *nvme; /* directories as the file names them */
    struct st_machine machine;
    bool rates_known, rates_judge; /* rates_judge: the machine's, not a nominal one's; st_handle_judge() */
    uint32_t sequences;
    uint64_t done;
    struct strata_model *smallest[PAIRS]; /* micro-batches of one sequence */
};

struct found {
    struct st_tried tried[ST_QUESTION_TRIED_MAX];
    uint32_t count, best;
};

const char *st_question_tier(strata_tier tier)
{
    return tier == STRATA_TIER_DEVICE ? "none" : tier == STRATA_TIER_HOST ? "cpu" : "nvme";
}

/* --- a candidate's file --- */

static void put_offload(FILE *file, const char *key, strata_tier tier, const char *nvme)
{
    struct st_json_writer w;

    if (tier == STRATA_TIER_DEVICE)
        return;
    st_print(file, ",\n    \"%s\": ", key);
    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "device", st_question_tier(tier));
    if (tier == STRATA_TIER_NVME)
        st_json_put_string(&w, "nvme_path", nvme);
    st_json_object_close(&w);
}

/* A file for people, too. */
static void put_config(FILE *file, const struct st_tried *t, const char *nvme)
{
    st_print(file,
             "{\n"
             "  \"train_micro_batch_size_per_gpu\": %u,\n"
             "  \"gradient_accumulation_steps\": %u,\n"
             "  \"gradient_clipping\": 1.0,\n"
             "  \"bf16\": {\"enabled\": true},\n"
             "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-05, \"weight_decay\": 0.1}},\n"
             "  \"zero_optimization\": {\n"
             "    \"stage\": %d",
             t->micro_batch, t->grad_accum,
             t->param != STRATA_TIER_DEVICE       ? 3
             : t->optimizer != STRATA_TIER_DEVICE ? 2
                                                  : 0);
    put_offload(file, "offload_optimizer", t->optimizer, nvme);
    put_offload(file, "offload_param", t->param, nvme);
    st_print_text(file, "\n  }\n}\n");
}

/* Free *text. */
static strata_status config_text(char **text, const struct st_tried *t, const char *nvme)
{
    size_t bytes = 0;
    FILE *memory = st_fault_refuses("api.question") ? NULL : open_memstream(text, &bytes);

    if (memory != NULL) {
        put_config(memory, t, nvme);
        if (fclose(memory) == 0 && *text != NULL)
            return STRATA_OK;
        free(*text);
        *text = NULL;
    }
    return st_error(STRATA_E_NOMEM, "no memory for the text of a configuration");
}

static strata_status open_candidate(struct strata_model **model, const struct scene *s, const struct st_tried *t)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL;
    char *text = NULL;
    strata_status st = config_text(&text, t, s->nvme);

    opts.text = text;
    opts.overrides = s->q->overrides;
    opts.override_count = s->q->override_count;
    if (st == STRATA_OK)
        st = strata_config_open(&config, &opts);
    if (st == STRATA_OK)
        st = strata_model_open(model, config, s->q->model);
    strata_config_close(config);
    free(text);
    return st;
}

/* --- the search --- */

/* Whether it fits this machine, and how long its step then takes.  E_NOMEM; what cannot be planned does not fit. */
static strata_status judge(bool *fits, struct st_tried *t, const struct scene *s, const struct strata_model *m,
                           const struct st_machine *machine)
{
    const struct st_workload *w = st_model_workload(m->model);
    struct st_plan *plan = NULL;
    struct st_prediction p = {0};
    struct st_policy policy;
    strata_status st;

    st_handle_policy(&policy, m);
    st = st_plan_fits(fits, w, &machine->capacity, &policy);
    if (st != STRATA_OK || !*fits)
        return st == STRATA_E_CONFIG ? STRATA_OK : st;
    st = st_plan_make_judged(&plan, w, &machine->capacity, &policy, s->rates_judge ? machine : NULL);
    if (st == STRATA_OK && s->rates_known)
        st_predict(&p, &plan->program, machine);
    st_plan_destroy(plan);
    t->seconds = p.seconds;
    return st;
}

static strata_status watch(struct scene *s)
{
    const struct strata_model_opts *o = s->q->model;

    if (o->progress == NULL || o->progress(o->progress_ctx, "comparing configurations", s->done++, 0))
        return STRATA_OK;
    return st_error(STRATA_E_CANCELLED, "cancelled while configurations were compared");
}

/* The largest micro-batches of these tiers that fit. */
static strata_status search_pair(struct found *out, struct scene *s, const strata_tier pair[2], const struct st_machine *machine)
{
    const uint32_t most = s->sequences < MICRO_MOST ? s->sequences : MICRO_MOST;
    uint32_t judged = 0;
    strata_status st = STRATA_OK;

    for (uint32_t micro = most; st == STRATA_OK && micro > 0 && judged < MICROS_JUDGED; micro--) {
        struct st_tried t = {pair[0], pair[1], micro, s->sequences / micro, 0};
        struct strata_model *model = NULL;
        bool fits = false;

        if (s->sequences % micro != 0)
            continue;
        if ((st = watch(s)) == STRATA_OK && (st = open_candidate(&model, s, &t)) == STRATA_OK)
            st = judge(&fits, &t, s, model, machine);
        strata_model_close(model);
        if (st != STRATA_OK || !fits)
            continue;
        if (out->count > 0 && t.seconds < out->tried[out->best].seconds)
            out->best = out->count;
        out->tried[out->count++] = t;
        judged++;
    }
    return st;
}

static strata_status search(struct found *out, struct scene *s, const struct st_machine *machine)
{
    strata_status st = STRATA_OK;

    *out = (struct found){0};
    for (size_t i = 0; st == STRATA_OK && i < PAIRS; i++)
        st = search_pair(out, s, pairs[i], machine);
    return st;
}

/* --- what would fit --- */

static strata_status open_smallest(struct scene *s)
{
    strata_status st = STRATA_OK;

    for (size_t i = 0; st == STRATA_OK && i < PAIRS; i++) {
        const struct st_tried t = {pairs[i][0], pairs[i][1], 1, s->sequences, 0};

        st = open_candidate(&s->smallest[i], s, &t);
    }
    return st;
}

static strata_status any_fits(bool *fits, const struct scene *s, const struct st_capacity *capacity)
{
    *fits = false;
    for (size_t i = 0; i < PAIRS && !*fits; i++) {
        struct st_policy policy;
        strata_status st;

        st_handle_policy(&policy, s->smallest[i]);
        st = st_plan_fits(fits, st_model_workload(s->smallest[i]->model), capacity, &policy);
        if (st != STRATA_OK && st != STRATA_E_CONFIG)
            return st;
    }
    return STRATA_OK;
}

/* Lowers one tier of a capacity, with which something fits, to the least with which something does. */
static strata_status lower(struct st_capacity *capacity, strata_tier tier, const struct scene *s)
{
    uint64_t low = 0, high = (capacity->bytes[tier] + UNIT - 1) / UNIT;
    strata_status st = STRATA_OK;
    bool fits;

    while (st == STRATA_OK && low < high) {
        const uint64_t middle = low + (high - low) / 2;

        capacity->bytes[tier] = middle * UNIT;
        if ((st = any_fits(&fits, s, capacity)) == STRATA_OK && fits)
            high = middle;
        else
            low = middle + 1;
    }
    capacity->bytes[tier] = high * UNIT;
    return st;
}

/* As lower(), but no lower than what there is. */
static strata_status lower_to(struct st_capacity *capacity, strata_tier tier, const struct scene *s)
{
    const uint64_t most = capacity->bytes[tier], have = s->machine.capacity.bytes[tier];
    strata_status st;
    bool fits;

    capacity->bytes[tier] = have;
    if ((st = any_fits(&fits, s, capacity)) != STRATA_OK || fits)
        return st;
    capacity->bytes[tier] = most;
    return lower(capacity, tier, s);
}

static strata_status find_least(struct st_answer *out, const struct scene *s)
{
    struct st_capacity all = s->machine.capacity;
    strata_status st = STRATA_OK;
    bool one = false, fits;

    for (int t = 0; st == STRATA_OK && t < STRATA_TIER_COUNT; t++) {
        struct st_capacity more = s->machine.capacity;

        all.bytes[t] = more.bytes[t] = PLENTY;
        if ((st = any_fits(&fits, s, &more)) != STRATA_OK || !fits)
            continue;
        one = true;
        st = lower(&more, (strata_tier)t, s);
        out->least[t] = more.bytes[t];
    }
    if (st != STRATA_OK || one || (st = any_fits(&fits, s, &all)) != STRATA_OK || !fits)
        return st;
    for (int t = 0; st == STRATA_OK && t < STRATA_TIER_COUNT; t++) {
        st = lower_to(&all, (strata_tier)t, s);
        out->together[t] = all.bytes[t] > s->machine.capacity.bytes[t] ? all.bytes[t] : 0;
    }
    return st;
}

/* --- one more --- */

static const strata_tier tier_of[ST_CHANGE_COUNT] = {STRATA_TIER_DEVICE, STRATA_TIER_HOST, STRATA_TIER_NVME};

static bool take_more(struct st_hardware *hardware, enum st_change change)
{
    return change == ST_CHANGE_GPU   ? st_hardware_more_gpu(hardware)
           : change == ST_CHANGE_RAM ? st_hardware_more_ram(hardware)
                                     : st_hardware_more_drive(hardware);
}

static void name_parts(char *text, size_t bytes, const struct st_hardware *hardware, enum st_change change)
{
    if (change == ST_CHANGE_GPU)
        snprintf(text, bytes, "%s", st_hardware_gpu_name(hardware->gpu));
    else if (change == ST_CHANGE_RAM)
        st_hardware_ram_text(text, bytes, hardware);
    else
        st_hardware_drives_text(text, bytes, hardware);
}

/* This machine with those parts; a budget that was given stays. */
static void changed_machine(struct st_machine *out, const struct scene *s, const struct st_hardware *hardware,
                            enum st_change change)
{
    const struct st_config *config = &s->smallest[0]->config;
    struct st_machine made;

    st_hardware_machine(&made, hardware);
    *out = s->machine;
    out->rates = made.rates;
    if ((change == ST_CHANGE_GPU && config->device_memory != ST_AUTO_BYTES) ||
        (change == ST_CHANGE_RAM && config->host_memory != ST_AUTO_BYTES))
        return;
    out->capacity.bytes[tier_of[change]] = made.capacity.bytes[tier_of[change]];
}

/* One part more; where nothing fits, as many as it takes. */
static strata_status try_change(struct st_changed *out, struct scene *s, enum st_change change, bool fits_now)
{
    struct st_hardware hardware = *s->smallest[0]->hardware;
    struct st_machine machine;
    struct found found = {0};
    strata_status st = STRATA_OK;
    bool fits = false;

    for (uint32_t i = 0; st == STRATA_OK && !fits && i < (fits_now ? 1 : PARTS_MOST) && take_more(&hardware, change); i++) {
        out->possible = true;
        changed_machine(&machine, s, &hardware, change);
        st = any_fits(&fits, s, &machine.capacity);
    }
    if (st != STRATA_OK || !fits || (st = search(&found, s, &machine)) != STRATA_OK || found.count == 0)
        return st;
    out->fits = true;
    name_parts(out->what, sizeof(out->what), &hardware, change);
    out->best = found.tried[found.best];
    return STRATA_OK;
}

/* --- the answer --- */

/* Finds the machine, with the capacity of its drives if it has any, and its rates. */
static strata_status find_machine(struct scene *s, struct st_answer *out)
{
    struct strata_plan *plan = NULL;
    struct strata_model *model = NULL;
    struct st_tried t = {STRATA_TIER_DEVICE, STRATA_TIER_DEVICE, 1, 1, 0};
    struct strata_model_info info = STRATA_MODEL_INFO_INIT;
    strata_status st = open_candidate(&model, s, &t);

    if (st == STRATA_OK)
        st = strata_model_get_info(model, &info);
    if (st != STRATA_OK)
        goto done;
    out->seq = info.seq_len;
    out->params = info.params;
    snprintf(out->model, sizeof(out->model), "%s", info.name);
    t.optimizer = t.param = STRATA_TIER_HOST;
    if (s->q->nvme != NULL || model->file.capacity.bytes[STRATA_TIER_NVME] != 0)
        t.optimizer = t.param = STRATA_TIER_NVME;
    strata_model_close(model);
    model = NULL;
    if ((st = open_candidate(&model, s, &t)) != STRATA_OK)
        goto done;
    st = strata_plan_make(&plan, model);
    if (st == STRATA_OK)
        st = strata_plan_measure(plan);
    if (st != STRATA_OK && st != STRATA_E_NOFIT)
        goto done;
    st = STRATA_OK;
    s->machine = plan->machine;
    s->rates_known = plan->rates_known;
    s->rates_judge = st_handle_judge(plan, &plan->machine) != NULL;
    snprintf(out->machine, sizeof(out->machine), "%s", plan->machine.name);
    memcpy(out->capacity, plan->machine.capacity.bytes, sizeof(out->capacity));
done:
    strata_plan_destroy(plan);
    strata_model_close(model);
    return st;
}

/* Plans it as strata plan would, at the rates that are known already. */
static strata_status plan_best(struct st_answer *out, const struct scene *s)
{
    const struct st_tried *best = &out->tried[out->best];
    struct strata_model *model = NULL;
    strata_status st = config_text(&out->config, best, s->nvme);

    if (st == STRATA_OK && (st = open_candidate(&model, s, best)) == STRATA_OK)
        st = strata_plan_make(&out->plan, model);
    if (st == STRATA_OK && model->machine != NULL) {
        st = strata_plan_measure(out->plan);
    } else if (st == STRATA_OK && s->rates_known) {
        out->plan->machine.rates = s->machine.rates;
        out->plan->rates_known = true;
        if (s->rates_judge)
            st = st_plan_judge(&out->plan->plan, &out->plan->machine);
        if (st == STRATA_OK)
            st_figures_make(&out->plan->figures, &out->plan->plan->program, &out->plan->machine);
    }
    strata_model_close(model);
    return st;
}

static strata_status answer(struct st_answer *out, struct scene *s)
{
    const uint64_t batch = s->q->batch_tokens != 0 ? s->q->batch_tokens : ST_QUESTION_BATCH;
    struct found found;
    strata_status st = find_machine(s, out);

    if (st != STRATA_OK)
        return st;
    if (batch < out->seq || batch / out->seq > ST_GRAD_ACCUM_MAX)
        return st_error(STRATA_E_INVAL, "--batch-tokens %" PRIu64 ": a step has 1 to %u sequences, of %u tokens each (--seq-len)",
                        batch, ST_GRAD_ACCUM_MAX, out->seq);
    out->sequences = s->sequences = (uint32_t)(batch / out->seq);
    if ((st = search(&found, s, &s->machine)) != STRATA_OK)
        return st;
    memcpy(out->tried, found.tried, sizeof(out->tried));
    out->tried_count = found.count;
    out->best = found.best;
    if ((st = open_smallest(s)) == STRATA_OK)
        st = found.count > 0 ? plan_best(out, s) : find_least(out, s);
    for (enum st_change c = 0; st == STRATA_OK && s->smallest[0]->hardware != NULL && c < ST_CHANGE_COUNT; c++)
        st = try_change(&out->changed[c], s, c, found.count > 0);
    return st;
}

strata_status st_question_answer(struct st_answer *out, const struct st_question *question)
{
    struct scene s = {.q = question, .nvme = question->nvme != NULL ? question->nvme : DIR_ELSEWHERE};
    strata_status st;

    *out = (struct st_answer){0};
    st = answer(out, &s);
    for (size_t i = 0; i < PAIRS; i++)
        strata_model_close(s.smallest[i]);
    if (st != STRATA_OK)
        st_answer_free(out);
    return st;
}

void st_answer_free(struct st_answer *answer)
{
    strata_plan_destroy(answer->plan);
    free(answer->config);
    *answer = (struct st_answer){0};
}
