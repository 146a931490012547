/* advise/advisor.c - see advisor.h. */
#include "advise/advisor_internal.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/workers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHOICES    2u            /* plans to compare, of the machine as it is; one with each part more */
#define UNIT       (64ull << 20) /* to which the least memory is found */
#define PLENTY     (1ull << 50)
#define PARTS_MOST 12u /* that are added until something fits */

const char *st_advisor_tier(strata_tier tier)
{
    return tier == STRATA_TIER_DEVICE ? "none" : tier == STRATA_TIER_HOST ? "cpu" : "nvme";
}

/* --- what would fit --- */

/* Whether there can be a program of it at all, given room: a step of very many micro-batches has too many operations. */
static strata_status can_be_planned(bool *can, const struct st_case *c, const struct st_scene *s)
{
    bool fits;
    const strata_status st = st_plan_fits(&fits, &c->workload, &s->q->machine.capacity, &c->asked);

    *can = st != STRATA_E_CONFIG;
    return *can ? st : STRATA_OK;
}

/* The smallest micro-batch with which tiers can be planned; where none can, one sequence. */
static strata_status open_one(struct st_opened *out, const struct st_scene *s, const struct st_tiers *tiers)
{
    strata_status st = STRATA_OK;
    bool can = false;

    for (uint32_t micro = 1; st == STRATA_OK && !can && micro <= s->sequences; micro++) {
        const struct st_tried t = {.tiers = *tiers, .micro_batch = micro, .grad_accum = s->sequences / micro};

        if (s->sequences % micro != 0)
            continue;
        st_advisor_close(out, s);
        if ((st = st_advisor_open(out, s, &t)) == STRATA_OK)
            st = can_be_planned(&can, &out->facts, s);
    }
    return st;
}

static strata_status open_smallest(struct st_scene *s)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; st == STRATA_OK && i < s->tiers_count; i++)
        st = open_one(&s->smallest[i], s, &s->tiers[i]);
    return st == STRATA_OK ? st_case_check_heads(&s->smallest[0].facts, &s->q->machine.capacity) : st;
}

/* The slowest tiers need the least of the others, so they come first. */
static strata_status any_fits(bool *fits, const struct st_scene *s, const struct st_capacity *capacity)
{
    *fits = false;
    for (uint32_t i = s->tiers_count; i-- > 0 && !*fits;) {
        const struct st_case *c = &s->smallest[i].facts;
        strata_status st;

        if (!st_tiers_there(&s->tiers[i], capacity))
            continue;
        st = st_plan_fits(fits, &c->workload, capacity, &c->asked);
        if (st != STRATA_OK && st != STRATA_E_CONFIG)
            return st;
    }
    return STRATA_OK;
}

