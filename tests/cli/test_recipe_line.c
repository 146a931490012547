/* tests/cli/test_recipe_line.c - what the command line says instead of a trainer's file: an option stands in the place of the
 * file's, and of each that excludes it; and what the file asks for without saying where. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LLAMA_FACTORY                                                                                                            \
    "model_name_or_path: tests/golden/chat/llama\nper_device_train_batch_size: 1\nmax_steps: 2\ncutoff_len: 64\n"
#define FULL   LLAMA_FACTORY "finetuning_type: full\n"
#define XTUNER "load_from: tests/golden/chat/llama\ntotal_step: 2\n"
#define TRAIN  "train {w}/r.yaml --data {w}/rows.jsonl --device-memory 64M --machine {w}/machine.json --quiet "

static void put(const struct workplace *w, const char *name, const char *text)
{
    workplace_write(w, name, text, strlen(text));
}

static int setup(void **state)
{
    const int failed = workplace_setup(state);
    char rows[4096];
    size_t fill = 0;

    for (int i = 0; i < 16; i++)
        fill += (size_t)snprintf(rows + fill, sizeof(rows) - fill,
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"twice %d?\"}, {\"role\": \"assistant\", "
                                 "\"content\": \"%d\"}]}\n",
                                 i, 2 * i);
    workplace_write(*state, "rows.jsonl", rows, fill);
    put(*state, "dataset_info.json",
        "{\"held\": {\"file_name\": \"rows.jsonl\", \"formatting\": \"sharegpt\", \"columns\": "
        "{\"messages\": \"messages\"}, \"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\", "
        "\"user_tag\": \"user\", \"assistant_tag\": \"assistant\"}}}");
    return failed;
}

TEST(the_line_stands_in_its_place)
{
    static const struct {
        const char *file, *line;
    } rows[] = {
        {FULL, "--seq-len 32"},
        {FULL, "--cutoff-len 32"},
        {FULL, "--epochs 1"},
        {XTUNER, "--cutoff-len 32 --out {w}/out"},
        {XTUNER "pack_max_length: 64\n", "--seq-len 32 --out {w}/out --overwrite"},
        {FULL "val_size: 0.2\n", "--eval-dataset held --dataset-info {w}/dataset_info.json"},
        {FULL "val_size: 0.2\n", "--eval-data {w}/rows.jsonl"},
        {FULL "mask_history: true\n", "--train-on-prompt"},
        {FULL "train_on_prompt: true\n", "--mask-history"},
        {LLAMA_FACTORY "finetuning_type: lora\n", "--adapter {w}/adapter"},
        {LLAMA_FACTORY "finetuning_type: lora\nadapter_name_or_path: adapter\n", "--lora {w}/lora.json"},
        {FULL "deepspeed: ds.json\n", "--micro-batch 1"},
        {FULL, "--set optimizer.type=Lion"},
        {FULL "lr_scheduler_type: cosine\nwarmup_ratio: 0.5\n", "--set scheduler.type=WarmupLR"},
        {FULL "lr_scheduler_type: cosine\nwarmup_ratio: 0.5\n", "--warmup-steps 1"},
        {FULL "lr_scheduler_type: cosine\nwarmup_steps: 1\n", "--lr-scheduler linear --warmup-ratio 0.5"},
    };
    const struct workplace *w = *state;
    struct program p;

    put(w, "ds.json", "{\"optimizer\": {\"type\": \"SGD\", \"params\": {\"lr\": \"auto\"}}}");
    put(w, "lora.json", "{\"r\": 2, \"target_modules\": [\"q_proj\"]}");
    put(w, "r.yaml", LLAMA_FACTORY "finetuning_type: lora\nlora_rank: 2\nlora_target: q_proj\n");
    workplace_run_ok(w, &p, TRAIN "--out {w}/adapter");
    program_free(&p);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[512];

        put(w, "r.yaml", rows[i].file);
        snprintf(command, sizeof(command), TRAIN "%s", rows[i].line);
        workplace_run(w, &p, command);
        if (p.code != 0)
            fail_msg("%s\n%s: %s", rows[i].file, rows[i].line, p.err);
        program_free(&p);
    }
}

/* Texts of the line stand in the place of the file's, and of what it holds out of them; how often is evaluated stays the file's
 * where the line holds rows out. */
