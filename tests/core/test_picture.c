/* test_picture - lanes, tiers and text as SVG; one step of a trace file, and what a bad one is told. */
#include "core/picture/tiers.h"
#include "core/picture/trace_read.h"
#include "tests/common/test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define BASE                                                                                                                     \
    "{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":1,\"args\":{\"name\":\"step\"}},"                                            \
    "{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":2,\"args\":{\"name\":\"stall\"}},"                                           \
    "{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":3,\"args\":{\"name\":\"compute\"}},"                                         \
    "{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":4,\"args\":{\"name\":\"write\"}},"                                           \
    "{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":5,\"args\":{\"name\":\"write 2\"}}"
#define STEP ",{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"step 1\",\"tid\":1,\"ts\":1000,\"dur\":10000,\"args\":{\"step\":1}}"

/* A span of a category, in a row, from microsecond to microsecond. */
#define SPAN(cat, name, tid, ts, dur)                                                                                            \
    ",{\"ph\":\"X\",\"cat\":\"" cat "\",\"name\":\"" name "\",\"tid\":" #tid ",\"ts\":" #ts ",\"dur\":" #dur ",\"args\":{}}"

static strata_status read_text(struct st_trace_step *step, const char *text, uint64_t number)
{
    const int fd = memfd_create("trace", MFD_CLOEXEC);
    char path[64];
    strata_status st;

    assert_true(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
    st = st_trace_step_read(step, path, number);
    close(fd);
    return st;
}

static void read_events(struct st_trace_step *step, const char *events)
{
    char text[8192];

    snprintf(text, sizeof(text), "{\"traceEvents\":[" BASE STEP "%s]}", events);
    if (read_text(step, text, 0) != STRATA_OK)
        fail_msg("%s", strata_last_error());
}

/* The SVG of lanes; the caller frees. */
static char *draw(struct st_lanes *lanes)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_svg svg;

    assert_non_null(file);
    st_svg_begin(&svg, file, 1100, st_lanes_height(lanes), "t", "d");
    st_lanes_draw(&svg, lanes, 0);
    st_svg_end(&svg);
    assert_int_equal(fclose(file), 0);
    return text;
}

static char *draw_events(const char *events)
{
    struct st_trace_step step;
    char *svg;

    read_events(&step, events);
    svg = draw(&step.lanes);
    st_trace_step_free(&step);
    return svg;
}

static void assert_has(const char *text, const char *part)
{
    if (strstr(text, part) == NULL)
        fail_msg("\"%s\" is not in: %s", part, text);
}

/* --- traces --- */

TEST(rows_of_a_lane_share_it)
{
    struct st_trace_step step;
    char *svg;

    read_events(&step, SPAN("op", "write_state", 4, 2000, 2000) SPAN("op", "write_weight", 5, 2500, 1000)
                           SPAN("op", "write_weight", 5, 3600, 300));
    assert_int_equal(step.lanes.count, 3);
    assert_string_equal(step.lanes.names[0], "stall");
    assert_string_equal(step.lanes.names[2], "write");
    assert_int_equal(step.lanes.span_count, 3);
    assert_int_equal(step.lanes.spans[1].lane, 2);
    assert_int_equal(step.lanes.spans[1].thread, 1);
    svg = draw(&step.lanes);
    assert_has(svg, "<g data-name='write' data-busy='0.002'>"); /* at the same time counts once */
    free(svg);
    st_trace_step_free(&step);
}

TEST(spans_are_cut_to_the_step)
{
    struct st_trace_step step;

    read_events(&step, SPAN("op", "block_forward", 3, 0, 1500) SPAN("op", "block_backward", 3, 10500, 5000)
                           SPAN("op", "end", 3, 20000, 10));
    assert_int_equal(step.lanes.span_count, 2);
    assert_true(step.lanes.spans[0].start == 0 && step.lanes.spans[0].end == 500 * 1e-6);
    assert_true(step.lanes.spans[1].start == 9500 * 1e-6 && step.lanes.spans[1].end == 10000 * 1e-6);
    assert_int_equal(step.lanes.spans[0].kind, ST_SPAN_FORWARD);
    assert_int_equal(step.lanes.spans[1].kind, ST_SPAN_BACKWARD);
    st_trace_step_free(&step);
}

