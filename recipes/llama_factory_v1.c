/* recipes/llama_factory_v1.c - files of LLaMA-Factory's version 1, which has other keys and defaults: sections that each name
 * a plugin, and data sets in a YAML file beside them.
 *
 * Source: src/llamafactory/v1 of LLaMA-Factory at ff6d4d12: config, core/base_trainer.py, core/data_engine.py, plugins. */
#include "recipes/trainer_internal.h"

#include "core/base/error.h"
#include "core/yaml/yaml.h"

#include <string.h>

#define PEFT     "peft_config."
#define QUANT    "quant_config."
#define DIST     "dist_config."
#define SCHEDULE "strata.lr_scheduler."

static const struct st_choice class_choices[] = {{"llm", 0, ST_VERDICT_HONOURED},
                                                 {"cls", 0, ST_VERDICT_REJECTED},
                                                 {"other", 0, ST_VERDICT_REJECTED},
                                                 {NULL, 0, ST_VERDICT_HONOURED}};
static const struct st_choice peft_choices[] = {
    {"lora", 0, ST_VERDICT_HONOURED}, {"freeze", 0, ST_VERDICT_REJECTED}, {NULL, 0, ST_VERDICT_HONOURED}};
static const struct st_choice quant_choices[] = {
    {"bnb", 0, ST_VERDICT_HONOURED}, {"auto", 0, ST_VERDICT_HONOURED}, {NULL, 0, ST_VERDICT_HONOURED}};
static const struct st_choice nf4_choices[] = {
    {"nf4", 0, ST_VERDICT_HONOURED}, {"fp4", 0, ST_VERDICT_REJECTED}, {NULL, 0, ST_VERDICT_HONOURED}};
static const struct st_choice dist_choices[] = {{"fsdp2", 0, ST_VERDICT_HONOURED},
                                                {"deepspeed", 0, ST_VERDICT_HONOURED},
                                                {"fsdpturbo", 0, ST_VERDICT_REJECTED},
                                                {NULL, 0, ST_VERDICT_HONOURED}};
static const struct st_choice batching_choices[] = {{"normal", 0, ST_VERDICT_HONOURED},
                                                    {"padding_free", 0, ST_VERDICT_HONOURED},
                                                    {"dynamic_batching", 0, ST_VERDICT_REJECTED},
                                                    {"dynamic_padding_free", 0, ST_VERDICT_REJECTED},
                                                    {NULL, 0, ST_VERDICT_HONOURED}};

