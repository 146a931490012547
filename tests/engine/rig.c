/* rig.c - see rig.h. */
#include "rig.h"

#include "core/base/error.h"
#include "core/base/rng.h"
#include "model/adapter/adapter.h"
#include "offload/comm/comm.h"
#include "offload/device/op_times.h"
#include "tests/common/shape.h"
#include "tests/engine/cut_alike.h"

#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define RIG_SEQ       16u
#define RIG_MICRO     2u
#define RIG_RANKS_MAX 8u
#define RIG_VOCAB     8500u
#define AMPLE         (1ull << 40)

struct rig_cell rig_swapped(void)
{
    return (struct rig_cell){.device = RIG_SMALLEST,
                             .host = RIG_SMALLEST,
                             .optimizer = STRATA_TIER_NVME,
                             .param = STRATA_TIER_NVME,
                             .update = ST_UPDATE_GATED,
                             .grad_accum = 1,
                             .activations = ST_ACT_RECOMPUTED,
                             .act_tier = STRATA_TIER_COUNT,
                             .io_method = "fake",
                             .isa = "auto",
                             .threads = 2,
                             .clip = RIG_CLIP_SOMETIMES,
                             .dtype = STRATA_BF16};
}

void rig_model_config(struct st_model_config *out, const struct rig_cell *cell)
{
    struct st_model_config c = {.name = "rig",
                                .blocks = 3,
                                .hidden = 32,
                                .heads = 2,
                                .ffn = cell->ffn != 0 ? cell->ffn : 512, /* a block is a few tiles, the last one short */
                                .vocab = RIG_VOCAB,
                                .context = RIG_SEQ,
                                .norm_eps = 1e-5f};

    if (cell->llama) {
        c.family = ST_FAMILY_LLAMA;
        c.norm = ST_NORM_RMSNORM;
        c.activation = ST_ACTIVATION_SWIGLU;
        c.positions = ST_POSITION_ROTARY;
        c.biases = ST_BIAS_QKV;
        c.heads = 4;
        c.kv_heads = 2;
        c.rope_base = 10000;
        c.out_in = true;
        c.untied = true;
    }
    if (cell->sparse) {
        c = (struct st_model_config){.name = "rig",
                                     .family = ST_FAMILY_QWEN3_MOE,
                                     .blocks = 3,
                                     .hidden = 32,
                                     .heads = 4,
                                     .kv_heads = 2,
                                     .ffn = 96,
                                     .vocab = RIG_VOCAB,
                                     .context = RIG_SEQ,
                                     .norm_eps = 1e-5f,
                                     .norm = ST_NORM_RMSNORM,
                                     .qk_norm = ST_QK_NORM_HEAD,
                                     .biases = ST_BIAS_NONE,
                                     .activation = ST_ACTIVATION_SWIGLU,
                                     .positions = ST_POSITION_ROTARY,
                                     .rope_base = 10000,
                                     .out_in = true,
                                     .untied = true,
                                     .sparse = {6},
                                     .experts = 6,
                                     .experts_chosen = 2,
                                     .expert_ffn = 96,
                                     .experts_divided = true};
    }
    if (cell->fused) {
        c.family = ST_FAMILY_GPT_OSS;
        c.qk_norm = ST_QK_NORM_NONE;
        c.biases = ST_BIAS_ATTENTION;
        c.window = 5;
        c.sliding[0] = 5;
        c.sparse[0] = 7;
        c.gate_alpha = 1.702f;
        c.gate_limit = 0.5f;
    }
    *out = c;
}

/* Between the norms of a run's steps: about 2.8 to 1.1 for GPT-2 with one micro-batch, 1.9 to 1.6 for Llama with one. */
static double clip_threshold(const struct rig_cell *cell)
{
    if (cell->clip == RIG_CLIP_NEVER)
        return 1e6;
    if (cell->clip == RIG_CLIP_ALWAYS)
        return 1e-3;
    return !cell->llama ? 1.15 : cell->grad_accum == 1 && cell->ranks <= 1 ? 1.75 : 0.7;
}

