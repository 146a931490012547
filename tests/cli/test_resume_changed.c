/* test_resume_changed.c - a run that resumes with another configuration: the same bits where it differs in speed or place alone,
 * a notice where results may differ, a refusal that names both values where it would be another run. */
#include "program.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"
#include "workplace.h"

#include <regex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define MACHINE  "--machine {w}/machine.json --digest --quiet "
#define DATA     "--data {w}/good.bin --seq-len 32 "
#define NANO     "train --model nano " MACHINE
#define STEPS    "--max-steps 4 --micro-batch 2 "
#define LOST     "strata: notice: neither --out DIR nor --save DIR is given: what this run learns is lost when it ends\n"
#define DRIVES                                                                                                                   \
    "--nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme "                     \
    "--set zero_optimization.offload_param.device=nvme --set strata.cache=0 --device-memory 20MiB "

enum bits {
    SAME,  /* digests of a run that never ended */
    OTHER, /* it learns otherwise, or is refused */
    ANY,   /* sums in another order: what a processor's kernels make of that is theirs */
};

static const struct {
    const char *command;
    int code;
    enum bits bits;
    const char *wanted; /* in what it says; NULL: it says nothing but that nothing is kept */
} rows[] = {
    {NANO DATA STEPS, 0, SAME, NULL},
    {NANO DATA STEPS "--threads 1 --host-memory 400MiB --device-memory 100MiB", 0, SAME, NULL},
    {NANO DATA STEPS DRIVES "--set strata.io_method=threads --set strata.chunk_size=65536", 0, SAME, NULL},
    {NANO DATA STEPS DRIVES "--set strata.update=serial --set strata.activations=recomputed", 0, SAME, NULL},
    {NANO DATA STEPS "--lr 0.01", 0, OTHER, "optimizer.params.lr is 0.01 from here on; in .* it was 5e-05"},
    {NANO DATA STEPS "--set gradient_clipping=0.5", 0, OTHER, "gradient_clipping is 0.5 from here on; in .* it was 1"},
    {NANO DATA "--max-steps 4 --micro-batch 1 --grad-accum 2", 0, ANY,
     "otherwise than in .* \\(2 at a time, 1 here\\): bits may differ"},
    {NANO DATA "--max-steps 4 --micro-batch 1 --grad-accum 2 --set strata.leaves=2", 0, ANY,
     "strata.leaves is 2 from here on; in .* it was 1"},
    {NANO DATA "--max-steps 4 --micro-batch 1", 0, ANY, "otherwise than in .* \\(2 at a time, 1 here\\)"},
    {NANO DATA "--max-steps 4", 0, ANY, "otherwise than in .* \\(2 at a time, 1 here\\)"},
    {NANO DATA "--max-steps 4 --grad-accum 1", 0, SAME, NULL},
    {NANO DATA "--max-steps 4 --micro-batch 3", 2, OTHER,
     "train_batch_size 2 \\(the checkpoint's\\) is not train_micro_batch_size_per_gpu .--micro-batch. 3 "},
    {NANO DATA "--max-steps 4 --micro-batch 1 --grad-accum 1", 2, OTHER, "of 2 sequences a step, and this one has 1:"},
    {"train --model mini " MACHINE DATA STEPS, 2, OTHER, "another model: of nano, and this one is mini"},
    {NANO DATA STEPS "--set bf16.enabled=false --set fp16.enabled=false", 2, OTHER, "in bf16, and this one is in fp32"},
    {NANO DATA STEPS "--set optimizer.type=Lion", 2, OTHER, "of AdamW, and this one is of Lion"},
    {NANO DATA STEPS "--set strata.moments=bf16", 2, OTHER, "2 moments in fp32, this one has 2 in bf16"},
    {NANO DATA STEPS "--seed 7", 2, OTHER, "--seq-len 32 and --seed 0, and this one has 32 and 7"},
    {NANO "--data {w}/good.bin --seq-len 64 " STEPS, 2, OTHER, "--seq-len 32 and --seed 0, and this one has 64 and 0"},
    {NANO "--data {w}/good.heldout.bin --seq-len 32 " STEPS, 2, OTHER, "good.heldout.bin stands where .*good.bin"},
    {NANO DATA "--data {w}/good.heldout.bin " STEPS, 2, OTHER, "over 1 token file, and this one has 2"},
    {NANO DATA "--epochs 1 --micro-batch 2", 2, OTHER, "without --epochs, and this one is with it"},
    {NANO DATA STEPS "--no-shuffle", 2, OTHER, "without --no-shuffle, and this one is with it"},
    /* of two differences the one that explains more */
    {NANO DATA STEPS "--set bf16.enabled=false --set fp16.enabled=false --set optimizer.type=Lion", 2, OTHER,
     "in bf16, and this"},
    {NANO DATA STEPS "--set optimizer.type=Lion --set strata.moments=bf16", 2, OTHER, "of AdamW, and this one is of Lion"},
    {"train --model mini " MACHINE DATA STEPS "--set strata.moments=bf16", 2, OTHER, "2 moments in fp32, this one has 2 in"},
    {"train --model mini " MACHINE DATA STEPS "--seed 7", 2, OTHER, "another model: of nano, and this one is mini"},
    {NANO "--data {w}/good.heldout.bin --seq-len 32 --epochs 1 --micro-batch 2", 2, OTHER, "heldout.bin stands where .*good"},
    {NANO DATA "--epochs 1 --micro-batch 2 --no-shuffle --seed 7", 2, OTHER, "without --epochs, and this one is with it"},
    {NANO DATA STEPS "--no-shuffle --seed 7", 2, OTHER, "without --no-shuffle, and this one is with it"},
    {NANO DATA "--max-steps 4 --micro-batch 1 --grad-accum 1 --seed 7", 2, OTHER, "--seed 0, and this one has 32 and 7"},
};

