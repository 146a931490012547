/* advise/advisor_search.c - see advisor_internal.h.
 *
 * Every setting is drafted (st_plan_draft()); the fastest drafts are planned and compared; the fastest of these is planned as a
 * run does. */
#include "advise/advisor_internal.h"
#include "advise/predict.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/print.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MICRO_TOKENS 65536u /* of a micro-batch, at most */
#define MICROS_MOST  8u     /* with the same tiers: the largest that fits, and divisors of the step below it, */
#define MICRO_STEP   0.67   /* each at most so much of the one before */
#define NEAR         1.02   /* a draft is rarely further from its choice: the next may still win */
#define TIE          0.995  /* of settings about as fast, the one with the largest micro-batch */

#define AUTO STRATA_TIER_COUNT
#define D    STRATA_TIER_DEVICE
#define H    STRATA_TIER_HOST
#define N    STRATA_TIER_NVME
/* Of one rank the stage says nothing; the file says the one with which DeepSpeed offloads as much. */
static const struct st_tiers alone[] = {{D, D, AUTO, 0}, {H, D, AUTO, 2}, {H, H, AUTO, 3}, {N, D, AUTO, 2},
                                        {N, H, AUTO, 3}, {N, N, AUTO, 3}, {N, H, N, 3},    {N, N, N, 3}};
/* Of several, stages 1 and 2 are one program: 2 is what DeepSpeed needs to offload the state. */
static const struct st_tiers shared[] = {{D, D, AUTO, 0}, {D, D, AUTO, 1}, {D, D, AUTO, 3}, {H, D, AUTO, 2},
                                         {H, D, AUTO, 3}, {H, H, AUTO, 3}, {N, D, AUTO, 2}, {N, D, AUTO, 3},
                                         {N, H, AUTO, 3}, {N, N, AUTO, 3}, {N, H, N, 3},    {N, N, N, 3}};
#undef D
#undef H
#undef N
#define ALONE_COUNT  (sizeof(alone) / sizeof(alone[0]))
#define SHARED_COUNT (sizeof(shared) / sizeof(shared[0]))
_Static_assert(ALONE_COUNT <= ST_TIERS_MAX && SHARED_COUNT <= ST_TIERS_MAX, "room for the smallest of each");
_Static_assert(ST_TIERS_MAX *MICROS_MOST <= ST_ADVISOR_TRIED_MAX, "room for all that fit");

void st_advisor_tiers(struct st_scene *s)
{
    s->tiers = s->q->ranks > 1 ? shared : alone;
    s->tiers_count = s->q->ranks > 1 ? SHARED_COUNT : ALONE_COUNT;
}

bool st_tiers_there(const struct st_tiers *tiers, const struct st_capacity *capacity)
{
    if (capacity->unified && (tiers->optimizer == STRATA_TIER_HOST || tiers->param == STRATA_TIER_HOST))
        return false;
    return tiers->optimizer != STRATA_TIER_NVME || capacity->bytes[STRATA_TIER_NVME] != 0;
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
    st_json_put_string(&w, "device", st_advisor_tier(tier));
    if (tier == STRATA_TIER_NVME)
        st_json_put_string(&w, "nvme_path", nvme);
    st_json_object_close(&w);
}

/* The members of the section `strata` that ask for a method; "": none. */
static const char *members_of(enum st_method method)
{
#define LORA "\"lora\": {\"r\": 16, \"lora_alpha\": 32, \"target_modules\": \"all-linear\"}"
    static const char *const members[ST_METHOD_COUNT] = {
        [ST_METHOD_FULL] = "", [ST_METHOD_LORA] = LORA, [ST_METHOD_LORA_NF4] = LORA ", \"quantization\": \"nf4\""};
#undef LORA

    return members[method];
}

/* DeepSpeed has no words for what is in it, and passes sections over that it does not know. */
static void put_section(FILE *file, const struct st_tried *t, enum st_method method)
{
    const char *members = members_of(method), *tier = "\"activation_tier\": \"nvme\"";
    const bool on_nvme = t->tiers.checkpoints == STRATA_TIER_NVME;

    if (on_nvme || members[0] != '\0')
        st_print(file, ",\n  \"strata\": {%s%s%s}", members, on_nvme && members[0] != '\0' ? ", " : "", on_nvme ? tier : "");
}

/* A file for people, too. */
static void put_config(FILE *file, const struct st_tried *t, const struct st_advisor *q, enum st_method method)
{
    st_print(file,
             "{\n"
             "  \"train_micro_batch_size_per_gpu\": %u,\n"
             "  \"gradient_accumulation_steps\": %u,\n"
             "  \"gradient_clipping\": 1.0,\n"
             "  \"%s\": {\"enabled\": true},\n"
             "  \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 2e-05, \"weight_decay\": 0.1}},\n"
             "  \"zero_optimization\": {\n"
             "    \"stage\": %u",
             t->micro_batch, t->grad_accum, q->machine.capacity.lacks_bf16 ? "fp16" : "bf16", t->tiers.stage);
    put_offload(file, "offload_optimizer", t->tiers.optimizer, q->nvme);
    put_offload(file, "offload_param", t->tiers.param, q->nvme);
    st_print_text(file, "\n  }");
    put_section(file, t, method);
    st_print_text(file, "\n}\n");
}

