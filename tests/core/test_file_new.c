/* tests/core/test_file_new.c - files are made under new names, whatever lies there and whoever else makes them. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "core/system/file.h"
#include "tests/common/assert_status.h"
#include "tests/common/child.h"
#include "tests/common/fault_walk.h"
#include "tests/common/file_order.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OVERWRITE ST_NEW_FILE_OVERWRITE

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

static strata_status make(const char *name, const char *text, unsigned flags)
{
    struct st_new_file f;
    strata_status st = st_new_file_create(&f, scratch_path(name), flags);

    if (st != STRATA_OK)
        return st;
    st = st_new_file_write_at(&f, text, strlen(text), 0);
    if (st == STRATA_OK)
        return st_new_file_commit(&f);
    st_new_file_abort(&f);
    return st;
}

/* The name of the one new file in the directory. */
static const char *temp_path(const struct st_new_file *f)
{
    return scratch_path(f->temp);
}

/* --- what lies there --- */

TEST_SETUP(what_is_there_is_kept_unless_asked_for, scratch_begin, scratch_end)
{
    assert_int_equal(make("a", "first", 0), STRATA_OK);
    assert_refused(make("a", "second", 0), STRATA_E_INPUT, "exists already: export.overwrite");
    assert_refused(st_new_file_check(scratch_path("a"), false), STRATA_E_INPUT, "exists already: export.overwrite");
    scratch_holds("a", "first");
    assert_int_equal(st_new_file_check(scratch_path("a"), true), STRATA_OK);
    assert_int_equal(make("a", "third", OVERWRITE), STRATA_OK);
    scratch_holds("a", "third");
    assert_int_equal(scratch_entries(scratch_dir, "a"), 0);
}

TEST_SETUP(links_and_devices_are_not_written_through, scratch_begin, scratch_end)
{
    scratch_put("victim", "precious");
    assert_int_equal(symlink("victim", scratch_path("link")), 0);
    assert_int_equal(symlink("nothing", scratch_path("dangling")), 0);
    assert_int_equal(mkfifo(scratch_path("pipe"), 0600), 0);
    assert_refused(make("link", "x", OVERWRITE), STRATA_E_INPUT, "is a link");
    assert_refused(make("dangling", "x", OVERWRITE), STRATA_E_INPUT, "is a link");
    assert_refused(make("pipe", "x", OVERWRITE), STRATA_E_INPUT, "a device or a pipe");
    assert_refused(st_new_file_check(scratch_path("a/"), true), STRATA_E_INPUT, "not a file name");
    assert_refused(st_new_file_check(scratch_dir, true), STRATA_E_INPUT, "a directory");
    assert_refused(st_new_file_check("/dev/full", true), STRATA_E_INPUT, "a device or a pipe");
    assert_refused(st_new_file_check(scratch_path("nowhere/a"), false), STRATA_E_INPUT, "nowhere");
    assert_refused(make("nowhere/a", "x", 0), STRATA_E_INPUT, "nowhere");
    scratch_holds("victim", "precious");
    assert_int_equal(scratch_entries(scratch_dir, NULL), 4);
}

/* Of directories to be made, one is a file already, or a link to nothing. */
TEST_SETUP(parents_are_directories, scratch_begin, scratch_end)
{
    struct st_new_file f;

    scratch_put("victim", "precious");
    assert_int_equal(symlink("nothing", scratch_path("dangling")), 0);
    assert_refused(st_new_file_create(&f, scratch_path("victim/a"), ST_NEW_FILE_PARENTS), STRATA_E_INPUT, "is not a directory");
    assert_refused(st_new_file_create(&f, scratch_path("dangling/a"), ST_NEW_FILE_PARENTS), STRATA_E_INPUT, "is not a directory");
    scratch_holds("victim", "precious");
    assert_int_equal(scratch_entries(scratch_dir, NULL), 2);
}

/* The old fixed name of the new file, and the pattern of today's, planted as links. */
TEST_SETUP(planted_links_are_not_followed, scratch_begin, scratch_end)
{
    scratch_put("victim", "precious");
    assert_int_equal(symlink("victim", scratch_path("a.tmp")), 0);
    assert_int_equal(symlink("victim", scratch_path("a.strata-0123456789abcdef.tmp")), 0);
    assert_int_equal(make("a", "mine", 0), STRATA_OK);
    scratch_holds("a", "mine");
    scratch_holds("victim", "precious");
    assert_int_equal(scratch_entries(scratch_dir, NULL), 4);
}

