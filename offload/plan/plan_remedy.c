/* plan_remedy.c - finds what would make a run fit, and tries it with the planner's own sizes before advising it.
 *
 * It tries slower tiers for state and weights (for the device's sake first without the disk), then recomputing activations that
 * are kept, then slower tiers for activation checkpoints, too, then a batch of one token.  A disk counts as large enough; the
 * advice says how much it must hold.  Where it is the disk that lacks, fewer checkpoints are tried. */
#include "offload/plan/plan_internal.h"

#include "core/base/error.h"
#include "core/base/size.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define LEAST_BYTES 256u /* least size of a buffer that depends on the batch, for a batch of one token */

struct text {
    char *at;
    size_t bytes, used;
};

__attribute__((format(printf, 2, 3))) static void put(struct text *t, const char *fmt, ...)
{
    va_list args;
    int length;

    va_start(args, fmt);
    length = vsnprintf(t->at + t->used, t->bytes - t->used, fmt, args);
    va_end(args);
    if (length > 0)
        t->used += (size_t)length < t->bytes - t->used ? (size_t)length : t->bytes - t->used - 1;
}

/* The plan with other tiers.  It shares the plan's arrays, since sizing does not write to them. */
static bool try_tiers(struct st_plan *trial, const struct st_plan *plan, strata_tier optimizer, strata_tier param,
                      enum st_activation_mode activations)
{
    *trial = *plan;
    trial->policy.optimizer_tier = optimizer;
    trial->policy.param_tier = param;
    trial->policy.activations = activations;
    if (plan->capacity.unified && (optimizer == STRATA_TIER_HOST || param == STRATA_TIER_HOST))
        return false; /* its plan is refused */
    trial->capacity.bytes[STRATA_TIER_NVME] = UINT64_MAX;
    return st_plan_smallest_fits(trial);
}

/* Slower tiers up to `slowest`: state first, since it is the larger part and used once a step. */
static bool try_slower(struct st_plan *trial, const struct st_plan *plan, strata_tier slowest,
                       enum st_activation_mode activations)
{
    const struct st_policy *now = &plan->policy;
    const strata_tier state_last = now->forward_only ? now->optimizer_tier : slowest;

    for (strata_tier param = now->param_tier; param <= STRATA_TIER_NVME && (param <= slowest || param == now->param_tier);
         param++)
        for (strata_tier state = now->optimizer_tier; state == now->optimizer_tier || state <= state_last; state++)
            if (try_tiers(trial, plan, state, param, activations))
                return true;
    return false;
}

static bool find_placement(struct st_plan *trial, const struct st_plan *plan, strata_tier lacking)
{
    const enum st_activation_mode asked = plan->policy.activations;

    return (lacking == STRATA_TIER_DEVICE && try_slower(trial, plan, STRATA_TIER_HOST, asked)) ||
           try_slower(trial, plan, STRATA_TIER_NVME, asked) ||
           (asked == ST_ACT_KEPT && !plan->policy.forward_only && try_slower(trial, plan, STRATA_TIER_NVME, ST_ACT_RECOMPUTED));
}

/* The slowest tier that activation checkpoints may take; "auto" is host. */
static strata_tier slowest_activations(const struct st_plan *plan)
{
    return plan->policy.activation_tier == STRATA_TIER_COUNT ? STRATA_TIER_HOST : plan->policy.activation_tier;
}

static bool find(struct st_plan *trial, const struct st_plan *plan, strata_tier lacking)
{
    struct st_plan other = *plan;

    if (find_placement(trial, plan, lacking))
        return true;
    for (int tier = (int)slowest_activations(plan) + 1; tier <= STRATA_TIER_NVME && !plan->policy.forward_only; tier++) {
        other.policy.activation_tier = (strata_tier)tier;
        if (find_placement(trial, &other, lacking))
            return true;
    }
    return false;
}

static bool is_on_nvme(const struct st_plan *plan)
{
    return plan->policy.param_tier == STRATA_TIER_NVME || plan->policy.optimizer_tier == STRATA_TIER_NVME ||
           plan->decided.activation_tier == STRATA_TIER_NVME;
}

/* Without a tier on NVMe the disk is that of the checkpoints: what is known of it says nothing of the other. */
static const char *disk_key(const struct st_plan *plan)
{
    return plan->policy.sets > 0 && !is_on_nvme(plan) ? "strata.save" : "strata.nvme";
}

