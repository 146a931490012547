/* cli/cli_signals.h - how Ctrl-C, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, SIGQUIT and the memory watchdog end a command.
 *
 * A signal ends it at once, unless the command has said that it can end by itself; then the first signal only asks, and the
 * second ends it at once, as SIGQUIT does in any case.  The same signal again within half a second is the first one still.
 *
 * Launchers send several for one Ctrl-C: of a process that one has started only SIGINT counts as a second signal, and that
 * two seconds after the last.  Launchers that cannot wait send SIGKILL.
 *
 * "At once" means: kill the child, remove swap files and unfinished files, and exit with 128 + the signal. */
#ifndef CLI_CLI_SIGNALS_H
#define CLI_CLI_SIGNALS_H

#include "strata/status.h"
#include <stdint.h>
#include <sys/types.h>

struct strata_engine;

#define CLI_SIGNAL_MEMORY (-1) /* in place of a signal's number: memory runs out */

/** Call in main(), before there are other threads: see core/system/signals.h. */
strata_status cli_signals_start(void);

/** From here on the first signal only asks; the command must check cli_signals_pending().
 *  @param notice  logged when the signal comes, with what ends the command at once; static; NULL: nothing */
void cli_signals_ask(const char *notice);
/** The command waits for a person again: what has asked is forgotten, and the next signal ends it at once. */
void cli_signals_forget(void);
/** Set the engine that an asking signal cancels; borrowed; set NULL before it is destroyed. */
void cli_signals_engine(struct strata_engine *engine);

/* What a training run's ranks ask of each other (strata_engine_request()). */
enum cli_request {
    CLI_REQUEST_SAVE = 1,
    CLI_REQUEST_HANGUP = 2,
    CLI_REQUEST_INTERRUPT = 4,
    CLI_REQUEST_TERMINATE = 8,
    CLI_REQUEST_MEMORY = 16,
    CLI_REQUEST_USER1 = 32,
    CLI_REQUEST_USER2 = 64,
    CLI_REQUEST_CPU_TIME = 128
};

/** Set the engine whose ranks are asked to end by a signal that asks, and to save: it is not cancelled.  Borrowed; set NULL
 * before it is destroyed.  What was asked for before goes to it now. */
void cli_signals_ranks(struct strata_engine *engine);
/** From here on SIGUSR1 asks them to save, and ends nothing. */
void cli_signals_saves(void);
/** The signal, or CLI_SIGNAL_MEMORY, for which the ranks' bits end the run; 0: they do not. */
int cli_signals_of_requests(uint32_t bits);

/** From here on signals come from a launcher, too. */
void cli_signals_launched(void);

/** From here on a signal ends nothing: its number is written there, a byte; borrowed; it must not block.  -1: they end again. */
void cli_signals_pass_on(int fd);

/** Set the child process to kill when this one is ended at once; 0: none. */
void cli_signals_child(pid_t pid);

/** Memory runs out: asks as a signal does.  Any thread.  If something has asked already, or the command cannot end by itself,
 *  nothing happens.
 *  @param why  a sentence */
void cli_signals_memory(const char *why);

/** A drive does not answer, and what waits for it cannot end: ends the process at once, with exit code 4.  Any thread.
 *  @param ctx       not used
 *  @param sentence  what is outstanding */
void cli_signals_hang(void *ctx, const char *sentence);

/** The first signal that asked, or 0. */
int cli_signals_pending(void);
/** "Ctrl-C", the name of another signal, or "the memory watchdog". */
const char *cli_signals_name(int number);
/** Exit code of a command that it has ended: 128 + the signal, or 3 for CLI_SIGNAL_MEMORY. */
int cli_signals_exit_code(int number);

#endif