/* clang-format off */
static const struct st_field model_rows[] = {
    {.path = "model", .type = ST_FIELD_TEXT, .help = "--model: a Hugging Face directory, a preset, or ORG/NAME in the Hugging Face cache; nothing is downloaded"},
    {.path = "model_class", .type = ST_FIELD_CHOICE, .choices = class_choices, .fallback = "\"llm\"", .reason = "this version trains language models: llm", .help = "llm"},
    ST_RECIPE_OFF("custom_chat_template", TEXT, NULL, "write it to a file, and name that by --template"),
    ST_RECIPE_NOTICE("trust_remote_code", NULL, ANY, "no code of a model's directory is run"),
    ST_RECIPE_SPEED("flash_attn", "kernel_config", ANY, KERNELS),
    ST_RECIPE_SPEED("init_config", NULL, ANY, "weights are always read straight to their tier"),
    {.path = "peft_config", .type = ST_FIELD_OBJECT, .help = "an adapter (strata.lora); left out: full training"},
    {.path = PEFT "name", .type = ST_FIELD_CHOICE, .choices = peft_choices, .reason = "lora is in this version; strata.freeze (--set 'strata.freeze=[...]') says by patterns which tensors are frozen", .help = "lora"},
    {.path = PEFT "r", .type = ST_FIELD_INT, .min = 1, .max = 8192, .fallback = "8", .help = "r of the adapter"},
    {.path = PEFT "lora_alpha", .type = ST_FIELD_REAL, .min = 0, .max = 1e6, .fallback = "16", .help = "lora_alpha of the adapter"},
    {.path = PEFT "lora_dropout", .type = ST_FIELD_REAL, .min = 0, .max = 1, .fallback = "0.05", .help = "dropout of the adapters' inputs, in training"},
    {.path = PEFT "target_modules", .type = ST_FIELD_ANY, .fallback = "\"all\"", .help = "a name or a list of names; all: every linear layer but the head"},
    {.path = PEFT "modules_to_save", .type = ST_FIELD_ANY, .help = "a list of modules that are trained whole"},
    {.path = PEFT "use_rslora", .type = ST_FIELD_BOOL, .fallback = "false", .help = "alpha / sqrt r instead of alpha / r"},
    ST_RECIPE_OFF(PEFT "use_dora", BOOL, "false", "DoRA is not in this version"),
    {.path = PEFT "adapter_name_or_path", .type = ST_FIELD_TEXT, .help = "--adapter: an adapter in PEFT's format to go on with, whose own settings count"},
    ST_RECIPE_NOTICE(PEFT "export_dir", PEFT "export_size " PEFT "export_hub_model_id " PEFT "infer_dtype " PEFT "export_legacy_format", ANY, "of exports: strata export --help"),
    ST_RECIPE_NOTICE(PEFT "freeze_trainable_layers", PEFT "freeze_trainable_modules " PEFT "freeze_extra_modules " PEFT "cast_trainable_params_to_fp32", ANY, "of peft_config.name freeze, which strata.freeze replaces"),
    {.path = "quant_config", .type = ST_FIELD_OBJECT, .help = "linear weights of 4 bits (strata.quantization)"},
    {.path = QUANT "name", .type = ST_FIELD_CHOICE, .choices = quant_choices, .help = "bitsandbytes' formats"},
    {.path = QUANT "quantization_bit", .type = ST_FIELD_INT, .min = 2, .max = 8, .help = "4; other widths are refused; left out: none, with name auto"},
    {.path = QUANT "quantization_type", .type = ST_FIELD_CHOICE, .choices = nf4_choices, .fallback = "\"nf4\"", .reason = "nf4 is the one format of 4 bits", .help = "nf4"},
    {.path = QUANT "double_quantization", .type = ST_FIELD_BOOL, .fallback = "true", .help = "the scales quantised, too: nf4-double"},
    ST_RECIPE_IDLE(QUANT "compute_dtype", NULL, ANY, RESULTS, "matmuls are in the run's dtype"),
};

static const struct st_field data_rows[] = {
    {.path = "train_dataset", .type = ST_FIELD_TEXT, .help = "a YAML file of local data sets: --dataset of each, --dataset-info of the file"},
    ST_RECIPE_NOTICE("eval_dataset", NULL, ANY, "nothing is evaluated there: --eval-data FILE with --eval-every N does it here"),
    {.path = "cutoff_len", .type = ST_FIELD_INT, .min = 2, .max = 4294967295.0, .fallback = "2048", .to = "--cutoff-len", .help = "tokens of a sequence; at most the model's context"},
    {.path = "batching_strategy", .type = ST_FIELD_CHOICE, .choices = batching_choices, .fallback = "\"normal\"", .reason = "a step has a number of rows here, not of tokens: normal", .help = "normal, or padding_free, whose sums are the same"},
    ST_RECIPE_SPEED("batching_workers", NULL, ANY, PIPELINE),
    ST_RECIPE_NOTICE("sample_backend", "max_new_tokens", ANY, "of generation: strata generate --help"),
};