/* On file systems with every way to take a name. */
TEST_SETUP(a_name_that_appears_meanwhile_is_kept, scratch_begin, scratch_end)
{
    static const char *const lacking[] = {"file.none", "file.rename", "file.link"};
    struct st_new_file f;

    for (size_t i = 0; i < 3; i++) {
        const struct st_fault_spec no_flags = {.site = "file.rename", .result = -EINVAL};
        const struct st_fault_spec nothing = {.count = 2, .result = -EINVAL}; /* rename and link */

        assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
        assert_int_equal(st_new_file_write_at(&f, "hours", 5, 0), STRATA_OK);
        scratch_put("a", "another's");
        if (i > 0)
            st_fault_arm(i == 1 ? &no_flags : &nothing);
        assert_refused(st_new_file_publish(&f), STRATA_E_INPUT,
                       "appeared while it was being made, and is kept: the new file is beside it, as a.strata-");
        st_fault_disarm();
        st_new_file_abort(&f);
        scratch_holds("a", "another's");
        scratch_holds(f.temp, "hours");
        unlink(temp_path(&f));
        unlink(scratch_path("a"));
        if (i > 0)
            st_fault_arm(i == 1 ? &no_flags : &(struct st_fault_spec){.site = lacking[i], .result = -EPERM});
        assert_int_equal(make("a", "mine", 0), STRATA_OK);
        st_fault_disarm();
        scratch_holds("a", "mine");
        assert_int_equal(scratch_entries(scratch_dir, "a"), 0);
        unlink(scratch_path("a"));
    }
}

/* --- two makers --- */

/* Where no other name can be had either, the next maker of the file removes it. */
TEST_SETUP(a_file_is_kept_without_its_name, scratch_begin, scratch_end)
{
    struct st_new_file f;

    for (int cannot = 0; cannot < 2; cannot++) {
        assert_int_equal(st_new_file_create(&f, scratch_path("new/a"), ST_NEW_FILE_PARENTS), STRATA_OK);
        assert_int_equal(st_new_file_write_at(&f, "hours", 5, 0), STRATA_OK);
        if (cannot)
            st_fault_arm(&(struct st_fault_spec){.site = "file.keep", .result = -ENOSYS});
        st_new_file_keep(&f);
        st_fault_disarm();
        assert_int_equal(st_new_file_kept_for_now(&f), cannot);
        st_cleanup_run();
        st_new_file_abort(&f);
        assert_int_equal(scratch_entries(scratch_path("new"), f.temp), cannot); /* and the one of the first turn */
        assert_int_equal(make("new/b", "other", OVERWRITE), STRATA_OK);
        unlink(scratch_path("new/b"));
    }
    assert_int_equal(make("new/a", "again", 0), STRATA_OK);
    assert_int_equal(scratch_entries(scratch_path("new"), NULL), 2);
    assert_int_equal(scratch_entries_with(scratch_path("new"), "a.strata-"), 1);
}

/* A call that the system lacks, or memory that it refuses, is no fault of who named the file. */
TEST_SETUP(what_could_be_begun_ends_with_an_error_of_the_disk, scratch_begin, scratch_end)
{
    static const char *const sites[] = {"file.sync", "file.rename", "file.sync_directory"};
    static const int errors[] = {ENOSYS, ENOMEM, EACCES, ENOENT, EIO};
    strata_status st;

    for (size_t i = 0; i < 3; i++)
        for (size_t e = 0; e < sizeof(errors) / sizeof(errors[0]); e++) {
            st_fault_arm(&(struct st_fault_spec){.site = sites[i], .result = -errors[e]});
            st = make("a", "x", OVERWRITE);
            assert_int_equal(st_fault_disarm(), 1);
            assert_int_equal(st, STRATA_E_IO);
        }
}

TEST_SETUP(one_file_has_one_maker, scratch_begin, scratch_end)
{
    struct st_new_file f, other;
    char spelling[300];

    assert_int_equal(symlink(scratch_dir, scratch_path("here")), 0);
    assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
    snprintf(spelling, sizeof(spelling), "%s/./a", scratch_dir);
    assert_refused(st_new_file_create(&other, spelling, 0), STRATA_E_INPUT, "two outputs");
    assert_refused(st_new_file_create(&other, scratch_path("here/a"), OVERWRITE), STRATA_E_INPUT, "two outputs");
    assert_int_equal(st_new_file_create(&other, scratch_path("b"), 0), STRATA_OK);
    st_new_file_abort(&other);
    assert_int_equal(st_new_file_publish(&f), STRATA_OK);
    assert_refused(st_new_file_create(&other, scratch_path("a"), OVERWRITE), STRATA_E_INPUT, "two outputs");
    assert_int_equal(st_new_file_commit(&f), STRATA_OK);
    assert_int_equal(scratch_entries(scratch_dir, "here"), 1);
}

