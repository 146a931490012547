/* tests/nvme/test_swap_sets.c - a swap of a run that saves: its spaces and sets, links into checkpoints, sets made anew,
 * checkpoints that are read, and what is left behind. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/rng.h"
#include "nvme/swap/swap_internal.h"
#include "swap_fixture.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define BLOCK    UINT64_C(8192)
#define SCRATCH  (5 * BLOCK)
#define BASE     (3 * BLOCK + 4096)
#define SET      (11 * BLOCK)
#define SETS     3u
#define DIRS     2u
#define VOLUMES  (2 + SETS)
#define BYTES_OF (SCRATCH + BASE + SETS * SET)

static const char *const methods[] = {"auto", "threads", "fake"};
static char drives[DIRS][64], checkpoint[64];
static const char *const dirs[DIRS] = {drives[0], drives[1]};

static int make_dirs(void)
{
    for (uint32_t d = 0; d < DIRS; d++) {
        snprintf(drives[d], sizeof(drives[d]), "%s/drive-%u", scratch_dir, d);
        if (mkdir(drives[d], 0700) != 0)
            return -1;
    }
    snprintf(checkpoint, sizeof(checkpoint), "%s/checkpoint", scratch_dir);
    return mkdir(checkpoint, 0700);
}

static int create(void **state)
{
    (void)swap_private_mounts();
    return scratch_create(state) != 0 ? -1 : make_dirs();
}

static struct st_swap_opts options(const char *method)
{
    return (struct st_swap_opts){.dirs = dirs,
                                 .dir_count = DIRS,
                                 .bytes = {SCRATCH, BASE, SET},
                                 .set_count = SETS,
                                 .method = method,
                                 .block_bytes = (uint32_t)BLOCK,
                                 .queue_depth = 4};
}

static struct st_swap *open_sets(const char *method)
{
    const struct st_swap_opts opts = options(method);
    struct st_swap *swap;

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    return swap;
}

static void assert_nothing_left(void)
{
    for (uint32_t d = 0; d < DIRS; d++)
        assert_int_equal(scratch_entries(dirs[d], NULL), 0);
}

static void empty_checkpoint(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s/*", checkpoint);
    assert_int_equal(system(command), 0);
}

static uint64_t bytes_of(uint32_t volume)
{
    return volume == 0 ? SCRATCH : volume == 1 ? BASE : SET;
}

/* [SET], a function of the seed; free() it. */
static unsigned char *random_bytes(uint64_t seed)
{
    unsigned char *buf = aligned_alloc(ST_SWAP_ALIGN, SET);

    assert_non_null(buf);
    for (uint64_t i = 0; i < SET / 8; i++) {
        const uint64_t word = st_rng_u64(seed, 11, i);

        memcpy(buf + i * 8, &word, 8);
    }
    return buf;
}

static strata_status move_volume(struct st_swap *swap, enum st_io_op op, uint32_t volume, uint64_t bytes, void *buf)
{
    struct latch latch = LATCH_INIT;
    struct move move = {.volume = volume};
    const strata_status st = move_start(swap, &move, &latch, op, 0, bytes, buf);

    latch_wait(&latch);
    return st != STRATA_OK ? st : move.status == STRATA_OK ? STRATA_OK : st_error(move.status, "%s", move.sentence);
}

static strata_status write_volume(struct st_swap *swap, uint32_t volume, uint64_t seed)
{
    unsigned char *buf = random_bytes(seed);
    const strata_status st = move_volume(swap, ST_IO_WRITE, volume, bytes_of(volume), buf);

    free(buf);
    return st;
}

/* Whether the first `bytes` of a volume are those of the seed. */
static bool holds(struct st_swap *swap, uint32_t volume, uint64_t bytes, uint64_t seed)
{
    unsigned char *want = random_bytes(seed), *got = random_bytes(seed + 1);
    const bool equal = move_volume(swap, ST_IO_READ, volume, bytes, got) == STRATA_OK && memcmp(want, got, bytes) == 0;

    free(want);
    free(got);
    return equal;
}

/* "set.0" and so on, as a checkpoint may name them. */
static void link_name(char name[32], uint32_t volume, uint32_t dir)
{
    snprintf(name, 32, "volume-%u.%u", volume, dir);
}

