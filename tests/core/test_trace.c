/* tests/core/test_trace.c - the recorder's limits, and the file: valid, in order, escaped, one span at a time on a row. */
#include "core/trace/trace.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "core/json/json.h"
#include "tests/common/json_member.h"
#include "tests/common/scratch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MILLISECOND 1000000u

static char file_name[64];

/* Three items: 0 computes, 1 and 2 read; 0 waits for 1 of this cycle and 2 of the previous one, 2 for nothing. */
static void describe(void *ctx, uint32_t item, struct st_trace_item *out)
{
    static const char *const names[] = {"a \"quoted\"\\\n\x01 name", "read \xff", "read"};

    assert_ptr_equal(ctx, scratch_dir);
    *out = (struct st_trace_item){.name = names[item],
                                  .row = item == 0 ? 0 : 1,
                                  .bytes = item == 0 ? 0 : 3000,
                                  .args = {{"page", 7 + item}},
                                  .arg_count = 1};
}

static void describe_in_one_row(void *ctx, uint32_t item, struct st_trace_item *out)
{
    describe(ctx, item, out);
    out->row = 1;
}

static uint32_t wait_of(void *ctx, uint32_t item, uint32_t n, bool *previous)
{
    (void)ctx;
    *previous = n == 1;
    return item != 0 || n > 1 ? ST_TRACE_NONE : n + 1;
}

/* Two calls: one whose work is known, and one without. */
static void describe_call(void *ctx, uint32_t call, struct st_trace_call *out)
{
    assert_ptr_equal(ctx, scratch_dir);
    *out = call == 0 ? (struct st_trace_call){.name = "matmul", .detail = "2x3x4", .bytes = 5e6, .flops = 8e9}
                     : (struct st_trace_call){.name = "add", .detail = "9"};
}

static const struct st_trace_row rows[] = {{"compute", ST_TRACE_NONE}, {"read", 0}};
static const char *const cycles[] = {"step", "flush"};
static const char *const series[] = {"read"};
static const struct st_trace_arg resident[] = {{"host", 123456789012345u}};
static const struct st_trace_source source = {.ctx = scratch_dir,
                                              .program = "test",
                                              .version = "1",
                                              .item_count = 3,
                                              .rows = rows,
                                              .row_count = 2,
                                              .cycles = cycles,
                                              .series = series,
                                              .series_count = 1,
                                              .resident = resident,
                                              .resident_count = 1,
                                              .item = describe,
                                              .wait = wait_of,
                                              .call = describe_call};

static struct st_trace *make(uint32_t steps_max, uint64_t records_per_step, uint64_t bytes_max)
{
    struct st_trace *t = NULL;

    assert_int_equal(st_trace_create(&t, &(struct st_trace_opts){steps_max, records_per_step, bytes_max}), STRATA_OK);
    return t;
}

static void span(struct st_trace *t, uint32_t item, uint64_t from_ms, uint64_t to_ms)
{
    st_trace_end(st_trace_begin(t, ST_TRACE_ITEM, item, ST_TRACE_NONE, from_ms * MILLISECOND), to_ms * MILLISECOND);
}

/* Into a file that was begun, which then has its name. */
static strata_status write_file(const struct st_trace *t, const struct st_trace_source *from, struct st_new_file *file)
{
    strata_status st = st_new_file_stream(file);

    if (st == STRATA_OK)
        st = st_trace_write(t, from, file->stream);
    if (st == STRATA_OK)
        return st_new_file_commit(file);
    st_new_file_abort(file);
    return st;
}

static st_json *write_from(const struct st_trace *t, const struct st_trace_source *from)
{
    st_json *root = NULL;
    struct st_new_file file;

    assert_int_equal(st_new_file_create(&file, file_name, 0), STRATA_OK);
    assert_int_equal(write_file(t, from, &file), STRATA_OK);
    assert_int_equal(scratch_entries(scratch_dir, "t.json"), 0);
    assert_int_equal(st_json_parse_file(&root, file_name, 1 << 20), STRATA_OK);
    assert_int_equal(unlink(file_name), 0);
    return root;
}

