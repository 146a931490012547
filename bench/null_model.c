/* bench/null_model.c - see bench/null_model.h. */
#include "bench/null_model.h"

#include "core/base/error.h"
#include "core/base/rng.h"
#include "core/base/size.h"
#include "core/system/clock.h"
#include "offload/config/config_options.h"
#include "offload/device/device.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define HIDDEN       128u
#define VOCAB        128u
#define SEQ          8u
#define BLOCK_MOST   (UINT64_C(4) << 20) /* parameters of a block */
#define BLOCKS_LEAST 8u
#define CHUNKS_LEAST 32u /* so that only a small part of the state is read ahead of the update */
#define CHUNK_MOST   (UINT64_C(4) << 20)
#define NOISE_ELEMS  65536u
#define AMPLE        (UINT64_C(1) << 50) /* bytes: the real limits are checked separately */
#define PARAMS_MOST  (UINT64_C(1) << 40)

/* Host memory per parameter, at least: weight, gradient, and the state if it is not on NVMe. */
#define HOST_BYTES      14u
#define HOST_BYTES_NVME 4u

static uint64_t round_up(uint64_t value, uint64_t to)
{
    return (value + to - 1) / to * to;
}

static uint64_t clamp(uint64_t value, uint64_t least, uint64_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* --- the workload --- */

static bool add_page(struct st_workload *w, unsigned flags, uint64_t elems, uint32_t rows)
{
    struct st_page *page = st_workload_add_page(w, flags);

    if (page == NULL)
        return false;
    page->row_count = rows;
    (void)st_page_add(page, ST_GROUP_DECAY, w->dtype, elems);
    w->params += elems;
    return true;
}

/* Bytes and FLOPs of compute that never runs: small, but not 0. */
static bool add_layer(struct st_workload *w, enum st_layer_kind kind)
{
    if (!st_workload_add_layer(w, kind))
        return false;
    w->layers[w->layer_count - 1] = (struct st_layer){
        .kind = kind,
        .use_first = w->use_count,
        .boundary_bytes = kind == ST_LAYER_LOSS ? 0 : (uint64_t)SEQ * HIDDEN * strata_dtype_bytes(w->dtype),
        .internal_bytes = kind == ST_LAYER_LOOKUP ? 0 : 4096,
        .forward_flops = kind == ST_LAYER_LOOKUP ? 0 : 1,
        .backward_flops = kind == ST_LAYER_LOOKUP ? 0 : 1,
    };
    return true;
}

static bool add_layers(struct st_workload *w, uint32_t blocks, uint64_t block)
{
    if (!add_layer(w, ST_LAYER_LOOKUP) || !add_page(w, ST_PAGE_GATHERED, VOCAB * HIDDEN, VOCAB))
        return false;
    for (uint32_t b = 0; b < blocks; b++)
        if (!add_layer(w, ST_LAYER_BLOCK) || !add_page(w, 0, block, 0))
            return false;
    return add_layer(w, ST_LAYER_LOSS) && add_page(w, ST_PAGE_SMALL, HIDDEN, 0) && add_page(w, 0, VOCAB * HIDDEN, VOCAB);
}

static strata_status make_workload(struct st_workload *w, uint64_t params, uint32_t threads)
{
    const uint64_t block = clamp(round_up(params / BLOCKS_LEAST, ST_NORM_BLOCK), ST_NORM_BLOCK, BLOCK_MOST);

    *w = (struct st_workload){.name = "null",
                              .dtype = STRATA_BF16,
                              .vocab = VOCAB,
                              .hidden = HIDDEN,
                              .seq = SEQ,
                              .micro_batch = 1,
                              .grad_accum = 1,
                              .workspace_bytes = 4096,
                              .constants_bytes = NOISE_ELEMS * sizeof(float),
                              .model_flops_per_token = 1,
                              .workers = threads};
    if (!add_layers(w, (uint32_t)((params + block - 1) / block), block))
        return st_nomem(0);
    return st_workload_check(w);
}

/* --- the configuration and the plan --- */

static strata_status take_text(char *to, size_t bytes, const char *text, const char *option)
{
    const char *const value = text != NULL ? text : "auto";

    if (strlen(value) >= bytes)
        return st_error(STRATA_E_INVAL, "%s \"%s\" is too long", option, value);
    memcpy(to, value, strlen(value) + 1);
    return STRATA_OK;
}

static strata_status make_config(struct st_config *c, const struct bench_setup *s, uint64_t params)
{
    const struct bench_opts *opts = s->opts;
    const bool nvme = opts->dir_count > 0;
    strata_status st;

    *c = (struct st_config){
        .train_batch = 1,
        .micro_batch = 1,
        .grad_accum = 1,
        .dtype = STRATA_BF16,
        .optimizer.type = STRATA_ADAMW,
        .optimizer.lr = 1e-4,
        .optimizer.beta1 = 0.9,
        .optimizer.beta2 = 0.999,
        .optimizer.eps = 1e-8,
        .optimizer.weight_decay = 0.01,
        .optimizer.bias_correction = true,
        .zero_stage = 3,
        .param_tier = STRATA_TIER_HOST,
        .optimizer_tier = nvme ? STRATA_TIER_NVME : STRATA_TIER_HOST,
        .activation_tier = STRATA_TIER_DEVICE,
        .activations = ST_ACT_RECOMPUTED,
        .update = ST_UPDATE_GATED,
        .device_memory = ST_AUTO_BYTES,
        .host_memory = ST_AUTO_BYTES,
        .cache = 0,
        .chunk_size = clamp(params / CHUNKS_LEAST / ST_TILE_ELEMS * ST_TILE_ELEMS, ST_TILE_ELEMS, CHUNK_MOST),
        .block_bytes = 1u << 20,
        .queue_depth = 32,
        .threads = s->threads,
        .nvme_dir_count = nvme ? 1 : 0,
    };
    st = take_text(c->io_method, sizeof(c->io_method), opts->io_method, "--io-method");
    if (st == STRATA_OK)
        st = take_text(c->isa, sizeof(c->isa), opts->isa, "--isa");
    if (st == STRATA_OK && nvme)
        st = take_text(c->nvme_dirs[0], sizeof(c->nvme_dirs[0]), opts->dirs[0], "--nvme");
    return st;
}

static strata_status check_disk(const struct bench_null_model *m)
{
    const uint64_t needed = m->plan->program.needed[STRATA_TIER_NVME];
    char wanted[24], have[24];
    uint64_t room;
    strata_status st;

    if (needed == 0 || strcmp(m->config.io_method, "fake") == 0)
        return STRATA_OK;
    st = st_swap_free_bytes(m->config.nvme_dirs[0], &room);
    if (st != STRATA_OK || needed <= room)
        return st;
    return st_error(STRATA_E_NOFIT, "the state takes %s of disk, %s has %s: lower --params", st_size_text(wanted, needed),
                    m->config.nvme_dirs[0], st_size_text(have, room));
}

static strata_status make_plan(struct bench_null_model *m, const struct bench_setup *s)
{
    const struct st_machine machine = {
        .name = "here", .capacity = {.bytes = {AMPLE, AMPLE, AMPLE}, .workers = s->threads, .device_is_host = true}};
    struct st_policy policy;
    strata_status st;

    st_config_policy(&policy, &m->config);
    st = st_plan_make(&m->plan, &m->workload, &machine.capacity, &policy);
    if (st == STRATA_OK)
        st = bench_check_memory(s, m->plan->rss_bytes_max, "lower --params");
    return st == STRATA_OK ? check_disk(m) : st;
}

/* --- the model --- */

/* Copies constants into the gradients with the device's own copies; nothing else changes. */
static strata_status run_call(void *model, const struct st_call *call)
{
    const struct st_device_ops *const ops = call->device->ops;
    strata_status st = STRATA_OK;

    (void)model;
    if (call->kind == ST_CALL_HEAD_LOSS)
        return ops->zero(call->device, call->loss_sum, sizeof(*call->loss_sum));
    if (call->kind == ST_CALL_HEAD_BACKWARD)
        st = ops->zero(call->device, call->dact, (uint64_t)SEQ * HIDDEN * sizeof(uint16_t));
    if (call->grad == NULL || !call->first)
        return st;
    for (uint64_t at = 0; at < call->grad_elems && st == STRATA_OK; at += NOISE_ELEMS) {
        const uint64_t left = call->grad_elems - at, elems = left < NOISE_ELEMS ? left : NOISE_ELEMS;

        st = ops->copy(call->device, call->grad + at, call->constants, elems * sizeof(float));
    }
    return st;
}

static strata_status fill_weights(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    (void)ctx;
    (void)page;
    for (uint64_t i = 0; i < count; i++)
        out[i] = 0.02f + 1e-4f * (float)((first + i) % 61);
    return STRATA_OK;
}

static strata_status start_engine(struct bench_null_model *m, const struct bench_setup *s)
{
    struct st_engine_opts opts;
    strata_status st;

    st_config_engine_opts(&opts, &m->config);
    opts.program = &m->plan->program;
    opts.compute = (struct st_compute){.constants = m->noise, .run = run_call};
    opts.topology = s->topology;
    st = st_engine_create(&m->engine, &opts);
    if (st == STRATA_OK)
        st = st_engine_load(m->engine, fill_weights, NULL);
    return st == STRATA_E_NOSPC ? STRATA_E_NOFIT : st;
}

strata_status bench_null_model_open(struct bench_null_model *m, const struct bench_setup *s, uint64_t params, enum st_fetch fetch)
{
    strata_status st;

    *m = (struct bench_null_model){0};
    if (params > PARAMS_MOST)
        return st_error(STRATA_E_NOFIT, "%" PRIu64 " parameters: this bench takes up to %" PRIu64, params, PARAMS_MOST);
    /* Checked before planning, since a plan for a trillion parameters takes long. */
    st = bench_check_memory(s, params * (s->opts->dir_count > 0 ? HOST_BYTES_NVME : HOST_BYTES), "lower --params");
    if (st != STRATA_OK)
        return st;
    m->noise = malloc(NOISE_ELEMS * sizeof(*m->noise));
    m->tokens = calloc(SEQ, sizeof(*m->tokens));
    if (m->noise == NULL || m->tokens == NULL)
        return st_nomem(0);
    st_rng_normal(m->noise, NOISE_ELEMS, 1, 0, 0, 1e-3f);
    st = make_workload(&m->workload, params, s->threads);
    if (st == STRATA_OK)
        st = make_config(&m->config, s, params);
    m->config.update_fetch = fetch;
    if (st == STRATA_OK)
        st = make_plan(m, s);
    return st == STRATA_OK ? start_engine(m, s) : st;
}

void bench_null_model_close(struct bench_null_model *m)
{
    st_engine_destroy(m->engine);
    st_plan_destroy(m->plan);
    st_workload_fini(&m->workload);
    free(m->noise);
    free(m->tokens);
    *m = (struct bench_null_model){0};
}

/* --- steps --- */

strata_status bench_null_model_step(struct bench_null_model *m)
{
    struct st_step_result unused;

    return st_engine_step(m->engine, m->tokens, m->tokens, NULL, &unused);
}

strata_status bench_null_model_update(struct bench_null_model *m, double *seconds, struct st_traffic *moved)
{
    struct st_step_result result;
    const uint64_t begin_ns = st_clock_ns();
    const strata_status st = st_engine_flush(m->engine, &result);

    *seconds = (double)(st_clock_ns() - begin_ns) * 1e-9;
    *moved = result.bytes;
    return st;
}
