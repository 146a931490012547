/* tests/cli/test_plan_ops.c - strata plan --ops: the program that a plan has, op by op. */
#include "core/json/json.h"
#include "tests/cli/program.h"
#include "tests/cli/workplace.h"
#include "tests/common/json_member.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PLAN                                                                                                                     \
    "plan --model nano --seq-len 128 --grad-accum 2 --device-memory 4M --host-memory 16M --nvme {w}/nvme "                       \
    "--set zero_optimization.stage=3 --set zero_optimization.offload_optimizer.device=nvme --set strata.cache=0 "                \
    "--set zero_optimization.offload_param.device=nvme "

struct sums {
    double upload, download, read, write; /* of ops in the body */
};

static bool in_body(const st_json *op)
{
    for (const st_json *n = st_json_first(st_json_get(op, "phases")); n != NULL; n = st_json_next(n))
        if (strcmp(st_json_string(n), "body") == 0)
            return true;
    return false;
}

/* An op waits for earlier ones alone, but in the cycle before. */
static void check_op(const st_json *op, double index, struct sums *sums)
{
    const char *lane = json_text(op, "lane");
    const double bytes = in_body(op) ? json_number(op, "bytes") : 0;

    assert_true(json_number(op, "op") == index);
    assert_non_null(st_json_first(st_json_get(op, "operands")));
    for (const st_json *n = st_json_first(st_json_get(op, "waits")); n != NULL; n = st_json_next(n))
        assert_true(st_json_bool(st_json_get(n, "previous")) || json_number(n, "op") < index);
    sums->upload += strcmp(lane, "upload") == 0 ? bytes : 0;
    sums->download += strcmp(lane, "download") == 0 ? bytes : 0;
    sums->read += strncmp(lane, "read_", 5) == 0 ? bytes : 0;
    sums->write += strcmp(lane, "write") == 0 ? bytes : 0;
}

TEST(ops_add_up_to_the_plan)
{
    const struct workplace *w = *state;
    struct sums sums = {0};
    const st_json *traffic;
    struct program p;
    double count = 0;
    st_json *root;

    workplace_run_ok(w, &p, PLAN "--ops --json");
    for (char *line = p.out, *end; (end = strchr(line, '\n')) != NULL; line = end + 1, count++) {
        assert_int_equal(st_json_parse(&root, line, (size_t)(end - line), "op"), STRATA_OK);
        check_op(root, count, &sums);
        st_json_free(root);
    }
    program_free(&p);
    workplace_run_ok(w, &p, PLAN "--json");
    assert_int_equal(st_json_parse(&root, p.out, strlen(p.out), "plan"), STRATA_OK);
    assert_true(json_number(root, "ops") == count && count > 50);
    traffic = st_json_get(root, "traffic");
    assert_true(json_number(traffic, "upload") == sums.upload && sums.upload > 0);
    assert_true(json_number(traffic, "download") == sums.download && sums.download > 0);
    assert_true(json_number(traffic, "read") == sums.read && sums.read > 0);
    assert_true(json_number(traffic, "write") == sums.write && sums.write > 0);
    st_json_free(root);
    program_free(&p);
}

static size_t count_of(const char *text, const char *word)
{
    size_t count = 0;

    for (const char *at = text; (at = strstr(at, word)) != NULL; at++)
        count++;
    return count;
}

/* A line has all operands of its op, and no other's: their tiers are the same words in both. */
TEST(text_has_the_operands_of_the_ops)
{
    static const char *const tiers[][2] = {
        {"=device:", "\"tier\":\"device\""}, {"=host:", "\"tier\":\"host\""}, {"=nvme:", "\"tier\":\"nvme\""}};
    const struct workplace *w = *state;
    struct program text, json;

    workplace_run_ok(w, &text, PLAN "--ops");
    workplace_run_ok(w, &json, PLAN "--ops --json");
    for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++) {
        const size_t wanted = count_of(json.out, tiers[i][1]);

        assert_true(wanted > 10);
        assert_int_equal(count_of(text.out, tiers[i][0]), wanted);
    }
    program_free(&text);
    program_free(&json);
}

/* The same ops as text: a heading, then a line each. */
TEST(text_names_what_an_op_touches)
{
    const struct workplace *w = *state;
    char last[32] = "";
    struct program p;
    uint32_t lines = 0;

    workplace_run_ok(w, &p, PLAN "--ops");
    for (const char *line = p.out; strchr(line, '\n') != NULL; line = strchr(line, '\n') + 1, lines++)
        snprintf(last, sizeof(last), "%.12s", line);
    assert_int_equal(strtoul(last, NULL, 10), lines - 2); /* counted from 0, below the heading */
    assert_non_null(strstr(p.out, "pb-v  block_forward"));
    assert_non_null(strstr(p.out, "-be-  update"));
    assert_non_null(strstr(p.out, " from=nvme:"));
    assert_non_null(strstr(p.out, " recompute  act=device:"));
    program_free(&p);
}

TEST(without_a_plan_there_is_none)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, "plan --model nano --ops --device-memory 4K");
    assert_int_equal(p.code, 3);
    assert_string_equal(p.out, "");
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
