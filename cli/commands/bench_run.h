/* cli/commands/bench_run.h - what `strata bench NAME` and `strata bench step` share: hooks into signals, and how a bench ends. */
#ifndef CLI_COMMANDS_BENCH_RUN_H
#define CLI_COMMANDS_BENCH_RUN_H

#include "bench/bench.h"

/** Hooks that let Ctrl-C and SIGTERM end a bench cleanly; a progress line where standard error is a terminal. */
struct bench_hooks cli_bench_hooks(void);

/** Exit code of a bench that ended with st, said on standard error. */
int cli_bench_end(strata_status st);

#endif
