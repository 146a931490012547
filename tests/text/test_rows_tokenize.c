/* tests/text/test_rows_tokenize.c - rows of files written as documents: parts held out, texts, rows left out, refusals,
 * failures. */
#include "core/base/fault.h"
#include "text/data/rows/tokenize.h"
#include "text/data/tokens.h"
#include "tests/text/text_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* A model's directory and twenty rows. */
static void put_model(void)
{
    char *text = read_file("tests/golden/tokenizers/qwen2.json", NULL);

    scratch_put("model/tokenizer.json", text);
    scratch_put("model/tokenizer_config.json", "{\"eos_token\": \"<|endoftext|>\"}");
    free(text);
}

static void put_rows(uint32_t count)
{
    FILE *file = fopen(scratch_path("rows.jsonl"), "wb");

    assert_non_null(file);
    for (uint32_t i = 0; i < count; i++)
        assert_true(fprintf(file,
                            "{\"messages\": [{\"role\": \"user\", \"content\": \"%u\"}, "
                            "{\"role\": \"assistant\", \"content\": \"%u\"}]}\n",
                            i, 2 * i) > 0);
    assert_int_equal(fclose(file), 0);
}

static strata_status tokenize(const char *input, struct st_tokenize_opts opts, struct st_tokenize_report *report)
{
    opts.inputs = &input;
    opts.input_count = 1;
    opts.tokenizer = scratch_path("model");
    opts.out = scratch_path("x.bin");
    return st_tokenize(&opts, report);
}

/* A file that was cut to nothing is no error beside others, and is counted. */
TEST(files_without_rows_are_counted)
{
    static const char *const empty[] = {"", "\xef\xbb\xbf", " \n\n", "[]", "{\"data\": []}"};
    struct st_tokenize_report r;

    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        char first[ST_PATH_MAX], last[ST_PATH_MAX];
        const char *inputs[3];
        struct st_tokenize_opts opts = {.inputs = inputs, .input_count = 3, .template = "chatml"};

        scratch_open();
        put_model();
        put_rows(2);
        scratch_put("e.json", empty[i]);
        scratch_put("f.json", empty[i]);
        inputs[0] = strcpy(first, scratch_path("e.json"));
        inputs[1] = strcpy(last, scratch_path("f.json"));
        inputs[2] = scratch_path("rows.jsonl");
        assert_int_equal(tokenize(first, (struct st_tokenize_opts){.template = "chatml"}, &r), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), "e.json: has no rows"));
        opts.tokenizer = scratch_path("model");
        opts.out = scratch_path("x.bin");
        assert_ok(st_tokenize(&opts, &r));
        assert_int_equal(r.rowless, 2);
        assert_string_equal(r.no_rows, first);
        assert_int_equal(r.parts[0].documents, 2);
        scratch_close();
    }
}

TEST(parts_are_exact_and_seeded)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .val_size = 0.24, .seed = 3, .overwrite = true},
                                  other = {.template = "chatml", .val_size = 0.24, .seed = 4, .overwrite = true},
                                  few = {.template = "chatml", .val_size = 2, .max_samples = 10, .overwrite = true},
                                  all = {.template = "chatml", .val_size = 20, .overwrite = true};
    struct st_tokenize_report r;
    char *first, *second;
    size_t bytes, again;

    scratch_open();
    put_model();
    put_rows(20);
    assert_ok(tokenize(scratch_path("rows.jsonl"), opts, &r));
    assert_int_equal(r.parts[0].documents, 15);
    assert_int_equal(r.parts[1].documents, 5); /* a part is rounded up, as train_test_split does */
    assert_true(r.dialogs && r.layout == ST_LAYOUT_PACKED && r.answers.answers == 20 && r.answers.unended == 0);
    first = read_file(scratch_path("x.heldout.bin"), &bytes);
    assert_ok(tokenize(scratch_path("rows.jsonl"), opts, &r));
    second = read_file(scratch_path("x.heldout.bin"), &again);
    assert_true(bytes == again && memcmp(first, second, bytes) == 0);
    free(second);
    assert_ok(tokenize(scratch_path("rows.jsonl"), other, &r));
    second = read_file(scratch_path("x.heldout.bin"), &again);
    assert_false(bytes == again && memcmp(first, second, bytes) == 0);
    free(second);
    free(first);
    assert_ok(tokenize(scratch_path("rows.jsonl"), few, &r));
    assert_int_equal(r.parts[0].documents, 8);
    assert_int_equal(r.parts[1].documents, 2);
    assert_int_equal(tokenize(scratch_path("rows.jsonl"), all, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "leaves none to train"));
    scratch_close();
}

/* What a template leaves out of conversations, or writes as if it were an answer. */
TEST(tools_and_calls_are_counted)
{
    static const char row[] =
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"function_call\", \"value\": \"f\"}, "
        "{\"from\": "
        "\"observation\", \"value\": \"b\"}, {\"from\": \"gpt\", \"value\": \"c\"}], \"tools\": \"[{\\\"name\\\": "
        "\\\"f\\\"}]\"}\n"
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"a\"}, {\"from\": \"gpt\", \"value\": \"c\"}]}\n";
    const struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    scratch_put("t.jsonl", row);
    assert_ok(tokenize(scratch_path("t.jsonl"), opts, &r));
    assert_int_equal(r.parts[0].documents, 2);
    assert_int_equal(r.toolless, 1);
    assert_int_equal(r.functions, 1);
    scratch_close();
}

