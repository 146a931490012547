/* tests/model/test_rows.c - rows of files as texts and conversations: read one by one, refused with their line, shaped as
 * LLaMA-Factory shapes them, truncated as it does, and written as documents. */
#include "core/base/fault.h"
#include "model/data/rows/dataset_info.h"
#include "model/data/rows/row_reader.h"
#include "model/data/rows/tokenize.h"
#include "model/data/rows/truncate.h"
#include "model/data/tokens.h"
#include "model_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

/* Reads the file r.jsonl; *rows: how many were there. */
static strata_status read_rows(uint32_t *rows)
{
    struct st_rows *r;
    st_json *row;
    strata_status st = st_rows_open(&r, scratch_path("r.jsonl"));

    *rows = 0;
    if (st != STRATA_OK)
        return st;
    while ((st = st_rows_next(r, &row)) == STRATA_OK && row != NULL) {
        (*rows)++;
        st_json_free(row);
    }
    st_rows_close(r);
    return st;
}

static void rows_are_found_in_lines_and_arrays(void **state)
{
    static const struct {
        const char *text;
        uint32_t rows;
        const char *error; /* NULL: none */
    } cases[] = {
        {"", 0, NULL},
        {" \n\t\r\n", 0, NULL},
        {"{\"a\": 1}", 1, NULL},
        {"{\"a\": 1}\n\n  {\"b\": \"}]\\\"{\"}\r\n", 2, NULL},
        {"\xef\xbb\xbf{\"a\": 1}\n", 1, NULL},
        {"{\"a\":\n [1,\n 2]}\n{\"b\": {}} {\"c\": 3}{}", 4, NULL},
        {"1\ntrue \"x\" null", 4, NULL},
        {"[]", 0, NULL},
        {" [ {\"a\": 1} ,\n{\"b\": [2]}\n, 3, \"x\" ]\n ", 4, NULL},
        {"[{}] x", 1, "r.jsonl:1:6: text after the end of the array"},
        {"[{}, ]", 1, "r.jsonl:1:6: a comma with no row after it"},
        {"[{}\n {}]", 1, "r.jsonl:2:2: a comma is missing between rows"},
        {"[{},\n{}", 2, "r.jsonl:2:3: the array does not end"},
        {"[, {}]", 0, "r.jsonl:1:2"},
        {"{}\n{\"a\": oops}\n", 1, "r.jsonl:2:7: "},
        {"{}\n  {\"a\": 01}", 1, "r.jsonl:2:9: "},
        {"{}\n{\"a\": \"not closed\n{}", 1, "r.jsonl:2:"},
        {"{}\n\n{\"a\": 1\n{}\n", 1, "r.jsonl:4:1: "},
        {"{\"a\": 1, \"a\": 2}", 0, "r.jsonl:1:10: duplicate key \"a\""},
        {"{}\n  {\"b\": 1,\n   \"b\": 2}", 1, "r.jsonl:3:4: duplicate key \"b\""},
        {"{}\n  {\"b\": 1, \"b\": 2}", 1, "r.jsonl:2:12: duplicate key \"b\""},
        {"{\"a\": \"\xff\"}", 0, "r.jsonl:1:"},
        {"\xef\xbb{}", 0, "not UTF-8"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t rows;
        strata_status st;

        scratch_open();
        scratch_put("r.jsonl", cases[i].text);
        st = read_rows(&rows);
        assert_int_equal(rows, cases[i].rows);
        assert_int_equal(st, cases[i].error == NULL ? STRATA_OK : STRATA_E_INPUT);
        if (cases[i].error != NULL)
            assert_non_null(strstr(strata_last_error(), cases[i].error));
        scratch_close();
    }
}

/* Rows that cross the reader's blocks, and a count that does not parse. */
static void rows_cross_blocks(void **state)
{
    struct st_rows *r;
    uint64_t count;
    uint32_t rows;
    FILE *file;

    (void)state;
    scratch_open();
    file = fopen(scratch_path("r.jsonl"), "wb");
    assert_non_null(file);
    for (int i = 0; i < 300; i++)
        assert_true(fprintf(file, "{\"text\": \"%*s\"}\n", 37 * i % 1000, "\\\\") > 0);
    assert_int_equal(fclose(file), 0);
    assert_ok(read_rows(&rows));
    assert_int_equal(rows, 300);
    assert_ok(st_rows_open(&r, scratch_path("r.jsonl")));
    assert_ok(st_rows_count(r, &count));
    assert_int_equal(count, 300);
    st_rows_close(r);
    scratch_close();
}

/* "role=content;..." of a conversation, the text of a text, "odd: WHY". */
static void describe(char *out, size_t bytes, const struct st_sample *s, enum st_row_odd odd)
{
    size_t fill = 0;

    if (odd != ST_ROW_FINE || s->text != NULL) {
        snprintf(out, bytes, "%s%s", odd != ST_ROW_FINE ? "odd: " : "", odd != ST_ROW_FINE ? st_row_odd_text(odd) : s->text);
        return;
    }
    for (const st_json *m = st_json_first(s->messages); m != NULL; m = st_json_next(m))
        fill += (size_t)snprintf(out + fill, bytes - fill, "%s=%s;", st_json_string(st_json_get(m, "role")),
                                 st_json_string(st_json_get(m, "content")));
    if (s->variables != NULL) {
        const st_json *tool = st_json_first(st_json_get(s->variables, "tools"));

        snprintf(out + fill, bytes - fill, "tool %s", st_json_string(st_json_get(st_json_get(tool, "function"), "name")));
    }
}

#define TURN(who, what) "{\"from\": \"" who "\", \"value\": \"" what "\"}"

static void shapes_are_llama_factorys(void **state)
{
    static const struct {
        const char *row, *want; /* want: "error: ..." for what a sentence holds */
    } cases[] = {
        {"{\"text\": \"a b\"}", "a b"},
        {"{\"text\": \"\"}", "odd: empty"},
        {"{\"text\": 3}", "error: here: column \"text\" is not a text"},
        {"{\"txt\": \"a\"}", "error: here: neither \"messages\""},
        {"[\"text\"]", "error: here: neither \"messages\""},
        {"{\"messages\": [], \"source\": \"s\"}", "odd: empty"},
        {"{\"conversations\": []}", "odd: empty"},
        {"{\"messages\": [], \"text\": \"a\"}", "a"},
        {"{\"messages\": [{\"content\": \"u\"}]}", "error: here: column \"messages\" is not a list of turns"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"tool\", \"content\": \"t\"}]}",
         "user=u;tool=t;"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}], \"tools\": [{\"name\": \"f\"}]}", "user=u;tool f"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}], \"tools\": 3}",
         "error: here: column \"tools\" is not an array"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, 3]}",
         "error: here: column \"messages\" is not a list of objects"},
        {"{\"conversations\": [{\"role\": \"user\", \"content\": \"u\"}]}", "user=u;"},
        {"{\"instruction\": \"i\", \"input\": \"q\", \"output\": \"o\"}", "user=i\nq;assistant=o;"},
        {"{\"instruction\": \"i\", \"input\": \"\", \"output\": \"\"}", "user=i;assistant=;"},
        {"{\"instruction\": \"\", \"input\": \"q\", \"output\": \"o\", \"system\": \"s\", \"history\": [[\"a\", \"b\"]]}",
         "system=s;user=a;assistant=b;user=q;assistant=o;"},
        {"{\"instruction\": \"i\", \"output\": null}", "odd: without an answer"},
        {"{\"instruction\": \"i\", \"output\": [\"o\"]}", "odd: without an answer"},
        {"{\"instruction\": 1, \"output\": \"o\"}", "error: here: column \"instruction\" is not a text"},
        {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"a\"]]}", "error: here: column \"history\""},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "]}", "user=u;assistant=a;"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "], \"system\": \"s\"}", "system=s;user=u;assistant=a;"},
        {"{\"conversations\": [" TURN("system", "t") "," TURN("human", "u") "," TURN("gpt", "a") "], \"system\": \"s\"}",
         "system=t;user=u;assistant=a;"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("function_call", "f") "," TURN("observation", "r") "," TURN(
             "gpt", "a") "], \"tools\": \"[{\\\"type\\\": \\\"function\\\", \\\"function\\\": {\\\"name\\\": \\\"g\\\"}}]\"}",
         "user=u;assistant=f;tool=r;assistant=a;tool g"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "], \"tools\": \"[\"}",
         "error: here: column \"tools\" is a text that is not JSON"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "], \"tools\": \" \"}", "user=u;assistant=a;"},
        {"{\"conversations\": [" TURN("gpt", "a") "," TURN("human", "u") "]}", "odd: turns out of order"},
        {"{\"conversations\": [" TURN("human", "u") "]}", "odd: turns out of order"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("bot", "a") "]}", "odd: turns out of order"},
        {"{\"conversations\": [" TURN("system", "u") "]}", "odd: empty"},
        {"{\"conversations\": [" TURN("human", "u") ",{\"from\": \"gpt\"}]}",
         "error: here: column \"conversations\": a turn without"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_sample s = {0};
        enum st_row_odd odd = ST_ROW_FINE;
        struct st_row_shape shape;
        char got[256] = "error: ";
        st_json *row;
        strata_status st;

        assert_ok(st_json_parse(&row, cases[i].row, strlen(cases[i].row), "row"));
        st = st_row_shape_guess(&shape, row, "here");
        if (st == STRATA_OK)
            st = st_row_read(&s, &odd, &shape, row, "here");
        if (st == STRATA_OK)
            describe(got, sizeof(got), &s, odd);
        else
            snprintf(got, sizeof(got), "error: %.*s", (int)strlen(cases[i].want) - 7, strata_last_error());
        assert_string_equal(got, cases[i].want);
        st_sample_free(&s);
        st_json_free(row);
    }
}