TEST(a_stall_names_its_cause)
{
    char *svg = draw_events(",{\"ph\":\"X\",\"cat\":\"stall\",\"name\":\"waits\",\"tid\":2,\"ts\":2000,\"dur\":4000,"
                            "\"args\":{\"lane\":\"write\"}}" SPAN("stall", "waits", 2, 7000, 2000));

    assert_has(svg, "step 1: 10 ms; stalls: write 4 ms, transfers 2 ms");
    assert_has(svg, "fill='" ST_SVG_VERMILLION "'");
    assert_has(svg, "class='label'>write</text>"); /* in the row of stalls */
    assert_has(svg, "waits for write: 1 ms to 5 ms");
    assert_has(svg, "class='held'");
    free(svg);
    svg = draw_events("");
    assert_has(svg, "; stalls: none");
    free(svg);
}

TEST(a_step_is_chosen)
{
    static const char text[] =
        "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n" BASE STEP
        ",\n{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"step 2\",\"tid\":1,\"ts\":20000,\"dur\":1,\"args\":{\"step\":2}}"
        ",{\"ph\":\"X\",\"cat\":\"step\",\"name\":\"flush\",\"tid\":1,\"ts\":30000,\"dur\":1,\"args\":{\"step\":0}}]}";
    struct st_trace_step step;

    assert_int_equal(read_text(&step, text, 0), STRATA_OK);
    assert_int_equal(step.number, 2);
    st_trace_step_free(&step);
    assert_int_equal(read_text(&step, text, 1), STRATA_OK);
    assert_true(step.lanes.seconds == 10000 * 1e-6);
    st_trace_step_free(&step);
    assert_int_equal(read_text(&step, text, 3), STRATA_E_INPUT);
    assert_has(strata_last_error(), "step 3 is not recorded; there are 1 to 2");
}

/* What only touches the step is a neighbour's; a span of no length is drawn nowhere. */
TEST(spans_beside_the_step_are_left_out)
{
    struct st_trace_step step;

    read_events(&step, SPAN("op", "block_forward", 3, 500, 500) SPAN("op", "end", 3, 11000, 700)
                           SPAN("op", "block_forward", 3, 999, 2) SPAN("op", "end", 3, 10999, 2) SPAN("op", "end", 3, 5000, 0));
    assert_int_equal(step.lanes.span_count, 2);
    assert_true(step.lanes.spans[0].start == 0 && step.lanes.spans[0].end == 1e-6);
    assert_true(step.lanes.spans[1].end == 10000 * 1e-6);
    st_trace_step_free(&step);
}

/* The last step is the one with the highest number, in whatever order a file has them: tools that join traces sort otherwise. */
TEST(steps_come_in_any_order)
{
#define NUMBERED(n, ts) ",{\"ph\":\"X\",\"cat\":\"step\",\"tid\":1,\"ts\":" #ts ",\"dur\":" #ts ",\"args\":{\"step\":" #n "}}"
    static const char text[] = "\t{\r\n\"traceEvents\" :\r\n[\t" BASE "\r\n" NUMBERED(3, 3000) NUMBERED(5, 5000)
        NUMBERED(2, 2000) "\t" NUMBERED(4, 4000) "\r\n] \r\n}\t\r\n";
    static const uint64_t wanted[][2] = {{0, 5}, {2, 2}, {3, 3}, {4, 4}, {5, 5}};
    struct st_trace_step step;

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        assert_int_equal(read_text(&step, text, wanted[i][0]), STRATA_OK);
        assert_int_equal(step.number, wanted[i][1]);
        assert_true(step.lanes.seconds == (double)wanted[i][1] * 1000 * 1e-6);
        st_trace_step_free(&step);
    }
    assert_int_equal(read_text(&step, text, 1), STRATA_E_INPUT);
    assert_has(strata_last_error(), "step 1 is not recorded; there are 2 to 5");
#undef NUMBERED
}