/* A text is what the post-processor says and one end token; layouts other than the usual one cut it. */
TEST(texts_have_an_end_and_may_be_cut)
{
    const enum st_token_layout rows = ST_LAYOUT_ROWS;
    const struct st_tokenize_opts usual = {.seq_len = 4, .overwrite = true},
                                  cut = {.seq_len = 4, .layout = &rows, .overwrite = true};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    scratch_put("t.jsonl", "{\"text\": \"one two three\"}\n{\"text\": \"\"}\n{\"text\": \"1\"}\n");
    scratch_put("t.txt", "one two three four five");
    assert_ok(tokenize(scratch_path("t.jsonl"), usual, &r));
    assert_false(r.dialogs);
    assert_int_equal(r.parts[0].documents, 2);
    assert_int_equal(r.parts[0].source_bytes, 14);
    assert_int_equal(r.dropped[ST_ROW_EMPTY], 1);
    assert_int_equal(r.parts[0].trained, r.parts[0].tokens);
    assert_ok(tokenize(scratch_path("t.jsonl"), cut, &r));
    assert_int_equal(r.parts[0].tokens, 4 + 2);
    assert_int_equal(r.truncated, 1);
    assert_int_equal(r.parts[0].source_bytes, 0);
    assert_ok(tokenize(scratch_path("t.txt"), cut, &r));
    assert_int_equal(r.parts[0].tokens, 4);
    assert_int_equal(r.truncated, 1);
    scratch_close();
}