static const struct st_field output_rows[] = {
    {.path = "output_dir", .type = ST_FIELD_TEXT, .to = "--out", .help = "the model, or the adapter; checkpoints are in OUTPUT_DIR.checkpoints (--save)"},
    {.path = "save_steps", .type = ST_FIELD_INT, .min = 1, .max = COUNT_MAX, .help = "steps from checkpoint to checkpoint (--save, strata.save_every)"},
    ST_RECIPE_OFF("save_epochs", REAL, NULL, "checkpoints come by steps: save_steps N, or --save-every with a part of the run"),
    ST_RECIPE_ASKED("save_ckpt_as_hf", NULL, ANY, "strata export makes a model of a checkpoint"),
    {.path = "save_total_limit", .type = ST_FIELD_INT, .min = 1, .max = COUNT_MAX, .help = ST_TRAINER_LIMIT_HELP "left out: 2, while all stay there, which a notice says at each start"},
    {.path = "resume_from_checkpoint", .type = ST_FIELD_TEXT, .to = "--resume", .help = "auto: from the newest; a directory"},
    {.path = "logging_steps", .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0, .fallback = "1", .help = "steps from line to line (steps_per_print)"},
};

static const struct st_field train_rows[] = {
    {.path = "micro_batch_size", .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0, .fallback = "1", .to = "train_micro_batch_size_per_gpu", .help = "sequences per forward and backward"},
    {.path = "global_batch_size", .type = ST_FIELD_INT, .min = 1, .max = 4294967295.0, .to = "train_batch_size", .help = "sequences of a step; left out: one micro-batch of each rank"},
    {.path = "learning_rate", .type = ST_FIELD_REAL, .min = 0, .max = 1e3, .fallback = "1e-4", .to = "optimizer.params.lr", .help = "learning rate, which is constant"},
    {.path = "num_train_epochs", .type = ST_FIELD_INT, .min = 1, .max = 1e6, .fallback = "3", .help = "--epochs, unless max_steps is given"},
    {.path = "max_steps", .type = ST_FIELD_INT, .min = -1, .max = COUNT_MAX, .help = "--max-steps, if it is above 0"},
    {.path = "max_grad_norm", .type = ST_FIELD_REAL, .min = 1e-30, .max = 1e30, .fallback = "1.0", .help = "gradient_clipping, unless DeepSpeed's file says it"},
    {.path = "bf16", .type = ST_FIELD_BOOL, .fallback = "true", .help = "of dist_config fsdp2: bf16.enabled; with deepspeed its file says it; else full training is in fp32"},
    {.path = "seed", .type = ST_FIELD_INT, .min = 0, .max = COUNT_MAX, .fallback = "42", .to = "--seed", .help = "of the order of the data and new adapters; the order is not that of its sampler"},
    ST_RECIPE_OFF("optim_config", ANY, NULL, "AdamW is there without it, and muon is not in this version: remove it"),
    ST_RECIPE_OFF("lr_scheduler_config", ANY, NULL, "no schedule is registered there: remove it; --set strata.lr_scheduler.type=cosine is one"),
    ST_RECIPE_SPEED("enable_activation_checkpointing", NULL, ANY, PLANNED),
    ST_RECIPE_SPEED("full_determinism", NULL, ANY, KERNELS),
    {.path = "dist_config", .type = ST_FIELD_OBJECT, .help = "which part of the model a rank keeps"},
    {.path = DIST "name", .type = ST_FIELD_CHOICE, .choices = dist_choices, .reason = "experts are not split over ranks in this version: fsdp2", .help = "fsdp2: zero_optimization; deepspeed: config_file"},
    {.path = DIST "config_file", .type = ST_FIELD_TEXT, .help = "DeepSpeed's file, from the working directory or this file's"},
    {.path = DIST "reshard_after_forward", .type = ST_FIELD_BOOL, .fallback = "true", .help = "zero_optimization.stage: true 3, false 2"},
    {.path = DIST "offload_params", .type = ST_FIELD_BOOL, .help = "true: offload_optimizer and offload_param to cpu; false: the plan decides"},
    ST_RECIPE_SPEED(DIST "pin_memory", NULL, ANY, "the plan decides what is pinned"),
    ST_RECIPE_OFF(DIST "dcp_path", ANY, NULL, "weights are those of the model's directory: set it to null"),
    ST_RECIPE_NOTICE(DIST "ep_size", DIST "ep_dispatcher", ANY, "of dist_config.name fsdpturbo"),
    ST_RECIPE_OFF("cp_size", INT, "1", "each rank trains rows of its own here: set it to 1"),
    ST_RECIPE_NOTICE("cp_mode", NULL, ANY, "of cp_size"),
    ST_RECIPE_NOTICE("dp_size", "dist_timeout", ANY, LAUNCH),
    ST_RECIPE_SPEED("mp_replicate_size", "mp_shard_size", ANY, "parts are split over all ranks"),
    ST_RECIPE_NOTICE("pref_loss", "pref_beta pref_ftx simpo_gamma dpo_label_smoothing ld_alpha", ANY, "of DPO, which is not in this version"),
};
/* clang-format on */

