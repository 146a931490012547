/* tests/nvme/test_swap_loop.c - small disks that are real file systems: two loop devices, mounted where no other process sees
 * them.  Needs root, losetup and mkfs.ext4; skipped elsewhere. */
#include "nvme/swap/swap.h"
#include "swap_fixture.h"
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

#define MIB   (UINT64_C(1) << 20)
#define DISKS 2u

static char paths[DISKS][64];
static const char *const dirs[] = {paths[0], paths[1]};
static const unsigned disk_mib[DISKS] = {16, 48};

static void assert_works(struct st_swap *swap, uint64_t bytes)
{
    unsigned char *out = aligned_alloc(ST_SWAP_ALIGN, bytes), *in = aligned_alloc(ST_SWAP_ALIGN, bytes);

    assert_non_null(out);
    assert_non_null(in);
    for (uint64_t i = 0; i < bytes; i++)
        out[i] = (unsigned char)(i * 2654435761u >> 13);
    assert_int_equal(swap_move(swap, ST_IO_WRITE, out, bytes), STRATA_OK);
    assert_int_equal(swap_move(swap, ST_IO_READ, in, bytes), STRATA_OK);
    assert_memory_equal(out, in, bytes);
    free(out);
    free(in);
}

static strata_status open_swap(struct st_swap **swap, void **state, uint64_t bytes, const double *rates)
{
    return st_swap_open(
        swap, &(struct st_swap_opts){.dirs = dirs, .dir_count = 2, .dir_rates = rates, .bytes = {bytes}, .method = *state});
}

/* The small disk lacks its half; the large one, which comes second, is left as it was. */
static void a_small_disk_is_found_at_start(void **state)
{
    struct st_swap *swap;

    assert_int_equal(open_swap(&swap, state, 40 * MIB, NULL), STRATA_E_NOSPC);
    assert_non_null(strstr(strata_last_error(), paths[0]));
    assert_int_equal(scratch_entries(paths[0], "lost+found") + scratch_entries(paths[1], "lost+found"), 0);
}

static void parts_by_rate_fit_what_halves_do_not(void **state)
{
    static const double rates[] = {1e9, 4e9};
    struct st_swap_dir_info part;
    struct st_swap *swap;
    uint64_t equal, shared;

    assert_int_equal(st_swap_room(dirs, 2, NULL, 0, &equal, NULL), STRATA_OK);
    assert_int_equal(st_swap_room(dirs, 2, rates, 0, &shared, NULL), STRATA_OK);
    assert_true(equal < 32 * MIB && shared > 30 * MIB && shared > equal);
    assert_int_equal(open_swap(&swap, state, 30 * MIB, rates), STRATA_OK);
    st_swap_dir_info(swap, 0, &part);
    assert_int_equal(part.bytes, 6 * MIB);
    assert_works(swap, 30 * MIB);
    st_swap_close(swap);
    assert_int_equal(scratch_entries(paths[0], "lost+found") + scratch_entries(paths[1], "lost+found"), 0);
}

/* What is reserved stays ours on a full disk. */
static void a_disk_that_fills_later_does_no_harm(void **state)
{
    char path[192];
    struct st_swap *swap;
    uint64_t free_bytes;
    int fd;

    assert_int_equal(open_swap(&swap, state, 10 * MIB, NULL), STRATA_OK);
    for (uint32_t d = 0; d < DISKS; d++) {
        assert_int_equal(st_swap_free_bytes(dirs[d], &free_bytes), STRATA_OK);
        snprintf(path, sizeof(path), "%s/filler", paths[d]);
        fd = open(path, O_CREAT | O_RDWR, 0600);
        assert_true(fd >= 0);
        (void)posix_fallocate(fd, 0, (off_t)free_bytes);
        close(fd);
    }
    assert_works(swap, 10 * MIB);
    st_swap_close(swap);
    for (uint32_t d = 0; d < DISKS; d++) {
        snprintf(path, sizeof(path), "%s/filler", paths[d]);
        assert_int_equal(unlink(path), 0);
        assert_int_equal(scratch_entries(paths[d], "lost+found"), 0);
    }
}

