/* cli/commands/bench_run.h - shared by `strata bench NAME` and `strata bench step`: hooks into signals, and ending a bench. */
#ifndef CLI_COMMANDS_BENCH_RUN_H
#define CLI_COMMANDS_BENCH_RUN_H

#include "bench/bench.h"

/** Hooks that let Ctrl-C and SIGTERM end a bench cleanly; a progress line if standard error is a terminal. */
struct bench_hooks cli_bench_hooks(void);

/** Exit code of a bench that ended with st; prints a failure to standard error. */
int cli_bench_end(strata_status st);

#endif
