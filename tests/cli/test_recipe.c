/* tests/cli/test_recipe.c - strata train FILE.yaml and strata check FILE.yaml: LLaMA-Factory's own examples, with a tiny model;
 * the command line wins; a run by a file is the run that its options ask for. */
#include "core/json/json.h"
#include "model/adapter/adapter.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LOSS_APART 1.5e-4

/* examples/train_full/qwen3_full_sft.yaml of LLaMA-Factory 0.9.6 (the earlier llama3_full_sft.yaml has the same keys), with names
 * of this workplace's, shorter sequences and fewer steps. */
static const char full_sft[] = "### model\n"
                               "model_name_or_path: nano\n"
                               "trust_remote_code: true\n"
                               "\n"
                               "### method\n"
                               "stage: sft\n"
                               "do_train: true\n"
                               "finetuning_type: full\n"
                               "deepspeed: ds_z3_offload_config.json  # choices: [ds_z0_config.json, ds_z2_config.json]\n"
                               "\n"
                               "### dataset\n"
                               "dataset: identity,alpaca_en_demo\n"
                               "dataset_dir: data\n"
                               "template: chatml\n"
                               "cutoff_len: 128\n"
                               "max_samples: 1000\n"
                               "preprocessing_num_workers: 16\n"
                               "dataloader_num_workers: 4\n"
                               "\n"
                               "### output\n"
                               "output_dir: saves/full/sft\n"
                               "logging_steps: 10\n"
                               "save_steps: 500\n"
                               "plot_loss: true\n"
                               "overwrite_output_dir: true\n"
                               "save_only_model: false\n"
                               "report_to: none  # choices: [none, wandb, tensorboard, swanlab, mlflow]\n"
                               "\n"
                               "### train\n"
                               "per_device_train_batch_size: 1\n"
                               "gradient_accumulation_steps: 2\n"
                               "learning_rate: 1.0e-5\n"
                               "num_train_epochs: 3.0\n"
                               "lr_scheduler_type: cosine\n"
                               "warmup_ratio: 0.1\n"
                               "bf16: true\n"
                               "ddp_timeout: 180000000\n"
                               "resume_from_checkpoint: null\n"
                               "\n"
                               "### eval\n"
                               "# eval_dataset: alpaca_en_demo\n"
                               "# val_size: 0.1\n";

static const char z3_offload[] =
    "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", \"gradient_accumulation_steps\": \"auto\", "
    "\"gradient_clipping\": \"auto\", \"zero_allow_untested_optimizer\": true, \"fp16\": {\"enabled\": \"auto\", \"loss_scale\": "
    "0, "
    "\"loss_scale_window\": 1000, \"initial_scale_power\": 16, \"hysteresis\": 2, \"min_loss_scale\": 1}, \"bf16\": "
    "{\"enabled\": \"auto\"}, "
    "\"zero_optimization\": {\"stage\": 3, \"offload_optimizer\": {\"device\": \"cpu\", \"pin_memory\": true}, "
    "\"offload_param\": {\"device\": "
    "\"cpu\", \"pin_memory\": true}, \"overlap_comm\": false, \"contiguous_gradients\": true, \"sub_group_size\": 1e9, "
    "\"reduce_bucket_size\": \"auto\", \"stage3_prefetch_bucket_size\": \"auto\", \"stage3_param_persistence_threshold\": "
    "\"auto\", "
    "\"stage3_max_live_parameters\": 1e9, \"stage3_max_reuse_distance\": 1e9, \"stage3_gather_16bit_weights_on_model_save\": "
    "true}}";

static const char info[] =
    "{\"identity\": {\"file_name\": \"identity.json\"}, \"alpaca_en_demo\": {\"file_name\": \"alpaca.json\"}}";

/* A tokenizer of single characters, for the presets' 256 tokens: " " to "z" are 0 to 90. */
static void write_tokenizer(const struct workplace *w)
{
    char text[4096];
    size_t fill = (size_t)snprintf(text, sizeof(text), "{\"model\": {\"type\": \"BPE\", \"merges\": [], \"vocab\": {\"\\n\": 91");

    for (int c = ' '; c <= 'z'; c++)
        fill +=
            (size_t)snprintf(text + fill, sizeof(text) - fill, ", \"%s%c\": %d", c == '"' || c == '\\' ? "\\" : "", c, c - ' ');
    fill += (size_t)snprintf(text + fill, sizeof(text) - fill,
                             "}}, \"added_tokens\": [{\"id\": 92, \"content\": \"<|im_start|>\", \"special\": true}, "
                             "{\"id\": 93, \"content\": \"<|im_end|>\", \"special\": true}]}");
    workplace_make_dir(w, "characters");
    workplace_write(w, "characters/tokenizer.json", text, fill);
}