void rig_config(struct st_config *out, const struct rig_cell *cell, const char *nvme_dir)
{
    memset(out, 0, sizeof(*out));
    out->micro_batch = RIG_MICRO;
    out->grad_accum = cell->grad_accum;
    out->train_batch = RIG_MICRO * cell->grad_accum;
    out->dtype = cell->dtype;
    out->gradient_clipping = clip_threshold(cell);
    out->check_grad_overflow = true;
    if (cell->update ==
        ST_UPDATE_IN_BACKWARD) { /* knows neither the norm nor a reason to skip: same bits as a clip that never bites */
        out->gradient_clipping = 0;
        out->check_grad_overflow = false;
    }
    out->scaling.initial_power = 20; /* fp16: the first steps overflow */
    out->scaling.window = 2;
    out->scaling.hysteresis = 1;
    out->scaling.min_scale = 1;
    out->optimizer.type = cell->rule;
    out->optimizer.momentum = 0.9;
    out->optimizer.nesterov = true;
    out->moments = cell->moments;
    out->update_ratio = 1 - 0.5 * cell->streamed;
    out->optimizer.lr = cell->lr != 0 ? cell->lr : 1e-2;
    out->optimizer.beta1 = 0.9;
    out->optimizer.beta2 = 0.95;
    out->optimizer.eps = 1e-8;
    out->optimizer.weight_decay = 0.1;
    out->optimizer.bias_correction = true;
    out->schedule.type = ST_LR_CONSTANT;
    out->optimizer_tier = cell->optimizer;
    out->param_tier = cell->param;
    out->activations = cell->activations;
    out->activation_tier = cell->act_tier;
    out->accumulation = cell->accumulation;
    out->wire = cell->wire;
    out->leaves = cell->leaves;
    out->update = cell->update;
    out->cache = cell->cache;
    out->chunk_size = cell->chunk_elems != 0 ? cell->chunk_elems : ST_TILE_ELEMS;
    out->block_bytes = 65536;
    out->queue_depth = 8;
    out->threads = cell->threads;
    snprintf(out->io_method, sizeof(out->io_method), "%s", cell->io_method);
    snprintf(out->isa, sizeof(out->isa), "%s", cell->isa);
    snprintf(out->nvme_dirs[0], sizeof(out->nvme_dirs[0]), "%s", nvme_dir);
    for (uint32_t i = 0; i < cell->dir_count; i++)
        snprintf(out->nvme_dirs[i], sizeof(out->nvme_dirs[i]), "%.400s/drive-%u", nvme_dir, i);
    out->nvme_dir_count = cell->dir_count > 0 ? cell->dir_count : 1;
}

/* Two of three blocks, so that blocks differ, with a norm that is trained in the model's format beside fp32; or all that can be,
 * with dropout. */
static strata_status adapter_spec(struct st_adapter_spec **out, const struct rig_cell *cell)
{
    static const char *const specs[2][3] = {
        {"{\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"c_attn\", \"c_proj\"], \"layers_to_transform\": [0, 2], "
         "\"modules_to_save\": [\"ln_1\"]}",
         "{\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"q_proj\", \"v_proj\", \"down_proj\"], "
         "\"layers_to_transform\": [0, 2], \"modules_to_save\": [\"input_layernorm\"]}",
         "{\"r\": 3, \"lora_alpha\": 6, \"target_modules\": [\"q_proj\", \"v_proj\"], \"layers_to_transform\": [0, 2], "
         "\"modules_to_save\": [\"input_layernorm\"], \"target_parameters\": [\"experts.gate_up_proj\", "
         "\"2.mlp.experts.down_proj\"]}"},
        {"{\"r\": 4, \"lora_alpha\": 4, \"target_modules\": \"all-linear\", \"lora_dropout\": 0.25}",
         "{\"r\": 4, \"lora_alpha\": 4, \"target_modules\": \"all-linear\", \"lora_dropout\": 0.25}",
         "{\"r\": 4, \"lora_alpha\": 4, \"target_modules\": \"all-linear\", \"lora_dropout\": 0.25}"},
    };
    const char *text = specs[cell->adapters == RIG_LORA_NF4][cell->sparse ? 2 : cell->llama];

    *out = NULL;
    return cell->adapters == RIG_NO_ADAPTERS ? STRATA_OK : st_adapter_spec_parse(out, text, strlen(text), "rig");
}

