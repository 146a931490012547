/* tests/cli/test_precision.c - what a run trains in: what the configuration names, else bf16 without a file, else the dtype its
 * weights are stored in; and what a start says of that and of clipping. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLIPPED  "\"gradient_clipping\":1"
#define OFF      "{\"bf16\":{\"enabled\":false}," CLIPPED "}"
#define WIDENED  "DeepSpeed would keep"
#define STORED   "turns on neither bf16 nor fp16: using "
#define CLIPPING "gradient_clipping: left out of the file"

struct precision_row {
    const char *config; /* NULL: no file */
    const char *model, *options;
    const char *head;   /* part of the plan's first line; NULL: refused */
    const char *notice; /* part of standard error; NULL: neither notice stands there */
};

static int setup(void **state)
{
    static const char *const options[] = {"--set bf16.enabled=false --out {w}/fp32",
                                          "--set fp16.enabled=true --set fp16.loss_scale=128 --out {w}/fp16"};
    struct workplace *w;

    if (workplace_setup(state) != 0)
        return -1;
    w = *state;
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        struct program p;
        char line[512];

        snprintf(line, sizeof(line),
                 "train --model nano --data {w}/good.bin --seq-len 32 --max-steps 1 --machine {w}/machine.json %s", options[i]);
        workplace_run_ok(w, &p, line);
        program_free(&p);
    }
    return 0;
}

static void plan(const struct workplace *w, struct program *p, const struct precision_row *row)
{
    char line[512];

    if (row->config != NULL)
        workplace_write(w, "config.json", row->config, strlen(row->config));
    snprintf(line, sizeof(line), "plan --model %s --seq-len 32 --micro-batch 1 %s %s", row->model,
             row->config != NULL ? "--config {w}/config.json" : "", row->options);
    workplace_run(w, p, line);
}

static void check_row(const struct workplace *w, const struct precision_row *row)
{
    struct program p;
    bool silent;

    plan(w, &p, row);
    silent = strstr(p.err, STORED) == NULL && strstr(p.err, CLIPPING) == NULL && strstr(p.err, WIDENED) == NULL;
    if (p.code != (row->head != NULL ? 0 : 2) || (row->head != NULL && strstr(p.out, row->head) == NULL) ||
        (row->notice != NULL ? strstr(p.err, row->notice) == NULL : !silent))
        fail_msg("%s, %s %s: exit code %d\n%s%s", row->config != NULL ? row->config : "no file", row->model, row->options, p.code,
                 p.err, p.out);
    program_free(&p);
}

