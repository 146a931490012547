/* tests/nvme/test_swap_kill.c - a run directory whose owner is killed at any system call is swept; one that lives is not. */
#include "core/system/cleanup.h"
#include "nvme/swap/swap.h"
#include "nvme/swap/swap_internal.h"
#include "tests/common/kept_log.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define BYTES (64u << 10)

#define VOLUMES 4u

static bool create_file(const struct st_owned_dir *run, const char *name)
{
    bool direct;
    int fd;

    if (st_swap_file_create(&fd, &direct, run, name, BYTES, 0600) != STRATA_OK)
        return false;
    close(fd);
    return true;
}

/* A whole life on the disk, without a thread: a tracer then sees every call.  The last set is made anew. */
static int live(void)
{
    char name[ST_SWAP_NAME_BYTES];
    struct st_owned_dir run;
    struct st_users users;

    st_swap_sweep(scratch_dir);
    if (st_owned_dir_create(&run, &st_run_dir_kind, scratch_dir) != STRATA_OK)
        return 1;
    st_users_join_at(&users, run.parent_fd);
    for (uint32_t v = 0; v < VOLUMES; v++) {
        st_swap_file_name(name, v, 0);
        if (!create_file(&run, name))
            return 2;
    }
    if (unlinkat(run.dir_fd, name, 0) != 0 || !create_file(&run, name))
        return 3;
    st_owned_dir_clear(&run);
    st_users_leave(&users);
    st_owned_dir_close(&run);
    return 0;
}

/* A child that stops before and after each of its system calls. */
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
        _exit(live());
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

TEST_SETUP(a_kill_at_every_call_is_swept, scratch_create, scratch_remove)
{
    uint32_t left = 0, n = 0;
    bool killed = true;

    for (; killed; n++) {
        const pid_t pid = start_traced();

        if (pid < 0) {
            print_message("no process can be traced here: not tested\n");
            skip();
        }
        killed = kill_at_stop(pid, n);
        left += scratch_entries(scratch_dir, NULL) > 0;
        st_swap_sweep(scratch_dir);
        if (scratch_entries(scratch_dir, NULL) != 0)
            fail_msg("killed at stop %u: something is left", n);
    }
    assert_true(n > 80); /* all its calls, before and after */
    assert_true(left > 40);
}

/* One sweeps as fast as it can; whoever makes a directory meanwhile gets one, and keeps it. */
TEST_SETUP(a_sweep_takes_nothing_from_the_living, scratch_create, scratch_remove)
{
    enum { MAKERS = 2, ROUNDS = 150 };
    pid_t makers[MAKERS], sweeper = fork();

    assert_true(sweeper >= 0);
    if (sweeper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (;;)
            st_swap_sweep(scratch_dir);
    }
    for (int i = 0; i < MAKERS; i++) {
        makers[i] = fork();
        assert_true(makers[i] >= 0);
        if (makers[i] != 0)
            continue;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        for (uint32_t round = 0; round < ROUNDS; round++) {
            struct st_owned_dir run;
            int fd;

            if (st_owned_dir_create(&run, &st_run_dir_kind, scratch_dir) != STRATA_OK) {
                print_message("%s\n", strata_last_error());
                _exit(1);
            }
            fd = openat(run.dir_fd, "swap-0", O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
            if (fd < 0)
                _exit(2);
            close(fd);
            if (faccessat(run.dir_fd, ST_OWNED_DIR_LOCK, F_OK, 0) != 0 || access(run.path, F_OK) != 0)
                _exit(3);
            st_owned_dir_remove(&run);
        }
        _exit(0);
    }
    for (int i = 0; i < MAKERS; i++) {
        int status;

        assert_int_equal(waitpid(makers[i], &status, 0), makers[i]);
        assert_true(WIFEXITED(status));
        assert_int_equal(WEXITSTATUS(status), 0);
    }
    assert_int_equal(kill(sweeper, SIGKILL), 0);
    assert_int_equal(waitpid(sweeper, NULL, 0), sweeper);
    st_swap_sweep(scratch_dir);
    assert_int_equal(scratch_entries(scratch_dir, NULL), 0);
}

TEST_SETUP(a_renamed_directory_is_left_empty, scratch_create, scratch_remove)
{
    const struct st_swap_opts opts = {.dir_count = 1, .bytes = {BYTES}, .method = "threads", .queue_depth = 1};

    for (int dying = 0; dying < 2; dying++) {
        const char *const dirs[] = {scratch_path("before")};
        struct st_swap_opts with_dir = opts;
        struct st_swap *swap;

        with_dir.dirs = dirs;
        assert_int_equal(mkdir(dirs[0], 0700), 0);
        assert_int_equal(st_swap_open(&swap, &with_dir), STRATA_OK);
        assert_int_equal(rename(dirs[0], scratch_path("after")), 0);
        if (dying)
            st_cleanup_run();
        else
            st_swap_close(swap);
        assert_int_equal(scratch_entries(scratch_path("after"), NULL), 0);
        if (dying)
            st_swap_close(swap);
        assert_int_equal(rmdir(scratch_path("after")), 0);
    }
}

/* What each instant of making one leaves, and what only looks like it. */
TEST_SETUP(unfinished_directories_are_swept_and_others_not, scratch_create, scratch_remove)
{
    assert_int_equal(mkdir(scratch_path("strata-0123456789abcde0"), 0700), 0);
    scratch_put("strata-0123456789abcde1/lock", "");
    scratch_put("strata-0123456789abcde2/lock", "strata swap");
    scratch_put("strata-0123456789abcde3/lock", "");
    scratch_put("strata-0123456789abcde3/swap-0", "mine");
    scratch_put("strata-0123456789abcde4/lock", "strata swap lock 2");
    assert_int_equal(mkdir(scratch_path("strata-mine"), 0700), 0);
    assert_int_equal(st_swap_sweep(scratch_dir), 2); /* nobody had come to lock the empty one */
    assert_int_equal(scratch_entries(scratch_dir, NULL), 3);
    assert_int_equal(scratch_entries(scratch_path("strata-0123456789abcde3"), NULL), 2);
    assert_int_equal(scratch_entries(scratch_path("strata-0123456789abcde4"), NULL), 1);
}

TEST_MAIN(argc, argv)
{
    kept_log_begin(ST_LOG_WARN);
    return test_run(NULL, NULL);
}