strata_status rig_model(struct st_model **out, const struct rig_cell *cell)
{
    char freeze[1][128] = {""};
    struct st_model_batch batch = {.micro_batch = RIG_MICRO,
                                   .seq = RIG_SEQ,
                                   .grad_accum = cell->grad_accum,
                                   .dtype = cell->dtype,
                                   .freeze = freeze,
                                   .freeze_count = cell->freeze != NULL ? 1 : 0,
                                   .workers = cell->threads,
                                   .nf4 = cell->adapters == RIG_LORA_NF4,
                                   .slice_elems = cell->slice_elems,
                                   .aux_loss_coef = cell->aux_loss_coef,
                                   .ops = cell->cuda ? st_device_find("cuda")->tensors : NULL};
    struct st_adapter_spec *spec;
    struct st_model_config config;
    strata_status st;

    if (cell->freeze != NULL)
        snprintf(freeze[0], sizeof(freeze[0]), "%s", cell->freeze);
    rig_model_config(&config, cell);
    *out = NULL;
    st = adapter_spec(&spec, cell);
    batch.adapter = spec;
    if (st == STRATA_OK)
        st = st_model_create(out, &config, &batch);
    st_adapter_spec_destroy(spec);
    return st;
}

/* What a plan is made from, beside the workload. */
static void plan_inputs(struct st_capacity *capacity, struct st_policy *policy, const struct rig_cell *cell, uint64_t device,
                        uint64_t host)
{
    struct st_config config;

    *capacity = (struct st_capacity){.bytes = {device, host, AMPLE}, .workers = cell->threads, .device_is_host = true};
    rig_config(&config, cell, "");
    st_config_policy(policy, &config);
    policy->sets = cell->sets;
    policy->early = cell->early;
    policy->part_bytes = cell->part_bytes;
    policy->ranks = cell->ranks;
    policy->rank = cell->rank;
    policy->stage = cell->stage;
}

/* Slices of experts, the last one smaller, behind the page of a block: made up, since only the paced device has them. */
static bool add_experts(struct st_workload *out, const struct st_workload *w, uint32_t experts)
{
    struct st_layer *layer = &out->layers[out->layer_count - 1];

    for (uint32_t i = 0; i < experts; i++) {
        struct st_page *page = st_workload_add_page(out, 0);

        if (page == NULL)
            return false;
        (void)st_page_add(page, i % 4 == 2 ? ST_GROUP_FROZEN : ST_GROUP_DECAY, w->dtype, i + 1 < experts ? 40000 : 20000);
        out->params += i % 4 == 2 ? 0 : page->params;
    }
    layer->experts_forward_flops = 2 * layer->forward_flops;
    layer->experts_backward_flops = 6 * layer->forward_flops;
    return true;
}

/* The model's workload; with experts, blocks but the first have slices of them. */
static strata_status rig_workload(struct st_workload *out, const struct st_model *model, const struct rig_cell *cell)
{
    const struct st_workload *w = st_model_workload(model);
    uint32_t pages[64] = {0};
    bool ok = true;

    if (cell->experts == 0)
        return st_workload_copy(out, w);
    *out = *w;
    out->layers = NULL;
    out->pages = NULL;
    out->uses = NULL;
    out->order = NULL;
    out->layer_count = out->page_count = out->use_count = out->order_count = out->gathered_count = 0;
    out->routes_bytes = 64;
    for (uint32_t l = 0; l < w->layer_count && ok; l++) {
        const bool experts = l > 1 && w->layers[l].kind == ST_LAYER_BLOCK;
        const struct st_layer *layer = &w->layers[l];
        const uint32_t use_first = out->use_count;

        ok = st_workload_add_layer(out, experts ? ST_LAYER_EXPERTS : layer->kind);
        for (uint32_t i = 0; i < layer->use_count && ok; i++) {
            const uint32_t p = st_layer_page(w, l, i);
            struct st_page *page = w->pages[p].layer == l ? st_workload_add_page(out, w->pages[p].flags) : NULL;

            if (page != NULL) {
                pages[p] = out->page_count - 1;
                *page = w->pages[p];
                page->layer = l;
                page->uses = 1;
            } else {
                ok = w->pages[p].layer != l && st_workload_add_use(out, pages[p]);
            }
        }
        if (ok) {
            const struct st_layer made = out->layers[l];

            out->layers[l] = *layer;
            out->layers[l].kind = made.kind;
            out->layers[l].use_first = use_first;
            out->layers[l].use_count = made.use_count;
        }
        ok = ok && (!experts || add_experts(out, w, cell->experts));
    }
    return ok ? STRATA_OK : st_nomem(0);
}

