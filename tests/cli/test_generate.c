/* tests/cli/test_generate.c - text from a model: the same wherever its weights lie, the same for a seed, and its end. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/golden.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define ON_NVME                                                                                                                  \
    " --device-memory 2MiB --nvme {w}/nvme --set zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme"    \
    " --set strata.cache=0 --threads 2" /* each worker has scratch on the device */
#define ON_HOST                                                                                                                  \
    " --device-memory 2MiB --set zero_optimization.stage=3 --set zero_optimization.offload_param.device=cpu --set "              \
    "strata.cache=0"

/* Standard output of a run that must succeed; owned by the caller. */
static char *output_of(const struct workplace *w, const char *command)
{
    struct program p;
    char *out;

    workplace_run_ok(w, &p, command);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    out = strdup(p.out);
    program_free(&p);
    return out;
}

static void assert_same_output(const struct workplace *w, const char *a, const char *b)
{
    char *x = output_of(w, a), *y = output_of(w, b);

    assert_string_equal(x, y);
    free(x);
    free(y);
}

static double figure(const st_json *root, const char *key)
{
    const st_json *n = st_json_get(root, key);

    assert_non_null(n);
    return st_json_number(n);
}

static st_json *json_of(const struct workplace *w, const char *command)
{
    char *text = output_of(w, command);
    st_json *root;

    assert_int_equal(st_json_parse(&root, text, strlen(text), "output"), STRATA_OK);
    free(text);
    return root;
}

/* --- placement and seeds --- */

#define GREEDY "generate --model {w}/model --prompt 'in the beg' --max-tokens 60 --temperature 0 --quiet"
#define DRAWN  "generate --model {w}/model --prompt 'in the beg' --max-tokens 60 --top-p 0.9 --quiet"

TEST(placement_changes_no_token)
{
    const struct workplace *w = *state;

    assert_same_output(w, GREEDY, GREEDY ON_NVME);
    assert_same_output(w, GREEDY, GREEDY ON_HOST " --threads 1");
    assert_same_output(w, GREEDY, GREEDY ON_NVME " --set strata.io_method=fake --fake-seed 5 --fake-latency-us 20");
    assert_same_output(w, DRAWN " --seed 3", DRAWN " --seed 3" ON_NVME);
}

TEST(a_seed_gives_the_same_text)
{
    const struct workplace *w = *state;
    char *a = output_of(w, DRAWN " --seed 1"), *b = output_of(w, DRAWN " --seed 2");

    assert_string_not_equal(a, b);
    free(a);
    free(b);
    assert_same_output(w, DRAWN " --seed 1", DRAWN " --seed 1");
    assert_same_output(w, GREEDY, GREEDY " --seed 9");
    assert_same_output(w, GREEDY, "generate --model {w}/model --prompt 'in the beg' --max-tokens 60 --top-k 1 --seed 4 --quiet");
}

/* --- prompts --- */

TEST(every_kind_of_prompt_is_the_same)
{
    const struct workplace *w = *state;

    workplace_write(w, "prompt", "in the beg", 10);
    assert_same_output(w, GREEDY, "generate --model {w}/model --prompt-file {w}/prompt --max-tokens 60 --temperature 0 --quiet");
    assert_same_output(w, GREEDY,
                       "generate --model {w}/model --prompt-tokens 105,110,32,116,104,101,32,98,101,103 --max-tokens 60 "
                       "--temperature 0 --quiet");
    workplace_remove(w, "prompt");
}

TEST(other_vocabularies_give_ids)
{
    const struct workplace *w = *state;
    struct program p;
    int32_t ids = 0;
    char *at;

    workplace_run_ok(w, &p, "generate --model tests/golden/gpt2_tiny --prompt-tokens 1,2,3 --max-tokens 5");
    for (at = p.out; *at >= '0' && *at <= '9'; ids++) {
        assert_in_range(strtol(at, &at, 10), 0, 95);
        at += *at == ',';
    }
    assert_int_equal(ids, 5);
    assert_string_equal(at, "\n");
    assert_non_null(strstr(p.err, "token ids on standard output"));
    assert_non_null(strstr(p.err, "3 tokens of prompt"));
    assert_non_null(strstr(p.err, "5 new ones"));
    program_free(&p);
    workplace_run_ok(w, &p, "generate --model tests/golden/gpt2_tiny --prompt-tokens 1,2,3 --max-tokens 5 --json");
    assert_null(strstr(p.err, "token ids")); /* its keys say which they are */
    program_free(&p);
    workplace_run_ok(w, &p, "generate --model tests/golden/gpt2_tiny --prompt-tokens 1,2,3 --max-tokens 5 --quiet");
    assert_string_equal(p.err, "");
    program_free(&p);
}