static bool matches(const char *text, const char *pattern)
{
    regex_t regex;
    bool found;

    assert_int_equal(regcomp(&regex, pattern, REG_EXTENDED | REG_NOSUB), 0);
    found = regexec(&regex, text, 0, NULL, 0) == 0;
    regfree(&regex);
    return found;
}

TEST(changes_are_allowed_noticed_or_refused)
{
    const struct workplace *w = *state;
    struct program p;
    char command[1024], never_ended[160];
    unsigned wrong = 0;

    workplace_run_ok(w, &p, NANO DATA STEPS "--save {w}/a --save-every 2");
    snprintf(never_ended, sizeof(never_ended), "%s", p.out);
    program_free(&p);
    for (size_t i = 0; i < COUNT(rows); i++) {
        snprintf(command, sizeof(command), "%s --resume {w}/a/step-00000002", rows[i].command);
        workplace_run(w, &p, command);
        if (p.code != rows[i].code || (rows[i].bits != ANY && (strcmp(p.out, never_ended) == 0) != (rows[i].bits == SAME)) ||
            (rows[i].wanted != NULL ? !matches(p.err, rows[i].wanted) : strcmp(p.err, LOST) != 0)) {
            print_error("%s: exit code %d\n%s%s", command, p.code, p.err, p.out);
            wrong++;
        }
        program_free(&p);
    }
    workplace_remove(w, "a");
    assert_int_equal(wrong, 0);
}

/* A number of each step of a run, with a blank behind it. */
static void numbers_of(const struct workplace *w, const char *key, const char *command, char out[256])
{
    struct program p;
    size_t length = 0;

    workplace_run(w, &p, command); /* which may diverge */
    out[0] = '\0';
    for (const char *at = strstr(p.out, "\n{\"step\":"); at != NULL; at = strstr(at + 1, "\n{\"step\":")) {
        const char *scale = strstr(at, key);

        assert_non_null(scale);
        length += (size_t)snprintf(out + length, 256 - length, "%g ", strtod(scale + strlen(key), NULL));
    }
    program_free(&p);
}

