/* The directory of checkpoints: whatever fails or dies, every name leads to a whole one, and the next run finds nothing else. */
#include "offload/checkpoint/store.h"
#include "tests/common/test.h"

#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "core/system/file.h"
#include "core/system/tree.h"
#include "tests/common/assert_status.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/common/kept_log.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* A kill leaves what the system was told, synced or not; thousands of real syncs would take minutes.  The call stays one. */
int fsync(int fd)
{
    return fcntl(fd, F_GETFD) < 0 ? -1 : 0;
}

static const char *save(void)
{
    return scratch_path("save");
}

static struct st_store *opened(void)
{
    struct st_store *s = NULL;

    assert_ok(st_store_open(&s, save()));
    return s;
}

#define SAYS       "%08" PRIu64
#define SAYS_BYTES 8

/* Two files, one in a folder, that say their step. */
static strata_status put_files(struct st_store *s, uint64_t step)
{
    static const char *const names[] = {"a", "model/b"};
    strata_status st = STRATA_OK;
    char says[SAYS_BYTES + 1];

    snprintf(says, sizeof(says), SAYS, step);
    for (uint32_t i = 0; i < 2 && st == STRATA_OK; i++) {
        char path[ST_PATH_MAX];
        struct st_new_file f;

        if ((st = st_path_join(path, st_store_path(s), names[i])) != STRATA_OK ||
            (st = st_new_file_create(&f, path, ST_NEW_FILE_PARENTS)) != STRATA_OK)
            return st;
        if ((st = st_new_file_write_at(&f, says, SAYS_BYTES, 0)) == STRATA_OK)
            st = st_new_file_commit(&f);
        else
            st_new_file_abort(&f);
    }
    return st;
}

static strata_status make(struct st_store *s, uint64_t step, bool replace, uint64_t says)
{
    strata_status st = st_store_begin(s, step);

    if (st != STRATA_OK)
        return st;
    st = put_files(s, says);
    if (st == STRATA_OK)
        st = st_store_commit(s, replace);
    if (st != STRATA_OK)
        st_store_abort(s);
    return st == STRATA_OK ? st_store_set_latest(s, step) : st;
}

/* Whether the files of a checkpoint are there and say `step`. */
static bool is_whole(const char *path, uint64_t step)
{
    static const char *const names[] = {"a", "model/b"};

    for (uint32_t i = 0; i < 2; i++) {
        char name[ST_PATH_MAX], says[SAYS_BYTES], want[SAYS_BYTES + 1];
        int fd;

        snprintf(name, sizeof(name), "%s/%s", path, names[i]);
        fd = open(name, O_RDONLY | O_CLOEXEC);
        snprintf(want, sizeof(want), SAYS, step);
        if (fd < 0 || read(fd, says, SAYS_BYTES) != SAYS_BYTES || memcmp(says, want, SAYS_BYTES) != 0) {
            if (fd >= 0)
                close(fd);
            return false;
        }
        close(fd);
    }
    return true;
}

static double scores[8]; /* of steps; 0: none */

static enum st_store_judgement judge(void *ctx, const char *path, uint64_t step, double *score)
{
    const uint64_t *foreign = ctx;

    if (step < 8 && scores[step] != 0)
        *score = scores[step];
    if (foreign != NULL && step == *foreign)
        return ST_STORE_FOREIGN;
    return is_whole(path, step) ? ST_STORE_WHOLE : ST_STORE_DAMAGED;
}

/* Fails where the directory has other checkpoints than these. */
static void assert_steps(const char *want)
{
    struct st_store_list list;
    char have[256] = "";

    assert_ok(st_store_list(&list, save()));
    for (uint32_t i = 0; i < list.count; i++)
        snprintf(have + strlen(have), sizeof(have) - strlen(have), "%s%llu", i > 0 ? " " : "", (unsigned long long)list.steps[i]);
    free(list.steps);
    assert_string_equal(have, want);
}

/* Nothing but checkpoints, and `latest`. */
static void assert_nothing_else(uint32_t checkpoints)
{
    assert_int_equal(scratch_entries(save(), ST_STORE_LATEST), checkpoints);
}

TEST_SETUP(only_whole_names_are_listed, scratch_begin, scratch_end)
{
    static const char *const others[] = {"step-1",         "step-000000001",    "step-00000001x", "step--0000001",
                                         "xstep-00000001", "step-00000001.old", "step-",          "step-18446744073709551617"};
    struct st_store_list list;

    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char name[64];

        snprintf(name, sizeof(name), "save/%s/a", others[i]);
        scratch_put(name, "");
    }
    scratch_put("save/step-00000200/a", "");
    scratch_put("save/step-123456789/a", "");
    scratch_put("save/step-00000001/a", "");
    assert_steps("1 200 123456789");
    assert_refused(st_store_list(&list, scratch_path("none")), STRATA_E_INPUT, "none");
}

