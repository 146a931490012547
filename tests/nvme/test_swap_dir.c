/* tests/nvme/test_swap_dir.c - what a swap leaves on the disk: locks, orphans, foreign files, full and read-only disks. */
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "nvme/swap/swap.h"
#include "nvme/swap/swap_internal.h"
#include "swap_fixture.h"
#include "tests/common/child.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/common/whole_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MIB    (1u << 20)
#define MARKER "strata swap lock 1\n"

/* As under a filter of system calls that does not know faccessat2 yet (Docker's before 20.10), by which the C library makes this
 * call: that it is refused says nothing of the name. */
int faccessat(int dir_fd, const char *name, int mode, int flags)
{
    (void)dir_fd;
    (void)name;
    (void)mode;
    (void)flags;
    errno = EPERM;
    return -1;
}

/* What is left but for the file of test_users.c. */
static uint32_t entries_in(const char *path)
{
    return scratch_entries(path, ST_USERS_FILE_NAME);
}

/* Path of the one run directory in `dir`. */
static void run_path(char path[PATH_MAX], const char *dir)
{
    DIR *stream = opendir(dir);
    uint32_t count = 0;

    assert_non_null(stream);
    for (struct dirent *entry; (entry = readdir(stream)) != NULL;)
        if (strncmp(entry->d_name, "strata-", 7) == 0) {
            snprintf(path, PATH_MAX, "%s/%s", dir, entry->d_name);
            count++;
        }
    closedir(stream);
    assert_int_equal(count, 1);
}

static strata_status swap_open(struct st_swap **swap, const char *dir, uint64_t bytes)
{
    return st_swap_open(
        swap, &(struct st_swap_opts){.dirs = &dir, .dir_count = 1, .bytes = {bytes}, .method = "threads", .queue_depth = 2});
}

static void assert_swap_works(struct st_swap *swap)
{
    unsigned char *block = aligned_alloc(ST_SWAP_ALIGN, ST_SWAP_ALIGN);

    assert_non_null(block);
    memset(block, 0xa5, ST_SWAP_ALIGN);
    assert_int_equal(swap_move(swap, ST_IO_WRITE, block, ST_SWAP_ALIGN), STRATA_OK);
    memset(block, 0, ST_SWAP_ALIGN);
    assert_int_equal(swap_move(swap, ST_IO_READ, block, ST_SWAP_ALIGN), STRATA_OK);
    assert_int_equal(block[0], 0xa5);
    assert_int_equal(block[ST_SWAP_ALIGN - 1], 0xa5);
    free(block);
}

static void write_text(const char *dir, const char *name, const char *text)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    write_file(path, text, strlen(text));
}

static void remove_path(const char *dir, const char *name)
{
    char path[PATH_MAX + 64];

    snprintf(path, sizeof(path), "%s/%s", dir, name);
    assert_int_equal(remove(path), 0);
}

TEST(a_run_is_locked_reserved_and_leaves_nothing)
{
    char run[PATH_MAX], path[PATH_MAX + 16], text[64] = "", expected[64];
    struct st_swap *swap;
    struct stat info;
    int fd;

    assert_int_equal(swap_open(&swap, scratch_dir, 4 * MIB), STRATA_OK);
    run_path(run, scratch_dir);
    assert_int_equal(strlen(strrchr(run, '/')), strlen("/strata-") + 16);
    assert_int_equal(stat(run, &info), 0);
    assert_int_equal(info.st_mode & 0777, 0700);
    assert_int_equal(entries_in(run), 2);

    snprintf(path, sizeof(path), "%s/lock", run);
    fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), -1);
    assert_int_equal(errno, EWOULDBLOCK);
    assert_true(read(fd, text, sizeof(text) - 1) > 0);
    close(fd);
    snprintf(expected, sizeof(expected), MARKER "pid %ld\n", (long)getpid());
    assert_string_equal(text, expected);

    snprintf(path, sizeof(path), "%s/swap-0", run);
    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_size, 4 * MIB);
    assert_true((uint64_t)info.st_blocks * 512 >= 4 * MIB);
    assert_swap_works(swap);
    st_swap_close(swap);
    assert_int_equal(entries_in(scratch_dir), 0);
}

