/* tests/text/test_rows.c - rows of files as texts and conversations: read one by one, refused with their line, shaped as
 * LLaMA-Factory shapes them, and truncated as it does. */
#include "tests/common/whole_file.h"
#include "tests/text/text_fixture.h"
#include "text/data/rows/dataset_info.h"
#include "text/data/rows/row_columns.h"
#include "text/data/rows/row_reader.h"
#include "text/data/rows/truncate.h"
#include "text/template/template.h"

#include <sys/stat.h>

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

TEST(rows_are_found_in_lines_and_arrays)
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
        {"[{}, ]", 1, NULL},
        {"[{},, {}]", 1, "r.jsonl:1:5: "},
        {"[{}\n {}]", 1, "r.jsonl:2:2: a comma is missing between rows"},
        {"[{},\n{}", 2, "r.jsonl:2:3: the array does not end"},
        {"[, {}]", 0, "r.jsonl:1:2"},
        {"{}\n{\"a\": oops}\n", 1, "r.jsonl:2:7: "},
        {"{}\n  {\"a\": 01}", 1, "r.jsonl:2:9: "},
        {"{}\n{\"a\": \"not closed\n{}", 1, "r.jsonl:2:"},
        {"{}\n\n{\"a\": 1\n{}\n", 1, "r.jsonl:3:8: "},
        {"{\"a\": 1, \"a\": 2}", 0, "r.jsonl:1:10: duplicate key \"a\""},
        {"{}\n  {\"b\": 1,\n   \"b\": 2}", 1, "r.jsonl:3:4: duplicate key \"b\""},
        {"{}\n  {\"b\": 1, \"b\": 2}", 1, "r.jsonl:2:12: duplicate key \"b\""},
        {"{\"a\": \"\xff\"}", 0, "r.jsonl:1:"},
        {"\xff\xfe{", 0, "r.jsonl:1:1: UTF-16"},
        {"\xef\xbb{}", 0, "not UTF-8"},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t rows;
        strata_status st;

        scratch_open();
        scratch_put("r.jsonl", cases[i].text);
        st = read_rows(&rows);
        assert_int_equal(rows, cases[i].rows);
        assert_int_equal(st, cases[i].error == NULL ? STRATA_OK : STRATA_E_INPUT);
        if (cases[i].error != NULL)
            if (strstr(strata_last_error(), cases[i].error) == NULL)
                fail_msg("%zu: %s", i, strata_last_error());
        scratch_close();
    }
}

/* "a", "b" ... of rows {"a": 0}, "!" for each bad one; what ends them, too: "." the file, "#" an error. */
static void read_on(const char *name, char *out, char *first, size_t room)
{
    struct st_rows *r;
    st_json *row;
    uint64_t count, rows = 0;
    strata_status st;

    *first = '\0';
    assert_ok(st_rows_open(&r, scratch_path(name)));
    for (;; rows++) {
        st = st_rows_next(r, &row);
        if (st != STRATA_OK && *first == '\0')
            snprintf(first, room, "%s", strata_last_error());
        if (st == STRATA_E_INPUT && st_rows_goes_on(r)) {
            *out++ = '!';
            continue;
        }
        if (st != STRATA_OK || row == NULL)
            break;
        assert_non_null(st_json_first(row));
        *out++ = st_json_name(st_json_first(row))[0];
        st_json_free(row);
    }
    *out++ = st == STRATA_OK ? '.' : '#';
    *out = '\0';
    st_rows_close(r);
    assert_ok(st_rows_open(&r, scratch_path(name)));
    assert_int_equal(st_rows_count(r, &count), st);
    assert_int_equal(count, rows);
    st_rows_close(r);
}

