/* tests/recipes/test_recipe.c - what keys of trainers' files become; test_recipe_table.c has the tables. */
#include "core/yaml/yaml.h"
#include "recipes/recipe_internal.h"
#include "tests/common/fault_walk.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Accelerate hands what DeepSpeed would get on to nobody. */
#define ALONE "distributed_type: MULTI_GPU\ndeepspeed_config: {"
#define TRL   "model_name_or_path: m\ndataset_name: d\noutput_dir: out\n"
#define LF    "model_name_or_path: m\ndataset: d\noutput_dir: out\n"

static struct strata_recipe *read_recipe(const struct st_recipe_trainer *trainer, const char *text)
{
    struct strata_recipe *r = NULL;
    st_json *root = NULL;

    if (st_yaml_parse(&root, text, strlen(text), "r.yaml") != STRATA_OK)
        fail_msg("%s", strata_last_error());
    assert_ptr_equal(st_recipe_trainer_of(root), trainer);
    assert_int_equal(st_recipe_read(&r, trainer, root, &(struct st_recipe_input){.path = "r.yaml"}), STRATA_OK);
    return r;
}

/* What becomes of `to`; NULL: nothing asks for it. */
static const char *asked(const struct strata_recipe *r, const char *to)
{
    const struct st_config_said *value;

    for (uint32_t i = 0; (value = st_recipe_value_at(r, i)) != NULL; i++)
        if (strcmp(value->to, to) == 0)
            return value->text != NULL ? value->text : "(flag)";
    return NULL;
}

struct row {
    const char *text, *to, *value; /* value NULL: nothing asks for it */
};

static void expect_rows(const struct st_recipe_trainer *trainer, const char *before, const struct row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char text[1024];
        struct strata_recipe *r;
        const char *value;

        snprintf(text, sizeof(text), "%s%s\n", before, rows[i].text);
        r = read_recipe(trainer, text);
        value = asked(r, rows[i].to);
        if (r->src->problems.count > 0)
            fail_msg("%s: %s", rows[i].text, st_config_problem_at(r->src, 0));
        if ((value == NULL) != (rows[i].value == NULL) || (value != NULL && strcmp(value, rows[i].value) != 0))
            fail_msg("%s: %s is %s, not %s", rows[i].text, rows[i].to, value, rows[i].value);
        st_recipe_close(r);
    }
}

TEST(llama_factory_keys_become_options)
{
    static const struct row rows[] = {
        {"", "--model", "m"},
        {"", "--dataset", "d"},
        {"", "--dataset-info", "data/dataset_info.json"},
        {"dataset_dir: sets", "--dataset-info", "sets/dataset_info.json"},
        {"", "--cutoff-len", "2048"},
        {"cutoff_len: 512", "--cutoff-len", "512"},
        {"disable_shuffling: true", "--no-shuffle", "(flag)"},
        {"eval_dataset: a", "--eval-dataset", "a"},
        {"", "--layout", "rows"},
        {"neat_packing: true", "--layout", "packed"},
        {"packing: true", "--layout", "packed"},
        {"stage: pt", "--layout", "concatenated"},
        {"stage: pt\npacking: false", "--layout", "rows"},
        {"", "--train-turn-ends", "(flag)"},
        {"stage: pt", "--train-turn-ends", NULL},
        {"template: llama3", "--template", "llama3"},
        {"template: qwen3_nothink", "--template", NULL},
        {"train_on_prompt: true", "--train-on-prompt", "(flag)"},
        {"mask_history: yes", "--mask-history", "(flag)"},
        {"mask_history: no", "--mask-history", NULL},
        {"max_samples: 1000", "--max-samples", "1000"},
        {"val_size: 0.1", "--val-size", "0.1"},
        {"", "--val-size", NULL},
        {"", "--out", "out"},
        {"overwrite_output_dir: true", "--overwrite", "(flag)"},
        {"", "--epochs", "3"},
        {"num_train_epochs: 1.5", "--epochs", "1.5"},
        {"max_steps: 20", "--max-steps", "20"},
        {"max_steps: 20", "--epochs", NULL},
        {"", "--seed", "42"},
        {"val_size: 10\neval_strategy: steps\neval_steps: 50", "--eval-every", "50"},
        {"val_size: 10\neval_strategy: no", "--eval-every", NULL},
        {"val_size: 10\neval_strategy: steps\nlogging_steps: 0.2", "--eval-every", "0.2"},
        {"logging_steps: 0.05", "--logging-steps", "0.05"},
        {"val_size: 10\neval_strategy: epoch\neval_steps: 50", "--eval-every", "epoch"},
        {"val_size: 10\neval_strategy: steps\neval_steps: 0\nlogging_steps: 7", "--eval-every", "7"},
        {"val_size: 10\neval_strategy: steps\neval_steps: 0", "--eval-every", "500"},
        {"eval_strategy: epoch", "--eval-every", NULL},
        {"save_steps: 0.1", "--save-every", "0.1"},
        {"save_steps: 5\nsave_strategy: epoch", "--save-every", "epoch"},
        {"save_strategy: epoch", "--save", "out.checkpoints"},
        {"early_stopping_steps: 3", "--early-stop", "3"},
        {"early_stopping_steps: 3\nmetric_for_best_model: eval_loss\ngreater_is_better: false", "--early-stop", "3"},
        {"early_stopping_steps: null", "--early-stop", NULL},
        {"metric_for_best_model: eval_accuracy", "--early-stop", NULL},
        {"resume_from_checkpoint: null", "--resume", NULL},
        {"resume_from_checkpoint: true", "--resume", "auto"},
        {"resume_from_checkpoint: x/y", "--resume", "x/y"},
        {"adapter_name_or_path: a", "--adapter", "a"},
    };

    expect_rows(&st_recipe_llama_factory, LF, rows, sizeof(rows) / sizeof(rows[0]));
}