TEST(two_runs_live_side_by_side)
{
    struct st_swap *a, *b;

    assert_int_equal(swap_open(&a, scratch_dir, MIB), STRATA_OK);
    assert_int_equal(swap_open(&b, scratch_dir, MIB), STRATA_OK); /* sweeps, too: a is alive */
    assert_int_equal(entries_in(scratch_dir), 2);
    assert_int_equal(st_swap_sweep(scratch_dir), 0);
    assert_swap_works(a);
    assert_swap_works(b);
    st_swap_close(a);
    assert_int_equal(entries_in(scratch_dir), 1);
    assert_swap_works(b);
    st_swap_close(b);
    assert_int_equal(entries_in(scratch_dir), 0);
}

/* A process that opens a swap and waits to be killed.  Returns once the swap is open. */
static pid_t start_owner(void)
{
    int ends[2];
    char byte;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = child_fork();
    if (pid == 0) {
        struct st_swap *swap;

        if (swap_open(&swap, scratch_dir, MIB) != STRATA_OK || write(ends[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    return pid;
}

TEST(only_a_dead_owner_s_directory_is_swept)
{
    struct st_swap *swap;
    pid_t dead, alive;

    dead = start_owner();
    child_kill(dead);
    assert_int_equal(entries_in(scratch_dir), 1);
    alive = start_owner(); /* its open sweeps the first */
    assert_int_equal(entries_in(scratch_dir), 1);
    assert_int_equal(st_swap_sweep(scratch_dir), 0);
    assert_int_equal(swap_open(&swap, scratch_dir, MIB), STRATA_OK);
    assert_int_equal(entries_in(scratch_dir), 2);
    child_kill(alive);
    assert_int_equal(st_swap_sweep(scratch_dir), 1);
    assert_swap_works(swap);
    st_swap_close(swap);
    assert_int_equal(entries_in(scratch_dir), 0);
    assert_int_equal(st_swap_sweep("/nowhere/at/all"), 0);
}

/* The directory's lock does not reach other hosts, the file's does where the file system has such: either says that the owner
 * lives. */
TEST(either_lock_says_that_the_owner_lives)
{
    static const char *const locked[] = {"", "lock"};
    char run[PATH_MAX], path[PATH_MAX + 16];

    snprintf(run, sizeof(run), "%s/strata-0123456789abcdef", scratch_dir);
    for (size_t i = 0; i < 2; i++) {
        int fd;

        assert_int_equal(mkdir(run, 0700), 0);
        write_text(run, "lock", MARKER "pid 1\n");
        snprintf(path, sizeof(path), "%s/%s", run, locked[i]);
        assert_true((fd = open(path, O_RDONLY | O_CLOEXEC)) >= 0);
        assert_int_equal(flock(fd, LOCK_EX | LOCK_NB), 0);
        assert_int_equal(st_swap_sweep(scratch_dir), 0);
        assert_int_equal(entries_in(run), 1);
        close(fd);
        assert_int_equal(st_swap_sweep(scratch_dir), 1);
        assert_int_equal(entries_in(scratch_dir), 0);
    }
}

TEST(foreign_files_are_never_deleted)
{
    char user[PATH_MAX], other[PATH_MAX], orphan[PATH_MAX], target[PATH_MAX], link[PATH_MAX], bare[PATH_MAX];

    snprintf(user, sizeof(user), "%s/strata-0123456789abcdef", scratch_dir);     /* our name, no lock */
    snprintf(other, sizeof(other), "%s/strata-0123456789abcde0", scratch_dir);   /* a lock file of somebody else */
    snprintf(orphan, sizeof(orphan), "%s/strata-0123456789abcde1", scratch_dir); /* ours, dead, with a foreign file */
    snprintf(target, sizeof(target), "%s/strata-backup", scratch_dir);           /* a marked lock, but not our name */
    snprintf(link, sizeof(link), "%s/strata-0123456789abcde2", scratch_dir);     /* our name, but a link */
    snprintf(bare, sizeof(bare), "%s/strata-0123456789abcde3", scratch_dir);     /* a file */
    assert_int_equal(mkdir(user, 0700) | mkdir(other, 0700) | mkdir(orphan, 0700) | mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, link), 0);
    write_text(user, "swap-0", "mine");
    write_text(other, "lock", "somebody's");
    write_text(other, "swap-0", "mine");
    write_text(orphan, "lock", MARKER "pid 1\n");
    write_text(orphan, "swap-0", "");
    write_text(orphan, "notes.txt", "mine");
    write_text(target, "lock", MARKER "pid 1\n");
    write_text(target, "swap-0", "mine");
    write_text(scratch_dir, "strata-0123456789abcde3", "mine");

    assert_int_equal(st_swap_sweep(scratch_dir), 0);
    assert_int_equal(entries_in(user), 1);
    assert_int_equal(entries_in(other), 2);
    assert_int_equal(entries_in(orphan), 1);
    assert_int_equal(entries_in(target), 2);
    assert_int_equal(access(bare, F_OK) | access(link, F_OK), 0);

    remove_path(user, "swap-0");
    remove_path(other, "lock");
    remove_path(other, "swap-0");
    remove_path(orphan, "notes.txt");
    remove_path(target, "lock");
    remove_path(target, "swap-0");
    assert_int_equal(unlink(link) | unlink(bare) | rmdir(user) | rmdir(other) | rmdir(orphan) | rmdir(target), 0);
    assert_int_equal(entries_in(scratch_dir), 0);
}

TEST(a_wrong_directory_is_named)
{
    char path[PATH_MAX];
    struct st_swap *swap;
    uint64_t bytes;

    snprintf(path, sizeof(path), "%s/missing", scratch_dir);
    assert_int_equal(swap_open(&swap, path, MIB), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), path));
    assert_non_null(strstr(strata_last_error(), "no such directory"));
    assert_int_equal(st_swap_free_bytes(path, &bytes), STRATA_E_INPUT);

    write_text(scratch_dir, "file", "mine");
    snprintf(path, sizeof(path), "%s/file", scratch_dir);
    assert_int_equal(swap_open(&swap, path, MIB), STRATA_E_INPUT);
    assert_non_null(strstr(strata_last_error(), "not a directory"));
    assert_int_equal(st_swap_free_bytes(path, &bytes), STRATA_E_INPUT);
    snprintf(path, sizeof(path), "%s/file/below", scratch_dir);
    assert_int_equal(swap_open(&swap, path, MIB), STRATA_E_INPUT);
    remove_path(scratch_dir, "file");

    assert_int_equal(st_swap_free_bytes(scratch_dir, &bytes), STRATA_OK);
    assert_true(bytes > 0);
    assert_int_equal(swap_open(&swap, scratch_dir, UINT64_MAX - ST_SWAP_ALIGN + 1), STRATA_E_NOSPC);
    assert_non_null(strstr(strata_last_error(), scratch_dir));
    assert_int_equal(entries_in(scratch_dir), 0);
}

/* What each site says, and that nothing is left; the walk in test_swap.c covers the cleaning up. */
TEST(system_errors_have_their_status)
{
    static const struct {
        const char *site;
        int64_t result;
        strata_status st;
        const char *text;
    } rows[] = {
        {"owned.mkdir", -EROFS, STRATA_E_IO, "Read-only"},
        {"owned.mkdir", -EACCES, STRATA_E_IO, "strata.nvme"},
        {"owned.mkdir", -ENOSPC, STRATA_E_NOSPC, "free space"},
        {"owned.mkdir", -EEXIST, STRATA_E_IO, "File exists"},
        {"owned.lock", -ENOLCK, STRATA_E_IO, "cannot lock"},
        {"owned.mark", -EDQUOT, STRATA_E_NOSPC, "lock file"},
        {"owned.sync", -EIO, STRATA_E_IO, "lock file"},
        {"owned.random", -EIO, STRATA_E_IO, "run directory"},
        {"nvme.statvfs", -EIO, STRATA_E_IO, "free space of"},
        {"nvme.open", -EMFILE, STRATA_E_IO, "Too many open files"},
        {"nvme.fallocate", -ENOSPC, STRATA_E_NOSPC, "cannot reserve 1.00 MiB"},
        {"nvme.fallocate", -EDQUOT, STRATA_E_NOSPC, "cannot reserve 1.00 MiB"},
        {"nvme.fallocate", -EFBIG, STRATA_E_NOSPC, "name another directory"},
        {"nvme.fallocate", -EIO, STRATA_E_IO, "swap-0: cannot reserve"},
        {"thread.start", -EAGAIN, STRATA_E_NOMEM, "ulimit -u"},
        {"nvme.alloc", -ENOMEM, STRATA_E_NOMEM, "no memory"},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_swap *swap;

        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .result = rows[i].result});
        assert_int_equal(swap_open(&swap, scratch_dir, MIB), rows[i].st);
        assert_true(st_fault_disarm() > 0);
        assert_non_null(strstr(strata_last_error(), rows[i].text));
        assert_int_equal(entries_in(scratch_dir), 0);
    }
}

