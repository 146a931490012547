/* tests/cli/ranks.h - a run of several processes, as torchrun starts them. */
#ifndef TESTS_CLI_RANKS_H
#define TESTS_CLI_RANKS_H

#include "tests/cli/program.h"
#include "tests/cli/workplace.h"

#include <sched.h>
#include <stdint.h>

#define RANKS_MAX 4

struct ranks {
    struct program programs[RANKS_MAX];
    uint32_t count;
};

/** Start `count` processes with torch's variables; standard output of rank 0 is a pipe.
 *  @param odd  options of the last rank only, or NAME=VALUE of its environment; "": none */
void ranks_start_piped(const struct workplace *w, struct ranks *r, uint32_t count, const char *command, const char *odd);
/** Wait for all of them, and drain the pipe. */
void ranks_wait(struct ranks *r);
/** Start them with their output in memory, and wait. */
void ranks_run(const struct workplace *w, struct ranks *r, uint32_t count, const char *command, const char *odd);
/** The same, and all end with exit code 0, or the test ends with what they said. */
void ranks_run_ok(const struct workplace *w, struct ranks *r, uint32_t count, const char *command);
/** The same, each on processors of its own.  @param sets  [count] */
void ranks_run_bound(const struct workplace *w, struct ranks *r, uint32_t count, const char *command, const cpu_set_t *sets);
void ranks_free(struct ranks *r);
/** Fails the test where what one of them has said lacks this part. */
void ranks_must_say(const char *text, const char *part);

#endif
