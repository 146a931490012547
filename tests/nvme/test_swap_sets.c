/* tests/nvme/test_swap_sets.c - the swap of a run that saves: spaces and sets, links into checkpoints, sets made anew,
 * checkpoints that are read. */
#include "core/base/fault.h"
#include "nvme/swap/swap_internal.h"
#include "swap_sets_fixture.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *const methods[] = {"auto", "threads", "fake"};

TEST(spaces_keep_their_bytes_apart)
{
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct st_swap *swap = sets_open(methods[m]);
        uint64_t bytes = 0;

        assert_int_equal(st_swap_volume(swap, ST_SPACE_SCRATCH, 2), 0);
        assert_int_equal(st_swap_volume(swap, ST_SPACE_BASE, 2), 1);
        for (uint32_t v = 0; v < VOLUMES; v++) {
            assert_int_equal(sets_write(swap, v, 10 + v), STRATA_OK);
            if (v > 1)
                assert_int_equal(st_swap_volume(swap, ST_SPACE_SET, v - 2), v);
        }
        for (uint32_t v = 0; v < VOLUMES; v++) {
            assert_true(sets_hold(swap, v, sets_bytes_of(v), 10 + v));
            assert_int_equal(sets_move(swap, ST_IO_READ, v, sets_bytes_of(v) + ST_SWAP_ALIGN, NULL), STRATA_E_INVAL);
            assert_int_equal(sets_move(swap, ST_IO_SYNC, v, 0, NULL), STRATA_OK);
        }
        for (uint32_t d = 0; d < DIRS; d++) {
            struct st_swap_dir_info info;

            st_swap_dir_info(swap, d, &info);
            bytes += info.bytes;
            assert_non_null(strstr(info.path, d == 0 ? "/swap-0" : "/swap-1"));
            assert_true(st_swap_fd(swap, 3, d) == -1 || strcmp(methods[m], "fake") != 0);
        }
        assert_int_equal(bytes, BYTES_OF);
        st_swap_close(swap);
        sets_assert_nothing_left();
    }
}

/* Names and sizes of the files; their space is reserved. */
TEST(files_are_named_and_reserved)
{
    const mode_t mask = umask(027);
    struct st_swap *swap = sets_open("threads");
    uint64_t reserved = 0;

    (void)umask(mask);
    for (uint32_t v = 0; v < VOLUMES; v++)
        for (uint32_t d = 0; d < DIRS; d++) {
            char name[ST_SWAP_NAME_BYTES], path[ST_SWAP_PATH_MAX];
            struct stat info;

            snprintf(path, sizeof(path), "%s/%s", swap->parts[d].run.path,
                     v == 0   ? (d == 0 ? "swap-0" : "swap-1")
                     : v == 1 ? (d == 0 ? "base-0" : "base-1")
                              : (snprintf(name, sizeof(name), "set-%u-%u", v - 2, d), name));
            assert_int_equal(stat(path, &info), 0);
            assert_int_equal(info.st_size, st_stripe_file_bytes(st_swap_stripe(swap), d, sets_bytes_of(v)));
            assert_true((uint64_t)info.st_blocks * 512 >= (uint64_t)info.st_size);
            assert_int_equal(info.st_mode & 0777, v == 0 ? 0600 : 0640); /* what a checkpoint may have is as any other file */
            reserved += (uint64_t)info.st_size;
        }
    assert_int_equal(reserved, BYTES_OF);
    st_swap_close(swap);
    sets_assert_nothing_left();
}

/* One file that goes through the page cache is enough: of its directory, and of the swap. */
TEST(one_file_without_direct_io_is_told)
{
    struct st_swap *swap = sets_open("threads");
    struct st_swap_dir_info part;
    struct st_swap_info info;

    st_swap_info(swap, &info);
    st_swap_close(swap);
    if (!info.direct)
        skip();
    for (uint32_t file = 0; file < DIRS * VOLUMES; file++) {
        kept_log_begin(ST_LOG_WARN);
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.direct", .after = file, .count = 1, .result = -EINVAL});
        swap = sets_open("threads");
        assert_int_equal(st_fault_disarm(), 1);
        kept_log_end();
        assert_int_equal(kept_log.count, 1);
        assert_non_null(strstr(kept_log.last, sets_dirs[file / VOLUMES]));
        st_swap_info(swap, &info);
        assert_false(info.direct);
        for (uint32_t d = 0; d < DIRS; d++) {
            st_swap_dir_info(swap, d, &part);
            assert_int_equal(part.direct, d != file / VOLUMES);
        }
        st_swap_close(swap);
    }
    sets_assert_nothing_left();
}