static void write_rows(const struct workplace *w, const char *name, int from, int count)
{
    char text[8192];
    size_t fill = (size_t)snprintf(text, sizeof(text), "[");

    for (int i = from; i < from + count; i++)
        fill += (size_t)snprintf(text + fill, sizeof(text) - fill,
                                 "%s{\"instruction\": \"twice %d?\", \"input\": \"\", \"output\": \"it is %d.\"}",
                                 i > from ? ", " : "", i, 2 * i);
    fill += (size_t)snprintf(text + fill, sizeof(text) - fill, "]");
    workplace_write(w, name, text, fill);
}

static void put(const struct workplace *w, const char *name, const char *text)
{
    workplace_write(w, name, text, strlen(text));
}

static int setup(void **state)
{
    const int failed = workplace_setup(state);
    const struct workplace *w = *state;

    if (failed != 0)
        return failed;
    write_tokenizer(w);
    workplace_make_dir(w, "data");
    write_rows(w, "data/identity.json", 0, 8);
    write_rows(w, "data/alpaca.json", 100, 12);
    put(w, "data/dataset_info.json", info);
    put(w, "ds_z3_offload_config.json", z3_offload);
    put(w, "full_sft.yaml", full_sft);
    return 0;
}

#define RUN "train {w}/full_sft.yaml --tokenizer {w}/characters --out {w}/out --machine {w}/machine.json"

static double number_in(const struct program *p, const char *key)
{
    const char *at = strstr(p->out, key);

    if (at == NULL)
        fail_msg("no %s in\n%s", key, p->out);
    return strtod(at + strlen(key), NULL);
}

/* Its names are found beside it; the epochs are counted over both sets: ceil(20 / 2) steps each. */
TEST(an_example_trains)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, RUN " --json --quiet --set strata.save=\"\"");
    assert_true(number_in(&p, "\"steps\":") == 30);
    assert_non_null(strstr(p.err, "keys have no effect here"));
    program_free(&p);
    assert_true(workplace_exists(w, "out"));
}

/* The same run by options alone has the same digest. */
TEST(a_file_is_the_run_that_its_options_ask_for)
{
    const struct workplace *w = *state;
    char by_file[160], by_options[160];

    workplace_digests(w, RUN " --quiet --digest --json --overwrite --set strata.save=\"\" --max-steps 5 --seed 7", by_file);
    workplace_digests(
        w,
        "train --model nano --tokenizer {w}/characters --machine {w}/machine.json --quiet --digest --json "
        "--dataset identity alpaca_en_demo --dataset-info {w}/data/dataset_info.json --template chatml --train-turn-ends "
        "--layout rows --seq-len 128 --max-samples 1000 --seed 7 --max-steps 5 --micro-batch 1 --grad-accum 2 "
        "--set optimizer.type=AdamW --lr 1e-5 --set strata.lr_scheduler.type=cosine "
        "--set strata.lr_scheduler.warmup_ratio=0.1 --set bf16.enabled=true",
        by_options);
    assert_string_equal(by_file, by_options);
}

TEST(the_command_line_wins)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    put(w, "zero.json", "{\"train_micro_batch_size_per_gpu\": \"auto\", \"bf16\": {\"enabled\": \"auto\"}}");
    workplace_run_ok(
        w, &p,
        "check {w}/full_sft.yaml --tokenizer {w}/characters --out {w}/o --json --lr 0.5 --grad-accum 4 --config {w}/zero.json");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "check"), STRATA_OK);
    for (const st_json *v = st_json_first(st_json_get(root, "values")); v != NULL; v = st_json_next(v)) {
        const char *path = st_json_string(st_json_get(v, "path")), *value = st_json_string(st_json_get(v, "value"));

        if (strcmp(path, "optimizer.params.lr") == 0)
            assert_string_equal(value, "0.5");
        if (strcmp(path, "zero_optimization.stage") == 0)
            assert_string_equal(value, "0");
    }
    st_json_free(root);
    program_free(&p);
    workplace_run_ok(
        w, &p,
        RUN " --json --quiet --overwrite --max-steps 3 --data {w}/data/identity.json --template chatml --set strata.save=\"\"");
    assert_true(number_in(&p, "\"steps\":") == 3);
    program_free(&p);
    workplace_run_ok(w, &p, RUN " --json --quiet --overwrite --steps 2"); /* by its other name, too */
    assert_true(number_in(&p, "\"steps\":") == 2);
    program_free(&p);
}