/* An end token that the tokenizer puts itself is not put twice, in rows and in files; of what it does not end one is put. */
TEST(an_end_token_is_put_once)
{
    static const char model[] = "\"added_tokens\":[{\"id\":2,\"content\":\"</s>\",\"special\":true}],"
                                "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"</s>\":2},\"merges\":[]}",
                      ends[] = "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":\"A\","
                               "\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],\"pair\":[],"
                               "\"special_tokens\":{\"</s>\":{\"id\":\"</s>\",\"ids\":[2],\"tokens\":[\"</s>\"]}}}";
    const struct st_tokenize_opts opts = {.overwrite = true};
    struct st_tokenize_report r;
    char json[1024];

    scratch_open();
    scratch_put("model/tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
    scratch_put("t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"b\"}\n");
    scratch_put("t.txt", "abba");
    for (int own = 0; own < 2; own++) {
        snprintf(json, sizeof(json), "{%s%s%s}", model, own != 0 ? "," : "", own != 0 ? ends : "");
        scratch_put("model/tokenizer.json", json);
        assert_ok(tokenize(scratch_path("t.jsonl"), opts, &r));
        assert_int_equal(r.parts[0].tokens, 3 + 2);
        assert_ok(tokenize(scratch_path("t.txt"), opts, &r));
        assert_int_equal(r.parts[0].tokens, 5);
    }
    scratch_close();
}

/* A tokenizer may have tokens for which the model has no rows: one that occurs is named, with its place; one that was cut off
 * does not occur. */
TEST(tokens_that_occur_need_rows)
{
    static const char model[] =
        "{\"added_tokens\":[{\"id\":2,\"content\":\"</s>\",\"special\":true},{\"id\":3,\"content\":\"<x>\",\"special\":true}],"
        "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}";
    static const enum st_token_layout layout = ST_LAYOUT_ROWS;
    static const struct {
        const char *file, *text;
        uint32_t rows, seq_len;
        const char *error; /* NULL: taken */
    } cases[] = {
        {"t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"b\"}\n", 3, 0, NULL},
        {"t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"b<x>\"}\n", 0, 0, NULL},
        {"t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"b<x>\"}\n", 4, 0, NULL},
        {"t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"b<x>\"}\n", 3, 0,
         "t.jsonl:2: row 2: token 1 is \"<x>\", id 3, and the model has rows for 3 tokens: leave it out"},
        {"t.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"bab<x>\"}\n", 3, 3, NULL},
        {"t.jsonl", "{\"text\": \"ab\"}\n", 2, 0, "t.jsonl:1: row 1: token 2 is \"</s>\", id 2, and the model has rows for 2"},
        {"t.txt", "ab<x>", 3, 0, "t.txt: token 2 is \"<x>\", id 3"},
        {"t.txt", "ab", 2, 0, "t.txt: token 2 is \"</s>\", id 2"},
        {"t.txt", "abba", 3, 0, NULL},
    };
    struct st_tokenize_report r;
    char *late = malloc(200005);

    assert_non_null(late);
    scratch_open();
    scratch_put("model/tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
    scratch_put("model/tokenizer.json", model);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct st_tokenize_opts opts = {.overwrite = true,
                                              .vocab = cases[i].rows,
                                              .seq_len = cases[i].seq_len,
                                              .layout = cases[i].seq_len > 0 ? &layout : NULL};

        scratch_put(cases[i].file, cases[i].text);
        if (cases[i].error == NULL)
            assert_ok(tokenize(scratch_path(cases[i].file), opts, &r));
        else
            assert_refused(tokenize(scratch_path(cases[i].file), opts, &r), STRATA_E_INPUT, cases[i].error);
    }
    memset(late, 'a', 200000); /* a file that is read in parts */
    strcpy(late + 200000, "<x>b");
    scratch_put("t.txt", late);
    assert_refused(tokenize(scratch_path("t.txt"), (struct st_tokenize_opts){.overwrite = true, .vocab = 3}, &r), STRATA_E_INPUT,
                   "t.txt: token 200000 is \"<x>\", id 3");
    free(late);
    scratch_close();
}

/* A row that says nothing about the format is left out, and the next one says it; so is a text that has no token. */
TEST(empty_rows_are_left_out)
{
    const struct st_tokenize_opts chatml = {.template = "chatml", .overwrite = true}, usual = {.overwrite = true};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    scratch_put("r.jsonl", "{\"conversations\": []}\n{\"conversations\": []}\n{\"conversations\": [" TURN("human", "u") "," TURN(
                               "gpt", "a") "]}\n{\"conversations\": []}\n");
    assert_ok(tokenize(scratch_path("r.jsonl"), chatml, &r));
    assert_int_equal(r.dropped[ST_ROW_EMPTY], 3);
    assert_int_equal(r.parts[0].documents, 1);
    scratch_put("model/tokenizer.json", "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}");
    scratch_put("model/tokenizer_config.json", "{}");
    scratch_put("t.jsonl", "{\"text\": \"b\"}\n{\"text\": \"aa\"}\n");
    assert_ok(tokenize(scratch_path("t.jsonl"), usual, &r));
    assert_int_equal(r.dropped[ST_ROW_EMPTY], 1);
    assert_int_equal(r.parts[0].documents, 1);
    assert_int_equal(r.parts[0].tokens, 2);
    scratch_put("t.txt", "b");
    assert_int_equal(tokenize(scratch_path("t.txt"), usual, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "1: empty"));
    scratch_close();
}

/* A column that a data set names is in some row, as it is in LLaMA-Factory's table. */
TEST(columns_that_no_row_has_are_refused)
{
    static const struct {
        const char *columns, *error; /* NULL: none */
    } cases[] = {
        {"{\"prompt\": \"p\", \"response\": \"r\"}", NULL},
        {"{\"prompt\": \"p\", \"query\": \"q\", \"response\": \"r\", \"system\": \"s\"}", NULL},
        {"{\"prompt\": \"p\", \"response\": \"r\", \"system\": \"sys\"}", "no row has the column \"sys\""},
        {"{\"prompt\": \"P\", \"query\": \"q\", \"response\": \"r\"}", "no row has the column \"P\""},
        {"{\"prompt\": \"P\", \"response\": \"r\"}", "rows.jsonl:1: row 1: column \"P\" is missing"},
    };
    static const char rows[] =
        "{\"p\": \"a\", \"q\": \"b\", \"r\": \"c\"}\n{\"p\": \"a\", \"q\": \"b\", \"r\": \"c\", \"s\": \"d\"}\n";

    scratch_open();
    put_model();
    scratch_put("rows.jsonl", rows);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static const char *const names[] = {"d"};
        struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true, .datasets = names, .dataset_count = 1};
        struct st_tokenize_report r;
        char info[256], path[256];

        snprintf(info, sizeof(info), "{\"d\": {\"file_name\": \"rows.jsonl\", \"columns\": %s}}", cases[i].columns);
        scratch_put("info.json", info);
        snprintf(path, sizeof(path), "%s", scratch_path("info.json"));
        opts.dataset_info = path;
        opts.tokenizer = scratch_path("model");
        opts.out = scratch_path("x.bin");
        if (cases[i].error == NULL) {
            assert_ok(st_tokenize(&opts, &r));
            continue;
        }
        assert_int_equal(st_tokenize(&opts, &r), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), cases[i].error));
    }
    scratch_close();
}

