/* recipes/trl.c - TRL's files for SFT: what `trl sft --config FILE.yaml` and the alignment handbook's recipes say beside
 * Trainer's keys.
 *
 * Source: trl/scripts/sft.py, sft_config.py, model_config.py and scripts/utils.py of TRL 1.16; configs.py of the handbook for the
 * names that it had before. */
#include "core/base/text.h"
#include "recipes/trainer_internal.h"

#include <stdio.h>
#include <string.h>

#define NOT_READ  "rows are read whole: keep the wished ones in a file of their own, and name that"
#define CHOSEN    "below 1 some rows are drawn, which is not in this version: write them to a file (datasets: .select(), .to_json())"
#define TEMPLATES "a file of Jinja is one: --template FILE"
#define MIXTURE   "dataset_mixture."
#define FILE_MAX  4096u

static const struct st_choice dtype_choices[] = {
    {"float32", 0, ST_VERDICT_HONOURED}, {"bfloat16", 0, ST_VERDICT_HONOURED}, {"auto", 0, ST_VERDICT_HONOURED},
    {"float16", 0, ST_VERDICT_REJECTED}, {NULL, 0, ST_VERDICT_HONOURED},
};

static const struct st_choice nf4_choices[] = {
    {"nf4", 0, ST_VERDICT_HONOURED},
    {"fp4", 0, ST_VERDICT_REJECTED},
    {NULL, 0, ST_VERDICT_HONOURED},
};

/* clang-format off */
static const struct st_field model_rows[] = {
    {.path = "dtype", .aliases = "torch_dtype", .type = ST_FIELD_CHOICE, .choices = dtype_choices, .fallback = "\"float32\"", .reason = "weights that are trained are never fp16: fp16: true scales the loss, too", .help = "what is computed in where bf16 and fp16 are false; auto: as the weights are stored. Masters are exact in any"},
    {.path = "use_peft", .type = ST_FIELD_BOOL, .fallback = "false", .help = "true: an adapter (strata.lora)"},
    {.path = "lora_r", .type = ST_FIELD_INT, .min = 1, .max = 8192, .fallback = "16", .help = "r of the adapter"},
    {.path = "lora_alpha", .type = ST_FIELD_REAL, .min = 0, .max = 1e6, .fallback = "32", .help = "lora_alpha of the adapter"},
    {.path = "lora_dropout", .type = ST_FIELD_REAL, .min = 0, .max = 1, .fallback = "0.05", .help = "dropout of the adapters' inputs, in training"},
    {.path = "lora_target_modules", .type = ST_FIELD_ANY, .help = "target_modules: all-linear, or a list of names; a single one is a regular expression, as there; left out: PEFT's for the model"},
    {.path = "lora_modules_to_save", .type = ST_FIELD_ANY, .help = "modules_to_save: a list of names"},
    {.path = "use_rslora", .type = ST_FIELD_BOOL, .fallback = "false", .help = "alpha / sqrt r instead of alpha / r"},
    ST_RECIPE_OFF("use_dora", BOOL, "false", "DoRA is not in this version"),
    {.path = "lora_target_parameters", .type = ST_FIELD_ANY, .help = "target_parameters: stacks of experts, such as mlp.experts.down_proj; lora_dropout must be 0 then"},
    ST_RECIPE_OFF("lora_task_type", TEXT, "CAUSAL_LM", "language models are trained here: CAUSAL_LM"),
    {.path = "load_in_4bit", .type = ST_FIELD_BOOL, .fallback = "false", .help = "linear weights in 4 bits (strata.quantization), with use_peft"},
    ST_RECIPE_OFF("load_in_8bit", BOOL, "false", "4 bits are the one width in this version: load_in_4bit"),
    {.path = "bnb_4bit_quant_type", .type = ST_FIELD_CHOICE, .choices = nf4_choices, .fallback = "\"nf4\"", .reason = "nf4 is the one format of 4 bits", .help = "of load_in_4bit"},
    {.path = "use_bnb_nested_quant", .type = ST_FIELD_BOOL, .fallback = "false", .help = "the scales quantised, too: nf4-double"},
    ST_RECIPE_SPEED("bnb_4bit_quant_storage", "attn_implementation use_flash_attention_2 activation_offloading", ANY, KERNELS),
    ST_RECIPE_OFF("model_init_kwargs", ANY, NULL, "config.json says what the model is: remove it"),
    {.path = "router_aux_loss_coef", .type = ST_FIELD_REAL, .min = 0, .max = 1000, .help = "strata.router_aux_loss_coef; left out: config.json's, even if its output_router_logits is false, as there; 0: no auxiliary loss"},
    ST_RECIPE_NOTICE("ignore_bias_buffers", NULL, ANY, LAUNCH),
};

