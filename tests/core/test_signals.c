/* tests/core/test_signals.c - who blocks which signals: threads of ours, the thread that waits, and children. */
#include "core/system/signals.h"
#include "core/system/thread.h"
#include "tests/common/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

extern char **environ;

static const int by_instructions[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
static const int from_outside[] = {SIGINT,  SIGTERM, SIGHUP,  SIGQUIT,  SIGALRM, SIGTSTP,
                                   SIGCHLD, SIGUSR1, SIGPROF, SIGWINCH, SIGPIPE, SIGXFSZ};

static const int that_end[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGXCPU}; /* SIGUSR1 is ignored here, SIGUSR2 blocked */

static sem_t came;
static int number_that_came;
static pthread_t handled_on;

static void note_end(int number)
{
    number_that_came = number;
    sem_post(&came);
}

static void note_thread(int number)
{
    (void)number;
    handled_on = pthread_self();
    sem_post(&came);
}

static void check_blocked(void)
{
    sigset_t mask;

    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (size_t i = 0; i < COUNT(from_outside); i++)
        assert_int_equal(sigismember(&mask, from_outside[i]), 1);
    for (size_t i = 0; i < COUNT(by_instructions); i++)
        assert_int_equal(sigismember(&mask, by_instructions[i]), 0);
}

static void *blocked_main(void *arg)
{
    check_blocked();
    return arg;
}

/* As in a host that blocks nothing. */
static void threads_block_what_comes_from_outside(void **state)
{
    sigset_t none, mask;
    pthread_t thread;

    (void)state;
    sigemptyset(&none);
    pthread_sigmask(SIG_SETMASK, &none, NULL);
    assert_int_equal(st_thread_start(&thread, "test", blocked_main, NULL), STRATA_OK);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (size_t i = 0; i < COUNT(from_outside); i++)
        assert_int_equal(sigismember(&mask, from_outside[i]), 0);
}

TEST(one_thread_takes_signals)
{
    struct sigaction action = {.sa_handler = note_thread};

    check_blocked();
    for (size_t i = 0; i < COUNT(that_end); i++) {
        assert_int_equal(kill(getpid(), that_end[i]), 0);
        assert_int_equal(sem_wait(&came), 0);
        assert_int_equal(number_that_came, that_end[i]);
    }
    /* A handler that somebody else installs runs, but not here. */
    assert_int_equal(sigaction(SIGALRM, &action, NULL), 0);
    assert_int_equal(kill(getpid(), SIGUSR1), 0);
    assert_int_equal(kill(getpid(), SIGUSR2), 0);
    assert_int_equal(kill(getpid(), SIGALRM), 0);
    assert_int_equal(sem_wait(&came), 0);
    assert_int_equal(number_that_came, that_end[COUNT(that_end) - 1]);
    assert_false(pthread_equal(handled_on, pthread_self()));
}

/* Lines such as "SigBlk: 0000000000000000" of a child; owned by nobody: static. */
static const char *child_status(void)
{
    static char text[4096];
    char *argv[] = {"grep", "Sig[BI]", "/proc/self/status", NULL};
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int ends[2], status;
    ssize_t got, length = 0;
    pid_t pid;

    assert_int_equal(pipe2(ends, O_CLOEXEC), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawnattr_init(&attributes);
    assert_int_equal(st_signals_child(&attributes), 0);
    assert_int_equal(posix_spawnp(&pid, argv[0], &actions, &attributes, argv, environ), 0);
    close(ends[1]);
    while ((got = read(ends[0], text + length, sizeof(text) - 1 - (size_t)length)) > 0)
        length += got;
    text[length] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return text;
}

TEST(children_get_what_we_were_started_with)
{
    const char *status = child_status();
    unsigned long long mask = 1;

    assert_non_null(strstr(status, "SigBlk:"));
    assert_int_equal(sscanf(strstr(status, "SigBlk:"), "SigBlk: %llx", &mask), 1);
    assert_int_equal(mask, 1ull << (SIGUSR2 - 1));
    assert_int_equal(sscanf(strstr(status, "SigIgn:"), "SigIgn: %llx", &mask), 1);
    assert_int_equal(mask & (1ull << (SIGPIPE - 1) | 1ull << (SIGXFSZ - 1)), 1ull << (SIGXFSZ - 1));
}

static int start_signals(void **state)
{
    sigset_t before;

    (void)state;
    for (size_t i = 0; i < COUNT(that_end); i++)
        signal(that_end[i], SIG_DFL); /* not as nohup, or a shell that starts something beside it, left it */
    signal(SIGUSR1, SIG_IGN);
    signal(SIGPIPE, SIG_DFL);
    signal(SIGXFSZ, SIG_IGN);
    sigemptyset(&before);
    sigaddset(&before, SIGUSR2);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return sem_init(&came, 0, 0) == 0 && st_signals_start(note_end) == STRATA_OK ? 0 : -1;
}

TEST_MAIN(argc, argv)
{
    const struct CMUnitTest before[] = {
        cmocka_unit_test(threads_block_what_comes_from_outside),
    };

    return cmocka_run_group_tests(before, NULL, NULL) + test_run(start_signals, NULL);
}
