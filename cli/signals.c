/* cli/signals.c - the handler's two variables, and nothing else that is global here.
 *
 * `engine` is written by the main thread and read by the handler, which runs there too; it does only what signal-safety(7)
 * allows: an atomic flag, st_engine_cancel, and at the second signal st_swap_unlink_all and _exit. */
#include "cli/signals.h"
#include "core/file.h"
#include "offload/engine.h"

#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <unistd.h>

static _Atomic(struct st_engine *) engine_to_cancel;
static atomic_int signal_pending; /* first signal, or 0 */

static void on_signal(int number)
{
    struct st_engine *engine = atomic_load(&engine_to_cancel);
    int none = 0;

    if (!atomic_compare_exchange_strong(&signal_pending, &none, number)) {
        st_swap_unlink_all();
        st_new_file_remove_all();
        _exit(128 + number);
    }
    if (engine != NULL)
        st_engine_cancel(engine);
}

void cli_signals_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static void mask_signals(int how)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    pthread_sigmask(how, &set, NULL);
}

void cli_signals_hold(void)
{
    mask_signals(SIG_BLOCK);
}

void cli_signals_release(void)
{
    mask_signals(SIG_UNBLOCK);
}

void cli_signals_engine(struct st_engine *engine)
{
    atomic_store(&engine_to_cancel, engine);
    if (engine != NULL && cli_signals_pending() != 0)
        st_engine_cancel(engine);
}

int cli_signals_pending(void)
{
    return atomic_load(&signal_pending);
}
