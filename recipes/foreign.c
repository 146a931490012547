/* recipes/foreign.c - files of trainers whose keys are not read are called what they are, in one sentence with a remedy. */
#include "recipes/recipe_internal.h"

#include "core/base/error.h"

#include <string.h>

#define PATH_MAX_BYTES 64
#define EXPORT         "LLaMA-Factory's file of an export: strata export --merge --model DIR --adapter DIR --out DIR merges an adapter"
#define BY_KEYS        "name the run by LLaMA-Factory's keys (docs/yaml.md) or by options"

/* Words are keys, with a dot inside a section, and spaces between them. */
struct foreign {
    const char *all;  /* the file has each of them */
    const char *any;  /* and one of these; NULL: that is all */
    const char *none; /* and none of these; NULL: likewise */
    const char *text;
};

static const struct foreign table[] = {
    {"base_model", "sequence_len micro_batch_size datasets pretraining_dataset adapter", "model_name_or_path",
     "axolotl's file, whose keys are not read: " BY_KEYS "; its DeepSpeed file goes to --config"},
    {"model_name_or_path",
     "num_generations reward_funcs max_completion_length max_prompt_length precompute_ref_log_probs rpo_alpha desirable_weight "
     "beta",
     "stage",
     "TRL's file of a run by preferences or rewards (DPO, GRPO, ORPO, ...): this version trains on texts, so take its SFT file"},
    {"model_name_or_path export_dir", NULL, "stage dataset do_train learning_rate", EXPORT},
    {"model_name_or_path infer_backend", NULL, "stage dataset do_train learning_rate eval_dataset",
     "LLaMA-Factory's file of a chat: strata generate --model DIR --adapter DIR --chat is one"},
    {"", "tensor_model_parallel_size pipeline_model_parallel_size virtual_pipeline_model_parallel_size use_mca", NULL,
     "a file for Megatron, which splits layers between GPUs: leave out its keys, and deepspeed names a file with "
     "zero_optimization"},
    {"", "optim_wrapper default_hooks custom_hooks", NULL,
     "mmengine's configuration (the earlier XTuner's), whose keys are not read: " BY_KEYS},
    {"", "model._component_ tokenizer._component_ dataset._component_ optimizer._component_", NULL,
     "torchtune's file, which names parts of its program: " BY_KEYS},
    {"model peft_config.export_dir", NULL, "model_name_or_path train_dataset", EXPORT},
};

/* Whether the root has the key of `length` bytes. */
static bool has(const st_json *root, const char *key, size_t length)
{
    char name[PATH_MAX_BYTES];
    char *dot;

    if (length >= sizeof(name))
        return false;
    memcpy(name, key, length);
    name[length] = '\0';
    if ((dot = strchr(name, '.')) == NULL)
        return st_json_get(root, name) != NULL;
    *dot = '\0';
    root = st_json_get(root, name);
    return root != NULL && st_json_type(root) == ST_JSON_OBJECT && st_json_get(root, dot + 1) != NULL;
}

static unsigned count(const st_json *root, const char *words, unsigned *of)
{
    unsigned found = 0;

    for (*of = 0; *words != '\0'; words += strspn(words, " "), ++*of) {
        const size_t length = strcspn(words, " ");

        found += has(root, words, length);
        words += length;
    }
    return found;
}

static bool is(const st_json *root, const struct foreign *f)
{
    unsigned of;

    return count(root, f->all, &of) == of && (f->any == NULL || count(root, f->any, &of) > 0) &&
           (f->none == NULL || count(root, f->none, &of) == 0);
}

strata_status st_recipe_foreign(const st_json *root, const char *path)
{
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]) && st_json_type(root) == ST_JSON_OBJECT; i++)
        if (is(root, &table[i]))
            return st_error(STRATA_E_CONFIG, "%s: %s", path, table[i].text);
    return STRATA_OK;
}