/* Each is refused, with the place where something is wrong. */
TEST(bad_traces_are_told_where)
{
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"", ":1:1: no trace: expected '{'"},
        {"[]", ":1:1: no trace: expected '{'"},
        {"{}", "no trace: there are no traceEvents"},
        {"{\"a\":1,}", ":1:8: "},
        {"{\"traceEvents\":7}", ":1:16: traceEvents is no list of events"},
        {"{\"traceEvents\":[\n 3]}", ":2:2: traceEvents is no list of events"},
        {"{\"traceEvents\":[{}\n{}]}", ":2:1: expected ',' or ']' after an event"},
        {"{\"traceEvents\":[{},\n {\"a\":tru}]}", ":2:7: "},
        {"{\"traceEvents\":[{\"a\":1,\"a\":2}]}", "duplicate key \"a\""},
        {"{\"traceEvents\":[{\"a\":\"", ":1:"},
        {"{\"traceEvents\":[{\"a\":[}]}]}", ":1:"},
        {"{\"traceEvents\":[]}x", ":1:19: bytes behind the end"},
        {"{\"traceEvents\":[],\"traceEvents\":[]}", ":1:19: traceEvents is there twice"},
        {"{\"traceEvents\":[" BASE "]}", "no step is recorded"},
        {"{\"traceEvents\":[\n{\"ph\":\"X\",\"cat\":\"step\"}]}", ":2:1: a step lacks its number"},
        {"{\"traceEvents\":[\n{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":-1}]}", ":2:1: an event of a row lacks"},
        {"{\"traceEvents\":[" BASE STEP ",\n{\"ph\":\"X\",\"cat\":\"op\",\"tid\":3,\"ts\":1,\"dur\":-1}]}", ":2:1: a span lacks"},
        {"{\"traceEvents\":[" BASE STEP ",\n{\"ph\":\"X\",\"cat\":\"op\",\"tid\":77,\"ts\":2000,\"dur\":1}]}",
         ":2:1: a span lies in a row without a name"},
    };
    struct st_trace_step step;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const strata_status st = read_text(&step, cases[i].text, 0);

        if (st != STRATA_E_INPUT && st != STRATA_E_CONFIG)
            fail_msg("case %zu: %d", i, st);
        assert_has(strata_last_error(), cases[i].says);
        assert_null(step.lanes.spans);
    }
}

TEST(an_event_has_a_limit)
{
    char *text = malloc(ST_TRACE_EVENT_MAX + 100);
    struct st_trace_step step;

    assert_non_null(text);
    memset(text, 'x', ST_TRACE_EVENT_MAX + 99);
    memcpy(text, "{\"traceEvents\":[{\"", 18);
    text[ST_TRACE_EVENT_MAX + 99] = '\0';
    assert_int_equal(read_text(&step, text, 0), STRATA_E_INPUT);
    assert_has(strata_last_error(), ":1:17: a value has more than 64 KiB");
    free(text);
}

/* As many rows as are allowed, each named and placed by an event of its own: all are known, in their order; one more is refused.
 */
TEST(rows_have_a_limit)
{
    for (unsigned rows = ST_TRACE_THREADS_MAX; rows <= ST_TRACE_THREADS_MAX + 1; rows++) {
        struct st_trace_step step;
        char *text = NULL;
        size_t bytes = 0;
        FILE *file = open_memstream(&text, &bytes);

        assert_non_null(file);
        fprintf(file, "{\"traceEvents\":[");
        for (unsigned i = 0; i < rows; i++)
            fprintf(file,
                    "{\"ph\":\"M\",\"name\":\"thread_name\",\"tid\":%u,\"args\":{\"name\":\"%s %u\"}},"
                    "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"tid\":%u,\"args\":{\"sort_index\":%u}},",
                    i, i % 2 == 0 ? "read" : "write", i / 2 + 2, i, 5000 - i);
        fprintf(file, "%s]}", &(STEP SPAN("op", "x", 0, 2000, 1000) SPAN("op", "x", 1023, 2000, 1000))[1]);
        assert_int_equal(fclose(file), 0);
        if (rows > ST_TRACE_THREADS_MAX) {
            assert_int_equal(read_text(&step, text, 0), STRATA_E_INPUT);
            assert_has(strata_last_error(), "more than 1024 rows");
        } else {
            assert_int_equal(read_text(&step, text, 0), STRATA_OK);
            assert_int_equal(step.lanes.count, 2);
            assert_string_equal(step.lanes.names[0], "write"); /* that of row 1023 */
            assert_string_equal(step.lanes.names[1], "read");
            assert_int_equal(step.lanes.span_count, 2);
            st_trace_step_free(&step);
        }
        free(text);
    }
}

/* --- drawing --- */

static size_t count_of(const char *text, const char *part)
{
    size_t count = 0;

    while ((text = strstr(text, part)) != NULL) {
        text += strlen(part);
        count++;
    }
    return count;
}