strata_status st_advisor_config(char **text, const struct st_tried *t, const struct st_advisor *q, enum st_method method)
{
    size_t bytes = 0;
    FILE *memory = st_fault_refuses("advise.config") ? NULL : open_memstream(text, &bytes);

    if (memory != NULL) {
        put_config(memory, t, q, method);
        if (fclose(memory) == 0 && *text != NULL)
            return STRATA_OK;
        free(*text);
        *text = NULL;
    }
    return st_nomem(0);
}

strata_status st_advisor_open(struct st_opened *out, const struct st_scene *s, const struct st_tried *t)
{
    char *text = NULL;
    strata_status st = st_advisor_config(&text, t, s->q, s->method);

    out->handle = NULL;
    if (st == STRATA_OK)
        st = s->q->source.open(s->q->source.ctx, &out->facts, &out->handle, text);
    free(text);
    return st;
}

void st_advisor_close(struct st_opened *opened, const struct st_scene *s)
{
    s->q->source.close(opened->handle);
    opened->handle = NULL;
}

/* --- drafts --- */

static strata_status watch(struct st_scene *s)
{
    bool goes_on;

    pthread_mutex_lock(&s->lock);
    goes_on = s->q->source.goes_on(s->q->source.ctx, s->done++);
    pthread_mutex_unlock(&s->lock);
    if (goes_on)
        return STRATA_OK;
    return st_error(STRATA_E_CANCELLED, "cancelled while configurations were compared");
}

/* Whether it fits, and about how long its step then takes, if that is below `limit`.  What cannot be planned does not fit. */
static strata_status draft(bool *fits, struct st_tried *t, const struct st_scene *s, const struct st_machine *machine,
                           double limit)
{
    struct st_draft d = {.seconds = HUGE_VAL};
    struct st_opened o;
    strata_status st = st_advisor_open(&o, s, t);

    if (st == STRATA_OK) {
        st = st_plan_draft(&d, &o.facts.workload, &machine->capacity, &o.facts.asked, s->q->rates_evaluate ? machine : NULL,
                           s->q->rates_known ? machine : NULL, limit);
        if (st == STRATA_E_CONFIG)
            st = STRATA_OK;
    }
    st_advisor_close(&o, s);
    *fits = isfinite(d.seconds);
    t->seconds = t->drafted = s->q->rates_known && *fits ? d.seconds : 0;
    t->lacks = t->bounded = d.lacks;
    return st;
}

/* Micro-batches with these tiers: smaller ones leave more room for activations, larger ones move weights less often. */
static strata_status draft_tiers(struct st_found *out, struct st_scene *s, const struct st_tiers *tiers,
                                 const struct st_machine *machine, double *fastest)
{
    double micro_most = fmin(s->sequences, fmax(1, MICRO_TOKENS / s->q->seq));
    uint32_t count = 0;
    strata_status st = STRATA_OK;

    for (uint32_t micro = (uint32_t)micro_most; st == STRATA_OK && micro > 0 && count < MICROS_MOST; micro--) {
        struct st_tried t = {.tiers = *tiers, .micro_batch = micro, .grad_accum = s->sequences / micro};
        bool fits = false;

        if (s->sequences % micro != 0 || micro > micro_most)
            continue;
        if ((st = watch(s)) == STRATA_OK)
            st = draft(&fits, &t, s, machine, *fastest);
        if (st != STRATA_OK || !fits)
            continue;
        micro_most = micro * MICRO_STEP;
        *fastest = t.lacks ? *fastest : fmin(*fastest, t.seconds);
        out->tried[out->count++] = t;
        count++;
    }
    return st;
}

/* --- plans --- */

/* Whether a setting is faster by more than a tie, or else works in larger micro-batches: kernels are rather faster then; or else
 * shares less.  One that is only bounded may be slower than any. */
static bool is_better(const struct st_tried *a, const struct st_tried *b)
{
    if (a->lacks != b->lacks)
        return b->lacks;
    if (a->seconds < b->seconds * TIE || b->seconds < a->seconds * TIE)
        return a->seconds < b->seconds;
    return a->micro_batch != b->micro_batch ? a->micro_batch > b->micro_batch : a->tiers.stage < b->tiers.stage;
}