TEST_SETUP(one_name_in_two_directories_is_two_files, scratch_begin, scratch_end)
{
    struct st_new_file f, other;

    assert_int_equal(mkdir(scratch_path("d"), 0700), 0);
    assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
    assert_int_equal(st_new_file_create(&other, scratch_path("d/a"), 0), STRATA_OK);
    assert_int_equal(st_new_file_write_at(&f, "one", 3, 0), STRATA_OK);
    assert_int_equal(st_new_file_write_at(&other, "other", 5, 0), STRATA_OK);
    assert_int_equal(st_new_file_commit(&f), STRATA_OK);
    assert_int_equal(st_new_file_commit(&other), STRATA_OK);
    scratch_holds("a", "one");
    scratch_holds("d/a", "other");
}

/* A child that makes `name`, up to its own death by `signal`: after it said so. */
static pid_t maker(const char *name, bool publish)
{
    struct st_new_file f;
    int ends[2];
    char ready = 0;
    pid_t child;

    assert_int_equal(pipe(ends), 0);
    child = child_fork();
    if (child == 0) {
        if (st_new_file_create(&f, scratch_path(name), 0) != STRATA_OK || (publish && st_new_file_publish(&f) != STRATA_OK))
            _exit(1);
        if (write(ends[1], "x", 1) != 1)
            _exit(1);
        for (;;)
            pause();
    }
    close(ends[1]);
    assert_int_equal(read(ends[0], &ready, 1), 1);
    close(ends[0]);
    return child;
}

TEST_SETUP(a_living_makers_file_is_left_and_a_dead_ones_removed, scratch_begin, scratch_end)
{
    pid_t child = maker("a", false);

    assert_refused(make("a", "x", OVERWRITE), STRATA_E_INPUT, "another run is writing it");
    assert_int_equal(scratch_entries_with(scratch_dir, ".tmp"), 1);
    assert_int_equal(make("ab", "x", 0), STRATA_OK); /* another name's are not touched */
    child_kill(child);
    scratch_put("a.strata-0123456789abcdef.tmp.mine", "x");
    scratch_put("a.strata-0123.tmp", "x");
    assert_int_equal(make("a", "new", 0), STRATA_OK);
    scratch_holds("a", "new");
    assert_int_equal(scratch_entries(scratch_dir, NULL), 4);
}

TEST_SETUP(a_file_that_grows_under_its_name_is_not_replaced, scratch_begin, scratch_end)
{
    pid_t child = maker("a", true);

    assert_refused(make("a", "x", OVERWRITE), STRATA_E_INPUT, "another run is writing it");
    child_kill(child);
    assert_int_equal(make("a", "x", OVERWRITE), STRATA_OK);
    assert_int_equal(scratch_entries(scratch_dir, "a"), 0);
}

/* Two begin at once, over what a dead one left: at most one of them may make it. */
TEST_SETUP(makers_that_race_do_not_both_win, scratch_begin, scratch_end)
{
    enum { ROUNDS = 60 };
    uint32_t both = 0;

    for (uint32_t round = 0; round < ROUNDS; round++) {
        int go[2], won = 0;
        pid_t children[2];

        assert_int_equal(pipe(go), 0);
        scratch_put("a.strata-0123456789abcdef.tmp", "dead");
        for (int i = 0; i < 2; i++) {
            children[i] = child_fork();
            if (children[i] == 0) {
                struct st_new_file f;
                bool made;
                char c;

                close(go[1]);
                if (read(go[0], &c, 1) != 0)
                    _exit(9);
                made = st_new_file_create(&f, scratch_path("a"), 0) == STRATA_OK;
                if (made) {
                    kill(getpid(), SIGSTOP); /* the parent goes on when both have decided */
                    st_new_file_abort(&f);
                }
                _exit(made);
            }
        }
        close(go[1]);
        for (int i = 0; i < 2; i++) {
            int status = 0;

            assert_int_equal(waitpid(children[i], &status, WUNTRACED), children[i]);
            if (WIFSTOPPED(status))
                won++;
        }
        for (int i = 0; i < 2; i++)
            kill(children[i], SIGCONT);
        for (int i = 0; i < 2; i++)
            (void)waitpid(children[i], NULL, 0); /* of one that has ended nothing is left to wait for */
        close(go[0]);
        both += won == 2;
        assert_int_equal(make("a", "x", 0), STRATA_OK); /* where both refused, what the dead one left is removed now */
        unlink(scratch_path("a"));
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    }
    assert_int_equal(both, 0);
}