TEST(check_lists_keys_options_and_values)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root;

    workplace_run_ok(w, &p, "check {w}/full_sft.yaml --tokenizer {w}/characters --out {w}/o");
    assert_non_null(strstr(p.out, "honoured: --cutoff-len 128"));
    assert_non_null(strstr(p.out, "notice: no code of a model's directory is run"));
    assert_non_null(strstr(p.out, "options of strata train: --"));
    assert_non_null(strstr(p.out, "ds_z3_offload_config.json"));
    assert_non_null(strstr(p.out, "zero_optimization.offload_param.device"));
    program_free(&p);
    workplace_run_ok(w, &p, "check {w}/full_sft.yaml --tokenizer {w}/characters --out {w}/o --json --lr 1e-3");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "check"), STRATA_OK);
    assert_true(st_json_bool(st_json_get(root, "valid")));
    assert_string_equal(st_json_string(st_json_get(st_json_first(st_json_get(root, "options")), "name")), "cutoff-len");
    assert_non_null(strstr(st_json_string(st_json_get(root, "config")), "ds_z3_offload_config.json"));
    st_json_free(root);
    program_free(&p);
}

/* LLaMA-Factory's own losses of 20 steps (tools/make_golden_recipes.py), which it logs with four digits.  With train_on_prompt it
 * divides by the tokens of a row, of which the first is no target: all rows there have 40. */
TEST(losses_are_llama_factorys)
{
    static const struct {
        const char *name;
        double factor;
    } runs[] = {{"full_sft", 1}, {"full_history", 1}, {"full_prompt", 39.0 / 40}, {"full_packed", 1},
                {"lora_sft", 1}, {"qlora_sft", 1},    {"full_in_order", 1}};
    const struct workplace *w = *state;
    st_json *golden;

    assert_int_equal(st_json_parse_file(&golden, "tests/golden/recipes/golden.json", 1 << 20), STRATA_OK);
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        const st_json *want = st_json_first(st_json_get(golden, runs[i].name));
        struct program p;
        char command[512];

        snprintf(
            command, sizeof(command),
            "train tests/golden/recipes/%s.yaml --tokenizer tests/golden/tokenizers/qwen2.json --machine {w}/machine.json --json "
            "--quiet --out {w}/golden-%s --overwrite",
            runs[i].name, runs[i].name);
        workplace_run_ok(w, &p, command);
        for (const char *at = p.out; (at = strstr(at, "\"loss\":")) != NULL && want != NULL; want = st_json_next(want)) {
            const double loss = strtod(at += strlen("\"loss\":"), NULL) * runs[i].factor;

            if (fabs(loss - st_json_number(want)) > LOSS_APART)
                fail_msg("%s: %.5f, not %.4f", runs[i].name, loss, st_json_number(want));
        }
        assert_null(want); /* all 20 */
        program_free(&p);
    }
    st_json_free(golden);
}

/* Those of TRL 1.16 (transformers 5.24, on a CPU), which logs four digits: conversations are trained whole, and two lose their
 * ends. */
TEST(losses_are_trls)
{
    static const double losses[] = {6.647, 6.647, 6.235, 5.865, 5.587, 5.288, 5.05,  4.833, 4.634, 4.463,
                                    4.307, 4.169, 4.057, 3.963, 3.884, 3.821, 3.775, 3.745, 3.727, 3.719};
    const struct workplace *w = *state;
    struct program p;
    const char *at;

    workplace_run_ok(
        w, &p,
        "train tests/golden/recipes/trl_full.yaml --tokenizer tests/golden/chat/qwen --machine {w}/machine.json --json "
        "--quiet --out {w}/golden-trl");
    at = p.out;
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        at = strstr(at, "\"loss\":");
        assert_non_null(at);
        at += strlen("\"loss\":");
        if (fabs(strtod(at, NULL) - losses[i]) > 6e-4)
            fail_msg("step %zu: %.6s, not %.3f", i + 1, at, losses[i]);
    }
    program_free(&p);
}