static strata_status link_volume(struct st_swap *swap, uint32_t volume, bool *crossed)
{
    const int fd = open(checkpoint, O_RDONLY | O_DIRECTORY);
    strata_status st = STRATA_OK;

    assert_true(fd >= 0);
    for (uint32_t d = 0; d < DIRS && st == STRATA_OK; d++) {
        char name[32];

        link_name(name, volume, d);
        st = st_swap_link(swap, volume, d, fd, name, crossed);
    }
    close(fd);
    return st;
}

struct attached {
    struct st_volume_file files[DIRS];
    char path[DIRS][128];
    uint32_t volume;
};

static strata_status attach(struct st_swap *swap, uint32_t linked, const struct st_stripe *stripe, struct attached *a)
{
    for (uint32_t d = 0; d < DIRS; d++) {
        char name[32];

        link_name(name, linked, d);
        snprintf(a->path[d], sizeof(a->path[d]), "%s/%s", checkpoint, name);
        a->files[d] = (struct st_volume_file){.path = a->path[d], .fd = open(a->path[d], O_RDONLY | O_CLOEXEC), .drive = 77};
        assert_true(a->files[d].fd >= 0);
    }
    return st_swap_attach(swap, &(struct st_volume_opts){.stripe = stripe, .files = a->files, .bytes = bytes_of(linked)},
                          &a->volume);
}

static void close_attached(const struct attached *a)
{
    for (uint32_t d = 0; d < DIRS; d++)
        close(a->files[d].fd);
}

/* --- tests --- */

static void spaces_keep_their_bytes_apart(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct st_swap *swap = open_sets(methods[m]);
        uint64_t bytes = 0;

        assert_int_equal(st_swap_volume(swap, ST_SPACE_SCRATCH, 2), 0);
        assert_int_equal(st_swap_volume(swap, ST_SPACE_BASE, 2), 1);
        for (uint32_t v = 0; v < VOLUMES; v++) {
            assert_int_equal(write_volume(swap, v, 10 + v), STRATA_OK);
            if (v > 1)
                assert_int_equal(st_swap_volume(swap, ST_SPACE_SET, v - 2), v);
        }
        for (uint32_t v = 0; v < VOLUMES; v++) {
            assert_true(holds(swap, v, bytes_of(v), 10 + v));
            assert_int_equal(move_volume(swap, ST_IO_READ, v, bytes_of(v) + ST_SWAP_ALIGN, NULL), STRATA_E_INVAL);
            assert_int_equal(move_volume(swap, ST_IO_SYNC, v, 0, NULL), STRATA_OK);
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
        assert_nothing_left();
    }
}

/* Names and sizes of the files; their space is reserved. */
static void files_are_named_and_reserved(void **state)
{
    struct st_swap *swap = open_sets("threads");
    uint64_t reserved = 0;

    (void)state;
    for (uint32_t v = 0; v < VOLUMES; v++)
        for (uint32_t d = 0; d < DIRS; d++) {
            char name[ST_SWAP_NAME_BYTES], path[ST_SWAP_PATH_MAX];
            struct stat info;

            snprintf(path, sizeof(path), "%s/%s", swap->parts[d].run.path,
                     v == 0   ? (d == 0 ? "swap-0" : "swap-1")
                     : v == 1 ? (d == 0 ? "base-0" : "base-1")
                              : (snprintf(name, sizeof(name), "set-%u-%u", v - 2, d), name));
            assert_int_equal(stat(path, &info), 0);
            assert_int_equal(info.st_size, st_stripe_file_bytes(st_swap_stripe(swap), d, bytes_of(v)));
            assert_true((uint64_t)info.st_blocks * 512 >= (uint64_t)info.st_size);
            reserved += (uint64_t)info.st_size;
        }
    assert_int_equal(reserved, BYTES_OF);
    st_swap_close(swap);
    assert_nothing_left();
}