/* --- the end of a process, and failures --- */

static void *remove_all(void *arg)
{
    st_cleanup_run();
    return arg;
}

TEST_SETUP(another_thread_removes_all, scratch_begin, scratch_end)
{
    struct st_new_file f[3];
    pthread_t thread;

    assert_int_equal(st_new_file_create(&f[0], scratch_path("new/deep/a"), ST_NEW_FILE_PARENTS), STRATA_OK);
    assert_int_equal(st_new_file_create(&f[1], scratch_path("new/b"), 0), STRATA_OK); /* in what f[0] made: it goes first */
    assert_int_equal(st_new_file_create(&f[2], scratch_path("c"), 0), STRATA_OK);
    assert_int_equal(st_new_file_publish(&f[2]), STRATA_OK);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 2);
    assert_int_equal(pthread_create(&thread, NULL, remove_all, NULL), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(scratch_entries(scratch_dir, "c"), 0);
    for (size_t i = 0; i < 3; i++)
        st_new_file_abort(&f[i]);
    assert_int_equal(scratch_entries(scratch_dir, "c"), 0);
}

/* A file that cannot be seen is not one that is not there. */
TEST_SETUP(what_cannot_be_seen_is_an_error, scratch_begin, scratch_end)
{
    st_fault_arm(&(struct st_fault_spec){.site = "file.target", .count = 1, .result = -EIO});
    assert_int_equal(st_new_file_check(scratch_path("b"), false), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), 1);
}

/* What others make lies behind the entry that cannot be read. */
TEST_SETUP(a_directory_that_cannot_be_read_is_not_empty, scratch_begin, scratch_end)
{
    struct st_new_file f;

    st_fault_arm(&(struct st_fault_spec){.site = "file.readdir", .count = 1, .result = -EIO});
    assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_E_IO);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
}

/* A power cut at any instant leaves no name of a file that is not whole: data first, then the name, then its directory. */
TEST_SETUP(data_is_on_the_disk_before_its_name, scratch_begin, scratch_end)
{
    struct st_new_file f;

    for (int i = 0; i < 3; i++) {
        if (i == 2)
            st_fault_arm(&(struct st_fault_spec){.site = "file.rename", .result = -EINVAL});
        file_order_begin();
        assert_int_equal(make(i < 2 ? "a" : "b", "x", i == 1 ? OVERWRITE : 0), STRATA_OK);
        st_fault_disarm();
        assert_string_equal(file_order_text(), i < 2 ? "sync a, name a, sync ." : "sync b, name b, sync .");
    }
    assert_int_equal(st_new_file_create(&f, scratch_path("c"), 0), STRATA_OK);
    file_order_begin();
    st_new_file_keep(&f);
    st_new_file_abort(&f);
    assert_string_equal(file_order_text(), "name c, sync .");
}

/* Of two writes that fail, and of one in the midst of a text, after which others would succeed. */
TEST_SETUP(a_stream_tells_the_first_failure, scratch_begin, scratch_end)
{
    struct st_new_file f;
    struct rlimit all;

    st_fault_arm(&(struct st_fault_spec){.site = "file.stream_write", .count = 1, .result = -ENOSPC});
    assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
    assert_int_equal(st_new_file_stream(&f), STRATA_OK);
    for (int i = 0; i < 100000; i++)
        fputs("text", f.stream);
    assert_int_equal(st_new_file_flush(&f), ENOSPC);
    assert_int_equal(st_new_file_flush(&f), ENOSPC);
    assert_int_equal(st_fault_disarm(), 1);
    assert_int_equal(st_new_file_commit(&f), STRATA_E_NOSPC);

    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
    assert_int_equal(st_new_file_stream(&f), STRATA_OK);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){10000, all.rlim_max}), 0);
    for (int i = 0; i < 100000; i++)
        fputs("text", f.stream);
    assert_int_equal(st_new_file_sync(&f), STRATA_E_NOSPC);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    assert_non_null(strstr(strata_last_error(), "File too large: ulimit -f allows 10000 bytes"));
    st_new_file_abort(&f);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
}