static const struct st_field data_rows[] = {
    {.path = "dataset_name", .type = ST_FIELD_TEXT, .help = "--data: a file, or a directory with train.jsonl; of ORG/NAME nothing is downloaded, and a sentence says how to make the file"},
    ST_RECIPE_OFF("dataset_config", ANY, NULL, NOT_READ),
    {.path = "dataset_train_split", .type = ST_FIELD_TEXT, .fallback = "\"train\"", .help = "of a directory: SPLIT.jsonl"},
    {.path = "dataset_test_split", .type = ST_FIELD_TEXT, .fallback = "\"test\"", .help = "of a directory: --eval-data SPLIT.jsonl, where eval_strategy asks for it"},
    ST_RECIPE_OFF("dataset_streaming", BOOL, "false", "rows are read once, before training: remove it"),
    {.path = "datasets", .type = ST_FIELD_ANY, .help = "a list of path, data_files, split, fraction: --data each; below 1 a fraction is refused"},
    ST_RECIPE_OFF("streaming", BOOL, "false", "rows are read once, before training: remove it"),
    {.path = "test_split_size", .type = ST_FIELD_REAL, .min = 0, .max = COUNT_MAX, .help = "--val-size: as many rows as there, but not the same ones"},
    {.path = "dataset_mixture", .type = ST_FIELD_OBJECT, .help = "the same as the handbook writes it"},
    {.path = MIXTURE "datasets", .type = ST_FIELD_ANY, .help = "a list of id, split, weight: --data each; below 1 a weight is refused"},
    {.path = MIXTURE "test_split_size", .type = ST_FIELD_REAL, .min = 0, .max = COUNT_MAX, .help = "--val-size, likewise"},
    ST_RECIPE_IDLE(MIXTURE "seed", NULL, ANY, RESULTS, "seed decides about the order here"),
    {.path = "dataset_mixer", .type = ST_FIELD_ANY, .help = "the same in the handbook's earlier files: names with a fraction each"},
    ST_RECIPE_NOTICE("dataset_splits", NULL, ANY, "--data and --eval-data name the files of splits"),
    ST_RECIPE_OFF("dataset_configs", ANY, NULL, NOT_READ),
    ST_RECIPE_OFF("dataset_text_field", TEXT, "text", "texts are read from the column text: rename the other one to it"),
    ST_RECIPE_OFF("dataset_kwargs", ANY, NULL, "rows become tokens as docs/data.md says: remove it"),
    ST_RECIPE_SPEED("dataset_num_proc", "preprocessing_num_workers num_proc", ANY, PIPELINE),
    {.path = "max_length", .aliases = "max_seq_length", .type = ST_FIELD_INT, .min = 2, .max = 4294967295.0, .fallback = "1024", .to = "--cutoff-len", .help = "tokens of a sequence, at most the model's context; what is longer loses its end"},
    ST_RECIPE_OFF("truncation_mode", TEXT, "keep_start", "what is too long loses its end: keep_start"),
    ST_RECIPE_OFF("truncation_side", TEXT, "right", "what is too long loses its end: right"),
    {.path = "packing", .type = ST_FIELD_BOOL, .fallback = "false", .help = "true: documents share a sequence and do not see each other (--layout packed); false: a row each"},
    {.path = "packing_strategy", .type = ST_FIELD_TEXT, .fallback = "\"bfd\"", .help = "bfd; others are refused where packing is on"},
    ST_RECIPE_SPEED("padding_free", "pad_to_multiple_of pad_token", ANY, "no padding is computed here"),
    ST_RECIPE_ASKED("eval_packing", NULL, ANY, "held-out rows are laid out as those that are trained"),
    ST_RECIPE_IDLE("shuffle_dataset", NULL, ANY, RESULTS, SHUFFLED),
    {.path = "completion_only_loss", .type = ST_FIELD_BOOL, .help = "of a prompt and its completion the completion is trained; false is refused"},
    {.path = "assistant_only_loss", .type = ST_FIELD_BOOL, .fallback = "false", .help = "true: only the answers of conversations; false: every token (--train-on-prompt)"},
    {.path = "chat_template_path", .type = ST_FIELD_TEXT, .reason = TEMPLATES, .help = "--template: a file of Jinja; left out: the model's own"},
    ST_RECIPE_OFF("chat_template", ANY, NULL, TEMPLATES),
    {.path = "tokenizer_name_or_path", .type = ST_FIELD_TEXT, .to = "--tokenizer", .help = "a directory with a tokenizer; left out: the model's"},
    ST_RECIPE_OFF("eos_token", ANY, NULL, "tokenizer_config.json says which token ends a text: set eos_token there"),
    ST_RECIPE_OFF("auto_insert_empty_system_msg", BOOL, "false", "the chat template says what stands in for a missing system prompt"),
    ST_RECIPE_OFF("loss_type", TEXT, "nll", "the loss is cross-entropy here: nll"),
};