TEST(evaluations_are_the_files)
{
    static const struct {
        const char *line;
        uint32_t evaluations;
    } rows[] = {{"", 0}, {"--val-size 0.25", 2}, {"--eval-data {w}/rows.jsonl", 2}, {"--val-size 0.25 --eval-every 2", 1}};
    const struct workplace *w = *state;

    put(w, "r.yaml", FULL "val_size: 0.5\neval_strategy: steps\neval_steps: 1\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[512], *metrics;
        uint32_t evaluations = 0;
        struct program p;
        size_t bytes;

        snprintf(command, sizeof(command), TRAIN "--metrics {w}/m.jsonl --overwrite %s", rows[i].line);
        workplace_run_ok(w, &p, command);
        metrics = workplace_read(w, "m.jsonl", &bytes);
        for (const char *at = metrics; (at = strstr(at, "\n{\"step\":")) != NULL; at++) {
            const char *loss = strstr(at, "\"eval_loss\":");

            evaluations += loss != NULL && loss < at + 1 + strcspn(at + 1, "\n") && strncmp(loss + 12, "null", 4) != 0;
        }
        if (evaluations != rows[i].evaluations)
            fail_msg("%s: %u evaluations, not %u\n%s", rows[i].line, evaluations, rows[i].evaluations, metrics);
        free(metrics);
        program_free(&p);
    }
}

/* Parts of the run, as Trainer counts them: rounded up to whole steps. */
TEST(parts_of_the_run_are_steps)
{
    const struct workplace *w = *state;
    struct program p;
    char *metrics;
    size_t bytes;

    put(w, "r.yaml", FULL "val_size: 0.25\neval_strategy: steps\neval_steps: 0.3\nsave_steps: 0.5\nlogging_steps: 0.5\n");
    workplace_run_ok(
        w, &p, TRAIN "--val-size 0.25 --max-steps 5 --save {w}/parts --set strata.keep=9 --metrics {w}/m.jsonl --overwrite");
    program_free(&p);
    metrics = workplace_read(w, "m.jsonl", &bytes);
    for (int step = 1; step <= 5; step++) { /* 2, 4 and the last */
        char start[32];
        const char *line, *loss;

        snprintf(start, sizeof(start), "\n{\"step\":%d,", step);
        line = strstr(metrics, start);
        assert_non_null(line);
        loss = strstr(line, "\"eval_loss\":");
        assert_int_equal(loss != NULL && loss < line + 1 + strcspn(line + 1, "\n") && strncmp(loss + 12, "null", 4) != 0,
                         step != 1 && step != 3);
    }
    free(metrics);
    assert_int_equal(workplace_entries(w, "parts"), 3); /* after steps 3 and 5, and which is the newest */
}

/* save_strategy and eval_strategy epoch: after each, whatever save_steps and eval_steps say; Trainer keeps all. */
TEST(epochs_end_with_a_checkpoint_and_an_evaluation)
{
    const struct workplace *w = *state;
    struct program p;

    put(w, "r.yaml", FULL "val_size: 0.25\nsave_strategy: epoch\neval_strategy: epoch\nsave_steps: 1\neval_steps: 1\n");
    workplace_run_ok(w, &p,
                     "train {w}/r.yaml --data {w}/rows.jsonl --device-memory 64M --machine {w}/machine.json --layout rows "
                     "--val-size 0.25 --epochs 3 --micro-batch 4 --save {w}/epochs --keep-best 1");
    for (int step = 1; step <= 9; step++) { /* 12 rows: 3 steps each */
        char line[32];

        snprintf(line, sizeof(line), "eval after step %d:", step);
        assert_int_equal(strstr(p.out, line) != NULL, step % 3 == 0);
        snprintf(line, sizeof(line), "checkpoint of step %d in", step);
        assert_int_equal(strstr(p.out, line) != NULL, step % 3 == 0);
    }
    assert_non_null(strstr(p.err, "without save_total_limit Trainer keeps all checkpoints; here the newest 2 stay"));
    program_free(&p);
    workplace_run_ok(w, &p, "check {w}/r.yaml --data {w}/rows.jsonl");
    assert_non_null(strstr(p.out, "--save-every epoch"));
    assert_non_null(strstr(p.out, "not used: save_strategy is epoch"));
    assert_non_null(strstr(p.out, "not used: eval_strategy is epoch"));
    program_free(&p);
    put(w, "r.yaml", FULL "save_strategy: epoch\nsave_total_limit: 5\n");
    workplace_run_ok(w, &p, TRAIN "--save {w}/limited");
    assert_null(strstr(p.err, "save_total_limit"));
    program_free(&p);
}

