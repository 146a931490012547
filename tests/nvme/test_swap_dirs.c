/* tests/nvme/test_swap_dirs.c - one swap over several directories: bytes, parts, counters, errors, and what is left behind. */
#include "core/fault.h"
#include "core/log.h"
#include "core/rng.h"
#include "nvme/swap.h"
#include "nvme/swap_parts.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB   (UINT64_C(1) << 20)
#define BLOCK 65536u
#define BYTES (67 * (uint64_t)BLOCK + 8192)
#define MOVES 40u

static char root[] = "/tmp/strata-test-dirs-XXXXXX";
static char paths[3][64];
static const char *const dirs[] = {paths[0], paths[1], paths[2]};
static const double rates[] = {5e9, 3e9, 1e9};

static uint32_t entries_in(const char *path)
{
    uint32_t count = 0;
    DIR *dir = opendir(path);

    assert_non_null(dir);
    for (struct dirent *entry; (entry = readdir(dir)) != NULL;)
        count += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    closedir(dir);
    return count;
}

/* The files that say who shares a directory count, too. */
static void assert_nothing_left(void)
{
    for (uint32_t d = 0; d < 3; d++)
        assert_int_equal(entries_in(dirs[d]), 0);
}

static struct st_swap_opts options(const char *method, uint32_t dir_count, bool equal)
{
    return (struct st_swap_opts){.dirs = dirs,
                                 .dir_count = dir_count,
                                 .dir_rates = equal ? NULL : rates,
                                 .bytes = BYTES,
                                 .method = method,
                                 .block_bytes = BLOCK,
                                 .queue_depth = 6,
                                 .fake_seed = 3,
                                 .fake_latency_us = 30};
}

/* Ends when all of its transfers have. */
struct batch {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint32_t pending;
    strata_status status;
    char sentence[512];
    struct st_transfer moves[MOVES];
};

static void on_done(struct st_transfer *t, strata_status st)
{
    struct batch *b = t->owner;

    pthread_mutex_lock(&b->lock);
    if (st != STRATA_OK && b->status == STRATA_OK) {
        b->status = st;
        snprintf(b->sentence, sizeof(b->sentence), "%s", strata_last_error());
    }
    if (--b->pending == 0)
        pthread_cond_signal(&b->ended);
    pthread_mutex_unlock(&b->lock);
}

/* All of the space in pieces of random size, which lie anywhere over the units. */
static strata_status move_space(struct st_swap *swap, enum st_io_op op, unsigned char *buf, uint64_t seed, char sentence[512])
{
    struct batch b = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, MOVES, STRATA_OK, "", {{0}}};
    const uint64_t pages = BYTES / ST_SWAP_ALIGN;
    uint64_t at = 0;

    for (uint32_t i = 0; i < MOVES; i++) {
        const uint64_t left = pages - at, spread = 2 * pages / MOVES;
        uint64_t count = i + 1 < MOVES ? st_rng_u64(seed, 0, i) % spread : left;

        count = count < left ? count : left;
        b.moves[i] = (struct st_transfer){.op = op,
                                          .offset = at * ST_SWAP_ALIGN,
                                          .bytes = count * ST_SWAP_ALIGN,
                                          .buf = buf + at * ST_SWAP_ALIGN,
                                          .done = on_done,
                                          .owner = &b};
        at += count;
    }
    for (uint32_t i = 0; i < MOVES; i++)
        assert_int_equal(st_swap_submit(swap, &b.moves[i]), STRATA_OK);
    pthread_mutex_lock(&b.lock);
    while (b.pending > 0)
        pthread_cond_wait(&b.ended, &b.lock);
    pthread_mutex_unlock(&b.lock);
    if (sentence != NULL)
        snprintf(sentence, 512, "%s", b.sentence);
    return b.status;
}

static unsigned char *random_space(uint64_t seed)
{
    unsigned char *buf = aligned_alloc(ST_SWAP_ALIGN, BYTES);

    assert_non_null(buf);
    for (uint64_t i = 0; i < BYTES / 8; i++) {
        const uint64_t word = st_rng_u64(seed, 9, i);

        memcpy(buf + i * 8, &word, 8);
    }
    return buf;
}

static void assert_works(struct st_swap *swap, uint64_t seed)
{
    unsigned char *out = random_space(seed), *in = random_space(seed + 1);

    assert_int_equal(move_space(swap, ST_IO_WRITE, out, seed, NULL), STRATA_OK);
    assert_int_equal(move_space(swap, ST_IO_READ, in, seed + 2, NULL), STRATA_OK);
    assert_memory_equal(out, in, BYTES);
    free(out);
    free(in);
}