static const struct st_field train_rows[] = {
    {.path = "learning_rate", .type = ST_FIELD_REAL, .min = 0, .max = 1e3, .fallback = "2e-5", .to = "optimizer.params.lr", .help = "learning rate"},
    {.path = "bf16", .type = ST_FIELD_BOOL, .fallback = "true", .help = "bf16.enabled, unless fp16 is true"},
    ST_RECIPE_NOTICE("do_train", NULL, ANY, "the command is train"),
    ST_RECIPE_ASKED("do_eval", "do_predict", ANY, EVALUATION),
    ST_RECIPE_ASKED("wandb_entity", "wandb_project wandb_run_group", ANY, METRICS),
};
/* clang-format on */

static const struct st_section sections[] = {
    {"TRL: model", false, ST_CHANGES_RESULTS, ST_ROWS(model_rows)},
    {"TRL: data", false, ST_CHANGES_RESULTS, ST_ROWS(data_rows)},
    {"TRL: training", false, ST_CHANGES_RESULTS, ST_ROWS(train_rows)},
    ST_TRAINER_SECTIONS,
    {NULL, false, ST_CHANGES_INHERITED, NULL, 0},
};

/* --- model --- */

static void resolve_adapter(struct strata_recipe *r)
{
    const char *targets = st_trainer_names(r, "lora_target_modules", true),
               *saves = st_trainer_names(r, "lora_modules_to_save", false),
               *parameters = st_trainer_names(r, "lora_target_parameters", false);

    if (parameters != NULL && st_recipe_number(r, "lora_dropout") > 0)
        st_recipe_reject(r, "lora_target_parameters", "PEFT wants no dropout beside it: lora_dropout: 0");
    st_recipe_put(r, "use_peft", "strata.lora",
                  "{\"r\":%.0f,\"lora_alpha\":%s,\"lora_dropout\":%s,\"use_rslora\":%s%s%s%s%s%s%s}",
                  st_recipe_number(r, "lora_r"), st_recipe_real(r, st_recipe_number(r, "lora_alpha")),
                  st_recipe_real(r, st_recipe_number(r, "lora_dropout")), st_recipe_on(r, "use_rslora") ? "true" : "false",
                  targets != NULL ? ",\"target_modules\":" : "", targets != NULL ? targets : "",
                  saves != NULL ? ",\"modules_to_save\":" : "", saves != NULL ? saves : "",
                  parameters != NULL ? ",\"target_parameters\":" : "", parameters != NULL ? parameters : "");
}