/* Once, in one line of standard error, wherever it is wrapped. */
static void assert_one_line(const struct program *p, const char *part)
{
    const char *first = strstr(p->err, part);

    if (first == NULL || strstr(first + 1, part) != NULL)
        fail_msg("not once: %s\n%s", part, p->err);
}

/* Trainer's epochs end with a short step, also where max_steps counts: here steps are whole, which is said where it is so. */
TEST(steps_that_cross_epochs_are_told)
{
    static const struct {
        const char *words;
        bool told;
    } rows[] = {
        {"max_steps=6 per_device_train_batch_size=3", true}, /* 18 of 16 rows */
        {"max_steps=3 per_device_train_batch_size=1 gradient_accumulation_steps=7", true},
        {"max_steps=5 per_device_train_batch_size=3", false}, /* within the first epoch */
        {"max_steps=5 per_device_train_batch_size=4", false},
        {"num_train_epochs=1 per_device_train_batch_size=3", false},
    };
    const struct workplace *w = *state;

    put(w, "r.yaml", "model_name_or_path: tests/golden/chat/llama\ndataset_name: rows.jsonl\nmax_length: 64\nuse_peft: true\n");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;
        char line[512];

        snprintf(line, sizeof(line), "train {w}/r.yaml %s --machine {w}/machine.json --quiet --overwrite --out {w}/crossed",
                 rows[i].words);
        workplace_run_ok(w, &p, line);
        if (rows[i].told)
            assert_one_line(&p, "max_steps: 16 sequences are no multiple of a step");
        else
            assert_null(strstr(p.err, "max_steps: "));
        program_free(&p);
    }
}

/* The adapter of the line is trained on with its own settings, not with the file's. */
TEST(an_adapter_of_the_line_has_its_own_settings)
{
    const struct workplace *w = *state;
    struct program p;
    char *settings;
    size_t bytes;

    put(w, "r.yaml", LLAMA_FACTORY "finetuning_type: lora\nlora_rank: 2\nlora_target: q_proj\n");
    workplace_run_ok(w, &p, TRAIN "--out {w}/two --overwrite");
    program_free(&p);
    put(w, "r.yaml", LLAMA_FACTORY "finetuning_type: lora\nlora_rank: 4\nlora_target: v_proj\n");
    workplace_run_ok(w, &p, TRAIN "--adapter {w}/two --out {w}/on");
    assert_one_line(&p, "r.yaml: finetuning_type: --adapter ");
    assert_one_line(&p, "two has settings");
    program_free(&p);
    settings = workplace_read(w, "on/adapter_config.json", &bytes);
    assert_non_null(strstr(settings, "\"r\":2"));
    assert_non_null(strstr(settings, "q_proj"));
    assert_null(strstr(settings, "v_proj"));
    free(settings);
}

/* The file asks for checkpoints and names no output: they are beside the one of the line, or a notice says that there are none.
 */
TEST(checkpoints_are_beside_the_output_of_the_line)
{
    const struct workplace *w = *state;
    struct program p;

    put(w, "r.yaml", FULL "save_steps: 1\n");
    workplace_run_ok(w, &p, TRAIN "--out {w}/trained");
    program_free(&p);
    assert_true(workplace_exists(w, "trained.checkpoints/step-00000001") &&
                workplace_exists(w, "trained.checkpoints/step-00000002"));
    workplace_run_ok(w, &p, TRAIN "--out {w}/other --save {w}/there");
    program_free(&p);
    assert_true(workplace_exists(w, "there/step-00000002") && !workplace_exists(w, "other.checkpoints"));
    workplace_run_ok(w, &p, TRAIN);
    assert_non_null(strstr(p.err, "strata.save_every: not used"));
    program_free(&p);
    workplace_run_ok(w, &p, "check {w}/r.yaml");
    assert_non_null(strstr(p.out, "DIR.checkpoints of --out DIR"));
    assert_null(strstr(p.out, "--save ,"));
    assert_null(strstr(p.out, "--save  "));
    program_free(&p);
}