/* What is read once cannot be counted first. */
TEST(rows_of_a_pipe_are_not_held_out)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .format = ST_ROWS_MESSAGES, .val_size = 1};
    static const char row[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
    struct st_tokenize_report r;
    char path[32];
    int ends[2];

    scratch_open();
    put_model();
    assert_int_equal(pipe(ends), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(write(ends[1], row, sizeof(row) - 1), sizeof(row) - 1);
    close(ends[1]);
    snprintf(path, sizeof(path), "/proc/self/fd/%d", ends[0]);
    assert_int_equal(tokenize(path, opts, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "cannot be held out or sampled: they are read once"));
    close(ends[0]);
    scratch_close();
}

static void replace_rows(void *context, const struct strata_shown_run *run)
{
    (void)run;
    scratch_put(context, "{\"messages\": []}\n");
    assert_int_equal(rename(scratch_path(context), scratch_path("b.jsonl")), 0);
}

/* Rows are counted first: what is read then is the same file. */
TEST(files_are_not_replaced_between_counting_and_reading)
{
    struct st_tokenize_opts opts = {.template = "chatml", .val_size = 1, .overwrite = true, .show = 1, .shown = replace_rows};
    const char *inputs[2];
    struct st_tokenize_report r;
    char a[128], b[128];

    scratch_open();
    put_model();
    put_rows(3);
    snprintf(a, sizeof(a), "%s", scratch_path("rows.jsonl"));
    snprintf(b, sizeof(b), "%s", scratch_path("b.jsonl"));
    opts.inputs = inputs;
    opts.input_count = 2;
    opts.tokenizer = scratch_path("model");
    opts.out = scratch_path("x.bin");
    opts.context = "new.jsonl";
    inputs[0] = a;
    inputs[1] = b;
    scratch_put("b.jsonl", "{\"messages\": []}\n{\"messages\": []}\n");
    assert_int_equal(st_tokenize(&opts, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "b.jsonl changed while it was read"));
    scratch_close();
}

struct shown {
    uint64_t tokens, ids;
    bool more;
};

static void note_shown(void *context, const struct strata_shown_run *run)
{
    struct shown *s = context;

    s->tokens = run->tokens;
    s->ids += run->count;
    s->more = run->more;
}

/* A text that is read in parts is shown with its end, or is said to go on. */
TEST(texts_are_shown_to_their_end)
{
    struct shown shown = {0};
    const struct st_tokenize_opts opts = {.overwrite = true, .show = 1, .shown = note_shown, .context = &shown};
    struct st_tokenize_report r;
    FILE *file;

    scratch_open();
    put_model();
    scratch_put("t.txt", "one \xff two\xc3");
    assert_ok(tokenize(scratch_path("t.txt"), opts, &r));
    assert_int_equal(r.replaced, 2);
    shown = (struct shown){0};
    scratch_put("t.txt", "one two three");
    assert_ok(tokenize(scratch_path("t.txt"), opts, &r));
    assert_int_equal(shown.tokens, r.parts[0].tokens);
    assert_int_equal(shown.ids, shown.tokens);
    assert_false(shown.more);
    file = fopen(scratch_path("t.txt"), "wb");
    assert_non_null(file);
    for (int i = 0; i < 40000; i++)
        assert_true(fprintf(file, "line %d\n", i) > 0);
    assert_int_equal(fclose(file), 0);
    shown = (struct shown){0};
    assert_ok(tokenize(scratch_path("t.txt"), opts, &r));
    assert_true(shown.more && shown.tokens < r.parts[0].tokens);
    assert_int_equal(shown.ids, shown.tokens);
    scratch_close();
}

TEST(rows_are_dropped_for_a_reason_or_nothing_is_written)
{
    const struct st_tokenize_opts gemma = {.template = "gemma"}, gemma_short = {.template = "chatml", .seq_len = 3};
    struct st_tokenize_opts plain = {.overwrite = true};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    scratch_put("r.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "none of 1 rows can be trained; 1: refused by the template: "));
    scratch_put("r.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma_short, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "nothing to train"));
    /* the commonest reason is told, whichever it is */
    scratch_put("r.jsonl", "{\"conversations\": []}\n{\"conversations\": []}\n{\"conversations\": [" TURN("human", "u") "]}\n");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "none of 3 rows can be trained; 2: empty: "));
    assert_non_null(strstr(strata_last_error(), "r.jsonl:1: row 1"));
    scratch_put("r.jsonl", "{\"conversations\": [" TURN("human", "u") "]}\n{\"conversations\": [" TURN(
                               "human", "u") "]}\n"
                                             "{\"conversations\": []}\n");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "none of 3 rows can be trained; 2: turns out of order: "));
    assert_non_null(strstr(strata_last_error(), "r.jsonl:1: row 1: the last turn has no answer"));
    scratch_put("r.jsonl", "");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "r.jsonl: has no rows"));
    assert_int_equal(scratch_entries_with(scratch_dir, "x.bin"), 0);
    /* the answer begins right behind what is kept */
    scratch_put("t.jinja", "{{ messages[0].content }}{% generation %}{{ messages[1].content }}{% endgeneration %}");
    scratch_put("r.jsonl",
                "{\"messages\": [{\"role\": \"user\", \"content\": \"12\"}, {\"role\": \"assistant\", \"content\": \"3\"}]}\n");
    plain.template = scratch_path("t.jinja");
    assert_ok(tokenize(scratch_path("r.jsonl"), plain, &r));
    assert_true(r.parts[0].tokens == 3 && r.parts[0].trained == 1);
    plain.seq_len = 2;
    assert_int_equal(tokenize(scratch_path("r.jsonl"), plain, &r), STRATA_E_INPUT);
    assert_int_equal(r.dropped[ST_ROW_UNTRAINED], 1);
    assert_int_equal(r.truncated, 1);
    scratch_close();
}

#define GOOD "{\"messages\": [{\"role\": \"user\", \"content\": \"Hi\"}, {\"role\": \"assistant\", \"content\": \"Hello.\"}]"

/* What is wrong with one row of many is counted and named; strict ends with it.  A file of which no row can be read is refused.
 */
