/* tests/cli/test_bench_optim.c - strata bench optim at tiny sizes: a row per layout and kernel, and what its numbers say of each
 * other. */
#include "tests/cli/bench_rows.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Bytes per parameter; 8-bit moments have a scale of 4 bytes for 256 each. */
static const struct layout {
    const char *name;
    double read, written;
    bool divides;
} layouts[] = {
    {"split", 14, 12, true},
    {"full", 14, 14, true},
    {"fp32", 16, 12, true},
    {"split_bf16m", 10, 8, true},
    {"full_bf16m", 10, 10, true},
    {"split_8bit", 8 + 2.0 / 64, 6 + 2.0 / 64, true},
    {"full_8bit", 8 + 2.0 / 64, 8 + 2.0 / 64, true},
    {"adagrad", 10, 8, true},
    {"adagrad_full", 10, 10, true},
    {"lion", 10, 8, false},
    {"lion_full", 10, 10, false},
    {"sgd", 10, 8, false},
    {"sgd_full", 10, 10, false},
};
#define LAYOUT_COUNT (sizeof(layouts) / sizeof(layouts[0]))

/* The bytes are the layout's, and the roof is the lower of the two, which the row names. */
static void check_optim(const struct rows *r, uint32_t i, const struct layout *layout, double params)
{
    const bool stream = strncmp(text(r, i, "variant"), "stream", 6) == 0;
    const double memory = number(r, i, "memory_gb_per_s"), arithmetic = number(r, i, "arith_gb_per_s");

    assert_string_equal(text(r, i, "name"), layout->name);
    assert_true(number(r, i, "params") == params);
    assert_true(number(r, i, "read_per_param") == layout->read && number(r, i, "written_per_param") == layout->written);
    assert_true(number(r, i, "bytes") == params * (layout->read + layout->written));
    assert_true(number(r, i, "seconds_median") >= number(r, i, "seconds"));
    assert_true(number(r, i, "calls") >= 1);
    assert_int_equal(isnan(arithmetic), stream || !layout->divides);
    assert_close(number(r, i, "roof_gb_per_s"), fmin(memory, arithmetic));
    assert_string_equal(text(r, i, "bound_by"), arithmetic < memory ? "arithmetic" : "memory");
}

/* Division and square root of vector kernels alone: after all else, and without a roof. */
static uint32_t divide_rows(const struct rows *r)
{
    uint32_t count = 0;

    while (count < r->count && strcmp(text(r, r->count - 1 - count, "name"), "divide_sqrt") == 0) {
        assert_true(number(r, r->count - 1 - count, "ns_per_param") > 0);
        assert_true(number(r, r->count - 1 - count, "bytes") == 0);
        count++;
    }
    return count;
}

/* Streams, then kernels, for every layout; the faster stream is the memory's roof of all. */
TEST(optim_has_a_row_per_layout_and_kernel)
{
    struct rows r;
    uint32_t passes;

    run_rows(*state, &r, "bench optim --params 100000 --repeats 1 --json");
    passes = (r.count - divide_rows(&r)) / LAYOUT_COUNT;
    assert_int_equal(r.count - divide_rows(&r), passes * LAYOUT_COUNT);
    assert_int_equal(divide_rows(&r), passes - 3); /* streams, scalar */
    for (uint32_t i = 0; i < passes * LAYOUT_COUNT; i++) {
        check_optim(&r, i, &layouts[i / passes], 102400);                            /* whole blocks */
        assert_true(number(&r, i, "threads") >= 1 && number(&r, i, "threads") <= 7); /* one for each 16 Ki */
    }
    assert_string_equal(text(&r, 0, "variant"), "stream");
    assert_string_equal(text(&r, 1, "variant"), "stream_prefetch");
    assert_string_equal(text(&r, passes - 1, "variant"), "scalar");
    assert_true(fmax(number(&r, 0, "ratio"), number(&r, 1, "ratio")) == 1);
    free_rows(&r);
}

TEST(optim_takes_one_instruction_set)
{
    struct rows r;

    run_rows(*state, &r, "bench optim --params 64K --repeats 1 --isa scalar --threads 1 --json");
    assert_int_equal(r.count, 3 * LAYOUT_COUNT);
    assert_string_equal(text(&r, 2, "variant"), "scalar");
    assert_true(number(&r, 2, "threads") == 1);
    assert_true(number(&r, 2, "seconds_median") == number(&r, 2, "seconds"));
    free_rows(&r);
}

/* Layouts in the order of the table however they are named, sizes as they were. */
TEST(optim_takes_layouts_and_sizes)
{
    static const double sizes[] = {131072, 4096};
    struct rows r;

    run_rows(*state, &r,
             "bench optim --layout lion,split_8bit full --layout split_8bit --params 128K,1 --repeats 2 --isa scalar --threads 2 "
             "--json");
    assert_int_equal(r.count, 3 * 2 * 3);
    for (uint32_t i = 0; i < r.count; i++) {
        const double params = sizes[i / 3 % 2];

        check_optim(&r, i, &layouts[i < 6 ? 1 : i < 12 ? 5 : 9], params);
        assert_true(number(&r, i, "threads") == (params == 4096 ? 1 : 2)); /* a small tensor wakes nobody */
    }
    free_rows(&r);
}

/* A small tensor by default, too. */
TEST(optim_has_small_tensors)
{
    static const double sizes[] = {4096, 65536, 1048576, 16777216};
    struct rows r;

    run_rows(*state, &r, "bench optim --layout sgd --isa auto --repeats 1 --json");
    assert_int_equal((r.count - divide_rows(&r)) % 4, 0);
    for (uint32_t i = 0; i < r.count - divide_rows(&r); i++)
        check_optim(&r, i, &layouts[11], sizes[i / ((r.count - divide_rows(&r)) / 4)]);
    assert_true(number(&r, 0, "calls") > 1);
    free_rows(&r);
}

TEST_GROUP(workplace_setup, workplace_teardown);
