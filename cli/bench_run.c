/* cli/bench_run.c - see cli/bench_run.h. */
#include "cli/bench_run.h"
#include "cli/commands.h"
#include "cli/signals.h"
#include "core/print.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static bool cancelled(void)
{
    return cli_signals_pending() != 0;
}

struct bench_hooks cli_bench_hooks(void)
{
    return (struct bench_hooks){.cancelled = cancelled,
                                .engine = cli_signals_engine,
                                .hold = cli_signals_hold,
                                .release = cli_signals_release,
                                .progress = st_print_rewrites(stderr) ? stderr : NULL};
}

int cli_bench_end(strata_status st)
{
    if (st == STRATA_OK)
        return 0;
    if (st != STRATA_E_CANCELLED)
        return cli_fail(st);
    st_print(stderr, "strata: ended by %s; no swap files are left\n", cli_signals_pending() == SIGTERM ? "SIGTERM" : "Ctrl-C");
    return 128 + cli_signals_pending();
}
