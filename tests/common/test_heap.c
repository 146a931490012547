/* test_heap - the heap that some tests run with (tests/CMakeLists.txt) ends a program that writes past the end of a block. */
#include "tests/common/child.h"
#include "tests/common/test.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

/* In a child: the last of so many bytes, or the one behind it. */
static int status_of(size_t bytes, volatile size_t at)
{
    const pid_t pid = child_fork();
    int status = 0;

    if (pid == 0) {
        volatile char *const block = malloc(bytes);

        (void)close(STDERR_FILENO); /* where it would say so */
        signal(SIGABRT, SIG_DFL);
        if (block == NULL)
            _exit(1);
        /* The heap looks for its mark, whose value depends on the address and is never 1, back from the end: a 0 ends the search,
         * and so does the block's beginning. */
        for (size_t i = 0; i < bytes; i++)
            block[i] = 1;
        block[at] = block[at] == 0;
        free((void *)(uintptr_t)block);
        _exit(0);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return status;
}

TEST(a_byte_past_the_end_is_met)
{
    static const size_t sizes[] = {1, 8, 20, 24, 4095, 1 << 20};

    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        const int within = status_of(sizes[i], sizes[i] - 1), past = status_of(sizes[i], sizes[i]);

        assert_true(WIFEXITED(within) && WEXITSTATUS(within) == 0);
        assert_true(WIFSIGNALED(past) && WTERMSIG(past) == SIGABRT);
    }
}
