/* recipes/environment.c - what Accelerate's launcher says in variables, as the tree that its config file would be.
 *
 * Source: utils/launch.py and utils/dataclasses.py of accelerate 1.15. */
#include "recipes/recipe_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"
#include "core/json/json_build.h"
#include "core/system/launch.h"

#include <string.h>

#define DEEPSPEED_ON "ACCELERATE_USE_DEEPSPEED"
#define DS(name_, key_, usual_, text_)                                                                                           \
    {                                                                                                                            \
        .name = "ACCELERATE_" name_, .section = "deepspeed_config", .key = (key_), .usual = (usual_), .group = DEEPSPEED_ON,     \
        .text = (text_)                                                                                                          \
    }

#define FSDP_ON "ACCELERATE_USE_FSDP"
#define FSDP(name_, key_, usual_)                                                                                                \
    {                                                                                                                            \
        .name = "FSDP_" name_, .section = "fsdp_config", .key = "fsdp_" key_, .usual = (usual_), .group = FSDP_ON                \
    }
#define SIZES_ON "ACCELERATE_USE_PARALLELISM_CONFIG"
#define SIZE(name_, key_)                                                                                                        \
    {                                                                                                                            \
        .name = "PARALLELISM_CONFIG_" name_, .section = "parallelism_config", .key = "parallelism_config_" key_, .usual = "1",   \
        .group = SIZES_ON                                                                                                        \
    }

/* A group of variables is read if its switch is "true"; the launcher also sets some to their default without being asked. */
static const struct variable {
    const char *name, *section, *key;
    const char *usual; /* it says nothing; NULL: there is none */
    const char *group; /* its switch; NULL: it is always read */
    const char *says;  /* of a switch: the key's value; NULL: its own */
    bool text;         /* never a number or a switch */
} variables[] = {
    {.name = ST_LAUNCH_ACCELERATE, .key = "mixed_precision", .text = true},
    {.name = "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", .section = "deepspeed_config", .key = "gradient_accumulation_steps"},
    {.name = DEEPSPEED_ON, .key = "distributed_type", .group = DEEPSPEED_ON, .says = "DEEPSPEED"},
    DS("GRADIENT_CLIPPING", "gradient_clipping", "none", false),
    DS("DEEPSPEED_ZERO_STAGE", "zero_stage", NULL, false),
    DS("DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE", "offload_optimizer_device", NULL, true),
    DS("DEEPSPEED_OFFLOAD_PARAM_DEVICE", "offload_param_device", NULL, true),
    DS("DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH", "offload_optimizer_nvme_path", "none", true),
    DS("DEEPSPEED_OFFLOAD_PARAM_NVME_PATH", "offload_param_nvme_path", "none", true),
    DS("DEEPSPEED_ZERO3_INIT", "zero3_init_flag", NULL, false),
    DS("DEEPSPEED_ZERO3_SAVE_16BIT_MODEL", "zero3_save_16bit_model", NULL, false),
    DS("DEEPSPEED_CONFIG_FILE", "deepspeed_config_file", "none", true),
    DS("DEEPSPEED_MOE_LAYER_CLS_NAMES", "deepspeed_moe_layer_cls_names", "none", true),
    {.name = FSDP_ON, .key = "distributed_type", .group = FSDP_ON, .says = "FSDP"},
    FSDP("VERSION", "version", "1"),
    FSDP("SHARDING_STRATEGY", "sharding_strategy", "FULL_SHARD"),
    FSDP("RESHARD_AFTER_FORWARD", "reshard_after_forward", "true"),
    FSDP("OFFLOAD_PARAMS", "offload_params", "false"),
    FSDP("ACTIVATION_CHECKPOINTING", "activation_checkpointing", "false"),
    FSDP("ACTIVATION_CHECKPOINTING_OFFLOAD", "activation_checkpointing_offload", "false"),
    FSDP("IGNORED_MODULES", "ignored_modules", "none"),
    FSDP("AUTO_WRAP_POLICY", "auto_wrap_policy", NULL),
    FSDP("TRANSFORMER_CLS_TO_WRAP", "transformer_layer_cls_to_wrap", NULL),
    FSDP("MIN_NUM_PARAMS", "min_num_params", "100000000"),
    FSDP("BACKWARD_PREFETCH", "backward_prefetch", NULL),
    FSDP("FORWARD_PREFETCH", "forward_prefetch", "false"),
    FSDP("STATE_DICT_TYPE", "state_dict_type", NULL),
    FSDP("USE_ORIG_PARAMS", "use_orig_params", "true"),
    FSDP("CPU_RAM_EFFICIENT_LOADING", "cpu_ram_efficient_loading", "true"),
    FSDP("SYNC_MODULE_STATES", "sync_module_states", "true"),
    SIZE("DP_REPLICATE_SIZE", "dp_replicate_size"),
    SIZE("DP_SHARD_SIZE", "dp_shard_size"),
    SIZE("TP_SIZE", "tp_size"),
    SIZE("CP_SIZE", "cp_size"),
    SIZE("SP_SIZE", "sp_size"),
    {.name = "WORLD_SIZE", .key = "num_processes", .group = SIZES_ON},
    {.name = "ACCELERATE_USE_MEGATRON_LM",
     .key = "distributed_type",
     .group = "ACCELERATE_USE_MEGATRON_LM",
     .says = "MEGATRON_LM"},
};
#define VARIABLE_COUNT (sizeof(variables) / sizeof(variables[0]))