TEST(llama_factory_keys_become_a_configuration)
{
    static const struct row rows[] = {
        {"", "strata.lora", "{\"r\":8,\"lora_alpha\":16,\"target_modules\":\"all-linear\",\"use_rslora\":false}"},
        {"lora_dropout: 0.05", "strata.lora",
         "{\"r\":8,\"lora_alpha\":16,\"target_modules\":\"all-linear\",\"use_rslora\":false,\"lora_dropout\":0.05}"},
        {"lora_rank: 4\nlora_alpha: 6\nlora_target: q_proj, v_proj\nuse_rslora: true\nadditional_target: lm_head", "strata.lora",
         "{\"r\":4,\"lora_alpha\":6,\"target_modules\":[\"q_proj\",\"v_proj\"],\"use_rslora\":true,\"modules_to_save\":[\"lm_"
         "head\"]}"},
        {"finetuning_type: full", "strata.lora", NULL},
        {"adapter_name_or_path: a\nlora_rank: 4", "strata.lora", NULL},
        {"quantization_bit: 4", "strata.quantization", "\"nf4-double\""},
        {"quantization_bit: 4\ndouble_quantization: false\nquantization_method: bnb", "strata.quantization", "\"nf4\""},
        {"", "strata.quantization", NULL},
        {"", "strata.router_aux_loss_coef", NULL},
        {"", "strata.output_router_logits", NULL},
        {"moe_aux_loss_coef: 0.02", "strata.router_aux_loss_coef", "0.02"},
        {"moe_aux_loss_coef: 0.0", "strata.router_aux_loss_coef", NULL},
        {"use_kt: true", "strata.lora", "{\"r\":8,\"lora_alpha\":16,\"target_modules\":\"all-linear\",\"use_rslora\":false}"},
        {"", "train_micro_batch_size_per_gpu", "8"},
        {"gradient_accumulation_steps: 8", "gradient_accumulation_steps", "8"},
        {"", "optimizer.params.lr", "5e-05"},
        {"learning_rate: 1e-4", "optimizer.params.lr", "0.0001"},
        {"learning_rate: 1.0e-4", "optimizer.params.lr", "0.0001"},
        {"", "optimizer.params.betas", "[0.9,0.999]"},
        {"adam_beta2: 0.95", "optimizer.params.betas", "[0.9,0.95]"},
        {"optim: sgd", "optimizer.params.betas", NULL},
        {"optim: sgd", "optimizer.type", "\"SGD\""},
        {"optim: paged_adamw_8bit", "strata.moments", "\"8bit\""},
        {"", "strata.decay_all", "false"},
        {"", "gradient_clipping", "1"},
        {"max_grad_norm: 0.5", "gradient_clipping", "0.5"},
        {"", "strata.lr_scheduler.type", "\"linear\""},
        {"lr_scheduler_type: cosine\nwarmup_ratio: 0.1", "strata.lr_scheduler.warmup_ratio", "0.1"},
        {"warmup_ratio: 0.1\nwarmup_steps: 7", "strata.lr_scheduler.warmup_steps", "7"},
        {"warmup_ratio: 0.1\nwarmup_steps: 7", "strata.lr_scheduler.warmup_ratio", NULL},
        {"warmup_steps: 0.2", "strata.lr_scheduler.warmup_ratio", "0.2"},
        {"lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr_rate: 0.1}", "strata.lr_scheduler.min_lr_rate",
         "0.1"},
        {"lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs:\n  min_lr: 1e-6", "strata.lr_scheduler.min_lr", "1e-06"},
        {"save_steps: 0.1", "strata.save_every", NULL},
        {"save_steps: 20", "strata.save_every", "20"},
        {"logging_steps: 5", "steps_per_print", "5"},
        {"bf16: true", "bf16.enabled", "true"},
        {"fp16: true", "fp16.enabled", "true"},
        {"pure_bf16: true", "bf16.enabled", "true"},
        {"finetuning_type: full", "bf16.enabled", "false"},
        {"", "bf16.enabled", NULL},
        {"save_steps: 500", "--save", "out.checkpoints"},
        {"save_steps: 500", "strata.save_every", "500"},
        {"save_strategy: steps", "strata.save_every", "500"},
        {"save_steps: 500\nsave_strategy: no", "--save", NULL},
        {"save_strategy: epoch", "strata.save_every", NULL},
        {"save_steps: 0", "strata.save_every", "0"},
        {"save_steps: 0", "--save", "out.checkpoints"},
        {"save_steps: 5\nsave_total_limit: 0", "strata.keep", NULL},
        {"save_steps: 5\nsave_total_limit: 22", "strata.keep", "22"},
        {"", "--save", NULL},
        {"save_steps: 5\nsave_total_limit: 3", "strata.keep", "3"},
        {"logging_steps: 10", "steps_per_print", "10"},
    };

    expect_rows(&st_recipe_llama_factory, LF, rows, sizeof(rows) / sizeof(rows[0]));
}

/* Each optimizer takes what it has, and nothing of what it has not. */
TEST(optimizers_take_what_they_have)
{
    static const struct {
        const char *optim, *type, *moments;
        bool betas, eps;
    } rows[] = {{"adamw_torch", "\"AdamW\"", NULL, true, true},
                {"adamw_torch_fused", "\"AdamW\"", NULL, true, true},
                {"adamw_8bit", "\"AdamW\"", "\"8bit\"", true, true},
                {"paged_adamw_8bit", "\"AdamW\"", "\"8bit\"", true, true},
                {"sgd", "\"SGD\"", NULL, false, false},
                {"adagrad", "\"Adagrad\"", NULL, false, false},
                {"lion_32bit", "\"Lion\"", NULL, true, false}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[256];
        const struct row wanted[] = {{text, "optimizer.type", rows[i].type},
                                     {text, "strata.moments", rows[i].moments},
                                     {text, "optimizer.params.betas", rows[i].betas ? "[0.8,0.75]" : NULL},
                                     {text, "optimizer.params.eps", rows[i].eps ? "1e-06" : NULL},
                                     {text, "optimizer.params.weight_decay", "0.25"},
                                     {text, "optimizer.params.lr", "0.5"}};

        snprintf(text, sizeof(text),
                 "optim: %s\nadam_beta1: 0.8\nadam_beta2: 0.75\nadam_epsilon: 1e-6\nweight_decay: 0.25\nlearning_rate: 0.5",
                 rows[i].optim);
        expect_rows(&st_recipe_llama_factory, LF, wanted, sizeof(wanted) / sizeof(wanted[0]));
    }
}

TEST(trls_keys)
{
    static const struct row rows[] = {
        {"", "--model", "m"},
        {"", "--data", "d"},
        {"", "--cutoff-len", "1024"},
        {"max_seq_length: 512", "--cutoff-len", "512"},
        {"", "--layout", "rows"},
        {"packing: true", "--layout", "packed"},
        {"", "--as-trl", "(flag)"},
        {"", "--train-on-prompt", "(flag)"},
        {"", "--train-turn-ends", "(flag)"},
        {"assistant_only_loss: true", "--as-trl", "(flag)"},
        {"assistant_only_loss: true", "--train-on-prompt", NULL},
        {"assistant_only_loss: true", "--train-turn-ends", NULL},
        {"", "strata.output_router_logits", "true"},
        {"", "strata.router_aux_loss_coef", NULL},
        {"router_aux_loss_coef: 0.01", "strata.router_aux_loss_coef", "0.01"},
        {"router_aux_loss_coef: 0", "strata.router_aux_loss_coef", "0"},
        {"chat_template_path: t.jinja", "--template", "t.jinja"},
        {"", "--epochs", "3"},
        {"", "--seed", "42"},
        {"", "--save", NULL},
        {"", "optimizer.params.lr", "2e-05"},
        {"", "optimizer.type", "\"AdamW\""},
        {"", "train_micro_batch_size_per_gpu", "8"},
        {"", "strata.lr_scheduler.type", "\"linear\""},
        {"", "steps_per_print", "10"},
        {"logging_steps: 3", "steps_per_print", "3"},
        {"", "bf16.enabled", "true"},
        {"bf16: false", "bf16.enabled", "false"},
        {"bf16: false\ndtype: bfloat16", "bf16.enabled", "true"},
        {"bf16: false\ndtype: auto", "bf16.enabled", NULL}, /* as the weights are stored */
        {"dtype: auto", "bf16.enabled", "true"},
        {"use_peft: true", "bf16.enabled", "true"},
        {"use_peft: true\nbf16: false", "bf16.enabled", "false"},
        {"use_peft: true\nbf16: false\ndtype: float32", "bf16.enabled", "false"},
        {"use_peft: true\nbf16: false\ntorch_dtype: bfloat16", "bf16.enabled", "true"},
        {"use_peft: true\nbf16: false\ndtype: auto", "bf16.enabled", NULL},
        {"use_peft: true\nfp16: true\ndtype: bfloat16", "bf16.enabled", "false"},
        {"fp16: true", "fp16.enabled", "true"},
        {"fp16: true", "bf16.enabled", "false"},
        {"", "strata.lora", NULL},
        {"lora_r: 4", "strata.lora", NULL},
        {"use_peft: true", "strata.lora", "{\"r\":16,\"lora_alpha\":32,\"lora_dropout\":0.05,\"use_rslora\":false}"},
        {"use_peft: true\nlora_r: 4\nlora_dropout: 0\nlora_target_modules: [q, k]\nlora_modules_to_save: [lm_head]",
         "strata.lora",
         "{\"r\":4,\"lora_alpha\":32,\"lora_dropout\":0,\"use_rslora\":false,\"target_modules\":[\"q\",\"k\"],\"modules_to_"
         "save\":[\"lm_"
         "head\"]}"},
        {"use_peft: true\nlora_dropout: 0\nlora_target_parameters: [mlp.experts.down_proj]", "strata.lora",
         "{\"r\":16,\"lora_alpha\":32,\"lora_dropout\":0,\"use_rslora\":false,\"target_parameters\":[\"mlp.experts.down_proj\"]"
         "}"},
        {"use_peft: true\nlora_target_modules: [all-linear]", "strata.lora",
         "{\"r\":16,\"lora_alpha\":32,\"lora_dropout\":0.05,\"use_rslora\":false,\"target_modules\":\"all-linear\"}"},
        {"use_peft: true\nload_in_4bit: true", "strata.quantization", "\"nf4\""},
        {"use_peft: true\nload_in_4bit: true\nuse_bnb_nested_quant: true", "strata.quantization", "\"nf4-double\""},
        {"test_split_size: 0.1", "--val-size", "0.1"},
        {"test_split_size: 0.1\neval_strategy: steps\neval_steps: 5", "--eval-every", "5"},
        {"eval_strategy: steps\neval_steps: 5", "--eval-every", NULL},
        {"datasets: [{path: e}]", "--data", "e"}, /* before dataset_name */
        {"datasets: [{path: json, data_files: [e.jsonl, f.jsonl], fraction: 1.0}]", "--data", "e.jsonl"},
    };
    static const struct row mixtures[] = {
        {"dataset_mixture: {datasets: [{id: o/n, weight: 1.0, columns: [messages]}], seed: 0, test_split_size: 100}", "--data",
         "o/n"},
        {"dataset_mixture: {datasets: [{id: o/n, config: null}], test_split_size: 100}", "--val-size", "100"},
        {"dataset_mixer: {o/n: 1.0}\ndataset_splits: [train_sft, test_sft]", "--data", "o/n"},
        {"use_peft: true", "--data", NULL},
    };

    expect_rows(&st_recipe_trl, TRL, rows, sizeof(rows) / sizeof(rows[0]));
    expect_rows(&st_recipe_trl, "model_name_or_path: m\n", mixtures, sizeof(mixtures) / sizeof(mixtures[0]));
}