TEST(the_context_ends_it)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root = json_of(w, "generate --model tests/golden/gpt2_tiny --prompt-tokens 1,2,3 --max-tokens 500 --json");

    assert_string_equal(st_json_string(st_json_get(root, "stopped_by")), "context");
    st_json_free(root);
    workplace_run_ok(w, &p, "generate --model tests/golden/gpt2_tiny --prompt-tokens 1,2,3 --max-tokens 500");
    assert_non_null(strstr(p.err, "29 new ones"));
    assert_non_null(strstr(p.err, "the context of 32 is full"));
    program_free(&p);
}

TEST(a_single_token_has_no_rate)
{
    const struct workplace *w = *state;
    struct program p;
    st_json *root = json_of(w, "generate --model {w}/model --prompt x --max-tokens 1 --json");

    assert_int_equal(st_json_type(st_json_get(root, "tokens_per_second")), ST_JSON_NULL);
    st_json_free(root);
    workplace_run_ok(w, &p, "generate --model {w}/model --prompt x --max-tokens 1");
    assert_non_null(strstr(p.err, "strata: 1 token of prompt in "));
    assert_non_null(strstr(p.err, ", 1 new one in "));
    assert_null(strstr(p.err, "tokens/s"));
    program_free(&p);
}

/* --- what the model's files say --- */

/* {w}/m: the weights of tests/golden/llama_tiny_untied, this config.json, and a generation_config.json or none. */
static void make_model_of(const struct workplace *w, const char *config, size_t bytes, const char *generation)
{
    char *dir = workplace_expand(w, "{w}/m"), *weights = workplace_expand(w, "{w}/m/model.safetensors");
    char *golden = realpath("tests/golden/llama_tiny_untied/model.safetensors", NULL);

    workplace_remove(w, "m");
    assert_true(mkdir(dir, 0700) == 0 && symlink(golden, weights) == 0);
    workplace_write(w, "m/config.json", config, bytes);
    if (generation != NULL)
        workplace_write(w, "m/generation_config.json", generation, strlen(generation));
    free(golden);
    free(weights);
    free(dir);
}

/* With more keys in the golden model's config.json. */
static void make_model(const struct workplace *w, const char *keys, const char *generation)
{
    char *golden = read_file("tests/golden/llama_tiny_untied/config.json", NULL), config[2048];
    const int bytes = snprintf(config, sizeof(config), "{%s%s", keys, golden + 1);

    assert_true(golden[0] == '{' && bytes < (int)sizeof(config));
    free(golden);
    make_model_of(w, config, (size_t)bytes, generation);
}

/* Made by transformers 4.57.6 from the same files with generate(max_new_tokens=29). */
#define PLAIN     "89,89,26,13,10,23,67,69,79,10,57,60,67,26,26,26,26,26,26,26,26,26,26,57,39,8,8,8,8"
#define PENALISED "89,26,27,67,10,23,79,29,31,37,92,65,59,93,27,59,10,49,68,65,31,29,43,65,53,39,86,18,59"