/* What a notice says of fp16's loss scaling holds from here on: the checkpoint has a scale, not how it goes on. */
TEST(other_loss_scaling_holds)
{
#define FP16                                                                                                                     \
    "train --model nano --machine {w}/machine.json --json " DATA                                                                 \
    "--micro-batch 2 --set bf16.enabled=false --set fp16.enabled=true --set fp16.initial_scale_power=%s --max-steps %s"
    static const struct {
        const char *power, *options, *scales; /* of steps 3 to 6 */
    } changed[] = {
        {"10", "", "1024 1024 1024 1024 "},
        {"10", "--set fp16.loss_scale=128", "128 128 128 128 "},
        {"10", "--set fp16.loss_scale_window=1", "1024 2048 4096 8192 "},
        {"10", "--set fp16.loss_scale_window=3", "1024 1024 2048 2048 "}, /* the steps of before count */
        {"10", "--set fp16.hysteresis=1", "1024 1024 1024 1024 "},
        {"4", "", "16 16 16 16 "},
        {"4", "--set fp16.loss_scale_window=1", "16 16 32 64 "}, /* as a run begins */
    };
    const struct workplace *w = *state;
    char command[1024], scales[256];
    struct program p;

    snprintf(command, sizeof(command), FP16 " --save {w}/a", "10", "2");
    workplace_run_ok(w, &p, command);
    program_free(&p);
    for (size_t i = 0; i < COUNT(changed); i++) {
        snprintf(command, sizeof(command), FP16 " --resume {w}/a %s", changed[i].power, "6", changed[i].options);
        numbers_of(w, "\"loss_scale\":", command, scales);
        if (strcmp(scales, changed[i].scales) != 0)
            fail_msg("%s: %s", command, scales);
    }
    workplace_remove(w, "a");
#undef FP16
}

/* A step tells of the weights that the update before it has made infinite, also where that is the checkpoint's; once. */
TEST(overflows_are_told_once)
{
#define FP16                                                                                                                     \
    "train --model nano --machine {w}/machine.json --json " DATA "--micro-batch 2 --set bf16.enabled=false "                     \
    "--set fp16.enabled=true --set fp16.initial_scale_power=8 --set gradient_clipping=0 --set strata.max_skipped=0 "             \
    "--lr 1000 --set optimizer.params.weight_decay=1000 --set strata.update=%s "
    static const char *const updates[] = {"gated", "serial"};
    const struct workplace *w = *state;
    char command[1024], never_ended[256], is[256];

    for (size_t i = 0; i < COUNT(updates); i++) {
        snprintf(command, sizeof(command), FP16 "--max-steps 4 --save {w}/a --save-every 1 --keep 4", updates[i]);
        numbers_of(w, "\"weights_overflowed\":", command, never_ended);
        assert_true(strncmp(never_ended, "0 ", 2) == 0 && strncmp(never_ended, "0 0 ", 4) != 0);
        for (int step = 1; step <= 2; step++) {
            const char *rest = never_ended;

            for (int k = 0; k < step; k++)
                rest = strchr(rest, ' ') + 1;
            snprintf(command, sizeof(command), FP16 "--max-steps 4 --resume {w}/a/step-0000000%d", updates[i], step);
            numbers_of(w, "\"weights_overflowed\":", command, is);
            assert_string_equal(is, rest);
        }
        workplace_remove(w, "a");
    }
#undef FP16
}

/* Texts are made into tokens in a file that nobody has named: sentences say what was named. */
TEST(changed_texts_are_refused_by_name)
{
#define TEXT NANO "--data {w}/talk.txt --seq-len 32 --max-steps 3 "
    const struct workplace *w = *state;
    struct program p;
    char text[4096];

    memset(text, 'a', sizeof(text));
    workplace_write(w, "talk.txt", text, sizeof(text));
    workplace_run_ok(w, &p, TEXT "--save {w}/a --save-every 2");
    program_free(&p);
    workplace_run_ok(w, &p, TEXT "--resume {w}/a/step-00000002");
    program_free(&p);
    memset(text, 'b', sizeof(text));
    workplace_write(w, "talk.txt", text, sizeof(text));
    workplace_run(w, &p, TEXT "--resume {w}/a/step-00000002");
    assert_int_equal(p.code, 2);
    if (!matches(p.err, "/talk.txt has changed, or gives other tokens, since ") || matches(p.err, "texts\\.bin"))
        fail_msg("%s", p.err);
    program_free(&p);
    workplace_remove(w, "a");
    workplace_remove(w, "talk.txt");
#undef TEXT
}

