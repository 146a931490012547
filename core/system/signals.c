/* core/system/signals.c - see core/system/signals.h.  The static variables are written once, by st_signals_start(), before other
 * threads run. */
#include "core/system/signals.h"

#include "core/system/thread.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

static const int raised_by_instructions[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};
static const int raised_by_writes[] = {SIGPIPE, SIGXFSZ};
/* Besides SIGINT and SIGTERM, where nobody ignores, blocks or handles them; the last three are those of batch systems. */
static const int end_by_default[] = {SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGXCPU};

static st_signals_fn *ended_by;
static sigset_t mask_at_start;
static sigset_t default_at_start; /* those of raised_by_writes that were not ignored */

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

void st_signals_block(sigset_t *before)
{
    sigset_t outside;

    sigfillset(&outside);
    for (size_t i = 0; i < COUNT(raised_by_instructions); i++)
        sigdelset(&outside, raised_by_instructions[i]);
    pthread_sigmask(SIG_BLOCK, &outside, before);
}

void st_signals_restore(const sigset_t *before)
{
    pthread_sigmask(SIG_SETMASK, before, NULL);
}

static bool is_ignored(int number)
{
    struct sigaction action;

    return sigaction(number, NULL, &action) == 0 && action.sa_handler == SIG_IGN;
}

static bool ends_by_default(int number)
{
    struct sigaction action;

    return sigismember(&mask_at_start, number) == 0 && sigaction(number, NULL, &action) == 0 &&
           (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_DFL;
}

static void *wait_for_signals(void *arg)
{
    sigset_t ends, mask = mask_at_start;
    int number;

    (void)arg;
    sigemptyset(&ends);
    sigaddset(&ends, SIGINT);
    sigaddset(&ends, SIGTERM);
    for (size_t i = 0; i < COUNT(end_by_default); i++)
        if (ends_by_default(end_by_default[i]))
            sigaddset(&ends, end_by_default[i]);
    sigorset(&mask, &mask, &ends);
    pthread_sigmask(SIG_SETMASK, &mask, NULL); /* all other signals are delivered to this thread */
    for (;;)
        if (sigwait(&ends, &number) == 0)
            ended_by(number);
    return NULL;
}

strata_status st_signals_start(st_signals_fn *ended)
{
    pthread_t thread;
    strata_status st;

    ended_by = ended;
    sigemptyset(&default_at_start);
    for (size_t i = 0; i < COUNT(raised_by_writes); i++)
        if (!is_ignored(raised_by_writes[i])) {
            sigaddset(&default_at_start, raised_by_writes[i]);
            signal(raised_by_writes[i], SIG_IGN);
        }
    st_signals_block(&mask_at_start);
    st = st_thread_start(&thread, "signals", wait_for_signals, NULL);
    if (st == STRATA_OK)
        pthread_detach(thread);
    return st;
}

int st_signals_child(posix_spawnattr_t *attributes)
{
    int err = posix_spawnattr_setsigmask(attributes, &mask_at_start);

    if (err == 0)
        err = posix_spawnattr_setsigdefault(attributes, &default_at_start);
    if (err == 0)
        err = posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    return err;
}