/* Data sets of one file each; a row read with the shape. */
static void dataset_info_names_columns_and_tags(void **state)
{
    static const char info[] =
        "{\"plain\": {\"file_name\": \"x.json\"},"
        "\"texts\": {\"file_name\": \"/abs/x.jsonl\", \"columns\": {\"prompt\": \"content\"}},"
        "\"part\": {\"file_name\": \"d/x.json\", \"columns\": {\"prompt\": \"p\", \"response\": \"r\"}, \"num_samples\": 7},"
        "\"talks\": {\"file_name\": \"x.json\", \"formatting\": \"sharegpt\", \"columns\": {\"messages\": \"m\"},"
        " \"tags\": {\"role_tag\": \"role\", \"content_tag\": \"content\", \"user_tag\": \"user\", \"assistant_tag\": \"bot\"}},"
        "\"hub\": {\"hf_hub_url\": \"a/b\"}, \"rank\": {\"file_name\": \"x\", \"ranking\": true},"
        "\"image\": {\"file_name\": \"x\", \"columns\": {\"images\": \"i\"}}, \"open\": {\"file_name\": \"x\", \"formatting\": "
        "\"openai\"},"
        "\"split\": {\"file_name\": \"x\", \"split\": \"test\"}, \"none\": {}, \"seven\": {\"file_name\": \"x\", "
        "\"num_samples\": 0.5},"
        "\"text\": \"x\", \"cols\": {\"file_name\": \"x\", \"columns\": []}, \"tag\": {\"file_name\": \"x\", \"tags\": "
        "{\"role_tag\": 3}},"
        "\"nomsg\": {\"file_name\": \"x\", \"formatting\": \"sharegpt\", \"columns\": {}}}";
    static const struct {
        const char *name, *path, *row, *want;
    } good[] = {
        {"plain", "x.json", "{\"instruction\": \"i\", \"output\": \"o\", \"system\": \"s\"}", "user=i;assistant=o;"},
        {"texts", "/abs/x.jsonl", "{\"content\": \"c\", \"text\": \"t\"}", "c"},
        {"part", "d/x.json", "{\"p\": \"i\", \"r\": \"o\", \"input\": \"q\"}", "user=i;assistant=o;"},
        {"talks", "x.json", "{\"m\": [{\"role\": \"user\", \"content\": \"u\"}, {\"role\": \"bot\", \"content\": \"a\"}]}",
         "user=u;assistant=a;"},
        {"talks", "x.json", "{\"m\": [{\"role\": \"system\", \"content\": \"u\"}, {\"role\": \"bot\", \"content\": \"a\"}]}",
         "odd: turns out of order"}, /* tags that are not named do not exist */
    };
    static const char *const bad[] = {"hub",   "rank", "image", "open", "split", "none",
                                      "seven", "text", "cols",  "tag",  "nomsg", "missing"};
    struct st_dataset d;

    (void)state;
    scratch_open();
    scratch_put("dataset_info.json", info);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        enum st_row_odd odd;
        struct st_sample s;
        char got[256];
        st_json *row;

        assert_ok(st_dataset_open(&d, scratch_path("dataset_info.json"), good[i].name));
        assert_string_equal(d.path, good[i].path[0] == '/' ? good[i].path : scratch_path(good[i].path));
        assert_int_equal(d.num_samples, strcmp(good[i].name, "part") == 0 ? 7 : 0);
        assert_ok(st_json_parse(&row, good[i].row, strlen(good[i].row), "row"));
        assert_ok(st_row_read(&s, &odd, &d.shape, row, "here"));
        describe(got, sizeof(got), &s, odd);
        assert_string_equal(got, good[i].want);
        st_sample_free(&s);
        st_json_free(row);
        st_dataset_close(&d);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(st_dataset_open(&d, scratch_path("dataset_info.json"), bad[i]), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), bad[i]));
    }
    scratch_close();
}