/* E_NOMEM, and what planning says. */
static strata_status make_plan(struct st_plan **plan, struct st_tried *t, struct st_scene *s, const struct st_machine *machine,
                               uint64_t chunk_elems, enum st_effort effort)
{
    struct st_prediction p = {0};
    struct st_opened o = {.handle = NULL};
    strata_status st = watch(s);

    if (st == STRATA_OK && (st = st_advisor_open(&o, s, t)) == STRATA_OK) {
        if (o.facts.asked.chunk_elems == 0)
            o.facts.asked.chunk_elems = chunk_elems;
        st = st_plan_make_evaluated(plan, &o.facts.workload, &machine->capacity, &o.facts.asked,
                                    s->q->rates_evaluate ? machine : NULL, effort);
    }
    st_advisor_close(&o, s);
    if (st == STRATA_OK && s->q->rates_known) {
        st_predict(&p, *plan, machine);
        t->lacks = !p.simulated && !st_simulate_possible(&(*plan)->program, machine);
    }
    t->seconds = p.seconds;
    t->bounded = !p.simulated;
    t->chosen = st == STRATA_OK;
    return st;
}

static strata_status choose(struct st_found *out, uint32_t index, struct st_scene *s, const struct st_machine *machine,
                            uint64_t chunk_elems)
{
    struct st_plan *plan = NULL;
    const strata_status st = make_plan(&plan, &out->tried[index], s, machine, chunk_elems, ST_EFFORT_COMPARE);

    if (st == STRATA_OK && (out->plan == NULL || is_better(&out->tried[index], &out->tried[out->best]))) {
        st_plan_destroy(out->plan);
        out->plan = plan;
        out->best = index;
        return st;
    }
    st_plan_destroy(plan);
    return st;
}

strata_status st_advisor_settle(struct st_found *found, struct st_scene *s)
{
    st_plan_destroy(found->plan);
    found->plan = NULL;
    return found->count == 0 ? STRATA_OK
                             : make_plan(&found->plan, &found->tried[found->best], s, &s->q->machine, 0, ST_EFFORT_WHOLE);
}

/* Whether a plan was made of a setting that has the same draft: it uses nothing of a slower tier, then. */
static bool has_twin(const struct st_found *f, const struct st_tried *t)
{
    bool has = false;

    for (uint32_t i = 0; i < f->count && t->drafted > 0; i++)
        has |= f->tried[i].chosen && f->tried[i].micro_batch == t->micro_batch && !(f->tried[i].drafted < t->drafted) &&
               !(f->tried[i].drafted > t->drafted);
    return has;
}

/* The next to be planned; the count: none. */
static uint32_t next_choice(const struct st_found *f, bool more)
{
    uint32_t next = f->count;

    for (uint32_t i = 0; i < f->count; i++)
        if (!f->tried[i].chosen && !has_twin(f, &f->tried[i]) && (next == f->count || is_better(&f->tried[i], &f->tried[next])))
            next = i;
    if (next == f->count || f->plan == NULL)
        return next;
    if (f->tried[next].lacks && !f->tried[f->best].lacks)
        return f->count;
    return f->tried[next].seconds < f->tried[f->best].seconds * (more ? NEAR : TIE) ? next : f->count;
}

/* Its place among those that were drafted, or a new one; the count: there is none. */
static uint32_t place_of(struct st_found *f, const struct st_tried *t)
{
    for (uint32_t i = 0; i < f->count; i++)
        if (memcmp(&f->tried[i].tiers, &t->tiers, sizeof(t->tiers)) == 0 && f->tried[i].micro_batch == t->micro_batch)
            return i;
    if (f->count == ST_ADVISOR_TRIED_MAX)
        return f->count;
    f->tried[f->count] = *t;
    f->tried[f->count].chosen = false;
    return f->count++;
}

/* A draft may be far off, so that what was best before is passed by. */
static strata_status choose_again(struct st_found *out, struct st_scene *s, const struct st_machine *machine,
                                  uint64_t chunk_elems, const struct st_tried *now)
{
    uint32_t index;

    if (out->plan == NULL || now->lacks || out->tried[out->best].lacks || out->tried[out->best].seconds < now->seconds)
        return STRATA_OK;
    index = place_of(out, now);
    return index == out->count || out->tried[index].chosen ? STRATA_OK : choose(out, index, s, machine, chunk_elems);
}

strata_status st_advisor_search(struct st_found *out, struct st_scene *s, const struct st_machine *machine, uint32_t choices,
                                uint64_t chunk_elems, const struct st_tried *now)
{
    double fastest = HUGE_VAL;
    strata_status st = STRATA_OK;

    *out = (struct st_found){0};
    for (uint32_t i = 0; st == STRATA_OK && i < s->tiers_count; i++)
        if (st_tiers_there(&s->tiers[i], &machine->capacity))
            st = draft_tiers(out, s, &s->tiers[i], machine, &fastest);
    for (uint32_t made = 0, next; st == STRATA_OK && (next = next_choice(out, made < choices)) < out->count; made++)
        st = choose(out, next, s, machine, chunk_elems);
    return st == STRATA_OK && now != NULL ? choose_again(out, s, machine, chunk_elems, now) : st;
}
