/* A power cut at any instant of saving and pruning: whichever names the disk still had to be told of are kept or lost, and files
 * that were not synced are torn.  The newest checkpoint that was reported, or a newer one, is whole; the next run sweeps the
 * rest.
 *
 * The calls that change names are recorded as they are made (this program's own openat, renameat, ... take the place of the C
 * library's); a replay then makes the directory that a disk may show after the first `count` of them. */
#include "offload/checkpoint/commit.h"
#include "offload/checkpoint/store.h"
#include "offload/checkpoint/verify.h"
#include "tests/common/assert_status.h"
#include "tests/common/kept_log.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"
#include "tests/offload/commit_fixture.h"

#include "core/base/rng.h"
#include "core/system/tree.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define EVENTS_MAX 1024u
#define NAMES_MAX  256u

enum kind { ADD, REMOVE, MOVE, SYNC, REPORTED };

static struct event {
    enum kind kind;
    uint64_t inode, parent, from; /* from: parent before a move; SYNC: inode alone; REPORTED: inode is the step */
    bool is_dir;
    char name[64], from_name[64];
} events[EVENTS_MAX];

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards event_count and events behind it */
static uint32_t event_count;
static bool recording;
static int vault = -1; /* holds every file by its inode, whatever happens to its names */

/* --- recording --- */