/* What is linked outlives the run, whole; the set is not reusable while it is. */
static void links_keep_the_data(void **state)
{
    struct attached a;
    struct st_swap *swap = open_sets("auto");
    bool crossed = true;

    (void)state;
    assert_int_equal(write_volume(swap, 3, 1), STRATA_OK);
    assert_true(st_swap_reusable(swap, 1));
    assert_int_equal(link_volume(swap, 3, &crossed), STRATA_OK);
    assert_false(crossed);
    assert_false(st_swap_reusable(swap, 1));
    assert_true(st_swap_reusable(swap, 0) && st_swap_reusable(swap, 2));
    assert_int_equal(link_volume(swap, 3, &crossed), STRATA_E_IO); /* the name is there */
    assert_non_null(strstr(strata_last_error(), "set-1-0: cannot be linked as volume-3.0: File exists"));
    st_swap_close(swap);
    assert_nothing_left();
    assert_int_equal(scratch_entries(checkpoint, NULL), DIRS);

    swap = open_sets("auto");
    assert_int_equal(attach(swap, 3, st_swap_stripe(swap), &a), STRATA_OK);
    assert_true(a.volume >= VOLUMES);
    assert_true(holds(swap, a.volume, SET, 1));
    assert_int_equal(write_volume(swap, a.volume, 2), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), a.path[0]));
    assert_int_equal(write_volume(swap, 3, 2), STRATA_OK);
    assert_true(holds(swap, a.volume, SET, 1));
    st_swap_detach(swap, a.volume);
    close_attached(&a);
    assert_int_equal(move_volume(swap, ST_IO_READ, a.volume, 0, NULL), STRATA_E_INVAL);
    st_swap_close(swap);
    empty_checkpoint();
    assert_nothing_left();
}

/* With one name gone or another file in its place the set is not the swap's own. */
static void only_sets_of_ones_own_are_reusable(void **state)
{
    struct st_swap *swap = open_sets("threads");
    bool crossed;

    (void)state;
    assert_int_equal(link_volume(swap, 2, &crossed), STRATA_OK);
    assert_false(st_swap_reusable(swap, 0));
    empty_checkpoint();
    assert_true(st_swap_reusable(swap, 0));
    assert_int_equal(link_volume(swap, 2, &crossed), STRATA_OK);
    assert_int_equal(unlinkat(swap->parts[1].run.dir_fd, "set-0-1", 0), 0); /* one link is left, the checkpoint's */
    assert_int_equal(unlinkat(swap->parts[0].run.dir_fd, "set-0-0", 0), 0);
    assert_false(st_swap_reusable(swap, 0));
    st_fault_arm(&(struct st_fault_spec){.site = "nvme.stat", .count = 1, .result = -EIO});
    assert_false(st_swap_reusable(swap, 1));
    assert_int_equal(st_fault_disarm(), 1);
    st_swap_close(swap);
    empty_checkpoint();
    assert_nothing_left();
}

static void renewed_sets_are_new(void **state)
{
    (void)state;
    for (size_t m = 0; m < sizeof(methods) / sizeof(methods[0]); m++) {
        struct st_swap *swap = open_sets(methods[m]);
        const bool fake = strcmp(methods[m], "fake") == 0;
        struct attached a;
        bool crossed;

        for (uint32_t v = 2; v < VOLUMES; v++)
            assert_int_equal(write_volume(swap, v, v), STRATA_OK);
        assert_int_equal(link_volume(swap, 3, &crossed), fake ? STRATA_E_NOSYS : STRATA_OK);
        for (uint32_t round = 0; round < 3; round++) {
            assert_int_equal(st_swap_renew(swap, 1), STRATA_OK);
            assert_true(st_swap_reusable(swap, 1));
            assert_false(holds(swap, 3, SET, 3));
            assert_int_equal(write_volume(swap, 3, 30 + round), STRATA_OK);
            assert_true(holds(swap, 3, SET, 30 + round));
            assert_true(holds(swap, 2, SET, 2) && holds(swap, 4, SET, 4));
        }
        if (fake) {
            assert_int_equal(st_swap_attach(swap, &(struct st_volume_opts){.stripe = st_swap_stripe(swap)}, &a.volume),
                             STRATA_E_NOSYS);
        } else {
            assert_int_equal(attach(swap, 3, st_swap_stripe(swap), &a), STRATA_OK);
            assert_true(holds(swap, a.volume, SET, 3));
            st_swap_detach(swap, a.volume);
            close_attached(&a);
        }
        st_swap_close(swap);
        empty_checkpoint();
        assert_nothing_left();
    }
}

