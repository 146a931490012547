/* rig.c - see rig.h. */
#include "rig.h"

#include "core/error.h"
#include "core/rng.h"

#include <stdio.h>
#include <string.h>

#define RIG_SEQ   16u
#define RIG_MICRO 2u
#define RIG_VOCAB 8500u
#define AMPLE     (1ull << 40)

void rig_model_config(struct st_model_config *out)
{
    *out = (struct st_model_config){.name = "rig",
                                    .blocks = 3,
                                    .hidden = 32,
                                    .heads = 2,
                                    .ffn = 128,
                                    .vocab = RIG_VOCAB,
                                    .context = RIG_SEQ,
                                    .norm_eps = 1e-5f};
}

static double clip_threshold(enum rig_clip clip)
{
    /* Norms of the first steps of this model lie around 1 to 2. */
    return clip == RIG_CLIP_NEVER ? 1e6 : clip == RIG_CLIP_ALWAYS ? 1e-3 : 1.15;
}

void rig_config(struct st_config *out, const struct rig_cell *cell, const char *nvme_dir)
{
    memset(out, 0, sizeof(*out));
    out->micro_batch = RIG_MICRO;
    out->grad_accum = cell->grad_accum;
    out->train_batch = RIG_MICRO * cell->grad_accum;
    out->dtype = cell->dtype;
    out->gradient_clipping = clip_threshold(cell->clip);
    out->check_grad_overflow = true;
    out->optimizer = ST_OPTIMIZER_ADAMW;
    out->lr = 1e-2;
    out->beta1 = 0.9;
    out->beta2 = 0.95;
    out->eps = 1e-8;
    out->weight_decay = 0.1;
    out->bias_correction = true;
    out->lr_type = ST_LR_CONSTANT;
    out->optimizer_tier = cell->optimizer;
    out->param_tier = cell->param;
    out->activations = cell->activations;
    out->activation_tier = STRATA_TIER_COUNT;
    out->update = cell->update;
    out->cache = cell->cache;
    out->chunk_size = cell->chunk_elems != 0 ? cell->chunk_elems : 16384;
    out->block_bytes = 65536;
    out->queue_depth = 8;
    out->threads = cell->threads;
    snprintf(out->io_method, sizeof(out->io_method), "%s", cell->io_method);
    snprintf(out->isa, sizeof(out->isa), "%s", cell->isa);
    snprintf(out->nvme_dirs[0], sizeof(out->nvme_dirs[0]), "%s", nvme_dir);
    out->nvme_dir_count = 1;
}

strata_status rig_model(struct st_model **out, const struct rig_cell *cell)
{
    const struct st_model_batch batch = {
        .micro_batch = RIG_MICRO, .seq = RIG_SEQ, .grad_accum = cell->grad_accum, .dtype = cell->dtype, .workers = cell->threads};
    struct st_model_config config;

    rig_model_config(&config);
    return st_model_create(out, &config, &batch);
}

static strata_status plan_with(struct st_plan **out, const struct st_model *model, const struct rig_cell *cell, uint64_t device,
                               uint64_t host)
{
    const struct st_machine machine = {
        .name = "rig", .capacity = {device, host, AMPLE}, .workers = cell->threads, .device_is_host = true};
    struct st_policy policy;
    struct st_config config;

    rig_config(&config, cell, "");
    st_policy_from_config(&policy, &config);
    *out = NULL;
    return st_plan_make(out, st_model_workload(model), &machine, &policy);
}

static bool plans(const struct st_model *model, const struct rig_cell *cell, uint64_t device, uint64_t host)
{
    struct st_plan *plan;
    const strata_status st = plan_with(&plan, model, cell, device, host);

    st_plan_destroy(plan);
    return st == STRATA_OK;
}

/* Least capacity of one tier with which the cell still plans. */
static uint64_t least(const struct st_model *model, const struct rig_cell *cell, bool of_host, uint64_t device)
{
    uint64_t low = 0, high = 1ull << 32; /* high plans */

    while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;

        if (of_host ? plans(model, cell, device, middle) : plans(model, cell, middle, AMPLE))
            high = middle;
        else
            low = middle;
    }
    return high;
}

/* What a run needs with everything on the device, and the least the tier-none part of it could do with. */
static uint64_t device_budget(const struct st_model *model, const struct rig_cell *cell)
{
    struct rig_cell paged = *cell;
    struct st_plan *plan;
    uint64_t smallest, most;

    if (cell->device == RIG_ALL)
        return AMPLE;
    /* The smallest device is that of a run whose weights and state may leave it; a config that keeps them cannot use it. */
    paged.optimizer = STRATA_TIER_NVME;
    paged.param = STRATA_TIER_NVME;
    smallest = least(model, &paged, false, 0);
    if (cell->device == RIG_SMALLEST)
        return smallest;
    paged.optimizer = paged.param = STRATA_TIER_DEVICE;
    if (plan_with(&plan, model, &paged, AMPLE, AMPLE) != STRATA_OK) {
        st_plan_destroy(plan);
        return AMPLE;
    }
    most = plan->needed[STRATA_TIER_DEVICE];
    st_plan_destroy(plan);
    return smallest + (most - smallest) / 2;
}

strata_status rig_plan(struct st_plan **out, const struct st_model *model, const struct rig_cell *cell)
{
    const uint64_t device = device_budget(model, cell);
    uint64_t host = AMPLE;

    if (cell->host == RIG_SMALLEST && plans(model, cell, device, AMPLE))
        host = least(model, cell, true, device);
    return plan_with(out, model, cell, device, host);
}