TEST(bad_rows_are_left_out)
{
    static const char *const bad[][2] = {
        {"{\"messages\": 3}\n", "r.jsonl:2: row 2: column \"messages\" is not a list"},
        {"{\"text\": \"t\"}\n", "r.jsonl:2: row 2: column \"messages\" is missing"},
        {GOOD ", \n", "r.jsonl:2:"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"H\xe9\"}]}\n", "r.jsonl:2:45: not UTF-8"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"\\u0000\"}]}\n",
         "r.jsonl:2: row 2: column \"messages\": \\u0000 is"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": NaN}]}\n", "r.jsonl:2: row 2: column \"messages\": NaN and"},
        {"[]\n", "r.jsonl:2: row 2: not an object"},
    };
    struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true}, strict = {.template = "chatml", .strict = true};
    struct st_tokenize_report r;
    char text[1024];

    scratch_open();
    put_model();
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        snprintf(text, sizeof(text), GOOD "}\n%s%s" GOOD ", \"score\": NaN, \"id\": \"\\u0000\"}\n", bad[i][0], bad[i][0]);
        scratch_put("r.jsonl", text);
        for (uint32_t k = 0; k < 3; k++) {
            opts.val_size = k == 1 ? 1 : 0;
            opts.max_samples = k == 2 ? 3 : 0;
            assert_ok(tokenize(scratch_path("r.jsonl"), opts, &r));
            assert_int_equal(r.rows, k == 2 ? 3 : 4);
            assert_int_equal(r.dropped[ST_ROW_BAD], 2);
            assert_int_equal(r.parts[0].documents + r.parts[1].documents, k == 2 ? 1 : 2);
            assert_non_null(strstr(r.first[ST_ROW_BAD], bad[i][1]));
        }
        remove(scratch_path("x.bin"));
        remove(scratch_path("x.bin.meta"));
        assert_refused(tokenize(scratch_path("r.jsonl"), strict, &r), STRATA_E_INPUT, bad[i][1]);
        assert_int_equal(scratch_entries_with(scratch_dir, "x.bin"), 0);
    }
    opts.max_samples = 0;
    scratch_put("r.jsonl", "{\"messages\": 3}\n{\"messages\": 4}\n");
    assert_refused(tokenize(scratch_path("r.jsonl"), opts, &r), STRATA_E_INPUT, "r.jsonl: none of 2 rows can be read; ");
    assert_non_null(strstr(strata_last_error(), "r.jsonl:1: row 1: neither \"messages\""));
    text[0] = '\0';
    for (uint32_t i = 0; i < 64; i++)
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "a,b\n");
    snprintf(text + strlen(text), sizeof(text) - strlen(text), GOOD "}\n"); /* too late */
    scratch_put("r.jsonl", text);
    assert_refused(tokenize(scratch_path("r.jsonl"), opts, &r), STRATA_E_INPUT, "r.jsonl: none of 64 rows can be read; ");
    scratch_close();
}

/* Ids, those that are trained in brackets. */
static void note_ids(void *context, const struct strata_shown_run *run)
{
    char *out = context;

    for (size_t i = 0; i < run->count; i++)
        snprintf(out + strlen(out), 256 - strlen(out), run->trained ? "[%u]" : "%u ", run->ids[i]);
}

/* TRL's prompt-completion (the ids are those of the library tokenizers): both texts together and the end, trained behind the
 * prompt's own ids; where these are not the first ones, all that covers a byte of the completion. */
TEST(completions_alone_are_trained)
{
    static const struct {
        const char *row, *want;
        uint64_t merged;
        bool llama;
    } cases[] = {
        {"{\"prompt\": \"2+2?\", \"completion\": \" It\"}", "17 10 17 30 [220][40][83][420]", 0, false},
        {"{\"prompt\": \"ans \", \"completion\": \"es\"}", "295 82 220 [264][420]", 0, false},
        {"{\"prompt\": \" The \", \"completion\": \"the end\"}", "394 258 [266][299][270][420]", 1, false},
        {"{\"prompt\": \"\", \"completion\": \"it<|endoftext|>\"}", "[269][420]", 0, false},
        {"{\"prompt\": \"x\", \"completion\": \"\"}", "87 [420]", 0, false},
        {"{\"prompt\": \"2+2?\", \"completion\": \" It\"}", "1 483 268 275 288 [625][339][2]", 0, true},
        {"{\"prompt\": \" The \", \"completion\": \"the end\"}", "1 349 629 [359][391][363][2]", 1, true},
        {"{\"prompt\": \"\", \"completion\": \"it\"}", "1 [402][2]", 0, true},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2?\"}, {\"role\": \"assistant\", \"content\": \"a\"}], "
         "\"completion\": "
         "[{\"role\": \"assistant\", \"content\": \"It is 4.\"}]}",
         "421 84 82 263 198 17 10 17 30 422 198 421 337 82 72 285 295 83 198 64 422 198 421 337 82 72 285 295 83 198 "
         "[40][83][303][220][19][13][422]198 ",
         0, false},
    };
    struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true, .show = 1, .shown = note_ids};
    struct st_tokenize_report r;
    char *llama = read_file("tests/golden/tokenizers/llama2.json", NULL);

    scratch_open();
    put_model();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char got[256] = "";

        if (cases[i].llama) {
            scratch_put("model/tokenizer.json", llama);
            scratch_put("model/tokenizer_config.json", "{\"eos_token\": \"</s>\"}");
        } else {
            put_model();
        }
        scratch_put("r.jsonl", cases[i].row);
        opts.context = got;
        assert_ok(tokenize(scratch_path("r.jsonl"), opts, &r));
        assert_string_equal(got, cases[i].want);
        assert_int_equal(r.merged, cases[i].merged);
        assert_true(r.dialogs && r.answers.answers == 1 && r.answers.unended == 0);
    }
    free(llama);
    scratch_close();
}