static bool has_method(const char *name)
{
    struct st_swap_opts opts = options(name, 1, true);
    struct st_swap *swap;

    if (st_io_find(name, NULL) == NULL || st_swap_open(&swap, &opts) != STRATA_OK)
        return false;
    st_swap_close(swap);
    return true;
}

static void parts_hold_what_the_pattern_says(struct st_swap *swap, uint32_t count, bool equal, bool on_disk)
{
    struct st_swap_counters all, sum = {0};
    struct st_stripe stripe;
    struct st_swap_info info;

    st_stripe_init(&stripe, count, equal ? NULL : rates, BLOCK);
    st_swap_info(swap, &info);
    assert_int_equal(info.dir_count, count);
    assert_int_equal(info.queue_depth, 6);
    for (uint32_t d = 0; d < count; d++) {
        struct st_swap_dir_info part;
        struct st_swap_counters c;
        struct stat file;

        st_swap_dir_info(swap, d, &part);
        st_swap_dir_counters(swap, d, &c);
        assert_int_equal(part.bytes, st_stripe_file_bytes(&stripe, d, BYTES));
        assert_int_equal(part.holders, 1);
        assert_int_equal(c.bytes_read, part.bytes);
        assert_int_equal(c.bytes_written, part.bytes);
        assert_true(part.bytes == 0 || (c.busy_read_ns > 0 && c.busy_write_ns > 0));
        sum.bytes_read += c.bytes_read;
        sum.bytes_written += c.bytes_written;
        if (!on_disk)
            continue;
        assert_int_equal(strncmp(part.path, dirs[d], strlen(dirs[d])), 0);
        assert_int_equal(stat(part.path, &file), 0);
        assert_int_equal(file.st_size, part.bytes);
        assert_true((uint64_t)file.st_blocks * 512 >= part.bytes);
    }
    st_swap_counters(swap, &all);
    assert_int_equal(all.bytes_read, sum.bytes_read);
    assert_int_equal(all.bytes_written, BYTES);
}

static void bytes_come_back_over_two_and_three(void **state)
{
    static const char *const names[] = {"uring", "aio", "threads", "fake"};

    (void)state;
    for (size_t m = 0; m < sizeof(names) / sizeof(names[0]); m++) {
        if (!has_method(names[m]))
            continue;
        for (uint32_t count = 2; count <= 3; count++) {
            for (int equal = 0; equal < 2; equal++) {
                const struct st_swap_opts opts = options(names[m], count, equal != 0);
                struct st_swap *swap;

                assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
                assert_works(swap, 100 * m + count);
                parts_hold_what_the_pattern_says(swap, count, equal != 0, strcmp(names[m], "fake") != 0);
                st_swap_close(swap);
                assert_nothing_left();
            }
        }
    }
}

/* More directories than units: some files are empty. */
static void little_space_leaves_files_empty(void **state)
{
    struct st_swap_opts opts = options("threads", 3, true);
    struct st_swap *swap;

    (void)state;
    opts.bytes = BLOCK + ST_SWAP_ALIGN;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    st_swap_close(swap);
    assert_nothing_left();
}

static void depth_is_automatic_where_none_is_given(void **state)
{
    struct st_swap_opts opts = options("auto", 2, true);
    struct st_swap_info info;
    struct st_swap *swap;

    (void)state;
    opts.queue_depth = 0;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    st_swap_info(swap, &info);
    assert_int_equal(info.queue_depth, 32);
    for (uint64_t i = 0; i < 8; i++)
        assert_works(swap, i);
    st_swap_info(swap, &info);
    assert_true(info.queue_depth >= 4);
    st_swap_close(swap);
    assert_nothing_left();
}

static void a_failing_directory_is_named(void **state)
{
    static const struct {
        const char *site;
        uint32_t after; /* passes of the first directory */
        int64_t result;
        strata_status st;
    } rows[] = {
        {"nvme.mkdir", 1, -EROFS, STRATA_E_IO},         {"nvme.mkdir", 1, -EACCES, STRATA_E_IO},
        {"nvme.lock", 1, -ENOLCK, STRATA_E_IO},         {"nvme.marker", 1, -EDQUOT, STRATA_E_NOSPC},
        {"nvme.fallocate", 1, -ENOSPC, STRATA_E_NOSPC}, {"nvme.fallocate", 1, -EIO, STRATA_E_IO},
        {"nvme.statvfs", 1, -EIO, STRATA_E_IO},
    };
    struct st_swap_opts opts = options("threads", 2, true);
    const char *missing[] = {paths[0], "/nowhere/at/all"};
    const double bad[] = {1e9, 0};
    struct st_swap *swap;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .after = rows[i].after, .result = rows[i].result});
        assert_int_equal(st_swap_open(&swap, &opts), rows[i].st);
        assert_true(st_fault_disarm() > 0);
        assert_non_null(strstr(strata_last_error(), paths[1]));
        assert_null(strstr(strata_last_error(), paths[0]));
        assert_nothing_left();
    }
    opts.dirs = missing;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "/nowhere/at/all"));
    opts.dirs = dirs;
    opts.dir_rates = bad;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    assert_nothing_left();
}

