/* cli/cli_signals.h - how Ctrl-C, SIGTERM and SIGHUP end a command.
 *
 * At once, unless the command has said that it can end by itself; then the first signal asks and the second does not wait.
 * At once means: child killed, swap and unfinished files removed, exit code 128 + the signal. */
#ifndef CLI_CLI_SIGNALS_H
#define CLI_CLI_SIGNALS_H

#include "strata/status.h"
#include <sys/types.h>

struct strata_engine;

/** In main(), before there are other threads: see core/system/signals.h. */
strata_status cli_signals_start(void);

/** From here on the first signal only asks: the command looks at cli_signals_pending().
 *  @param notice  logged when it comes, static; NULL: nothing */
void cli_signals_ask(const char *notice);
/** The engine that a signal that asks cancels, borrowed; NULL before it is destroyed. */
void cli_signals_engine(struct strata_engine *engine);

/** A process to kill when this one ends at once; 0: none. */
void cli_signals_child(pid_t pid);

/** The first signal that asked, or 0. */
int cli_signals_pending(void);
/** "Ctrl-C", "SIGTERM" or "SIGHUP". */
const char *cli_signals_name(int number);

#endif