static const struct {
    const char *keys, *generation, *options, *text;
    size_t tokens;
} files[] = {
    {"", NULL, "", PLAIN, 29}, /* a Llama's own end token is 2 */
    {"\"eos_token_id\":67,", NULL, "", PLAIN, 7},
    {"\"eos_token_id\":[90,57],", NULL, "", PLAIN, 11},
    {"\"eos_token_id\":[57,90],", NULL, "", PLAIN, 11},
    {"\"eos_token_id\":67,", "{}", "", PLAIN, 29},
    {"\"eos_token_id\":67,", "{\"eos_token_id\":null}", "", PLAIN, 29},
    {"\"eos_token_id\":67,", "{\"eos_token_id\":[90,8]}", "", PLAIN, 26},
    {"", "{\"repetition_penalty\":1.3}", "", PENALISED, 29},
    {"", "{\"repetition_penalty\":1.3,\"eos_token_id\":49}", "", PENALISED, 18},
    {"", "{\"repetition_penalty\":1.3}", "--repetition-penalty 1", PLAIN, 29},
    {"\"repetition_penalty\":1.3,", NULL, "", PENALISED, 29},
    {"", NULL, "--repetition-penalty 1.3", PENALISED, 29},
    {"", NULL, "--repetition-penalty 1.3 --temperature 3 --top-k 1", PENALISED, 29},
    {"", "{\"do_sample\":true,\"temperature\":5}", "--temperature 0", PLAIN, 29},
    {"", "{\"do_sample\":true,\"top_k\":1}", "", PLAIN, 29},
    {"", "{\"do_sample\":false,\"temperature\":5,\"top_p\":0.5}", "", PLAIN, 29},
};

static size_t bytes_of_tokens(const char *text, size_t tokens)
{
    const char *at = text;

    while (tokens-- > 0)
        at += strcspn(at, ",") + (tokens > 0);
    return (size_t)(at - text);
}

TEST(the_files_say_how_and_how_far)
{
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char command[256], *text;

        make_model(w, files[i].keys, files[i].generation);
        snprintf(command, sizeof(command),
                 "generate --model {w}/m --prompt-tokens 1,2,3 --max-tokens 29 --quiet --set bf16.enabled=false %s",
                 files[i].options);
        text = output_of(w, command);
        text[strlen(text) - 1] = '\0'; /* the newline */
        assert_int_equal(strlen(text), bytes_of_tokens(files[i].text, files[i].tokens));
        assert_memory_equal(text, files[i].text, strlen(text));
        free(text);
    }
}

TEST(files_and_options_draw_the_same)
{
    const struct workplace *w = *state;
    char *by_file, *by_options;
    struct program p;

    make_model(w, "", "{\"do_sample\":true,\"temperature\":5,\"top_k\":40,\"top_p\":0.9,\"num_beams\":2}");
    by_file = output_of(w, "generate --model {w}/m --prompt-tokens 1,2,3 --seed 7 --quiet");
    workplace_run_ok(w, &p, "generate --model {w}/m --prompt-tokens 1,2,3 --seed 7");
    assert_non_null(strstr(p.err, "drawn at temperature 5, top-k 40, top-p 0.9 (by generation_config.json and defaults)"));
    assert_non_null(strstr(p.err, "m/generation_config.json asks for unsupported features: num_beams"));
    program_free(&p);
    make_model(w, "", NULL);
    by_options =
        output_of(w, "generate --model {w}/m --prompt-tokens 1,2,3 --seed 7 --quiet --temperature 5 --top-k 40 --top-p 0.9");
    assert_string_equal(by_file, by_options);
    free(by_file);
    free(by_options);
    workplace_remove(w, "m");
}

#define MISTRAL                                                                                                                  \
    "{\"model_type\":\"mistral\",\"num_hidden_layers\":2,\"hidden_size\":64,\"num_attention_heads\":4,"                          \
    "\"num_key_value_heads\":2,\"intermediate_size\":96,\"vocab_size\":96,\"max_position_embeddings\":256,"                      \
    "\"tie_word_embeddings\":false,\"sliding_window\":16}"