static st_json *write_and_parse(const struct st_trace *t)
{
    return write_from(t, &source);
}

/* The n-th event of a phase, optionally of a category; NULL: fewer. */
static const st_json *event(const st_json *root, const char *phase, const char *category, unsigned n)
{
    for (const st_json *e = st_json_first(st_json_get(root, "traceEvents")); e != NULL; e = st_json_next(e))
        if (strcmp(json_text(e, "ph"), phase) == 0 && (category == NULL || strcmp(json_text(e, "cat"), category) == 0) &&
            n-- == 0)
            return e;
    return NULL;
}

static const char *row_name(const st_json *root, double thread)
{
    const st_json *e;

    for (unsigned n = 0; (e = event(root, "M", NULL, n)) != NULL; n++)
        if (strcmp(json_text(e, "name"), "thread_name") == 0 && json_number(e, "tid") == thread)
            return json_text(st_json_get(e, "args"), "name");
    return NULL;
}

static void check_span(const st_json *root, unsigned n, const char *row, double ts_ms, double dur_ms)
{
    const st_json *e = event(root, "X", "op", n);

    assert_non_null(e);
    assert_string_equal(row_name(root, json_number(e, "tid")), row);
    assert_true(json_number(e, "ts") == ts_ms * 1e3 && json_number(e, "dur") == dur_ms * 1e3);
}

TEST(an_empty_trace_is_a_file)
{
    struct st_trace *t = make(2, 4, 1 << 20);
    st_json *root;

    root = write_and_parse(t);
    assert_null(event(root, "X", NULL, 0));
    assert_true(json_number(st_json_get(root, "otherData"), "steps_run") == 0);
    st_json_free(root);
    st_trace_destroy(t);
}

TEST(spans_are_named_ordered_and_counted)
{
    struct st_trace *t = make(2, 8, 1 << 20);
    struct st_trace_record *cycle = st_trace_cycle(t, 1, 0, 10 * MILLISECOND);
    const st_json *args, *stall;
    st_json *root;

    span(t, 1, 10, 13);
    span(t, 2, 11, 12); /* while 1 runs: next row */
    st_trace_end(st_trace_begin(t, ST_TRACE_STALL, 0, 1, 11 * MILLISECOND), 13 * MILLISECOND);
    span(t, 0, 13, 14);
    st_trace_end(cycle, 15 * MILLISECOND);
    root = write_and_parse(t);
    check_span(root, 0, "read", 0, 3);
    check_span(root, 1, "read 2", 1, 1);
    check_span(root, 2, "compute", 3, 1);
    assert_null(event(root, "X", "op", 3));
    assert_string_equal(json_text(event(root, "X", "op", 2), "name"), "a \"quoted\"\\\n\x01 name");
    assert_string_equal(json_text(event(root, "X", "op", 0), "name"), "read \xef\xbf\xbd");
    args = st_json_get(event(root, "X", "op", 0), "args");
    assert_true(json_number(args, "page") == 8 && json_number(args, "bytes") == 3000 && json_number(args, "op") == 1);
    assert_true(json_number(args, "GB/s") == 1e-3 && json_number(args, "step") == 1);
    stall = event(root, "X", "stall", 0);
    assert_string_equal(json_text(stall, "name"), "waits for read");
    assert_string_equal(row_name(root, json_number(stall, "tid")), "stall");
    assert_true(json_number(stall, "dur") == 2000 && json_number(st_json_get(stall, "args"), "cause_op") == 1);
    assert_string_equal(json_text(event(root, "X", "step", 0), "name"), "step 1");
    assert_true(json_number(event(root, "X", "step", 0), "dur") == 5000);
    st_json_free(root);
    st_trace_destroy(t);
}

