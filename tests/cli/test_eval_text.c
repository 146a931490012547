/* tests/cli/test_eval_text.c - eval of texts: what it says of a token file made of them, and nothing left of the one it makes. */
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MODEL "tests/golden/chat/llama"
#define EVAL  "eval --model " MODEL " --seq-len 128 --set bf16.enabled=false --data "

static void assert_same_output(const struct workplace *w, const char *a, const char *b)
{
    struct program x, y;

    workplace_run_ok(w, &x, a);
    workplace_run_ok(w, &y, b);
    assert_string_equal(x.out, y.out);
    assert_non_null(strstr(x.out, "bits_per_byte"));
    program_free(&x);
    program_free(&y);
    assert_int_equal(workplace_entries(w, "tmp"), 0);
}

/* Two documents, so that an end token is between them. */
TEST(texts_are_evaluated_like_their_tokens)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "tokens README.md docs/generate.md --tokenizer " MODEL " --out {w}/two.bin");
    program_free(&p);
    assert_same_output(w, EVAL "{w}/one.txt {w}/two.txt", EVAL "{w}/two.bin");
    assert_same_output(w, EVAL "{w}/one.txt {w}/two.txt --tokenizer " MODEL "/tokenizer.json", EVAL "{w}/two.bin");
}

/* Of conversations the answers count, by the template of the model's directory or another. */
TEST(conversations_are_evaluated_like_their_tokens)
{
    static const char rows[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Who are you?\"},{\"role\":\"assistant\",\"content\":\"A "
        "model, and a small one at that.\"}]}\n"
        "{\"messages\":[{\"role\":\"user\",\"content\":\"Since when?\"},{\"role\":\"assistant\",\"content\":\"Since "
        "today.\"}]}\n";
    static const char *const options[] = {"", " --template alpaca --date 2026-02-03"};
    const struct workplace *w = *state;

    workplace_write(w, "talks.jsonl", rows, strlen(rows));
    for (size_t i = 0; i < sizeof(options) / sizeof(options[0]); i++) {
        char tokens[256], eval[256];
        struct program p, direct, two_steps;

        snprintf(tokens, sizeof(tokens), "tokens {w}/talks.jsonl --tokenizer " MODEL " --out {w}/talks.bin --overwrite%s",
                 options[i]);
        workplace_run_ok(w, &p, tokens);
        program_free(&p);
        snprintf(eval, sizeof(eval), EVAL "{w}/talks.jsonl%s", options[i]);
        workplace_run_ok(w, &direct, eval);
        workplace_run_ok(w, &two_steps, EVAL "{w}/talks.bin");
        assert_string_equal(direct.out, two_steps.out);
        assert_null(strstr(direct.out, "bits_per_byte"));
        assert_int_equal(workplace_entries(w, "tmp"), 0);
        program_free(&direct);
        program_free(&two_steps);
    }
}

/* A model that reads bytes. */
TEST(bytes_need_no_tokenizer)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(w, &p, "tokens README.md --out {w}/bytes.bin");
    program_free(&p);
    assert_same_output(w, "eval --model {w}/model --seq-len 128 --data {w}/one.txt",
                       "eval --model {w}/model --seq-len 128 --data {w}/bytes.bin");
    assert_same_output(w, "eval --model {w}/model --seq-len 128 --data {w}/one.txt --tokenizer byte",
                       "eval --model {w}/model --seq-len 128 --data {w}/bytes.bin");
}

/* What is trained are tokens, what is evaluated is a text: the options of texts are that one's. */
TEST(a_run_evaluates_texts)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run_ok(
        w, &p,
        "train --model {w}/model --data {w}/bytes.bin --seq-len 128 --max-steps 1 --eval-data {w}/one.txt --tokenizer byte");
    assert_non_null(strstr(p.out, "eval after step 1: loss "));
    program_free(&p);
}