/* 64 tokens of a family's golden model, whose choices are clear. */
static void chooses_transformers_tokens(const struct workplace *w, const char *dir, const char *where)
{
    char path[256], command[1024], prompt[256] = "";
    st_json *golden, *root;
    const st_json *greedy, *got, *n;

    snprintf(path, sizeof(path), "%s/golden.json", dir);
    assert_int_equal(st_json_parse_file(&golden, path, 1 << 20), STRATA_OK);
    greedy = st_json_get(golden, "greedy");
    assert_true(st_json_number(st_json_get(greedy, "margin")) > 1e-4);
    for (n = st_json_first(st_json_get(greedy, "prompt")); n != NULL; n = st_json_next(n))
        snprintf(prompt + strlen(prompt), sizeof(prompt) - strlen(prompt), "%s%d", prompt[0] != '\0' ? "," : "",
                 (int)st_json_number(n));
    snprintf(command, sizeof(command), "generate --model %s --prompt-tokens %s --max-tokens 64 --json --set bf16.enabled=false%s",
             dir, prompt, where);
    root = json_of(w, command);
    got = st_json_first(st_json_get(root, "tokens"));
    for (n = st_json_first(st_json_get(greedy, "tokens")); n != NULL; n = st_json_next(n), got = st_json_next(got))
        assert_true(got != NULL && st_json_number(got) == st_json_number(n));
    assert_null(got);
    st_json_free(root);
    st_json_free(golden);
}

TEST(families_choose_transformers_tokens)
{
    static const char *const dirs[] = {GOLDEN_FAMILIES}, *const sparse[] = {GOLDEN_EXPERTS};

    for (size_t i = 0; i < sizeof(dirs) / sizeof(dirs[0]); i++)
        chooses_transformers_tokens(*state, dirs[i], "");
    for (size_t i = 0; i < sizeof(sparse) / sizeof(sparse[0]); i++) {
        chooses_transformers_tokens(*state, sparse[i], "");
        chooses_transformers_tokens(*state, sparse[i], ON_NVME);
        chooses_transformers_tokens(*state, sparse[i], ON_HOST);
    }
}

#define STACKED                                                                                                                  \
    " --set strata.lora={\"r\":4,\"target_modules\":[\"q_proj\"],"                                                               \
    "\"target_parameters\":[\"mlp.experts.gate_up_proj\",\"mlp.experts.down_proj\"]}"

/* Of a checkpoint, whose pages have several experts, with their adapters behind them; in nf4, too.  It says what the adapter that
 * it exports says. */
