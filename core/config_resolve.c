/* config_resolve.c - from judged values to a whole st_config: defaults first, then the rules between keys. */
#include "core/config_source.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define CHUNK_BLOCK   4096u /* elements; chunk boundaries are multiples of the norm's block */
#define PAGE_BYTES    4096u /* requests are whole pages */
#define DECAY_MAX_LR  1e-3  /* DeepSpeed's warmup_max_lr of WarmupDecayLR */
#define DEEPSPEED_LR  1e-3  /* DeepSpeed's lr of an optimizer without one */
#define OFFLOAD_PARAM "zero_optimization.offload_param."
#define OFFLOAD_OPTIM "zero_optimization.offload_optimizer."

static bool is_given(struct st_config_source *src, const char *path)
{
    return st_source_state(src, path)->usable;
}

static void note(struct st_config_source *src, const char *path, const char *text)
{
    struct st_field_state *state = st_source_state(src, path);

    if (state->verdict != ST_VERDICT_REJECTED)
        state->reason = text;
}

static void derive(struct st_config_source *src, const char *path, const char *text)
{
    st_source_state(src, path)->origin = ST_ORIGIN_DERIVED;
    note(src, path, text);
}

/* Defaults are JSON text, so that they take the same way as values of a file. */
static bool store_text(struct st_config *config, const struct st_field *field, const char *text)
{
    st_json *node;

    if (st_json_parse(&node, text, strlen(text), field->path) != STRATA_OK)
        return false; /* no memory: the table's texts are good, as a test shows */
    st_value_store(config, field, node);
    st_json_free(node);
    return true;
}

static void store_all(struct st_config_source *src, struct st_config *config)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        const struct st_field_state *state = &src->fields[i];
        const char *text = state->origin == ST_ORIGIN_AUTO && f->auto_text != NULL ? f->auto_text : f->fallback;

        if (state->usable)
            st_value_store(config, f, state->node);
        else if (f->bind != ST_BIND_NONE && text != NULL && !store_text(config, f, text))
            src->failed = true;
    }
}

/* One of the batch triple as given; 0: to be derived. */
static uint64_t given_count(struct st_config_source *src, const char *path)
{
    const struct st_field_state *state = st_source_state(src, path);

    return state->usable ? (uint64_t)st_json_number(state->node) : 0;
}

static bool is_auto(struct st_config_source *src, const char *path)
{
    return st_source_state(src, path)->origin == ST_ORIGIN_AUTO;
}

/* reference: DeepSpeed's _set_batch_related_parameters at world size 1.  The one addition: where nothing says how
 * large a batch is, a micro-batch is 1, unless a file gives the accumulation alone. */
static void resolve_batch(struct st_config_source *src, struct st_config *config)
{
    static const char *const paths[] = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"};
    const uint64_t train_given = given_count(src, paths[0]), micro_given = given_count(src, paths[1]);
    const uint64_t accum_given = given_count(src, paths[2]);
    uint64_t train = train_given, micro = micro_given, accum = accum_given;

    for (int i = 0; i < 3; i++)
        if (st_source_state(src, paths[i])->verdict == ST_VERDICT_REJECTED)
            return;
    if (accum > 0 && train == 0 && micro == 0 && st_source_state(src, paths[2])->origin == ST_ORIGIN_FILE &&
        !is_auto(src, paths[0]) && !is_auto(src, paths[1])) {
        st_source_problem(src,
                          "gradient_accumulation_steps %" PRIu64
                          " alone does not say how large a batch is: give train_batch_size "
                          "or train_micro_batch_size_per_gpu",
                          accum);
        return;
    }
    if (train == 0 && micro == 0)
        micro = 1;
    if (train > 0 && micro > 0)
        accum = accum > 0 ? accum : train / micro;
    else if (train > 0)
        accum = accum > 0 ? accum : 1, micro = train / accum;
    else
        accum = accum > 0 ? accum : 1, train = micro * accum;
    if (micro == 0 || accum == 0 || train != micro * accum || train > UINT32_MAX) {
        st_source_problem(src,
                          "train_batch_size %" PRIu64 "%s is not train_micro_batch_size_per_gpu %" PRIu64
                          "%s x gradient_accumulation_steps %" PRIu64 "%s (one rank)%s",
                          train, train_given > 0 ? "" : " (derived)", micro, micro_given > 0 ? "" : " (derived)", accum,
                          accum_given > 0 ? "" : " (derived)",
                          train > UINT32_MAX ? ": too large" : ": change one of them, or leave one out");
        return;
    }
    config->train_batch = (uint32_t)train;
    config->micro_batch = (uint32_t)micro;
    config->grad_accum = (uint32_t)accum;
    for (int i = 0; i < 3 && train_given + micro_given + accum_given > 0; i++)
        if (given_count(src, paths[i]) == 0)
            derive(src, paths[i], NULL);
}