static void put_found(struct text *t, const struct st_plan *trial, const struct st_plan *plan)
{
    static const char *const devices[STRATA_TIER_COUNT] = {"none", "cpu", "nvme"};
    const struct st_policy *then = &trial->policy, *now = &plan->policy;
    static const char *const tiers[STRATA_TIER_COUNT] = {"device", "host", "nvme"};
    const char *separator = "set ";
    const char *disk, *lead;
    uint64_t needed[STRATA_TIER_COUNT];
    char size[24];

    if (then->optimizer_tier != now->optimizer_tier) {
        put(t, "%szero_optimization.offload_optimizer.device to \"%s\"", separator, devices[then->optimizer_tier]);
        separator = " and ";
    }
    if (then->param_tier != now->param_tier) {
        put(t, "%szero_optimization.offload_param.device to \"%s\"%s", separator, devices[then->param_tier],
            now->ranks > 1 && now->stage == 0 ? "" : " (stage 3)"); /* of ranks that share nothing other sizes were tried */
        separator = " and ";
    }
    if (then->activations != now->activations) {
        put(t, "%sstrata.activations to \"recomputed\"", separator);
        separator = " and ";
    }
    if (then->activation_tier != now->activation_tier)
        put(t, "%sstrata.activation_tier to \"%s\"", separator, tiers[then->activation_tier]);
    st_plan_size(trial, needed); /* gradients that have room in host memory need no disk */
    disk = disk_key(trial);
    lead = t->used > 0 ? ", with" : "give"; /* the settings may stay: a larger disk takes what host memory lacks room for */
    if (needed[STRATA_TIER_NVME] > plan->capacity.bytes[STRATA_TIER_NVME] || strcmp(disk, disk_key(plan)) != 0)
        put(t, "%s %s DIR %s %s of disk there%s", lead, disk, t->used > 0 ? "and" : "with",
            st_size_text(size, needed[STRATA_TIER_NVME]), now->ranks > 1 ? " for each rank" : "");
    else if (is_on_nvme(trial) && !is_on_nvme(plan))
        put(t, "%s %s DIR", lead, disk); /* a machine file says what the disk holds, and not where it is */
}

/* Whether fewer tokens at a time could help: not if even one token does not fit. */
static bool smaller_batch_fits(const struct st_plan *trial)
{
    struct st_plan least = *trial;
    struct st_workload *w = &least.program.workload;
    bool fits = false;

    if (st_workload_copy(w, &trial->program.workload) != STRATA_OK)
        return false;
    w->micro_batch = w->seq = w->grad_accum = 1;
    w->workspace_bytes = LEAST_BYTES;
    for (uint32_t l = 0; l < w->layer_count; l++) {
        w->layers[l].boundary_bytes = l + 1 < w->layer_count ? LEAST_BYTES : 0;
        w->layers[l].internal_bytes = LEAST_BYTES;
    }
    if (st_plan_sums_make(&least) == STRATA_OK)
        fits = st_plan_smallest_fits(&least);
    st_plan_sums_free(least.sums);
    st_workload_fini(w);
    return fits;
}

/* Says what the most frugal trial still lacks, of device and host, and why. */
static void put_lacking(struct text *t, const struct st_plan *trial, const struct st_plan *plan)
{
    const uint64_t *needed = trial->minimum, *have = plan->capacity.bytes;
    const bool device = needed[STRATA_TIER_DEVICE] > have[STRATA_TIER_DEVICE];
    const bool host = needed[STRATA_TIER_HOST] > have[STRATA_TIER_HOST];
    char device_text[24], host_text[24];

    if (trial->policy.param_tier != plan->policy.param_tier || trial->policy.optimizer_tier != plan->policy.optimizer_tier) {
        put(t, "even with %s on nvme",
            plan->policy.forward_only                                       ? "the weights"
            : trial->policy.activation_tier != plan->policy.activation_tier ? "state, weights and activation checkpoints"
                                                                            : "state and weights");
        if (device)
            put(t, " the device needs %s", st_size_text(device_text, needed[STRATA_TIER_DEVICE]));
        if (host)
            put(t, "%s the host needs %s", device ? " and" : "", st_size_text(host_text, needed[STRATA_TIER_HOST]));
        put(t, "; ");
    }
}

static bool trains_all(const struct st_workload *w)
{
    uint64_t params = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        params += w->pages[p].params;
    return w->params == params;
}

/* What the caller holds itself, where less of it would do. */
static void put_caller(struct text *t, const struct st_plan *plan, strata_tier tier)
{
    const uint64_t held = plan->policy.caller_bytes[tier], needed = plan->program.needed[tier];
    char size[24];

    if (held > 0 && needed <= plan->capacity.bytes[tier] + held)
        put(t, ", or lower caller_%s_bytes, which is %s", tier == STRATA_TIER_HOST ? "host" : "device", st_size_text(size, held));
}

/* The advice if nothing that was tried fits. */
static void put_least(struct text *t, struct st_plan *trial, const struct st_plan *plan, strata_tier tier)
{
    const bool host = trial->minimum[STRATA_TIER_HOST] > plan->capacity.bytes[STRATA_TIER_HOST];

    put_lacking(t, trial, plan);
    put(t, "raise strata.%s_memory", tier == STRATA_TIER_HOST ? "host" : "device");
    if (host && tier != STRATA_TIER_HOST)
        put(t, " or strata.host_memory");
    put_caller(t, plan, tier);
    if (st_program_called(&plan->program)) {
        put(t, smaller_batch_fits(trial) ? ", or lower boundary_bytes of its layers" : "");
        return;
    }
    if (smaller_batch_fits(trial))
        put(t, plan->program.workload.generate ? ", or lower model.max_tokens (of a conversation: model.cache_tokens)"
                                               : ", or lower the micro-batch or model.seq_len");
    if (!plan->policy.forward_only && trains_all(&plan->program.workload))
        put(t, ", or train adapters (strata.lora)");
}