TEST_SETUP(a_checkpoint_is_there_when_it_is_committed, scratch_begin, scratch_end)
{
    struct st_store *s = opened();

    assert_ok(st_store_begin(s, 100));
    assert_ok(put_files(s, 100));
    assert_steps("");
    assert_ok(st_store_commit(s, false));
    assert_steps("100");
    assert_true(is_whole(scratch_path("save/step-00000100"), 100));
    assert_ok(st_store_set_latest(s, 100));
    scratch_holds("save/latest", "step-00000100\n");
    assert_ok(make(s, 110, false, 110));
    scratch_holds("save/latest", "step-00000110\n");
    assert_ok(st_store_begin(s, 120));
    assert_ok(put_files(s, 120));
    st_store_abort(s);
    st_store_abort(s);
    assert_ok(st_store_begin(s, 120)); /* once more; this time closing removes it */
    assert_ok(put_files(s, 120));
    st_store_close(s);
    assert_steps("100 110");
    assert_nothing_else(2);
}

TEST_SETUP(a_name_that_is_taken_stays, scratch_begin, scratch_end)
{
    struct st_store *s = opened();

    assert_ok(make(s, 1, false, 1));
    assert_refused(make(s, 1, false, 5), STRATA_E_INPUT, "step-00000001 exists already, and is kept");
    assert_true(is_whole(scratch_path("save/step-00000001"), 1));
    scratch_put("save/step-00000002", "a file");
    assert_refused(make(s, 2, false, 2), STRATA_E_INPUT, "exists already");
    scratch_holds("save/step-00000002", "a file");
    assert_ok(make(s, 1, true, 5));
    assert_true(is_whole(scratch_path("save/step-00000001"), 5));
    st_fault_arm(&(struct st_fault_spec){.site = "store.rename", .after = 1, .count = 1, .result = -EINVAL}); /* no exchange */
    assert_ok(make(s, 1, true, 6));
    assert_int_equal(st_fault_disarm(), 1);
    assert_true(is_whole(scratch_path("save/step-00000001"), 6));
    st_store_close(s);
    assert_nothing_else(2);
}

TEST_SETUP(names_are_checked_before_a_run, scratch_begin, scratch_end)
{
    assert_ok(st_store_check_names(save(), 0, false));
    scratch_put("save/step-00000100/a", "");
    assert_refused(st_store_check_names(save(), 0, false), STRATA_E_INPUT, "(step-00000100): go on from there");
    assert_refused(st_store_check_names(save(), 99, false), STRATA_E_INPUT, "engine.overwrite");
    assert_ok(st_store_check_names(save(), 100, false));
    assert_ok(st_store_check_names(save(), 0, true));
}

TEST_SETUP(old_ones_go, scratch_begin, scratch_end)
{
    const uint64_t foreign = 3;
    struct st_store *s = opened();
    char own[ST_PATH_MAX];

    for (uint64_t step = 1; step <= 6; step++)
        assert_ok(make(s, step, false, step == 2 || step == 5 ? 77 : step)); /* 2 and 5 are damaged */
    assert_ok(st_store_prune(s, 6, 9, 0, judge, NULL));
    assert_steps("1 2 3 4 5 6");
    assert_ok(st_store_prune(s, 6, 2, 0, judge, (void *)(uintptr_t)&foreign));
    assert_steps("3 4 5 6");
    assert_ok(st_store_prune(s, 6, 1, 0, judge, (void *)(uintptr_t)&foreign));
    assert_steps("3 6");
    snprintf(own, sizeof(own), "%.*s", (int)(strrchr(st_store_path(s), '/') - st_store_path(s)), st_store_path(s));
    assert_int_equal(scratch_entries(own, "lock"), 0); /* their space is free at once */
    st_store_close(s);
    assert_nothing_else(2);
}

/* Those of the lowest scores stay, the newest beside them; of equal scores the older one. */
TEST_SETUP(the_best_stay, scratch_begin, scratch_end)
{
    static const double have[8] = {0, 3, 1, 2, 0, 1, 5, 0.5}; /* 2 is damaged; 4 has none */
    struct st_store *s = opened();

    for (uint64_t step = 1; step <= 7; step++)
        assert_ok(make(s, step, false, step == 2 ? 77 : step));
    memcpy(scores, have, sizeof(scores));
    assert_ok(st_store_prune(s, 6, 1, 2, judge, NULL)); /* 7 is of another attempt */
    assert_steps("3 5 6 7");
    assert_ok(st_store_prune(s, 7, 1, 2, judge, NULL));
    assert_steps("5 7");
    scores[5] = scores[7];
    assert_ok(st_store_prune(s, 7, 1, 1, judge, NULL));
    assert_steps("5 7");
    assert_ok(st_store_prune(s, 7, 1, 0, judge, NULL));
    assert_steps("7");
    memset(scores, 0, sizeof(scores));
    st_store_close(s);
    assert_nothing_else(1);
}

