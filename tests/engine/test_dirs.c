/* test_dirs - state and weights over several directories: the same bits as in one, and errors that name the directory. */
#include "rig.h"
#include "tests/common/test.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "tests/common/scratch.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define STEPS 4u
#define DIRS  3u

static struct rig_cell cell_with(const char *io_method, uint32_t dirs, const double *rates)
{
    struct rig_cell cell = rig_swapped();

    cell.io_method = io_method;
    cell.clip = RIG_CLIP_NEVER;
    cell.dir_count = dirs;
    cell.dir_rates = rates;
    return cell;
}

static void assert_empty(void)
{
    char path[128];

    for (uint32_t i = 0; i < DIRS; i++) { /* an empty directory can be removed */
        snprintf(path, sizeof(path), "%s/drive-%u", scratch_dir, i);
        assert_int_equal(rmdir(path), 0);
        assert_int_equal(mkdir(path, 0700), 0);
    }
}

TEST(several_directories_are_as_good_as_one)
{
    static const double rates[] = {5e9, 2e9, 9e8};
    static const struct {
        const char *io_method;
        uint32_t dirs;
        const double *rates;
    } rows[] = {{"auto", 1, NULL},     {"auto", 2, NULL},     {"auto", 2, rates}, {"auto", 3, NULL},
                {"threads", 3, rates}, {"threads", 2, rates}, {"fake", 2, rates}, {"fake", 3, rates}};
    const struct rig_cell one = cell_with("auto", 0, NULL);
    struct rig_result want, got;

    assert_int_equal(rig_run(&want, &one, STEPS, scratch_dir), STRATA_OK);
    assert_true(want.planned);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct rig_cell cell = cell_with(rows[i].io_method, rows[i].dirs, rows[i].rates);

        assert_int_equal(rig_run(&got, &cell, STEPS, scratch_dir), STRATA_OK);
        assert_string_equal(got.weights, want.weights);
        assert_string_equal(got.state, want.state);
        assert_memory_equal(got.losses, want.losses, STEPS * sizeof(double));
        assert_int_equal(got.moved_bytes.read, want.moved_bytes.read);
        assert_int_equal(got.moved_bytes.write, want.moved_bytes.write);
        assert_empty();
    }
}

TEST(a_failing_directory_is_named)
{
    const struct rig_cell cell = cell_with("threads", 2, NULL);
    struct rig_result result;

    st_fault_arm(&(struct st_fault_spec){.site = "nvme.fallocate", .after = 1, .count = 1, .result = -ENOSPC});
    assert_int_equal(rig_run(&result, &cell, STEPS, scratch_dir), STRATA_E_NOSPC);
    assert_int_equal(st_fault_disarm(), 1);
    assert_non_null(strstr(strata_last_error(), "/drive-1/"));
    assert_empty();
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = 200, .count = 1, .result = -EIO});
    assert_int_equal(rig_run(&result, &cell, STEPS, scratch_dir), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), 1);
    assert_non_null(strstr(strata_last_error(), "/drive-"));
    assert_non_null(strstr(strata_last_error(), "/swap-"));
    assert_empty();
}

static int make_drives(void **state)
{
    char path[128];

    if (scratch_create(state) != 0)
        return -1;
    for (uint32_t i = 0; i < DIRS; i++) {
        snprintf(path, sizeof(path), "%s/drive-%u", scratch_dir, i);
        if (mkdir(path, 0700) != 0)
            return -1;
    }
    return 0;
}

TEST_GROUP(make_drives, scratch_remove);
