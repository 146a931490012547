/* config_resolve.c - turns evaluated values into a complete st_config: first the defaults, then the rules between keys. */
#include "offload/config/config_source.h"

#include "core/system/file.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define CHUNK_BLOCK   16384u /* elements; chunk boundaries are multiples of the tile */
#define OFFLOAD_PARAM "zero_optimization.offload_param."
#define OFFLOAD_OPTIM "zero_optimization.offload_optimizer."

/* Defaults are JSON text, so that they are stored in the same way as values of a file. */
static bool store_text(struct st_config *config, const struct st_field *field, const char *text)
{
    st_json *node;

    if (st_json_parse(&node, text, strlen(text), field->path) != STRATA_OK)
        return false; /* out of memory; the texts of the table parse, as a test shows */
    st_value_store(config, field, node);
    st_json_free(node);
    return true;
}

static void store_all(struct st_config_source *src, struct st_config *config)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        const struct st_field_state *state = &src->fields[i];
        const bool ours = state->origin == ST_ORIGIN_AUTO || !src->has_file;
        const char *text = ours && f->auto_text != NULL ? f->auto_text : f->fallback;

        if (state->usable)
            st_value_store(config, f, state->node);
        else if (f->bind != ST_BIND_NONE && text != NULL && !store_text(config, f, text))
            src->failed = true;
    }
}

/* The deprecated switch of a section; it counts only if the section does not name its device. */
static void resolve_old_switch(struct st_config_source *src, const char *old_path, const char *device_path, strata_tier *tier)
{
    const struct st_field_state *old = st_source_state(src, old_path);

    if (!old->usable)
        return;
    if (!st_json_bool(old->node) || st_source_given(src, device_path)) {
        st_source_note(src, old_path,
                       st_source_given(src, device_path) ? "deprecated, and the section names its device" : "deprecated");
        return;
    }
    *tier = STRATA_TIER_HOST;
    st_source_derive(src, device_path, "from the deprecated switch");
    st_source_note(src, old_path, st_source_keep(src, "deprecated: write %s \"cpu\"", device_path));
}

static void resolve_tiers(struct st_config_source *src, struct st_config *config)
{
    resolve_old_switch(src, "zero_optimization.cpu_offload", OFFLOAD_OPTIM "device", &config->optimizer_tier);
    resolve_old_switch(src, "zero_optimization.cpu_offload_param", OFFLOAD_PARAM "device", &config->param_tier);
    if (config->param_tier != STRATA_TIER_DEVICE && config->zero_stage < 3)
        st_source_note(src, OFFLOAD_PARAM "device", "also honoured below stage 3, where DeepSpeed ignores it");
    if (config->optimizer_tier != STRATA_TIER_DEVICE && config->zero_stage == 0)
        st_source_note(src, OFFLOAD_OPTIM "device", "also honoured at stage 0, where DeepSpeed ignores it");
    else if (config->optimizer_tier == STRATA_TIER_NVME && config->zero_stage < 3)
        st_source_note(src, OFFLOAD_OPTIM "device", "also honoured below stage 3, where DeepSpeed treats it as cpu");
}

/* It is common to name one directory for weights and state.  One that is there may have several names; of others the text
 * alone says which they are. */
static bool has_dir(const struct st_config *config, const char *dir)
{
    for (uint32_t i = 0; i < config->nvme_dir_count; i++)
        if (strcmp(config->nvme_dirs[i], dir) == 0 || st_file_is_same(config->nvme_dirs[i], dir))
            return true;
    return false;
}

static void add_dir(struct st_config_source *src, struct st_config *config, const char *path, const char *dir, size_t len)
{
    char name[ST_CONFIG_PATH_MAX];

    if (len == 0) {
        st_source_problem(src, "%s: a directory's name is empty", path);
        return;
    }
    if (len >= ST_CONFIG_PATH_MAX) {
        st_source_problem(src, "%s: a directory's name has %zu bytes, and at most %d are allowed", path, len,
                          ST_CONFIG_PATH_MAX - 1);
        return;
    }
    snprintf(name, sizeof(name), "%.*s", (int)len, dir);
    if (has_dir(config, name))
        return;
    if (config->nvme_dir_count == ST_CONFIG_DIRS_MAX)
        st_source_problem(src, "%s: more than %d directories for tier nvme", path, ST_CONFIG_DIRS_MAX);
    else
        memcpy(config->nvme_dirs[config->nvme_dir_count++], name, len);
}

/* A string is split at commas, and blanks around them are dropped; members of a list are used unchanged. */
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
        const size_t all = strcspn(at, ","), before = strspn(at, " ");
        size_t len = all;

        while (len > before && at[len - 1] == ' ')
            len--;
        add_dir(src, config, path, at + before, len - before);
        at += all;
        if (*at == '\0')
            return;
    }
}

static void add_section_dirs(struct st_config_source *src, struct st_config *config, const char *path, strata_tier tier)
{
    if (!st_source_given(src, path))
        return;
    if (tier != STRATA_TIER_NVME)
        st_source_note(src, path, "not used: the section's device is not nvme");
    else if (st_source_given(src, "strata.nvme"))
        st_source_note(src, path, "not used: strata.nvme takes precedence");
    else
        add_dirs(src, config, path);
}