/* What is trained is one text without ends, what is evaluated are conversations, a data set by name: several to a sequence. */
TEST(a_run_evaluates_conversations_by_name)
{
    static const char info[] = "{\"held\": {\"file_name\": \"talks.jsonl\", \"formatting\": \"sharegpt\", \"columns\": "
                               "{\"messages\": \"messages\"}, \"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\", "
                               "\"user_tag\": \"user\", \"assistant_tag\": \"assistant\"}}}";
    const struct workplace *w = *state;
    struct program p;

    workplace_write(w, "info.json", info, strlen(info));
    workplace_run_ok(w, &p, "tokens README.md --tokenizer " MODEL " --out {w}/text.bin");
    program_free(&p);
    workplace_run_ok(w, &p,
                     "train --model " MODEL " --data {w}/text.bin --seq-len 128 --max-steps 1 --eval-dataset held "
                     "--dataset-info {w}/info.json");
    assert_non_null(strstr(p.out, "eval after step 1: loss "));
    program_free(&p);
}

/* The model's directory, whose tokenizer has one token more than the model has rows, as Gemma 3 1B's: the ids that occur decide.
 */
static void put_gemma(const struct workplace *w)
{
    static const char more[] = "{\"id\":679,\"content\":\"<image_soft_token>\",\"single_word\":false,\"lstrip\":false,"
                               "\"rstrip\":false,\"normalized\":false,\"special\":true},";
    static const char *const files[] = {"config.json",           "generation_config.json", "model.safetensors",
                                        "tokenizer_config.json", "chat_template.jinja",    "tokenizer.json"};

    workplace_make_dir(w, "gemma");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        char path[128], name[64];
        size_t bytes;
        char *text, *at;

        snprintf(path, sizeof(path), MODEL "/%s", files[i]);
        snprintf(name, sizeof(name), "gemma/%s", files[i]);
        text = read_file(path, &bytes);
        at = strcmp(files[i], "tokenizer.json") == 0 ? strstr(text, "\"added_tokens\":[") : NULL;
        if (at != NULL) {
            const size_t before = (size_t)(at - text) + strlen("\"added_tokens\":[");

            text = realloc(text, bytes + sizeof(more));
            assert_non_null(text);
            memmove(text + before + sizeof(more) - 1, text + before, bytes - before);
            memcpy(text + before, more, sizeof(more) - 1);
            bytes += sizeof(more) - 1;
        }
        workplace_write(w, name, text, bytes);
        free(text);
    }
}

#define FEW  "--seq-len 32 --set bf16.enabled=false"
#define STEP "--max-steps 1 --machine tests/machines/two-cores.json "