static void a_failed_request_names_its_file(void **state)
{
    const struct st_swap_opts opts = options("threads", 2, true);
    unsigned char *buf = random_space(1);
    char sentence[512];
    struct st_swap *swap;
    bool seen[2] = {false, false};

    (void)state;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    for (uint32_t after = 0; after < 12; after++) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.cqe", .after = after, .count = 1, .result = -EIO});
        assert_int_equal(move_space(swap, ST_IO_WRITE, buf, 1, sentence), STRATA_E_IO);
        assert_int_equal(st_fault_disarm(), 1);
        seen[0] = seen[0] || (strstr(sentence, paths[0]) != NULL && strstr(sentence, "/swap-0: write of") != NULL);
        seen[1] = seen[1] || (strstr(sentence, paths[1]) != NULL && strstr(sentence, "/swap-1: write of") != NULL);
    }
    assert_true(seen[0] && seen[1]);
    assert_works(swap, 5);
    st_swap_close(swap);
    free(buf);
    assert_nothing_left();
}

static void keep_quiet(void *ctx, enum st_log_level level, const char *line)
{
    (void)ctx;
    (void)level;
    (void)line;
}

static void every_single_failure_is_clean(void **state)
{
    const struct st_swap_opts opts = options("threads", 2, false);
    unsigned char *out = random_space(1), *in = random_space(2);
    uint32_t fired = 1, failed = 0;

    (void)state;
    st_log_configure(keep_quiet, NULL, ST_LOG_DEBUG);
    for (uint32_t nth = 0; fired > 0; nth++) {
        struct st_swap *swap;
        strata_status st;

        memset(in, 0, BYTES);
        st_fault_arm(&(struct st_fault_spec){.after = nth, .count = 1, .result = -EIO});
        if ((st = st_swap_open(&swap, &opts)) == STRATA_OK) {
            if ((st = move_space(swap, ST_IO_WRITE, out, 1, NULL)) == STRATA_OK)
                st = move_space(swap, ST_IO_READ, in, 2, NULL);
            st_swap_close(swap);
        }
        fired = st_fault_disarm();
        assert_true(fired > 0 || st == STRATA_OK);
        if (st == STRATA_OK)
            assert_memory_equal(out, in, BYTES);
        failed += st != STRATA_OK;
        for (uint32_t d = 0; d < 2; d++)
            st_swap_sweep(dirs[d]);
        assert_nothing_left();
    }
    assert_true(failed > 100); /* each completion, at least */
    st_log_configure(NULL, NULL, ST_LOG_INFO);
    free(out);
    free(in);
}

static void two_runs_share_both_directories(void **state)
{
    const struct st_swap_opts opts = options("threads", 2, true);
    struct st_swap_dir_info part;
    struct st_swap *a, *b;

    (void)state;
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
    assert_works(a, 1);
    assert_works(b, 2);
    st_swap_close(a);
    assert_works(b, 3);
    st_swap_close(b);
    assert_nothing_left();
}

static void unlink_all_covers_every_directory(void **state)
{
    const struct st_swap_opts opts = options("threads", 3, false);
    struct st_swap *swap;

    (void)state;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    for (uint32_t d = 0; d < 3; d++)
        assert_true(entries_in(dirs[d]) > 0);
    st_swap_unlink_all();
    assert_nothing_left();
    assert_works(swap, 1);
    st_swap_close(swap);
    assert_nothing_left();
}