/* One of both, published or not yet, in a directory that moves as well. */
TEST_SETUP(what_others_do_to_it_meanwhile_is_told, scratch_begin, scratch_end)
{
    struct st_new_file f;
    char from[100], path[128];

    for (int published = 0; published < 2; published++) {
        snprintf(from, sizeof(from), "%s", scratch_path(published ? "new" : "old"));
        snprintf(path, sizeof(path), "%s/a", from);
        assert_int_equal(st_new_file_create(&f, path, ST_NEW_FILE_PARENTS), STRATA_OK);
        if (published)
            assert_int_equal(st_new_file_publish(&f), STRATA_OK);
        assert_int_equal(rename(from, scratch_path("other")), 0);
        kept_log_begin(ST_LOG_WARN);
        assert_int_equal(st_new_file_commit(&f), STRATA_OK);
        kept_log_end();
        assert_int_equal(kept_log.count, 1);
        assert_non_null(strstr(kept_log.last, "/a was moved while it was being written: it is now "));
        assert_non_null(strstr(kept_log.last, "/other/a"));
        scratch_holds("other/a", "");
        unlink(scratch_path("other/a"));
        rmdir(scratch_path("other"));
    }
    for (int replaced = 0; replaced < 2; replaced++) {
        assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
        assert_int_equal(st_new_file_publish(&f), STRATA_OK);
        unlink(scratch_path("a"));
        if (replaced)
            scratch_put("a", "another's");
        assert_refused(st_new_file_commit(&f), STRATA_E_IO, "a was removed or replaced while it was being written");
        assert_false(f.named);
        assert_int_equal(scratch_entries(scratch_dir, NULL), replaced);
    }
    unlink(scratch_path("a"));
}

/* A signal that the program handles comes while space is taken. */
TEST_SETUP(space_is_taken_however_often_that_is_interrupted, scratch_begin, scratch_end)
{
    struct st_new_file f;
    struct stat info;

    assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
    st_fault_arm(&(struct st_fault_spec){.site = "file.reserve", .count = 3, .result = -EINTR});
    assert_int_equal(st_new_file_reserve(&f, 100), STRATA_OK);
    assert_int_equal(st_fault_disarm(), 3);
    assert_true(fstat(f.fd, &info) == 0 && info.st_size == 100);
    st_fault_arm(&(struct st_fault_spec){.site = "file.reserve", .result = -EINTR});
    assert_refused(st_new_file_reserve(&f, 100), STRATA_E_IO, "Interrupted system call");
    assert_int_equal(st_fault_disarm(), 1000);
    st_new_file_abort(&f);
}

TEST_SETUP(every_single_failure_is_clean, scratch_begin, scratch_end)
{
    struct fault_walk walk = {.result = -ENOSPC};

    while (fault_walk_next(&walk)) {
        struct st_new_file f;
        strata_status st = st_new_file_create(&f, scratch_path("new/a"), ST_NEW_FILE_PARENTS);

        if (st == STRATA_OK && (st = st_new_file_reserve(&f, 100)) == STRATA_OK &&
            (st = st_new_file_write_at(&f, "text", 4, 0)) == STRATA_OK && (st = st_new_file_stream(&f)) == STRATA_OK)
            st = st_new_file_commit(&f);
        st_new_file_abort(&f);
        fault_walk_end(&walk, st);
        if (st != STRATA_OK && strstr(strata_last_error(), "new") == NULL)
            fail_msg("\"%s\" names no file", strata_last_error());
        assert_int_equal(scratch_entries_with(scratch_path("new"), ".tmp"), 0);
        unlink(scratch_path("new/a"));
        rmdir(scratch_path("new"));
        assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
    }
    assert_true(walk.failed > 7);
}

/* A file that is complete has no descriptor any more: those that others get now stay open when it is aborted. */
TEST_SETUP(abort_after_commit_keeps_foreign_files_open, scratch_begin, scratch_end)
{
    struct st_new_file f;
    int fds[8];

    assert_int_equal(st_new_file_create(&f, scratch_path("a"), 0), STRATA_OK);
    assert_int_equal(st_new_file_write_at(&f, "text", 4, 0), STRATA_OK);
    assert_int_equal(st_new_file_commit(&f), STRATA_OK);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        assert_true((fds[i] = open(scratch_path("a"), O_RDONLY | O_CLOEXEC)) >= 0);
    st_new_file_abort(&f);
    for (size_t i = 0; i < sizeof(fds) / sizeof(fds[0]); i++)
        assert_int_equal(close(fds[i]), 0);
    scratch_holds("a", "text");
}