/* Lowers one tier of a capacity, with which something fits, to the least with which something does, or to what there is. */
static strata_status lower(struct st_capacity *capacity, strata_tier tier, const struct st_scene *s)
{
    uint64_t low = 0, high = (capacity->bytes[tier] + UNIT - 1) / UNIT;
    strata_status st;
    bool fits;

    capacity->bytes[tier] = s->q->machine.capacity.bytes[tier];
    if ((st = any_fits(&fits, s, capacity)) != STRATA_OK || fits)
        return st;
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

/* How many times what there is of device and host memory. */
static double growth(const struct st_capacity *capacity, const struct st_scene *s)
{
    double sum = 0;

    for (int t = STRATA_TIER_DEVICE; t <= STRATA_TIER_HOST; t++)
        sum += (double)capacity->bytes[t] / (double)(s->q->machine.capacity.bytes[t] + 1);
    return sum;
}

/* The least device memory with ample host memory may take a lot of that: a little more of the one often saves much of the other.
 */
static strata_status lower_memories(struct st_capacity *capacity, const struct st_scene *s)
{
    static const uint32_t quarters[] = {5, 6, 8, 12, 16};
    struct st_capacity least, best;
    strata_status st = lower(capacity, STRATA_TIER_DEVICE, s);

    least = best = *capacity;
    if (st == STRATA_OK)
        st = lower(&best, STRATA_TIER_HOST, s);
    for (size_t i = 0; i < sizeof(quarters) / sizeof(quarters[0]) && st == STRATA_OK; i++) {
        struct st_capacity other = least;

        other.bytes[STRATA_TIER_DEVICE] = (least.bytes[STRATA_TIER_DEVICE] / 4 * quarters[i] + UNIT - 1) / UNIT * UNIT;
        st = lower(&other, STRATA_TIER_HOST, s);
        if (growth(&other, s) < growth(&best, s))
            best = other;
    }
    *capacity = best;
    return st;
}

/* More of one tier alone, and the least of several together. */
static strata_status find_least(struct st_advice *out, const struct st_scene *s)
{
    struct st_capacity all = s->q->machine.capacity;
    strata_status st = STRATA_OK;
    bool fits;

    for (int t = 0; st == STRATA_OK && t < STRATA_TIER_COUNT; t++) {
        struct st_capacity more = s->q->machine.capacity;

        all.bytes[t] = more.bytes[t] = PLENTY;
        if ((st = any_fits(&fits, s, &more)) != STRATA_OK || !fits)
            continue;
        st = lower(&more, (strata_tier)t, s);
        out->least[t] = more.bytes[t];
    }
    if (st != STRATA_OK || (st = any_fits(&fits, s, &all)) != STRATA_OK || !fits)
        return st;
    if ((st = lower_memories(&all, s)) == STRATA_OK)
        st = lower(&all, STRATA_TIER_NVME, s);
    for (int t = 0; t < STRATA_TIER_COUNT; t++)
        out->together[t] = all.bytes[t] > s->q->machine.capacity.bytes[t] ? all.bytes[t] : 0;
    return st;
}

/* --- adapters instead --- */

/* A model that cannot be adapted so is no failure of the advice. */
static bool is_refusal(strata_status st)
{
    return st == STRATA_E_CONFIG || st == STRATA_E_INPUT || st == STRATA_E_NOSYS;
}

static strata_status try_method(struct st_instead *out, struct st_scene *s)
{
    struct st_found found = {0};
    strata_status st = st_advisor_search(&found, s, &s->q->machine, 1, 0, NULL);

    if (st == STRATA_OK)
        st = st_advisor_settle(&found, s);
    if (st == STRATA_OK && found.count > 0) {
        out->best = found.tried[found.best];
        memcpy(out->needed, found.plan->program.needed, sizeof(out->needed));
        st = st_advisor_config(&out->config, &out->best, s->q, s->method);
        out->fits = st == STRATA_OK;
    }
    st_plan_destroy(found.plan);
    return is_refusal(st) ? STRATA_OK : st;
}

/* From the one that trains the most. */
static strata_status try_methods(struct st_advice *out, struct st_scene *s)
{
    strata_status st = STRATA_OK;

    for (int m = ST_METHOD_FULL + 1; st == STRATA_OK && m < ST_METHOD_COUNT; m++) {
        s->method = (enum st_method)m;
        st = try_method(&out->instead[m], s);
    }
    s->method = ST_METHOD_FULL;
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
static void changed_machine(struct st_machine *out, const struct st_scene *s, const struct st_hardware *hardware,
                            enum st_change change)
{
    const struct st_config *config = s->smallest[0].facts.config;
    struct st_machine made;

    st_hardware_machine(&made, hardware);
    *out = s->q->machine;
    out->rates = made.rates;
    if ((change == ST_CHANGE_GPU && config->device_memory != ST_AUTO_BYTES) ||
        (change == ST_CHANGE_RAM && config->host_memory != ST_AUTO_BYTES))
        return;
    out->capacity.bytes[tier_of[change]] = made.capacity.bytes[tier_of[change]];
}

/* A card with more memory may have fewer lanes, or a slower memory. */
static bool is_nowhere_slower(const struct st_rates *a, const struct st_rates *than)
{
    return a->matmul_flops >= than->matmul_flops && a->block_flops >= than->block_flops && a->memory >= than->memory &&
           a->upload >= than->upload && a->download >= than->download;
}

/* One part more; where nothing fits, as many as it takes.  The plan of now works with more of anything, too: nothing becomes
 * slower but by a card that is slower in something. */
static strata_status try_change(struct st_changed *out, struct st_scene *s, enum st_change change, const struct st_advice *answer)
{
    const struct st_tried *now = answer->plan != NULL ? &answer->tried[answer->best] : NULL;
    const uint64_t chunk_elems = now != NULL ? answer->plan->policy.chunk_elems : 0; /* the plan's now is as good */
    struct st_hardware hardware = *s->q->hardware;
    struct st_machine machine;
    struct st_found found = {0};
    strata_status st = STRATA_OK;
    bool fits = false;

    for (uint32_t i = 0; st == STRATA_OK && !fits && i < (now != NULL ? 1 : PARTS_MOST) && take_more(&hardware, change); i++) {
        out->possible = true;
        changed_machine(&machine, s, &hardware, change);
        st = any_fits(&fits, s, &machine.capacity);
    }
    if (st != STRATA_OK || !fits ||
        (st = st_advisor_search(&found, s, &machine, now != NULL ? 1 : CHOICES, chunk_elems, now)) != STRATA_OK ||
        found.count == 0)
        goto done;
    out->fits = true;
    name_parts(out->what, sizeof(out->what), &hardware, change);
    out->best = found.tried[found.best];
    if (now != NULL && !now->lacks && !out->best.lacks && out->best.seconds > now->seconds &&
        is_nowhere_slower(&machine.rates, &s->q->machine.rates))
        out->best = *now;
done:
    st_plan_destroy(found.plan);
    return st;
}

struct changes {
    struct st_scene *scene;
    struct st_advice *advice;
};

static strata_status try_one(void *ctx, uint64_t index)
{
    struct changes *c = ctx;

    return try_change(&c->advice->changed[index], c->scene, (enum st_change)index, c->advice);
}

/* --- the answer --- */

/* Of the settings with the lowest stage the fastest, by its draft or its choice. */
static uint32_t lowest_of(const struct st_advice *a)
{
    uint32_t lowest = 0;

    for (uint32_t i = 1; i < a->tried_count; i++) {
        const struct st_tried *t = &a->tried[i], *than = &a->tried[lowest];

        if (t->tiers.stage < than->tiers.stage || (t->tiers.stage == than->tiers.stage && t->seconds < than->seconds))
            lowest = i;
    }
    return lowest;
}

/* The sequences of a step: whole ones, equally many on each rank.  E_INVAL: there is none. */
static strata_status take_batch(struct st_advice *out, struct st_scene *s)
{
    const struct st_advisor *q = s->q;
    const uint64_t of_ranks = (uint64_t)q->seq * q->ranks, most = of_ranks * STRATA_GRAD_ACCUM_MAX;
    const uint64_t usual = of_ranks > ST_ADVISOR_BATCH ? of_ranks : most < ST_ADVISOR_BATCH ? most : ST_ADVISOR_BATCH;
    const uint64_t batch = q->batch_tokens != 0 ? q->batch_tokens : usual;

    if (batch < of_ranks || batch / of_ranks > STRATA_GRAD_ACCUM_MAX)
        return st_error(STRATA_E_INVAL,
                        "plan.batch_tokens %" PRIu64 ": a step has 1 to %u sequences%s, of %u tokens each (model.seq_len)", batch,
                        STRATA_GRAD_ACCUM_MAX, q->ranks > 1 ? " on each rank" : "", q->seq);
    s->sequences = (uint32_t)(batch / of_ranks);
    out->sequences = s->sequences * q->ranks;
    if (q->batch_tokens % of_ranks != 0)
        st_log(ST_LOG_NOTICE, "plan.batch_tokens %" PRIu64 ": a step has whole sequences%s, %u of %u tokens each (model.seq_len)",
               batch, q->ranks > 1 ? ", equally many on each rank" : "", out->sequences, q->seq);
    return STRATA_OK;
}

static void note_budgets(struct st_advice *out, const struct st_config *config)
{
    out->given[STRATA_TIER_DEVICE] = config->device_memory != ST_AUTO_BYTES;
    out->given[STRATA_TIER_HOST] = config->host_memory != ST_AUTO_BYTES;
}

static strata_status answer(struct st_advice *out, struct st_scene *s)
{
    struct st_found found = {0};
    strata_status st = take_batch(out, s);

    if (st != STRATA_OK || (st = open_smallest(s)) != STRATA_OK)
        goto done;
    note_budgets(out, s->smallest[0].facts.config);
    if ((st = st_advisor_search(&found, s, &s->q->machine, CHOICES, 0, NULL)) != STRATA_OK ||
        (st = st_advisor_settle(&found, s)) != STRATA_OK)
        goto done;
    memcpy(out->tried, found.tried, sizeof(out->tried));
    out->tried_count = found.count;
    out->best = found.best;
    out->lowest = lowest_of(out);
    if (found.count > 0) {
        out->plan = found.plan;
        found.plan = NULL;
        st = st_advisor_config(&out->config, &out->tried[out->best], s->q, s->method);
    } else if ((st = find_least(out, s)) == STRATA_OK) {
        st = try_methods(out, s);
    }
    if (st == STRATA_OK && s->q->hardware != NULL && s->q->ranks == 1)
        st = st_workers_once(try_one, &(struct changes){s, out}, ST_CHANGE_COUNT);
done:
    st_plan_destroy(found.plan);
    return st;
}

strata_status st_advisor_ask(struct st_advice *out, const struct st_advisor *q)
{
    struct st_scene s = {.q = q};
    strata_status st;

    st_advisor_tiers(&s);
    snprintf(out->machine, sizeof(out->machine), "%s", q->machine.name);
    out->seq = q->seq;
    out->ranks = q->ranks;
    out->fp16 = q->machine.capacity.lacks_bf16;
    memcpy(out->capacity, q->machine.capacity.bytes, sizeof(out->capacity));
    out->named = q->hardware != NULL;
    if (out->named)
        out->hardware = *q->hardware;
    pthread_mutex_init(&s.lock, NULL);
    st = answer(out, &s);
    pthread_mutex_destroy(&s.lock);
    for (uint32_t i = 0; i < ST_TIERS_MAX; i++)
        st_advisor_close(&s.smallest[i], &s);
    if (st != STRATA_OK)
        st_advice_free(out);
    return st;
}

void st_advice_free(struct st_advice *answer)
{
    st_plan_destroy(answer->plan);
    free(answer->config);
    for (int m = 0; m < ST_METHOD_COUNT; m++)
        free(answer->instead[m].config);
    *answer = (struct st_advice){0};
}

bool st_advice_adapters_fit(const struct st_advice *advice)
{
    return advice->instead[ST_METHOD_LORA].fits || advice->instead[ST_METHOD_LORA_NF4].fits;
}
