/* tests/cli/test_epochs.c - --epochs: as many steps as Hugging Face's Trainer takes, and what that does to a schedule; after
 * which steps a run evaluates. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SEQ = 32, STEPS_MOST = 32 };

struct told {
    uint32_t steps, evaluated; /* evaluated: bit s of step s + 1 */
    double lr[STEPS_MOST], epoch[STEPS_MOST], loss[STEPS_MOST];
};

static double member(const st_json *line, const char *key)
{
    assert_non_null(st_json_get(line, key));
    return st_json_number(st_json_get(line, key));
}

/* Runs train over w.bin with --json; what its steps say. */
static struct told train(const struct workplace *w, const char *options)
{
    struct told told = {0};
    char command[512];
    struct program p;

    snprintf(command, sizeof(command),
             "train --model nano --data {w}/w.bin --seq-len 32 --config {w}/linear.json --machine {w}/machine.json --json %s",
             options);
    workplace_run_ok(w, &p, command);
    for (char *line = p.out, *end; *line != '\0'; line = end + 1) {
        st_json *root;

        end = strchr(line, '\n');
        assert_non_null(end);
        assert_int_equal(st_json_parse(&root, line, (size_t)(end - line), "line"), 0);
        if (st_json_get(root, "step") != NULL) {
            assert_true(told.steps < STEPS_MOST);
            told.lr[told.steps] = member(root, "lr");
            told.loss[told.steps] = member(root, "loss");
            told.evaluated |= (uint32_t)(st_json_get(root, "eval_loss") != NULL) << told.steps;
            told.epoch[told.steps++] = member(root, "epoch");
        }
        st_json_free(root);
    }
    program_free(&p);
    return told;
}

static void write_tokens(const struct workplace *w, const char *text, size_t bytes)
{
    struct program p;

    workplace_write(w, "w.txt", text, bytes);
    workplace_run_ok(w, &p, "tokens {w}/w.txt --out {w}/w.bin --overwrite");
    program_free(&p);
}

/* The steps are those of set_initial_training_values() of transformers 4.57.6, called with these numbers. */
TEST(steps_are_trainers)
{
    static const struct {
        uint32_t sequences, micro_batch, grad_accum;
        const char *epochs;
        uint32_t epoch_steps, steps;
    } rows[] = {
        {5, 2, 2, "2", 2, 4},   {3, 2, 2, "3", 1, 3},   {17, 1, 3, "2.5", 6, 15},
        {5, 2, 2, "0.1", 2, 1}, {9, 1, 1, "0.7", 9, 7}, {3, 1, 1, "0.30000000000000004", 3, 1},
    };
    static const char linear[] = "{\"bf16\": {\"enabled\": true}, \"strata\": {\"lr_scheduler\": {\"type\": \"linear\"}}}";
    const struct workplace *w = *state;
    char text[32 * SEQ], options[128];

    workplace_write(w, "linear.json", linear, strlen(linear));
    memset(text, 'a', sizeof(text));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct told by_epochs;

        write_tokens(w, text, rows[i].sequences * SEQ + 1);
        snprintf(options, sizeof(options), "--epochs %s --micro-batch %u --grad-accum %u", rows[i].epochs, rows[i].micro_batch,
                 rows[i].grad_accum);
        by_epochs = train(w, options);
        assert_int_equal(by_epochs.steps, rows[i].steps);
        for (uint32_t s = 0; s < by_epochs.steps; s++)
            assert_true(by_epochs.epoch[s] == (double)(s + 1) / (double)rows[i].epoch_steps);
    }
}

/* ... and a schedule has that length, as if --max-steps had given it; then steps go from one epoch into the next. */
TEST(schedules_end_with_the_last_step)
{
    const struct workplace *w = *state;
    char text[5 * SEQ + 1];
    struct told by_epochs, by_steps;

    memset(text, 'a', sizeof(text));
    write_tokens(w, text, sizeof(text));
    by_epochs = train(w, "--epochs 1.5 --micro-batch 2");
    by_steps = train(w, "--max-steps 5 --micro-batch 2");
    assert_int_equal(by_epochs.steps, 5);
    assert_memory_equal(by_epochs.lr, by_steps.lr, sizeof(by_steps.lr));
    assert_true(by_epochs.lr[4] < 0.21 * by_epochs.lr[0] && by_epochs.lr[4] > 0);
    for (uint32_t s = 0; s < 5; s++)
        assert_true(by_steps.epoch[s] == (double)(2 * (s + 1)) / 5);
}