TEST(bad_rows_end_with_their_line)
{
    static const struct {
        const char *text, *want, *first; /* first: of the sentences; NULL: there is none */
        bool json;                       /* the file's name ends so */
    } cases[] = {
        {"{\"a\":0}\n{\"b\":oops}\n{\"c\":0}", "a!c.", "x.jsonl:2:6: a value is missing", false},
        {"{\"a\":0}\n{\"b\":0\n{\"c\":0}\n{\"d\":[\n{\"e\":0}\n", "a!c!e.", "x.jsonl:2:7: , or } is missing", false},
        {"{\"a\":0}\n{\"b\":\"x\n{\"c\":0}\n{\"d\":\"}\n", "a!c!.", "x.jsonl:2:8: string not closed", false},
        {"{\"a\":{\"x\":0}\n{\"b\":0}}\n{\"c\":0}\n", "!b!c.", "x.jsonl:1:13: ", false},
        {"{\"a\":0}}\n{\"b\":0} x {\"c\":0}\n{\"d\":0}\n", "a!b!d.", "x.jsonl:1:8: ", false},
        {"{\"a\":\"\xe9\"}\n{\"b\":0}\n{\"c\":0,\"c\":1}\n{\"d\":0}", "!b!d.", "x.jsonl:1:7: not UTF-8", false},
        {"{\"a\":0}\n{\"b\":", "a!.", "x.jsonl:2:6: a value is missing", false},
        {"{\"a\":\n0}\n{\"b\":\nx}\n{\"c\":0}", "a!c.", "x.jsonl:4:1: ", false},
        {"{\"a\":\n0}\n{\"b\":\n{\"c\":0}", "a#", "x.jsonl:4:8: ", false},
        {"{\"a\":0},\n{\"b\":0},\n", "ab.", NULL, false},
        {"\xef\xbb\xbf{\"a\":0}\r\n\r\n\xef\xbb\xbf{\"b\":0}\n\xef\xbb\xbf", "ab.", NULL, false},
        {"{\"a\":NaN}\n{\"b\":\"\\u0000\"}\n{\"c\":\"\t\"}", "abc.", NULL, false},
        {"[{\"a\":0},{\"b\":oops},{\"c\":0}]", "a#", "x.json:1:15: ", true},
        {"[{\"a\":0},{\"b\":0,\"b\":1},{\"c\":0}]", "a!c.", "x.json:1:17: duplicate key", true},
        {"\xef\xbb\xbf[{\"a\":0},\n{\"b\":NaN},]\n", "ab.", NULL, true},
        {"{\"data\": [{\"a\":0}, {\"b\":[]}], \"x\": \"]}\\\"\"}\n", "ab.", NULL, true},
        {"{\"v\": {\"data\": [{}]}, \"w\": \"data\", \"data\" :\n [ {\"a\":0} ] }", "a.", NULL, true},
        {"{\"data\": []}", ".", NULL, true},
        {"{\"data\": [{\"a\":0}]", "a#", "the object around \"data\" does not end", true},
        {"{\"data\": [{\"a\":0}]}\n{\"data\": []}", "a#", "call the file .jsonl", true},
        {"{\"data\": [{\"a\":0}] oops}", "a#", ":20: , or } is missing behind \"data\"", true},
        {"{\"data\": [{\"a\":0}]]", "a#", ", or } is missing behind \"data\"", true},
        {"{\"data\": [{\"a\":0}], \"x\": 1]", "a#", "} is missing", true},
        {"{\"x\" 1, \"data\": [{\"a\":0}]}", "#", "1:6: : is missing after a name", true},
        {"{\"x\": NaN, \"data\": [{\"a\":0}]}", "a.", NULL, true},
        {"{\"data\": 1, \"data\": [{\"a\":0}]}", "#", "duplicate key \"data\"", true},
        {"{\"data\": [\"q\", \"a\"]}\n{\"data\": [\"q\"]}", "dd.", NULL, true},
        {"{\"data\": [{\"a\":0}]}\n{\"data\": [{\"a\":0}]}", "dd.", NULL, false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *name = cases[i].json ? "x.json" : "x.jsonl";
        char got[32], first[512];

        scratch_open();
        scratch_put(name, cases[i].text);
        read_on(name, got, first, sizeof(first));
        assert_string_equal(got, cases[i].want);
        assert_int_equal(first[0] == '\0', cases[i].first == NULL);
        if (cases[i].first != NULL)
            if (strstr(first, cases[i].first) == NULL)
                fail_msg("%zu: %s", i, first);
        scratch_close();
    }
}

/* Every line of many is bad, and seems to go on to the file's end: it is read twice, not once for each line. */
TEST(many_bad_lines_are_read_twice)
{
    enum { LINES = 20000 };
    struct st_rows *r;
    uint64_t count;
    FILE *file;

    scratch_open();
    file = fopen(scratch_path("r.jsonl"), "wb");
    assert_non_null(file);
    for (int i = 0; i < LINES; i++)
        assert_true(fprintf(file, "{\"text\": [\"%d\"\n", i) > 0);
    assert_int_equal(fclose(file), 0);
    assert_ok(st_rows_open(&r, scratch_path("r.jsonl")));
    assert_ok(st_rows_count(r, &count));
    assert_int_equal(count, LINES);
    st_rows_close(r);
    scratch_close();
}

/* Rows that cross the reader's blocks, and a count that does not parse. */
TEST(rows_cross_blocks)
{
    struct st_rows *r;
    uint64_t count;
    uint32_t rows;
    FILE *file;

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

    if (s->completes && s->text != NULL && odd == ST_ROW_FINE) {
        snprintf(out, bytes, "%s after %zu%s%s", s->text, s->prompt_bytes, s->unread[0] != NULL ? ";unread " : "",
                 s->unread[0] != NULL ? s->unread[0] : "");
        return;
    }
    if (odd != ST_ROW_FINE || s->text != NULL) {
        snprintf(out, bytes, "%s%s%s%s", odd != ST_ROW_FINE ? "odd: " : "", odd != ST_ROW_FINE ? st_row_odd_text(odd) : s->text,
                 odd == ST_ROW_TURNS ? ", " : "", odd == ST_ROW_TURNS ? strata_last_error() : "");
        return;
    }
    for (const st_json *m = st_json_first(s->messages); m != NULL; m = st_json_next(m))
        fill += (size_t)snprintf(out + fill, bytes - fill, "%s=%s%s;", st_json_string(st_json_get(m, "role")),
                                 st_json_string(st_json_get(m, "content")), st_template_message_excluded(m) ? "-" : "");
    if (s->unread[0] != NULL)
        snprintf(out + fill, bytes - fill, "unread %s", s->unread[0]);
    if (s->variables != NULL) {
        const st_json *tool = st_json_first(st_json_get(s->variables, "tools"));

        snprintf(out + fill, bytes - fill, "tool %s", st_json_string(st_json_get(st_json_get(tool, "function"), "name")));
    }
}

TEST(shapes_are_llama_factorys)
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
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}], \"system\": \"s\"}", "system=s;user=u;"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}], \"system\": \"s\", \"tools\": [{\"name\": \"f\"}]}",
         "system=s;user=u;tool f"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}], \"system\": \"\"}", "user=u;"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}], \"system\": 3}",
         "error: here: column \"system\" is not a text"},
        {"{\"messages\": [{\"role\": \"system\", \"content\": \"t\"}], \"system\": \"s\"}", "system=t;unread system"},
        {"{\"messages\": [{\"role\": \"developer\", \"content\": \"s\"}], \"system\": \"s\"}", "developer=s;"},
        {"{\"prompt\": \"p\", \"completion\": \"c\"}", "pc after 1"},
        {"{\"prompt\": \"p\", \"completion\": \"\", \"text\": \"t\", \"tools\": [3]}", "p after 1;unread tools"},
        {"{\"prompt\": \"\", \"completion\": \"\"}", "odd: empty"},
        {"{\"prompt\": \"p\", \"completion\": \"c\", \"system\": \"s\", \"tools\": []}", "pc after 1;unread system"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"u\"}], \"completion\": [{\"role\": \"assistant\", \"content\": "
         "\"a\"}], "
         "\"system\": \"s\"}",
         "system=s;user=u-;assistant=a;"},
        {"{\"prompt\": [{\"role\": \"system\", \"content\": \"t\"}], \"completion\": [{\"role\": \"assistant\", \"content\": "
         "\"a\"}], "
         "\"system\": \"s\"}",
         "system=t-;assistant=a;unread system"},
        {"{\"prompt\": [], \"completion\": [{\"role\": \"assistant\", \"content\": \"a\"}], \"system\": \"s\"}",
         "system=s;assistant=a;"},
        {"{\"prompt\": \"p\", \"completion\": null}", "odd: without an answer"},
        {"{\"prompt\": null, \"completion\": \"c\"}", "error: here: column \"prompt\" is missing"},
        {"{\"prompt\": \"p\", \"completion\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
         "error: here: column \"completion\" is not of the prompt's kind"},
        {"{\"prompt\": 1, \"completion\": 2}", "error: here: column \"completion\" is not of the prompt's kind"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"u\", \"weight\": 1}, {\"role\": \"assistant\", \"content\": \"a\", "
         "\"loss\": "
         "true}], \"completion\": [{\"role\": \"assistant\", \"content\": \"b\", \"weight\": 0}], \"tools\": [{\"name\": "
         "\"f\"}]}",
         "user=u-;assistant=a-;assistant=b-;tool f"},
        {"{\"prompt\": [], \"completion\": [{\"role\": \"assistant\", \"content\": \"b\"}]}", "assistant=b;"},
        {"{\"prompt\": [{\"content\": \"u\"}], \"completion\": []}", "error: here: column \"prompt\" is not a list of objects"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\"}, 3]}",
         "error: here: column \"messages\" is not a list of objects"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"loss\": false}, {\"role\": \"assistant\", \"content\": "
         "\"a\", "
         "\"loss\": true, \"weight\": 0}, {\"role\": \"assistant\", \"content\": \"b\", \"loss\": null, \"weight\": null}]}",
         "user=u-;assistant=a-;assistant=b;"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"loss\": true}]}",
         "error: here: column \"messages\" has a message with a \"loss\" that is true of another's"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"u\", \"loss\": \"no\"}]}",
         "error: here: column \"messages\" has a message with a \"loss\" that is neither"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"u\", \"weight\": 0.5}]}",
         "error: here: column \"messages\" has a message with a \"weight\" that is neither"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": \"u\", \"weight\": false}]}",
         "error: here: column \"messages\" has a message with a \"weight\" that is neither"},
        {"{\"conversations\": [{\"role\": \"user\", \"content\": \"u\"}]}", "user=u;"},
        {"{\"instruction\": \"i\", \"input\": \"q\", \"output\": \"o\"}", "user=i\nq;assistant=o;"},
        {"{\"instruction\": \"i\", \"input\": \"\", \"output\": \"\"}", "user=i;assistant=;"},
        {"{\"instruction\": \"\", \"input\": \"q\", \"output\": \"o\", \"system\": \"s\", \"history\": [[\"a\", \"b\"]]}",
         "system=s;user=a;assistant=b;user=q;assistant=o;"},
        {"{\"instruction\": \"i\", \"output\": null}", "odd: without an answer"},
        {"{\"instruction\": \"i\", \"response\": \"o\"}", "odd: without an answer"},
        {"{\"instruction\": \"i\", \"output\": [\"o\"]}", "odd: without an answer"},
        {"{\"instruction\": 1, \"output\": \"o\"}", "error: here: column \"instruction\" is not a text"},
        {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"a\"]]}", "error: here: column \"history\""},
        {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"a\", \"b\", \"c\"]]}", "error: here: column \"history\""},
        {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [[\"a\", 1]]}", "error: here: column \"history\""},
        {"{\"instruction\": \"i\", \"output\": \"o\", \"history\": [\"a\"]}", "error: here: column \"history\""},
        {"{\"conversations\": [" TURN("system", "") "," TURN("human", "u") "," TURN("gpt", "a") "], \"system\": \"s\"}",
         "user=u;assistant=a;unread system"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "]}", "user=u;assistant=a;"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "], \"system\": \"s\"}", "system=s;user=u;assistant=a;"},
        {"{\"conversations\": [" TURN("system", "t") "," TURN("human", "u") "," TURN("gpt", "a") "], \"system\": \"s\"}",
         "system=t;user=u;assistant=a;unread system"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("function_call", "f") "," TURN("observation", "r") "," TURN(
             "gpt", "a") "], \"tools\": \"[{\\\"type\\\": \\\"function\\\", \\\"function\\\": {\\\"name\\\": \\\"g\\\"}}]\"}",
         "user=u;assistant=f;tool=r;assistant=a;tool g"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "], \"tools\": \"[\"}",
         "error: here: column \"tools\" is a text that is not JSON"},
        {"{\"conversations\": [" TURN("human", "u") "," TURN("gpt", "a") "], \"tools\": \" \"}", "user=u;assistant=a;"},
        {"{\"conversations\": [" TURN("gpt", "a") "," TURN("human", "u") "]}",
         "odd: turns out of order, turn 1 is from \"gpt\", where \"human\" may stand"},
        {"{\"conversations\": [" TURN("human", "u") "]}", "odd: turns out of order, the last turn has no answer"},
        {"{\"conversations\": [" TURN("system", "") "," TURN("human", "u") "," TURN("bot", "a") "]}",
         "odd: turns out of order, turn 3 is from \"bot\", where \"gpt\" may stand"},
        {"{\"conversations\": [" TURN("system", "u") "]}", "odd: empty"},
        {"{\"conversations\": [" TURN("human", "u") ", {\"from\": \"gpt\", \"value\": \"a\", \"weight\": 0}]}",
         "user=u;assistant=a-;"},
        {"{\"conversations\": [" TURN("human", "u") ", {\"from\": \"gpt\", \"value\": \"a\", \"weight\": 0.5}]}",
         "error: here: column \"conversations\" has a message with a \"weight\""},
        {"{\"conversations\": [" TURN("human", "u") ",{\"from\": \"gpt\"}]}",
         "error: here: column \"conversations\": a turn without"},
    };

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

/* What a row says by a column that its format does not read: refused, passed, or counted for a notice. */
TEST(columns_that_mean_something_are_refused)
{
#define CHAT "\"messages\": [{\"role\": \"user\", \"content\": \"u\"}]"
    static const struct {
        const char *row, *want; /* want: of the refusal; or of what is counted */
        bool refused;
    } cases[] = {
        {"{" CHAT ", \"label\": false}", "here: column \"label\": answers that are not wanted (KTO)", true},
        {"{" CHAT ", \"kto_tag\": false}", "here: column \"kto_tag\": answers", true},
        {"{" CHAT ", \"kto_tag\": 0}", "here: column \"kto_tag\": answers", true},
        {"{" CHAT ", \"kto_tag\": \"False\"}", "here: column \"kto_tag\": answers", true},
        {"{" CHAT ", \"label\": \"false\"}", "here: column \"label\": answers", true},
        {"{" CHAT ", \"label\": \"true\", \"kto_tag\": 1}", "", false},
        {"{" CHAT ", \"label\": 0}", "label", false},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"images\": [\"1.jpg\"]}]}",
         "here: column \"messages\": a message has \"images\": only text", true},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"u\", \"images\": [], \"audio\": null}]}", "", false},
        {"{\"text\": \"t\", \"kto_tag\": false}", "here: column \"kto_tag\": answers", true},
        {"{\"prompt\": \"t\", \"completion\": \"c\", \"label\": false}", "here: column \"label\": answers", true},
        {"{" CHAT ", \"rejected_response\": \"r\"}", "here: column \"rejected_response\": pairs of answers", true},
        {"{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"r\"}", "here: column \"chosen\": pairs of answers", true},
        {"{" CHAT ", \"images\": [\"1.jpg\"]}", "here: column \"images\": only text is trained", true},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"t\"}, {\"type\": "
         "\"image_url\"}]}]}",
         "here: column \"messages\": a message has a part of type \"image_url\"", true},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": [{\"type\": \"input_audio\"}]}], \"completion\": []}",
         "here: column \"prompt\": a message has a part of type \"input_audio\"", true},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"image\"}, 3, {\"type\": 1}]}, 4]}",
         "", false},
        {"{\"instruction\": \"i\", \"output\": \"o\", \"audio\": {\"path\": \"p\"}}", "here: column \"audio\": only text", true},
        {"{" CHAT ", \"label\": true, \"kto_tag\": null, \"images\": [], \"rejected\": \"\", \"videos\": null, \"id\": 7}", "",
         false},
        {"{\"text\": \"t\", \"label\": false}", "label", false},
        {"{" CHAT ", \"label\": 1, \"score\": 0.5, \"a b\": {\"c\": 1}, \"none\": {}}", "label,score,a b", false},
        {"{\"conversations\": [{\"from\": \"human\", \"value\": \"u\", \"k\": 1}, {\"from\": \"gpt\", \"value\": \"u\", \"k\": "
         "2, \"weight\": 0, \"z\": "
         "null}]}",
         "conversations[].k", false},
    };

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct st_row_unread u = {0};
        struct st_row_shape shape = {0};
        char got[256] = "";
        st_json *row;
        strata_status st;

        assert_ok(st_json_parse(&row, cases[i].row, strlen(cases[i].row), "row"));
        if (st_row_shape_guess(&shape, row, "here") != STRATA_OK)
            shape = (struct st_row_shape){0};
        st = st_row_check_columns(&shape, row, "here");
        assert_int_equal(st, cases[i].refused ? STRATA_E_INPUT : STRATA_OK);
        if (cases[i].refused)
            assert_non_null(strstr(strata_last_error(), cases[i].want));
        for (uint32_t k = 0; k < 2 && !cases[i].refused; k++)
            st_row_note_columns(&u, &shape, row);
        for (uint32_t k = 0; k < u.count; k++) {
            snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s", k == 0 ? "" : ",", u.columns[k].name);
            assert_int_equal(u.columns[k].rows, 2);
        }
        if (!cases[i].refused)
            assert_string_equal(got, cases[i].want);
        shape.named = true; /* somebody has said which columns are the answer */
        if (strstr(cases[i].want, "pairs") != NULL)
            assert_ok(st_row_check_columns(&shape, row, "here"));
        st_json_free(row);
    }
}

