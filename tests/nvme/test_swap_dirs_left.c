/* tests/nvme/test_swap_dirs_left.c - one swap over several directories: who else uses them, what is left behind, disks that do
 * not suit. */
#include "core/base/rng.h"
#include "core/system/cleanup.h"
#include "nvme/swap/swap_internal.h"
#include "swap_dirs_fixture.h"
#include "tests/common/child.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

TEST(two_runs_share_both_directories)
{
    const struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
    struct st_swap_dir_info part;
    struct st_swap *a, *b;

    assert_int_equal(st_swap_open(&a, &opts), STRATA_OK);
    assert_int_equal(st_swap_open(&b, &opts), STRATA_OK);
    for (uint32_t d = 0; d < 2; d++) {
        st_swap_dir_info(b, d, &part);
        if (part.holders == 1) { /* no such locks here */
            print_message("no open file description locks: sharing is not tested\n");
            break;
        }
        assert_int_equal(part.holders, 2);
        assert_int_equal(part.queue_depth, 3);
    }
    swap_dirs_assert_works(a, 1);
    swap_dirs_assert_works(b, 2);
    st_swap_close(a);
    swap_dirs_assert_works(b, 3);
    st_swap_close(b);
    swap_dirs_assert_empty();
}

TEST(unlink_all_covers_every_directory)
{
    const struct st_swap_opts opts = swap_dirs_options("threads", 3, false);
    struct st_swap *swap;

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    for (uint32_t d = 0; d < 3; d++)
        assert_true(scratch_entries(swap_dirs[d], NULL) > 0);
    st_cleanup_run();
    swap_dirs_assert_empty();
    swap_dirs_assert_works(swap, 1);
    st_swap_close(swap);
    swap_dirs_assert_empty();
}

/* Killed while it opens, moves or closes, over and over: what is left, a sweep takes away. */
TEST(a_kill_at_any_point_is_swept)
{
    for (uint64_t i = 0; i < 25; i++) {
        uint64_t bytes_left = st_rng_u64(8, 1, i) % 12;
        int ends[2];
        char byte;
        pid_t pid;

        assert_int_equal(pipe(ends), 0);
        pid = child_fork();
        if (pid == 0) {
            const struct st_swap_opts opts = swap_dirs_options("threads", 2, i % 2 == 0);
            unsigned char *buf = aligned_alloc(ST_SWAP_ALIGN, SWAP_DIRS_BYTES);

            kept_log_begin(ST_LOG_DEBUG);
            for (struct st_swap *swap; buf != NULL;) { /* a byte before each of its acts */
                if (write(ends[1], "o", 1) != 1 || st_swap_open(&swap, &opts) != STRATA_OK || write(ends[1], "w", 1) != 1 ||
                    swap_dirs_move(swap, ST_IO_WRITE, buf, 1) != STRATA_OK || write(ends[1], "c", 1) != 1)
                    break;
                st_swap_close(swap);
            }
            _exit(1);
        }
        close(ends[1]);
        do
            assert_int_equal(read(ends[0], &byte, 1), 1);
        while (bytes_left-- > 0);
        child_kill(pid);
        close(ends[0]);
    }
    for (uint32_t d = 0; d < 2; d++)
        st_swap_sweep(swap_dirs[d]);
    swap_dirs_assert_empty();
}

TEST(a_directory_that_vanishes_is_no_harm)
{
    const struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
    char command[128];
    struct st_swap *swap;

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    snprintf(command, sizeof(command), "rm -rf %s", swap_dirs[1]);
    assert_int_equal(system(command), 0);
    swap_dirs_assert_works(swap, 1); /* an open file outlives its name */
    st_swap_close(swap);
    assert_int_equal(mkdir(swap_dirs[1], 0700), 0);
    swap_dirs_assert_empty();
}

TEST(foreign_files_stay)
{
    const struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
    char path[128];
    struct st_swap *swap;

    snprintf(path, sizeof(path), "%s/swap-1", swap_dirs[1]);
    assert_int_equal(mkdir(path, 0700), 0); /* the very name, a level up */
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    swap_dirs_assert_works(swap, 1);
    st_swap_close(swap);
    st_swap_sweep(swap_dirs[1]);
    assert_int_equal(rmdir(path), 0);
    swap_dirs_assert_empty();
}