/* The checkpoint stays whole, the set holds what it held, nobody takes it for free; and the next try works. */
static void a_failed_renewal_can_be_repeated(void **state)
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

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct st_swap *swap = open_sets("threads");
        struct attached a;
        bool crossed;

        assert_int_equal(write_volume(swap, 2, 5), STRATA_OK);
        assert_int_equal(link_volume(swap, 2, &crossed), STRATA_OK);
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .after = rows[i].after, .count = 1, .result = rows[i].result});
        assert_int_equal(st_swap_renew(swap, 0), rows[i].st);
        assert_int_equal(st_fault_disarm(), 1);
        assert_non_null(strstr(strata_last_error(), rows[i].text));
        assert_false(st_swap_reusable(swap, 0));
        assert_true(holds(swap, 2, SET, 5));
        assert_int_equal(st_swap_renew(swap, 0), STRATA_OK);
        assert_true(st_swap_reusable(swap, 0));
        assert_int_equal(write_volume(swap, 2, 6), STRATA_OK);
        assert_int_equal(attach(swap, 2, st_swap_stripe(swap), &a), STRATA_OK);
        assert_true(holds(swap, a.volume, SET, 5));
        close_attached(&a);
        st_swap_close(swap);
        empty_checkpoint();
        assert_nothing_left();
    }
}

/* Where a link cannot be had it is said, to be copied; anything else is an error that names both. */
static void a_link_across_is_told(void **state)
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
    struct st_swap *swap = open_sets("threads");
    bool crossed;

    (void)state;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = "nvme.link", .result = rows[i].result});
        assert_int_equal(link_volume(swap, 1, &crossed), rows[i].st);
        st_fault_disarm();
        assert_int_equal(crossed, rows[i].crossed);
        assert_int_equal(scratch_entries(checkpoint, NULL), 0);
    }
    if (mount("strata-test", checkpoint, "tmpfs", 0, "size=1m") == 0) {
        assert_int_equal(link_volume(swap, 1, &crossed), STRATA_OK);
        assert_true(crossed);
        assert_int_equal(umount2(checkpoint, MNT_DETACH), 0);
    }
    st_swap_close(swap);
    assert_nothing_left();
}

/* Of a run that was killed, as of one that closes: its links live on, and nothing that is not a swap's file is taken. */
static void sets_of_the_dead_are_swept(void **state)
{
    struct attached a;
    struct st_swap *swap;
    int ends[2];
    char byte;
    pid_t pid;

    (void)state;
    assert_int_equal(pipe(ends), 0);
    pid = child_fork();
    if (pid == 0) {
        bool crossed;

        swap = open_sets("threads");
        if (write_volume(swap, 4, 9) != STRATA_OK || link_volume(swap, 4, &crossed) != STRATA_OK || write(ends[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &byte, 1), 1);
    close(ends[0]);
    for (uint32_t d = 0; d < DIRS; d++)
        assert_int_equal(st_swap_sweep(dirs[d]), 0);
    child_kill(pid);
    for (uint32_t d = 0; d < DIRS; d++)
        assert_int_equal(st_swap_sweep(dirs[d]), 1);
    assert_nothing_left();
    swap = open_sets("threads");
    assert_int_equal(attach(swap, 4, st_swap_stripe(swap), &a), STRATA_OK);
    assert_true(holds(swap, a.volume, SET, 9));
    close_attached(&a);
    st_swap_close(swap);
    empty_checkpoint();
}

static void only_names_of_a_swap_are_swept(void **state)
{
    static const char *const foreign[] = {"set-0",    "set-00-1", "set-0-8", "set-24-0", "base-8",
                                          "base-0.x", "swap-01",  "set--1",  "set-0-0-0"};
    static const char *const ours[] = {"set-0-0", "set-23-7", "base-7", "swap-3"};
    char path[128];

    (void)state;
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
    assert_int_equal(st_swap_sweep(dirs[0]), 0);
    kept_log_end();
    assert_int_equal(scratch_entries(scratch_path("drive-0/strata-0123456789abcdef"), NULL),
                     sizeof(foreign) / sizeof(foreign[0]));
    snprintf(path, sizeof(path), "rm -rf %s/*", drives[0]);
    assert_int_equal(system(path), 0);
}

static void unlink_all_takes_every_set(void **state)
{
    struct st_swap *swap = open_sets("threads");
    bool crossed;

    (void)state;
    assert_int_equal(write_volume(swap, 2, 3), STRATA_OK);
    assert_int_equal(link_volume(swap, 2, &crossed), STRATA_OK);
    st_swap_unlink_all();
    assert_nothing_left();
    assert_int_equal(scratch_entries(checkpoint, NULL), DIRS);
    assert_true(holds(swap, 2, SET, 3));
    st_swap_close(swap);
    empty_checkpoint();
}

/* All volumes count: two directories on one file system share its room. */
static void all_sets_need_room(void **state)
{
    const char *const small[DIRS] = {drives[0], drives[0]};
    struct st_swap_opts opts = options("threads");
    struct st_swap *swap;
    char size[32];

    (void)state;
    snprintf(size, sizeof(size), "size=%u", (unsigned)(BYTES_OF - BLOCK));
    if (mount("strata-test", drives[0], "tmpfs", 0, size) != 0) {
        print_message("no tmpfs can be mounted here (%s): not tested\n", strerror(errno));
        skip();
    }
    opts.dirs = small;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_NOSPC);
    assert_non_null(strstr(strata_last_error(), "of swap space needed"));
    assert_non_null(strstr(strata_last_error(), drives[0]));
    assert_int_equal(scratch_entries(drives[0], NULL), 0);
    opts.set_count--;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_int_equal(st_swap_renew(swap, 0), STRATA_E_NOSPC); /* the old one's room is another's until then */
    assert_int_equal(write_volume(swap, 3, 1), STRATA_OK);
    st_swap_close(swap);
    assert_int_equal(umount2(drives[0], MNT_DETACH), 0);
}

static void impossible_sizes_are_refused(void **state)
{
    struct st_swap_opts opts = options("fake");
    struct st_swap *swap;

    (void)state;
    opts.set_count = ST_SWAP_SETS_MAX + 1;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    assert_non_null(strstr(strata_last_error(), "keep fewer checkpoints"));
    opts.set_count = 0;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts = options("fake");
    opts.bytes[ST_SPACE_SET] += 512;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.bytes[ST_SPACE_SET] = UINT64_MAX / ST_SWAP_ALIGN * ST_SWAP_ALIGN;
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    memset(opts.bytes, 0, sizeof(opts.bytes));
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_E_INVAL);
    opts.bytes[ST_SPACE_SET] = SET; /* nothing on NVMe but what is saved */
    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    assert_true(write_volume(swap, 4, 1) == STRATA_OK && holds(swap, 4, SET, 1));
    st_swap_close(swap);
}