static void leave_adapter(struct strata_recipe *r)
{
    static const char *const keys[] = {
        "lora_r",    "lora_alpha", "lora_dropout", "lora_target_modules", "lora_modules_to_save", "lora_target_parameters",
        "use_rslora"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (st_recipe_given(r, keys[i]))
            st_recipe_idle(r, keys[i], "not used: use_peft is off, as there");
}

/* Weights in bf16 themselves are trained over exact masters here. */
static void resolve_precision(struct strata_recipe *r, bool adapter)
{
    const bool fp16 = st_recipe_on(r, "fp16"), autocast = fp16 || st_recipe_on(r, "bf16");
    const bool bfloat16 = st_trainer_is(r, "dtype", "bfloat16"), stored = st_trainer_is(r, "dtype", "auto");

    if (adapter && autocast && st_recipe_given(r, "dtype"))
        st_recipe_note(r, "dtype",
                       fp16 ? "fp16 is on, in which frozen weights are used" : "bf16 is on, in which frozen weights are used");
    else if (fp16 && bfloat16)
        st_recipe_reject(r, "dtype", "bfloat16 beside fp16: leave one of them out");
    else if (stored && adapter)
        st_recipe_note(r, "dtype", ST_TRAINER_STORED);
    else if (stored)
        st_recipe_announce(r, "dtype", ST_TRAINER_EXACT);
    if (adapter && !autocast && !stored)
        st_recipe_put(r, st_recipe_given(r, "dtype") ? "dtype" : "bf16", "bf16.enabled", bfloat16 ? "true" : "false");
    else if (autocast || !stored)
        st_trainer_resolve_precision(r, adapter, bfloat16 && !adapter && !fp16 ? "dtype" : NULL);
}

static void resolve_model(struct strata_recipe *r)
{
    const bool adapter = st_recipe_on(r, "use_peft");

    st_trainer_resolve_model(r);
    (adapter ? resolve_adapter : leave_adapter)(r);
    if (st_recipe_on(r, "load_in_4bit") && !adapter)
        st_recipe_reject(r, "load_in_4bit", "weights of 4 bits are frozen: use_peft: true");
    else if (st_recipe_on(r, "load_in_4bit"))
        st_recipe_put(r, "load_in_4bit", "strata.quantization",
                      st_recipe_on(r, "use_bnb_nested_quant") ? "\"nf4-double\"" : "\"nf4\"");
    if (st_recipe_given(r, "router_aux_loss_coef"))
        st_recipe_put(r, "router_aux_loss_coef", "strata.router_aux_loss_coef", "%s",
                      st_recipe_real(r, st_recipe_number(r, "router_aux_loss_coef")));
    else
        st_recipe_put(r, "router_aux_loss_coef", "strata.output_router_logits", "true");
    resolve_precision(r, adapter);
}

/* --- data --- */

/* DIR/SPLIT.jsonl or .json; NULL: there is none. */
static const char *file_of(struct strata_recipe *r, const char *dir, const char *split)
{
    static const char *const ends[] = {"jsonl", "json"};

    for (size_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
        char path[FILE_MAX];
        bool there = false;

        if ((size_t)snprintf(path, sizeof(path), "%s/%s.%s", dir, split, ends[i]) < sizeof(path) &&
            st_file_find(&there, path) == STRATA_OK && there)
            return st_source_keep_whole(r->src, path);
    }
    return NULL;
}

/* A split's file in a directory, else what is named: --data says what becomes of a directory, and of a name of the Hub. */
static void put_set(struct strata_recipe *r, const char *key, const char *name, const char *split)
{
    const char *found = st_recipe_beside(r, name), *file = file_of(r, found, split);

    st_recipe_put(r, key, "--data", "%s", file != NULL ? file : found);
}

/* One name, or a list of them. */
static void put_files(struct strata_recipe *r, const char *key, const st_json *files)
{
    const bool list = st_json_type(files) == ST_JSON_ARRAY;

    for (const st_json *n = list ? st_json_first(files) : files; n != NULL; n = list ? st_json_next(n) : NULL)
        if (st_json_type(n) == ST_JSON_STRING)
            st_recipe_put(r, key, "--data", "%s", st_recipe_beside(r, st_json_string(n)));
        else
            st_recipe_reject(r, key, "data_files must be a name, or a list of names: " NOT_READ);
}

static bool is_text(const st_json *node)
{
    return node != NULL && st_json_type(node) == ST_JSON_STRING && st_json_string(node)[0] != '\0';
}

/* What a set's columns leave: "messages" are read before all others. */
static bool reads_messages(const st_json *columns)
{
    for (const st_json *n = st_json_type(columns) == ST_JSON_ARRAY ? st_json_first(columns) : NULL; n != NULL;
         n = st_json_next(n))
        if (is_text(n) && strcmp(st_json_string(n), "messages") == 0)
            return true;
    return false;
}

/* What a member of a set asks for that is not done; NULL: nothing. */
static const char *asks_more(const st_json *n)
{
    static const char *const parts[] = {"name", "config", "data_dir"};
    const char *name = st_json_name(n);

    if (st_json_type(n) == ST_JSON_NULL)
        return NULL;
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        if (strcmp(name, parts[i]) == 0)
            return NOT_READ;
    if (strcmp(name, "columns") == 0)
        return reads_messages(n) ? NULL
                                 : "columns without messages: rows are read whole, so keep only those columns in the file";
    if (strcmp(name, "fraction") == 0 || strcmp(name, "weight") == 0)
        return st_json_type(n) != ST_JSON_NUMBER || st_json_number(n) < 1 ? CHOSEN : NULL;
    if (strcmp(name, "path") == 0 || strcmp(name, "id") == 0 || strcmp(name, "split") == 0 || strcmp(name, "data_files") == 0)
        return NULL;
    return "a set has path (id), data_files, split, columns and fraction (weight)";
}

/* {path: NAME, fraction: 1} of `datasets`, {id: NAME, weight: 1} of the handbook's. */
static void put_entry(struct strata_recipe *r, const char *key, const st_json *set)
{
    const bool object = st_json_type(set) == ST_JSON_OBJECT;
    const st_json *path = object ? st_json_get(set, "path") : NULL, *files = object ? st_json_get(set, "data_files") : NULL,
                  *split = object ? st_json_get(set, "split") : NULL;

    path = object && path == NULL ? st_json_get(set, "id") : path;
    if (!is_text(path)) {
        st_recipe_reject(r, key, "must be a list of sets, each with a path (id)");
        return;
    }
    for (const st_json *n = st_json_first(set); n != NULL; n = st_json_next(n))
        if (asks_more(n) != NULL) {
            st_recipe_reject(r, key, st_source_keep(r->src, "%.64s of a set: %s", st_json_name(n), asks_more(n)));
            return;
        }
    if (files != NULL && st_json_type(files) != ST_JSON_NULL)
        put_files(r, key, files);
    else
        put_set(r, key, st_json_string(path), is_text(split) ? st_json_string(split) : "train");
}

static void put_sets(struct strata_recipe *r, const char *key)
{
    const st_json *sets = st_recipe_node(r, key);

    if (st_json_type(sets) != ST_JSON_ARRAY || st_json_first(sets) == NULL)
        st_recipe_reject(r, key, "must be a list of sets, each with a path (id)");
    else
        for (const st_json *n = st_json_first(sets); n != NULL && st_recipe_given(r, key); n = st_json_next(n))
            put_entry(r, key, n);
}

/* {NAME: 1.0, ...} */
static void put_mixer(struct strata_recipe *r)
{
    const st_json *sets = st_recipe_node(r, "dataset_mixer");

    if (st_json_type(sets) != ST_JSON_OBJECT) {
        st_recipe_reject(r, "dataset_mixer", "must be names of sets with a fraction each");
        return;
    }
    for (const st_json *n = st_json_first(sets); n != NULL; n = st_json_next(n)) {
        if (st_json_type(n) != ST_JSON_NUMBER || st_json_number(n) < 1) {
            st_recipe_reject(r, "dataset_mixer", CHOSEN);
            return;
        }
        put_set(r, "dataset_mixer", st_json_name(n), "train");
    }
}

/* The first key that names sets; the script takes `datasets` before dataset_name. */
static const char *sets_key(struct strata_recipe *r)
{
    static const char *const keys[] = {"datasets", MIXTURE "datasets", "dataset_mixer", "dataset_name"};
    const char *first = NULL;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        if (!st_recipe_given(r, keys[i]))
            continue;
        if (first == NULL)
            first = keys[i];
        else
            st_recipe_idle(r, keys[i], st_source_keep(r->src, "not used: %s is given", first));
    }
    return first;
}