/* A run that has gone on from step 3 makes 4: what an attempt before it made of later steps neither counts nor goes. */
TEST_SETUP(later_ones_neither_count_nor_go, scratch_begin, scratch_end)
{
    struct st_store *s = opened();

    for (uint64_t step = 1; step <= 7; step++)
        assert_ok(make(s, step, false, step == 7 ? 77 : step));
    assert_ok(st_store_prune(s, 4, 2, 0, judge, NULL));
    assert_steps("3 4 5 6 7");
    assert_ok(st_store_prune(s, 4, 1, 0, judge, NULL));
    assert_steps("4 5 6 7");
    st_store_close(s);
}

/* The one that is whole stays, however old it is. */
TEST_SETUP(the_only_good_one_stays, scratch_begin, scratch_end)
{
    struct st_store *s = opened();

    for (uint64_t step = 1; step <= 4; step++)
        assert_ok(make(s, step, false, step == 1 ? 1 : 77));
    assert_ok(st_store_prune(s, 4, 1, 0, judge, NULL));
    assert_steps("1 2 3 4");
    st_store_close(s);
}

TEST_SETUP(one_live_run_at_a_time, scratch_begin, scratch_end)
{
    struct st_store *s = opened(), *other = NULL;

    assert_ok(make(s, 1, false, 1));
    assert_ok(st_store_begin(s, 2));
    assert_refused(st_store_open(&other, save()), STRATA_E_INPUT, "another run saves there now");
    assert_ok(put_files(s, 2)); /* the first one goes on */
    assert_ok(st_store_commit(s, false));
    st_store_close(s);
    other = opened();
    assert_ok(make(other, 3, false, 3));
    st_store_close(other);
    assert_steps("1 2 3");
    assert_nothing_else(3);
}

static void count_left(void *ctx, const char *path, bool is_live)
{
    uint32_t *left = ctx;

    assert_non_null(strstr(path, "/save/.strata-save-"));
    left[is_live]++;
}

TEST_SETUP(what_a_dead_run_left_is_swept, scratch_begin, scratch_end)
{
    uint32_t left[2] = {0};
    const pid_t pid = child_fork();
    struct st_store *s;

    if (pid == 0) {
        struct st_store *mine;

        if (st_store_open(&mine, save()) != STRATA_OK || make(mine, 1, false, 1) != STRATA_OK ||
            st_store_begin(mine, 2) != STRATA_OK || put_files(mine, 2) != STRATA_OK)
            _exit(1);
        _exit(0);
    }
    assert_int_equal(child_wait(pid), 0);
    assert_int_equal(st_store_leftovers(save(), false, count_left, left), 0);
    assert_int_equal(left[false], 1);
    assert_int_equal(left[true], 0);
    kept_log_begin(ST_LOG_NOTICE);
    s = opened();
    kept_log_end();
    assert_non_null(strstr(kept_log.last, "removed unfinished checkpoints of 1 dead run"));
    assert_int_equal(st_store_leftovers(save(), true, count_left, left), 0);
    assert_int_equal(left[true], 1);
    st_store_close(s);
    assert_steps("1");
    assert_nothing_else(1);
}

TEST_SETUP(a_process_that_ends_leaves_nothing, scratch_begin, scratch_end)
{
    const pid_t pid = child_fork();

    if (pid == 0) {
        struct st_store *s;

        if (st_store_open(&s, save()) != STRATA_OK || make(s, 1, false, 1) != STRATA_OK || st_store_begin(s, 2) != STRATA_OK ||
            put_files(s, 2) != STRATA_OK)
            _exit(1);
        st_cleanup_begin();
        st_cleanup_run();
        _exit(0);
    }
    assert_int_equal(child_wait(pid), 0);
    assert_steps("1");
    assert_nothing_else(1);
}

/* A child that closes what its parent opened. */
TEST_SETUP(a_child_leaves_its_parents_alone, scratch_begin, scratch_end)
{
    struct st_store *s = opened();
    pid_t pid;

    assert_ok(st_store_begin(s, 1));
    pid = child_fork();
    if (pid == 0) {
        st_cleanup_run();
        st_store_close(s);
        _exit(0);
    }
    assert_int_equal(child_wait(pid), 0);
    assert_ok(put_files(s, 1));
    assert_ok(st_store_commit(s, false));
    st_store_close(s);
    assert_steps("1");
}