TEST(experts_of_a_checkpoint_come_one_by_one)
{
    static const char *const dirs[] = {"tests/golden/experts/gpt_oss", "tests/golden/experts/qwen2_moe"};
    static const char *const nf4[] = {"", " --set strata.quantization=nf4"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < 4; i++) {
        const char *dir = dirs[i / 2];
        char command[1024], saved[1024], exported[1024];
        struct program p;

        snprintf(command, sizeof(command),
                 "train --model %s --data %s/tokens.bin --seq-len 8 --max-steps 2 --micro-batch 1 --lr 0.05 --quiet "
                 "--machine {w}/machine.json --save {w}/saved --set bf16.enabled=false" STACKED "%s",
                 dir, dir, nf4[i % 2]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        workplace_run_ok(w, &p, "export {w}/saved --out {w}/adapter");
        program_free(&p);
        snprintf(saved, sizeof(saved),
                 "generate --model {w}/saved --prompt-tokens 3,17,44 --max-tokens 24 --quiet --set bf16.enabled=false%s",
                 nf4[i % 2]);
        snprintf(exported, sizeof(exported),
                 "generate --model %s --adapter {w}/adapter --prompt-tokens 3,17,44 --max-tokens 24 --quiet "
                 "--set bf16.enabled=false%s",
                 dir, nf4[i % 2]);
        assert_same_output(w, saved, exported);
        strcat(exported, ON_NVME);
        assert_same_output(w, saved, exported);
        strcat(saved, ON_HOST);
        assert_same_output(w, saved, exported);
        workplace_remove(w, "saved");
        workplace_remove(w, "adapter");
    }
}

/* A text may be longer than the window. */
TEST(the_window_does_not_end_it)
{
    const struct workplace *w = *state;
    st_json *root;

    make_model_of(w, MISTRAL, strlen(MISTRAL), "{}");
    root = json_of(w, "generate --model {w}/m --prompt-tokens 1,2,3 --max-tokens 40 --json");
    assert_string_equal(st_json_string(st_json_get(root, "stopped_by")), "length");
    st_json_free(root);
    workplace_remove(w, "m");
}

/* A line tells which settings are the file's: none is called so that the command line gave. */
TEST(settings_say_where_they_come_from)
{
    static const char draws[] = "{\"do_sample\":true,\"temperature\":5,\"top_k\":40}", likeliest[] = "{\"do_sample\":false}";
    static const struct {
        const char *generation, *options, *line;
    } rows[] = {
        {draws, "", "strata: drawn at temperature 5, top-k 40 (by generation_config.json and defaults)\n"},
        {draws, "--temperature 0", "strata: always the likeliest token\n"},
        {draws, "--temperature 2",
         "strata: drawn at temperature 2, top-k 40 (by generation_config.json and defaults, but for "
         "--temperature)\n"},
        {draws, "--temperature 2 --top-k 9 --top-p 0.5", "strata: drawn at temperature 2, top-k 9, top-p 0.5\n"},
        {draws, "--temperature 2 --top-p 0.5",
         "strata: drawn at temperature 2, top-k 40, top-p 0.5 (by generation_config.json and "
         "defaults, but for --temperature, --top-p)\n"},
        /* who says how tokens are drawn wants them drawn */
        {likeliest, "", "strata: always the likeliest token ("},
        {likeliest, "--repetition-penalty 2", "strata: always the likeliest token, repetition penalty 2 ("},
        {likeliest, "--top-k 9", "strata: drawn at temperature 1, top-k 9 ("},
        {likeliest, "--top-p 0.5", "strata: drawn at temperature 1, top-k 50, top-p 0.5 ("},
        {likeliest, "--temperature 2", "strata: drawn at temperature 2, top-k 50 ("},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;
        char command[256];

        make_model(w, "", rows[i].generation);
        snprintf(command, sizeof(command), "generate --model {w}/m --prompt-tokens 1,2,3 --max-tokens 2 %s", rows[i].options);
        workplace_run_ok(w, &p, command);
        if (strstr(p.err, rows[i].line) == NULL)
            fail_msg("%s, %s:\n%s", rows[i].generation, command, p.err);
        program_free(&p);
        workplace_remove(w, "m");
    }
}

/* As in transformers a token that the model does not have ends nothing; here it is said. */
TEST(end_tokens_that_never_come_are_named)
{
    static const struct {
        const char *keys, *generation, *named; /* NULL: no notice */
    } rows[] = {
        {"\"eos_token_id\":[8,96,50256],", NULL, "m/config.json: end tokens 96, 50256 never come: the vocabulary has 96\n"},
        {"", "{\"eos_token_id\":128001}", "m/generation_config.json: end token 128001 never comes: the vocabulary has 96\n"},
        {"\"eos_token_id\":95,", NULL, NULL},
        {"\"eos_token_id\":96,", NULL, "m/config.json: end token 96 never comes: the vocabulary has 96\n"},
        {"", NULL, NULL},
    };
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct program p;

        make_model(w, rows[i].keys, rows[i].generation);
        workplace_run_ok(w, &p, "generate --model {w}/m --prompt-tokens 1,2,3 --max-tokens 2");
        if (rows[i].named != NULL ? strstr(p.err, rows[i].named) == NULL : strstr(p.err, "never come") != NULL)
            fail_msg("row %zu:\n%s", i, p.err);
        program_free(&p);
    }
    workplace_remove(w, "m");
}

/* --- figures --- */

TEST(json_holds_what_was_printed)
{
    const struct workplace *w = *state;
    char *text = output_of(w, GREEDY);
    st_json *root = json_of(w, GREEDY " --json");
    size_t i = 0;

    for (const st_json *n = st_json_first(st_json_get(root, "tokens")); n != NULL; n = st_json_next(n))
        assert_int_equal((unsigned char)text[i++], (int)st_json_number(n));
    assert_int_equal(i, 60);
    assert_int_equal((int)figure(root, "prompt_tokens"), 10);
    assert_string_equal(st_json_string(st_json_get(root, "stopped_by")), "length");
    assert_true(figure(root, "tokens_per_second") > 0);
    assert_non_null(st_json_string(st_json_get(root, "text")));
    st_json_free(root);
    free(text);
}

