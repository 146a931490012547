/* recipes/llama_factory.c - rules between LLaMA-Factory's keys: what those become that depend on others. */
#include "recipes/llama_factory_internal.h"

#include "recipes/trainer_internal.h"

#include <stdio.h>
#include <string.h>

/* --- method --- */

/* PEFT's words for a new adapter; one that goes on has its own. */
static void resolve_adapter(struct strata_recipe *r)
{
    static const char *const of_new[] = {"lora_rank",   "lora_alpha",        "lora_dropout",
                                         "lora_target", "additional_target", "use_rslora"};
    const double alpha = st_recipe_given(r, "lora_alpha") && st_recipe_number(r, "lora_alpha") > 0
                             ? st_recipe_number(r, "lora_alpha")
                             : 2 * st_recipe_number(r, "lora_rank"); /* `lora_alpha or lora_rank * 2` there */
    const char *targets = st_trainer_is(r, "lora_target", "all") ? "\"all-linear\"" : st_recipe_list(r, "lora_target");
    const bool saves = st_recipe_given(r, "additional_target"), drops = st_recipe_number(r, "lora_dropout") > 0;

    for (size_t i = 0; i < sizeof(of_new) / sizeof(of_new[0]) && st_recipe_given(r, "adapter_name_or_path"); i++)
        if (st_recipe_given(r, of_new[i]))
            st_recipe_idle(r, of_new[i], "not used: adapter_config.json of adapter_name_or_path says it, as there");
    if (st_recipe_given(r, "adapter_name_or_path"))
        return;
    st_recipe_put(
        r, "finetuning_type", "strata.lora", "{\"r\":%.0f,\"lora_alpha\":%s,\"target_modules\":%s,\"use_rslora\":%s%s%s%s%s}",
        st_recipe_number(r, "lora_rank"), st_recipe_real(r, alpha), targets, st_recipe_on(r, "use_rslora") ? "true" : "false",
        drops ? ",\"lora_dropout\":" : "", drops ? st_recipe_real(r, st_recipe_number(r, "lora_dropout")) : "",
        saves ? ",\"modules_to_save\":" : "", saves ? st_recipe_list(r, "additional_target") : "");
}

static void resolve_quantization(struct strata_recipe *r, bool adapter)
{
    if (!st_recipe_given(r, "quantization_bit"))
        return;
    if (st_recipe_number(r, "quantization_bit") != 4)
        st_recipe_reject(r, "quantization_bit", "4 is the one width in this version (nf4)");
    else if (!adapter)
        st_recipe_reject(r, "quantization_bit", "weights of 4 bits are frozen: finetuning_type lora");
    else
        st_recipe_put(r, "quantization_bit", "strata.quantization",
                      st_recipe_on(r, "double_quantization") ? "\"nf4-double\"" : "\"nf4\"");
}

static void resolve_model(struct strata_recipe *r, bool adapter)
{
    st_trainer_resolve_model(r);
    if (!st_recipe_given(r, "adapter_name_or_path"))
        return;
    if (!adapter)
        st_recipe_reject(r, "adapter_name_or_path", "belongs to finetuning_type lora, as there");
    else if (strchr(st_recipe_text(r, "adapter_name_or_path"), ',') != NULL)
        st_recipe_reject(r, "adapter_name_or_path",
                         "names several: merge all but the last (strata export --merge) and train with the result");
    else
        st_recipe_put(r, "adapter_name_or_path", "--adapter", "%s",
                      st_recipe_beside(r, st_recipe_text(r, "adapter_name_or_path")));
}

static void resolve_method(struct strata_recipe *r)
{
    static const char *const other[] = {"do_predict", "do_eval"};
    const bool adapter = st_trainer_is(r, "finetuning_type", "lora");

    resolve_model(r, adapter);
    if (st_recipe_given(r, "do_train") && !st_recipe_on(r, "do_train"))
        st_recipe_reject(r, "do_train", "false asks for no training: strata eval evaluates a model");
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]) && !st_recipe_given(r, "do_train"); i++)
        if (st_recipe_on(r, other[i]))
            st_recipe_reject(r, other[i], "without do_train asks for no training: strata eval evaluates a model");
    if (adapter)
        resolve_adapter(r);
    if (st_recipe_given(r, "moe_aux_loss_coef") && st_recipe_number(r, "moe_aux_loss_coef") == 0)
        st_recipe_idle(r, "moe_aux_loss_coef", "0 leaves it to config.json, as there: --set strata.router_aux_loss_coef=0 turns it off");
    else if (st_recipe_given(r, "moe_aux_loss_coef"))
        st_recipe_put(r, "moe_aux_loss_coef", "strata.router_aux_loss_coef", "%s",
                      st_recipe_real(r, st_recipe_number(r, "moe_aux_loss_coef")));
    resolve_quantization(r, adapter);
    st_trainer_resolve_precision(r, adapter, st_recipe_on(r, "pure_bf16") ? "pure_bf16" : NULL);
}

/* --- data --- */

