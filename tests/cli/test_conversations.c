/* tests/cli/test_conversations.c - conversations from rows to losses: packed and in rows the same, trained from the command line.
 */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/terminal.h"
#include "tests/cli/workplace.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS = 40 };

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

/* Conversations of one and two turns, of 40 to 120 tokens. */
static void write_rows(const struct workplace *w)
{
    char text[16384];
    size_t fill = 0;

    for (int i = 0; i < ROWS; i++) {
        fill += (size_t)snprintf(text + fill, sizeof(text) - fill,
                                 "{\"messages\": [{\"role\": \"user\", \"content\": \"%d\"}, "
                                 "{\"role\": \"assistant\", \"content\": \"twice is %d.\"}",
                                 i, 2 * i);
        if (i % 3 == 0)
            fill += (size_t)snprintf(
                text + fill, sizeof(text) - fill,
                ", {\"role\": \"user\", \"content\": \"And?\"}, {\"role\": \"assistant\", \"content\": \"%d\"}", 3 * i);
        fill += (size_t)snprintf(text + fill, sizeof(text) - fill, "]}\n");
    }
    workplace_write(w, "talks.jsonl", text, fill);
}

/* A number of the JSON that a command prints. */
static double number_of(const struct workplace *w, const char *command, const char *key)
{
    struct program p;
    st_json *root;
    double value;

    workplace_run_ok(w, &p, command);
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), command), STRATA_OK);
    assert_non_null(st_json_get(root, key));
    value = st_json_number(st_json_get(root, key));
    st_json_free(root);
    program_free(&p);
    return value;
}

#define TOKENS "tokens {w}/talks.jsonl --tokenizer {w}/characters --template chatml --json --out {w}/"
#define EVAL   "eval --model nano --seq-len 128 --config {w}/fp32.json --json --data {w}/"

TEST(packed_losses_are_those_of_rows)
{
    static const char fp32[] = "{\"train_micro_batch_size_per_gpu\": 1}";
    const struct workplace *w = *state;
    double rows, packed;

    write_tokenizer(w);
    write_rows(w);
    workplace_write(w, "fp32.json", fp32, strlen(fp32));
    assert_int_equal(number_of(w, TOKENS "rows.bin --layout rows", "documents"), ROWS);
    assert_int_equal(number_of(w, TOKENS "packed.bin", "documents"), ROWS);
    rows = number_of(w, EVAL "rows.bin", "loss");
    packed = number_of(w, EVAL "packed.bin", "loss");
    if (!(fabs(rows - packed) <= 1e-6 * fabs(rows)))
        fail_msg("%.9g in rows, %.9g packed", rows, packed);
    assert_int_equal(number_of(w, EVAL "rows.bin", "tokens"), number_of(w, EVAL "packed.bin", "tokens"));
    assert_int_equal(number_of(w, EVAL "packed.bin", "tokens"), number_of(w, TOKENS "again.bin", "trained"));
}

TEST(answers_are_learnt)
{
    const struct workplace *w = *state;
    struct program p;
    double before, after;

    before = number_of(w, EVAL "packed.bin", "loss");
    workplace_run_ok(
        w, &p,
        "train --model nano --seq-len 128 --config {w}/fp32.json --set optimizer.type=AdamW --lr 3e-3 --max-steps 12 "
        "--data {w}/packed.bin --machine {w}/machine.json --out {w}/tuned");
    program_free(&p);
    after = number_of(w, "eval --model {w}/tuned --seq-len 128 --config {w}/fp32.json --json --data {w}/packed.bin", "loss");
    assert_true(after < 0.8 * before);
}

