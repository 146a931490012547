/* tests/nvme/test_probe.c - the measurement runs with every method, cleans up, and reports what fails.  How fast is no test. */
#include "core/base/fault.h"
#include "nvme/swap/swap.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)

TEST(every_method_is_measured)
{
    for (size_t i = 0; st_io_methods[i] != NULL; i++) {
        const char *name = st_io_methods[i]->name;
        struct st_probe_rates rates = {0};
        strata_status st = st_probe_rates(scratch_dir, name, 8 * MIB, 10.0, &rates);

        if (st == STRATA_E_NOSYS)
            continue;
        assert_int_equal(st, STRATA_OK);
        assert_true(rates.read > 0 && rates.write > 0 && rates.mixed > 0 && rates.latency > 0);
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    }
}

TEST(little_time_still_moves_a_block)
{
    const struct st_probe_opts opts = {
        .dir = scratch_dir, .method = "threads", .bytes = 1, .seconds_max = 0, .block_bytes = 4096, .queue_depth = 2};
    struct st_probe_rates rates = {0};

    assert_int_equal(st_probe_run(&opts, &rates), STRATA_OK);
    assert_true(rates.read > 0 && rates.write > 0 && rates.mixed > 0 && rates.latency > 0);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
}

TEST(failures_are_reported)
{
    struct st_probe_rates rates = {.read = -1};

    assert_int_equal(st_probe_rates("/nowhere/at/all", "auto", MIB, 1.0, &rates), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "/nowhere/at/all"));
    assert_int_equal(st_probe_rates(scratch_dir, "abacus", MIB, 1.0, &rates), STRATA_E_INVAL);
    for (uint32_t after = 0; after < 24; after += 5) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = after, .count = 1, .result = -EIO});
        assert_int_equal(st_probe_rates(scratch_dir, "auto", 8 * MIB, 1000.0, &rates), STRATA_E_IO);
        assert_int_equal(st_fault_disarm(), 1);
        assert_non_null(strstr(strata_last_error(), "Input/output error"));
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    }
    assert_true(rates.read < 0); /* untouched */
}

TEST_GROUP(scratch_create, scratch_remove);