/* Without learning the losses of an epoch's steps, the last of them a smaller one, make up that of all sequences. */
TEST(an_epoch_trains_each_sequence_once)
{
    const struct workplace *w = *state;
    char text[5 * SEQ + 1];
    struct told told;
    struct program p;
    st_json *root;
    double all;

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)(' ' + i * i / SEQ % 90);
    write_tokens(w, text, sizeof(text));
    workplace_run_ok(w, &p, "eval --model nano --data {w}/w.bin --seq-len 32 --set bf16.enabled=false --json");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "eval"), 0);
    all = member(root, "loss");
    st_json_free(root);
    program_free(&p);
    told = train(w, "--epochs 3 --micro-batch 4 --lr 0 --set bf16.enabled=false");
    assert_int_equal(told.steps, 6);
    for (uint32_t s = 0; s < 6; s += 2)
        assert_true(fabs((4 * told.loss[s] + told.loss[s + 1]) / 5 - all) < 1e-6 * all);
}

/* After the last step, and every so many. */
TEST(evaluations_come_when_they_are_due)
{
    static const struct {
        const char *options;
        uint32_t evaluated;
    } rows[] = {{"--max-steps 3", 0x4},
                {"--max-steps 5 --eval-every 2", 0x1a},
                {"--max-steps 4 --eval-every 2", 0xa},
                {"--max-steps 2 --eval-every 7", 0x2},
                {"--epochs 1 --micro-batch 2 --eval-every 1", 0x7},
                {"--epochs 2 --micro-batch 2 --eval-every epoch", 0x24},
                {"--epochs 1.5 --micro-batch 2 --eval-every epoch", 0x14},
                {"--max-steps 7 --micro-batch 2 --eval-every epoch", 0x64},
                {"--epochs 2 --micro-batch 2 --eval-every epoch --eval-every 5", 0x30}};
    const struct workplace *w = *state;
    char text[5 * SEQ + 1], options[128];

    memset(text, 'a', sizeof(text));
    write_tokens(w, text, sizeof(text));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        snprintf(options, sizeof(options), "%s --eval-data {w}/w.bin", rows[i].options);
        assert_int_equal(train(w, options).evaluated, rows[i].evaluated);
    }
}

/* Trainer's step would be a smaller one. */
TEST(a_step_of_more_than_all_rows_is_told)
{
    static const char said[] = "the data has 5 sequences, a step takes 8: ";
    static const char *const options[] = {"--max-steps 2 --micro-batch 8", "--epochs 1 --micro-batch 8",
                                          "--max-steps 2 --micro-batch 5"};
    const struct workplace *w = *state;
    char text[5 * SEQ + 1], command[256];

    memset(text, 'a', sizeof(text));
    write_tokens(w, text, sizeof(text));
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        struct program p;

        snprintf(command, sizeof(command),
                 "train --model nano --data {w}/w.bin --seq-len 32 --machine {w}/machine.json --quiet %s", options[i]);
        workplace_run_ok(w, &p, command);
        assert_int_equal(strstr(p.err, said) != NULL, i == 0);
        program_free(&p);
    }
}

TEST(progress_and_end_say_epochs)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p,
                     "train --model nano --data {w}/w.bin --seq-len 32 --machine {w}/machine.json --epochs 2 --micro-batch 4");
    assert_non_null(strstr(p.out, "step 1/4 | "));
    assert_non_null(strstr(p.out, " | epoch 0.50 | "));
    assert_non_null(strstr(p.out, " | epoch 2.00 | "));
    assert_non_null(strstr(p.out, "done: 4 steps (0 skipped), 2 epochs, 512 tokens in "));
    program_free(&p);
}

/* A run that resumes for fewer epochs than it has behind it would write the longer run's model as its own. */
TEST(epochs_that_are_over_already_are_refused)
{
#define RESUMED "train --model nano --data {w}/w.bin --seq-len 32 --machine {w}/machine.json --micro-batch 4 --quiet "
    const struct workplace *w = *state;
    char text[5 * SEQ + 1];
    struct program p;

    memset(text, 'a', sizeof(text));
    write_tokens(w, text, sizeof(text));
    workplace_run_ok(w, &p, RESUMED "--epochs 1.5 --save {w}/save");
    program_free(&p);
    workplace_run(w, &p, RESUMED "--epochs 0.5 --resume {w}/save --out {w}/out");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "error: --epochs 0.5 is 1 step of this data, and the checkpoint has done 3 already: "));
    program_free(&p);
    assert_false(workplace_exists(w, "out"));
    workplace_run_ok(w, &p, RESUMED "--epochs 1.5 --resume {w}/save");
    program_free(&p);
    workplace_remove(w, "save");
#undef RESUMED
}

TEST_GROUP(workplace_setup, workplace_teardown);