#define MANY 100000u
TEST(many_small_spans_stay_small)
{
    struct st_lane_span *spans = calloc(MANY, sizeof(*spans));
    const char *names[] = {"compute"};
    struct st_lanes lanes = {"a", MANY * 1e-7, names, 1, ST_NO_LANE, spans, MANY};
    char *svg;

    assert_non_null(spans);
    for (uint32_t i = 0; i < MANY; i++)
        spans[MANY - 1 - i] =
            (struct st_lane_span){i * 1e-7, (i + 0.9) * 1e-7, 0.9e-7, 0, 0, 1, ST_NO_LANE, ST_SPAN_FORWARD, "block_forward"};
    svg = draw(&lanes);
    assert_true(strlen(svg) < 10000);
    assert_has(svg, ">90 %</text>");
    assert_has(svg, "block_forward, 100000 of them: 0 us to 10 ms, in all 9 ms");
    free(svg);
    free(spans);
}

/* Two reads that touch are one, a write beside them is another; what ran a quarter of the time is paler. */
TEST(only_what_is_alike_is_merged)
{
    struct st_lane_span spans[] = {{0, 1, 1, 0, 0, 1, ST_NO_LANE, ST_SPAN_READ, "read_state"},
                                   {1, 2, 1, 0, 0, 1, ST_NO_LANE, ST_SPAN_READ, "read_act"},
                                   {2, 3, 1, 0, 0, 1, ST_NO_LANE, ST_SPAN_WRITE, "write_act"},
                                   {3, 4, 0.25, 0, 0, 9, ST_NO_LANE, ST_SPAN_COPY, NULL}};
    const char *names[] = {"lane"};
    struct st_lanes lanes = {"a", 10, names, 1, ST_NO_LANE, spans, 4};
    char *svg = draw(&lanes);

    assert_int_equal(lanes.span_count, 3);
    assert_true(spans[0].end == 2 && spans[0].count == 2 && spans[0].name == NULL);
    assert_has(svg, "<title>read, 2 of them: 0 us to 2 s, in all 2 s</title>");
    assert_has(svg, "<title>write_act: 2 s to 3 s</title>");
    assert_has(svg, "fill='" ST_SVG_PURPLE "' fill-opacity='.3'");
    assert_int_equal(count_of(svg, "fill='" ST_SVG_GREEN "' d="), 2); /* and the legend's */
    free(svg);
}

/* What one row does right after another is not the other's. */
TEST(rows_are_merged_apart)
{
    struct st_lane_span spans[] = {{0, 1, 1, 0, 0, 1, ST_NO_LANE, ST_SPAN_WRITE, "write_state"},
                                   {0.5, 1.5, 1, 0, 1, 1, ST_NO_LANE, ST_SPAN_WRITE, "write_state"},
                                   {1, 2, 1, 0, 0, 1, ST_NO_LANE, ST_SPAN_WRITE, "write_state"}};
    const char *names[] = {"write"};
    struct st_lanes lanes = {"a", 2, names, 1, ST_NO_LANE, spans, 3};
    char *svg = draw(&lanes);

    assert_int_equal(lanes.span_count, 2);
    assert_has(svg, "<title>write_state, 2 of them: 0 us to 2 s, in all 2 s</title>");
    assert_has(svg, "<title>write_state: 500 ms to 1.5 s</title>");
    free(svg);
}

TEST(names_are_escaped)
{
    const char *names[] = {"a<&>'b\"", "\x1b[31m\n\xff", "\xef\xbf\xbe"};
    struct st_lanes lanes = {"<b>", 1, names, 3, ST_NO_LANE, NULL, 0};
    char *svg = draw(&lanes);

    assert_has(svg, ">a&lt;&amp;&gt;&#39;b&quot;</text>");
    assert_has(svg, ">\\x1b[31m\\x0a\\xff</text>");
    assert_has(svg, ">\xef\xbf\xbd</text>"); /* no character of XML */
    assert_has(svg, "&lt;b&gt;: 1 s");
    assert_null(strchr(svg, '\x1b'));
    free(svg);
}

TEST(long_text_is_cut)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);
    struct st_svg svg = {file, 100, 100};

    assert_non_null(file);
    st_svg_text(&svg, 0, 0, "label", 4 * ST_SVG_LETTER, "abcdef");
    st_svg_text(&svg, -1.25, 3.04, "label", 4 * ST_SVG_LETTER, "abcd");
    st_svg_text(&svg, 0, 0, "label", 0.9 * ST_SVG_LETTER, "abcd"); /* room for none */
    st_svg_text(&svg, 7, 7, "label", ST_SVG_LETTER, "a");
    assert_int_equal(fclose(file), 0);
    assert_string_equal(text, "<text x='0' y='0' class='label'>abc\xe2\x80\xa6</text>\n"
                              "<text x='-1.3' y='3' class='label'>abcd</text>\n"
                              "<text x='7' y='7' class='label'>a</text>\n");
    free(text);
}