static void run_files(const struct st_swap *swap, uint32_t count)
{
    assert_int_equal(scratch_entries(swap->parts[0].run.path, NULL), count);
}

TEST(unlink_all_empties_the_disk_and_breaks_nothing)
{
    struct st_swap *a, *b;
    pid_t child;

    assert_int_equal(swap_open(&a, scratch_dir, MIB), STRATA_OK);
    assert_int_equal(swap_open(&b, scratch_dir, MIB), STRATA_OK);
    assert_int_equal(entries_in(scratch_dir), 2);
    child = child_fork();
    if (child == 0) { /* it ends as its parent would: what is there is not its own */
        st_cleanup_run();
        _exit(0);
    }
    assert_int_equal(child_wait(child), 0);
    assert_int_equal(entries_in(scratch_dir), 2);
    run_files(a, 2);
    run_files(b, 2);
    st_cleanup_run();
    assert_int_equal(entries_in(scratch_dir), 0);
    assert_swap_works(a);
    assert_swap_works(b);
    st_swap_close(a);
    st_swap_close(b);
    st_cleanup_run();
}

TEST(cleanup_covers_33_swaps)
{
    struct st_swap *swaps[33];

    for (uint32_t i = 0; i < 33; i++)
        assert_int_equal(swap_open(&swaps[i], scratch_dir, ST_SWAP_ALIGN), STRATA_OK);
    st_cleanup_run();
    assert_int_equal(entries_in(scratch_dir), 0);
    for (uint32_t i = 0; i < 33; i++)
        st_swap_close(swaps[i]);
}