/* As TRL: what is too long loses its end, and where all is trained, a prompt before a completion is not. */
TEST(rows_are_cut_and_trained_as_trl_does)
{
#define PROMPT  "{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2?\"}], \"completion\": "
#define ANSWER  "[{\"role\": \"assistant\", \"content\": \"It is 4.\"}]}"
#define WRITTEN "421 84 82 263 198 17 10 17 30 422 198 421 337 82 72 285 295 83 198 "
    static const struct {
        const char *row;
        bool all, ends;
        uint32_t seq_len;
        const char *want;
    } cases[] = {
        {"{\"prompt\": \"2+2?\", \"completion\": \" It\"}", true, false, 0, "17 10 17 30 [220][40][83][420]"},
        {"{\"prompt\": \"2+2?\", \"completion\": \" It\"}", true, false, 6, "17 10 17 30 [220][40]"},
        {PROMPT ANSWER, true, true, 0, WRITTEN "[40][83][303][220][19][13][422][198]"},
        {PROMPT ANSWER, false, false, 21, WRITTEN "[40][83]"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"2+2?\"}, {\"role\": \"assistant\", \"content\": \"a\"}]}", true, true, 12,
         "[421][84][82][263][198][17][10][17][30][422][198][421]"},
    };
    struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true, .show = 1, .shown = note_ids, .as_trl = true};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char got[256] = "";

        scratch_put("r.jsonl", cases[i].row);
        opts.context = got;
        opts.train_on_prompt = cases[i].all;
        opts.turn_ends = cases[i].ends;
        opts.seq_len = cases[i].seq_len;
        assert_ok(tokenize(scratch_path("r.jsonl"), opts, &r));
        assert_string_equal(got, cases[i].want);
        assert_int_equal(r.truncated, cases[i].seq_len > 0);
    }
    scratch_close();
}

/* What no format reads is counted; a column that means something ends the run, whatever is wrong with the row beside it. */
TEST(unread_columns_are_counted)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    scratch_put("r.jsonl", GOOD
                ", \"score\": 1, \"id\": 1}\n" GOOD ", \"score\": null}\n{\"messages\": 3, \"score\": 2}\n" GOOD
                ", \"score\": NaN, \"system\": \"s\"}\n{\"messages\": [{\"role\": \"system\", \"content\": \"t\"}, {\"role\": "
                "\"assistant\", \"content\": \"a\"}], \"system\": \"s\"}\n");
    assert_ok(tokenize(scratch_path("r.jsonl"), opts, &r));
    assert_int_equal(r.unread.count, 2);
    assert_string_equal(r.unread.columns[0].name, "score");
    assert_int_equal(r.unread.columns[0].rows, 2);
    assert_string_equal(r.unread.columns[1].name, "system");
    assert_int_equal(r.unread.columns[1].rows, 1);
    /* Keys of messages that no template has a word for. */
    scratch_put(
        "r.jsonl",
        "{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"name\": \"n\"}, {\"role\": \"assistant\", \"content\": "
        "\"a\", "
        "\"train\": false, \"id\": 1}, {\"role\": \"assistant\", \"content\": \"b\", \"train\": true, \"start\": null}]}\n");
    assert_ok(tokenize(scratch_path("r.jsonl"), opts, &r));
    assert_int_equal(r.unread.count, 1);
    assert_string_equal(r.unread.columns[0].name, "messages[].train");
    assert_int_equal(r.unread.columns[0].rows, 1);
    scratch_put("w.jsonl",
                "{\"prompt\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"assistant\", \"content\": \"b\"}], "
                "\"completion\": [{\"role\": \"assistant\", \"content\": \"a\", \"weight\": 0}]}\n");
    assert_ok(tokenize(scratch_path("w.jsonl"),
                       (struct st_tokenize_opts){.template = "chatml", .train_on_prompt = true, .overwrite = true}, &r));
    assert_int_equal(r.overruled, 1);
    scratch_put("t.jinja", "{% for m in messages %}{{ m.content }}{{ m.train }}<|im_end|>{% endfor %}");
    assert_ok(
        tokenize(scratch_path("r.jsonl"), (struct st_tokenize_opts){.template = scratch_path("t.jinja"), .overwrite = true}, &r));
    assert_int_equal(r.unread.count, 0);
    scratch_put("r.jsonl", "{\"instruction\": \"i\", \"response\": \"r\"}\n");
    assert_refused(tokenize(scratch_path("r.jsonl"), opts, &r), STRATA_E_INPUT,
                   "r.jsonl:1: row 1: column \"output\" is missing: texts.dataset_info can name another");
    scratch_put("r.jsonl", GOOD "}\n{\"messages\": 3, \"label\": false}\n");
    assert_refused(tokenize(scratch_path("r.jsonl"), opts, &r), STRATA_E_INPUT, "r.jsonl:2: row 2: column \"label\": ");
    scratch_put("r.jsonl", "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"d\"}\n");
    assert_refused(tokenize(scratch_path("r.jsonl"), opts, &r), STRATA_E_INPUT, "r.jsonl:1: row 1: column \"chosen\": ");
    scratch_close();
}