static const struct st_section sections[] = {
    {"LLaMA-Factory 1: model", false, ST_CHANGES_RESULTS, ST_ROWS(model_rows)},
    {"LLaMA-Factory 1: data", false, ST_CHANGES_RESULTS, ST_ROWS(data_rows)},
    {"LLaMA-Factory 1: output", false, ST_CHANGES_NEITHER, ST_ROWS(output_rows)},
    {"LLaMA-Factory 1: training", false, ST_CHANGES_RESULTS, ST_ROWS(train_rows)},
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};

/* Each section there names its plugin. */
static bool is_named(struct strata_recipe *r, const char *section, const char *name)
{
    if (st_recipe_given(r, section) && st_recipe_text(r, name)[0] == '\0' && st_recipe_state_of(r, name)->node == NULL)
        st_recipe_reject(r, section, "must have a name, as there");
    return st_recipe_given(r, name);
}

static void resolve_adapter(struct strata_recipe *r)
{
    const char *targets =
        st_trainer_is(r, PEFT "target_modules", "all") ? "\"all-linear\"" : st_trainer_names(r, PEFT "target_modules", false);
    const char *saves = st_trainer_names(r, PEFT "modules_to_save", false);

    if (st_recipe_given(r, PEFT "adapter_name_or_path")) {
        st_recipe_put(r, PEFT "adapter_name_or_path", "--adapter", "%s",
                      st_recipe_beside(r, st_recipe_text(r, PEFT "adapter_name_or_path")));
        return;
    }
    st_recipe_put(r, PEFT "name", "strata.lora",
                  "{\"r\":%.0f,\"lora_alpha\":%s,\"target_modules\":%s,\"use_rslora\":%s,\"lora_dropout\":%s%s%s}",
                  st_recipe_number(r, PEFT "r"), st_recipe_real(r, st_recipe_number(r, PEFT "lora_alpha")),
                  targets != NULL ? targets : "null", st_recipe_on(r, PEFT "use_rslora") ? "true" : "false",
                  st_recipe_real(r, st_recipe_number(r, PEFT "lora_dropout")), saves != NULL ? ",\"modules_to_save\":" : "",
                  saves != NULL ? saves : "");
}

static void resolve_model(struct strata_recipe *r, bool adapter)
{
    const double bits = st_recipe_number(r, QUANT "quantization_bit");

    if (st_recipe_given(r, "model") && st_trainer_is(r, "model", ""))
        st_recipe_reject(r, "model", ST_RECIPE_EMPTY);
    else if (st_recipe_given(r, "model"))
        st_recipe_put(r, "model", "--model", "%s", st_recipe_beside(r, st_recipe_text(r, "model")));
    if (adapter)
        resolve_adapter(r);
    if (!is_named(r, "quant_config", QUANT "name") || bits == 0)
        return;
    if (bits != 4)
        st_recipe_reject(r, QUANT "quantization_bit", "4 is the one width in this version (nf4)");
    else if (!adapter)
        st_recipe_reject(r, QUANT "quantization_bit", "weights of 4 bits are frozen: peft_config.name lora");
    else
        st_recipe_put(r, QUANT "quantization_bit", "strata.quantization",
                      st_recipe_on(r, QUANT "double_quantization") ? "\"nf4-double\"" : "\"nf4\"");
}