/* What a stall held up and what it waited for, each with its own number and name. */
TEST(a_stall_says_what_it_held_and_why)
{
    struct st_trace *t = make(1, 8, 1 << 20);
    struct st_trace_record *cycle = st_trace_cycle(t, 1, 0, 0);
    const st_json *stall, *args;
    st_json *root;

    st_trace_end(st_trace_begin(t, ST_TRACE_STALL, 0, 2, 1 * MILLISECOND), 3 * MILLISECOND);
    st_trace_end(cycle, 4 * MILLISECOND);
    root = write_and_parse(t);
    stall = event(root, "X", "stall", 0);
    args = st_json_get(stall, "args");
    assert_true(json_number(stall, "ts") == 1000 && json_number(stall, "dur") == 2000);
    assert_string_equal(json_text(args, "held"), "a \"quoted\"\\\n\x01 name");
    assert_string_equal(json_text(args, "cause"), "read");
    assert_string_equal(json_text(args, "lane"), "read");
    assert_true(json_number(args, "held_op") == 0 && json_number(args, "cause_op") == 2);
    assert_true(json_number(args, "page") == 9 && json_number(args, "step") == 1);
    st_json_free(root);
    st_trace_destroy(t);
}

static void check_call(const st_json *root, unsigned n, double ts_us, double dur_us, double us)
{
    const st_json *call = event(root, "X", "call", n), *args = st_json_get(call, "args");

    assert_string_equal(row_name(root, json_number(call, "tid")), "compute");
    assert_true(json_number(call, "ts") == ts_us && json_number(call, "dur") == dur_us);
    assert_true(json_number(args, "us") == us && json_number(args, "op") == 0 && json_number(args, "step") == 1);
}

/* Calls lie inside the span of their item, are measured whole, and are left out where their item was not recorded. */
TEST(calls_lie_within_their_item)
{
    struct st_trace *t = make(1, 8, 1 << 20);
    struct st_trace_record *cycle = st_trace_cycle(t, 1, 0, 0);
    const st_json *args;
    st_json *root;

    span(t, 0, 1, 9);
    st_trace_end(st_trace_begin(t, ST_TRACE_CALL, 0, 0, 2 * MILLISECOND), 4 * MILLISECOND);
    st_trace_end(st_trace_begin(t, ST_TRACE_CALL, 1, 0, 8 * MILLISECOND), 11 * MILLISECOND);
    st_trace_end(st_trace_begin(t, ST_TRACE_CALL, 1, 1, 8 * MILLISECOND), 9 * MILLISECOND);
    st_trace_end(cycle, 12 * MILLISECOND);
    root = write_and_parse(t);
    check_call(root, 0, 2000, 2000, 2000);
    check_call(root, 1, 8000, 1000, 3000);
    assert_null(event(root, "X", "call", 2));
    assert_string_equal(json_text(event(root, "X", "call", 0), "name"), "matmul");
    args = st_json_get(event(root, "X", "call", 0), "args");
    assert_string_equal(json_text(args, "shape"), "2x3x4");
    assert_true(json_number(args, "GB/s") == 2.5 && json_number(args, "TFLOP/s") == 4);
    args = st_json_get(event(root, "X", "call", 1), "args");
    assert_null(st_json_get(args, "GB/s"));
    assert_null(st_json_get(args, "TFLOP/s"));
    st_json_free(root);
    st_trace_destroy(t);
}

/* Bytes in flight: 0, up at each begin, down at each end, in time's order, back to 0. */
TEST(bytes_in_flight_rise_and_fall)
{
    static const double want[][2] = {{0, 3000}, {1, 6000}, {2, 3000}, {3, 0}};
    struct st_trace *t = make(1, 8, 1 << 20);
    unsigned seen = 0, constant = 0;
    const st_json *e;
    st_json *root;

    st_trace_end(st_trace_cycle(t, 1, 0, 0), 4 * MILLISECOND);
    span(t, 1, 0, 3);
    span(t, 2, 1, 2);
    root = write_and_parse(t);
    for (unsigned n = 0; (e = event(root, "C", NULL, n)) != NULL; n++) {
        if (strcmp(json_text(e, "name"), "resident host") == 0) {
            assert_true(json_number(st_json_get(e, "args"), "bytes") == 123456789012345.0);
            assert_true(json_number(e, "ts") == (constant == 0 ? 0 : 4e3)); /* a line from the beginning to the end */
            constant++;
            continue;
        }
        assert_string_equal(json_text(e, "name"), "bytes in flight");
        assert_true(seen < 4 && json_number(e, "ts") == want[seen][0] * 1e3);
        assert_true(json_number(st_json_get(e, "args"), "read") == want[seen][1]);
        seen++;
    }
    assert_int_equal(seen, 4);
    assert_int_equal(constant, 2);
    st_json_free(root);
    st_trace_destroy(t);
}

