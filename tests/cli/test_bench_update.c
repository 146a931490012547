/* tests/cli/test_bench_update.c - strata bench update at tiny sizes: its bound, its bytes, and that nothing is left on the disk.
 */
#include "tests/cli/bench_rows.h"
#include "tests/common/test.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The bound is the largest of the roofs, each of which has a row of its own; bound_by names it. */
static void check_update(const struct rows *r, const char *variant, uint32_t roofs)
{
    double most = 0;
    const char *binds = "";

    assert_int_equal(r->count, 1 + roofs);
    assert_string_equal(text(r, 0, "name"), "update");
    assert_string_equal(text(r, 0, "variant"), variant);
    for (uint32_t i = 1; i < r->count; i++) {
        assert_string_equal(text(r, i, "name"), "roof");
        assert_true(isnan(number(r, i, "ratio")));
        if (number(r, i, "seconds") > most) {
            most = number(r, i, "seconds");
            binds = text(r, i, "variant");
        }
    }
    assert_string_equal(text(r, 0, "bound_by"), binds);
    assert_close(number(r, 0, "bound_seconds"), most);
    assert_close(number(r, 0, "ratio"), most / number(r, 0, "seconds"));
    assert_true(number(r, 0, "seconds_least") <= number(r, 0, "seconds"));
    assert_true(number(r, 0, "params") >= 1200000);
}

TEST(update_in_memory_moves_nothing_on_disk)
{
    struct rows r;

    run_rows(*state, &r, "bench update --params 1200000 --repeats 3 --json");
    check_update(&r, "memory", 2);
    assert_true(number(&r, 0, "read_bytes") == 0 && number(&r, 0, "written_bytes") == 0);
    assert_true(number(&r, 0, "bytes") == number(&r, 0, "params") * 26);
    assert_true(number(&r, 0, "repeats") == 3);
    free_rows(&r);
}

/* 10 bytes per parameter are written, in whole pages of each chunk; what backward read ahead is not read again. */
static void check_traffic(const struct rows *r)
{
    const double state = number(r, 0, "params") * 10, written = number(r, 0, "written_bytes"), read = number(r, 0, "read_bytes");

    assert_true(written >= state && written < 1.1 * state);
    assert_true(read > state / 2 && read <= written);
    assert_true(number(r, 0, "bytes") == read + written);
}

TEST(update_on_disk_leaves_nothing_there)
{
    const struct workplace *w = *state;
    struct rows r;

    run_rows(w, &r, "bench update --params 1200000 --repeats 2 --nvme {w}/nvme --isa scalar --threads 1 --json");
    check_update(&r, "nvme", 5);
    check_traffic(&r);
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    free_rows(&r);
}

/* 16 and 12 bytes per parameter each way, of a whole number of blocks. */
TEST(update_moves_state_as_others_do)
{
    static const struct {
        const char *name;
        double width;
    } likes[] = {{"zero-infinity", 16}, {"mlp-offload", 12}};
    struct rows r;

    run_rows(*state, &r,
             "bench update --params 1200000 --repeats 2 --nvme {w}/nvme --like zero-infinity --like mlp-offload --json");
    for (uint32_t i = 0; i < 2; i++) {
        const double blocks = number(&r, 1 + i, "read_bytes") / (likes[i].width * 4096), params = number(&r, 0, "params");

        assert_string_equal(text(&r, 1 + i, "name"), "like");
        assert_string_equal(text(&r, 1 + i, "variant"), likes[i].name);
        assert_true(number(&r, 1 + i, "read_bytes") == number(&r, 1 + i, "written_bytes"));
        assert_true(blocks == floor(blocks) && blocks * 4096 >= params && (blocks - 1) * 4096 < params);
        assert_true(number(&r, 1 + i, "seconds") > 0);
    }
    free_rows(&r);
    assert_int_equal(workplace_entries(*state, "nvme"), 0);
    fails(*state, "bench update --params 4K --like zero-infinity", "--nvme");
    fails(*state, "bench update --params 4K --nvme {w}/nvme --like deepspeed", "zero-infinity or mlp-offload");
    fails(*state, "bench optim --like mlp-offload", "does not take --like");
}

TEST(update_takes_a_method)
{
    struct rows r;

    run_rows(*state, &r, "bench update --params 1200000 --repeats 1 --nvme {w}/nvme --io-method threads --json");
    check_update(&r, "nvme", 5);
    check_traffic(&r);
    free_rows(&r);
}

TEST(a_failing_disk_is_an_error)
{
    const struct workplace *w = *state;
    struct program p;

    workplace_run(w, &p, "bench update --params 1200000 --nvme {w}/nvme --fault nvme.cqe:40:1:-5 --io-method uring");
    if (p.code != 2) { /* 2: no io_uring here */
        assert_int_equal(p.code, 4);
        assert_non_null(strstr(p.err, "strata: error: "));
    }
    assert_string_equal(p.out, "");
    assert_int_equal(workplace_entries(w, "nvme"), 0);
    program_free(&p);
}

TEST(signals_leave_no_swap_files)
{
    all_signals(*state, "bench update --params 4M --repeats 1000 --nvme {w}/nvme", 1);
}

TEST_GROUP(workplace_setup, workplace_teardown);