static void resolve_sets(struct strata_recipe *r)
{
    const char *key = sets_key(r);

    if (key == NULL)
        return;
    if (strcmp(key, "dataset_mixer") == 0)
        put_mixer(r);
    else if (strcmp(key, "dataset_name") != 0)
        put_sets(r, key);
    else if (st_trainer_is(r, key, ""))
        st_recipe_reject(r, key, ST_RECIPE_EMPTY);
    else
        put_set(r, key, st_recipe_text(r, key), st_recipe_text(r, "dataset_train_split"));
}

/* Whether rows are held out: of the set, or a file beside it. */
static bool resolve_held(struct strata_recipe *r)
{
    static const char *const sizes[] = {"test_split_size", MIXTURE "test_split_size"};
    const char *file;

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++)
        if (st_recipe_number(r, sizes[i]) > 0) {
            st_recipe_put(r, sizes[i], "--val-size", "%s", st_recipe_real(r, st_recipe_number(r, sizes[i])));
            return true;
        }
    if (!st_recipe_given(r, "dataset_name") || !st_recipe_given(r, "eval_strategy") || st_trainer_is(r, "eval_strategy", "no"))
        return false;
    file = file_of(r, st_recipe_beside(r, st_recipe_text(r, "dataset_name")), st_recipe_text(r, "dataset_test_split"));
    if (file != NULL)
        st_recipe_put(r, "dataset_test_split", "--eval-data", "%s", file);
    return file != NULL;
}