/* A tmpfs of its own for each test; in a mount namespace of this process, so that nothing outlives it. */
static bool mount_small(const char *options, unsigned long flags)
{
    if (mount("strata-test", scratch_dir, "tmpfs", flags, options) == 0)
        return true;
    print_message("no tmpfs can be mounted here (%s): not tested\n", strerror(errno));
    return false;
}

static void unmount_small(void)
{
    assert_int_equal(umount2(scratch_dir, MNT_DETACH), 0);
}

TEST(a_read_only_disk_is_an_io_error)
{
    struct st_swap *swap;

    if (!mount_small("size=8m", MS_RDONLY))
        skip();
    assert_int_equal(swap_open(&swap, scratch_dir, MIB), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), "Read-only"));
    assert_non_null(strstr(strata_last_error(), scratch_dir));
    unmount_small();
}

TEST(a_full_disk_is_found_at_open)
{
    struct st_owned_dir run;
    struct st_swap *swap, *second;
    bool direct;
    int fd;

    if (!mount_small("size=8m", 0))
        skip();
    assert_int_equal(swap_open(&swap, scratch_dir, 16 * MIB), STRATA_E_NOSPC);
    assert_non_null(strstr(strata_last_error(), "16.0 MiB"));
    assert_int_equal(entries_in(scratch_dir), 0);

    /* Past the first look at the free space: the reservation itself fails, and takes back what it got. */
    assert_int_equal(st_owned_dir_create(&run, &st_run_dir_kind, scratch_dir), STRATA_OK);
    assert_int_equal(st_swap_file_create(&fd, &direct, &run, "swap-0", 16 * MIB, 0600), STRATA_E_NOSPC);
    assert_non_null(strstr(strata_last_error(), "swap-0: cannot reserve 16.0 MiB"));
    st_owned_dir_remove(&run);
    assert_int_equal(entries_in(scratch_dir), 0);

    /* What is reserved is gone for others: the first run cannot run out of it. */
    assert_int_equal(swap_open(&swap, scratch_dir, 6 * MIB), STRATA_OK);
    assert_int_equal(swap_open(&second, scratch_dir, 4 * MIB), STRATA_E_NOSPC);
    assert_int_equal(entries_in(scratch_dir), 1);
    assert_swap_works(swap);
    st_swap_close(swap);
    assert_int_equal(entries_in(scratch_dir), 0);
    unmount_small();
}

