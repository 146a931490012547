/* tests/cli/test_template_kept.c - a model that is trained by another chat template than its own has that one beside its weights,
 * and ends where it ends. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define QWEN  "tests/golden/chat/qwen"
#define TRAIN "train --data {w}/rows.jsonl --seq-len 64 --max-steps 1 --quiet --threads 1 --machine {w}/machine.json --out {w}/"
#define ASK   "generate --chat --prompt 'What is it?' --max-tokens 3 --threads 1 --json --set bf16.enabled=false --model {w}/"

static void put(const struct workplace *w, const char *name, const char *text)
{
    workplace_write(w, name, text, strlen(text));
}

/* A copy of a file that the tests have. */
static void copy(const struct workplace *w, const char *to, const char *from)
{
    FILE *file = fopen(from, "rb");
    char *bytes = malloc(1u << 20);
    size_t count;

    assert_non_null(file);
    assert_non_null(bytes);
    count = fread(bytes, 1, 1u << 20, file);
    assert_true(count < 1u << 20);
    workplace_write(w, to, bytes, count);
    fclose(file);
    free(bytes);
}

/* The figures of an answer, up to its times. */
static char *answer(const struct workplace *w, const char *command)
{
    struct program p;
    char *text, *end;

    workplace_run_ok(w, &p, command);
    text = strdup(p.out);
    program_free(&p);
    assert_non_null(text);
    end = strstr(text, "\"stopped_by\"");
    assert_non_null(end);
    *end = '\0';
    return text;
}

static bool has(const struct workplace *w, const char *file, const char *wanted)
{
    size_t bytes;
    char *text = workplace_read(w, file, &bytes);
    const bool found = strstr(text, wanted) != NULL;

    free(text);
    return found;
}

/* Of a tokenizer whose files name no token that begins or ends a text the template brings them. */
TEST(the_model_speaks_as_it_was_trained)
{
    static const char *const templates[] = {"chatml", "llama2", "alpaca"};
    const struct workplace *w = *state;

    for (size_t i = 0; i < sizeof(templates) / sizeof(templates[0]); i++) {
        char command[512], *with, *without;
        struct program p;

        snprintf(command, sizeof(command), TRAIN "%s --model " QWEN " --template %s", templates[i], templates[i]);
        workplace_run_ok(w, &p, command);
        assert_non_null(strstr(p.err, " is written beside the weights"));
        assert_non_null(strstr(p.err, templates[i]));
        program_free(&p);
        snprintf(command, sizeof(command), ASK "%s", templates[i]);
        without = answer(w, command);
        snprintf(command, sizeof(command), ASK "%s --template %s", templates[i], templates[i]);
        with = answer(w, command);
        assert_string_equal(with, without);
        free(with);
        free(without);
    }
}

TEST(its_own_template_is_not_replaced)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "own --model tests/golden/chat/llama --template tests/golden/chat/llama/chat_template.jinja");
    assert_null(strstr(p.err, "in place of"));
    program_free(&p);
    assert_true(workplace_exists(w, "own/chat_template.jinja"));
}

/* Token files do not say how they were written. */
TEST(token_files_are_told_of)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "tokens {w}/rows.jsonl --tokenizer " QWEN " --template chatml --seq-len 64 --out {w}/rows.bin");
    program_free(&p);
    workplace_run_ok(w, &p,
                     "train --data {w}/rows.bin --seq-len 64 --max-steps 1 --quiet --threads 1 --machine {w}/machine.json --out "
                     "{w}/told --model " QWEN " --template chatml");
    program_free(&p);
    assert_true(has(w, "told/chat_template.jinja", "<|im_start|>"));
    workplace_run(w, &p, "eval --data {w}/rows.bin --seq-len 64 --model " QWEN " --template chatml");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "--template is for texts"));
    program_free(&p);
}

TEST(an_adapter_has_none)
{
    const struct workplace *w = *state;
    struct program p;

    put(w, "lora.json", "{\"r\": 2, \"target_modules\": [\"q_proj\"]}");
    workplace_run_ok(w, &p, TRAIN "adapter --model " QWEN " --template chatml --lora {w}/lora.json");
    assert_non_null(strstr(p.err, "an adapter keeps no chat template: "));
    assert_non_null(strstr(p.err, "--template"));
    program_free(&p);
}

