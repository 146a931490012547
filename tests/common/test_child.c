/* test_child - what a test starts ends with it. */
#include "tests/common/child.h"
#include "tests/common/test.h"

#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>

#define LONGEST_MS 60000 /* a wait that is over at once, or is the fault */

/* Starts a process which waits for ever, and then ends or dies. */
static void start_and_die(bool abnormally)
{
    int ready[2];
    char byte;

    if (pipe(ready) != 0)
        _exit(1);
    if (child_fork() == 0)
        while (write(ready[1], "x", 1) == 1)
            pause();
    if (read(ready[0], &byte, 1) != 1)
        _exit(1);
    signal(SIGABRT, SIG_DFL);
    if (abnormally)
        abort();
    _exit(0);
}

/* The pipe that both hold is closed when both are gone. */
TEST(a_child_dies_with_its_parent)
{
    for (size_t i = 0; i < 2; i++) {
        int held[2];
        struct pollfd closed = {.events = POLLIN};
        pid_t pid;

        assert_int_equal(pipe(held), 0);
        closed.fd = held[0];
        pid = child_fork();
        if (pid == 0)
            start_and_die(i == 1);
        close(held[1]);
        assert_int_equal(child_wait(pid), i == 0 ? 0 : 128 + SIGABRT);
        assert_int_equal(poll(&closed, 1, LONGEST_MS), 1);
        assert_int_equal(closed.revents, POLLHUP);
        close(held[0]);
    }
}

TEST(ends_are_told_apart)
{
    pid_t pid = child_fork();

    if (pid == 0)
        _exit(42);
    assert_int_equal(child_wait(pid), 42);
    pid = child_fork();
    if (pid == 0)
        for (;;)
            pause();
    assert_int_equal(kill(pid, SIGTERM), 0);
    assert_int_equal(child_wait(pid), 128 + SIGTERM);
}