/* Not what the file system keeps for its administrator. */
TEST(free_bytes_are_those_of_every_user)
{
    struct statvfs before, after;
    uint64_t bytes = 0;

    for (uint32_t tries = 0; tries == 0 || (before.f_bavail != after.f_bavail && tries < 1000); tries++) { /* others write, too */
        assert_int_equal(statvfs(scratch_dir, &before), 0);
        assert_int_equal(st_swap_free_bytes(scratch_dir, &bytes), STRATA_OK);
        assert_int_equal(statvfs(scratch_dir, &after), 0);
    }
    assert_int_equal(bytes, before.f_bavail * before.f_frsize);
    if (mount_small("size=8m", 0)) {
        assert_int_equal(st_swap_free_bytes(scratch_dir, &bytes), STRATA_OK);
        assert_int_equal(bytes, 8 * MIB);
        unmount_small();
    }
}

TEST(memory_backed_files_are_buffered)
{
    struct st_swap_info info;
    struct st_swap *swap;

    if (!mount_small("size=8m", 0))
        skip();
    assert_int_equal(swap_open(&swap, scratch_dir, MIB), STRATA_OK);
    st_swap_info(swap, &info);
    assert_false(info.direct);
    assert_swap_works(swap);
    st_swap_close(swap);
    unmount_small();
}

static bool statx_is_silent;

int statx(int dir, const char *path, int flags, unsigned mask, struct statx *out)
{
    if (!statx_is_silent)
        return (int)syscall(SYS_statx, dir, path, flags, mask, out);
    errno = ENOSYS;
    return -1;
}

/* Without statx's word a trial read decides; without O_DIRECT the page cache does, and the file's flags say so. */
TEST(direct_io_is_tried_where_statx_is_silent)
{
    static const char *const sites[] = {"nvme.statx", "nvme.direct", "nvme.direct_read"};
    struct st_swap_info info, asked;
    struct st_swap *swap;

    assert_int_equal(swap_open(&swap, scratch_dir, MIB), STRATA_OK);
    st_swap_info(swap, &asked);
    st_swap_close(swap);
    for (size_t i = 0; i < 3; i++) {
        st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -EINVAL});
        statx_is_silent = i == 2;
        assert_int_equal(swap_open(&swap, scratch_dir, MIB), STRATA_OK);
        statx_is_silent = false;
        st_fault_disarm();
        st_swap_info(swap, &info);
        assert_int_equal(info.direct, i == 0 && asked.direct);
        assert_int_equal((fcntl(st_swap_fd(swap, 0, 0), F_GETFL) & O_DIRECT) != 0, info.direct);
        assert_swap_works(swap);
        st_swap_close(swap);
    }
}

TEST_MAIN(argc, argv)
{
    (void)swap_private_mounts();
    return test_run(scratch_create, scratch_remove);
}