static strata_status plan_with(struct st_plan **out, const struct st_model *model, const struct rig_cell *cell, uint64_t device,
                               uint64_t host)
{
    struct st_capacity capacity;
    struct st_policy policy;

    struct st_workload w;
    strata_status st;

    plan_inputs(&capacity, &policy, cell, device, host);
    *out = NULL;
    if ((st = rig_workload(&w, model, cell)) != STRATA_OK)
        return st;
    st = st_plan_make(out, &w, &capacity, &policy);
    st_workload_fini(&w);
    return st;
}

static bool plans(const struct st_model *model, const struct rig_cell *cell, uint64_t device, uint64_t host)
{
    struct st_capacity capacity;
    struct st_policy policy;
    struct st_workload w;
    bool fits;

    plan_inputs(&capacity, &policy, cell, device, host);
    if (rig_workload(&w, model, cell) != STRATA_OK)
        return false;
    fits = st_plan_fits(&fits, &w, &capacity, &policy) == STRATA_OK && fits;
    st_workload_fini(&w);
    return fits;
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
    if (cell->device == RIG_LEAST)
        return least(model, cell, false, 0) + cell->device_more;
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
    most = plan->program.needed[STRATA_TIER_DEVICE];
    st_plan_destroy(plan);
    return smallest + (most - smallest) / 2;
}

/* Of blocks and what is above them: where state is on NVMe, gradients may be there, too. */
static uint64_t gradient_bytes(const struct st_model *model)
{
    const struct st_workload *w = st_model_workload(model);
    uint64_t bytes = 0;

    for (uint32_t p = shape_of(w).block_first; p < w->page_count; p++)
        bytes += w->pages[p].trained_bytes;
    return bytes;
}

strata_status rig_plan(struct st_plan **out, const struct st_model *model, const struct rig_cell *cell)
{
    const uint64_t device = device_budget(model, cell);
    uint64_t host = AMPLE;

    if (cell->host != RIG_ALL && plans(model, cell, device, AMPLE))
        host = least(model, cell, true, device);
    if (cell->host == RIG_MIDWAY && host < AMPLE)
        host += gradient_bytes(model) / 2;
    return plan_with(out, model, cell, device, host);
}

void rig_tokens(int32_t *tokens, int32_t *targets, const struct rig_cell *cell, uint32_t step)
{
    const uint32_t count = RIG_MICRO * RIG_SEQ * cell->grad_accum;

    assert(count <= RIG_TOKENS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        const uint64_t at = (uint64_t)step * 100000 + cell->rank * count + i;
        const uint64_t a = st_rng_u64(7, 1, at), b = st_rng_u64(7, 2, at);

        /* Skewed, so that tokens repeat inside a batch; a target is left out now and then, or its row is padding. */
        tokens[i] = (int32_t)(a % 5 == 0 ? a / 7 % RIG_VOCAB : a / 7 % 40 * 211);
        targets[i] = b % 46 == 0 ? STRATA_TARGET_PADDING : b % 23 == 0 ? -1 : b % 61 == 0 ? 0 : (int32_t)(b / 23 % RIG_VOCAB);
    }
}

static void plan_traffic(struct rig_result *out, const struct st_plan *plan, enum st_phase phase)
{
    const struct st_traffic planned = st_program_traffic(&plan->program, phase);

    out->planned_bytes.upload += planned.upload;
    out->planned_bytes.download += planned.download;
    out->planned_bytes.read += planned.read;
    out->planned_bytes.write += planned.write;
    out->planned_bytes.comm += planned.comm;
    for (uint32_t i = 0; i < plan->program.op_count; i++) {
        const struct st_op *op = &plan->program.ops[i];

        if (st_op_runs(op, phase) && st_op_estimated((enum st_op_kind)op->kind))
            out->estimated_comm += op->bytes;
    }
}