/* Trainer's eval_loss of the same file, after steps 10 and 20; and without the file's set, of --eval-data's. */
TEST(evaluated_sets_are_llama_factorys)
{
    static const double losses[] = {5.897300720214844, 5.788460731506348};
    const struct workplace *w = *state;
    struct program p;
    const char *at;

    workplace_run_ok(w, &p,
                     "train tests/golden/recipes/full_in_order.yaml --tokenizer tests/golden/tokenizers/qwen2.json --machine "
                     "{w}/machine.json --json --quiet --out {w}/golden-eval");
    assert_non_null(strstr(p.err, "--cutoff-len 2048: the context of tests/golden/recipes/tiny has 256 tokens"));
    at = p.out;
    for (size_t i = 0; i < sizeof(losses) / sizeof(losses[0]); i++) {
        at = strstr(at, "\"eval_loss\":");
        assert_non_null(at);
        at += strlen("\"eval_loss\":");
        assert_true(fabs(strtod(at, NULL) - losses[i]) <= 1e-5);
    }
    program_free(&p);
    workplace_run_ok(w, &p,
                     "train tests/golden/recipes/full_in_order.yaml --tokenizer tests/golden/tokenizers/qwen2.json --machine "
                     "{w}/machine.json --json --quiet --max-steps 1 --seq-len 64 --eval-data {w}/good.bin --out {w}/golden-64");
    assert_null(strstr(p.err, "--cutoff-len"));
    program_free(&p);
    /* Other data alone: how often the file evaluates is of the sets that are replaced. */
    workplace_run_ok(
        w, &p,
        "train tests/golden/recipes/full_in_order.yaml --data {w}/good.bin --machine {w}/machine.json --json --quiet "
        "--max-steps 1 --seq-len 64 --out {w}/golden-data");
    assert_null(strstr(p.out, "\"eval_loss\":"));
    program_free(&p);
}

/* Where parts of a model lie changes no bit: FSDP's files train what their precision alone asks for. */
TEST(placed_by_fsdp_bits_stay)
{
#define TWO_STEPS                                                                                                                \
    "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 2 --machine {w}/machine.json --quiet --digest --config "
    const struct workplace *w = *state;
    static const char *const names[] = {"fsdp1", "fsdp2"};
    char plain[160], placed[160], command[512];

    put(w, "bf16.yaml", "distributed_type: MULTI_GPU\nmixed_precision: bf16\n");
    workplace_digests(w, TWO_STEPS "{w}/bf16.yaml", plain);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        snprintf(command, sizeof(command), TWO_STEPS "tests/golden/recipes/fsdp/%s.yaml", names[i]);
        workplace_digests(w, command, placed);
        assert_string_equal(placed, plain);
    }
#undef TWO_STEPS
}

/* A run that goes on reads on in its order. */
TEST(without_shuffling_a_run_resumes)
{
#define IN_ORDER "train --model nano --data {w}/good.bin --seq-len 32 --machine {w}/machine.json --quiet --digest "
    const struct workplace *w = *state;
    char whole[160], parts[160], shuffled[160];
    struct program p;

    workplace_digests(w, IN_ORDER "--max-steps 4", shuffled);
    workplace_digests(w, IN_ORDER "--no-shuffle --max-steps 4", whole);
    assert_string_not_equal(whole, shuffled);
    workplace_run_ok(w, &p, IN_ORDER "--no-shuffle --max-steps 2 --save {w}/ordered");
    program_free(&p);
    workplace_digests(w, IN_ORDER "--no-shuffle --max-steps 4 --resume {w}/ordered", parts);
    assert_string_equal(whole, parts);
    workplace_run(w, &p, IN_ORDER "--max-steps 4 --resume {w}/ordered");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "was saved by a run with --no-shuffle, and this one is without it"));
    program_free(&p);
#undef IN_ORDER
}