/* Of a directory the files of its splits are taken. */
TEST(a_split_of_trls_is_a_file)
{
    struct strata_recipe *r;

    scratch_open();
    assert_int_equal(mkdir(scratch_path("set"), 0777), 0);
    scratch_put("set/train.jsonl", "{}");
    scratch_put("set/held.json", "[]");
    scratch_put("r.yaml", "model_name_or_path: m\ndataset_name: set\ndataset_test_split: held\neval_strategy: epoch\n");
    assert_int_equal(st_recipe_open(&r, &(struct st_recipe_input){.path = scratch_path("r.yaml")}), STRATA_OK);
    assert_string_equal(asked(r, "--data"), scratch_path("set/train.jsonl"));
    assert_string_equal(asked(r, "--eval-data"), scratch_path("set/held.json"));
    st_recipe_close(r);
    scratch_put("r.yaml", "model_name_or_path: m\ndatasets: [{path: set, split: held}]\ndataset_train_split: other\n");
    assert_int_equal(st_recipe_open(&r, &(struct st_recipe_input){.path = scratch_path("r.yaml")}), STRATA_OK);
    assert_string_equal(asked(r, "--data"), scratch_path("set/held.json"));
    assert_null(asked(r, "--eval-data"));
    st_recipe_close(r);
    scratch_close();
}

TEST(the_other_trainers_keys)
{
    static const struct row xtuner[] = {
        {"", "--model", "m"},
        {"dataset: rows.jsonl", "--data", "rows.jsonl"},
        {"", "--seq-len", "4096"},
        {"pack_max_length: 512", "--seq-len", "512"},
        {"dataloader_cfg: {pack_max_length: 256}", "--seq-len", "256"},
        {"", "--epochs", "1"},
        {"total_step: 9", "--max-steps", "9"},
        {"total_step: 9", "--epochs", NULL},
        {"", "optimizer.params.lr", "6e-05"},
        {"", "optimizer.params.betas", "[0.9,0.95]"},
        {"global_batch_size: 64", "train_batch_size", "64"},
        {"", "strata.lr_scheduler.warmup_ratio", "0.03"},
        {"warmup_ratio: 1", "strata.lr_scheduler.warmup_steps", "1"}, /* a number of steps from 1 on */
        {"warmup_ratio: 1", "strata.lr_scheduler.warmup_ratio", NULL},
        {"scheduler_type: constant", "strata.lr_scheduler.type", "\"constant_with_warmup\""},
        {"", "strata.lr_scheduler.type", "\"cosine_with_min_lr\""},
        {"", "strata.lr_scheduler.min_lr", "1e-06"},
        {"lr_min: 1e-5", "strata.lr_scheduler.min_lr", "1e-05"},
        {"lr_min: 0", "strata.lr_scheduler.type", "\"cosine\""},
        {"lr_min: 0", "strata.lr_scheduler.min_lr", NULL},
        {"lr_min: 1e-5\nscheduler_type: linear", "strata.lr_scheduler.type", "\"linear\""},
        {"lr_min: 1e-5\nscheduler_type: constant", "strata.lr_scheduler.min_lr", NULL},
        {"", "--out", "work_dir"},
        {"accumulative_counts: 4", "gradient_accumulation_steps", "4"},
        {"train_dataloader: {batch_size: 2}", "train_micro_batch_size_per_gpu", "2"},
        {"batch_size: 2", "train_micro_batch_size_per_gpu", "2"},
        {"clip_grad: {max_norm: 0.5}", "gradient_clipping", "0.5"},
        {"max_norm: 0.5", "gradient_clipping", "0.5"},
        {"", "gradient_clipping", "1.0"},
    };
    static const struct row accelerate[] = {
        {"deepspeed_config: {zero_stage: 3}", "zero_optimization.stage", "3"},
        {"deepspeed_config: {gradient_clipping: 0.5}", "zero_optimization.stage", "2"},
        {"", "zero_optimization.stage", NULL},
        {"deepspeed_config: {offload_param_device: cpu}", "zero_optimization.offload_param.device", "\"cpu\""},
        {"deepspeed_config: {offload_optimizer_device: nvme, offload_optimizer_nvme_path: /x}",
         "zero_optimization.offload_optimizer.nvme_path", "\"/x\""},
        {"deepspeed_config: {offload_optimizer_device: cpu, offload_optimizer_nvme_path: /x}",
         "zero_optimization.offload_optimizer.nvme_path", NULL},
        {"mixed_precision: bf16", "bf16.enabled", "true"},
        {"mixed_precision: fp16", "fp16.enabled", "true"},
        {"mixed_precision: no", "bf16.enabled", NULL},
        {"mixed_precision: 'no'", "fp16.enabled", NULL},
        {"deepspeed_config: {gradient_accumulation_steps: 4}", "gradient_accumulation_steps", "4"},
        {"deepspeed_config: {gradient_clipping: 0.25}", "gradient_clipping", "0.25"},
        {"deepspeed_config: {gradient_clipping: auto}", "gradient_clipping", "\"auto\""},
        {"deepspeed_config: {gradient_accumulation_steps: auto}", "gradient_accumulation_steps", NULL},
        {ALONE "zero_stage: 3}", "zero_optimization.stage", NULL},
        {ALONE "gradient_clipping: 0.25}", "gradient_clipping", "\"auto\""},
        {ALONE "gradient_accumulation_steps: 4}", "gradient_accumulation_steps", NULL},
        {ALONE "offload_optimizer_device: cpu}", "zero_optimization.offload_optimizer.device", NULL},
        {ALONE "offload_param_device: nvme, offload_param_nvme_path: /x}", "zero_optimization.offload_param.nvme_path", NULL},
        {ALONE "deepspeed_config_file: ds.json}\nmixed_precision: bf16", "bf16.enabled", "true"},
    };

    expect_rows(&st_recipe_xtuner, "load_from: m\n", xtuner, sizeof(xtuner) / sizeof(xtuner[0]));
    expect_rows(&st_recipe_accelerate, "compute_environment: LOCAL_MACHINE\n", accelerate,
                sizeof(accelerate) / sizeof(accelerate[0]));
}