/* A checkpoint knows by what its adapter was trained, and what is merged is a model. */
TEST(a_merged_adapter_has_it)
{
    const struct workplace *w = *state;
    struct program p;
    char *saved, *merged;
    size_t bytes;

    put(w, "lora.json", "{\"r\": 2, \"target_modules\": [\"q_proj\"]}");
    workplace_run_ok(w, &p, TRAIN "tuned --model " QWEN " --template chatml --lora {w}/lora.json --save {w}/tunes");
    program_free(&p);
    workplace_run_ok(w, &p, "export --merge {w}/tunes --out {w}/merged");
    program_free(&p);
    saved = workplace_read(w, "tunes/step-00000001/model/chat_template.jinja", &bytes);
    merged = workplace_read(w, "merged/chat_template.jinja", &bytes);
    assert_string_equal(saved, merged);
    free(saved);
    free(merged);
    saved = workplace_read(w, "tunes/step-00000001/model/generation_config.json", &bytes);
    merged = workplace_read(w, "merged/generation_config.json", &bytes);
    assert_string_equal(saved, merged);
    free(saved);
    free(merged);
}

TEST(checkpoints_have_it_too)
{
    const struct workplace *w = *state;
    size_t bytes;
    char *out, *exported;
    struct program p;

    workplace_run_ok(w, &p, TRAIN "saved --model " QWEN " --template chatml --save {w}/saves");
    program_free(&p);
    workplace_run_ok(w, &p, "export {w}/saves --out {w}/exported");
    program_free(&p);
    out = workplace_read(w, "saved/chat_template.jinja", &bytes);
    exported = workplace_read(w, "exported/chat_template.jinja", &bytes);
    assert_string_equal(out, exported);
    free(out);
    free(exported);
}

/* <|im_end|> is 422 there. */
TEST(where_answers_end_is_told)
{
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"};
    const struct workplace *w = *state;
    char to[64], from[128], *config, *at;
    struct program p;
    size_t bytes;

    workplace_make_dir(w, "base");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        snprintf(to, sizeof(to), "base/%s", files[i]);
        snprintf(from, sizeof(from), QWEN "/%s", files[i]);
        copy(w, to, from);
    }
    put(w, "base/generation_config.json", "{\n  \"eos_token_id\": 420,\n  \"top_k\": 7\n}\n");
    workplace_run_ok(w, &p, TRAIN "ends --model {w}/base --template chatml");
    program_free(&p);
    assert_true(has(w, "ends/generation_config.json", "\"eos_token_id\": [420, 422]"));
    assert_true(has(w, "ends/generation_config.json", "\"top_k\": 7"));
    workplace_run_ok(w, &p, TRAIN "plain --model {w}/base");
    program_free(&p);
    assert_true(has(w, "plain/generation_config.json", "\"eos_token_id\": 420"));
    workplace_remove(w, "base/generation_config.json");
    config = workplace_read(w, "base/config.json", &bytes);
    at = strstr(config, "\"eos_token_id\": 422");
    assert_non_null(at);
    at[strlen("\"eos_token_id\": 42")] = '0';
    put(w, "base/config.json", config);
    free(config);
    workplace_run_ok(w, &p, TRAIN "bare --model {w}/base --template chatml");
    program_free(&p);
    assert_false(workplace_exists(w, "bare/generation_config.json"));
    assert_true(has(w, "bare/config.json", "\"eos_token_id\": [420, 422]"));
}

/* In the model's own directory, too. */
TEST(the_old_one_goes)
{
    const struct workplace *w = *state;
    struct program p;

    put(w, "base/chat_template.json", "{\"chat_template\": \"old\"}");
    put(w, "base/chat_template.jinja", "{{ messages[0].content }}");
    workplace_run_ok(w, &p, TRAIN "base --overwrite --model {w}/base --template chatml");
    program_free(&p);
    assert_true(has(w, "base/chat_template.jinja", "<|im_start|>"));
    assert_false(workplace_exists(w, "base/chat_template.json"));
}

static int setup(void **state)
{
    const int rc = workplace_setup(state);
    char rows[2048];
    size_t fill = 0;

    for (int i = 0; i < 8; i++)
        fill += (size_t)snprintf(rows + fill, sizeof(rows) - fill,
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %d?\"}, {\"role\": \"assistant\", "
                                 "\"content\": \"It is %d.\"}]}\n",
                                 i, i);
    put(*state, "rows.jsonl", rows);
    return rc;
}

TEST_GROUP(setup, workplace_teardown);