/* NULL: it is not set, or empty. */
static const char *value_of(const char *const *environment, const char *name)
{
    const size_t length = strlen(name);

    for (; *environment != NULL; environment++)
        if (strncmp(*environment, name, length) == 0 && (*environment)[length] == '=')
            return (*environment)[length + 1] != '\0' ? *environment + length + 1 : NULL;
    return NULL;
}

static bool is_on(const char *const *environment, const char *name)
{
    const char *value = value_of(environment, name);

    return value != NULL && (st_text_same(value, "true") || strcmp(value, "1") == 0);
}

const char *st_recipe_variable_of(const char *key, const st_json *node)
{
    const char *dot = strchr(key, '.'), *name = dot != NULL ? dot + 1 : key;

    for (size_t i = 0; i < VARIABLE_COUNT; i++) {
        const struct variable *v = &variables[i];

        if (strcmp(v->key, name) == 0 && (v->section != NULL) == (dot != NULL) &&
            (v->says == NULL ||
             (node != NULL && st_json_type(node) == ST_JSON_STRING && strcmp(st_json_string(node), v->says) == 0)))
            return v->name;
    }
    return key;
}

/* A number or a boolean as JSON, else a string; NULL: no memory. */
static st_json *node_of(const struct variable *v, const char *value)
{
    st_json *node = NULL;

    if (v->says != NULL)
        return st_json_new_string(v->says);
    if (!v->text && (st_text_same(value, "true") || st_text_same(value, "false")))
        return st_json_new_bool(st_text_same(value, "true"));
    if (!v->text && st_json_parse(&node, value, strlen(value), v->name) == STRATA_OK) {
        if (st_json_type(node) == ST_JSON_NUMBER)
            return node;
        st_json_free(node);
    }
    return st_json_new_string(value);
}

/* False: no memory. */
static bool add(st_json *root, const struct variable *v, const char *value)
{
    st_json *into = root;

    if (v->section != NULL && (into = (st_json *)st_json_get(root, v->section)) == NULL) {
        into = st_json_new_object();
        if (!st_json_add(root, v->section, into))
            return false;
    }
    return st_json_get(into, v->key) != NULL || st_json_add(into, v->key, node_of(v, value));
}

static strata_status fill(st_json *root, const char *const *environment)
{
    for (size_t i = 0; i < VARIABLE_COUNT; i++) {
        const struct variable *v = &variables[i];
        const char *value = v->group == NULL || is_on(environment, v->group) ? value_of(environment, v->name) : NULL;

        if (value == NULL || (v->usual != NULL && st_text_same(value, v->usual)))
            continue;
        if (!st_text_is_utf8(value))
            return st_error(STRATA_E_CONFIG, "environment: %s: the value is not UTF-8", v->name);
        if (!add(root, v, value))
            return st_nomem(0);
    }
    return STRATA_OK;
}

strata_status st_recipe_environment(struct strata_recipe **out, const char *const *environment)
{
    st_json *root;
    strata_status st;

    *out = NULL;
    if (environment == NULL)
        return STRATA_OK;
    root = st_fault("config.alloc", 0) < 0 ? NULL : st_json_new_object();
    st = root != NULL ? fill(root, environment) : st_nomem(0);
    if (st == STRATA_OK && st_json_first(root) != NULL)
        return st_recipe_read(out, &st_recipe_variables, root, &(struct st_recipe_input){.path = "environment"});
    st_json_free(root);
    return st;
}