static void resolve_dirs(struct st_config_source *src, struct st_config *config)
{
    const uint32_t problems = src->problems.count;

    add_dirs(src, config, "strata.nvme");
    add_section_dirs(src, config, OFFLOAD_OPTIM "nvme_path", config->optimizer_tier);
    add_section_dirs(src, config, OFFLOAD_PARAM "nvme_path", config->param_tier);
    if (config->nvme_dir_count > 0 && !st_source_given(src, "strata.nvme"))
        st_source_derive(src, "strata.nvme", "from nvme_path");
    if (config->nvme_dir_count > 0 || src->problems.count > problems)
        return;
    if (config->optimizer_tier == STRATA_TIER_NVME || config->param_tier == STRATA_TIER_NVME)
        st_source_problem(src, "%sdevice is nvme, but no directory is named: give strata.nvme or nvme_path",
                          config->optimizer_tier == STRATA_TIER_NVME ? OFFLOAD_OPTIM : OFFLOAD_PARAM);
    else if (config->activation_tier == STRATA_TIER_NVME)
        st_source_reject(src, "strata.activation_tier", "nvme, but no directory is named: give strata.nvme");
}

/* An update inside backward cannot wait for something that is known only at its end. */
static void resolve_update(struct st_config_source *src, struct st_config *config)
{
    if (config->update == ST_UPDATE_SPECULATIVE && config->update_ratio < 1)
        st_source_reject(src, "strata.update",
                         "speculative updates are the processor's, and offload_optimizer.ratio below 1 gives some to the device: "
                         "leave ratio out, or use gated");
    if (config->update != ST_UPDATE_IN_BACKWARD)
        return;
    if (config->gradient_clipping > 0)
        st_source_reject(src, "strata.update",
                         st_source_keep(src,
                                        "in_backward updates before all gradients are known, whose norm gradient_clipping %g "
                                        "needs: set it to 0, or use gated",
                                        config->gradient_clipping));
    if (config->dtype == STRATA_F16)
        st_source_reject(src, "strata.update",
                         "in_backward updates before fp16's loss scaling knows of an overflow that skips the step: train in "
                         "bf16, or use gated");
    else if (config->check_grad_overflow)
        st_source_note(src, "strata.update",
                       "a gradient that is not finite ends the run (exit code 5), as parts of the step are updated by then");
}

static void resolve_chunk(struct st_config_source *src, struct st_config *config)
{
    const uint64_t asked = config->chunk_size;

    if (asked == ST_AUTO_BYTES)
        return; /* chosen by the planner, which knows the limit */
    if (config->chunk_size > config->sub_group_size)
        config->chunk_size = config->sub_group_size;
    config->chunk_size -= config->chunk_size % CHUNK_BLOCK;
    if (config->chunk_size == asked)
        return;
    st_source_note(
        src, "strata.chunk_size",
        st_source_keep(src, "%" PRIu64 " %s a multiple of %u, the tile", asked,
                       asked > config->sub_group_size ? "is above sub_group_size: lowered to it and to" : "is rounded down to",
                       CHUNK_BLOCK));
}

static void resolve_saving(struct st_config_source *src, const struct st_config *config)
{
    static const char *const paths[] = {"strata.save_every", "strata.keep"};
    const bool saves = config->save[0] != '\0';

    if (config->keep_best > 0 && !saves)
        st_source_reject(src, "strata.keep_best", "needs strata.save, where the checkpoints are");
    if (config->keep_best > 0 && config->keep + config->keep_best > STRATA_KEEP_MAX)
        st_source_reject(src, "strata.keep_best",
                         st_source_keep(src, "with strata.keep %u: together at most %u", config->keep, STRATA_KEEP_MAX));
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]) && !saves; i++)
        if (st_source_given(src, paths[i]))
            st_source_announce(src, paths[i], "not used: strata.save names no directory, so nothing is saved");
}

static void resolve_lora(struct st_config_source *src, const struct st_config *config)
{
    if (st_source_given(src, "strata.lora") && config->lora[0] == '\0')
        src->failed = true; /* no memory for its text */
    if (config->lora[0] != '\0' && config->freeze_count > 0)
        st_source_reject(src, "strata.freeze", "with strata.lora all that is not an adapter is frozen already: leave it out");
}

static void resolve_rest(struct st_config_source *src, struct st_config *config)
{
    const struct st_field_state *cpu = st_source_state(src, "activation_checkpointing.cpu_checkpointing");

    if (config->io_limit > 0 && strcmp(config->io_method, "fake") != 0)
        st_source_reject(src, "strata.limits.io",
                         "only the fake I/O method can be slowed down: set strata.io_method to \"fake\", or take the limit out");
    if (!cpu->usable || !st_json_bool(cpu->node))
        return;
    if (st_source_given(src, "strata.activation_tier")) {
        st_source_note(src, "activation_checkpointing.cpu_checkpointing", "not used: strata.activation_tier takes precedence");
        return;
    }
    config->activation_tier = STRATA_TIER_HOST;
    st_source_derive(src, "strata.activation_tier", "from activation_checkpointing.cpu_checkpointing");
}

void st_config_resolve(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts)
{
    memset(config, 0, sizeof(*config));
    config->schedule.warmup_max_lr = NAN;
    store_all(src, config);
    if (src->failed)
        return;
    st_config_resolve_train(src, config, opts);
    resolve_tiers(src, config);
    resolve_rest(src, config);
    resolve_saving(src, config);
    resolve_lora(src, config);
    resolve_dirs(src, config);
    resolve_chunk(src, config);
    resolve_update(src, config);
}