/* Rights are not asked of the superuser, so a child without them opens. */
TEST(a_directory_without_permission_is_named)
{
    pid_t pid;
    int code;

    assert_int_equal(chmod(scratch_dir, 0755) | chmod(swap_dirs[0], 0777) | chmod(swap_dirs[1], 0555), 0);
    pid = child_fork();
    if (pid == 0) {
        const struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
        struct st_swap *swap;

        if (geteuid() == 0 && setuid(65534) != 0)
            _exit(2);
        kept_log_begin(ST_LOG_DEBUG);
        _exit(st_swap_open(&swap, &opts) == STRATA_E_IO && strstr(strata_last_error(), swap_dirs[1]) != NULL &&
                      strstr(strata_last_error(), "Permission denied") != NULL
                  ? 0
                  : 1);
    }
    code = child_wait(pid);
    assert_int_equal(chmod(swap_dirs[0], 0700) | chmod(swap_dirs[1], 0700), 0);
    swap_dirs_assert_empty();
    if (code == 2)
        skip();
    assert_int_equal(code, 0);
}

static bool mount_tmpfs(uint32_t d, const char *text, unsigned long flags)
{
    if (mount("strata-test", swap_dirs[d], "tmpfs", flags, text) == 0)
        return true;
    print_message("no tmpfs can be mounted here (%s): not tested\n", strerror(errno));
    return false;
}

TEST(small_and_read_only_disks_are_named)
{
    struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
    struct st_swap_dir_info part;
    uint64_t room, free_bytes;
    struct st_swap *swap;
    uint32_t tightest;

    if (!mount_tmpfs(1, "size=1m", 0))
        skip();
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_NOSPC); /* 2.2 MiB there */
    assert_non_null(strstr(strata_last_error(), swap_dirs[1]));
    swap_dirs_assert_empty();
    assert_int_equal(st_swap_room(swap_dirs, 2, NULL, SWAP_DIRS_BLOCK, &room, &tightest), STRATA_OK);
    assert_int_equal(room, 2 * MIB);
    assert_int_equal(tightest, 1);
    assert_int_equal(st_swap_room(swap_dirs, 2, (const double[]){3, 1}, SWAP_DIRS_BLOCK, &room, NULL), STRATA_OK);
    assert_int_equal(room, 4 * MIB);
    assert_int_equal(st_swap_room(swap_dirs, 1, NULL, SWAP_DIRS_BLOCK, &room, NULL), STRATA_OK);
    assert_int_equal(st_swap_free_bytes(swap_dirs[0], &free_bytes), STRATA_OK);
    assert_true(room > 0 && free_bytes > 0);
    assert_int_equal(st_swap_room(swap_dirs, 0, NULL, SWAP_DIRS_BLOCK, &room, NULL), STRATA_E_INVAL);

    opts.dir_rates = (const double[]){16, 1}; /* then it holds its part */
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    st_swap_dir_info(swap, 1, &part);
    assert_false(part.direct);
    swap_dirs_assert_works(swap, 1);
    st_swap_close(swap);
    swap_dirs_assert_empty();
    assert_int_equal(umount2(swap_dirs[1], MNT_DETACH), 0);

    if (!mount_tmpfs(1, "size=8m", MS_RDONLY))
        skip();
    opts.dir_rates = NULL;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), swap_dirs[1]));
    assert_non_null(strstr(strata_last_error(), "Read-only"));
    assert_int_equal(umount2(swap_dirs[1], MNT_DETACH), 0);
    swap_dirs_assert_empty();
}

/* Two directories of one file system ask its free bytes together. */
TEST(one_file_system_is_counted_once)
{
    char a[128], b[128];
    const char *const both[] = {a, b};
    struct st_swap_opts opts = swap_dirs_options("threads", 2, true);
    struct st_swap *swap;
    uint64_t room;

    if (!mount_tmpfs(2, "size=4m", 0))
        skip();
    snprintf(a, sizeof(a), "%s/a", swap_dirs[2]);
    snprintf(b, sizeof(b), "%s/b", swap_dirs[2]);
    assert_int_equal(mkdir(a, 0700) | mkdir(b, 0700), 0);
    assert_int_equal(st_swap_room(both, 2, NULL, SWAP_DIRS_BLOCK, &room, NULL), STRATA_OK);
    assert_int_equal(room, 4 * MIB);
    assert_int_equal(st_swap_room(both, 2, (const double[]){3, 1}, SWAP_DIRS_BLOCK, &room, NULL), STRATA_OK);
    assert_int_equal(room, 4 * MIB); /* however it is divided */
    opts.dirs = both;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_NOSPC); /* 4.2 MiB */
    assert_non_null(strstr(strata_last_error(), b));
    assert_int_equal(scratch_entries(a, NULL) + scratch_entries(b, NULL), 0);
    assert_int_equal(umount2(swap_dirs[2], MNT_DETACH), 0);
}

TEST_GROUP(swap_dirs_create, swap_dirs_remove);