struct told {
    uint64_t rows[8], tokens[8][2];
    uint32_t count;
};

static void note_progress(void *context, const struct st_tokenize_report *so_far)
{
    struct told *t = context;

    assert_true(t->count < 8);
    t->rows[t->count] = so_far->rows;
    for (uint32_t i = 0; i < 2; i++)
        t->tokens[t->count][i] = so_far->parts[i].tokens;
    t->count++;
}

/* Every 64 rows, with the tokens of both parts until then: those of a file of so many rows. */
TEST(progress_is_told_every_64_rows)
{
    struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true};
    struct st_tokenize_report r, part;

    scratch_open();
    put_model();
    for (int heldout = 0; heldout < 2; heldout++) {
        struct told told = {.count = 0};

        put_rows(200);
        opts.val_size = 50 * heldout;
        opts.context = &told;
        opts.progress = note_progress;
        assert_ok(tokenize(scratch_path("rows.jsonl"), opts, &r));
        assert_int_equal(told.count, 3);
        opts.progress = NULL;
        opts.val_size = 0;
        for (uint32_t i = 0; i < 3; i++) {
            assert_int_equal(told.rows[i], 64 * (i + 1));
            put_rows(64 * (i + 1));
            assert_ok(tokenize(scratch_path("rows.jsonl"), opts, &part));
            assert_int_equal(told.tokens[i][0] + told.tokens[i][1], part.parts[0].tokens);
            assert_int_equal(told.tokens[i][1] > 0, heldout);
        }
        assert_true(told.tokens[2][0] < r.parts[0].tokens);
    }
    scratch_close();
}

/* A part of whose rows none is left is refused, and no file is written: whichever of the two it is. */
TEST(each_part_has_a_row_that_is_left)
{
    struct st_tokenize_opts opts = {.template = "chatml", .val_size = 1};
    const char *const says[] = {"all rows that are left to train are dropped: another texts.seed or texts.val_size may help",
                                "all rows that are held out are dropped: another texts.seed or texts.val_size may help"};
    uint32_t seen[2] = {0};

    scratch_open();
    put_model();
    scratch_put("r.jsonl", "{\"messages\": []}\n{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, "
                           "{\"role\": \"assistant\", \"content\": \"b\"}]}\n{\"messages\": []}\n");
    for (opts.seed = 0; opts.seed < 20; opts.seed++) {
        struct st_tokenize_report r;
        uint32_t which;

        assert_int_equal(tokenize(scratch_path("r.jsonl"), opts, &r), STRATA_E_INPUT);
        which = r.parts[0].documents == 0 ? 0 : 1;
        assert_string_equal(strata_last_error(), says[which]);
        assert_int_equal(r.parts[1 - which].documents, 1);
        assert_int_equal(scratch_entries_with(scratch_dir, "x."), 0);
        seen[which]++;
    }
    assert_true(seen[0] > 0 && seen[1] > 0);
    scratch_close();
}

/* Ids of a text that begins with a byte order mark are those without it, also of one that is shorter than the mark. */
TEST(marks_are_no_text)
{
    static const char *const texts[][2] = {{"\xef\xbb\xbf"
                                            "abc",
                                            "abc"},
                                           {"\xef\xbb\xbf"
                                            "a",
                                            "a"},
                                           {"a", "a"},
                                           {"a\xef\xbb\xbf", "a\xef\xbb\xbf"}};
    const struct st_tokenize_opts opts = {.overwrite = true};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint64_t tokens;

        scratch_put("t.txt", texts[i][0]);
        assert_ok(tokenize(scratch_path("t.txt"), opts, &r));
        tokens = r.parts[0].tokens;
        assert_int_equal(r.parts[0].source_bytes, strlen(texts[i][1]));
        scratch_put("t.txt", texts[i][1]);
        assert_ok(tokenize(scratch_path("t.txt"), opts, &r));
        assert_int_equal(r.parts[0].tokens, tokens);
    }
    scratch_put("t.txt", "\xef\xbb\xbf");
    assert_refused(tokenize(scratch_path("t.txt"), opts, &r), STRATA_E_INPUT, "none of 1 rows can be trained; 1: empty");
    scratch_close();
}