/* XTuner's training arguments, and a configuration of Accelerate's. */
TEST(the_other_trainers_files_run)
{
    static const char xtuner[] =
        "load_from: nano\ndataset: talks.jsonl\npack_max_length: 128\nlr: 1e-3\nlr_min: 0\nscheduler_type: cosine\n"
        "total_step: 3\nglobal_batch_size: 2\nwork_dir: work\n";
    static const char accelerate[] = "compute_environment: LOCAL_MACHINE\ndistributed_type: DEEPSPEED\nmixed_precision: bf16\n"
                                     "deepspeed_config:\n  zero_stage: 2\n  gradient_accumulation_steps: 3\n"
                                     "  offload_optimizer_device: cpu\nnum_processes: 1\n";
    const struct workplace *w = *state;
    struct program p;

    put(w, "xtuner.yaml", xtuner);
    put(w, "accelerate.yaml", accelerate);
    put(w, "talks.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"2?\"}, {\"role\": \"assistant\", \"content\": \"4.\"}]}\n"
        "{\"messages\": [{\"role\": \"user\", \"content\": \"3?\"}, {\"role\": \"assistant\", \"content\": \"6.\"}]}\n");
    workplace_run_ok(w, &p,
                     "train {w}/xtuner.yaml --tokenizer {w}/characters --template chatml --out {w}/out --overwrite --machine "
                     "{w}/machine.json --json --quiet");
    assert_true(number_in(&p, "\"steps\":") == 3);
    program_free(&p);
    workplace_run_ok(w, &p,
                     "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 2 --machine {w}/machine.json --config "
                     "{w}/accelerate.yaml --json --quiet");
    assert_true(number_in(&p, "\"steps\":") == 2);
    program_free(&p);
}

/* A file of LLaMA-Factory's version 1 is the run that these options ask for, and its data sets are read by name. */
TEST(version_1_runs)
{
    static const char file[] = "model: nano\ndist_config: {name: fsdp2}\ntrain_dataset: data/v1.yaml\noutput_dir: v1\n"
                               "micro_batch_size: 2\ncutoff_len: 64\nlearning_rate: 1.0e-3\nmax_steps: 3\n";
    const struct workplace *w = *state;
    char digest[2][128];
    struct program p;

    put(w, "v1_run.yaml", file);
    put(w, "v1_rows.json",
        "[{\"instruction\": \"2?\", \"input\": \"\", \"output\": \"4.\"}, {\"instruction\": \"3?\", \"output\": \"6.\"}]");
    put(w, "v1.yaml", "sums:\n  path: v1_rows.json\n  source: local\n  converter: alpaca\n");
    for (int i = 0; i < 2; i++) {
        workplace_run_ok(
            w, &p,
            i == 0 ? "train {w}/v1_run.yaml train_dataset=v1.yaml --tokenizer {w}/characters --template chatml --out "
                     "{w}/v1_out --overwrite --machine {w}/machine.json --digest --quiet"
                   : "train --model nano --data {w}/v1_rows.json --cutoff-len 64 --seed 42 --layout rows "
                     "--train-turn-ends --max-steps 3 --micro-batch 2 --lr 1e-3 --set "
                     "optimizer.params.weight_decay=0.01 --set gradient_clipping=1 --set bf16.enabled=true --set "
                     "strata.lr_scheduler.type=constant --set strata.decay_all=true --set zero_optimization.stage=3 "
                     "--tokenizer {w}/characters --template chatml --chat-template-kwargs {\"enable_thinking\":false} --out "
                     "{w}/v1_out --overwrite --machine {w}/machine.json --digest "
                     "--quiet");
        assert_non_null(strstr(p.out, "digest"));
        snprintf(digest[i], sizeof(digest[i]), "%.100s", strstr(p.out, "digest"));
        program_free(&p);
    }
    assert_string_equal(digest[0], digest[1]);
}

/* All problems of the file, each with its line. */
TEST(problems_are_told_at_once)
{
    const struct workplace *w = *state;
    struct program p;

    put(w, "bad.yaml", "model_name_or_path: nano\nstage: dpo\nlearning_rat: 1\nuse_dora: true\n");
    workplace_run(w, &p, "check {w}/bad.yaml");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "bad.yaml:2: stage: dpo: this version"));
    assert_non_null(strstr(p.err, "bad.yaml:3: learning_rat: no key of LLaMA-Factory; the nearest is learning_rate"));
    assert_non_null(strstr(p.err, "bad.yaml:4: use_dora: DoRA"));
    program_free(&p);
}