static void resolve_precision(struct st_config_source *src, struct st_config *config)
{
    if (is_given(src, "bf16.enabled") || is_auto(src, "bf16.enabled") || !is_given(src, "fp16.enabled"))
        return;
    config->dtype = STRATA_F32;
    derive(src, "bf16.enabled", "fp16 is named and bf16 is not: fp32, as in DeepSpeed");
}

static void resolve_optimizer(struct st_config_source *src, struct st_config *config)
{
    const struct st_field_state *mode = st_source_state(src, "optimizer.params.adam_w_mode");
    const struct st_field_state *lr = st_source_state(src, "optimizer.params.lr");
    const bool named = is_given(src, "optimizer.type") && st_source_state(src, "optimizer.type")->origin == ST_ORIGIN_FILE;

    if (config->optimizer == ST_OPTIMIZER_ADAM && !(mode->usable && !st_json_bool(mode->node))) {
        config->optimizer = ST_OPTIMIZER_ADAMW;
        derive(src, "optimizer.type", "Adam with adam_w_mode, which is on by default, is AdamW");
    } else if (config->optimizer == ST_OPTIMIZER_ADAMW && mode->usable && !st_json_bool(mode->node)) {
        derive(src, "optimizer.params.adam_w_mode", "type AdamW decouples the decay whatever this says");
    }
    if (named && lr->spelling == NULL) {
        config->lr = DEEPSPEED_LR;
        derive(src, "optimizer.params.lr", "the file names an optimizer and no lr: DeepSpeed's default");
    }
}

/* Without a scheduler the members have one fixed value each, so that equal configs are equal bit for bit. */
static void clear_schedule(struct st_config *config)
{
    config->lr_type = ST_LR_CONSTANT;
    config->warmup_min_lr = 0;
    config->warmup_max_lr = NAN;
    config->warmup_steps = 0;
    config->total_steps = 0;
    config->warmup_log = true;
}

static void resolve_total_steps(struct st_config_source *src, struct st_config *config, uint64_t max_steps)
{
    if (config->lr_type != ST_LR_WARMUP_DECAY) {
        if (is_given(src, "scheduler.params.total_num_steps"))
            st_source_problem(src, "scheduler.params.total_num_steps: belongs to WarmupDecayLR, and scheduler.type is WarmupLR");
        config->total_steps = 0;
        return;
    }
    if (config->total_steps > 0)
        return;
    config->total_steps = max_steps;
    derive(src, "scheduler.params.total_num_steps", max_steps > 0 ? "--max-steps" : "known once --max-steps is given");
}