/* Names that a file makes up are many. */
TEST(unread_columns_are_bounded)
{
    struct st_row_unread u = {.row = 1};
    char name[200];

    for (uint32_t i = 0; i < 40; i++) {
        snprintf(name, sizeof(name), "%u", i);
        st_row_note_column(&u, name);
    }
    assert_int_equal(u.count, ST_ROW_UNREAD_MAX);
    assert_int_equal(u.others, 40 - ST_ROW_UNREAD_MAX);
    memset(name, 'x', sizeof(name) - 1);
    u = (struct st_row_unread){.row = 1};
    name[sizeof(name) - 1] = '\0';
    for (; u.row < 4; u.row++)
        st_row_note_column(&u, name);
    assert_true(u.count == 1 && u.columns[0].rows == 3 && strlen(u.columns[0].name) == ST_ROW_UNREAD_NAME - 1);
}

/* Data sets of one file each; a row read with the shape.  The file is as some editors save it, with a byte order mark. */
TEST(dataset_info_names_columns_and_tags)
{
    static const char info[] =
        "\xef\xbb\xbf{\"plain\": {\"file_name\": \"x.json\"},"
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
         "odd: turns out of order, turn 1 is from \"system\", where \"user\" may stand"}, /* tags that are not named do not exist
                                                                                           */
    };
    static const char *const bad[] = {"hub",   "rank", "image", "open", "split", "none",
                                      "seven", "text", "cols",  "tag",  "nomsg", "missing"};
    struct st_dataset d;

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