/* Killed while it opens, moves or closes, over and over: what is left, a sweep takes away. */
static void a_kill_at_any_point_is_swept(void **state)
{
    (void)state;
    for (uint64_t i = 0; i < 25; i++) {
        uint64_t bytes_left = st_rng_u64(8, 1, i) % 12;
        int ends[2];
        char byte;
        pid_t pid;

        assert_int_equal(pipe(ends), 0);
        pid = fork();
        assert_true(pid >= 0);
        if (pid == 0) {
            const struct st_swap_opts opts = options("threads", 2, i % 2 == 0);
            unsigned char *buf = aligned_alloc(ST_SWAP_ALIGN, BYTES);

            st_log_configure(keep_quiet, NULL, ST_LOG_DEBUG);
            for (struct st_swap *swap; buf != NULL;) { /* a byte before each of its acts */
                if (write(ends[1], "o", 1) != 1 || st_swap_open(&swap, &opts) != STRATA_OK || write(ends[1], "w", 1) != 1 ||
                    move_space(swap, ST_IO_WRITE, buf, 1, NULL) != STRATA_OK || write(ends[1], "c", 1) != 1)
                    break;
                st_swap_close(swap);
            }
            _exit(1);
        }
        close(ends[1]);
        do
            assert_int_equal(read(ends[0], &byte, 1), 1);
        while (bytes_left-- > 0);
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        close(ends[0]);
    }
    for (uint32_t d = 0; d < 2; d++)
        st_swap_sweep(dirs[d]);
    /* A kill between mkdir and the mark in the lock file leaves a directory that nobody can know to be ours; it holds no space.
     */
    for (uint32_t d = 0; d < 2; d++) {
        DIR *dir = opendir(dirs[d]);
        char path[PATH_MAX];

        assert_non_null(dir);
        for (struct dirent *entry; (entry = readdir(dir)) != NULL;) {
            if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
                continue;
            snprintf(path, sizeof(path), "%s/%s/swap-%u", dirs[d], entry->d_name, d);
            assert_int_equal(access(path, F_OK), -1);
            snprintf(path, sizeof(path), "%s/%s/lock", dirs[d], entry->d_name);
            (void)unlink(path);
            snprintf(path, sizeof(path), "%s/%s", dirs[d], entry->d_name);
            assert_int_equal(rmdir(path), 0);
        }
        closedir(dir);
    }
    assert_nothing_left();
}

static void a_directory_that_vanishes_is_no_harm(void **state)
{
    const struct st_swap_opts opts = options("threads", 2, true);
    char command[128];
    struct st_swap *swap;

    (void)state;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    snprintf(command, sizeof(command), "rm -rf %s", paths[1]);
    assert_int_equal(system(command), 0);
    assert_works(swap, 1); /* an open file outlives its name */
    st_swap_close(swap);
    assert_int_equal(mkdir(paths[1], 0700), 0);
    assert_nothing_left();
}

static void foreign_files_stay(void **state)
{
    const struct st_swap_opts opts = options("threads", 2, true);
    char path[128];
    struct st_swap *swap;

    (void)state;
    snprintf(path, sizeof(path), "%s/swap-1", paths[1]);
    assert_int_equal(mkdir(path, 0700), 0); /* the very name, a level up */
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_works(swap, 1);
    st_swap_close(swap);
    st_swap_sweep(paths[1]);
    assert_int_equal(rmdir(path), 0);
    assert_nothing_left();
}