/* A wizard writes switches as texts: 'no', in any case, is as good as no; another text is neither. */
TEST(switches_may_be_quoted)
{
    static const char *const words[][2] = {{"no", "yes"},     {"No", "Yes"},     {"NO", "YES"},
                                           {"false", "true"}, {"False", "True"}, {"FALSE", "TRUE"}};
    struct strata_recipe *r;

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
        for (int on = 0; on < 2; on++) {
            char text[256];

            snprintf(text, sizeof(text), LF "mask_history: '%s'\n", words[i][on]);
            r = read_recipe(&st_recipe_llama_factory, text);
            if (r->src->problems.count > 0 || (asked(r, "--mask-history") != NULL) != on)
                fail_msg("%s: %s", text,
                         r->src->problems.count > 0 ? st_config_problem_at(r->src, 0) : asked(r, "--mask-history"));
            st_recipe_close(r);
        }
    r = read_recipe(&st_recipe_llama_factory, LF "mask_history: 'maybe'\n");
    assert_int_equal(r->src->problems.count, 1);
    st_recipe_close(r);
}

struct bad_row {
    const char *text, *problem;
};

static void expect_problems(const struct st_recipe_trainer *trainer, const char *before, const struct bad_row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        struct strata_recipe *r;
        char text[1024];

        snprintf(text, sizeof(text), "%s%s\n", before, rows[i].text);
        r = read_recipe(trainer, text);
        if (r->src->problems.count == 0)
            fail_msg("%s: no problem", rows[i].text);
        if (strstr(st_config_problem_at(r->src, 0), rows[i].problem) == NULL)
            fail_msg("%s: %s, not %s", rows[i].text, st_config_problem_at(r->src, 0), rows[i].problem);
        st_recipe_close(r);
    }
}

#define V1 "model: m\ntrain_dataset: sets.yaml\n"

/* Defaults and plugins of version 1 are its own. */
TEST(version_1_keys_become_options)
{
    static const struct row rows[] = {
        {"", "--model", "m"},
        {"", "--data", "sets.yaml"}, /* which is not there, and a run says so */
        {"", "--layout", "rows"},
        {"", "--train-turn-ends", "(flag)"},
        {"", "--cutoff-len", "2048"},
        {"", "--epochs", "3"},
        {"max_steps: 10", "--epochs", NULL},
        {"max_steps: 10", "--max-steps", "10"},
        {"", "--seed", "42"},
        {"output_dir: o/\nsave_steps: 5", "--save", "o.checkpoints"},
        {"save_total_limit: 3", "strata.keep", "3"},
        {"save_steps: 5", "strata.keep", NULL},
        {"resume_from_checkpoint: auto", "--resume", "auto"},
        {"", "steps_per_print", "1"},
        {"", "train_micro_batch_size_per_gpu", "1"},
        {"", "gradient_accumulation_steps", "1"},
        {"global_batch_size: 8", "train_batch_size", "8"},
        {"global_batch_size: 8", "gradient_accumulation_steps", NULL},
        {"", "optimizer.params.lr", "0.0001"},
        {"", "optimizer.params.weight_decay", "0.01"},
        {"", "strata.decay_all", "true"},
        {"", "strata.lr_scheduler.type", "\"constant\""},
        {"", "gradient_clipping", "1"},
        {"", "bf16.enabled", "false"}, /* it counts with fsdp2 alone */
        {"dist_config: {name: fsdp2}", "bf16.enabled", "true"},
        {"dist_config: {name: fsdp2}\nbf16: false", "bf16.enabled", "false"},
        {"dist_config: {name: fsdp2, dcp_path: null}", "zero_optimization.stage", "3"},
        {"dist_config: {name: fsdp2, reshard_after_forward: false}", "zero_optimization.stage", "2"},
        {"dist_config: {name: fsdp2, offload_params: true}", "zero_optimization.offload_param.device", "\"cpu\""},
        {"dist_config: {name: deepspeed, config_file: ds.json}", "zero_optimization.stage", NULL},
        {"peft_config: {name: lora}", "strata.lora",
         "{\"r\":8,\"lora_alpha\":16,\"target_modules\":\"all-linear\",\"use_rslora\":false,\"lora_dropout\":0.05}"},
        {"peft_config: {name: lora, r: 4, lora_dropout: 0, target_modules: [q_proj]}", "strata.lora",
         "{\"r\":4,\"lora_alpha\":16,\"target_modules\":[\"q_proj\"],\"use_rslora\":false,\"lora_dropout\":0}"},
        {"peft_config: {name: lora, adapter_name_or_path: a}", "--adapter", "a"},
        {"peft_config: {name: lora}\nquant_config: {name: bnb, quantization_bit: 4}", "strata.quantization", "\"nf4-double\""},
        {"batching_strategy: padding_free", "--layout", "rows"},
    };
    static const struct bad_row bad[] = {
        {"peft_config: {name: freeze}", "r.yaml:3: peft_config.name: freeze: lora is in this version"},
        {"peft_config: {r: 4}", "r.yaml:3: peft_config: must have a name, as there"},
        {"optim_config: {name: muon}", "r.yaml:3: optim_config: AdamW is there without it"},
        {"lr_scheduler_config: {name: cosine}", "no schedule is registered there"},
        {"batching_strategy: dynamic_batching", "batching_strategy: dynamic_batching: a step has a number of rows here"},
        {"cp_size: 2", "r.yaml:3: cp_size: each rank trains rows of its own"},
        {"dist_config: {name: fsdpturbo}", "dist_config.name: fsdpturbo: experts"},
        {"dist_config: {name: deepspeed}", "config_file must name DeepSpeed's file"},
        {"dist_config: {name: fsdp2, dcp_path: x}", "dist_config.dcp_path: weights are those of the model's directory"},
        {"quant_config: {name: bnb, quantization_bit: 8}", "quantization_bit: 4 is the one width"},
        {"quant_config: {name: bnb, quantization_bit: 4}", "weights of 4 bits are frozen"},
        {"model_class: cls", "model_class: cls: this version trains language models"},
        {"max_grad_norm: 0", "max_grad_norm: 0 is out of range"},
        {"save_total_limit: 30", "save_total_limit: 30: room for each is reserved at the start, for 22 at most"},
        {"save_epochs: 0.5", "save_epochs: checkpoints come by steps"},
        {"micro_batch_sise: 1", "micro_batch_sise: no key of LLaMA-Factory's version 1; the nearest is micro_batch_size"},
    };

    expect_rows(&st_recipe_llama_factory_v1, V1, rows, sizeof(rows) / sizeof(rows[0]));
    expect_problems(&st_recipe_llama_factory_v1, V1, bad, sizeof(bad) / sizeof(bad[0]));
    expect_problems(&st_recipe_llama_factory_v1, "peft_config: {name: lora}\n",
                    &(struct bad_row){"train_dataset: org/name", "r.yaml:2: train_dataset: must be a YAML file"}, 1);
}