/* One save of a run that keeps two: the third goes in, the first goes out.  `replace` is for a name that is there. */
static strata_status whole_save(void)
{
    struct st_store *s;
    strata_status st = st_store_open(&s, save());

    if (st != STRATA_OK)
        return st;
    st = make(s, 3, true, 3);
    if (st == STRATA_OK)
        st = st_store_prune(s, UINT64_MAX, 2, 0, judge, NULL);
    st_store_close(s);
    return st;
}

/* After whatever happened: the newest that there was, or a newer one, and one more; each is whole; and the next run finds nothing
 * else. */
static void assert_sound(const char *where, uint64_t newest)
{
    struct st_store_list list;

    assert_ok(st_store_list(&list, save()));
    if (list.count < 2 || list.steps[list.count - 1] < newest)
        fail_msg("%s: %u checkpoints are left", where, list.count);
    for (uint32_t i = 0; i < list.count; i++) {
        char name[64];

        snprintf(name, sizeof(name), "save/step-%08u", (unsigned)list.steps[i]);
        if (!is_whole(scratch_path(name), list.steps[i]))
            fail_msg("%s: %s is damaged", where, name);
    }
    free(list.steps);
    st_store_close(opened());
    assert_ok(st_store_list(&list, save()));
    if (scratch_entries(save(), ST_STORE_LATEST) != list.count + scratch_entries_with(save(), "latest.strata-"))
        fail_msg("%s: something is left", where);
    free(list.steps);
}

static void put_step(uint64_t step)
{
    static const char *const names[] = {"a", "model/b"};
    char name[64], says[SAYS_BYTES + 1];

    snprintf(says, sizeof(says), SAYS, step);
    for (uint32_t i = 0; i < 2; i++) {
        snprintf(name, sizeof(name), "save/step-%08u/%s", (unsigned)step, names[i]);
        scratch_put(name, says);
    }
}

/* Steps 1 and 2; with `third` also 3, which a save will replace. */
static void start_again(bool third)
{
    const int fd = open(scratch_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    assert_int_equal(st_tree_remove(fd, "save"), 0);
    close(fd);
    for (uint64_t step = 1; step <= (third ? 3 : 2); step++)
        put_step(step);
    scratch_put("save/latest", "step-00000002\n");
}

TEST_SETUP(every_site_of_a_save_may_fail, scratch_begin, scratch_end)
{
    static const int64_t results[] = {-EIO, -ENOSPC};

    for (uint32_t i = 0; i < 4; i++) {
        struct fault_walk walk = {.result = results[i / 2]};
        char where[64];

        if (!sample_takes(i, 3, 0))
            continue;
        kept_log_begin(ST_LOG_NOTICE);
        start_again(i % 2 != 0);
        while (fault_walk_next(&walk)) {
            const strata_status st = whole_save();

            fault_walk_end(&walk, st);
            snprintf(where, sizeof(where), "failure %u, round %u", walk.runs, i);
            assert_sound(where, i % 2 != 0 ? 3 : 2);
            if (st == STRATA_OK && !walk.fired)
                assert_steps("2 3");
            start_again(i % 2 != 0);
        }
        kept_log_end();
        assert_true(walk.failed >= 30);
    }
}

/* --- killed at any system call --- */

static pid_t start_traced(void)
{
    const pid_t pid = fork();
    int status;

    assert_true(pid >= 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
            _exit(77);
        raise(SIGSTOP);
        _exit(whole_save() == STRATA_OK ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSTOPPED(status) ? pid : -1;
}

/* False: it ended by itself before its n-th stop. */
static bool kill_at_stop(pid_t pid, uint32_t n)
{
    int status;

    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(ptrace(PTRACE_SYSCALL, pid, NULL, NULL), 0);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 0);
            return false;
        }
    }
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    return true;
}

TEST_SETUP(a_kill_at_every_call_loses_nothing, scratch_begin, scratch_end)
{
    for (uint32_t third = 0; third < 2; third++) {
        bool killed = true;
        uint32_t n = 0;

        for (; killed; n++) {
            pid_t pid;
            char where[64];

            if (!sample_takes(n, 7, third))
                continue;
            kept_log_begin(ST_LOG_NOTICE);
            start_again(third != 0);
            pid = start_traced();
            if (pid < 0) {
                kept_log_end();
                print_message("no process can be traced here: not tested\n");
                skip();
            }
            killed = kill_at_stop(pid, n);
            snprintf(where, sizeof(where), "killed at stop %u", n);
            assert_sound(where, third != 0 ? 3 : 2);
            kept_log_end();
        }
        assert_true(n > 100);
    }
}