static void a_disk_that_turns_read_only_is_named(void **state)
{
    struct st_swap *swap;

    if (mount(NULL, paths[1], NULL, MS_REMOUNT | MS_RDONLY, NULL) != 0)
        skip();
    assert_int_equal(open_swap(&swap, state, 4 * MIB, NULL), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), paths[1]));
    assert_int_equal(scratch_entries(paths[0], "lost+found"), 0);
    assert_int_equal(mount(NULL, paths[1], NULL, MS_REMOUNT, NULL), 0);
}

/* mount's loop option frees the device with the last use: also where this process dies. */
static bool disk_mount(uint32_t d)
{
    char command[256];

    snprintf(command, sizeof(command), "mount -o loop %s.img %s >/dev/null 2>&1", paths[d], paths[d]);
    return system(command) == 0;
}

/* The kernel holds no file of a swap that is closed. */
static void a_disk_can_be_unmounted_at_once(void **state)
{
    struct st_swap *swap;

    for (uint32_t i = 0; i < 10; i++) {
        assert_int_equal(open_swap(&swap, state, 4 * MIB, NULL), STRATA_OK);
        assert_works(swap, 4 * MIB);
        st_swap_close(swap);
        for (uint32_t d = 0; d < DISKS; d++) {
            assert_int_equal(umount2(paths[d], 0), 0);
            assert_true(disk_mount(d));
        }
    }
}

static bool disk_create(uint32_t d)
{
    char command[1024];

    snprintf(paths[d], sizeof(paths[d]), "%s/disk-%u", scratch_dir, d);
    snprintf(command, sizeof(command), "(truncate -s %uM %s.img && mkfs.ext4 -q -F -m 0 %s.img) >/dev/null 2>&1", disk_mib[d],
             paths[d], paths[d]);
    return mkdir(paths[d], 0700) == 0 && system(command) == 0 && disk_mount(d);
}

static void disk_destroy(uint32_t d)
{
    char image[160];

    if (paths[d][0] == '\0')
        return;
    (void)umount2(paths[d], 0);
    snprintf(image, sizeof(image), "%s.img", paths[d]);
    (void)unlink(image);
    (void)rmdir(paths[d]);
}

#define loop_test(method, test) cmocka_unit_test_prestate(test, (void *)(uintptr_t)(method))

/* With every method that this machine has, on the same disks. */
static int run_all(void)
{
    int failed = 0;

    for (const struct st_io_ops *const *ops = st_io_methods; *ops != NULL; ops++) {
        const char *method = (*ops)->name;
        const struct CMUnitTest tests[] = {
            loop_test(method, a_small_disk_is_found_at_start),       loop_test(method, parts_by_rate_fit_what_halves_do_not),
            loop_test(method, a_disk_that_fills_later_does_no_harm), loop_test(method, a_disk_can_be_unmounted_at_once),
            loop_test(method, a_disk_that_turns_read_only_is_named),
        };
        struct st_io *io;

        if (strcmp(method, "fake") == 0)
            continue;
        if ((*ops)->open(&io, &(struct st_io_opts){.queue_depth = 1}) != STRATA_OK) {
            print_message("%s: not tested on this machine: %s\n", method, strata_last_error());
            continue;
        }
        (*ops)->close(io);
        failed += cmocka_run_group_tests_name(method, tests, NULL, NULL);
    }
    return failed;
}

TEST_MAIN(argc, argv)
{
    int failed = 77;

    if (!swap_private_mounts() || scratch_create(NULL) != 0)
        return 77;
    if (disk_create(0) && disk_create(1))
        failed = run_all();
    else
        print_message("no loop devices or no mkfs.ext4 here\n");
    for (uint32_t d = 0; d < DISKS; d++)
        disk_destroy(d);
    (void)scratch_remove(NULL);
    return failed;
}