/* Bytes by which a chunk's second fresh reading is less, where the first one's early update was not kept. */
static uint64_t spared_again(const struct st_program *program)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < program->chunk_count; c++)
        if (program->chunks[c].state == ST_WHERE_NVME && program->pages[program->chunks[c].page].early)
            bytes += program->chunks[c].bytes - st_chunk_fresh_bytes(&program->chunks[c]);
    return bytes;
}

static strata_status flush_and_eval(struct rig_result *out, struct st_engine *eng, const struct st_plan *plan,
                                    const int32_t *tokens, const int32_t *targets)
{
    double sum = 0;
    uint64_t seen;

    if (plan->policy.update == ST_UPDATE_GATED)
        plan_traffic(out, plan, ST_PHASE_EPILOGUE);
    plan_traffic(out, plan, ST_PHASE_EVAL);
    st_engine_request(eng, UINT64_C(1) << plan->program.rank);
    return st_engine_eval(eng, tokens, targets, NULL, &sum, &seen);
}

static enum st_phase phase_of(const struct st_plan *plan, bool first, const struct st_step_result *result)
{
    const unsigned phase = first ? ST_PHASE_PROLOGUE : result->early_kept ? ST_PHASE_BODY : ST_PHASE_BODY_REDO;

    return (enum st_phase)(phase | (plan->program.early_pages > 0 && !result->early_made ? ST_PHASE_LATE : 0));
}

static strata_status steps_of(struct rig_result *out, struct st_engine *eng, const struct st_plan *plan,
                              const struct rig_cell *cell, uint32_t steps)
{
    int32_t tokens[RIG_TOKENS_MAX], targets[RIG_TOKENS_MAX];
    const bool gated = plan->policy.update == ST_UPDATE_GATED;
    bool pending = false, again = false;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < steps && st == STRATA_OK; i++) {
        struct st_step_result result;

        rig_tokens(tokens, targets, cell, i);
        if ((cell->drops >> i & 1) != 0)
            st_engine_early_drop(eng);
        if (!cell->ruled)
            st_engine_set_early(eng, (cell->lates >> i & 1) != 0 ? -1 : 1);
        st = st_engine_step(eng, tokens, targets, NULL, &result);
        if (st != STRATA_OK)
            return st;
        plan_traffic(out, plan, phase_of(plan, gated && !pending, &result));
        pending = gated;
        out->late += plan->program.early_pages > 0 && !result.early_made;
        out->redone_bytes += result.redone_bytes;
        out->wasted_bytes += result.wasted_bytes;
        out->kept += result.early_kept;
        out->redone += result.early_redone;
        again =
            again || (i == 0 && result.early_made && (steps == 1 || cell->flush_after == 1)) || (i == 1 && result.early_redone);
        out->losses[i] = result.loss;
        out->norms[i] = result.grad_norm;
        out->skipped += result.skipped;
        out->requests |= result.requests;
        out->tokens += result.tokens;
        out->overflowed += result.weights_overflowed;
        out->clipped += !result.skipped && result.grad_norm > clip_threshold(cell);
        if (cell->flush_after == i + 1) {
            st = flush_and_eval(out, eng, plan, tokens, targets);
            pending = false;
        }
    }
    if (st == STRATA_OK && pending)
        plan_traffic(out, plan, ST_PHASE_EPILOGUE);
    if (steps > 0) /* by the flush, every chunk has been read fresh once, or twice */
        out->planned_bytes.read -= st_program_spared(&plan->program) + (again ? spared_again(&plan->program) : 0);
    return st == STRATA_OK ? st_engine_flush(eng, NULL) : st;
}

/* Copies and compute take about as long as the small model's updates: everything overlaps with everything. */
static struct st_paced_model paced_model(const struct st_workload *w)
{
    return (struct st_paced_model){
        .workload = w,
        .machine = {.name = "rig", .capacity.workers = 1, .rates.matmul_flops = 20e9, .rates.upload = 2e9, .rates.download = 2e9},
    };
}