/* LLaMA-Factory's own command lines: words behind its file, options beside it, and options alone. */
TEST(its_words_count_over_its_file)
{
    static const struct {
        const char *line;
        const char *said; /* NULL: it trains */
    } rows[] = {
        {"learning_rate=1e-5 max_steps=1", NULL},
        {"num_train_epochs=1 max_steps=null bf16=true", NULL},
        {"--warmup_ratio 0.1 --bf16 true", NULL},
        {"--logging_strategy steps --plot_loss", NULL},
        {"--lr_scheduler_type cosine_with_min_lr --lr_scheduler_kwargs {\"min_lr\":1e-6}", NULL},
        {"--lr_scheduler_kwargs {\"min_lr\":1e-6}", "belongs to lr_scheduler_type cosine_with_min_lr"},
        {"--bf16 True --packing false", NULL},
        {"--data {w}/rows.jsonl model_name_or_path=nowhere/to", "error: --model nowhere/to"}, /* no file behind --data */
        {"learning_rate=1e-3 --config {w}/rate.json", "command line: learning_rate asks for optimizer.params.lr"},
        {"learning_rate=1e-3 --config {w}/rate.json --lr 1e-5", NULL}, /* which says it for both */
        {"learning_rate=1e-3 --config {w}/rate.json --set optimizer.params.lr=1e-5", NULL},
        {"learning_rat=1e-5", "learning_rat (command line): no key of LLaMA-Factory; the nearest is learning_rate"},
        {"learning_rate=fast", "learning_rate (command line): "},
        {"cutoff_len=[1", "command line: cutoff_len:"},
        {"extra", "unexpected argument \"extra\""},
        {"nothing.b=1", "strata: error: nothing (command line): no key of LLaMA-Factory"},
        {"max_steps=1 max_steps=2 learning_rat=1", "command line: max_steps is given twice: 2 counts, not 1"},
        {"per_device_train_batch_size=2 --config {w}/four.json",
         "strata: error: command line: per_device_train_batch_size asks for train_micro_batch_size_per_gpu = 2, and it is 4 in "},
        {"--config {w}/no.json --config {w}/four.json", "four.json counts, not "},
        {"--set steps_per_print=2 --set steps_per_print=3 extra", "--set steps_per_print is given twice: 3 counts, not 2"},
        {"--lr 1e-3 --learning-rate=1e-4 extra", "--lr is given twice: 1e-4 counts, not 1e-3"},
    };
    const struct workplace *w = *state;

    put(w, "r.yaml", FULL);
    put(w, "rate.json", "{\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-4}}}");
    put(w, "four.json", "{\"train_micro_batch_size_per_gpu\": 4}");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char command[512];
        struct program p;

        snprintf(command, sizeof(command), TRAIN "%s", rows[i].line);
        workplace_run(w, &p, command);
        if (p.code != (rows[i].said == NULL ? 0 : 2) || (rows[i].said != NULL && strstr(p.err, rows[i].said) == NULL))
            fail_msg("%s: %d %s", rows[i].line, p.code, p.err);
        program_free(&p);
    }
}

TEST(its_options_are_a_run)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p,
                     "train --stage sft --do_train --model_name_or_path tests/golden/chat/llama --dataset held --dataset_dir {w} "
                     "--finetuning_type full --overwrite_output_dir true --output_dir {w}/ran --max_steps 2 --cutoff_len 64 "
                     "--per_device_train_batch_size 1 --max_samples 4 --bf16 True --plot_loss --local_rank 0 "
                     "--device-memory 64M --machine {w}/machine.json --quiet");
    program_free(&p);
    workplace_run(w, &p, "check --stage sft --model_name_or_path m --dataset d --learning_rat 1");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "learning_rat (command line): no key of LLaMA-Factory; the nearest is learning_rate"));
    program_free(&p);
}

TEST_GROUP(setup, workplace_teardown);
