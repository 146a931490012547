/* tests/common/child.c - see child.h. */
#include "tests/common/child.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

pid_t child_fork(void)
{
    const pid_t parent = getpid(), pid = fork();

    if (pid < 0) {
        perror("fork");
        abort();
    }
    /* The parent may be gone before the wish is known. */
    if (pid == 0 && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(127);
    return pid;
}

int child_wait(pid_t pid)
{
    int status;

    while (waitpid(pid, &status, 0) < 0) {
        if (errno != EINTR) {
            perror("waitpid");
            abort();
        }
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

void child_kill(pid_t pid)
{
    (void)kill(pid, SIGKILL);
    (void)child_wait(pid);
}