/* The same tokens with other ones trained are other data; what a checkpoint of before does not say is not asked. */
TEST(another_mask_is_refused)
{
#define ROWS                                                                                                                     \
    "train --model tests/golden/chat/qwen " MACHINE "--digest --quiet --data {w}/rows.jsonl --seq-len 64 --max-steps 3 "         \
    "--resume {w}/a/step-00000002 "
    static const char row[] =
        "{\"messages\": [{\"role\": \"user\", \"content\": \"Why?\"}, {\"role\": \"assistant\", \"content\": "
        "\"So.\"}, {\"role\": \"user\", \"content\": \"Ah.\"}, {\"role\": \"assistant\", \"content\": \"Yes.\"}]}\n";
    static const char *const others[] = {"--train-on-prompt", "--mask-history", "--train-turn-ends"};
    const struct workplace *w = *state;
    char text[4 * sizeof(row)] = "", command[1024];
    struct program p;

    for (int i = 0; i < 4; i++)
        strcat(text, row);
    workplace_write(w, "rows.jsonl", text, strlen(text));
    workplace_run_ok(w, &p,
                     "train --model tests/golden/chat/qwen " MACHINE "--quiet --data {w}/rows.jsonl --seq-len 64 --max-steps 3 "
                     "--save {w}/a --save-every 2");
    program_free(&p);
    workplace_run_ok(w, &p, ROWS);
    program_free(&p);
    for (size_t i = 0; i < COUNT(others); i++) {
        snprintf(command, sizeof(command), ROWS "%s", others[i]);
        workplace_run(w, &p, command);
        if (p.code != 2 || !matches(p.err, "/rows.jsonl: trained tokens or starts of documents differ from the run of"))
            fail_msg("%s: %d\n%s", command, p.code, p.err);
        program_free(&p);
    }
    workplace_remove(w, "a");
    workplace_remove(w, "rows.jsonl");
#undef ROWS
}

/* A text that a model reads by bytes is the same data whether its tokens are kept for the next run, are not, or lie in a file
 * that strata tokens has made. */