/* DeepSpeed's file says the precision; where bf16 is left out there, fp16 that is off means none. */
TEST(version_1_has_deepspeeds_precision)
{
    static const struct {
        const char *file, *bf16;
    } rows[] = {
        {"{\"train_batch_size\": 1}", "true"},
        {"{\"fp16\": {\"enabled\": \"auto\"}}", "true"},
        {"{\"fp16\": {\"enabled\": false}}", "false"},
        {"{\"fp16\": {\"enabled\": false}, \"bf16\": {\"enabled\": \"auto\"}}", "false"},
        {"{\"fp16\": 3}", "true"},
        {"[]", "true"},
    };

    scratch_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct strata_recipe *r = NULL;

        scratch_put("ds.json", rows[i].file);
        scratch_put("r.yaml", "model: m\ntrain_dataset: sets.yaml\ndist_config: {name: deepspeed, config_file: ds.json}\n");
        assert_int_equal(st_recipe_open(&r, &(struct st_recipe_input){.path = scratch_path("r.yaml")}), STRATA_OK);
        assert_string_equal(asked(r, "bf16.enabled"), rows[i].bf16);
        st_recipe_close(r);
    }
    scratch_close();
}

TEST(problems_name_line_and_key)
{
    static const struct bad_row rows[] = {
        {"learning_rat: 1", "r.yaml:4: learning_rat: no key of LLaMA-Factory; the nearest is learning_rate; --allow-unknown"},
        {"zzzzzzzzz: 1", "r.yaml:4: zzzzzzzzz: no key of LLaMA-Factory; --allow-unknown"},
        {"learning_rate: fast", "r.yaml:4: learning_rate: must be a number, not \"fast\""},
        {"learning_rate: \"1e-4\"", "write it without quotes"},
        {"cutoff_len: 1", "cutoff_len: 1 is out of range"},
        {"eval_dataset: a\nval_size: 2", "eval_dataset: excludes val_size, as there"},
        {"lora_rank: 8193", "r.yaml:4: lora_rank: 8193 is out of range"},
        {"lora_alpha: 1000001", "r.yaml:4: lora_alpha: 1000001 is out of range"},
        {"stage: dpo", "stage: dpo: this version trains texts (pt) and conversations (sft)"},
        {"finetuning_type: freeze", "strata.freeze"},
        {"finetuning_type: oft", "finetuning_type: oft: full and lora"},
        {"finetuning_type: qlora", "must be one of lora, full"},
        {"lora_dropout: 1.5", "r.yaml:4: lora_dropout: 1.5 is out of range"},
        {"use_dora: true", "use_dora: DoRA is not in this version"},
        {"quantization_bit: 8", "quantization_bit: 4 is the one width"},
        {"quantization_bit: 4\nfinetuning_type: full", "r.yaml:4: quantization_bit: weights of 4 bits are frozen"},
        {"quantization_bit: 4\nquantization_type: fp4", "fp4: nf4 is the one format"},
        {"quantization_method: hqq", "hqq: weights are quantised at load"},
        {"lr_scheduler_type: polynomial", "polynomial: strata.lr_scheduler has linear"},
        {"optim: adam", "sgd, adagrad, lion_32bit, paged_lion_32bit, not \"adam\""},
        {"optim: adafactor", "adafactor: this version has AdamW"},
        {"bf16: true\nfp16: true", "r.yaml:5: fp16: bf16 is true, too"},
        {"pure_bf16: true\nfp16: true", "r.yaml:5: fp16: bf16 is true, too"},
        {"do_train: false", "do_train: false asks for no training"},
        {"do_predict: true", "do_predict: without do_train asks for no training"},
        {"load_best_model_at_end: true", "load_best_model_at_end: the last weights are written; --keep-best N"},
        {"early_stopping_steps: 0", "early_stopping_steps: 0 is out of range"},
        {"early_stopping_steps: 2\nmetric_for_best_model: eval_accuracy",
         "r.yaml:5: metric_for_best_model: the lowest eval_loss is the best here"},
        {"early_stopping_steps: 2\ngreater_is_better: true",
         "r.yaml:5: greater_is_better: the lowest eval_loss is the best here"},
        {"streaming: true", "streaming: rows are read once"},
        {"save_total_limit: 30", "save_total_limit: 30: room for each is reserved at the start, for 22 at most: set it to 22"},
        {"logging_steps: 0", "logging_steps: 0 is out of range"},
        {"save_steps: 1.5", "save_steps: must be a whole number of steps, or a part of the run between 0 and 1"},
        {"lr_scheduler_type: cosine_with_min_lr", "lr_scheduler_kwargs must have min_lr or min_lr_rate"},
        {"lr_scheduler_kwargs: {min_lr: 1e-6}", "belongs to lr_scheduler_type cosine_with_min_lr"},
        {"lr_scheduler_type: cosine_with_min_lr\nlr_scheduler_kwargs: {min_lr: 1e-6, min_lr_rate: 0.1}",
         "excludes min_lr, as there"},
        {"stage: pt\nneat_packing: true", "neat_packing: belongs to stage sft"},
        {"train_on_prompt: true\nmask_history: true", "mask_history: excludes train_on_prompt"},
        {"use_galore: true", "use_galore: this version has AdamW"},
        {"rope_scaling: linear", "rope_scaling: config.json says"},
        {"adapter_name_or_path: a\nfinetuning_type: full", "adapter_name_or_path: belongs to finetuning_type lora"},
        {"adapter_name_or_path: a,b", "adapter_name_or_path: names several"},
        {"label_smoothing_factor: 0.1", "labels are not smoothed"},
    };
    static const struct bad_row trl[] = {
        {"max_lengt: 8", "r.yaml:4: max_lengt: no key of TRL; the nearest is max_length"},
        {"max_length: null", "max_length: null: sequences have a length here"},
        {"max_seq_length: null", "max_length: null: sequences have a length here"},
        {"packing: true\npacking_strategy: wrapped", "r.yaml:5: packing_strategy: documents that share a sequence are not split"},
        {"completion_only_loss: false", "completion_only_loss: false: of a prompt and its completion"},
        {"load_in_4bit: true", "load_in_4bit: weights of 4 bits are frozen: use_peft: true"},
        {"load_in_8bit: true", "load_in_8bit: 4 bits are the one width"},
        {"use_dora: true", "use_dora: DoRA is not in this version"},
        {"dtype: float16", "dtype: float16: weights that are trained are never fp16"},
        {"torch_dtype: bfloat16\nfp16: true", "r.yaml:4: dtype: bfloat16 beside fp16"},
        {"bf16: true\nfp16: true", "fp16: bf16 is true, too"},
        {"use_peft: true\nlora_target_modules: [1]", "lora_target_modules: must be a name, or a list of names"},
        {"dataset_config: c", "dataset_config: rows are read whole"},
        {"dataset_text_field: content", "dataset_text_field: texts are read from the column text"},
        {"eos_token: x", "eos_token: tokenizer_config.json says"},
        {"chat_template_path: o/n", "chat_template_path: must be a file of Jinja"},
        {"loss_type: dft", "loss_type: the loss is cross-entropy here"},
        {"datasets: [{path: d, fraction: 0.5}]", "r.yaml:4: datasets: fraction of a set: below 1 some rows are drawn"},
        {"datasets: [{path: d, columns: [text]}]", "datasets: columns of a set: columns without messages"},
        {"datasets: [{path: d, name: c}]", "datasets: name of a set: rows are read whole"},
        {"datasets: [{name: c}]", "datasets: must be a list of sets"},
        {"datasets: {path: d}", "datasets: must be a list of sets"},
        {"dataset_mixture: {datasets: [{id: d, weight: 0.5}]}", "dataset_mixture.datasets: weight of a set: below 1"},
        {"dataset_mixer: {d: 0.5}", "dataset_mixer: below 1 some rows are drawn"},
        {"optim: adafactor", "adafactor: this version has AdamW"},
    };
    static const struct bad_row empty[] = {
        {"dataset: ''", "r.yaml:2: dataset: must not be empty"},
        {"output_dir: ''", "r.yaml:2: output_dir: must not be empty"},
        {"model_name_or_path: ''", "r.yaml:2: model_name_or_path: must not be empty"},
    };
    static const struct bad_row xtuner[] = {
        {"seed: 3", "seed: no training argument of XTuner's: --seed N says it here"},
        {"save_interval: 500", "save_interval: no training argument of XTuner's: --save DIR --save-every N"},
        {"dataset: ''", "r.yaml:2: dataset: must not be empty"},
        {"work_dir: ''", "r.yaml:2: work_dir: must not be empty"},
        {"dataset: data.py", "r.yaml:2: dataset: Python files are not run"},
        {"total_step: 1\nepoch_num: 1", "epoch_num: excludes total_step"},
        {"pack_max_length: 8\ndataloader_cfg: {pack_max_length: 9}",
         "r.yaml:3: dataloader_cfg.pack_max_length: is the same key as pack_max_length: leave one out"},
        {"dataloader_cfg: {pack_max_length: 9}\npack_max_length: 8",
         "pack_max_length: is the same key as dataloader_cfg.pack_max_length: leave one out"},
        {"pack_level: hard", "dataloader_cfg.pack_level: "},
        {"dataloader_cfg: {pack_level: hard}", "dataloader_cfg.pack_level: "},
        {"optim: Muon", "Muon: this version has AdamW"},
        {"float8_config: {x: 1}", "float8_config: this version has bf16 and fp16"},
    };
    static const struct bad_row accelerate[] = {
        {"mixed_precision: fp8", "fp8: 8-bit matmuls are not in this version: bf16 or fp16"},
        {"deepspeed_config: {deepspeed_config_file: ds.json, zero_stage: 3}",
         "deepspeed_config.zero_stage: stands beside deepspeed_config_file"},
        {"mixed_precision: bf16\ndeepspeed_config: {deepspeed_config_file: ds.json}",
         "r.yaml:2: mixed_precision: stands beside deepspeed_config_file"},
        {"deepspeed_config: {offload_optimizer_device: cpu, deepspeed_config_file: ds.json}",
         "offload_optimizer_device: stands beside deepspeed_config_file"},
        {"deepspeed_config: {zero_stage: 4}", "zero_stage: 4 is out of range: 0 to 3"},
    };

    expect_problems(&st_recipe_llama_factory, LF, rows, sizeof(rows) / sizeof(rows[0]));
    expect_problems(&st_recipe_trl, TRL, trl, sizeof(trl) / sizeof(trl[0]));
    expect_problems(&st_recipe_llama_factory, "lora_rank: 8\n", empty, sizeof(empty) / sizeof(empty[0]));
    expect_problems(&st_recipe_xtuner, "load_from: m\n", xtuner, sizeof(xtuner) / sizeof(xtuner[0]));
    expect_problems(&st_recipe_accelerate, "compute_environment: LOCAL_MACHINE\n", accelerate,
                    sizeof(accelerate) / sizeof(accelerate[0]));
}