/* What is linked outlives the run, whole; the set is not reusable while it is. */
TEST(links_keep_the_data)
{
    struct sets_attached a;
    struct st_swap *swap = sets_open("auto");
    bool crossed = true;

    assert_int_equal(sets_write(swap, 3, 1), STRATA_OK);
    assert_true(st_swap_reusable(swap, 1));
    assert_int_equal(sets_link(swap, 3, &crossed), STRATA_OK);
    assert_false(crossed);
    assert_false(st_swap_reusable(swap, 1));
    assert_true(st_swap_reusable(swap, 0) && st_swap_reusable(swap, 2));
    assert_int_equal(sets_link(swap, 3, &crossed), STRATA_E_IO); /* the name is there */
    assert_non_null(strstr(strata_last_error(), "set-1-0: cannot be linked as volume-3.0: File exists"));
    st_swap_close(swap);
    sets_assert_nothing_left();
    assert_int_equal(scratch_entries(sets_checkpoint, NULL), DIRS);

    swap = sets_open("auto");
    assert_int_equal(sets_attach(swap, 3, st_swap_stripe(swap), &a), STRATA_OK);
    assert_true(a.volume >= VOLUMES);
    assert_true(sets_hold(swap, a.volume, SET, 1));
    for (uint32_t d = 0; d < DIRS; d++) { /* each file by the queue of its own directory */
        struct st_mover_counters c;

        st_swap_dir_counters(swap, d, &c);
        assert_int_equal(c.bytes_read, st_stripe_file_bytes(st_swap_stripe(swap), d, SET));
    }
    assert_int_equal(sets_write(swap, a.volume, 2), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), a.path[0]));
    assert_int_equal(sets_write(swap, 3, 2), STRATA_OK);
    assert_true(sets_hold(swap, a.volume, SET, 1));
    st_swap_detach(swap, a.volume);
    sets_close_attached(&a);
    assert_int_equal(sets_move(swap, ST_IO_READ, a.volume, 0, NULL), STRATA_E_INVAL);
    st_swap_close(swap);
    sets_empty_checkpoint();
    sets_assert_nothing_left();
}

/* With one name gone or another file in its place the set is not the swap's own. */
TEST(only_sets_of_ones_own_are_reusable)
{
    struct st_swap *swap = sets_open("threads");
    bool crossed;
    int reader;

    assert_int_equal(sets_link(swap, 2, &crossed), STRATA_OK);
    assert_false(st_swap_reusable(swap, 0));
    reader = openat(swap->parts[1].run.dir_fd, "set-0-1", O_RDONLY | O_CLOEXEC);
    assert_true(reader >= 0 && flock(reader, LOCK_SH) == 0);
    sets_empty_checkpoint();
    assert_false(st_swap_reusable(swap, 0)); /* who began to read the checkpoint reads on */
    close(reader);
    assert_true(st_swap_reusable(swap, 0));
    assert_int_equal(sets_link(swap, 2, &crossed), STRATA_OK);
    assert_int_equal(unlinkat(swap->parts[1].run.dir_fd, "set-0-1", 0), 0); /* one link is left, the checkpoint's */
    assert_int_equal(unlinkat(swap->parts[0].run.dir_fd, "set-0-0", 0), 0);
    assert_false(st_swap_reusable(swap, 0));
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.stat", .count = 1, .result = -EIO});
    assert_false(st_swap_reusable(swap, 1));
    assert_int_equal(st_fault_disarm(), 1);
    st_swap_close(swap);
    sets_empty_checkpoint();
    sets_assert_nothing_left();
}

TEST(renewed_sets_are_new)
{
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct st_swap *swap = sets_open(methods[m]);
        const bool fake = strcmp(methods[m], "fake") == 0;
        struct sets_attached a;
        bool crossed;

        for (uint32_t v = 2; v < VOLUMES; v++)
            assert_int_equal(sets_write(swap, v, v), STRATA_OK);
        assert_int_equal(sets_link(swap, 3, &crossed), fake ? STRATA_E_NOSYS : STRATA_OK);
        for (uint32_t round = 0; round < 3; round++) {
            assert_int_equal(st_swap_renew(swap, 1), STRATA_OK);
            assert_true(st_swap_reusable(swap, 1));
            assert_false(sets_hold(swap, 3, SET, 3));
            assert_int_equal(sets_write(swap, 3, 30 + round), STRATA_OK);
            assert_true(sets_hold(swap, 3, SET, 30 + round));
            assert_true(sets_hold(swap, 2, SET, 2) && sets_hold(swap, 4, SET, 4));
        }
        if (fake) {
            assert_int_equal(st_swap_attach(swap, &(struct st_volume_opts){.stripe = st_swap_stripe(swap)}, &a.volume),
                             STRATA_E_NOSYS);
        } else {
            assert_int_equal(sets_attach(swap, 3, st_swap_stripe(swap), &a), STRATA_OK);
            assert_true(sets_hold(swap, a.volume, SET, 3));
            st_swap_detach(swap, a.volume);
            sets_close_attached(&a);
        }
        st_swap_close(swap);
        sets_empty_checkpoint();
        sets_assert_nothing_left();
    }
}