TEST(a_tokenizer_may_have_more_tokens)
{
    static const char surplus[] = "its tokenizer has 680 tokens, and ", bad[] = "{\"text\":\"fine\"}\n"
                                                                                "{\"text\":\"an <image_soft_token> here\"}\n";
    static const struct {
        const char *command, *said; /* said: on standard error */
        bool refused;
    } rows[] = {
        {"train --model {w}/gemma --data {w}/one.txt " STEP FEW, surplus, false},
        {"train --model {w}/gemma --data {w}/one.txt --out {w}/out " STEP FEW, surplus, false},
        {"train --model {w}/gemma --data {w}/one.txt --out {w}/out --overwrite " STEP FEW, surplus, false}, /* kept tokens */
        {"eval --model {w}/gemma --data {w}/one.txt " FEW, surplus, false},
        {"eval --model {w}/gemma --data {w}/gemma.bin " FEW, surplus, false},
        {"generate --model {w}/gemma --prompt Tokens --max-tokens 2 --set bf16.enabled=false",
         "the tokenizer has 680 tokens, and ", false},
        {"train --model {w}/gemma --data {w}/bad.jsonl " STEP FEW,
         "row 2: token 3 is \"<image_soft_token>\", id 679, and the model", true},
        {"eval --model {w}/gemma --data {w}/bad.jsonl " FEW, "bad.jsonl:2: row 2: token 3 is \"<image_soft_token>\", id 679",
         true},
        {"eval --model {w}/gemma --data {w}/bad.bin " FEW, " (document 2) is id 679, and the model has rows for 679 tokens",
         true},
        {"eval --model nano --data {w}/one.txt --tokenizer " MODEL " --seq-len 64", ", and the model has rows for 256 tokens",
         true},
        {"generate --model {w}/gemma --prompt <image_soft_token> --max-tokens 2 --set bf16.enabled=false",
         "the prompt: token 1 is \"<image_soft_token>\", id 679, and the model has rows for 679 tokens", true},
        {"generate --model {w}/gemma --chat --prompt <image_soft_token> --max-tokens 2 --set bf16.enabled=false",
         "is \"<image_soft_token>\", id 679, and the model has rows for 679 tokens", true},
        {"generate --model {w}/gemma --chat --template chatml --prompt Hi --max-tokens 2 --set bf16.enabled=false",
         "the tokenizer's end token 679 never comes: the vocabulary has 679", false},
        {"train --model {w}/gemma --data {w}/one.txt " STEP FEW, "is \"<image_soft_token>\", id 679",
         true}, /* as the end of it */
    };
    static const char end[] = "{\"eos_token\": \"<image_soft_token>\"}";
    const struct workplace *w = *state;
    struct program p;

    put_gemma(w);
    workplace_write(w, "bad.jsonl", bad, strlen(bad));
    workplace_run_ok(w, &p, "tokens README.md --tokenizer {w}/gemma --out {w}/gemma.bin");
    program_free(&p);
    workplace_run_ok(w, &p, "tokens {w}/bad.jsonl --tokenizer {w}/gemma --out {w}/bad.bin");
    program_free(&p);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const char *at;

        if (strstr(rows[i].said, "end token") != NULL)
            workplace_write(w, "gemma/tokenizer_config.json", end, strlen(end));
        workplace_run(w, &p, rows[i].command);
        at = strstr(p.err, rows[i].said);
        if (p.code != (rows[i].refused ? 2 : 0) || at == NULL || strstr(at + 1, rows[i].said) != NULL ||
            strstr(p.err, "another") != NULL)
            fail_msg("%s: %d, %s", rows[i].command, p.code, p.err);
        program_free(&p);
    }
}

/* The text is a pipe to which nobody writes all. */
TEST(nothing_is_left_after_a_signal)
{
    static const int signals[] = {SIGINT, SIGTERM};
    const struct workplace *w = *state;
    char *path = workplace_expand(w, "{w}/pipe.txt");

    assert_int_equal(mkfifo(path, 0600), 0);
    for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++) {
        struct program p;
        FILE *text = fopen(path, "r+"); /* there is a writer */

        assert_non_null(text);
        workplace_start(w, &p, EVAL "{w}/pipe.txt");
        fputs("a text", text);
        fflush(text);
        while (workplace_entries(w, "tmp") == 0)
            sched_yield();
        assert_int_equal(kill(p.pid, signals[i]), 0);
        program_wait(&p);
        assert_int_equal(p.code, 128 + signals[i]);
        assert_int_equal(workplace_entries(w, "tmp"), 0);
        fclose(text);
        program_free(&p);
    }
    unlink(path);
    free(path);
}

static int setup(void **state)
{
    const int code = workplace_setup(state);
    char *dir = workplace_expand(*state, "{w}/tmp"), *one = workplace_expand(*state, "{w}/one.txt"),
         *two = workplace_expand(*state, "{w}/two.txt"), *from_one = realpath("README.md", NULL),
         *from_two = realpath("docs/generate.md", NULL);

    assert_true(mkdir(dir, 0700) == 0 && symlink(from_one, one) == 0 && symlink(from_two, two) == 0);
    setenv("TMPDIR", dir, 1);
    free(dir);
    free(one);
    free(two);
    free(from_one);
    free(from_two);
    return code;
}

TEST_MAIN(argc, argv)
{
    signal(SIGPIPE, SIG_IGN);
    return test_run(setup, workplace_teardown);
}