/* Kept of each turn, as LLaMA-Factory's supervised processor keeps it. */
static void turns_are_truncated_as_infer_seqlen_says(void **state)
{
    static const struct {
        uint32_t turns[3][2], count, most, kept[3][2];
    } cases[] = {
        {{{10, 5}}, 1, 12, {{7, 5}}},         {{{3, 20}}, 1, 12, {{3, 9}}},
        {{{9, 9}}, 1, 12, {{6, 6}}},          {{{4, 4}, {4, 4}, {4, 4}}, 3, 17, {{4, 4}, {4, 4}, {1, 0}}},
        {{{1, 30}, {1, 1}}, 2, 10, {{1, 9}}}, {{{30, 1}, {1, 1}}, 2, 10, {{9, 1}}},
        {{{7, 11}}, 1, 13, {{6, 7}}},         {{{2, 2}, {9, 0}}, 2, 8, {{2, 2}, {4, 0}}},
        {{{0, 9}, {3, 3}}, 2, 6, {{0, 6}}},   {{{2, 2}, {1, 1}}, 2, 6, {{2, 2}, {1, 1}}}, /* short enough */
    };

    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        uint32_t ids[64], want[64];
        uint8_t trained[64];
        uint64_t count = 0, kept = 0;

        for (uint32_t t = 0; t < cases[c].count; t++)
            for (uint32_t half = 0; half < 2; half++)
                for (uint32_t i = 0; i < cases[c].turns[t][half]; i++) {
                    if (i < cases[c].kept[t][half])
                        want[kept++] = (uint32_t)count;
                    ids[count] = (uint32_t)count;
                    trained[count++] = (uint8_t)half;
                }
        assert_int_equal(st_truncate_turns(ids, trained, count, cases[c].most), kept);
        assert_memory_equal(ids, want, kept * sizeof(ids[0]));
    }
}

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

