/* tests/nvme/test_swap_dirs.c - one swap over several directories: bytes, parts, counters, depth, errors. */
#include "core/base/fault.h"
#include "nvme/swap/swap_internal.h"
#include "swap_dirs_fixture.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static bool has_method(const char *name)
{
    struct st_swap_opts opts = swap_dirs_options(name, 1, true);
    struct st_swap *swap;

    if (st_io_find(name, NULL) == NULL || st_swap_open(&swap, &opts) != STRATA_OK)
        return false;
    st_swap_close(swap);
    return true;
}

static void parts_hold_what_the_pattern_says(struct st_swap *swap, uint32_t count, bool equal, bool on_disk)
{
    struct st_mover_counters all, sum = {0};
    struct st_stripe stripe;
    struct st_swap_info info;

    st_stripe_init(&stripe, count, equal ? NULL : swap_dirs_rates, SWAP_DIRS_BLOCK);
    st_swap_info(swap, &info);
    assert_int_equal(info.dir_count, count);
    assert_int_equal(info.queue_depth, 6);
    for (uint32_t d = 0; d < count; d++) {
        struct st_swap_dir_info part;
        struct st_mover_counters c;
        struct stat file;

        st_swap_dir_info(swap, d, &part);
        st_swap_dir_counters(swap, d, &c);
        assert_int_equal(part.bytes, st_stripe_file_bytes(&stripe, d, SWAP_DIRS_BYTES));
        assert_int_equal(part.holders, 1);
        assert_int_equal(c.bytes_read, part.bytes);
        assert_int_equal(c.bytes_written, part.bytes);
        assert_true(part.bytes == 0 || (c.busy_read_ns > 0 && c.busy_write_ns > 0));
        sum.bytes_read += c.bytes_read;
        sum.bytes_written += c.bytes_written;
        if (!on_disk)
            continue;
        assert_int_equal(strncmp(part.path, swap_dirs[d], strlen(swap_dirs[d])), 0);
        assert_int_equal(stat(part.path, &file), 0);
        assert_int_equal(file.st_size, part.bytes);
        assert_true((uint64_t)file.st_blocks * 512 >= part.bytes);
    }
    st_swap_counters(swap, &all);
    assert_int_equal(all.bytes_read, sum.bytes_read);
    assert_int_equal(all.bytes_written, SWAP_DIRS_BYTES);
}

TEST(bytes_come_back_over_two_and_three)
{
    static const char *const names[] = {"uring", "aio", "threads", "fake"};

    for (size_t m = 0; m < sizeof(names) / sizeof(names[0]); m++) {
        if (!has_method(names[m]))
            continue;
        for (uint32_t count = 2; count <= 3; count++) {
            for (int equal = 0; equal < 2; equal++) {
                const struct st_swap_opts opts = swap_dirs_options(names[m], count, equal != 0);
                struct st_swap *swap;

                assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
                swap_dirs_assert_works(swap, 100 * m + count);
                parts_hold_what_the_pattern_says(swap, count, equal != 0, strcmp(names[m], "fake") != 0);
                st_swap_close(swap);
                swap_dirs_assert_empty();
            }
        }
    }
}

/* More directories than units: some files are empty. */
TEST(little_space_leaves_files_empty)
{
    struct st_swap_opts opts = swap_dirs_options("threads", 3, true);
    struct st_swap *swap;

    opts.bytes[0] = SWAP_DIRS_BLOCK + ST_SWAP_ALIGN;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    st_swap_close(swap);
    swap_dirs_assert_empty();
}

TEST(depth_is_automatic_where_none_is_given)
{
    struct st_swap_opts opts = swap_dirs_options("auto", 2, true);
    struct st_swap_info info;
    struct st_swap *swap;

    opts.queue_depth = 0;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    st_swap_info(swap, &info);
    assert_int_equal(info.queue_depth, 32);
    for (uint64_t i = 0; i < 8; i++)
        swap_dirs_assert_works(swap, i);
    st_swap_info(swap, &info);
    assert_true(info.queue_depth >= 4);
    st_swap_close(swap);
    swap_dirs_assert_empty();
}