/* Rights are not asked of the superuser, so a child without them opens. */
static void a_directory_without_permission_is_named(void **state)
{
    int status;
    pid_t pid;

    (void)state;
    assert_int_equal(chmod(root, 0755) | chmod(paths[0], 0777) | chmod(paths[1], 0555), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        const struct st_swap_opts opts = options("threads", 2, true);
        struct st_swap *swap;

        if (geteuid() == 0 && setuid(65534) != 0)
            _exit(2);
        st_log_configure(keep_quiet, NULL, ST_LOG_DEBUG);
        _exit(st_swap_open(&swap, &opts) == STRATA_E_IO && strstr(strata_last_error(), paths[1]) != NULL &&
                      strstr(strata_last_error(), "Permission denied") != NULL
                  ? 0
                  : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(chmod(paths[0], 0700) | chmod(paths[1], 0700), 0);
    assert_true(WIFEXITED(status));
    assert_nothing_left();
    if (WEXITSTATUS(status) == 2)
        skip();
    assert_int_equal(WEXITSTATUS(status), 0);
}

static bool mount_tmpfs(uint32_t d, const char *text, unsigned long flags)
{
    if (mount("strata-test", paths[d], "tmpfs", flags, text) == 0)
        return true;
    print_message("no tmpfs can be mounted here (%s): not tested\n", strerror(errno));
    return false;
}

static void small_and_read_only_disks_are_named(void **state)
{
    struct st_swap_opts opts = options("threads", 2, true);
    struct st_swap_dir_info part;
    uint64_t room, free_bytes;
    struct st_swap *swap;

    (void)state;
    if (!mount_tmpfs(1, "size=1m", 0))
        skip();
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_NOSPC); /* 2.2 MiB there */
    assert_non_null(strstr(strata_last_error(), paths[1]));
    assert_nothing_left();
    assert_int_equal(st_swap_room(dirs, 2, NULL, BLOCK, &room), STRATA_OK);
    assert_int_equal(room, 2 * MIB);
    assert_int_equal(st_swap_room(dirs, 2, (const double[]){3, 1}, BLOCK, &room), STRATA_OK);
    assert_int_equal(room, 4 * MIB);
    assert_int_equal(st_swap_room(dirs, 1, NULL, BLOCK, &room), STRATA_OK);
    assert_int_equal(st_swap_free_bytes(dirs[0], &free_bytes), STRATA_OK);
    assert_true(room > 0 && free_bytes > 0);
    assert_int_equal(st_swap_room(dirs, 0, NULL, BLOCK, &room), STRATA_E_INVAL);

    opts.dir_rates = (const double[]){16, 1}; /* then it holds its part */
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    st_swap_dir_info(swap, 1, &part);
    assert_false(part.direct);
    assert_works(swap, 1);
    st_swap_close(swap);
    assert_nothing_left();
    assert_int_equal(umount2(paths[1], MNT_DETACH), 0);

    if (!mount_tmpfs(1, "size=8m", MS_RDONLY))
        skip();
    opts.dir_rates = NULL;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_IO);
    assert_non_null(strstr(strata_last_error(), paths[1]));
    assert_non_null(strstr(strata_last_error(), "Read-only"));
    assert_int_equal(umount2(paths[1], MNT_DETACH), 0);
    assert_nothing_left();
}

/* Two directories of one file system ask its free bytes together. */
static void one_file_system_is_counted_once(void **state)
{
    char a[128], b[128];
    const char *const both[] = {a, b};
    struct st_swap_opts opts = options("threads", 2, true);
    struct st_swap *swap;
    uint64_t room;

    (void)state;
    if (!mount_tmpfs(2, "size=4m", 0))
        skip();
    snprintf(a, sizeof(a), "%s/a", paths[2]);
    snprintf(b, sizeof(b), "%s/b", paths[2]);
    assert_int_equal(mkdir(a, 0700) | mkdir(b, 0700), 0);
    assert_int_equal(st_swap_room(both, 2, NULL, BLOCK, &room), STRATA_OK);
    assert_int_equal(room, 4 * MIB);
    opts.dirs = both;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_NOSPC); /* 4.2 MiB */
    assert_non_null(strstr(strata_last_error(), b));
    assert_int_equal(entries_in(a) + entries_in(b), 0);
    assert_int_equal(umount2(paths[2], MNT_DETACH), 0);
}

static void private_mounts(void)
{
    if (unshare(CLONE_NEWNS) != 0 || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0)
        print_message("no mount namespace (%s)\n", strerror(errno));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bytes_come_back_over_two_and_three),
        cmocka_unit_test(little_space_leaves_files_empty),
        cmocka_unit_test(depth_is_automatic_where_none_is_given),
        cmocka_unit_test(a_failing_directory_is_named),
        cmocka_unit_test(a_failed_request_names_its_file),
        cmocka_unit_test(every_single_failure_is_clean),
        cmocka_unit_test(two_runs_share_both_directories),
        cmocka_unit_test(unlink_all_covers_every_directory),
        cmocka_unit_test(a_kill_at_any_point_is_swept),
        cmocka_unit_test(a_directory_that_vanishes_is_no_harm),
        cmocka_unit_test(foreign_files_stay),
        cmocka_unit_test(a_directory_without_permission_is_named),
        cmocka_unit_test(small_and_read_only_disks_are_named),
        cmocka_unit_test(one_file_system_is_counted_once),
    };
    int failed;

    private_mounts();
    if (mkdtemp(root) == NULL) {
        print_message("no temporary directory: %s\n", strerror(errno));
        return 77;
    }
    for (uint32_t d = 0; d < 3; d++) {
        snprintf(paths[d], sizeof(paths[d]), "%s/drive-%u", root, d);
        mkdir(paths[d], 0700);
    }
    failed = cmocka_run_group_tests_name("swap over directories", tests, NULL, NULL);
    for (uint32_t d = 0; d < 3; d++)
        rmdir(paths[d]);
    rmdir(root);
    return failed;
}