/* The last one waited for wins, be it of the previous cycle; an arrow begins and ends inside its spans. */
TEST(arrows_lead_from_the_last_one_waited_for)
{
    struct st_trace *t = make(2, 8, 1 << 20);
    st_json *root;

    st_trace_end(st_trace_cycle(t, 1, 0, 0), 5 * MILLISECOND);
    span(t, 1, 0, 1);
    span(t, 0, 1, 2); /* waits for 1 */
    span(t, 2, 2, 8); /* beyond the step's end */
    st_trace_end(st_trace_cycle(t, 2, 0, 5 * MILLISECOND), 9 * MILLISECOND);
    span(t, 1, 5, 6);
    span(t, 0, 8, 9); /* waits for 2 of the step before */
    root = write_and_parse(t);
    assert_true(json_number(event(root, "s", NULL, 0), "ts") == 999.999);
    assert_true(json_number(event(root, "f", NULL, 0), "ts") == 1000);
    assert_true(json_number(event(root, "s", NULL, 1), "ts") == 7999.999);
    assert_true(json_number(event(root, "f", NULL, 1), "ts") == 8000);
    assert_true(json_number(event(root, "s", NULL, 1), "tid") == json_number(event(root, "X", "op", 2), "tid"));
    assert_true(json_number(event(root, "f", NULL, 1), "tid") == json_number(event(root, "X", "op", 4), "tid"));
    assert_true(json_number(event(root, "s", NULL, 1), "id") == json_number(event(root, "f", NULL, 1), "id"));
    assert_true(json_number(event(root, "s", NULL, 0), "id") != json_number(event(root, "s", NULL, 1), "id"));
    assert_null(event(root, "s", NULL, 2));
    st_json_free(root);
    st_trace_destroy(t);
}

/* An arrow tells what held a span up elsewhere: what stands in the same row, on whichever of its threads, is seen without one. */
TEST(no_arrow_stays_within_a_row)
{
    struct st_trace_source in_one_row = source;
    struct st_trace *t = make(1, 8, 1 << 20);
    unsigned arrows[2];
    st_json *root;

    in_one_row.item = describe_in_one_row;
    st_trace_end(st_trace_cycle(t, 1, 0, 0), 9 * MILLISECOND);
    span(t, 2, 0, 2);
    span(t, 1, 1, 3); /* beside 2: on the row's second thread */
    span(t, 0, 4, 5); /* waits for 1, and has the row's first one */
    for (int i = 0; i < 2; i++) {
        root = write_from(t, i == 0 ? &source : &in_one_row);
        for (arrows[i] = 0; event(root, "s", NULL, arrows[i]) != NULL;)
            arrows[i]++;
        st_json_free(root);
    }
    assert_int_equal(arrows[0], 1);
    assert_int_equal(arrows[1], 0);
    st_trace_destroy(t);
}

/* Where a viewer puts a thread: those of a row together, in its order, below those of the rows before. */
TEST(rows_are_sorted_as_the_source_lists_them)
{
    static const char *const wanted[] = {"step", "stall", "compute", "compute 2", "compute 3", "read", "read 2"};
    const size_t count = sizeof(wanted) / sizeof(wanted[0]);
    double before = -1, after;
    struct st_trace *t = make(1, 8, 1 << 20);
    const st_json *e;
    st_json *root;

    st_trace_end(st_trace_cycle(t, 1, 0, 0), 9 * MILLISECOND);
    for (uint32_t i = 0; i < 3; i++) {
        span(t, 1, i, 8);
        span(t, 0, i, 8);
    }
    root = write_and_parse(t);
    for (size_t i = 0; i < count; i++, before = after) {
        unsigned n = 0;

        while ((e = event(root, "M", NULL, n++)) != NULL && (strcmp(json_text(e, "name"), "thread_sort_index") != 0 ||
                                                             strcmp(row_name(root, json_number(e, "tid")), wanted[i]) != 0))
            ;
        assert_non_null(e);
        after = json_number(st_json_get(e, "args"), "sort_index");
        assert_true(after > before);
    }
    st_json_free(root);
    st_trace_destroy(t);
}