/* Values that are off, and notices, are no problems. */
TEST(what_is_off_is_no_problem)
{
    struct strata_recipe *r =
        read_recipe(&st_recipe_llama_factory,
                    LF "use_dora: false\nlora_dropout: 0.0\nmix_strategy: concat\nfsdp: ''\ntrust_remote_code: true\n"
                       "rope_scaling: null\nreport_to: [none]\nhf_hub_token: secret\n");
    bool hidden = false;

    assert_int_equal(r->src->problems.count, 0);
    for (uint32_t i = 0; i < r->src->strays.count; i++) {
        const struct st_config_row *row = &((const struct st_config_row *)r->src->strays.items)[i];

        assert_null(strstr(row->value, "secret"));
        hidden |= strcmp(row->path, "hf_hub_token") == 0;
    }
    assert_true(hidden);
    st_recipe_close(r);
}

/* --- with DeepSpeed's file --- */

static strata_status load(struct st_config *config, struct st_config_source **source, const char *recipe, const char *deepspeed)
{
    struct st_config_opts opts = {.max_steps = 100};
    struct strata_recipe *r;
    strata_status st;

    scratch_put("r.yaml", recipe);
    scratch_put("ds.json", deepspeed);
    assert_int_equal(st_recipe_open(&r, &(struct st_recipe_input){.path = scratch_path("r.yaml")}), STRATA_OK);
    opts.file = scratch_path("ds.json");
    st = st_recipe_config(config, source, &opts, r, NULL);
    st_recipe_close(r);
    return st;
}

TEST(auto_is_filled_and_the_rest_must_agree)
{
    static const char lf[] = LF "finetuning_type: full\nper_device_train_batch_size: 2\nlearning_rate: 1e-3\nbf16: "
                                "true\nmax_grad_norm: 0.5\nweight_decay: 0.1\n";
    struct st_config_source *source;
    struct st_config c;

    scratch_open();
    assert_int_equal(
        load(&c, &source, lf,
             "{\"train_micro_batch_size_per_gpu\": \"auto\", \"bf16\": {\"enabled\": \"auto\"}, \"gradient_clipping\": \"auto\", "
             "\"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"device\": \"cpu\"}}}"),
        STRATA_OK);
    assert_int_equal(c.micro_batch, 2);
    assert_int_equal(c.dtype, STRATA_BF16);
    assert_true(c.gradient_clipping == 0.5);
    assert_true(c.optimizer.lr == 1e-3);
    assert_int_equal(c.zero_stage, 3);
    assert_int_equal(c.param_tier, STRATA_TIER_HOST);
    assert_int_equal(c.schedule.shape, ST_LR_SHAPE_LINEAR);
    assert_true(c.optimizer.weight_decay == 0.1 && !c.decay_all); /* the recipe's optimizer is not the file's */
    st_config_source_free(source);

    /* Equal values agree; others do not, and both are told. */
    assert_int_equal(load(&c, &source, lf, "{\"train_micro_batch_size_per_gpu\": 2}"), STRATA_OK);
    st_config_source_free(source);
    assert_int_equal(load(&c, &source, lf, "{\"train_micro_batch_size_per_gpu\": 4}"), STRATA_E_CONFIG);
    if (strstr(strata_last_error(),
               "r.yaml:5: per_device_train_batch_size asks for train_micro_batch_size_per_gpu = 2, and it is 4 in /") == NULL)
        fail_msg("%s", strata_last_error());
    st_config_source_free(source);

    /* An adapter's settings are compared key by key. */
    assert_int_equal(load(&c, &source, LF "per_device_train_batch_size: 1\nlora_target: q_proj\n",
                          "{\"strata\": {\"lora\": {\"r\": 4, \"target_modules\": [\"q_proj\"]}}}"),
                     STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "and it is {\"r\":4,"));
    st_config_source_free(source);

    /* An optimizer and a scheduler of DeepSpeed's stand instead of those here. */
    assert_int_equal(load(&c, &source, lf,
                          "{\"optimizer\": {\"type\": \"Lion\", \"params\": {\"lr\": \"auto\", \"weight_decay\": \"auto\", "
                          "\"betas\": \"auto\"}}, "
                          "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}}}"),
                     STRATA_OK);
    assert_int_equal(c.optimizer.type, STRATA_LION);
    assert_true(c.optimizer.beta2 == 0.999 && c.optimizer.eps == 0); /* which it does not have */
    st_config_source_free(source);
    assert_int_equal(load(&c, &source, lf,
                          "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}, "
                          "\"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}}}"),
                     STRATA_OK);
    assert_int_equal(c.schedule.type, ST_LR_WARMUP);
    assert_int_equal(c.schedule.shape, ST_LR_SHAPE_NONE);
    st_config_source_free(source);
    scratch_close();
}