TEST(a_text_of_bytes_is_one_data)
{
#define RUN(data, steps) NANO "--seq-len 32 --data {w}/" data " --max-steps " steps " "
    static const char *const first[] = {RUN("talk.txt", "1"), RUN("talk.txt", "1") "--out {w}/o", RUN("talk.bin", "1")};
    static const char *const then[] = {RUN("talk.txt", "2"), RUN("talk.txt", "2") "--overwrite --out {w}/o",
                                       RUN("talk.bin", "2")};
    const struct workplace *w = *state;
    char text[4096], command[1024], digests[COUNT(then)][160];
    struct program p;

    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (char)('a' + i * i / 7 % 26);
    workplace_write(w, "talk.txt", text, sizeof(text));
    workplace_run_ok(w, &p, "tokens {w}/talk.txt --out {w}/talk.bin");
    program_free(&p);
    for (size_t i = 0; i < COUNT(first); i++) {
        snprintf(command, sizeof(command), "%s --overwrite --save {w}/a", first[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        for (size_t k = 0; k < COUNT(then); k++) {
            snprintf(command, sizeof(command), "%s --overwrite --resume {w}/a", then[k]);
            workplace_digests(w, command, digests[k]);
            assert_string_equal(digests[k], digests[0]);
        }
        workplace_remove(w, "a");
    }
    text[4095] ^= 1; /* and another text is another one */
    workplace_run_ok(w, &p, RUN("talk.txt", "1") "--overwrite --out {w}/o --save {w}/a");
    program_free(&p);
    workplace_write(w, "talk.txt", text, sizeof(text));
    workplace_run(w, &p, RUN("talk.txt", "2") "--overwrite --out {w}/o --resume {w}/a");
    assert_int_equal(p.code, 2);
    assert_true(matches(p.err, "/talk.txt has changed, "));
    program_free(&p);
    workplace_remove(w, "a");
    workplace_remove(w, "o");
    workplace_remove(w, "o.tokens");
    workplace_remove(w, "talk.txt");
    workplace_remove(w, "talk.bin");
#undef RUN
}

/* Of two directories of one name, the first tensor that differs. */
TEST(another_models_tensor_is_named)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, NANO DATA "--max-steps 1 --out {w}/same");
    program_free(&p);
    workplace_run_ok(w, &p, "train --model {w}/same " MACHINE DATA "--max-steps 1 --save {w}/a");
    program_free(&p);
    workplace_remove(w, "same");
    workplace_run_ok(w, &p, "train --model mini " MACHINE DATA "--max-steps 1 --out {w}/same");
    program_free(&p);
    workplace_run(w, &p, "train --model {w}/same " MACHINE DATA "--max-steps 2 --resume {w}/a");
    if (p.code != 2 || !matches(p.err, "another model: tensor .*wte.weight has [0-9]+ elements there, and [0-9]+ in this one"))
        fail_msg("exit code %d\n%s", p.code, p.err);
    program_free(&p);
    workplace_remove(w, "same");
    workplace_remove(w, "a");
}

/* {w}/same: a model whose head's weights are the embedding's, tied or not. */
static void put_model(const struct workplace *w, bool tied)
{
#define TINY "tests/golden/llama_tiny_untied/"
    const size_t plane = 96 * 64 * sizeof(float); /* the embedding is the file's first one, the head its last */
    size_t bytes;
    char *config = read_file(TINY "config.json", &bytes), *at = strstr(config, "\"tie_word_embeddings\": false");
    char *weights;
    uint64_t header;

    assert_non_null(at);
    if (tied)
        memcpy(strstr(at, "false"), "true ", 5);
    workplace_write(w, "same/config.json", config, bytes);
    free(config);
    weights = read_file(TINY "model.safetensors", &bytes);
    memcpy(&header, weights, sizeof(header));
    memcpy(weights + bytes - plane, weights + sizeof(header) + header, plane);
    workplace_write(w, "same/model.safetensors", weights, bytes);
    free(weights);
}

/* All tensors of one are the other's, too. */
TEST(a_tensor_more_or_less_is_counted)
{
#define TRAIN_TINY "train --model {w}/same " MACHINE "--data " TINY "tokens.bin --seq-len 16 "
    static const char *const wanted[] = {"another model: it has 6 groups of 20 tensors' parts, and this one 7 of 21: ",
                                         "another model: it has 7 groups of 21 tensors' parts, and this one 6 of 20: "};
    const struct workplace *w = *state;
    struct program p;

    workplace_make_dir(w, "same");
    for (int i = 0; i < 2; i++) {
        put_model(w, i == 0);
        workplace_run_ok(w, &p, TRAIN_TINY "--max-steps 1 --save {w}/a");
        program_free(&p);
        put_model(w, i == 1);
        workplace_run(w, &p, TRAIN_TINY "--max-steps 2 --resume {w}/a");
        if (p.code != 2 || strstr(p.err, wanted[i]) == NULL)
            fail_msg("exit code %d\n%s", p.code, p.err);
        program_free(&p);
        workplace_remove(w, "a");
    }
    workplace_remove(w, "same");
#undef TRAIN_TINY
#undef TINY
}

