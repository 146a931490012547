/* tests/offload/test_measure_disk.c - what is measured of swap directories, over a probe that is a formula: each alone, then all
 * together as a swap would use them. */
#include "core/base/error.h"
#include "offload/machine/machine_measure_internal.h"
#include "tests/common/test.h"

#include <string.h>

#define MIB UINT64_C(1048576)

static struct {
    struct st_probe_opts opts[8];
    double dir_rates[8];
    uint32_t count, fail_at; /* fail_at: this call fails, from 1; 0: none */
} probed;

strata_status __wrap_st_probe_run(const struct st_probe_opts *opts, struct st_probe_rates *out);

/* The first directory moves 100 bytes per second, the second 200, and so on; together 1000. */
strata_status __wrap_st_probe_run(const struct st_probe_opts *opts, struct st_probe_rates *out)
{
    const double rate = opts->dir_count > 0 ? 1000 : 100 * (opts->dir[1] - '0');

    probed.opts[probed.count++] = *opts;
    for (uint32_t d = 0; d < opts->dir_count && opts->dir_rates != NULL; d++)
        probed.dir_rates[d] = opts->dir_rates[d];
    if (probed.count == probed.fail_at)
        return st_error(STRATA_E_IO, "call %u", probed.count);
    *out = (struct st_probe_rates){.read = rate + 1, .write = rate + 2, .mixed = rate, .latency = 1 / rate};
    return STRATA_OK;
}

static strata_status measure(struct st_machine *m, uint32_t dirs, uint64_t room, uint32_t fail_at)
{
    const struct st_nvme_opts nvme = {.dirs = {"/1", "/2", "/3"}, .dir_count = dirs, .method = "threads"};

    memset(&probed, 0, sizeof(probed));
    probed.fail_at = fail_at;
    *m = (struct st_machine){0};
    m->capacity.bytes[STRATA_TIER_NVME] = room;
    return st_machine_measure_disk(m, &nvme);
}

TEST(one_directory_is_measured_once)
{
    struct st_machine m;

    assert_int_equal(measure(&m, 1, 100000 * MIB, 0), STRATA_OK);
    assert_int_equal(probed.count, 1);
    assert_string_equal(probed.opts[0].dir, "/1");
    assert_string_equal(probed.opts[0].method, "threads");
    assert_true(probed.opts[0].bytes == 128 * MIB && probed.opts[0].dir_count == 0);
    assert_true(m.rates.read == 101 && m.rates.write == 102 && m.rates.mixed == 100 && m.rates.dir_count == 0);
    assert_true(m.rates.latency_io == 0.01);
}

TEST(several_are_measured_apart_and_in_proportion)
{
    struct st_machine m;

    assert_int_equal(measure(&m, 3, 100000 * MIB, 0), STRATA_OK);
    assert_int_equal(probed.count, 4);
    for (uint32_t d = 0; d < 3; d++) {
        assert_int_equal(probed.opts[d].dir[1], '1' + (int)d);
        assert_true(probed.opts[d].dir_count == 0 && probed.opts[d].bytes == 128 * MIB);
        assert_true(m.rates.dir_rates[d] == 100 * (d + 1));
        assert_true(probed.dir_rates[d] == 100 * (d + 1)); /* the share of each in the last */
    }
    assert_int_equal(probed.opts[3].dir_count, 3);
    assert_string_equal(probed.opts[3].dirs[2], "/3");
    assert_true(probed.opts[3].bytes == 3 * 128 * MIB);
    assert_true(m.rates.read == 1001 && m.rates.write == 1002 && m.rates.mixed == 1000);
    assert_true(m.rates.dir_count == 3 && m.rates.drives == 3);
}

/* A quarter of the room at most; a failure ends it. */
TEST(room_and_failures_end_it)
{
    struct st_machine m;

    assert_int_equal(measure(&m, 2, 40 * MIB + 1, 0), STRATA_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_true(probed.opts[i].bytes == 10 * MIB);
    assert_int_equal(measure(&m, 2, 100, 0), STRATA_E_NOSPC);
    assert_int_equal(probed.count, 0);
    for (uint32_t n = 1; n <= 3; n++) {
        assert_int_equal(measure(&m, 2, 40 * MIB, n), STRATA_E_IO);
        assert_int_equal(probed.count, n);
    }
}
