/* tests/cli/test_bench.c - strata bench: copies, what benches refuse, and what people see. */
#include "tests/cli/bench_rows.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

TEST(what_a_bench_does_not_take_is_said)
{
    fails(*state, "bench optim --layout split,spilt",
          "unknown layout \"spilt\": there are split, full, fp32, split_bf16m, full_bf16m, split_8bit, full_8bit, adagrad, "
          "adagrad_full, lion, lion_full, sgd, sgd_full");
    fails(*state, "bench optim --layout split,", "unknown layout \"\"");
    fails(*state, "bench optim --params 4K,many", "\"many\" is not a whole number");
    fails(*state, "bench optim --params 4K,", "\"\" is not a whole number");
    fails(*state, "bench optim --params 1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", "more than 16 sizes");
    fails(*state, "bench update --params 4K,64K", "takes one number of parameters");
    fails(*state, "bench link --layout split", "bench link does not take --layout");
}

/* --- link --- */

TEST(link_goes_both_ways)
{
    static const char *const names[] = {"upload", "download", "both"};
    struct rows r;

    run_rows(*state, &r, "bench link --bytes 100001 --repeats 2 --json");
    assert_int_equal(r.count, 3);
    for (uint32_t i = 0; i < r.count; i++) {
        assert_string_equal(text(&r, i, "name"), names[i]);
        assert_string_equal(text(&r, i, "variant"), "cpu");
        assert_true(number(&r, i, "bytes") == (i == 2 ? 200002 : 100001));
        assert_true(number(&r, i, "roof_gb_per_s") > 0);
        assert_true(number(&r, i, "seconds_median") >= number(&r, i, "seconds"));
    }
    free_rows(&r);
}

/* The rehearsed device copies at a file's pace, which is no roof. */
TEST(link_knows_its_devices)
{
    fails(*state, "bench link --bytes 4K --device tpu", "--device tpu: bench link knows cpu");
    fails(*state, "bench link --bytes 4K --device paced", "--device paced: bench link knows cpu");
    fails(*state, "bench optim --device cuda", "bench optim does not take --device");
}

TEST(one_parameter_is_enough)
{
    struct program p;

    workplace_run_ok(*state, &p, "bench update --params 1 --repeats 1");
    program_free(&p);
    workplace_run_ok(*state, &p, "bench optim --params 1 --repeats 1 --layout split_8bit");
    program_free(&p);
    workplace_run_ok(*state, &p, "bench link --bytes 1 --repeats 1");
    program_free(&p);
}

/* --- people --- */

static uint32_t lines_of(const char *out)
{
    uint32_t count = 0;

    for (; *out != '\0'; out++)
        count += *out == '\n';
    return count;
}

/* A heading and a line per row; no progress where nobody looks. */
TEST(tables_have_one_heading)
{
    struct program p;

    workplace_run_ok(*state, &p, "bench update --params 64K --repeats 1");
    assert_int_equal(lines_of(p.out), 1 + 1 + 2);
    assert_true(strncmp(p.out, "name ", 5) == 0);
    assert_non_null(strstr(p.out, " bound_by\nupdate "));
    assert_non_null(strstr(p.out, "\nroof            memory "));
    assert_string_equal(p.err, "");
    program_free(&p);
    workplace_run_ok(*state, &p, "bench optim --params 4K --repeats 1 --layout fp32 --isa scalar --threads 1");
    assert_int_equal(lines_of(p.out), 1 + 1 + 3); /* processor, threads and pages; heading; rows */
    assert_non_null(strstr(p.out, ": 1 thread, "));
    assert_non_null(strstr(p.out, "pages"));
    assert_non_null(strstr(p.out, " bound_by\nfp32 "));
    program_free(&p);
    workplace_run_ok(*state, &p,
                     "bench optim --params 4K --repeats 1 --layout fp32 --isa scalar --threads 1 --fault kernel.stream");
    assert_non_null(strstr(p.out, "; planes of 2.00 MiB, on pages of unknown size\nname "));
    program_free(&p);
    workplace_run_ok(*state, &p, "bench link --bytes 4KiB --repeats 1");
    assert_int_equal(lines_of(p.out), 1 + 3);
    assert_non_null(strstr(p.out, "4.00 KiB"));
    program_free(&p);
    workplace_run_ok(
        *state, &p,
        "bench step --model nano --seq-len 32 --set strata.update=gated --machine tests/machines/two-cores.json --simulate");
    assert_int_equal(lines_of(p.out), 1 + 1 + 2); /* model and machine, heading, rows */
    assert_true(strncmp(p.out, "nano: ", 6) == 0);
    assert_non_null(strstr(p.out, " bound_by\nstep (predicted) gated "));
    assert_string_equal(p.err, "");
    program_free(&p);
}

TEST(a_full_output_is_an_error)
{
    const char *const words[] = {"bench", "link", "--bytes", "4K", "--repeats", "1", NULL};
    struct program p;

    program_run(&p, words, "/dev/full");
    assert_int_equal(p.code, 4);
    assert_non_null(strstr(p.err, "cannot write to standard output"));
    program_free(&p);
}

TEST_GROUP(workplace_setup, workplace_teardown);