/* As of a run on few ranks that goes on from one on many: more files than a run has of its own. */
TEST(a_checkpoint_of_many_ranks_is_attached)
{
    static struct st_volume_file files[150 * DIRS];
    struct st_swap *swap = sets_open("auto");
    struct st_volume_opts opts = {.stripe = st_swap_stripe(swap), .files = files, .bytes = SET, .spaces = 150};
    struct sets_attached a;
    uint32_t volume;
    bool crossed;

    assert_int_equal(sets_write(swap, 3, 3), STRATA_OK);
    assert_int_equal(sets_link(swap, 3, &crossed), STRATA_OK);
    assert_int_equal(sets_attach(swap, 3, st_swap_stripe(swap), &a), STRATA_OK);
    for (uint32_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        files[i] = a.files[i % DIRS];
    assert_int_equal(st_swap_attach(swap, &opts, &volume), STRATA_OK);
    assert_true(sets_hold(swap, volume, SET, 3));
    st_swap_detach(swap, volume);
    assert_true(sets_hold(swap, a.volume, SET, 3));
    st_swap_detach(swap, a.volume);
    sets_close_attached(&a);
    st_swap_close(swap);
    sets_empty_checkpoint();
    sets_assert_nothing_left();
}

/* The checkpoint stays whole, the set holds what it held, nobody takes it for free; and the next try works. */
TEST(a_failed_renewal_can_be_repeated)
{
    static const struct {
        const char *site, *text;
        uint32_t after;
        int64_t result;
        strata_status st;
    } rows[] = {
        {"nvme.unlink", "set-0-0: cannot be removed", 0, -EIO, STRATA_E_IO},
        {"nvme.unlink", "set-0-1: cannot be removed", 1, -EIO, STRATA_E_IO},
        {"nvme.open", "set-0-0: cannot create it", 0, -EMFILE, STRATA_E_IO},
        {"nvme.open", "set-0-1: cannot create it", 1, -EMFILE, STRATA_E_IO},
        {"nvme.fallocate", "set-0-0: cannot reserve", 0, -ENOSPC, STRATA_E_NOSPC},
        {"nvme.fallocate", "set-0-1: cannot reserve", 1, -ENOSPC, STRATA_E_NOSPC},
        {"nvme.alloc", "no memory", 0, -ENOMEM, STRATA_E_NOMEM},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_swap *swap = sets_open("threads");
        struct sets_attached a;
        bool crossed;

        assert_int_equal(sets_write(swap, 2, 5), STRATA_OK);
        assert_int_equal(sets_link(swap, 2, &crossed), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .after = rows[i].after, .count = 1, .result = rows[i].result});
        assert_int_equal(st_swap_renew(swap, 0), rows[i].st);
        assert_int_equal(st_fault_disarm(), 1);
        assert_non_null(strstr(strata_last_error(), rows[i].text));
        assert_false(st_swap_reusable(swap, 0));
        assert_true(sets_hold(swap, 2, SET, 5));
        assert_int_equal(st_swap_renew(swap, 0), STRATA_OK);
        assert_true(st_swap_reusable(swap, 0));
        assert_int_equal(sets_write(swap, 2, 6), STRATA_OK);
        assert_int_equal(sets_attach(swap, 2, st_swap_stripe(swap), &a), STRATA_OK);
        assert_true(sets_hold(swap, a.volume, SET, 5));
        sets_close_attached(&a);
        st_swap_close(swap);
        sets_empty_checkpoint();
        sets_assert_nothing_left();
    }
}

/* Where a link cannot be had it is said, to be copied; anything else is an error that names both. */
TEST(a_link_across_is_told)
{
    static const struct {
        int64_t result;
        bool crossed;
        strata_status st;
    } rows[] = {
        {-EXDEV, true, STRATA_OK},  {-EPERM, true, STRATA_OK},        {-EMLINK, true, STRATA_OK},
        {-ENOSYS, true, STRATA_OK}, {-EOPNOTSUPP, true, STRATA_OK},   {-ENOSPC, false, STRATA_E_NOSPC},
        {-EIO, false, STRATA_E_IO}, {-EDQUOT, false, STRATA_E_NOSPC}, {-EROFS, false, STRATA_E_IO},
    };
    struct st_swap *swap = sets_open("threads");
    bool crossed;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .result = rows[i].result});
        assert_int_equal(sets_link(swap, 1, &crossed), rows[i].st);
        st_fault_disarm();
        assert_int_equal(crossed, rows[i].crossed);
        assert_int_equal(scratch_entries(sets_checkpoint, NULL), 0);
    }
    if (mount("strata-test", sets_checkpoint, "tmpfs", 0, "size=1m") == 0) {
        assert_int_equal(sets_link(swap, 1, &crossed), STRATA_OK);
        assert_true(crossed);
        assert_int_equal(umount2(sets_checkpoint, MNT_DETACH), 0);
    }
    st_swap_close(swap);
    sets_assert_nothing_left();
}

TEST_GROUP(sets_create, scratch_remove);
