/* tests/common/child.h - processes that a test starts and that never outlive it: one that waits for its own end would otherwise
 * hold the test's output open, and with it whoever reads that, when the test dies or is killed at its time limit. */
#ifndef TESTS_COMMON_CHILD_H
#define TESTS_COMMON_CHILD_H

#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/** fork(): the child dies by SIGKILL with the thread that calls this. Aborts where there can be no process. */
pid_t child_fork(void);
/** Waits for its end; returns its exit code, or 128 and the signal that ended it. */
int child_wait(pid_t pid);
/** Ends it by SIGKILL, and waits. */
void child_kill(pid_t pid);

#ifdef __cplusplus
}
#endif

#endif
