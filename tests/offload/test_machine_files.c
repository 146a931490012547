/* The machine files of tests/machines: each is read, says everything, and says nothing impossible. */
#include "offload/machine/machine.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define FOLDER "tests/machines"

static const char *const files[] = {"laptop-8gb", "card-24gb", "h200-node", "h100-node8", "two-cores"};
#define FILE_TOTAL (sizeof(files) / sizeof(files[0]))

static struct st_machine read_machine(const char *name)
{
    struct st_machine m;
    char path[128];

    snprintf(path, sizeof(path), FOLDER "/%s.json", name);
    assert_int_equal(st_machine_read(&m, path), STRATA_OK);
    return m;
}

static void every_file_is_whole_and_sane(void **state)
{
    (void)state;
    for (size_t i = 0; i < FILE_TOTAL; i++) {
        const struct st_machine m = read_machine(files[i]);
        const double slowest = m.rates.read < m.rates.write ? m.rates.read : m.rates.write;

        assert_true(strlen(m.name) > 0);
        assert_true(m.capacity.bytes[STRATA_TIER_DEVICE] >= UINT64_C(1) << 30);
        assert_true(m.capacity.bytes[STRATA_TIER_HOST] > m.capacity.bytes[STRATA_TIER_DEVICE]);
        assert_true(m.capacity.bytes[STRATA_TIER_NVME] > m.capacity.bytes[STRATA_TIER_HOST]);
        assert_true(m.capacity.workers >= 1 && m.capacity.workers <= 256);
        assert_true(m.rates.drives >= 1 && m.rates.drives <= 8);
        assert_false(m.capacity.device_is_host);
        assert_true(m.rates.matmul_flops >= m.rates.block_flops && m.rates.block_flops >= m.rates.matmul_flops / 2);
        assert_true(m.rates.memory >= 10 * m.rates.upload && m.rates.memory <= 8e12);
        assert_true(m.rates.upload >= 1e9 && m.rates.upload < 64e9 && m.rates.download >= 1e9 && m.rates.download < 64e9);
        assert_true(m.rates.read / m.rates.drives >= 0.5e9 && m.rates.read / m.rates.drives < 15e9);
        assert_true(m.rates.write / m.rates.drives >= 0.5e9 && m.rates.write <= m.rates.read);
        assert_true(m.rates.mixed >= slowest / 2 && m.rates.mixed <= m.rates.read + m.rates.write);
        assert_true(m.rates.update >= 1e8 && m.rates.update < 1e11);
        assert_true(m.rates.checksum > m.rates.read + m.rates.write); /* else it would be what binds */
        if (m.rates.node_ranks == 0)
            continue;
        assert_true(m.rates.node_ranks <= 16 && m.rates.link_node >= m.rates.upload && m.rates.link_node < 1e12);
        assert_true(m.rates.link_nodes >= 1e9 && m.rates.link_nodes / m.rates.node_ranks <= m.rates.link_node);
        assert_true(m.rates.latency_node > 0 && m.rates.latency_node <= m.rates.latency_nodes && m.rates.latency_nodes < 1e-3);
    }
}

/* The list above names all of them. */
static void no_file_is_left_out(void **state)
{
    DIR *dir = opendir(FOLDER);
    const struct dirent *entry;
    size_t found = 0;

    (void)state;
    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        found += strstr(entry->d_name, ".json") != NULL;
    closedir(dir);
    assert_int_equal(found, FILE_TOTAL);
}

static void bigger_machines_are_faster(void **state)
{
    (void)state;
    for (size_t i = 1; i < 3; i++) {
        const struct st_machine less = read_machine(files[i - 1]), more = read_machine(files[i]);

        assert_true(more.rates.matmul_flops > less.rates.matmul_flops && more.rates.upload > less.rates.upload &&
                    more.rates.mixed > less.rates.mixed);
        for (uint32_t tier = 0; tier < STRATA_TIER_COUNT; tier++)
            assert_true(more.capacity.bytes[tier] > less.capacity.bytes[tier]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_is_whole_and_sane),
        cmocka_unit_test(no_file_is_left_out),
        cmocka_unit_test(bigger_machines_are_faster),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