/* A data set of version 1's YAML: the query follows the prompt as it is, and files are named from a directory above. */
TEST(version_1_data_sets)
{
    static const char sets[] =
        "short: {path: no_such_rows.json, source: local, converter: alpaca, size: 7}\n"
        "talks: {path: d/x.jsonl, source: local, converter: sharegpt}\n"
        "hub: {path: org/name}\nsplit: {path: no_such_rows.json, source: local, converter: alpaca, split: test}\n"
        "pair: {path: no_such_rows.json, source: local, converter: pair}\n"
        "own: {path: no_such_rows.json, source: local}\n"
        "weight: {path: no_such_rows.json, source: local, converter: alpaca, weight: 0.5}\n"
        "nothing: {source: local, converter: alpaca}\n"
        "size: {path: no_such_rows.json, source: local, converter: alpaca, size: 0}\n";
    static const char *const bad[] = {"hub", "split", "pair", "own", "weight", "nothing", "size", "missing"};
    static const struct {
        const char *name, *row, *want;
    } good[] = {
        {"short", "{\"instruction\": \"i\", \"input\": \"j\", \"output\": \"o\", \"system\": \"s\"}",
         "system=s;user=ij;assistant=o;"},
        {"talks", "{\"conversations\": [{\"from\": \"human\", \"value\": \"u\"}, {\"from\": \"gpt\", \"value\": \"a\"}]}",
         "user=u;assistant=a;"},
    };
    struct st_dataset d;

    scratch_open();
    assert_int_equal(mkdir(scratch_path("d"), 0700), 0);
    scratch_put("d/x.jsonl", "");
    scratch_put("d/sets.yaml", sets);
    for (size_t i = 0; i < sizeof(good) / sizeof(good[0]); i++) {
        enum st_row_odd odd;
        struct st_sample s;
        char got[256];
        st_json *row;

        assert_ok(st_dataset_open(&d, scratch_path("d/sets.yaml"), good[i].name));
        assert_string_equal(d.path, i == 0 ? "no_such_rows.json" : scratch_path("d/x.jsonl"));
        assert_int_equal(d.num_samples, i == 0 ? 7 : 0);
        assert_ok(st_json_parse(&row, good[i].row, strlen(good[i].row), "row"));
        assert_ok(st_row_read(&s, &odd, &d.shape, row, "here"));
        describe(got, sizeof(got), &s, odd);
        assert_string_equal(got, good[i].want);
        st_sample_free(&s);
        st_json_free(row);
        st_dataset_close(&d);
    }
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(st_dataset_open(&d, scratch_path("d/sets.yaml"), bad[i]), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), bad[i]));
    }
    scratch_close();
}