strata_status rig_engine_start(struct rig_engine *out, struct st_model *model, const struct st_plan *plan,
                               const struct rig_cell *cell, const char *nvme_dir)
{
    struct st_model_init init = {.model = model, .seed = 42};
    const struct st_weight_source source = st_model_init_source(&init);
    struct st_engine_opts opts;
    struct st_config config;
    strata_status st;

    *out = (struct rig_engine){0};
    if (cell->timed && (st = st_op_times_create(&out->op_times, &(struct st_op_times_opts){0})) != STRATA_OK)
        return st;
    out->paced = paced_model(&plan->program.workload);
    rig_config(&config, cell, nvme_dir);
    st_config_engine_opts(&opts, &config);
    opts.program = &plan->program;
    opts.compute = st_model_compute(model);
    opts.nvme.dir_rates = cell->dir_count > 0 ? cell->dir_rates : NULL;
    opts.nvme.fake_seed = 99;
    opts.nvme.fake_latency_us = cell->fake_latency_us != 0 ? cell->fake_latency_us : 200;
    opts.device = cell->cuda ? "cuda" : NULL;
    opts.device_deadline_ns = cell->deadline_ns;
    opts.op_times = out->op_times;
    opts.comm = cell->comm;
    opts.device_comm = cell->device_comm != NULL ? cell->device_comm : cell->comm;
    if (cell->paced) {
        opts.device = "paced";
        opts.pace = &out->paced.machine;
        opts.compute = st_paced_compute(&out->paced);
        opts.compute.constants = st_model_compute(model).constants;
    }
    st = st_engine_create(&out->engine, &opts);
    if (st != STRATA_OK)
        return st;
    return cell->paced ? st_engine_load(out->engine, st_paced_fill, NULL) : st_engine_load(out->engine, source.read, source.ctx);
}

void rig_engine_stop(struct rig_engine *rig)
{
    st_engine_destroy(rig->engine);
    st_op_times_destroy(rig->op_times);
    rig->engine = NULL;
    rig->op_times = NULL;
}

strata_status rig_train(struct rig_result *out, struct st_model *model, const struct st_plan *plan, const struct rig_cell *cell,
                        uint32_t steps, const char *nvme_dir)
{
    struct rig_engine rig;
    struct st_engine_info info;
    strata_status st = rig_engine_start(&rig, model, plan, cell, nvme_dir);

    memset(out, 0, sizeof(*out));
    out->planned = true;
    out->early_pages = plan->program.early_pages;
    memcpy(out->needed, plan->program.needed, sizeof(out->needed));
    for (uint32_t p = 0; p < plan->program.workload.page_count; p++)
        out->sliced += st_page_sliced(&plan->program.pages[p]);
    if (st == STRATA_OK)
        st = steps_of(out, rig.engine, plan, cell, steps);
    if (st == STRATA_OK) {
        st_engine_info(rig.engine, &info);
        out->moved_bytes = info.moved;
        out->steps_done = info.steps_done;
        out->sequences = info.sequences_done;
        st = st_engine_digest(rig.engine, out->weights, out->state);
    }
    rig_engine_stop(&rig);
    return st;
}