TEST(bytes_are_counted)
{
    const struct workplace *w = *state;
    st_json *here = json_of(w, GREEDY " --json"), *paged = json_of(w, GREEDY ON_NVME " --json");

    assert_true(figure(st_json_get(here, "bytes"), "read") == 0);
    assert_true(figure(st_json_get(paged, "bytes"), "read") > 60 * 1e6); /* 60 forwards, most of 1.7 MB of weights each */
    assert_true(figure(st_json_get(paged, "bytes"), "write") == 0);
    st_json_free(here);
    st_json_free(paged);
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

/* What the plan says is what the process takes. */
static void check_memory(const struct workplace *w, const char *command)
{
    st_json *root = json_of(w, command);
    const double planned = figure(root, "rss_bytes_max"), peak = figure(root, "peak_rss_bytes");

    assert_true(peak > 0);
    assert_true(peak <= planned * 1.03 + 32 * 1048576.0);
    st_json_free(root);
}

TEST(memory_stays_within_the_plan)
{
    const struct workplace *w = *state;

    if (SANITIZED)
        skip(); /* a sanitizer's own memory is in nobody's plan */
    check_memory(w, GREEDY " --json");
    check_memory(w, GREEDY ON_NVME " --json");
    check_memory(w, "generate --model gpt2 --prompt-tokens 1,2,3 --max-tokens 2 --json");
    check_memory(w, "generate --model gpt2 --prompt-tokens 1,2,3 --max-tokens 2 --json --nvme {w}/nvme --device-memory 80MiB "
                    "--set zero_optimization.stage=3 --set zero_optimization.offload_param.device=nvme --set strata.cache=0");
    check_memory(w, "eval --model {w}/model --data {w}/good.bin --seq-len 128 --micro-batch 4 --json");
    check_memory(w, "eval --model {w}/model --data {w}/good.bin --seq-len 128 --json" ON_NVME);
}

/* --- its end --- */

TEST(ctrl_c_keeps_what_was_made)
{
    const struct workplace *w = *state;
    struct program p;
    char first;

    workplace_start_piped(w, &p,
                          "generate --model {w}/model --prompt x --max-tokens 250 --threads 2" ON_NVME
                          " --set strata.io_method=fake --fake-latency-us 20000");
    assert_int_equal(read(p.out_fd, &first, 1), 1); /* the first token came before the end */
    assert_int_equal(kill(p.pid, SIGINT), 0);
    assert_int_equal(program_drain(&p), '\n');
    program_wait(&p);
    assert_int_equal(p.code, 130);
    assert_non_null(strstr(p.err, " of prompt in "));
    assert_null(strstr(p.err, "error"));
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    program_free(&p);
}

/* How often the main thread has waited; UINT_MAX once it has ended. */
static unsigned waits_of(pid_t pid)
{
    char path[64], line[128];
    unsigned waits = 0;
    FILE *file;

    snprintf(path, sizeof(path), "/proc/%d/status", (int)pid);
    file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof(line), file) != NULL)
        if (strncmp(line, "State:\tZ", 8) == 0)
            waits = UINT_MAX;
        else if (waits == 0)
            (void)sscanf(line, "voluntary_ctxt_switches: %u", &waits);
    fclose(file);
    return waits;
}

/* Nothing is printed before the end: loading waits less than fifty times, each token for its weights. */
TEST(ctrl_c_is_a_reason_to_stop)
{
    const struct workplace *w = *state;
    struct program p;
    char text[16384];
    size_t bytes = 0;
    ssize_t got;
    st_json *root;

    workplace_start_piped(w, &p,
                          "generate --json --model {w}/model --prompt x --max-tokens 250 --threads 2" ON_NVME
                          " --set strata.io_method=fake --fake-latency-us 20000");
    while (waits_of(p.pid) < 200)
        sched_yield();
    assert_int_equal(kill(p.pid, SIGINT), 0);
    while ((got = read(p.out_fd, text + bytes, sizeof(text) - bytes)) > 0)
        bytes += (size_t)got;
    program_wait(&p);
    assert_int_equal(p.code, 130);
    assert_int_equal(st_json_parse(&root, text, bytes, "output"), STRATA_OK);
    assert_string_equal(st_json_string(st_json_get(root, "stopped_by")), "signal");
    st_json_free(root);
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