/* It would be read by each rank. */
TEST(a_pipe_is_no_data_set)
{
    static const char *const files[][2] = {
        {"dataset_info.json", "{\"d\": {\"file_name\": \"rows.jsonl\"}}"},
        {"sets.yaml", "d: {path: rows.jsonl, source: local, converter: alpaca}\n"},
    };
    struct st_dataset d;

    scratch_open();
    assert_int_equal(mkfifo(scratch_path("rows.jsonl"), 0600), 0);
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) {
        scratch_put(files[i][0], files[i][1]);
        assert_int_equal(st_dataset_open(&d, scratch_path(files[i][0]), "d"), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), "rows.jsonl is a pipe, which can be read once: make a file of it"));
    }
    scratch_close();
}

/* Keys that mean something else than rows of text on this machine, each by its name. */
TEST(dataset_info_refuses_other_kinds)
{
    static const char *const entries[] = {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"};
    static const char *const columns[] = {"images", "videos", "audios", "chosen", "rejected", "kto_tag"};
    enum { ENTRIES = sizeof(entries) / sizeof(entries[0]), COLUMNS = sizeof(columns) / sizeof(columns[0]) };
    struct st_dataset d;
    char text[256];

    scratch_open();
    for (size_t i = 0; i < ENTRIES + COLUMNS; i++) {
        const char *key = i < ENTRIES ? entries[i] : columns[i - ENTRIES];

        snprintf(text, sizeof(text),
                 i < ENTRIES ? "{\"d\": {\"file_name\": \"x.json\", \"%s\": \"y\"}}"
                             : "{\"d\": {\"file_name\": \"x.json\", \"columns\": {\"%s\": \"y\"}}}",
                 key);
        scratch_put("dataset_info.json", text);
        assert_int_equal(st_dataset_open(&d, scratch_path("dataset_info.json"), "d"), STRATA_E_INPUT);
        assert_non_null(strstr(strata_last_error(), key));
        assert_int_equal(i == 0, strstr(strata_last_error(), "load_dataset('y', split='train').to_json(") != NULL);
    }
    scratch_close();
}

/* The ids that stay of these turns (sources and targets), of the turns in this order or, with from_last, in the other one, so
 * that the same turns come first. */
static void check_truncated(const uint32_t turns[][2], const uint32_t kept[][2], uint32_t count, uint64_t most, bool from_last)
{
    uint32_t ids[64], want[64];
    uint8_t trained[64];
    uint64_t total = 0, stay = 0;

    for (uint32_t n = 0; n < count; n++) {
        const uint32_t t = from_last ? count - 1 - n : n;

        if (from_last && turns[t][0] * turns[t][1] == 0)
            return; /* in the other order its half is of the next turn */
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t i = 0; i < turns[t][half]; i++) {
                if (i < kept[t][half])
                    want[stay++] = (uint32_t)total;
                ids[total] = (uint32_t)total;
                trained[total++] = (uint8_t)half;
            }
    }
    assert_int_equal((from_last ? st_truncate_turns_from_last : st_truncate_turns)(ids, trained, total, most), stay);
    assert_memory_equal(ids, want, stay * sizeof(ids[0]));
}

/* Kept of each turn, as LLaMA-Factory's supervised processor keeps it. */
TEST(turns_are_truncated_as_infer_seqlen_says)
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

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        check_truncated(cases[c].turns, cases[c].kept, cases[c].count, cases[c].most, false);
        check_truncated(cases[c].turns, cases[c].kept, cases[c].count, cases[c].most, true);
    }
}