strata_status rig_export(struct st_model *model, const struct st_plan *plan, const struct rig_cell *cell, uint32_t steps,
                         const char *nvme_dir, st_engine_sink_fn *sink, void *ctx)
{
    struct rig_result unused = {0};
    struct rig_engine rig;
    strata_status st = rig_engine_start(&rig, model, plan, cell, nvme_dir);

    if (st == STRATA_OK)
        st = steps_of(&unused, rig.engine, plan, cell, steps);
    if (st == STRATA_OK)
        st = st_engine_export(rig.engine, sink, ctx);
    rig_engine_stop(&rig);
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

struct rank_run {
    struct rig_cell cell;
    struct rig_result *out;
    uint32_t steps;
    char dir[512], error[1024];
    strata_status status;
    pthread_t thread;
};

static strata_status open_comms(struct rig_cell *cell, struct st_comm *under)
{
    if (cell->open_device_comm == NULL)
        return cut_alike_open(&cell->comm, under);
    return cell->open_device_comm(&cell->device_comm, under);
}

static void *run_rank(void *arg)
{
    struct rank_run *r = arg;
    struct st_comm *under = r->cell.comm;

    r->status = open_comms(&r->cell, under);
    if (r->status == STRATA_OK)
        r->status = rig_run(r->out, &r->cell, r->steps, r->dir);
    snprintf(r->error, sizeof(r->error), "%s", r->status == STRATA_OK ? "" : strata_last_error());
    if (r->status != STRATA_OK)
        st_comm_abort(under, r->error);
    st_comm_close(r->cell.device_comm);
    return NULL;
}

strata_status rig_run_ranks(struct rig_result *out, const struct rig_cell *cell, uint32_t steps, const char *nvme_dir)
{
    static struct rank_run runs[RIG_RANKS_MAX];
    struct st_comm *comms[RIG_RANKS_MAX];
    strata_status st = st_comm_threads_open(comms, cell->ranks, ST_COMM_DEADLINE_NS);

    assert(cell->ranks >= 2 && cell->ranks <= RIG_RANKS_MAX && cell->grad_accum % cell->ranks == 0);
    if (st != STRATA_OK)
        return st;
    for (uint32_t r = 0; r < cell->ranks; r++) {
        runs[r] = (struct rank_run){.cell = *cell, .out = &out[r], .steps = steps};
        runs[r].cell.grad_accum = cell->grad_accum / cell->ranks;
        runs[r].cell.rank = r;
        runs[r].cell.comm = comms[r];
        snprintf(runs[r].dir, sizeof(runs[r].dir), "%s", nvme_dir);
        assert(pthread_create(&runs[r].thread, NULL, run_rank, &runs[r]) == 0);
    }
    for (uint32_t r = 0; r < cell->ranks; r++)
        pthread_join(runs[r].thread, NULL);
    for (uint32_t r = 0; r < cell->ranks; r++) {
        st_comm_close(runs[r].cell.comm);
        if (st == STRATA_OK && runs[r].status != STRATA_OK)
            st = st_error(runs[r].status, "rank %u: %s", r, runs[r].error);
    }
    return st;
}

const char *rig_cell_text(char buf[RIG_TEXT], const struct rig_cell *c)
{
    static const char *const budgets[] = {"all", "smallest", "midway", "least"}, *const tiers[] = {"none", "cpu", "nvme"};
    static const char *const clips[] = {"never", "sometimes", "always"};

    static const char *const dtypes[] = {"?", "fp32", "bf16", "fp16"};
    static const char *const act_tiers[] = {"device", "host", "nvme", "auto"};
    static const char *const moments[] = {"fp32", "bf16", "8bit"}, *const adapters[] = {"", " lora", " lora nf4"};

    snprintf(
        buf, RIG_TEXT,
        "%s%s device=%s host=%s optimizer=%s param=%s update=%s g=%u in %u leaves %s act=%s on %s io=%s isa=%s threads=%u "
        "clip=%s %s "
        "cache=%s flush=%u moments=%s streamed=%u/2 early=%u/8%s%s",
        c->fused    ? "fused"
        : c->sparse ? "sparse"
        : c->llama  ? "llama"
                    : "gpt2",
        adapters[c->adapters], budgets[c->device], budgets[c->host], tiers[c->optimizer], tiers[c->param],
        c->update == ST_UPDATE_SERIAL  ? "serial"
        : c->update == ST_UPDATE_GATED ? "gated"
                                       : "in_backward",
        c->grad_accum, c->leaves > 0 ? c->leaves : 1, c->accumulation == ST_ACCUMULATE_HORIZONTAL ? "horizontal" : "vertical",
        c->activations == ST_ACT_KEPT         ? "kept"
        : c->activations == ST_ACT_RECOMPUTED ? "recomputed"
                                              : "auto",
        act_tiers[c->act_tier], c->io_method, c->isa, c->threads, clips[c->clip], dtypes[c->dtype], c->cache == 0 ? "0" : "auto",
        c->flush_after, moments[c->moments], c->streamed, c->early, c->experts > 0 ? " experts" : "", c->paced ? " paced" : "");
    return buf;
}