/* The configuration is read again for what the checkpoint says of it; its notices have been told by then. */
TEST(notices_of_the_configuration_are_told_once)
{
    static const char text[] = "{\"bf16\": {\"enabled\": true}, \"wall_clock_breakdown\": true}";
    static const char *const notices[] = {"gradient_clipping: left out of the file", "wall_clock_breakdown"};
    const struct workplace *w = *state;
    struct program p;

    workplace_write(w, "c.json", text, strlen(text));
    workplace_run_ok(w, &p, NANO DATA "--max-steps 1 --config {w}/c.json --save {w}/a");
    program_free(&p);
    workplace_run_ok(w, &p, NANO DATA "--max-steps 2 --config {w}/c.json --save {w}/a --resume auto");
    for (size_t i = 0; i < COUNT(notices); i++) {
        const char *first = strstr(p.err, notices[i]);

        assert_non_null(first);
        assert_null(strstr(first + 1, notices[i]));
    }
    program_free(&p);
    workplace_remove(w, "a");
    workplace_remove(w, "c.json");
}

/* A run that is short enough for its schedule makes checkpoints that can be used, though they do not say how long it was; that
 * the schedule suits a run's length is asked of the run that goes on. */
TEST(a_schedule_is_evaluated_by_the_run_that_takes_it)
{
    static const char text[] =
        "{\"bf16\": {\"enabled\": true}, \"gradient_clipping\": 1, \"scheduler\": {\"type\": \"OneCycle\", \"params\": "
        "{\"cycle_min_lr\": 1e-4, \"cycle_max_lr\": 1e-3, \"cycle_first_step_size\": 1, \"decay_step_size\": 1, "
        "\"decay_mom_rate\": 0.05}}}";
    static const struct {
        const char *command;
        int code;
        const char *wanted;
    } uses[] = {
        {NANO DATA "--config {w}/c.json --max-steps 4 --resume {w}/a", 0, NULL},
        {NANO DATA "--config {w}/c.json --max-steps 6 --resume {w}/a", 2, "decay_mom_rate: 0.05 brings beta1 to 1 at step 6"},
        {"eval --model {w}/a " DATA "--config {w}/c.json", 0, NULL},
        {"export {w}/a --out {w}/exported", 0, NULL},
    };
    const struct workplace *w = *state;
    struct program p;

    workplace_write(w, "c.json", text, strlen(text));
    workplace_run_ok(w, &p, NANO DATA "--config {w}/c.json --max-steps 2 --save {w}/a");
    program_free(&p);
    for (size_t i = 0; i < COUNT(uses); i++) {
        workplace_run(w, &p, uses[i].command);
        if (p.code != uses[i].code || (uses[i].wanted != NULL && !matches(p.err, uses[i].wanted)))
            fail_msg("%s: exit code %d\n%s", uses[i].command, p.code, p.err);
        program_free(&p);
    }
    workplace_remove(w, "exported");
    workplace_remove(w, "a");
    workplace_remove(w, "c.json");
}

/* The rate of a schedule as long as the run changes with the run's length. */
TEST(another_length_of_the_schedule_is_noticed)
{
    static const struct {
        const char *key, *of; /* NULL: it has no length */
    } schedules[] = {
        {"strata.lr_scheduler.type=cosine", "strata.lr_scheduler"},
        {"strata.lr_scheduler.type=constant", NULL},
    };
    const struct workplace *w = *state;
    char command[512], wanted[128];
    struct program p;

    for (size_t i = 0; i < COUNT(schedules); i++) {
        snprintf(command, sizeof(command), NANO DATA "--set %s --max-steps 2 --save {w}/a", schedules[i].key);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        snprintf(command, sizeof(command), NANO DATA "--set %s --max-steps 3 --resume {w}/a", schedules[i].key);
        workplace_run_ok(w, &p, command);
        snprintf(wanted, sizeof(wanted), "%s\\.total_num_steps is 3 from here on; in .* it was 2", schedules[i].of);
        if (schedules[i].of != NULL ? !matches(p.err, wanted) : strcmp(p.err, LOST) != 0)
            fail_msg("%s: %s", command, p.err);
        program_free(&p);
        workplace_remove(w, "a");
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