static uint64_t inode_of(int fd)
{
    struct stat info;

    return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

static void keep_file(int dir_fd, const char *name, uint64_t inode)
{
    char kept[32];

    snprintf(kept, sizeof(kept), "%llu", (unsigned long long)inode);
    (void)syscall(SYS_linkat, dir_fd, name, vault, kept, 0);
}

static void record(enum kind kind, int dir_fd, const char *name, int from_fd, const char *from_name)
{
    struct stat info = {0};
    struct event *e;

    pthread_mutex_lock(&lock);
    assert_true(event_count < EVENTS_MAX);
    e = &events[event_count++];
    *e = (struct event){.kind = kind, .parent = inode_of(dir_fd), .from = from_fd >= 0 ? inode_of(from_fd) : 0};
    snprintf(e->name, sizeof(e->name), "%s", name);
    snprintf(e->from_name, sizeof(e->from_name), "%s", from_name != NULL ? from_name : "");
    if (kind != REMOVE && fstatat(dir_fd, name, &info, AT_SYMLINK_NOFOLLOW) == 0) {
        e->inode = info.st_ino;
        e->is_dir = S_ISDIR(info.st_mode);
        if (!e->is_dir)
            keep_file(dir_fd, name, info.st_ino);
    }
    pthread_mutex_unlock(&lock);
}

static void record_number(enum kind kind, uint64_t number)
{
    pthread_mutex_lock(&lock);
    assert_true(event_count < EVENTS_MAX);
    events[event_count++] = (struct event){.kind = kind, .inode = number};
    pthread_mutex_unlock(&lock);
}

static int done(long rc, enum kind kind, int dir_fd, const char *name, int from_fd, const char *from_name)
{
    if (rc >= 0 && recording)
        record(kind, dir_fd, name, from_fd, from_name);
    return (int)rc;
}

int mkdirat(int dir_fd, const char *name, mode_t mode)
{
    return done(syscall(SYS_mkdirat, dir_fd, name, mode), ADD, dir_fd, name, -1, NULL);
}

int openat(int dir_fd, const char *name, int flags, ...)
{
    mode_t mode = 0;
    va_list args;

    if ((flags & O_CREAT) == 0)
        return (int)syscall(SYS_openat, dir_fd, name, flags, 0);
    va_start(args, flags);
    mode = (mode_t)va_arg(args, int);
    va_end(args);
    return done(syscall(SYS_openat, dir_fd, name, flags, mode), ADD, dir_fd, name, -1, NULL);
}

int renameat2(int from_fd, const char *from, int to_fd, const char *to, unsigned flags)
{
    return done(syscall(SYS_renameat2, from_fd, from, to_fd, to, flags), MOVE, to_fd, to, from_fd, from);
}

int renameat(int from_fd, const char *from, int to_fd, const char *to)
{
    return renameat2(from_fd, from, to_fd, to, 0);
}

int linkat(int from_fd, const char *from, int to_fd, const char *to, int flags)
{
    return done(syscall(SYS_linkat, from_fd, from, to_fd, to, flags), ADD, to_fd, to, -1, NULL);
}

int unlinkat(int dir_fd, const char *name, int flags)
{
    return done(syscall(SYS_unlinkat, dir_fd, name, flags), REMOVE, dir_fd, name, -1, NULL);
}

int fsync(int fd)
{
    if (recording)
        record_number(SYNC, inode_of(fd));
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

/* --- what a disk may show --- */

static struct name {
    uint64_t parent, inode;
    bool is_dir;
    char name[64];
} names[NAMES_MAX];
static uint32_t name_count;

static struct name *find(uint64_t parent, const char *name)
{
    for (uint32_t i = 0; i < name_count; i++)
        if (names[i].parent == parent && strcmp(names[i].name, name) == 0)
            return &names[i];
    return NULL;
}

static void forget(uint64_t parent, const char *name)
{
    struct name *n = find(parent, name);

    if (n != NULL)
        *n = names[--name_count];
}

static void apply(const struct event *e)
{
    forget(e->parent, e->name);
    if (e->kind == REMOVE)
        return;
    assert_true(name_count < NAMES_MAX);
    names[name_count] = (struct name){.parent = e->parent, .inode = e->inode, .is_dir = e->is_dir};
    memcpy(names[name_count++].name, e->name, sizeof(e->name));
}

static bool synced(uint64_t inode, uint32_t from, uint32_t count)
{
    for (uint32_t i = from; i < count; i++)
        if (events[i].kind == SYNC && events[i].inode == inode)
            return true;
    return false;
}

/* Names: those synced with their directory, and of the others as many as chance keeps.  Of a move from one directory to another
 * each of them has its half. */
static void names_after(uint32_t count, uint64_t seed)
{
    name_count = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct event *e = &events[i];
        const uint64_t chance = st_rng_u64(seed, 7, i);
        bool stays;

        if (e->kind == SYNC || e->kind == REPORTED)
            continue;
        stays = synced(e->parent, i, count) || (chance & 1) != 0;
        if (e->kind == MOVE && (e->from == e->parent ? stays : synced(e->from, i, count) || (chance & 2) != 0))
            forget(e->from, e->from_name);
        if (stays)
            apply(e);
    }
}

/* A file that was never synced has lost its second half. */
static void put_file(const char *path, uint64_t inode, bool whole)
{
    char kept[32];
    struct stat info;
    unsigned char *bytes;
    int fd;

    snprintf(kept, sizeof(kept), "%llu", (unsigned long long)inode);
    if (whole) {
        assert_int_equal(syscall(SYS_linkat, vault, kept, AT_FDCWD, path, 0), 0);
        return;
    }
    fd = (int)syscall(SYS_openat, vault, kept, O_RDONLY | O_CLOEXEC, 0);
    assert_true(fd >= 0 && fstat(fd, &info) == 0);
    bytes = malloc((size_t)info.st_size + 1);
    assert_true(bytes != NULL && read(fd, bytes, (size_t)info.st_size) == info.st_size);
    close(fd);
    fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0 && write(fd, bytes, (size_t)info.st_size / 2) == info.st_size / 2);
    close(fd);
    free(bytes);
}

static void put_tree(const char *dir, uint64_t inode, uint32_t count)
{
    assert_true(syscall(SYS_mkdirat, AT_FDCWD, dir, 0700) == 0);
    for (uint32_t i = 0; i < name_count; i++) {
        char path[512];

        if (names[i].parent != inode)
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, names[i].name);
        if (names[i].is_dir)
            put_tree(path, names[i].inode, count);
        else
            put_file(path, names[i].inode, synced(names[i].inode, 0, count));
    }
}