static void resolve_scheduler(struct st_config_source *src, struct st_config *config, uint64_t max_steps)
{
    const struct st_field_state *warmup = st_source_state(src, "scheduler.params.warmup_num_steps");
    const struct st_field *f;

    if (!is_given(src, "scheduler.type") && warmup->usable && warmup->origin == ST_ORIGIN_COMMAND_LINE &&
        config->warmup_steps > 0) {
        config->lr_type = ST_LR_WARMUP;
        derive(src, "scheduler.type", "a warm-up is asked for on the command line");
    } else if (!is_given(src, "scheduler.type")) {
        for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
            if (st_field_inside(f, "scheduler.params") && src->fields[i].node != NULL)
                note(src, f->path, "not used: without scheduler.type the rate is constant");
        clear_schedule(config);
        return;
    }
    if (!is_given(src, "scheduler.params.warmup_max_lr"))
        config->warmup_max_lr =
            config->lr_type == ST_LR_WARMUP_DECAY && !is_auto(src, "scheduler.params.warmup_max_lr") ? DECAY_MAX_LR : NAN;
    resolve_total_steps(src, config, max_steps);
}

/* The deprecated switch of a section, where the section does not name its device. */
static void resolve_old_switch(struct st_config_source *src, const char *old_path, const char *device_path, strata_tier *tier)
{
    const struct st_field_state *old = st_source_state(src, old_path);

    if (!old->usable)
        return;
    if (!st_json_bool(old->node) || is_given(src, device_path)) {
        note(src, old_path, is_given(src, device_path) ? "deprecated, and the section names its device" : "deprecated");
        return;
    }
    *tier = STRATA_TIER_HOST;
    derive(src, device_path, "from the deprecated switch");
    note(src, old_path, st_source_keep(src, "deprecated: write %s \"cpu\"", device_path));
}

static void resolve_tiers(struct st_config_source *src, struct st_config *config)
{
    resolve_old_switch(src, "zero_optimization.cpu_offload", OFFLOAD_OPTIM "device", &config->optimizer_tier);
    resolve_old_switch(src, "zero_optimization.cpu_offload_param", OFFLOAD_PARAM "device", &config->param_tier);
    if (config->param_tier != STRATA_TIER_DEVICE && config->zero_stage < 3)
        note(src, OFFLOAD_PARAM "device", "honoured below stage 3 too, where DeepSpeed ignores it");
    if (config->optimizer_tier != STRATA_TIER_DEVICE && config->zero_stage == 0)
        note(src, OFFLOAD_OPTIM "device", "honoured at stage 0 too, where DeepSpeed ignores it");
    else if (config->optimizer_tier == STRATA_TIER_NVME && config->zero_stage < 3)
        note(src, OFFLOAD_OPTIM "device", "honoured below stage 3 too, where DeepSpeed takes it for cpu");
}

static void add_dir(struct st_config_source *src, struct st_config *config, const char *path, const char *dir, size_t len)
{
    while (len > 0 && dir[0] == ' ')
        dir++, len--;
    while (len > 0 && dir[len - 1] == ' ')
        len--;
    for (uint32_t i = 0; i < config->nvme_dir_count; i++)
        if (strlen(config->nvme_dirs[i]) == len && memcmp(config->nvme_dirs[i], dir, len) == 0)
            return; /* one directory for weights and state is common */
    if (len == 0)
        st_source_problem(src, "%s: a directory's name is empty", path);
    else if (len >= ST_CONFIG_PATH_MAX)
        st_source_problem(src, "%s: a directory's name has %zu bytes, at most %d are taken", path, len, ST_CONFIG_PATH_MAX - 1);
    else if (config->nvme_dir_count == ST_CONFIG_DIRS_MAX)
        st_source_problem(src, "%s: more than %d directories for tier nvme", path, ST_CONFIG_DIRS_MAX);
    else
        memcpy(config->nvme_dirs[config->nvme_dir_count++], dir, len);
}

/* A string is split at commas; members of a list are taken as they are. */
static void add_dirs(struct st_config_source *src, struct st_config *config, const char *path)
{
    const struct st_field_state *state = st_source_state(src, path);

    if (!state->usable)
        return;
    if (st_json_type(state->node) == ST_JSON_ARRAY) {
        for (const st_json *n = st_json_first(state->node); n != NULL; n = st_json_next(n))
            add_dir(src, config, path, st_json_string(n), strlen(st_json_string(n)));
        return;
    }
    for (const char *at = st_json_string(state->node);; at++) {
        const size_t len = strcspn(at, ",");

        add_dir(src, config, path, at, len);
        at += len;
        if (*at == '\0')
            return;
    }
}