static void parts_are_exact_and_seeded(void **state)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .val_size = 0.24, .seed = 3, .overwrite = true},
                                  other = {.template = "chatml", .val_size = 0.24, .seed = 4, .overwrite = true},
                                  few = {.template = "chatml", .val_size = 2, .max_samples = 10, .overwrite = true},
                                  all = {.template = "chatml", .val_size = 20, .overwrite = true};
    struct st_tokenize_report r;
    char *first, *second;
    size_t bytes, again;

    (void)state;
    scratch_open();
    put_model();
    put_rows(20);
    assert_ok(tokenize(scratch_path("rows.jsonl"), opts, &r));
    assert_int_equal(r.parts[0].documents, 15);
    assert_int_equal(r.parts[1].documents, 5); /* a part is rounded up, as train_test_split does */
    assert_true(r.dialogs && r.layout == ST_LAYOUT_PACKED && r.answers == 20 && r.unended == 0);
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

/* A text is what the post-processor says and one end token; layouts other than the usual one cut it. */
static void texts_have_an_end_and_may_be_cut(void **state)
{
    const enum st_token_layout rows = ST_LAYOUT_ROWS;
    const struct st_tokenize_opts usual = {.seq_len = 4, .overwrite = true},
                                  cut = {.seq_len = 4, .layout = &rows, .overwrite = true};
    struct st_tokenize_report r;

    (void)state;
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

/* A row that says nothing about the format is left out, and the next one says it; so is a text that has no token. */
static void empty_rows_are_left_out(void **state)
{
    const struct st_tokenize_opts chatml = {.template = "chatml", .overwrite = true}, usual = {.overwrite = true};
    struct st_tokenize_report r;

    (void)state;
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
static void columns_that_no_row_has_are_refused(void **state)
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

    (void)state;
    scratch_open();
    put_model();
    scratch_put("rows.jsonl", rows);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_tokenize_opts opts = {.template = "chatml", .overwrite = true, .dataset = "d"};
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
static void rows_of_a_pipe_are_not_held_out(void **state)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .format = ST_ROWS_MESSAGES, .val_size = 1};
    static const char row[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n";
    struct st_tokenize_report r;
    char path[32];
    int ends[2];

    (void)state;
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

static void replace_rows(void *context, const struct st_shown_run *run)
{
    (void)run;
    scratch_put(context, "{\"messages\": []}\n");
    assert_int_equal(rename(scratch_path(context), scratch_path("b.jsonl")), 0);
}

/* Rows are counted first: what is read then is the same file. */
static void files_are_not_replaced_between_counting_and_reading(void **state)
{
    struct st_tokenize_opts opts = {.template = "chatml", .val_size = 1, .overwrite = true, .show = 1, .shown = replace_rows};
    const char *inputs[2];
    struct st_tokenize_report r;
    char a[128], b[128];

    (void)state;
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

static void note_shown(void *context, const struct st_shown_run *run)
{
    struct shown *s = context;

    s->tokens = run->tokens;
    s->ids += run->count;
    s->more = run->more;
}

/* A text that is read in parts is shown with its end, or is said to go on. */
static void texts_are_shown_to_their_end(void **state)
{
    struct shown shown = {0};
    const struct st_tokenize_opts opts = {.overwrite = true, .show = 1, .shown = note_shown, .context = &shown};
    struct st_tokenize_report r;
    FILE *file;

    (void)state;
    scratch_open();
    put_model();
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

static void rows_are_dropped_for_a_reason_or_nothing_is_written(void **state)
{
    const struct st_tokenize_opts gemma = {.template = "gemma"}, gemma_short = {.template = "chatml", .seq_len = 3};
    struct st_tokenize_opts plain = {.overwrite = true};
    struct st_tokenize_report r;

    (void)state;
    scratch_open();
    put_model();
    scratch_put("r.jsonl", "{\"messages\": [{\"role\": \"assistant\", \"content\": \"a\"}]}\n");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "none of 1 rows can be trained; 1: refused by the template: "));
    scratch_put("r.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}]}\n");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma_short, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "nothing to train"));
    scratch_put("r.jsonl", "");
    assert_int_equal(tokenize(scratch_path("r.jsonl"), gemma, &r), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "there are no rows"));
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

/* Of the four files all are there, or none. */
static void every_failure_leaves_all_files_or_none(void **state)
{
    const struct st_tokenize_opts opts = {.template = "chatml", .val_size = 1};
    struct fault_walk walk = {.result = -EIO};

    (void)state;
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_found_in_lines_and_arrays),
        cmocka_unit_test(rows_cross_blocks),
        cmocka_unit_test(shapes_are_llama_factorys),
        cmocka_unit_test(dataset_info_names_columns_and_tags),
        cmocka_unit_test(turns_are_truncated_as_infer_seqlen_says),
        cmocka_unit_test(parts_are_exact_and_seeded),
        cmocka_unit_test(texts_have_an_end_and_may_be_cut),
        cmocka_unit_test(empty_rows_are_left_out),
        cmocka_unit_test(columns_that_no_row_has_are_refused),
        cmocka_unit_test(rows_of_a_pipe_are_not_held_out),
        cmocka_unit_test(files_are_not_replaced_between_counting_and_reading),
        cmocka_unit_test(texts_are_shown_to_their_end),
        cmocka_unit_test(rows_are_dropped_for_a_reason_or_nothing_is_written),
        cmocka_unit_test(every_failure_leaves_all_files_or_none),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