/* The file's data sets by name; one that is not there is asked for as data, so that a run names it. */
static void put_sets(struct strata_recipe *r, const char *path)
{
    st_json *root = NULL;
    bool there = false;

    if (st_file_find(&there, path) == STRATA_OK && !there) {
        st_recipe_put(r, "train_dataset", "--data", "%s", path);
        return;
    }
    if (st_yaml_parse_file(&root, path, ST_SOURCE_FILE_MAX) != STRATA_OK) {
        st_recipe_reject(r, "train_dataset", st_source_keep(r->src, "%s", strata_last_error()));
        return;
    }
    for (const st_json *n = st_json_type(root) == ST_JSON_OBJECT ? st_json_first(root) : NULL; n != NULL; n = st_json_next(n)) {
        const st_json *of = st_json_type(n) == ST_JSON_OBJECT ? st_json_get(n, "converter") : NULL;

        st_recipe_put(r, "train_dataset", "--dataset", "%s", st_json_name(n));
        if (of != NULL && st_json_type(of) == ST_JSON_STRING && strcmp(st_json_string(of), "sharegpt") == 0)
            st_recipe_announce(r, "train_dataset", "a conversation is one row here, and one for each of its answers there");
    }
    st_recipe_put(r, "train_dataset", "--dataset-info", "%s", path);
    st_json_free(root);
}

/* Rows are written by the model's own template, and what follows the prompt is trained. */
static void resolve_data(struct strata_recipe *r)
{
    const char *path = st_recipe_text(r, "train_dataset");

    st_recipe_put(r, "train_dataset", "--layout", "rows");
    st_recipe_put(r, "train_dataset", "--train-turn-ends", NULL);
    st_recipe_put(r, "train_dataset", "--chat-template-kwargs", "%s", "{\"enable_thinking\": false}");
    if (!st_recipe_given(r, "train_dataset"))
        return;
    if (!st_yaml_is_name(path))
        st_recipe_reject(r, "train_dataset",
                         "must be a YAML file of data sets here: { NAME: { path: FILE, source: local, converter: alpaca } }");
    else
        put_sets(r, st_recipe_beside(r, path));
}

/* DeepSpeed's file: there fp16 that is off, beside bf16 that nothing says, is no mixed precision. */
static bool turns_fp16_off(struct strata_recipe *r)
{
    const st_json *section, *enabled;
    st_json *root = NULL;
    bool off = false;

    if (st_source_parse_file(&root, st_recipe_beside(r, st_recipe_text(r, DIST "config_file"))) == STRATA_E_NOMEM)
        r->src->failed = true;
    section = root != NULL && st_json_type(root) == ST_JSON_OBJECT ? st_json_get(root, "fp16") : NULL;
    enabled = section != NULL && st_json_type(section) == ST_JSON_OBJECT ? st_json_get(section, "enabled") : NULL;
    off = enabled != NULL && st_json_type(enabled) == ST_JSON_BOOL && !st_json_bool(enabled);
    st_json_free(root);
    return off;
}

/* There bf16 is what fsdp2 computes in; without it weights that are trained are fp32, and an adapter's keep their dtype. */
static void resolve_precision(struct strata_recipe *r, bool adapter)
{
    const bool fsdp = st_trainer_is(r, DIST "name", "fsdp2"), bf16 = st_recipe_on(r, "bf16");

    if (fsdp && (bf16 || !adapter)) {
        st_recipe_put(r, "bf16", "bf16.enabled", bf16 ? "true" : "false");
    } else if (st_trainer_is(r, DIST "name", "deepspeed")) {
        const bool off = turns_fp16_off(r);

        st_recipe_put_unless(r, "bf16", "bf16.enabled", "bf16.enabled", off ? "false" : "true");
        st_recipe_note(r, "bf16",
                       off ? "not used: DeepSpeed's file says it, and with fp16.enabled false its auto is false, as there"
                           : "not used: DeepSpeed's file says it, and its auto is true, as there");
    } else if (!adapter) {
        st_recipe_put(r, "bf16", "bf16.enabled", "false");
        st_recipe_announce(r, "bf16", "not used, as there: without dist_config full training is in fp32");
    }
}

