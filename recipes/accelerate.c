/* recipes/accelerate.c - Accelerate's config files: a configuration in other words, with DeepSpeed's keys or with a file of
 * DeepSpeed's.
 *
 * Source: commands/config/config_args.py (ClusterConfig) and utils/dataclasses.py (DeepSpeedPlugin) of accelerate 1.15. */
#include "recipes/fsdp_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define LAUNCH         "the launcher says which ranks there are: docs/ranks.md"
#define DS             "deepspeed_config."
#define ACCUMULATION   DS "gradient_accumulation_steps"
#define PAR            "parallelism_config."
#define PAR_SIZE(name) PAR "parallelism_config_" name
#define ZERO           "zero_optimization."
#define SAME_ROWS      "each rank trains rows of its own"
#define ELSE           "DEEPSPEED and FSDP share a model among ranks here"

static const struct st_choice environment_choices[] = {
    {"LOCAL_MACHINE", 0, ST_VERDICT_HONOURED},
    {"AMAZON_SAGEMAKER", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice type_choices[] = {
    {"DEEPSPEED", 0, ST_VERDICT_HONOURED},    {"FSDP", 0, ST_VERDICT_HONOURED},       {"NO", 0, ST_VERDICT_HONOURED},
    {"MULTI_GPU", 0, ST_VERDICT_HONOURED},    {"MULTI_CPU", 0, ST_VERDICT_HONOURED},  {"MEGATRON_LM", 0, ST_VERDICT_REJECTED},
    {"TP", 0, ST_VERDICT_REJECTED},           {"MULTI_NPU", 0, ST_VERDICT_REJECTED},  {"MULTI_XPU", 0, ST_VERDICT_REJECTED},
    {"MULTI_MLU", 0, ST_VERDICT_REJECTED},    {"MULTI_SDAA", 0, ST_VERDICT_REJECTED}, {"MULTI_MUSA", 0, ST_VERDICT_REJECTED},
    {"MULTI_HPU", 0, ST_VERDICT_REJECTED},    {"XLA", 0, ST_VERDICT_REJECTED},        {"TPU", 0, ST_VERDICT_REJECTED},
    {"MULTI_NEURON", 0, ST_VERDICT_REJECTED}, {NULL, 0, ST_VERDICT_HONOURED},
};

static const char *const type_refusals[][2] = {
    {"MEGATRON_LM", "layers are not split into stages of a pipeline in this version: " ELSE},
    {"TP", "matrices are not split over ranks in this version: " ELSE},
    {"MULTI_XPU", "Intel's GPUs are not in this version: MULTI_GPU (NVIDIA's) or MULTI_CPU"},
    {"MULTI_NPU", "Ascend's NPUs are not in this version: MULTI_GPU (NVIDIA's) or MULTI_CPU"},
    {"XLA", "TPUs are not in this version: MULTI_GPU (NVIDIA's) or MULTI_CPU"},
    {"TPU", "TPUs are not in this version: MULTI_GPU (NVIDIA's) or MULTI_CPU"},
    {NULL, NULL},
};

static const struct st_choice precision_choices[] = {
    {"no", 0, ST_VERDICT_HONOURED},  {"fp16", 0, ST_VERDICT_HONOURED}, {"bf16", 0, ST_VERDICT_HONOURED},
    {"fp8", 0, ST_VERDICT_REJECTED}, {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice tier_choices[] = {
    {"none", 0, ST_VERDICT_HONOURED},
    {"cpu", 0, ST_VERDICT_HONOURED},
    {"nvme", 0, ST_VERDICT_HONOURED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
static const struct st_field cluster_rows[] = {
    {.path = "compute_environment", .type = ST_FIELD_CHOICE, .choices = environment_choices, .reason = "runs are of this machine or a launcher's",
     .help = "where runs are started"},
    {.path = "distributed_type", .type = ST_FIELD_CHOICE, .choices = type_choices,
     .refusals = type_refusals, .reason = "such devices are not in this version: MULTI_GPU (NVIDIA's) or MULTI_CPU",
     .help = "DEEPSPEED: as deepspeed_config says; FSDP: as fsdp_config says; MULTI_GPU, MULTI_CPU: each rank has all of the model (stage 0)"},
    {.path = "mixed_precision", .type = ST_FIELD_CHOICE, .choices = precision_choices, .reason = "8-bit matmuls are not in this version: bf16 or fp16",
     .help = "bf16.enabled, fp16.enabled; no: as the weights are stored. Not beside deepspeed_config_file"},
    {.path = "num_processes", .type = ST_FIELD_ANY, .is_told = true, .help = "of all machines; " LAUNCH},
    {.path = "num_machines", .type = ST_FIELD_ANY, .is_told = true, .help = LAUNCH},
    {.path = "gpu_ids", .type = ST_FIELD_ANY, .is_told = true, .help = "all, or as many as there are processes on a machine; " LAUNCH},
    ST_RECIPE_NOTICE("machine_rank", "main_process_ip main_process_port rdzv_backend same_network "
                     "main_training_function enable_cpu_affinity mpirun_config", ANY, LAUNCH),
    ST_RECIPE_SPEED("use_cpu", NULL, ANY, "--device says where the run is"),
    ST_RECIPE_SPEED("debug", "dynamo_config dynamo_backend", ANY, "of PyTorch's"),
    ST_RECIPE_NOTICE("downcast_bf16", "tpu_name tpu_zone tpu_use_cluster tpu_use_sudo tpu_env tpu_vm command_file commands", ANY, "of TPUs"),
    ST_RECIPE_OFF("megatron_lm_config", ANY, NULL, "Megatron-LM's splits are not in this version: " ELSE),
    ST_RECIPE_OFF("fp8_config", ANY, NULL, "8-bit matmuls are not in this version: bf16 or fp16"),
};

#define SIZE(name_, help_)                                                                                                       \
    {                                                                                                                            \
        .path = PAR_SIZE(name_), .aliases = PAR name_, .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0,      \
        .help = (help_)                                                                                                          \
    }
static const struct st_field parallelism_rows[] = {
    {.path = "parallelism_config", .type = ST_FIELD_OBJECT, .help = "sizes, with or without parallelism_config_ before them"},
    SIZE("dp_replicate_size", "times dp_shard_size it is 1 or the number of ranks"),
    SIZE("dp_shard_size", "times dp_replicate_size it is 1 or the number of ranks; fsdp_config says the stage"),
    SIZE("tp_size", "1; above it is refused: " SAME_ROWS),
    SIZE("cp_size", "1; above it is refused: " SAME_ROWS),
    SIZE("sp_size", "1; above it is refused: " SAME_ROWS),
    ST_RECIPE_NOTICE(PAR "parallelism_config_cp_backend", PAR "cp_backend " PAR "parallelism_config_cp_comm_strategy " PAR "cp_comm_strategy "
                     PAR "parallelism_config_sp_backend " PAR "sp_backend " PAR "parallelism_config_sp_seq_length " PAR "sp_seq_length "
                     PAR "parallelism_config_sp_seq_length_is_variable " PAR "sp_seq_length_is_variable "
                     PAR "parallelism_config_sp_attn_implementation " PAR "sp_attn_implementation", ANY, "of sizes that are 1 here"),
};

static const struct st_field deepspeed_rows[] = {
    {.path = "deepspeed_config", .type = ST_FIELD_OBJECT, .help = "DeepSpeed's keys, or where its file is"},
    {.path = DS "deepspeed_config_file", .type = ST_FIELD_TEXT,
     .help = "DeepSpeed's file, from the working directory or this file's; mixed_precision, clipping, accumulation and tiers beside it are errors, as there"},
    {.path = ACCUMULATION, .type = ST_FIELD_INT, .min = 1, .max = STRATA_GRAD_ACCUM_MAX, .auto_text = "1",
     .help = "micro-batches per step"},
    {.path = DS "gradient_clipping", .type = ST_FIELD_REAL, .min = 0, .max = 1e30, .auto_text = "1", .help = "norm that gradients are scaled down to"},
    {.path = DS "zero_stage", .type = ST_FIELD_INT, .min = 0, .max = 3, .help = ZERO "stage; left out: 2"},
    {.path = DS "offload_optimizer_device", .type = ST_FIELD_CHOICE, .choices = tier_choices, .help = "tier of the optimizer's state"},
    {.path = DS "offload_param_device", .type = ST_FIELD_CHOICE, .choices = tier_choices, .help = "tier of the weights"},
    {.path = DS "offload_optimizer_nvme_path", .type = ST_FIELD_TEXT, .help = ZERO "offload_optimizer.nvme_path, where the device is nvme"},
    {.path = DS "offload_param_nvme_path", .type = ST_FIELD_TEXT, .help = ZERO "offload_param.nvme_path, where the device is nvme"},
    ST_RECIPE_SPEED(DS "zero3_init_flag", NULL, BOOL, "weights are always read straight to their tier"),
    {.path = DS "zero3_save_16bit_model", .type = ST_FIELD_BOOL, .help = "the model is always saved whole"},
    ST_RECIPE_NOTICE(DS "deepspeed_hostfile", DS "deepspeed_multinode_launcher " DS "deepspeed_inclusion_filter " DS "deepspeed_exclusion_filter", ANY, LAUNCH),
    ST_RECIPE_NOTICE(DS "seq_parallel_communication_data_type", NULL, ANY, "of a size that is 1 here"),
    ST_RECIPE_NOTICE(DS "deepspeed_moe_layer_cls_names", NULL, ANY, "the plan knows a layer's experts, and follows no trace"),
};
/* clang-format on */

static const struct st_section sections[] = {
    {"Accelerate", false, ST_CHANGES_RESULTS, ST_ROWS(cluster_rows)},
    {"Accelerate: deepspeed_config", false, ST_CHANGES_RESULTS, ST_ROWS(deepspeed_rows)},
    {"Accelerate: fsdp_config", false, ST_CHANGES_RESULTS, ST_ROWS(st_recipe_fsdp_rows)},
    {"Accelerate: parallelism_config", false, ST_CHANGES_RESULTS, ST_ROWS(parallelism_rows)},
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};

static bool in_variables(const struct strata_recipe *r)
{
    return r->trainer->spelling != NULL;
}

/* A file and arguments must not set the same thing, as in Accelerate. */
static void resolve_file(struct strata_recipe *r)
{
    static const char *const beside[] = {"mixed_precision",
                                         ACCUMULATION,
                                         DS "gradient_clipping",
                                         DS "zero_stage",
                                         DS "offload_optimizer_device",
                                         DS "offload_param_device",
                                         DS "offload_optimizer_nvme_path",
                                         DS "offload_param_nvme_path",
                                         DS "zero3_save_16bit_model"};

    for (size_t i = 0; i < sizeof(beside) / sizeof(beside[0]) && !in_variables(r); i++)
        if (st_recipe_given(r, beside[i]))
            st_recipe_reject(r, beside[i],
                             "stands beside deepspeed_config_file, which says it: leave it out here, as Accelerate demands, too");
    snprintf(r->deepspeed, sizeof(r->deepspeed), "%s", st_recipe_beside(r, st_recipe_text(r, DS "deepspeed_config_file")));
}

static void resolve_path(struct strata_recipe *r, const char *device, const char *path, const char *to)
{
    if (!st_recipe_given(r, path) || strcmp(st_recipe_text(r, path), "none") == 0)
        return;
    if (strcmp(st_recipe_text(r, device), "nvme") == 0)
        st_recipe_put(r, path, to, "%s", st_recipe_quoted(r, st_recipe_text(r, path)));
    else
        st_recipe_idle(r, path, "not used: the device is not nvme");
}

static bool has_members(struct strata_recipe *r, const char *section)
{
    return st_recipe_given(r, section) && st_json_first(st_recipe_node(r, section)) != NULL;
}

/* Accelerate's launcher hands a section's members on only for its distributed_type. */
static bool is_type(struct strata_recipe *r, const char *type)
{
    return st_recipe_given(r, "distributed_type") && strcmp(st_recipe_text(r, "distributed_type"), type) == 0;
}

static bool is_fsdp(struct strata_recipe *r)
{
    return is_type(r, "FSDP") ||
           (!st_recipe_given(r, "distributed_type") && has_members(r, "fsdp_config") && !st_recipe_given(r, "deepspeed_config"));
}

static bool is_deepspeed(struct strata_recipe *r)
{
    return is_type(r, "DEEPSPEED") || (!st_recipe_given(r, "distributed_type") && !is_fsdp(r));
}

static void put_device(struct strata_recipe *r, const char *device, const char *to)
{
    if (st_recipe_given(r, device))
        st_recipe_put(r, device, to, "\"%s\"", st_recipe_text(r, device));
}

/* Variables may set only an accumulation, and may ask for DeepSpeed without more. */
static bool has_deepspeed(struct strata_recipe *r)
{
    return st_recipe_given(r, in_variables(r) ? "distributed_type" : "deepspeed_config");
}

/* Its variable is read whatever the type is. */
static void put_accumulation(struct strata_recipe *r)
{
    if (st_recipe_given(r, ACCUMULATION))
        st_recipe_put(r, ACCUMULATION, "gradient_accumulation_steps", "%.0f", st_recipe_number(r, ACCUMULATION));
}

static void resolve_deepspeed(struct strata_recipe *r)
{
    if (has_deepspeed(r) || st_recipe_given(r, DS "zero_stage"))
        st_recipe_put(r, DS "zero_stage", ZERO "stage", "%.0f",
                      st_recipe_given(r, DS "zero_stage") ? st_recipe_number(r, DS "zero_stage") : 2);
    if (st_recipe_given(r, DS "gradient_clipping"))
        st_recipe_put(r, DS "gradient_clipping", "gradient_clipping", "%s",
                      st_recipe_real(r, st_recipe_number(r, DS "gradient_clipping")));
    put_device(r, DS "offload_optimizer_device", ZERO "offload_optimizer.device");
    put_device(r, DS "offload_param_device", ZERO "offload_param.device");
    resolve_path(r, DS "offload_optimizer_device", DS "offload_optimizer_nvme_path", ZERO "offload_optimizer.nvme_path");
    resolve_path(r, DS "offload_param_device", DS "offload_param_nvme_path", ZERO "offload_param.nvme_path");
}

static void leave_deepspeed(struct strata_recipe *r)
{
    for (size_t i = 0; i < sizeof(deepspeed_rows) / sizeof(deepspeed_rows[0]); i++)
        if (st_recipe_given(r, deepspeed_rows[i].path) && deepspeed_rows[i].type != ST_FIELD_OBJECT &&
            !(in_variables(r) && strcmp(deepspeed_rows[i].path, ACCUMULATION) == 0))
            st_recipe_announce(r, deepspeed_rows[i].path, "not used: distributed_type is not DEEPSPEED");
}

/* --- ranks --- */

/* How many ids are named; 0: all, or none. */
static uint32_t ids_in(const st_json *node)
{
    uint32_t count = 1;

    if (st_json_type(node) == ST_JSON_ARRAY) {
        count = 0;
        for (const st_json *n = st_json_first(node); n != NULL; n = st_json_next(n))
            count++;
    } else if (st_json_type(node) == ST_JSON_STRING) {
        if (st_json_string(node)[0] == '\0' || strcmp(st_json_string(node), "all") == 0)
            return 0;
        for (const char *at = st_json_string(node); *at != '\0'; at++)
            count += *at == ',';
    }
    return count;
}

/* The batch counts the ranks that there are, whatever the file says of them.  @return it says other ones */
static bool tells_ranks(struct strata_recipe *r)
{
    const double asked = st_recipe_number(r, "num_processes");

    if (r->ranks == 0 || asked < 1 || asked == r->ranks)
        return false;
    st_recipe_announce(
        r, "num_processes",
        st_source_keep(r->src, "%.0f, and %u here: strata launch -n %.0f train ... starts them all", asked, r->ranks, asked));
    if (!in_variables(r))
        st_recipe_state_of(r, "num_processes")->verdict = ST_VERDICT_NOTICE;
    return true;
}

static void resolve_ids(struct strata_recipe *r)
{
    static const char *const keys[] = {"num_processes", "num_machines", "gpu_ids"};
    const double machines = st_recipe_number(r, "num_machines") > 1 ? st_recipe_number(r, "num_machines") : 1;
    const double processes = floor(st_recipe_number(r, "num_processes") / machines);
    const uint32_t ids = st_recipe_given(r, "gpu_ids") ? ids_in(st_recipe_node(r, "gpu_ids")) : 0;

    if (ids > 0 && processes >= 1 && processes != ids)
        st_recipe_reject(
            r, "gpu_ids",
            st_source_keep(r->src, "names %u, and num_processes asks for %.0f on a machine: make them equal", ids, processes));
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (st_recipe_given(r, keys[i]) && !(i == 0 && tells_ranks(r)))
            (in_variables(r) ? st_recipe_note : st_recipe_idle)(r, keys[i], LAUNCH);
}

/* 1: it is left out, as there. */
static double size_of(struct strata_recipe *r, const char *key)
{
    return st_recipe_given(r, key) ? st_recipe_number(r, key) : 1;
}

static void resolve_parallelism(struct strata_recipe *r)
{
    static const char *const same_rows[] = {PAR_SIZE("tp_size"), PAR_SIZE("cp_size"), PAR_SIZE("sp_size")};
    static const char *const own_rows[] = {PAR_SIZE("dp_shard_size"), PAR_SIZE("dp_replicate_size")};
    const double sizes[] = {size_of(r, own_rows[0]), size_of(r, own_rows[1])}, ranks = st_recipe_number(r, "num_processes");
    const double product = sizes[0] * sizes[1];
    bool other = false;

    for (size_t i = 0; i < sizeof(same_rows) / sizeof(same_rows[0]); i++)
        if (size_of(r, same_rows[i]) > 1) {
            st_recipe_reject(r, same_rows[i],
                             st_source_keep(r->src, "%.0f ranks would train the same rows: set it to 1, as " SAME_ROWS " here",
                                            st_recipe_number(r, same_rows[i])));
            other = true;
        }
    if (product > 1 && ranks >= 1 && product != ranks && !other)
        st_recipe_reject(r, own_rows[sizes[0] > 1 ? 0 : 1],
                         st_source_keep(r->src,
                                        "dp_replicate_size %.0f x dp_shard_size %.0f is %.0f, and %s is %.0f: make them equal",
                                        sizes[1], sizes[0], product, st_recipe_spelling(r, "num_processes"), ranks));
    else if (product > 1 && sizes[1] > 1 && sizes[0] > 1)
        st_recipe_announce(r, own_rows[0], "parts are split over all ranks, not over dp_shard_size of them");
}

/* --- a whole file --- */

static void resolve_precision(struct strata_recipe *r)
{
    const char *precision = st_recipe_text(r, "mixed_precision");

    if (in_variables(r) && (strcmp(precision, "bf16") == 0 || strcmp(precision, "fp16") == 0)) /* else both could be on */
        st_recipe_put(r, "mixed_precision", precision[0] == 'b' ? "fp16.enabled" : "bf16.enabled", "false");
    if (strcmp(precision, "bf16") == 0)
        st_recipe_put(r, "mixed_precision", "bf16.enabled", "true");
    else if (strcmp(precision, "fp16") == 0)
        st_recipe_put(r, "mixed_precision", "fp16.enabled", "true");
    else if (precision[0] != '\0')
        st_recipe_note(r, "mixed_precision",
                       in_variables(r) ? "weights are trained in the dtype that they are stored in, where no file names another"
                                       : "weights are trained in the dtype that they are stored in");
}

static void resolve(struct strata_recipe *r)
{
    const bool deepspeed = is_deepspeed(r);

    resolve_ids(r);
    resolve_parallelism(r);
    if (is_fsdp(r) && in_variables(r) && !st_recipe_given(r, "fsdp_config.fsdp_sharding_strategy") &&
        !st_recipe_given(r, "fsdp_config.fsdp_reshard_after_forward"))
        st_recipe_note(r, "distributed_type", "zero_optimization.stage 3, where no file names another");
    if (is_fsdp(r))
        st_recipe_fsdp(r, (struct st_recipe_fsdp){.version = 1, .stage = 3});
    else
        st_recipe_fsdp_leave(r, "not used: distributed_type is not FSDP");
    if (deepspeed && st_recipe_given(r, DS "deepspeed_config_file")) {
        resolve_file(r);
        if (!in_variables(r)) /* there they must agree with the file */
            return;
    }
    if (deepspeed)
        resolve_deepspeed(r);
    else
        leave_deepspeed(r);
    if (deepspeed || in_variables(r))
        put_accumulation(r);
    if (!deepspeed || !st_recipe_given(r, DS "gradient_clipping"))
        st_recipe_put(r, deepspeed ? DS "gradient_clipping" : "compute_environment", "gradient_clipping", "\"auto\"");
    st_recipe_put(r, "compute_environment", "train_batch_size",
                  "\"auto\""); /* else an accumulation without a batch size is an error */
    resolve_precision(r);
}

static const char *const marks[] = {"compute_environment", "distributed_type", "deepspeed_config", "fsdp_config", NULL};

const struct st_recipe_trainer st_recipe_accelerate = {
    .name = "Accelerate",
    .sections = sections,
    .marks = marks,
    .config = true,
    .resolve = resolve,
};

const struct st_recipe_trainer st_recipe_variables = {
    .name = "Accelerate's launcher",
    .sections = sections,
    .config = true,
    .resolve = resolve,
    .spelling = st_recipe_variable_of,
};