/* --- */

static char after[64];

static uint64_t reported_before(uint32_t count)
{
    uint64_t step = 0;

    for (uint32_t i = 0; i < count; i++)
        if (events[i].kind == REPORTED)
            step = events[i].inode;
    return step;
}

static void check(uint32_t count, uint64_t seed)
{
    const uint64_t least = reported_before(count);
    struct st_checkpoint *ck = NULL;
    struct st_store_list list;
    struct st_store *s;
    uint64_t damages;
    strata_status st = st_checkpoint_newest(&ck, after, NULL, NULL);

    if (st != STRATA_OK && least > 0)
        fail_msg("after %u calls, seed %llu: %s", count, (unsigned long long)seed, strata_last_error());
    if (st == STRATA_OK) {
        if (ck->manifest.step < least || st_verify(ck, NULL, NULL, NULL, &damages) != STRATA_OK)
            fail_msg("after %u calls, seed %llu: step %llu, %s", count, (unsigned long long)seed,
                     (unsigned long long)ck->manifest.step, strata_last_error());
        st_checkpoint_close(ck);
    }
    assert_ok(st_store_open(&s, after));
    st_store_close(s);
    if (scratch_entries_with(after, ".strata-save") != 0)
        fail_msg("after %u calls, seed %llu: the next run does not sweep everything", count, (unsigned long long)seed);
    assert_ok(st_store_list(&list, after));
    for (uint32_t i = 0; i < list.count; i++) { /* older ones are whole, too, or have no name */
        char name[ST_STORE_NAME_BYTES], path[128];

        st_store_name(name, list.steps[i]);
        snprintf(path, sizeof(path), "%s/%s", after, name);
        if (st_checkpoint_open(&ck, path) != STRATA_OK)
            fail_msg("after %u calls, seed %llu: %s", count, (unsigned long long)seed, strata_last_error());
        st_checkpoint_close(ck);
    }
    free(list.steps);
}

static void replay(uint64_t root, uint32_t count, uint64_t seed)
{
    const int fd = open(scratch_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    names_after(count, seed);
    put_tree(after, root, count);
    check(count, seed);
    assert_int_equal(st_tree_remove(fd, "after"), 0);
    close(fd);
}

/* Three saves of a run that keeps one. */
static void save_thrice(void)
{
    const struct st_committer_opts opts = {.save = scratch_path("save"), .swap = fixture_swap, .keep = 1};
    struct st_commit_report report;
    struct st_committer *c;

    assert_ok(st_committer_start(&c, &opts));
    for (uint64_t step = 1; step <= 3; step++) {
        struct st_commit job = fixture_job(step);

        assert_ok(st_committer_submit(c, &job));
        st_committer_wait(c);
        assert_true(st_committer_reported(c, &report));
        assert_ok(report.status);
        record_number(REPORTED, step);
    }
    st_committer_stop(c);
}

TEST_SETUP(nothing_that_was_reported_is_lost, fixture_setup, fixture_teardown)
{
    const uint64_t seeds = sample_is_all() ? 16 : 2;
    struct stat root;

    assert_int_equal(mkdir(scratch_path("save"), 0700), 0);
    assert_int_equal(mkdir(scratch_path("vault"), 0700), 0);
    assert_int_equal(stat(scratch_path("save"), &root), 0);
    vault = open(scratch_path("vault"), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    snprintf(after, sizeof(after), "%s/after", scratch_dir);
    recording = true;
    save_thrice();
    recording = false;
    assert_true(event_count > 100);
    kept_log_begin(ST_LOG_NOTICE);
    for (uint32_t count = 0; count <= event_count; count++)
        for (uint64_t seed = 0; seed < seeds; seed++)
            replay(root.st_ino, count, seed);
    kept_log_end();
    close(vault);
}