static void resolve_layout(struct strata_recipe *r)
{
    static const char *const of_sft[] = {"neat_packing", "train_on_prompt", "mask_history"};
    const bool packs = st_recipe_given(r, "packing") && st_recipe_on(r, "packing");

    if (st_trainer_is(r, "stage", "pt")) {
        for (size_t i = 0; i < sizeof(of_sft) / sizeof(of_sft[0]); i++)
            if (st_recipe_on(r, of_sft[i]))
                st_recipe_reject(r, of_sft[i], "belongs to stage sft, as there");
        st_recipe_put(r, "packing", "--layout", packs || !st_recipe_given(r, "packing") ? "concatenated" : "rows");
        return;
    }
    if (st_recipe_on(r, "train_on_prompt") && st_recipe_on(r, "mask_history"))
        st_recipe_reject(r, "mask_history", "excludes train_on_prompt, as there");
    if (packs && !st_recipe_on(r, "neat_packing"))
        st_recipe_announce(r, "packing", "as neat_packing: true: documents that share a sequence do not see each other here");
    st_recipe_put(r, st_recipe_on(r, "neat_packing") ? "neat_packing" : "packing", "--layout",
                  packs || st_recipe_on(r, "neat_packing") ? "packed" : "rows");
}

/* The first three built-in templates give LLaMA-Factory's ids and trained tokens; the others are the models'. */
static void resolve_template(struct strata_recipe *r)
{
    static const char *const built_in[] = {"chatml", "llama3", "qwen", "llama2", "mistral", "gemma", "alpaca"};
    const size_t equal = 3, count = sizeof(built_in) / sizeof(built_in[0]);
    const char *name = st_recipe_text(r, "template");
    size_t found = 0;

    if (st_trainer_is(r, "stage", "pt"))
        return;
    st_recipe_put(r, "template", "--train-turn-ends", NULL);
    if (!st_recipe_on(r, "enable_thinking"))
        st_recipe_put(r, "enable_thinking", "--chat-template-kwargs", "%s", "{\"enable_thinking\": false}");
    while (found < count && strcmp(built_in[found], name) != 0)
        found++;
    if (found < count)
        st_recipe_put(r, "template", "--template", "%s", name);
    if (found >= equal && name[0] != '\0')
        st_recipe_announce(
            r, "template",
            found < count ? "written as the models' makers write it: spaces, line ends and the system prompt may differ there"
                          : "no built-in template has this name: conversations are written by the model's own chat template, or "
                            "--template's");
}

static void put_sets(struct strata_recipe *r, const char *key, const char *option)
{
    const st_json *list = st_source_parse(r->src, st_recipe_list(r, key));

    for (const st_json *n = list != NULL ? st_json_first(list) : NULL; n != NULL; n = st_json_next(n))
        st_recipe_put(r, key, option, "%s", st_json_string(n));
}

static bool evaluates_sets(struct strata_recipe *r)
{
    return st_recipe_text(r, "eval_dataset")[0] != '\0';
}

/* There tokens are made in that directory, and nothing is trained; one that is there is trained from. */
static void resolve_tokenized(struct strata_recipe *r)
{
    const char *path = st_recipe_text(r, "tokenized_path");
    bool there = false;

    if (path[0] == '\0')
        return;
    if (st_file_find(&there, st_recipe_beside(r, path)) == STRATA_OK && there)
        st_recipe_reject(r, "tokenized_path",
                         "tokens of datasets (arrow) are not read: remove the key, and tokens are made of dataset");
    else
        st_recipe_reject(r, "tokenized_path",
                         "asks to make tokens and stop: strata tokens makes a token file; without the key train makes its own");
}

static void resolve_data(struct strata_recipe *r)
{
    const char *names = st_recipe_text(r, "dataset");

    resolve_tokenized(r);
    if (names[0] != '\0') {
        put_sets(r, "dataset", "--dataset");
        st_recipe_put(r, "dataset_dir", "--dataset-info", "%s/dataset_info.json",
                      st_recipe_beside(r, st_recipe_text(r, "dataset_dir")));
    } else if (st_recipe_given(r, "dataset")) {
        st_recipe_reject(r, "dataset", ST_RECIPE_EMPTY);
    }
    resolve_layout(r);
    resolve_template(r);
    if (evaluates_sets(r) && st_recipe_number(r, "val_size") > 0)
        st_recipe_reject(r, "eval_dataset", "excludes val_size, as there");
    else if (evaluates_sets(r))
        put_sets(r, "eval_dataset", "--eval-dataset");
    if (st_recipe_number(r, "val_size") > 0)
        st_recipe_put(r, "val_size", "--val-size", "%s", st_recipe_real(r, st_recipe_number(r, "val_size")));
}

static void resolve(struct strata_recipe *r)
{
    const bool held = st_recipe_number(r, "val_size") > 0 || evaluates_sets(r);

    resolve_method(r);
    resolve_data(r);
    st_trainer_resolve(r, st_recipe_given(r, "early_stopping_steps"),
                       held ? NULL : "no rows are held out: val_size, eval_dataset, or --eval-data FILE with --eval-every N");
}

static const char *const marks[] = {"model_name_or_path", "finetuning_type", "dataset_dir", "per_device_train_batch_size",
                                    "cutoff_len",         "lora_rank",       NULL};

const struct st_recipe_trainer st_recipe_llama_factory = {
    .name = "LLaMA-Factory",
    .sections = st_llama_factory_sections,
    .marks = marks,
    .resolve = resolve,
};
