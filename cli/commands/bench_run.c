/* cli/commands/bench_run.c - see cli/commands/bench_run.h. */
#include "cli/commands/bench_run.h"
#include "cli/cli_signals.h"
#include "cli/commands/commands.h"
#include "core/base/print.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

struct bench_hooks cli_bench_hooks(void)
{
    return (struct bench_hooks){.child = cli_signals_child, .progress = st_print_rewrites(stderr) ? stderr : NULL};
}

int cli_bench_end(strata_status st)
{
    return st == STRATA_OK ? 0 : cli_fail(st);
}
