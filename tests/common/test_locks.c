/* test_locks - a mutex that is given back without being held ends a test program; one that is held does not. */
#include "tests/common/child.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void *lock_it(void *ctx)
{
    (void)ctx;
    pthread_mutex_lock(&mutex);
    return NULL;
}

enum way { HELD, NOT_HELD, HELD_BY_ANOTHER, WAYS };

/* In a child. */
static int status_of(enum way way)
{
    const pid_t pid = child_fork();
    int status = 0;

    if (pid == 0) {
        pthread_t other;

        (void)close(STDERR_FILENO); /* where it would say so */
        signal(SIGABRT, SIG_DFL);
        if (way == HELD)
            lock_it(NULL);
        if (way == HELD_BY_ANOTHER && (pthread_create(&other, NULL, lock_it, NULL) != 0 || pthread_join(other, NULL) != 0))
            _exit(1);
        pthread_mutex_unlock(&mutex);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

TEST(a_lock_that_is_not_held_is_met)
{
    for (enum way way = HELD; way < WAYS; way++) {
        const int status = status_of(way);

        assert_true(way == HELD ? WIFEXITED(status) && WEXITSTATUS(status) == 0
                                : WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    }
}