static void put_keep(struct text *t, uint32_t keep, uint32_t best)
{
    put(t, "strata.keep %u", keep);
    if (best > 0)
        put(t, " and strata.keep_best %u", best);
}

/* First of the newest, of which one stays. */
static void put_fewer(struct text *t, const struct st_policy *policy, uint32_t fewer)
{
    const uint32_t newest = fewer < policy->keep ? fewer : policy->keep - 1;

    put_keep(t, policy->keep - newest, policy->keep_best - (fewer - newest));
    put(t, " fits; or ");
}

/* For a run that keeps checkpoints: says what they take, and keeps fewer. */
static void put_fewer_sets(struct text *t, const struct st_plan *plan)
{
    const uint32_t asked = plan->policy.sets;
    struct st_plan trial = *plan;
    char size[24];

    if (asked == 0)
        return;
    put_keep(t, plan->policy.keep, plan->policy.keep_best);
    put(t, " takes %u sets of %s: ", asked, st_size_text(size, plan->sums->set_bytes));
    while (trial.policy.sets > st_sets_of_keep(1)) {
        trial.policy.sets--;
        if (!st_plan_smallest_fits(&trial))
            continue;
        put_fewer(t, &plan->policy, asked - trial.policy.sets);
        return;
    }
    if (asked > st_sets_of_keep(1))
        put(t, "strata.keep 1 does not fit either; ");
}

/* Names, of several directories, the one that limits all, since each takes its part. */
static void put_disk(struct text *t, const struct st_plan *plan)
{
    const struct st_capacity *have = &plan->capacity;
    const char *key = disk_key(plan);

    if (have->nvme_tightest[0] != '\0')
        put(t, "free disk space in %s, or name another directory with %s", have->nvme_tightest, key);
    else if (have->bytes[STRATA_TIER_NVME] == 0 && plan->policy.sets == 0)
        put(t, "give a directory with %s DIR", key);
    else if (have->bytes[STRATA_TIER_NVME] == 0)
        put(t, "free disk space where %s is, or give the machine of a plan a drive (machine.drives 2TB, nvme_bytes)", key);
    else
        put(t, "free disk space or name another directory with %s", key);
}

/* Ranks that share too little: the lowest stage with which these tiers fit, as each has sizes of its own.  1 and 2 are one
 * program. */
static bool put_stage(struct text *t, const struct st_plan *plan)
{
    static const uint32_t stages[] = {1, 3};
    struct st_policy policy = plan->policy;
    bool fits = false;

    for (size_t i = 0; i < sizeof(stages) / sizeof(stages[0]) && !fits; i++) {
        policy.stage = stages[i];
        if (plan->policy.forward_only || plan->policy.ranks == 1 || policy.stage <= plan->policy.stage)
            continue;
        if (st_plan_fits(&fits, &plan->program.workload, &plan->capacity, &policy) == STRATA_OK && fits)
            put(t, "set zero_optimization.stage to %u", policy.stage);
    }
    return fits;
}

static void put_raise(struct text *t, const struct st_plan *plan, strata_tier tier)
{
    put(t, "%sraise strata.%s_memory", t->used > 0 ? ", or " : "", tier == STRATA_TIER_HOST ? "host" : "device");
    put_caller(t, plan, tier);
}

/* What to change where bytes of `tier` are lacking, as text.  The settings that it names have been tried, and fit. */
static void write_remedy(char *buf, size_t bytes, const struct st_plan *plan, strata_tier tier)
{
    struct text t = {.at = buf, .bytes = bytes};
    struct st_plan trial;

    buf[0] = '\0';
    if (tier == STRATA_TIER_NVME) {
        put_fewer_sets(&t, plan);
        put_disk(&t, plan);
        return;
    }
    if (put_stage(&t, plan)) {
        put_raise(&t, plan, tier);
        return;
    }
    if (!find(&trial, plan, tier)) {
        put_least(&t, &trial, plan, tier); /* the last one tried is the most frugal */
        return;
    }
    put_found(&t, &trial, plan);
    put_raise(&t, plan, tier);
}

static const char *const tier_keys[STRATA_TIER_COUNT] = {"strata.device_memory", "strata.host_memory", "strata.nvme"};

strata_status st_plan_advise(const struct st_plan *plan, strata_status st)
{
    char remedy[256 + ST_MACHINE_PATH_MAX];

    if (st != STRATA_E_NOFIT)
        return st;
    for (strata_tier t = STRATA_TIER_DEVICE; t < STRATA_TIER_COUNT; t++) {
        if (plan->program.needed[t] <= plan->capacity.bytes[t])
            continue;
        write_remedy(remedy, sizeof(remedy), plan, t);
        return st_error_remedy(st, tier_keys[t], "%s", remedy);
    }
    return st;
}