static void make_tokens(uint32_t step, uint32_t count, int32_t *tokens, int32_t *targets)
{
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t a = st_rng_u64(7, 1, (uint64_t)step * 100000 + i), b = st_rng_u64(7, 2, (uint64_t)step * 100000 + i);

        /* Skewed, so that tokens repeat inside a batch; the last target of a row is left out now and then. */
        tokens[i] = (int32_t)(a % 5 == 0 ? a / 7 % RIG_VOCAB : a / 7 % 40 * 211);
        targets[i] = b % 23 == 0 ? -1 : (int32_t)(b / 23 % RIG_VOCAB);
    }
}

static void add_traffic(struct st_traffic *to, const struct st_traffic *from)
{
    to->upload += from->upload;
    to->download += from->download;
    to->read += from->read;
    to->write += from->write;
}

static void plan_traffic(struct rig_result *out, const struct st_plan *plan, enum st_phase phase)
{
    add_traffic(&out->planned_bytes, &plan->traffic[st_phase_index(phase)]);
}

static strata_status flush_and_eval(struct rig_result *out, struct st_engine *eng, const struct st_plan *plan,
                                    const int32_t *tokens, const int32_t *targets)
{
    double sum;
    uint64_t seen;

    if (plan->policy.update == ST_UPDATE_GATED)
        plan_traffic(out, plan, ST_PHASE_EPILOGUE);
    plan_traffic(out, plan, ST_PHASE_EVAL);
    return st_engine_eval(eng, tokens, targets, &sum, &seen);
}

static strata_status steps_of(struct rig_result *out, struct st_engine *eng, const struct st_plan *plan,
                              const struct rig_cell *cell, uint32_t steps)
{
    const uint32_t count = RIG_MICRO * RIG_SEQ * cell->grad_accum;
    int32_t tokens[RIG_MICRO * RIG_SEQ * 8], targets[RIG_MICRO * RIG_SEQ * 8];
    const bool gated = plan->policy.update == ST_UPDATE_GATED;
    bool pending = false;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < steps && st == STRATA_OK; i++) {
        struct st_step_result result;

        make_tokens(i, count, tokens, targets);
        plan_traffic(out, plan, gated && !pending ? ST_PHASE_PROLOGUE : ST_PHASE_BODY);
        pending = gated;
        st = st_engine_step(eng, tokens, targets, &result);
        if (st != STRATA_OK)
            return st;
        out->losses[i] = result.loss;
        out->norms[i] = result.grad_norm;
        out->clipped += result.grad_norm > clip_threshold(cell->clip);
        if (cell->flush_after == i + 1) {
            st = flush_and_eval(out, eng, plan, tokens, targets);
            pending = false;
        }
    }
    if (st == STRATA_OK && pending)
        plan_traffic(out, plan, ST_PHASE_EPILOGUE);
    return st == STRATA_OK ? st_engine_flush(eng, NULL) : st;
}

strata_status rig_train(struct rig_result *out, struct st_model *model, const struct st_plan *plan, const struct rig_cell *cell,
                        uint32_t steps, const char *nvme_dir)
{
    struct st_model_init init = {.model = model, .seed = 42};
    const struct st_weight_source source = st_model_init_source(&init);
    struct st_engine_opts opts = {.plan = plan,
                                  .compute = st_model_compute(model),
                                  .fake_seed = 99,
                                  .fake_latency_us = cell->fake_latency_us != 0 ? cell->fake_latency_us : 200};
    struct st_engine *eng = NULL;
    struct st_engine_info info;
    struct st_config config;
    strata_status st;

    memset(out, 0, sizeof(*out));
    out->planned = true;
    rig_config(&config, cell, nvme_dir);
    opts.config = &config;
    if ((st = st_engine_create(&eng, &opts)) != STRATA_OK)
        return st;
    st = st_engine_load(eng, source.read, source.ctx);
    if (st == STRATA_OK)
        st = steps_of(out, eng, plan, cell, steps);
    if (st == STRATA_OK) {
        st_engine_info(eng, &info);
        out->moved_bytes = info.moved;
        st = st_engine_digest(eng, out->weights, out->state);
    }
    st_engine_destroy(eng);
    return st;
}

strata_status rig_run(struct rig_result *out, const struct rig_cell *cell, uint32_t steps, const char *nvme_dir)
{
    struct st_model *model = NULL;
    struct st_plan *plan = NULL;
    strata_status st = rig_model(&model, cell);

    memset(out, 0, sizeof(*out));
    if (st == STRATA_OK) {
        st = rig_plan(&plan, model, cell);
        if (st == STRATA_OK)
            st = st_plan_verify(plan);
        if (st == STRATA_OK)
            st = rig_train(out, model, plan, cell, steps, nvme_dir);
        else if (st == STRATA_E_NOFIT)
            st = STRATA_OK;
    }
    st_plan_destroy(plan);
    st_model_destroy(model);
    return st;
}

const char *rig_cell_text(char buf[256], const struct rig_cell *c)
{
    static const char *const budgets[] = {"all", "smallest", "midway"}, *const tiers[] = {"none", "cpu", "nvme"};
    static const char *const clips[] = {"never", "sometimes", "always"};

    snprintf(buf, 256,
             "device=%s host=%s optimizer=%s param=%s update=%s g=%u act=%s io=%s isa=%s threads=%u clip=%s %s cache=%s flush=%u",
             budgets[c->device], budgets[c->host], tiers[c->optimizer], tiers[c->param],
             c->update == ST_UPDATE_SERIAL ? "serial" : "gated", c->grad_accum,
             c->activations == ST_ACT_KEPT         ? "kept"
             : c->activations == ST_ACT_RECOMPUTED ? "recomputed"
                                                   : "auto",
             c->io_method, c->isa, c->threads, clips[c->clip], c->dtype == STRATA_BF16 ? "bf16" : "fp32",
             c->cache == 0 ? "0" : "auto", c->flush_after);
    return buf;
}