/* What is missing because of a problem is not told instead of it. */
TEST(train_tells_the_files_problems_first)
{
    static const char *const commands[] = {"train {w}/list.yaml", "plan {w}/list.yaml"};
    const struct workplace *w = *state;
    struct program p;

    put(w, "list.yaml", "model_name_or_path: nano\ndataset: [alp, sg]\noutput_dir: ''\n");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        workplace_run(w, &p, commands[i]);
        assert_int_equal(p.code, 2);
        assert_non_null(strstr(p.err, "list.yaml:2: dataset: must be a string, not"));
        assert_non_null(strstr(p.err, "and 1 more: strata check"));
        program_free(&p);
    }
    workplace_run(w, &p, "check {w}/list.yaml");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "list.yaml:3: output_dir: must not be empty"));
    program_free(&p);
}

/* offload/config does not see the model's headers. */
TEST(limits_are_the_adapters)
{
    const struct workplace *w = *state;

    for (uint32_t over = 0; over < 3; over++) {
        struct program p;
        char text[128];

        snprintf(text, sizeof(text), "model_name_or_path: nano\nlora_rank: %u\nlora_alpha: %.0f\n",
                 ST_ADAPTER_RANK_MAX + (over == 1), ST_ADAPTER_ALPHA_MAX + (over == 2));
        put(w, "limits.yaml", text);
        workplace_run(w, &p, "check {w}/limits.yaml");
        assert_int_equal(p.code, over == 0 ? 0 : 2);
        if (over > 0)
            assert_non_null(strstr(p.err, over == 1 ? "limits.yaml:2: lora_rank: 8193" : "limits.yaml:3: lora_alpha: 1000001"));
        program_free(&p);
    }
}

/* Two runs of one file do not replace each other's checkpoints. */
TEST(checkpoints_follow_the_output)
{
    const struct workplace *w = *state;
    struct program p;

    put(w, "saves.yaml",
        "model_name_or_path: nano\nfinetuning_type: full\ndataset: identity\ndataset_dir: data\ntemplate: chatml\n"
        "cutoff_len: 32\nmax_steps: 1\nsave_steps: 1\noverwrite_output_dir: true\noutput_dir: in_file\n");
#define SAVES "train {w}/saves.yaml --tokenizer {w}/characters --machine {w}/machine.json --quiet --out "
    workplace_run_ok(w, &p, SAVES "{w}/first/");
    program_free(&p);
    workplace_run_ok(w, &p, SAVES "{w}/second --save {w}/kept");
    program_free(&p);
    workplace_run_ok(w, &p, SAVES "{w}/third --set strata.save={w}/set");
    program_free(&p);
    assert_true(workplace_exists(w, "first.checkpoints"));
    assert_true(workplace_exists(w, "kept") && !workplace_exists(w, "second.checkpoints"));
    assert_true(workplace_exists(w, "set") && !workplace_exists(w, "third.checkpoints"));
#undef SAVES
}

/* Held-out rows are evaluated. */
TEST(val_size_holds_rows_out)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p,
                     RUN " --json --quiet --overwrite --max-steps 4 --val-size 0.25 --eval-every 2 --set strata.save=\"\"");
    assert_non_null(strstr(p.out, "\"eval_loss\":"));
    program_free(&p);
}

/* The same model, which learns nothing: its loss over the rows that are held out. */
static double held_out_loss(const struct workplace *w, unsigned seed)
{
    struct program p;
    char command[512];
    double loss;

    snprintf(command, sizeof(command),
             "train --model {w}/model --data {w}/data/alpaca.json --tokenizer {w}/characters --template chatml --val-size 0.25 "
             "--eval-every 1 "
             "--max-steps 1 --lr 0 --seq-len 64 --machine {w}/machine.json --quiet --json --seed %u",
             seed);
    workplace_run_ok(w, &p, command);
    loss = number_in(&p, "\"eval_loss\":");
    program_free(&p);
    return loss;
}

TEST(the_seed_says_which_rows_are_held_out)
{
    const struct workplace *w = *state;
    struct program p;
    double first;

    workplace_run_ok(w, &p,
                     "train {w}/full_sft.yaml --tokenizer {w}/characters --machine {w}/machine.json --quiet --max-steps 1 "
                     "--set strata.save=\"\" --out {w}/model");
    program_free(&p);
    first = held_out_loss(w, 1);
    assert_true(held_out_loss(w, 1) == first);
    assert_true(held_out_loss(w, 2) != first);
}

TEST_GROUP(setup, workplace_teardown);