/* Spans at the same time stand on threads of their own, however many; later ones on the first that is free. */
TEST(crowded_rows_get_more_threads)
{
    enum { AT_ONCE = 150 };
    struct st_trace *t = make(1, AT_ONCE + 2, 1 << 20);
    char name[32] = "read";
    st_json *root;

    st_trace_end(st_trace_cycle(t, 1, 0, 0), 900 * MILLISECOND);
    for (unsigned i = 0; i < AT_ONCE; i++)
        span(t, 2, i, 800 - i);
    span(t, 2, 800 - AT_ONCE + 1, 850); /* when the last has ended */
    root = write_and_parse(t);
    for (unsigned i = 0; i < AT_ONCE; i++) {
        check_span(root, i, name, i, 800 - 2 * i);
        snprintf(name, sizeof(name), "read %u", i + 2);
    }
    snprintf(name, sizeof(name), "read %u", AT_ONCE);
    check_span(root, AT_ONCE, name, 800 - AT_ONCE + 1, 850 - (800 - AT_ONCE + 1));
    assert_null(event(root, "X", "op", AT_ONCE + 1));
    st_json_free(root);
    st_trace_destroy(t);
}

TEST(what_never_finished_is_left_out)
{
    struct st_trace *t = make(1, 8, 1 << 20);
    st_json *root;

    assert_non_null(st_trace_cycle(t, 1, 0, 0));
    assert_non_null(st_trace_begin(t, ST_TRACE_ITEM, 1, ST_TRACE_NONE, 1));
    span(t, 0, 1, 2);
    root = write_and_parse(t);
    check_span(root, 0, "compute", 1, 1);
    assert_null(event(root, "X", NULL, 1));
    assert_null(event(root, "s", NULL, 0));
    st_json_free(root);
    st_trace_destroy(t);
}

/* --- limits --- */

TEST(steps_end_and_flushes_with_them)
{
    struct st_trace *t = make(2, 8, 1 << 20);
    struct st_trace_count count;

    assert_null(st_trace_cycle(t, 0, 1, 1)); /* before the first step */
    assert_null(st_trace_begin(t, ST_TRACE_ITEM, 0, ST_TRACE_NONE, 1));
    assert_non_null(st_trace_cycle(t, 1, 0, 2));
    st_trace_pause(t);
    assert_null(st_trace_begin(t, ST_TRACE_ITEM, 0, ST_TRACE_NONE, 3));
    assert_non_null(st_trace_cycle(t, 1, 0, 4));
    assert_non_null(st_trace_cycle(t, 0, 1, 5));
    assert_non_null(st_trace_begin(t, ST_TRACE_ITEM, 0, ST_TRACE_NONE, 6));
    assert_null(st_trace_cycle(t, 1, 0, 7));
    assert_null(st_trace_cycle(t, 0, 1, 8));
    assert_null(st_trace_begin(t, ST_TRACE_ITEM, 0, ST_TRACE_NONE, 9));
    assert_null(st_trace_begin(NULL, ST_TRACE_ITEM, 0, ST_TRACE_NONE, 9));
    st_trace_count(t, &count);
    assert_int_equal(count.steps_seen, 3);
    assert_int_equal(count.steps_recorded, 2);
    assert_int_equal(count.records, 4);
    assert_int_equal(count.dropped, 0);
    assert_int_equal(st_trace_at(t, 3)->start_ns, 6);
    st_trace_destroy(t);
}