static void resolve_template(struct strata_recipe *r)
{
    const char *path = st_recipe_text(r, "chat_template_path");

    if (st_path_ends(path, ".jinja") || st_path_ends(path, ".j2"))
        st_recipe_put(r, "chat_template_path", "--template", "%s", st_recipe_beside(r, path));
    else if (st_recipe_given(r, "chat_template_path"))
        st_recipe_reject(r, "chat_template_path", "must be a file of Jinja, such as DIR/chat_template.jinja");
}

/* Null there means something other than the default. */
static bool is_null(const struct strata_recipe *r, const char *key)
{
    const st_json *node = st_json_get(r->root, key);

    return node != NULL && st_json_type(node) == ST_JSON_NULL;
}

/* What is trained of rows, and how they become sequences. */
static void resolve_rows(struct strata_recipe *r)
{
    const bool packs = st_recipe_on(r, "packing");

    if (is_null(r, "max_length") || is_null(r, "max_seq_length"))
        st_recipe_reject(r, "max_length", "null: sequences have a length here: write the model's context");
    if (packs && !st_trainer_is(r, "packing_strategy", "bfd"))
        st_recipe_reject(r, "packing_strategy", "documents that share a sequence are not split here: bfd");
    else if (!packs && st_recipe_given(r, "packing_strategy"))
        st_recipe_idle(r, "packing_strategy", "not used: packing is off");
    st_recipe_put(r, "packing", "--layout", packs ? "packed" : "rows");
    if (st_recipe_given(r, "completion_only_loss") && !st_recipe_on(r, "completion_only_loss"))
        st_recipe_reject(r, "completion_only_loss",
                         "false: of a prompt and its completion the completion is trained; texts and conversations are trained "
                         "whole: leave it out");
    st_recipe_put(r, "truncation_mode", "--as-trl", NULL);
    if (st_recipe_on(r, "assistant_only_loss"))
        return;
    st_recipe_put(r, "assistant_only_loss", "--train-on-prompt", NULL);
    st_recipe_put(r, "assistant_only_loss", "--train-turn-ends", NULL); /* of a completion that is a list of messages */
}

static void resolve(struct strata_recipe *r)
{
    bool held;

    resolve_model(r);
    resolve_sets(r);
    held = resolve_held(r);
    resolve_template(r);
    resolve_rows(r);
    if (!st_recipe_given(r, "logging_steps"))
        st_recipe_put_unless(r, "logging_steps", "steps_per_print", "steps_per_print", "10");
    st_trainer_resolve(r, false, held ? NULL : "no rows are held out: test_split_size, or --eval-data FILE with --eval-every N");
}

static const char *const marks[] = {"dataset_name",
                                    "datasets",
                                    "dataset_mixture",
                                    "dataset_mixer",
                                    "use_peft",
                                    "torch_dtype",
                                    "attn_implementation",
                                    "assistant_only_loss",
                                    "completion_only_loss",
                                    "lora_target_modules",
                                    NULL};
static const char *const others[] = {"stage", "finetuning_type", "dataset", "template", NULL};

const struct st_recipe_trainer st_recipe_trl = {
    .name = "TRL",
    .sections = sections,
    .marks = marks,
    .others = others,
    .resolve = resolve,
};