static void add_section_dirs(struct st_config_source *src, struct st_config *config, const char *path, strata_tier tier)
{
    if (!is_given(src, path))
        return;
    if (tier != STRATA_TIER_NVME)
        note(src, path, "not used: the section's device is not nvme");
    else if (is_given(src, "strata.nvme"))
        note(src, path, "not used: strata.nvme (--nvme) wins");
    else
        add_dirs(src, config, path);
}

static void resolve_dirs(struct st_config_source *src, struct st_config *config)
{
    const uint32_t problems = src->problems.count;

    add_dirs(src, config, "strata.nvme");
    add_section_dirs(src, config, OFFLOAD_OPTIM "nvme_path", config->optimizer_tier);
    add_section_dirs(src, config, OFFLOAD_PARAM "nvme_path", config->param_tier);
    if (config->nvme_dir_count > 0 && !is_given(src, "strata.nvme"))
        derive(src, "strata.nvme", "from nvme_path");
    if (config->nvme_dir_count > 0 || src->problems.count > problems)
        return;
    if (config->optimizer_tier == STRATA_TIER_NVME || config->param_tier == STRATA_TIER_NVME)
        st_source_problem(src, "%sdevice is nvme, but no directory is named: give --nvme DIR, strata.nvme or nvme_path",
                          config->optimizer_tier == STRATA_TIER_NVME ? OFFLOAD_OPTIM : OFFLOAD_PARAM);
}

static void resolve_chunk(struct st_config_source *src, struct st_config *config)
{
    const uint64_t asked = config->chunk_size;

    if (config->chunk_size > config->sub_group_size)
        config->chunk_size = config->sub_group_size;
    config->chunk_size -= config->chunk_size % CHUNK_BLOCK;
    if (config->chunk_size == asked)
        return;
    note(src, "strata.chunk_size",
         st_source_keep(src, "%" PRIu64 " %s a multiple of %u, the norm block", asked,
                        asked > config->sub_group_size ? "is over sub_group_size: lowered to it and to" : "is rounded down to",
                        CHUNK_BLOCK));
    if (!is_given(src, "strata.chunk_size"))
        st_source_state(src, "strata.chunk_size")->origin = ST_ORIGIN_DERIVED;
}

static void resolve_rest(struct st_config_source *src, struct st_config *config)
{
    const struct st_field_state *cpu = st_source_state(src, "activation_checkpointing.cpu_checkpointing");

    if (config->block_bytes % PAGE_BYTES != 0)
        st_source_problem(src, "aio.block_size: %" PRIu32 " is not a multiple of %u", config->block_bytes, PAGE_BYTES);
    if (!cpu->usable || !st_json_bool(cpu->node))
        return;
    if (is_given(src, "strata.activation_tier")) {
        note(src, "activation_checkpointing.cpu_checkpointing", "not used: strata.activation_tier wins");
        return;
    }
    config->activation_tier = STRATA_TIER_HOST;
    derive(src, "strata.activation_tier", "from activation_checkpointing.cpu_checkpointing");
}

void st_config_resolve(struct st_config_source *src, struct st_config *config, uint64_t max_steps)
{
    memset(config, 0, sizeof(*config));
    config->warmup_max_lr = NAN;
    store_all(src, config);
    if (src->failed)
        return;
    resolve_batch(src, config);
    resolve_precision(src, config);
    resolve_optimizer(src, config);
    resolve_scheduler(src, config, max_steps);
    resolve_tiers(src, config);
    resolve_dirs(src, config);
    resolve_chunk(src, config);
    resolve_rest(src, config);
}