static void resolve_ranks(struct strata_recipe *r)
{
    const bool deepspeed = st_trainer_is(r, DIST "name", "deepspeed");

    if (!is_named(r, "dist_config", DIST "name"))
        return;
    if (deepspeed && !st_recipe_given(r, DIST "config_file"))
        st_recipe_reject(r, DIST "name", "deepspeed: config_file must name DeepSpeed's file, as there");
    if (deepspeed) {
        snprintf(r->deepspeed, sizeof(r->deepspeed), "%s", st_recipe_beside(r, st_recipe_text(r, DIST "config_file")));
        st_recipe_note(r, "max_grad_norm", "not used there with deepspeed: its file clips, and its auto is 1, as here");
        return;
    }
    st_recipe_put(r, DIST "reshard_after_forward", "zero_optimization.stage",
                  st_recipe_on(r, DIST "reshard_after_forward") ? "3" : "2");
    if (!st_recipe_on(r, DIST "offload_params"))
        return;
    st_recipe_put(r, DIST "offload_params", "zero_optimization.offload_optimizer.device", "\"cpu\"");
    st_recipe_put(r, DIST "offload_params", "zero_optimization.offload_param.device", "\"cpu\"");
}

static void resolve(struct strata_recipe *r)
{
    const bool adapter = is_named(r, "peft_config", PEFT "name");

    resolve_model(r, adapter);
    resolve_data(r);
    resolve_precision(r, adapter);
    resolve_ranks(r);
    st_trainer_resolve_length(r);
    if (st_recipe_number(r, "max_steps") <= 0)
        st_recipe_announce(r, "num_train_epochs", "an epoch's last step has what is left, and there it is dropped");
    if (st_recipe_given(r, "save_steps"))
        st_trainer_put_save(r, "save_steps");
    st_trainer_resolve_limit(r, st_recipe_given(r, "save_steps") ? "save_steps" : NULL);
    if (st_recipe_given(r, "save_steps"))
        st_trainer_put_steps(r, "save_steps", "--save-every", "strata.save_every");
    st_recipe_put_unless(r, "logging_steps", "steps_per_print", "steps_per_print", "%.0f", st_recipe_number(r, "logging_steps"));
    if (!st_recipe_given(r, "global_batch_size"))
        st_recipe_put_unless(r, "global_batch_size", "train_batch_size", "gradient_accumulation_steps", "1");
    st_recipe_put_unless(r, "max_grad_norm", "gradient_clipping", "gradient_clipping", "%s",
                         st_recipe_real(r, st_recipe_number(r, "max_grad_norm")));
    st_recipe_put_unless(r, "learning_rate", "optimizer.type", "optimizer.type", "\"AdamW\"");
    st_recipe_put_unless(r, "learning_rate", "optimizer.type", "optimizer.params.weight_decay", "0.01"); /* torch's */
    st_recipe_put_unless(r, "learning_rate", "optimizer.type", "strata.decay_all", "true");
    st_recipe_put_unless(r, "learning_rate", "scheduler.type", SCHEDULE "type", "\"constant\"");
}

static const char *const marks[] = {"train_dataset", "peft_config", "dist_config", "kernel_config",
                                    "quant_config",  "model_class", NULL};
static const char *const others[] = {"model_name_or_path", "base_model", "finetuning_type", NULL};

const struct st_recipe_trainer st_recipe_llama_factory_v1 = {
    .name = "LLaMA-Factory's version 1",
    .sections = sections,
    .marks = marks,
    .others = others,
    .resolve = resolve,
};
