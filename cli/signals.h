/* cli/signals.h - Ctrl-C and SIGTERM end a run cleanly: the first asks, the second does not wait. */
#ifndef CLI_SIGNALS_H
#define CLI_SIGNALS_H

struct st_engine;

/** Handle SIGINT and SIGTERM from now on. */
void cli_signals_install(void);

/** Threads created between hold and release never run the handler: it runs on the main thread alone, so an engine
 *  that the main thread is destroying cannot be cancelled by another thread's handler. */
void cli_signals_hold(void);
void cli_signals_release(void);

/** The engine that a signal cancels; NULL before it exists and before it is destroyed. */
void cli_signals_engine(struct st_engine *engine);

/** The first signal that came, or 0. */
int cli_signals_pending(void);

#endif