static strata_status live(struct st_swap *swap)
{
    bool crossed;
    strata_status st;

    if ((st = write_volume(swap, 2, 1)) != STRATA_OK)
        return st;
    if ((st = link_volume(swap, 2, &crossed)) != STRATA_OK || (st = st_swap_renew(swap, 0)) != STRATA_OK)
        return st;
    return write_volume(swap, 2, 2);
}

/* Whatever fails: nothing is left after a sweep but what was linked, and what was linked whole is whole. */
static void every_single_failure_is_clean(void **state)
{
    const struct st_swap_opts opts = options("threads");
    const bool in_memory = mount("strata-test", scratch_dir, "tmpfs", 0, "size=8m") == 0 && make_dirs() == 0; /* quicker */
    struct fault_walk walk = {.result = -EIO};

    (void)state;
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
            st_swap_sweep(dirs[d]);
        assert_nothing_left();
        if (scratch_entries(checkpoint, NULL) == DIRS) {
            struct attached a;

            swap = open_sets("threads");
            assert_int_equal(attach(swap, 2, st_swap_stripe(swap), &a), STRATA_OK);
            assert_true(holds(swap, a.volume, SET, 1));
            close_attached(&a);
            st_swap_close(swap);
        }
        empty_checkpoint();
    }
    assert_true(walk.failed > 40);
    kept_log_end();
    if (in_memory)
        assert_int_equal(umount2(scratch_dir, MNT_DETACH), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spaces_keep_their_bytes_apart),
        cmocka_unit_test(files_are_named_and_reserved),
        cmocka_unit_test(links_keep_the_data),
        cmocka_unit_test(only_sets_of_ones_own_are_reusable),
        cmocka_unit_test(renewed_sets_are_new),
        cmocka_unit_test(a_failed_renewal_can_be_repeated),
        cmocka_unit_test(a_link_across_is_told),
        cmocka_unit_test(sets_of_the_dead_are_swept),
        cmocka_unit_test(only_names_of_a_swap_are_swept),
        cmocka_unit_test(unlink_all_takes_every_set),
        cmocka_unit_test(all_sets_need_room),
        cmocka_unit_test(impossible_sizes_are_refused),
        cmocka_unit_test(every_single_failure_is_clean),
    };

    return cmocka_run_group_tests_name("swap sets", tests, create, scratch_remove);
}