TEST(a_full_array_counts_what_is_lost)
{
    struct st_trace *t = make(1, 3, 1 << 20);
    struct st_trace_count count;
    st_json *root;

    st_trace_end(st_trace_cycle(t, 1, 0, 0), 9 * MILLISECOND);
    for (uint64_t i = 0; i < 5; i++)
        span(t, 0, i, i + 1);
    st_trace_count(t, &count);
    assert_int_equal(count.records, 3);
    assert_int_equal(count.dropped, 3);
    root = write_and_parse(t);
    check_span(root, 1, "compute", 1, 1);
    assert_null(event(root, "X", "op", 2));
    assert_true(json_number(st_json_get(root, "otherData"), "records_dropped") == 3);
    st_json_free(root);
    st_trace_destroy(t);
}

/* Every count of the file under its own name: of more steps than are kept, and of fewer. */
TEST(counts_are_told_apart)
{
    static const double wanted[][6] = {{6, 6, 4, 4, 12, 8}, {2, 2, 2, 4, 10, 0}}; /* steps, then what the file says */
    static const char *const keys[] = {"steps_run", "steps_recorded", "steps_recorded_at_most", "records", "records_dropped"};

    for (size_t n = 0; n < sizeof(wanted) / sizeof(wanted[0]); n++) {
        struct st_trace *t = make(4, 3, 1 << 20);
        const st_json *other;
        st_json *root;

        for (uint64_t step = 0; step < (uint64_t)wanted[n][0]; step++) {
            st_trace_end(st_trace_cycle(t, (uint32_t)step + 1, 0, 10 * step * MILLISECOND), 10 * (step + 1) * MILLISECOND);
            for (uint64_t i = 0; i < 4; i++)
                span(t, 0, 10 * step + i, 10 * step + i + 1);
        }
        root = write_and_parse(t);
        other = st_json_get(root, "otherData");
        assert_string_equal(json_text(other, "program"), "test");
        assert_string_equal(json_text(other, "version"), "1");
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
            assert_true(json_number(other, keys[k]) == wanted[n][k + 1]);
        st_json_free(root);
        st_trace_destroy(t);
    }
}

/* Fewer steps rather than more bytes; one step always. */
TEST(bytes_are_bounded)
{
    static const struct {
        uint32_t steps;
        uint64_t per_step, bytes_max, want_steps;
    } table[] = {{50, 10, 1 << 20, 50}, {50, 1000, 3200 * sizeof(struct st_trace_record), 3}, {50, 1000, 100, 1}, {1, 1, 0, 1}};

    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        struct st_trace *t = make(table[i].steps, table[i].per_step, table[i].bytes_max);
        struct st_trace_count count;

        st_trace_count(t, &count);
        assert_int_equal(count.steps_max, table[i].want_steps);
        assert_int_equal(count.bytes, table[i].want_steps * table[i].per_step * sizeof(struct st_trace_record));
        st_trace_destroy(t);
    }
}

/* What was taken before is given back: the end of the test program counts it. */
TEST(too_many_records_are_refused)
{
    struct st_trace *t = NULL;

    assert_int_equal(st_trace_create(&t, &(struct st_trace_opts){1, UINT64_C(1) << 50, 1 << 20}), STRATA_E_NOMEM);
    assert_null(t);
}

/* --- the file system --- */

TEST(a_failed_write_leaves_the_old_file)
{
    static const char *const sites[] = {"file.stream", "file.flush", "file.rename"};
    struct st_trace *t = make(1, 3, 1 << 20);
    struct st_new_file file;
    struct stat info;

    for (size_t i = 0; i < sizeof(sites) / sizeof(sites[0]); i++) {
        scratch_put("t.json", "");
        assert_int_equal(st_new_file_create(&file, file_name, ST_NEW_FILE_OVERWRITE), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -ENOSPC});
        assert_int_equal(write_file(t, &source, &file), STRATA_E_NOSPC);
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(scratch_entries(scratch_dir, "t.json"), 0);
        assert_true(stat(file_name, &info) == 0 && info.st_size == 0);
    }
    unlink(file_name);
    st_trace_destroy(t);
}

static int setup(void **state)
{
    if (scratch_create(state) != 0)
        return -1;
    snprintf(file_name, sizeof(file_name), "%s/t.json", scratch_dir);
    return 0;
}

TEST_GROUP(setup, scratch_remove_empty);