TEST(a_failing_directory_is_named)
{
    static const struct {
        const char *site;
        uint32_t after; /* passes of the first directory */
        int64_t result;
        strata_status st;
    } rows[] = {
        {"owned.mkdir", 1, -EROFS, STRATA_E_IO},        {"owned.mkdir", 1, -EACCES, STRATA_E_IO},
        {"owned.lock", 2, -ENOLCK, STRATA_E_IO},        {"owned.mark", 1, -EDQUOT, STRATA_E_NOSPC},
        {"nvme.fallocate", 1, -ENOSPC, STRATA_E_NOSPC}, {"nvme.fallocate", 1, -EIO, STRATA_E_IO},
        {"nvme.statvfs", 1, -EIO, STRATA_E_IO},
    };
    struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
    const char *missing[] = {swap_dirs[0], "/nowhere/at/all"};
    const double bad[] = {1e9, 0};
    struct st_swap *swap;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .after = rows[i].after, .result = rows[i].result});
        assert_int_equal(st_swap_open(&swap, &opts), rows[i].st);
        assert_true(st_fault_disarm() > 0);
        assert_non_null(strstr(strata_last_error(), swap_dirs[1]));
        assert_null(strstr(strata_last_error(), swap_dirs[0]));
        swap_dirs_assert_empty();
    }
    opts.dirs = missing;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "/nowhere/at/all"));
    opts.dirs = swap_dirs;
    opts.dir_rates = bad;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    swap_dirs_assert_empty();
}

TEST(a_failed_request_names_its_file)
{
    const struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
    unsigned char *buf = swap_dirs_random(1);
    struct st_swap *swap;
    bool seen[2] = {false, false};

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    for (uint32_t run = 0; run < 1000 && !(seen[0] && seen[1]); run++) { /* which directory is met first is chance */
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = run % 12, .count = 1, .result = -EIO});
        assert_int_equal(swap_dirs_move(swap, ST_IO_WRITE, buf, 1), STRATA_E_IO);
        assert_int_equal(st_fault_disarm(), 1);
        seen[0] = seen[0] ||
                  (strstr(strata_last_error(), swap_dirs[0]) != NULL && strstr(strata_last_error(), "/swap-0: write of") != NULL);
        seen[1] = seen[1] ||
                  (strstr(strata_last_error(), swap_dirs[1]) != NULL && strstr(strata_last_error(), "/swap-1: write of") != NULL);
    }
    assert_true(seen[0] && seen[1]);
    swap_dirs_assert_works(swap, 5);
    st_swap_close(swap);
    free(buf);
    swap_dirs_assert_empty();
}

/* A sample: the first 64 passages, those of opening among them, then every third. */
TEST(every_single_failure_is_clean)
{
    const struct st_swap_opts opts = swap_dirs_options("threads", 2, false);
    unsigned char *out = swap_dirs_random(1), *in = swap_dirs_random(2);
    struct fault_walk walk = {.result = -EIO};

    kept_log_begin(ST_LOG_DEBUG);
    while (fault_walk_next(&walk)) {
        struct st_swap *swap;
        strata_status st;

        memset(in, 0, SWAP_DIRS_BYTES);
        if ((st = st_swap_open(&swap, &opts)) == STRATA_OK) {
            if ((st = swap_dirs_move(swap, ST_IO_WRITE, out, 1)) == STRATA_OK)
                st = swap_dirs_move(swap, ST_IO_READ, in, 2);
            st_swap_close(swap);
        }
        fault_walk_end(&walk, st);
        if (st == STRATA_OK)
            assert_memory_equal(out, in, SWAP_DIRS_BYTES);
        for (uint32_t d = 0; d < 2; d++)
            st_swap_sweep(swap_dirs[d]);
        swap_dirs_assert_empty();
        walk.after += sample_is_all() || walk.after < 64 ? 0 : 2;
    }
    assert_true(walk.failed > (sample_is_all() ? 250 : 100)); /* each completion, or a third of them, at least */
    print_message("%u failed runs\n", walk.failed);
    kept_log_end();
    free(out);
    free(in);
}

TEST_GROUP(swap_dirs_create, swap_dirs_remove);