TEST(data_sets_are_files_of_rows)
{
    static const char *const names[] = {"d"};
    static const char *const bad[][2] = {
        {"{\"d\": {\"file_name\": \"d.dat\"}}", "d.dat is neither .json, .jsonl nor .txt"},
        {"{\"d\": {\"file_name\": \"d.txt\"}}", "d.txt is a text: its \"columns\" are"},
        {"{\"d\": {\"file_name\": \"d.txt\", \"columns\": {\"prompt\": \"text\"}, \"num_samples\": 2}}", "num_samples: "},
    };
    struct st_tokenize_opts opts = {.template = "chatml", .datasets = names, .dataset_count = 1};
    struct st_tokenize_report r;

    scratch_open();
    put_model();
    scratch_put("d.txt", "a text\n");
    opts.dataset_info = scratch_path("dataset_info.json");
    opts.tokenizer = scratch_path("model");
    opts.out = scratch_path("x.bin");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        scratch_put("dataset_info.json", bad[i][0]);
        assert_refused(st_tokenize(&opts, &r), STRATA_E_INPUT, "dataset_info.json: \"d\": ");
        assert_non_null(strstr(strata_last_error(), bad[i][1]));
    }
    scratch_put("dataset_info.json", "{\"d\": {\"file_name\": \"d.txt\", \"columns\": {\"prompt\": \"text\"}}}");
    assert_ok(st_tokenize(&opts, &r));
    assert_true(!r.dialogs && r.rows == 1 && r.parts[0].documents == 1 && r.parts[0].source_bytes == strlen("a text\n"));
    scratch_close();
}

/* Rows are held out into a file whose name nobody has written: it may be that of an input. */
TEST(no_output_is_an_input)
{
    static const char *const rows = "{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, "
                                    "{\"role\": \"assistant\", \"content\": \"a\"}]}\n";
    static const char *const names[] = {"d"};
    static const char *const inputs[] = {"x.bin", "x.bin.meta", "x.heldout.bin", "x.heldout.bin.meta"};
    struct st_tokenize_opts opts = {.template = "chatml", .val_size = 1, .overwrite = true, .datasets = names};
    char text[512];

    scratch_open();
    put_model();
    snprintf(text, sizeof(text), "%s%s", rows, rows);
    scratch_put("dataset_info.json", "{\"d\": {\"file_name\": \"rows.jsonl\"}}");
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]); i++) {
        struct st_tokenize_report r;

        scratch_put("rows.jsonl", text);
        assert_int_equal(symlink("rows.jsonl", scratch_path(inputs[i])), 0);
        opts.dataset_count = 0;
        assert_refused(tokenize(scratch_path("rows.jsonl"), opts, &r), STRATA_E_INPUT, "is the same file as");
        assert_non_null(strstr(strata_last_error(), inputs[i]));
        opts.dataset_info = scratch_path("dataset_info.json");
        opts.dataset_count = 1;
        opts.tokenizer = scratch_path("model");
        opts.out = scratch_path("x.bin");
        assert_refused(st_tokenize(&opts, &r), STRATA_E_INPUT, "is the same file as");
        scratch_holds("rows.jsonl", text);
        assert_int_equal(unlink(scratch_path(inputs[i])), 0);
    }
    scratch_close();
}

/* The documents of other tokens, under this file's name. */
TEST(documents_of_another_file_are_refused)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true};
    struct st_tokenize_report two, three;
    struct st_token_set *set;
    const char *path;
    char says[256];

    scratch_open();
    put_model();
    put_rows(3);
    assert_ok(tokenize(scratch_path("rows.jsonl"), opts, &three));
    assert_int_equal(rename(scratch_path("x.bin.meta"), scratch_path("three.meta")), 0);
    put_rows(2);
    assert_ok(tokenize(scratch_path("rows.jsonl"), opts, &two));
    assert_int_equal(rename(scratch_path("three.meta"), scratch_path("x.bin.meta")), 0);
    snprintf(says, sizeof(says), "x.bin.meta is for %llu tokens, %s has %llu: make both files again",
             (unsigned long long)three.parts[0].tokens, scratch_path("x.bin"), (unsigned long long)two.parts[0].tokens);
    path = scratch_path("x.bin");
    assert_refused(st_token_set_open(&set, &path, 1, 1000, 4), STRATA_E_INPUT, says);
    scratch_close();
}

/* Of the four files all are there, or none. */
TEST(every_failure_leaves_all_files_or_none)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .val_size = 1};
    struct fault_walk walk = {.result = -EIO};

    scratch_open();
    put_model();
    put_rows(3);
    while (fault_walk_next(&walk)) {
        struct st_tokenize_report r;
        const strata_status st = tokenize(scratch_path("rows.jsonl"), opts, &r);
        uint32_t files;

        fault_walk_end(&walk, st);
        files = scratch_entries_with(scratch_dir, ".bin");
        assert_true(files == 0 || files == 4);
        assert_true(st != STRATA_OK || files == 4);
        (void)unlink(scratch_path("x.bin"));
        (void)unlink(scratch_path("x.bin.meta"));
        (void)unlink(scratch_path("x.heldout.bin"));
        (void)unlink(scratch_path("x.heldout.bin.meta"));
    }
    assert_true(walk.failed > 50);
    scratch_close();
}
