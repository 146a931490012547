/* The directory of checkpoints beside runs that save there, too: of other users, and those that begin at the same moment. */
#include "offload/checkpoint/store.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "tests/common/assert_status.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HIDDEN ".strata-save-0123456789abcdef"

static const char *save(void)
{
    return scratch_path("save");
}

static void assert_mode(const char *path, mode_t want)
{
    struct stat info;

    assert_int_equal(stat(path, &info), 0);
    assert_int_equal(info.st_mode & 07777, want);
}

static void find_own(void *ctx, const char *path, bool is_live)
{
    assert_true(is_live);
    snprintf(ctx, 4096, "%s", path);
}

TEST_SETUP(other_users_may_look_at_the_locks, scratch_begin, scratch_end)
{
    const mode_t mask = umask(022);
    char path[4096] = "", lock[4200];
    struct st_store *s;

    assert_ok(st_store_open(&s, save()));
    umask(mask);
    assert_int_equal(st_store_leftovers(save(), false, find_own, path), 0);
    assert_mode(path, 0755);
    snprintf(lock, sizeof(lock), "%s/lock", path);
    assert_mode(lock, 0644);
    st_store_close(s);
}

static void count_left(void *ctx, const char *path, bool is_live)
{
    uint32_t *left = ctx;

    assert_non_null(strstr(path, HIDDEN));
    left[is_live]++;
}

/* As an ordinary user finds what another one has closed to him; a test that is run by root sees everything. */
static void close_to_others(const char *site, uint32_t after)
{
    st_fault_arm(&(struct st_fault_spec){.site = site, .after = after, .count = 1, .result = -EACCES});
}

TEST_SETUP(what_cannot_be_looked_into_may_be_a_live_run, scratch_begin, scratch_end)
{
    struct st_store *s = NULL;
    uint32_t left[2] = {0};

    assert_int_equal(mkdir(save(), 0755), 0);
    assert_int_equal(mkdir(scratch_path("save/" HIDDEN), 0755), 0);
    close_to_others("owned.open", 4); /* the directory, its own, the lock there, and the directory to be listed */
    assert_refused(st_store_open(&s, save()), STRATA_E_INPUT, HIDDEN ": is another user's");
    assert_int_equal(st_fault_disarm(), 1);
    close_to_others("owned.open", 1);
    kept_log_begin(ST_LOG_WARN);
    assert_int_equal(st_store_leftovers(save(), true, count_left, left), 0);
    kept_log_end();
    assert_int_equal(st_fault_disarm(), 1);
    assert_non_null(strstr(kept_log.last, "cannot be looked into"));
    assert_int_equal(left[true], 1);
    assert_int_equal(left[false], 0);
    assert_ok(st_store_open(&s, save())); /* once it can be seen that nobody is there */
    st_store_close(s);
}

#define ROUNDS  20
#define STARTER 4

static pthread_barrier_t start, end;

/* Begins to save at the same moment as the others, and keeps the directory until all have tried. */
static void *begin_at_once(void *arg)
{
    struct st_store *s = NULL;

    for (uint32_t i = 0; i < ROUNDS; i++) {
        pthread_barrier_wait(&start);
        ((strata_status *)arg)[i] = st_store_open(&s, save());
        pthread_barrier_wait(&end);
        if (((strata_status *)arg)[i] == STRATA_OK)
            st_store_close(s);
    }
    return NULL;
}

TEST_SETUP(of_runs_that_begin_at_once_one_goes_on, scratch_begin, scratch_end)
{
    strata_status st[STARTER][ROUNDS];
    pthread_t threads[STARTER];

    assert_int_equal(mkdir(save(), 0755), 0);
    assert_int_equal(pthread_barrier_init(&start, NULL, STARTER), 0);
    assert_int_equal(pthread_barrier_init(&end, NULL, STARTER), 0);
    for (uint32_t t = 0; t < STARTER; t++)
        assert_int_equal(pthread_create(&threads[t], NULL, begin_at_once, st[t]), 0);
    for (uint32_t t = 0; t < STARTER; t++)
        assert_int_equal(pthread_join(threads[t], NULL), 0);
    pthread_barrier_destroy(&start);
    pthread_barrier_destroy(&end);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t went_on = 0;

        for (uint32_t t = 0; t < STARTER; t++) {
            went_on += st[t][i] == STRATA_OK;
            assert_true(st[t][i] == STRATA_OK || st[t][i] == STRATA_E_INPUT);
        }
        assert_int_equal(went_on, 1);
    }
}

TEST_SETUP(a_lock_that_cannot_be_had_is_no_refusal, scratch_begin, scratch_end)
{
    struct st_store *s = NULL;

    st_fault_arm(&(struct st_fault_spec){.site = "store.lock", .result = -EBADF}); /* as some network file systems answer */
    assert_ok(st_store_open(&s, save()));
    assert_int_equal(st_fault_disarm(), 1);
    st_store_close(s);
}

/* Without its own directory, locked, a run would not be seen by the next one: it does not begin. */
TEST_SETUP(a_run_that_cannot_be_seen_does_not_begin, scratch_begin, scratch_end)
{
    static const struct {
        const char *site;
        int64_t result;
    } rows[] = {{"owned.realpath", -EIO}, {"owned.open", -EIO}, {"owned.mkdir", -EROFS},
                {"owned.mkdir", -EIO},    {"owned.lock", -EIO}, {"owned.mark", -EIO}};
    struct st_store *s = NULL;

    assert_int_equal(mkdir(save(), 0755), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        st_fault_arm(&(struct st_fault_spec){.site = rows[i].site, .count = 1, .result = rows[i].result});
        assert_refused(st_store_open(&s, save()), STRATA_E_IO, save());
        assert_int_equal(st_fault_disarm(), 1);
        assert_int_equal(scratch_entries(save(), NULL), 0);
    }
}

/* What was made for checkpoints goes where none came of it; what was there, or has something, stays. */
TEST_SETUP(what_was_made_in_vain_goes, scratch_begin, scratch_end)
{
    struct st_store *s = NULL;
    uint32_t parents = 0;
    char deep[4096];

    snprintf(deep, sizeof(deep), "%s/a/b", save());
    assert_int_equal(mkdir(save(), 0755), 0);
    assert_ok(st_store_open(&s, scratch_path("save/a/b/")));
    assert_int_equal(access(scratch_path("save/a/b"), F_OK), 0);
    st_store_close(s);
    assert_int_equal(access(scratch_path("save/a"), F_OK), -1);
    assert_int_equal(access(save(), F_OK), 0);
    for (const char *c = deep; *c != '\0'; c++)
        parents += *c == '/';
    st_fault_arm(&(struct st_fault_spec){.site = "store.mkdir", .after = parents - 1, .count = 1, .result = -ENOSPC});
    assert_true(st_store_open(&s, deep) != STRATA_OK); /* all but the last are made */
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(access(scratch_path("save/a"), F_OK), -1);
    assert_ok(st_store_open(&s, save()));
    st_store_close(s);
    assert_int_equal(access(save(), F_OK), 0);
}