#define AUTO_WARMUP "\"warmup_num_steps\": \"auto\", \"warmup_max_lr\": \"auto\""
#define SCHEDULE_OF(type, params)                                                                                                \
    "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\"}}, \"scheduler\": {\"type\": \"" type                   \
    "\", \"params\": {" params "}}}"

/* As Trainer's fill_match: its warm-up, rate and length fill "auto" of DeepSpeed's scheduler, and are those of a number. */
TEST(a_scheduler_takes_the_trainers_warm_up)
{
    static const char lf[] = LF "finetuning_type: full\nper_device_train_batch_size: 1\nlearning_rate: 1e-3\nmax_steps: 100\n";
    static const struct {
        const char *line, *deepspeed, *problem; /* NULL: none */
        uint64_t warmup;
    } rows[] = {
        {"warmup_ratio: 0.073", SCHEDULE_OF("WarmupLR", AUTO_WARMUP), NULL, 8},
        {"warmup_steps: 5\nwarmup_ratio: 0.5", SCHEDULE_OF("WarmupLR", AUTO_WARMUP), NULL, 5},
        {"warmup_ratio: 0.5", SCHEDULE_OF("WarmupDecayLR", AUTO_WARMUP), NULL, 50},
        {"warmup_ratio: 0.5", SCHEDULE_OF("WarmupLR", "\"warmup_num_steps\": 50"), NULL, 50},
        {"warmup_ratio: 0.5", SCHEDULE_OF("WarmupLR", "\"warmup_max_lr\": 1e-3"), NULL, 1000},
        {"", SCHEDULE_OF("WarmupLR", "\"warmup_num_steps\": 6"), NULL, 6},
        {"warmup_steps: 2", SCHEDULE_OF("WarmupLR", "\"warmup_num_steps\": 6"),
         "warmup_num_steps: 6, and the trainer's warm-up is 2", 0},
        {"", SCHEDULE_OF("WarmupLR", "\"warmup_max_lr\": 5e-4"),
         "warmup_max_lr: 0.0005, and the trainer's learning rate is 0.001", 0},
        {"", SCHEDULE_OF("WarmupDecayLR", AUTO_WARMUP ", \"total_num_steps\": 80"),
         "total_num_steps: 80, and the trainer's run has 100 steps", 0},
    };
    char text[512];

    scratch_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_source *source;
        struct st_config c;
        strata_status st;

        snprintf(text, sizeof(text), "%s%s\n", lf, rows[i].line);
        st = load(&c, &source, text, rows[i].deepspeed);
        if (st != (rows[i].problem != NULL ? STRATA_E_CONFIG : STRATA_OK))
            fail_msg("row %zu: %s", i, strata_last_error());
        if (rows[i].problem == NULL)
            assert_int_equal(c.schedule.warmup_steps, rows[i].warmup);
        else if (strstr(strata_last_error(), rows[i].problem) == NULL)
            fail_msg("row %zu: %s", i, strata_last_error());
        st_config_source_free(source);
    }
    scratch_close();
}

/* Long lists reach the configuration whole, and what is no value of it is told: an adapter is never dropped. */
TEST(values_are_taken_whole_or_told)
{
    static char text[65536] = LF "finetuning_type: lora\nper_device_train_batch_size: 1\nlora_target: ";
    struct strata_recipe *r;
    struct st_config_source *source;
    struct st_config c;

    scratch_open();
    for (int i = 0; i < 60; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "model.layers.%d.self_attn.q_proj,", i);
    strcat(text, "v_proj\n");
    assert_int_equal(load(&c, &source, text, "{}"), STRATA_OK);
    assert_non_null(strstr(c.lora, "\"model.layers.59.self_attn.q_proj\",\"v_proj\"]"));
    st_config_source_free(source);

    r = read_recipe(&st_recipe_llama_factory, "model_name_or_path: m\nsave_steps: 5\noutput_dir: 'a\"\\b'\n");
    assert_string_equal(asked(r, "--save"), "a\"\\b.checkpoints");
    st_recipe_close(r);

    text[strlen(text) - strlen("v_proj\n")] = '\0';
    for (int i = 0; i < 1000; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "model.layers.%d.self_attn.k_proj,", i);
    strcat(text, "v_proj\n");
    assert_int_equal(load(&c, &source, text, "{}"), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "finetuning_type: strata.lora cannot be made of it"));
    st_config_source_free(source);
    scratch_close();
}

TEST(accelerate_stands_where_a_configuration_stands)
{
    struct st_config_opts opts = {0};
    struct st_config_source *source;
    struct st_config c;

    scratch_open();
    scratch_put("ds.yaml", "zero_optimization:\n  stage: 2 # DeepSpeed's keys in YAML\ntrain_batch_size: 6\n");
    opts.file = scratch_path("ds.yaml");
    assert_int_equal(st_recipe_config(&c, &source, &opts, NULL, NULL), STRATA_OK);
    assert_int_equal(c.zero_stage, 2);
    assert_int_equal(c.train_batch, 6);
    st_config_source_free(source);

    scratch_put("acc.yaml", "distributed_type: DEEPSPEED\nmixed_precision: bf16\ndeepspeed_config:\n  zero_stage: 3\n"
                            "  gradient_accumulation_steps: 4\n  offload_optimizer_device: cpu\n");
    opts.file = scratch_path("acc.yaml");
    assert_int_equal(st_recipe_config(&c, &source, &opts, NULL, NULL), STRATA_OK);
    assert_int_equal(c.zero_stage, 3);
    assert_int_equal(c.grad_accum, 4);
    assert_int_equal(c.train_batch, 4);
    assert_int_equal(c.dtype, STRATA_BF16);
    assert_int_equal(c.optimizer_tier, STRATA_TIER_HOST);
    st_config_source_free(source);

    /* The file that it names is found beside it. */
    scratch_put("ds.json", "{\"zero_optimization\": {\"stage\": 1}, \"fp16\": {\"enabled\": true}, \"train_batch_size\": 1}");
    scratch_put("acc.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n");
    assert_int_equal(st_recipe_config(&c, &source, &opts, NULL, NULL), STRATA_OK);
    assert_int_equal(c.zero_stage, 1);
    assert_int_equal(c.dtype, STRATA_F16);
    st_config_source_free(source);

    /* So it is from a directory below. */
    assert_int_equal(mkdir(scratch_path("below"), 0777), 0);
    scratch_put("below/acc.yaml", "distributed_type: DEEPSPEED\ndeepspeed_config: {deepspeed_config_file: ds.json}\n");
    opts.file = scratch_path("below/acc.yaml");
    assert_int_equal(st_recipe_config(&c, &source, &opts, NULL, NULL), STRATA_OK);
    assert_int_equal(c.zero_stage, 1);
    st_config_source_free(source);
    opts.file = scratch_path("acc.yaml");

    scratch_put("acc.yaml", LF);
    assert_int_equal(st_recipe_config(&c, &source, &opts, NULL, NULL), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "LLaMA-Factory's file of a whole run: strata train"));
    st_config_source_free(source);
    scratch_put("acc.yaml", "zero_optimization: {stage: 1, stage: 2}\n");
    assert_int_equal(st_recipe_config(&c, &source, &opts, NULL, NULL), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "acc.yaml:1:31: duplicate key \"stage\""));
    assert_null(strstr(strata_last_error(), "strict JSON"));
    st_config_source_free(source);
    scratch_close();
}