TEST(what_is_named_and_what_is_left_out)
{
    static const struct precision_row rows[] = {
        /* as named */
        {NULL, "nano", "--set fp16.enabled=true", "859 thousand parameters in fp16,", NULL},
        {NULL, "nano", "--set bf16.enabled=false", "in fp32,", NULL},
        {"{\"fp16\":{\"enabled\":true}," CLIPPED "}", "{w}/model", "", "in fp16,", NULL},
        {"{\"bf16\":{\"enabled\":true}," CLIPPED "}", "{w}/fp16", "", "in bf16,", NULL},
        {OFF, "{w}/model", "", "in fp32,", "sets bf16.enabled to false: fp32 here; DeepSpeed would keep "},
        {OFF, "{w}/model", "", "in fp32,", "in bf16: bf16.enabled true does so"},
        {OFF, "{w}/fp16", "", "in fp32,", "in fp16: fp16.enabled true does so"},
        {OFF, "{w}/fp32", "", "in fp32,", NULL},
        {OFF, "nano", "", "in fp32,", NULL},
        {"{" CLIPPED "}", "{w}/model", "--set bf16.enabled=false", "in fp32,", NULL}, /* who says so here knows */
        /* ours: no file, and "auto" */
        {NULL, "nano", "", "in bf16,", NULL},
        {NULL, "{w}/fp32", "", "in bf16,", NULL},
        {NULL, "{w}/fp16", "", "in bf16,", NULL},
        {"{\"bf16\":{\"enabled\":\"auto\"}," CLIPPED "}", "{w}/fp32", "", "in bf16,", NULL},
        {"{\"fp16\":{\"enabled\":\"auto\"}," CLIPPED "}", "nano", "", "in bf16,", NULL},
        {"{\"fp16\":{\"enabled\":false},\"bf16\":{\"enabled\":\"auto\"}," CLIPPED "}", "nano", "", "in bf16,", NULL},
        /* a file that names none: as stored */
        {"{" CLIPPED "}", "nano", "", "in fp32,", STORED "fp32, the dtype of nano"},
        {"{" CLIPPED "}", "{w}/fp32", "", "in fp32,", STORED "fp32"},
        {"{" CLIPPED "}", "{w}/model", "", "in bf16,", STORED "bf16"},
        {"{\"bf16\":{}," CLIPPED "}", "{w}/model", "", "in bf16,", STORED "bf16"},
        {"{\"fp16\":{\"enabled\":false}," CLIPPED "}", "{w}/model", "", "in bf16,", STORED "bf16"},
        {"{" CLIPPED "}", "{w}/fp16", "", NULL, "set fp16.enabled or bf16.enabled"},
        /* command line over file */
        {"{" CLIPPED "}", "{w}/fp16", "--set bf16.enabled=true", "in bf16,", NULL},
        {"{\"bf16\":{\"enabled\":true}," CLIPPED "}", "nano", "--set bf16.enabled=false", "in fp32,", NULL},
        /* clipping */
        {"{\"bf16\":{\"enabled\":true}}", "nano", "", "in bf16,", CLIPPING ": 1, as in DeepSpeed since 0.19.3"},
        {"{\"bf16\":{\"enabled\":true}}", "nano", "--set gradient_clipping=0.5", "in bf16,", NULL},
        {"{\"bf16\":{\"enabled\":true},\"gradient_clipping\":\"auto\"}", "nano", "", "in bf16,", NULL},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check_row(*state, &rows[i]);
}

/* What is computed in where neither autocast is on: the dtype in which TRL loads the weights, fp32 unless the file says another.
 */
TEST(trls_dtype_counts_where_autocast_is_off)
{
    static const struct {
        struct precision_row all;
        const char *adapter; /* the head of an adapter's run, which is fp32 itself */
    } rows[] = {
        {{"", "{w}/model", "", "in fp32,", NULL}, "in fp32,"},
        {{"", "{w}/fp16", "", "in fp32,", NULL}, "in fp32,"},
        {{"dtype: float32", "{w}/fp16", "", "in fp32,", NULL}, "in fp32,"},
        {{"dtype: bfloat16", "{w}/fp32", "", "in bf16,", NULL}, "in fp32 and bf16,"},
        {{"dtype: auto", "{w}/model", "", "in bf16,", STORED "bf16, the dtype of "}, "in fp32 and bf16,"},
        {{"dtype: auto", "{w}/fp32", "", "in fp32,", STORED "fp32, the dtype of "}, "in fp32,"},
        {{"dtype: auto", "{w}/fp16", "", NULL, "turns on neither bf16 nor fp16, and the fp16 weights of "}, NULL},
    };

    for (size_t i = 0; i < 2 * sizeof(rows) / sizeof(rows[0]); i++) {
        const bool adapter = i % 2 == 1;
        struct precision_row row = rows[i / 2].all;
        char text[256];

        snprintf(text, sizeof(text), "dataset_name: rows.jsonl\nbf16: false\nuse_peft: %s\n%s\n", adapter ? "true" : "false",
                 row.config);
        workplace_write(*state, "r.yaml", text, strlen(text));
        row.config = NULL;
        row.options = "{w}/r.yaml";
        row.head = adapter ? rows[i / 2].adapter : row.head;
        check_row(*state, &row);
    }
}

/* A forward pass needs no loss scale. */
TEST(fp16_weights_are_evaluated_as_they_are)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_write(w, "c.json", "{" CLIPPED "}", strlen("{" CLIPPED "}"));
    workplace_run_ok(w, &p, "eval --model {w}/fp16 --data {w}/good.bin --seq-len 32 --config {w}/c.json");
    assert_non_null(strstr(p.err, STORED "fp16, the dtype of"));
    program_free(&p);
}

/* Nor does it clip. */
TEST(what_an_update_does_is_no_news_to_a_forward_pass)
{
    static const char *const commands[] = {
        "eval --model {w}/model --data {w}/good.bin --seq-len 32 --config {w}/c.json",
        "generate --model {w}/model --prompt x --max-tokens 2 --config {w}/c.json",
    };
    static const char config[] = "{\"bf16\":{\"enabled\":true}}";
    const struct workplace *w = *state;

    workplace_write(w, "c.json", config, strlen(config));
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        struct program p;

        workplace_run_ok(w, &p, commands[i]);
        assert_null(strstr(p.err, CLIPPING));
        program_free(&p);
    }
}

/* Without a word in config.json the first tensor says; a directory that config.json alone describes is taken as fp32. */
TEST(files_say_where_config_json_does_not)
{
    struct workplace *w = *state;
    size_t bytes;
    char *config = workplace_read(w, "model/config.json", &bytes);
    char *word = strstr(config, "torch_dtype");
    const struct precision_row row = {"{" CLIPPED "}", "{w}/model", "", "in bf16,", STORED "bf16"};

    assert_non_null(word);
    memcpy(word, "other_dtype", strlen("other_dtype"));
    workplace_write(w, "model/config.json", config, bytes);
    check_row(w, &row);
    workplace_remove(w, "model/model.safetensors");
    check_row(w, &(struct precision_row){row.config, row.model, "", "in fp32,", STORED "fp32"});
    memcpy(word, "torch_dtype", strlen("torch_dtype"));
    word = strstr(config, "bfloat16");
    assert_non_null(word);
    memcpy(word, "float8_x", strlen("bfloat16"));
    workplace_write(w, "model/config.json", config, bytes);
    check_row(w, &(struct precision_row){row.config, row.model, "", NULL, "\"torch_dtype\" is \"float8_x\""});
    free(config);
}

TEST_GROUP(setup, workplace_teardown);