/* What train makes of rows itself is what strata tokens makes of them for sequences of this length. */
TEST(rows_train_as_their_token_file_does)
{
    static const char *const data[] = {"{w}/talks.jsonl --tokenizer {w}/characters --template chatml --eval-data {w}/talks.jsonl",
                                       "{w}/short.bin --eval-data {w}/short.bin"};
    const struct workplace *w = *state;
    double losses[2];

    assert_true(number_of(w, TOKENS "short.bin --seq-len 48", "truncated") > 0);
    for (uint32_t i = 0; i < 2; i++) {
        char command[512];
        struct program p;

        snprintf(command, sizeof(command),
                 "train --model nano --seq-len 48 --config {w}/fp32.json --set optimizer.type=AdamW --max-steps 3 --machine "
                 "{w}/machine.json --overwrite --out {w}/direct --data %s",
                 data[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
        losses[i] =
            number_of(w, "eval --model {w}/direct --seq-len 128 --config {w}/fp32.json --json --data {w}/packed.bin", "loss");
    }
    assert_true(losses[0] == losses[1]);
}

/* One line of many that was cut off, and a column that nobody reads: told by train and eval, which end with it where --strict
 * says so. The files are named by a pattern. */
TEST(a_row_that_cannot_be_read_is_told)
{
    static const char *const commands[] = {
        "train --set optimizer.type=AdamW --max-steps 1 --machine {w}/machine.json",
        "eval",
    };
    static const char bad[] = "{\"messages\": [{\"role\": \"user\", \"con\n";
    const struct workplace *w = *state;
    size_t bytes;
    char *rows = workplace_read(w, "talks.jsonl", &bytes);

    workplace_make_dir(w, "worn");
    workplace_write(w, "worn/1.jsonl", bad, strlen(bad));
    rows = realloc(rows, bytes + sizeof(bad));
    assert_non_null(rows);
    memcpy(rows + bytes, bad, sizeof(bad));
    workplace_write(w, "worn/2.jsonl", rows, bytes + strlen(bad));
    free(rows);
    for (size_t i = 0; i < 2; i++)
        for (int strict = 0; strict < 2; strict++) {
            struct program p;
            char command[512];

            snprintf(command, sizeof(command),
                     "%s --model nano --seq-len 48 --config {w}/fp32.json --tokenizer {w}/characters --template chatml --data "
                     "{w}/worn/[2-9].jsonl%s",
                     commands[i], strict ? " --strict" : "");
            workplace_run(w, &p, command);
            assert_int_equal(p.code, strict ? 2 : 0);
            assert_non_null(strstr(p.err, "worn/2.jsonl:41:"));
            assert_true(strict || strstr(p.err, "1 rows are left out: not readable; the first: ") != NULL);
            program_free(&p);
        }
}

/* A template that writes the date gives a run that goes on, tomorrow or in a year, the tokens that it began with, and train says
 * what is not learnt of them. */
TEST(a_run_that_goes_on_keeps_its_date)
{
#define DATED                                                                                                                    \
    "train --model nano --seq-len 128 --config {w}/fp32.json --set optimizer.type=AdamW --max-steps 3 --machine "                \
    "{w}/machine.json "                                                                                                          \
    "--tokenizer {w}/characters --template {w}/dated.jinja --data {w}/talks.jsonl --digest --quiet "
    static const char template[] = "{{ strftime_now('%d %B %Y') }}{% for m in messages %}[{{ m.content }}]{% endfor %}";
    const struct workplace *w = *state;
    char whole[160], parts[160];
    struct program p;

    workplace_write(w, "dated.jinja", template, strlen(template));
    workplace_digests(w, DATED "--date 2024-09-30", whole);
    workplace_run_ok(w, &p, DATED "--date 2024-09-30 --save {w}/dated --save-every 1");
    assert_non_null(strstr(p.err, "answers end without a special token"));
    program_free(&p);
    workplace_digests(w, DATED "--resume {w}/dated/step-00000002 --save {w}/dated2", parts);
    assert_string_equal(parts, whole);
    workplace_digests(w, DATED "--resume {w}/dated2/step-00000003", parts); /* passed on */
    workplace_run(w, &p, DATED "--date 2024-05-01 --resume {w}/dated/step-00000002");
    assert_int_equal(p.code, 2);
    assert_non_null(strstr(p.err, "date is 2024-09-30, here 2024-05-01"));
    program_free(&p);
    workplace_remove(w, "dated");
    workplace_remove(w, "dated2");
#undef DATED
}

static void refused_as_read(const struct workplace *w, const char *command, const char *file)
{
    char sentence[128];
    struct program p;

    workplace_run(w, &p, command);
    snprintf(sentence, sizeof(sentence), "%s: is the same file as ", file);
    if (p.code != 2 || strstr(p.err, sentence) == NULL || !workplace_exists(w, file))
        fail_msg("%s: exit code %d\n%s", command, p.code, p.err);
    program_free(&p);
}

/* A tokenizer that --overwrite replaces, whole, is not what the command reads; where none is replaced, it may be. */
TEST(what_is_read_is_no_tokenizer_that_is_replaced)
{
    static const char template[] = "{% for m in messages %}{{ m.content }}{% endfor %}";
    static const char *const others[] = {
        "--tokenizer {w}/characters/tokenizer.json --template {w}/characters/chat_template.jinja --out {w}/characters",
        "--tokenizer {w}/characters --set 'strata.lora={\"r\":2}' --template {w}/b/chat_template.jinja --out {w}/b"};
    const struct workplace *w = *state;
    struct program p;
    char command[512];

    workplace_make_dir(w, "b");
    workplace_write(w, "b/chat_template.jinja", template, strlen(template));
    workplace_write(w, "b/tokenizer.json", template, strlen(template));
    workplace_write(w, "characters/chat_template.jinja", template, strlen(template));
    workplace_remove(w, "b/tokenizer.json");
    refused_as_read(w,
                    "train --model nano --seq-len 64 --max-steps 1 --machine {w}/machine.json --data {w}/talks.jsonl "
                    "--tokenizer {w}/characters --template {w}/b/chat_template.jinja --out {w}/b --overwrite",
                    "b/chat_template.jinja");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        snprintf(command, sizeof(command),
                 "train --model nano --seq-len 64 --max-steps 1 --machine {w}/machine.json --data {w}/talks.jsonl "
                 "--overwrite %s",
                 others[i]);
        workplace_run_ok(w, &p, command);
        program_free(&p);
    }
    assert_true(workplace_exists(w, "b/chat_template.jinja") && workplace_exists(w, "characters/chat_template.jinja"));
}

/* What `make demo-chat` trains on: whole within nano's 256 tokens, with an end to every answer, in lines that its script can take
 * apart. */
TEST(the_shipped_dialogues_fit_nano)
{
    static const char tokens[] = "tokens docs/examples/chat/dialogues.jsonl --tokenizer docs/examples/chat --seq-len 256 --json "
                                 "--overwrite --out {w}/dialogues.bin";
    const struct workplace *w = *state;
    char *text;
    size_t bytes;

    assert_int_equal(number_of(w, tokens, "documents"), 50);
    assert_int_equal(number_of(w, tokens, "truncated"), 0);
    assert_int_equal(number_of(w, tokens, "answers_without_end"), 0);
    assert_int_equal(
        number_of(w, "eval --model nano --seq-len 256 --config {w}/fp32.json --json --data {w}/dialogues.bin", "tokens"),
        number_of(w, tokens, "trained"));
    text = read_file("docs/examples/chat/dialogues.jsonl", &bytes);
    assert_null(memchr(text, '\\', bytes));
    free(text);
}

/* What is trained stands out on a terminal, and nowhere else. */
TEST(what_is_trained_is_green)
{
    static const char command[] =
        "tokens {w}/talks.jsonl --tokenizer {w}/characters --template chatml --show 1 --out {w}/shown.bin "
        "--overwrite";
    static const struct {
        const char *kind;
        bool green;
    } kinds[] = {{"xterm", true}, {"dumb", false}};

    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        struct program p;

        terminal_run(*state, &p, command, 80, kinds[i].kind, false);
        assert_int_equal(p.code, 0);
        assert_int_equal(strstr(p.out, "  trained  \033[32mt w i c e") != NULL, kinds[i].green);
        assert_int_equal(strstr(p.out, "<|im_end|>\033[m") != NULL, kinds[i].green);
        assert_int_equal(strstr(p.out, "  trained  t w i c e") != NULL, !kinds[i].green);
        program_free(&p);
    }
}

TEST_GROUP(workplace_setup, workplace_teardown);
