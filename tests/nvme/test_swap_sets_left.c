/* tests/nvme/test_swap_sets_left.c - the swap of a run that saves: what the dead leave, disks that are full, any single
 * failure. */
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "nvme/swap/swap_internal.h"
#include "swap_sets_fixture.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of a run that was killed, as of one that closes: its links live on, and nothing that is not a swap's file is taken. */
TEST(sets_of_the_dead_are_swept)
{
    struct sets_attached a;
    struct st_swap *swap;
    int ends[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = child_fork();
    if (pid == 0) {
        bool crossed;

        swap = sets_open("threads");
        if (sets_write(swap, 4, 9) != STRATA_OK || sets_link(swap, 4, &crossed) != STRATA_OK || write(ends[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    for (uint32_t d = 0; d < DIRS; d++)
        assert_int_equal(st_swap_sweep(sets_dirs[d]), 0);
    child_kill(pid);
    for (uint32_t d = 0; d < DIRS; d++)
        assert_int_equal(st_swap_sweep(sets_dirs[d]), 1);
    sets_assert_nothing_left();
    swap = sets_open("threads");
    assert_int_equal(sets_attach(swap, 4, st_swap_stripe(swap), &a), STRATA_OK);
    assert_true(sets_hold(swap, a.volume, SET, 9));
    sets_close_attached(&a);
    st_swap_close(swap);
    sets_empty_checkpoint();
}

TEST(only_names_of_a_swap_are_swept)
{
    static const char *const foreign[] = {"set-0",    "set-00-1", "set-0-8", "set-24-0", "base-8",
                                          "base-0.x", "swap-01",  "set--1",  "set-0-0-0"};
    static const char *const ours[] = {"set-0-0", "set-23-7", "base-7", "swap-3"};
    char path[128];

    snprintf(path, sizeof(path), "drive-0/strata-0123456789abcdef/");
    for (size_t i = 0; i < sizeof(foreign) / sizeof(foreign[0]) + sizeof(ours) / sizeof(ours[0]); i++) {
        const size_t own = i - sizeof(foreign) / sizeof(foreign[0]);
        char name[192];

        snprintf(name, sizeof(name), "%s%s", path, i < sizeof(foreign) / sizeof(foreign[0]) ? foreign[i] : ours[own]);
        scratch_put(name, "mine");
    }
    snprintf(path, sizeof(path), "drive-0/strata-0123456789abcdef/lock");
    scratch_put(path, "strata swap lock 1\npid 1\n");
    kept_log_begin(ST_LOG_WARN);
    assert_int_equal(st_swap_sweep(sets_dirs[0]), 0);
    kept_log_end();
    assert_int_equal(scratch_entries(scratch_path("drive-0/strata-0123456789abcdef"), NULL),
                     sizeof(foreign) / sizeof(foreign[0]));
    snprintf(path, sizeof(path), "rm -rf %s/*", sets_dirs[0]);
    assert_int_equal(system(path), 0);
}

TEST(unlink_all_takes_every_set)
{
    struct st_swap *swap = sets_open("threads");
    bool crossed;

    assert_int_equal(sets_write(swap, 2, 3), STRATA_OK);
    assert_int_equal(sets_link(swap, 2, &crossed), STRATA_OK);
    st_cleanup_run();
    sets_assert_nothing_left();
    assert_int_equal(scratch_entries(sets_checkpoint, NULL), DIRS);
    assert_true(sets_hold(swap, 2, SET, 3));
    st_swap_close(swap);
    sets_empty_checkpoint();
}

/* All volumes count: two directories on one file system share its room. */
TEST(all_sets_need_room)
{
    const char *const small[DIRS] = {sets_dirs[0], sets_dirs[0]};
    struct st_swap_opts opts = sets_options("threads");
    struct st_swap *swap;
    char size[32];

    snprintf(size, sizeof(size), "size=%u", (unsigned)(BYTES_OF - BLOCK));
    if (mount("strata-test", sets_dirs[0], "tmpfs", 0, size) != 0) {
        print_message("no tmpfs can be mounted here (%s): not tested\n", strerror(errno));
        skip();
    }
    opts.dirs = small;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_NOSPC);
    assert_non_null(strstr(strata_last_error(), "of swap space needed"));
    assert_non_null(strstr(strata_last_error(), sets_dirs[0]));
    assert_int_equal(scratch_entries(sets_dirs[0], NULL), 0);
    opts.set_count--;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_int_equal(st_swap_renew(swap, 0), STRATA_E_NOSPC); /* the old one's room is another's until then */
    assert_int_equal(sets_write(swap, 3, 1), STRATA_OK);
    st_swap_close(swap);
    assert_int_equal(umount2(sets_dirs[0], MNT_DETACH), 0);
}

TEST(impossible_sizes_are_refused)
{
    struct st_swap_opts opts = sets_options("fake");
    struct st_swap *swap;

    opts.set_count = ST_SWAP_SETS_MAX + 1;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "keep fewer checkpoints"));
    opts.set_count = 0;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts = sets_options("fake");
    opts.bytes[ST_SPACE_SET] += 512;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.bytes[ST_SPACE_SET] = UINT64_MAX / ST_SWAP_ALIGN * ST_SWAP_ALIGN;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    memset(opts.bytes, 0, sizeof(opts.bytes));
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.bytes[ST_SPACE_SET] = SET; /* nothing on NVMe but what is saved */
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_true(sets_write(swap, 4, 1) == STRATA_OK && sets_hold(swap, 4, SET, 1));
    st_swap_close(swap);
}

static strata_status live(struct st_swap *swap)
{
    bool crossed;
    strata_status st;

    if ((st = sets_write(swap, 2, 1)) != STRATA_OK)
        return st;
    if ((st = sets_link(swap, 2, &crossed)) != STRATA_OK || (st = st_swap_renew(swap, 0)) != STRATA_OK)
        return st;
    return sets_write(swap, 2, 2);
}

/* Whatever fails: nothing is left after a sweep but what was linked, and what was linked whole is whole. */
TEST(every_single_failure_is_clean)
{
    const struct st_swap_opts opts = sets_options("threads");
    const bool in_memory = mount("strata-test", scratch_dir, "tmpfs", 0, "size=8m") == 0 && sets_make_dirs() == 0; /* quicker */
    struct fault_walk walk = {.result = -EIO};

    kept_log_begin(ST_LOG_DEBUG);
    while (fault_walk_next(&walk)) {
        struct st_swap *swap;
        strata_status st = st_swap_open(&swap, &opts);

        if (st == STRATA_OK) {
            st = live(swap);
            st_swap_close(swap);
        }
        fault_walk_end(&walk, st);
        for (uint32_t d = 0; d < DIRS; d++)
            st_swap_sweep(sets_dirs[d]);
        sets_assert_nothing_left();
        if (scratch_entries(sets_checkpoint, NULL) == DIRS) {
            struct sets_attached a;

            swap = sets_open("threads");
            assert_int_equal(sets_attach(swap, 2, st_swap_stripe(swap), &a), STRATA_OK);
            assert_true(sets_hold(swap, a.volume, SET, 1));
            sets_close_attached(&a);
            st_swap_close(swap);
        }
        sets_empty_checkpoint();
    }
    assert_true(walk.failed > 40);
    kept_log_end();
    if (in_memory)
        assert_int_equal(umount2(scratch_dir, MNT_DETACH), 0);
}

TEST_GROUP(sets_create, scratch_remove);
