/* core/system/signals.h - signals from outside are blocked in every thread but one, which waits for them.
 *
 * No thread that computes may run a signal handler, neither ours nor one of a preloaded library: oneDNN's kernels before 3.12 use
 * the stack pointer as a data pointer (oneDNN issue 4845, fixed by its pull request 4855), and the handler's frame lands in the
 * heap.  Signals that an instruction raises (SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS) are never blocked. */
#ifndef CORE_SYSTEM_SIGNALS_H
#define CORE_SYSTEM_SIGNALS_H

#include "strata/status.h"
#include <signal.h>
#include <spawn.h>

/** Block every signal from outside in the calling thread, and so in the threads that it starts.
 *  @param before  out, for st_signals_restore() */
void st_signals_block(sigset_t *before);
void st_signals_restore(const sigset_t *before);

/* Called when SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2 or SIGXCPU has arrived, on a separate thread: it may lock and
 * allocate, but if it blocks, a thread that waits for it waits forever. */
typedef void st_signals_fn(int number);

/** Call once, in main(), before there are other threads: blocks signals there and starts the thread that waits for them.  An
 *  ignored SIGHUP (nohup) stays ignored.  All other signals keep their action or handler, which that thread runs: Ctrl-Z stops
 * the program.  SIGPIPE and SIGXFSZ are ignored, since the write that meets a closed pipe or a limit reports it.  E_NOMEM: no
 *  thread. */
strata_status st_signals_start(st_signals_fn *ended);

/** Give a child the mask and the actions that this process was started with.
 *  @param attributes  initialised by the caller
 *  @return 0 or an errno value */
int st_signals_child(posix_spawnattr_t *attributes);

#endif
