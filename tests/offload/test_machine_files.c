/* The machine files of tests/machines: each is read, says everything, and says nothing impossible. */
#include "core/base/error.h"
#include "offload/machine/machine.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

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

TEST(every_file_is_whole_and_sane)
{
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
TEST(no_file_is_left_out)
{
    DIR *dir = opendir(FOLDER);
    const struct dirent *entry;
    size_t found = 0;

    assert_non_null(dir);
    while ((entry = readdir(dir)) != NULL)
        found += strstr(entry->d_name, ".json") != NULL;
    closedir(dir);
    assert_int_equal(found, FILE_TOTAL);
}

TEST(bigger_machines_are_faster)
{
    for (size_t i = 1; i < 3; i++) {
        const struct st_machine less = read_machine(files[i - 1]), more = read_machine(files[i]);

        assert_true(more.rates.matmul_flops > less.rates.matmul_flops && more.rates.upload > less.rates.upload &&
                    more.rates.mixed > less.rates.mixed);
        for (uint32_t tier = 0; tier < STRATA_TIER_COUNT; tier++)
            assert_true(more.capacity.bytes[tier] > less.capacity.bytes[tier]);
    }
}

static struct st_machine read_text(const char *text)
{
    struct st_machine m;

    scratch_put("m.json", text);
    if (st_machine_read(&m, scratch_path("m.json")) != STRATA_OK)
        fail_msg("%s: %s", text, strata_last_error());
    return m;
}

/* As many directories as a run may have, each with its rate. */
TEST(each_of_eight_directories_has_its_rate)
{
    struct st_machine m;

    scratch_open();
    m = read_text("{\"dir_rates\":[1,2,3,4,5,6,7,8]}");
    assert_int_equal(m.rates.dir_count, 8);
    for (uint32_t i = 0; i < 8; i++)
        assert_true(m.rates.dir_rates[i] == i + 1.0);
    scratch_close();
}

/* Where the file does not say it, of a device with memory of its own: by the speed of its products, but never 0. */
TEST(the_speed_of_memory_may_be_left_out)
{
    static const struct {
        const char *text;
        double memory;
    } rows[] = {
        {"{\"device_is_host\":false,\"matmul_flops\":1e15}", 1e15 / ST_MACHINE_FLOPS_PER_BYTE},
        {"{\"matmul_flops\":1e15,\"device_is_host\":false,\"memory\":0}", 1e15 / ST_MACHINE_FLOPS_PER_BYTE},
        {"{\"device_is_host\":false,\"matmul_flops\":1e15,\"memory\":2e12}", 2e12},
        {"{\"device_is_host\":false,\"matmul_flops\":1}", 1},
        {"{\"device_is_host\":false}", 0},
        {"{\"device_is_host\":true,\"matmul_flops\":1e15}", 0},
    };

    scratch_open();
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct st_machine m = read_text(rows[i].text);

        if (m.rates.memory != rows[i].memory)
            fail_msg("%s: %g bytes a second, not %g", rows[i].text, m.rates.memory, rows[i].memory);
    }
    scratch_close();
}