/* As OmegaConf reads them behind a file, and argparse their second form. */
TEST(words_count_over_the_file)
{
    static const char *const words[] = {
        "learning_rate=1e-4", "--lora-rank=16",         "cutoff_len=",        "--template={x",
        "bf16=true",          "lora_target=[q, k",      "num_train_epochs=0", "per_device_train_batchsize=2",
        "optim=sgd",          "--lora_target=q, k_proj"};
    struct st_recipe_input in = {.path = scratch_path("r.yaml"), .words = words, .word_count = 5};
    struct strata_recipe *r = NULL;

    scratch_open();
    in.path = scratch_path("r.yaml");
    scratch_put("r.yaml", LF "learning_rate: 1.0e-5\ncutoff_len: 64\nbf16: false\nfp16: false\noptim: nonesuch\n");
    assert_int_equal(st_recipe_open(&r, &in), STRATA_OK);
    assert_string_equal(asked(r, "optimizer.params.lr"), "0.0001");
    assert_string_equal(asked(r, "--cutoff-len"), "2048");
    assert_string_equal(asked(r, "bf16.enabled"), "true");
    assert_non_null(strstr(asked(r, "strata.lora"), "\"r\":16,\"lora_alpha\":32"));
    assert_non_null(strstr(st_recipe_problem_at(r, 0), "r.yaml:8: optim: "));
    assert_null(st_recipe_problem_at(r, 1));
    st_recipe_close(r);
    in = (struct st_recipe_input){.path = in.path, .words = &words[5], .word_count = 1};
    assert_int_equal(st_recipe_open(&r, &in), STRATA_E_CONFIG);
    assert_non_null(strstr(strata_last_error(), "command line: lora_target:"));
    /* A word is a key of the file's trainer. */
    scratch_put("t.yaml", TRL);
    in = (struct st_recipe_input){.path = scratch_path("t.yaml"), .words = &words[3], .word_count = 1};
    assert_int_equal(st_recipe_open(&r, &in), STRATA_OK);
    assert_non_null(strstr(st_recipe_problem_at(r, 0), "template (command line): no key of TRL"));
    st_recipe_close(r);
    in = (struct st_recipe_input){.words = &words[6], .word_count = 4};
    assert_int_equal(st_recipe_open(&r, &in), STRATA_OK);
    assert_string_equal(st_recipe_path(r), "command line");
    assert_non_null(strstr(st_recipe_problem_at(r, 0), "per_device_train_batchsize (command line): no key of LLaMA-Factory; the "
                                                       "nearest is per_device_train_batch_size"));
    assert_non_null(strstr(st_recipe_problem_at(r, 1), "num_train_epochs (command line): "));
    assert_null(st_recipe_problem_at(r, 2));
    assert_non_null(strstr(asked(r, "strata.lora"), "[\"q\",\"k_proj\"]"));
    st_recipe_close(r);
    scratch_close();
}

TEST(words_without_a_key_are_refused)
{
    static const char *const words[] = {"", "=", "a", "a.=1", ".a=1", "a..b=1", "1=1", "a b=1", "a=\xff", "a.b.c.d.e.f.g.h.i=1"};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        struct strata_recipe *r = NULL;

        assert_int_equal(st_recipe_open(&r, &(struct st_recipe_input){.words = &words[i], .word_count = 1}), STRATA_E_CONFIG);
        assert_null(r);
    }
}

/* Where a run's file and where a configuration is expected: one sentence, whatever else is in it. */
TEST(foreign_files_are_called_what_they_are)
{
    static const struct {
        const char *text, *said; /* NULL: it is none of theirs */
    } rows[] = {
        {"base_model: m\nsequence_len: 4096\noptimizer: muon\n", "axolotl's file"},
        {"base_model: m\ndatasets: [{path: p, type: alpaca}]\n", "axolotl's file"},
        {"model_name_or_path: m\nnum_generations: 8\n", "TRL's file of a run by preferences or rewards"},
        {"model_name_or_path: m\nbeta: 0.1\nmax_prompt_length: 512\n", "TRL's file of a run by preferences or rewards"},
        {"model_name_or_path: m\ndataset_name: d\nbeta: 0.1\n", "TRL's file of a run by preferences or rewards"},
        {"model_name_or_path: m\ndataset_name: d\nlearning_rate: 1e-5\n", NULL},
        {"model_name_or_path: m\nstage: sft\ntensor_model_parallel_size: 1\n", "a file for Megatron"},
        {"optim_wrapper: {type: OptimWrapper}\n", "mmengine's configuration"},
        {"model: {_component_: torchtune.models.llama3.llama3_8b}\n", "torchtune's file"},
        {"model: m\npeft_config: {name: lora, export_dir: out}\n", "strata export --merge"},
        {"model_name_or_path: m\ninfer_backend: vllm\n", "strata generate --model DIR"},
        {"model_name_or_path: m\nadapter_name_or_path: a\nexport_dir: d\n", "strata export --merge"},
        {LF "infer_backend: vllm\n", NULL},
        {LF "stage: dpo\n", NULL},
        {"base_model: m\n", NULL},
        {"optimizer: {type: AdamW}\n", NULL},
    };

    scratch_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_config_opts opts = {.file = scratch_path("r.yaml")};
        struct st_config_source *source;
        struct strata_recipe *r = NULL;
        struct st_config c;

        scratch_put("r.yaml", rows[i].text);
        if (rows[i].said == NULL) {
            st_json *root = NULL;

            assert_int_equal(st_yaml_parse(&root, rows[i].text, strlen(rows[i].text), "r.yaml"), STRATA_OK);
            assert_int_equal(st_recipe_foreign(root, "r.yaml"), STRATA_OK);
            st_json_free(root);
            continue;
        }
        assert_int_equal(st_recipe_open(&r, &(struct st_recipe_input){.path = scratch_path("r.yaml")}), STRATA_E_CONFIG);
        assert_non_null(strstr(strata_last_error(), rows[i].said));
        assert_int_equal(st_recipe_config(&c, &source, &opts, NULL, NULL), STRATA_E_CONFIG);
        assert_int_equal(st_config_problem_count(source), 1);
        assert_non_null(strstr(st_config_problem_at(source, 0), rows[i].said));
        assert_non_null(strstr(st_config_problem_at(source, 0), "r.yaml: "));
        st_config_source_free(source);
    }
    scratch_close();
}

TEST(single_failure_walk)
{
    static const char *const words[] = {"learning_rate=1e-4", "a.b={c: 1}", "--report-to={x"};
    struct fault_walk walk = {.result = -EIO};

    scratch_open();
    scratch_put("r.yaml", LF "lora_target: q_proj,v_proj\nbf16: yes\nunknown: 1\nsave_steps: 5\n");
    while (fault_walk_next(&walk)) {
        struct strata_recipe *r = NULL;
        const strata_status st =
            st_recipe_open(&r, &(struct st_recipe_input){.path = scratch_path("r.yaml"), .words = words, .word_count = 3});

        fault_walk_end(&walk, st);
        assert_int_equal(r != NULL, st == STRATA_OK);
        st_recipe_close(r);
    }
    assert_true(walk.runs >= 50);
    scratch_close();
}
