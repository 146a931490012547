/* cli/cli_signals.c - see cli/cli_signals.h.  signal_came() runs on the thread that waits for signals, everything else on the
 * main thread. */
#include "cli/cli_signals.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "core/system/signals.h"
#include "strata/engine.h"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

#define ECHO_NS     INT64_C(500000000)
#define LAUNCHER_NS INT64_C(2000000000)

static pthread_mutex_t lock =
    PTHREAD_MUTEX_INITIALIZER; /* guards the ten below, so that an engine is not destroyed while it is being cancelled */
static bool asks, saves, launched;
static struct strata_engine *engine_to_cancel, *engine_to_ask;
static uint32_t requests_waiting; /* for an engine to ask */
static const char *notice_of_first;
static pid_t child_to_kill;
static int pass_to = -1;
static uint64_t asked_ns;         /* when signal_pending was set and obeyed; of a launcher, its last signal */
static atomic_int signal_pending; /* first signal that asked, CLI_SIGNAL_MEMORY, or 0 */

static const struct {
    int number;
    uint32_t bit;
    const char *name;
} ends[] = {{SIGHUP, CLI_REQUEST_HANGUP, "SIGHUP"},      {SIGINT, CLI_REQUEST_INTERRUPT, "Ctrl-C"},
            {SIGTERM, CLI_REQUEST_TERMINATE, "SIGTERM"}, {SIGQUIT, 0, "SIGQUIT"},
            {SIGUSR1, CLI_REQUEST_USER1, "SIGUSR1"},     {SIGUSR2, CLI_REQUEST_USER2, "SIGUSR2"},
            {SIGXCPU, CLI_REQUEST_CPU_TIME, "SIGXCPU"},  {CLI_SIGNAL_MEMORY, CLI_REQUEST_MEMORY, "the memory watchdog"}};
#define ENDS (sizeof(ends) / sizeof(ends[0]))

static size_t end_of(int number)
{
    size_t i = 0;

    while (i < ENDS - 1 && ends[i].number != number)
        i++;
    return i;
}

const char *cli_signals_name(int number)
{
    return ends[end_of(number)].name;
}

int cli_signals_exit_code(int number)
{
    return number == CLI_SIGNAL_MEMORY ? 3 : 128 + number;
}

/* A write to a pipe that nobody reads must not block the end of the process. */
static bool is_read(int fd)
{
    struct pollfd standard_error = {.fd = fd, .events = POLLOUT};

    return poll(&standard_error, 1, 0) == 1 && (standard_error.revents & POLLOUT) != 0;
}

/* Writes without stdio, whose lock may be held by a waiting thread. */
static void say_last(int number)
{
    char text[128];
    const int length = snprintf(text, sizeof(text), "strata: ended by %s; nothing unfinished is left%s\n",
                                cli_signals_name(number), saves ? ", and what no checkpoint has is lost" : "");

    if (is_read(STDERR_FILENO))
        (void)!write(STDERR_FILENO, text, (size_t)length);
}

static _Noreturn void end_now(int number)
{
    if (child_to_kill != 0)
        kill(child_to_kill, SIGKILL);
    strata_abandon();
    say_last(number);
    _exit(128 + number);
}

int cli_signals_of_requests(uint32_t bits)
{
    for (size_t i = 0; i < ENDS; i++)
        if ((bits & ends[i].bit) != 0)
            return ends[i].number;
    return 0;
}

/* Lock held. */
static void request(uint32_t bits)
{
    requests_waiting |= bits;
    if (engine_to_ask == NULL)
        return;
    strata_engine_request(engine_to_ask, requests_waiting);
    requests_waiting = 0;
}

/* Lock held.  False: something else has asked already, or the command cannot end by itself. */
static bool ask(int number, const char *why, enum st_log_level level)
{
    int none = 0;

    if (!asks || !atomic_compare_exchange_strong(&signal_pending, &none, number))
        return false;
    if (engine_to_cancel != NULL)
        strata_engine_cancel(engine_to_cancel);
    request(ends[end_of(number)].bit);
    if (notice_of_first != NULL && is_read(STDERR_FILENO))
        st_log(level, "%s: %s; %s ends it now", why, notice_of_first, launched ? "SIGQUIT" : "a second signal");
    asked_ns = st_clock_ns();
    return true;
}

/* Lock held.  What ends a job may signal the process and then its group, as timeout(1) does: that is one signal, which comes
 * twice within microseconds, or later on a busy machine.  A person who means the second one has read the notice first. */
static bool is_echo(int number)
{
    return asks && cli_signals_pending() == number && st_fault("cli.signal_age", (int64_t)(st_clock_ns() - asked_ns)) < ECHO_NS;
}

/* Lock held.  deepspeed's launcher sends SIGTERM after a terminal's Ctrl-C, and once more when its own parent ends it; of a
 * session that ends SIGHUP comes with SIGTERM. */
static bool is_launchers(int number)
{
    const uint64_t now = st_clock_ns();
    const int64_t age = st_fault("cli.launcher_age", (int64_t)(now - asked_ns));

    if (!launched || !asks || cli_signals_pending() == 0 || number == SIGQUIT || (number == SIGINT && age >= LAUNCHER_NS))
        return false;
    asked_ns = now;
    return true;
}

/* Lock held.  A pipe that is full has as many signals as anybody has sent. */
static void pass_on(int number)
{
    const char byte = (char)number;

    if (!st_fault_refuses("cli.pass_on"))
        (void)!write(pass_to, &byte, 1);
}

static void signal_came(int number)
{
    pthread_mutex_lock(&lock);
    if (pass_to >= 0)
        pass_on(number);
    else if (number == SIGUSR1 && saves)
        request(CLI_REQUEST_SAVE);
    else if (number == SIGXCPU && asks && cli_signals_pending() != 0)
        ; /* the kernel repeats it every second */
    else if (is_launchers(number) || is_echo(number))
        ;
    else if (number == SIGQUIT || !ask(number, cli_signals_name(number), ST_LOG_NOTICE))
        end_now(number);
    pthread_mutex_unlock(&lock);
}

void cli_signals_memory(const char *why)
{
    pthread_mutex_lock(&lock);
    (void)ask(CLI_SIGNAL_MEMORY, why, ST_LOG_WARN);
    pthread_mutex_unlock(&lock);
}

/* Said first: on a drive that hangs, removing names may hang as well. */
void cli_signals_hang(void *ctx, const char *sentence)
{
    (void)ctx;
    pthread_mutex_lock(&lock);
    if (is_read(STDERR_FILENO))
        st_log(ST_LOG_ERROR, "%s, and the kernel does not cancel it: the process ends, and what it has learnt is lost", sentence);
    if (child_to_kill != 0)
        kill(child_to_kill, SIGKILL);
    strata_abandon();
    _exit(4);
}

strata_status cli_signals_start(void)
{
    return st_signals_start(signal_came);
}

void cli_signals_ask(const char *notice)
{
    pthread_mutex_lock(&lock);
    asks = true;
    notice_of_first = notice;
    pthread_mutex_unlock(&lock);
}

void cli_signals_forget(void)
{
    pthread_mutex_lock(&lock);
    asks = false;
    atomic_store(&signal_pending, 0);
    pthread_mutex_unlock(&lock);
}

void cli_signals_engine(struct strata_engine *engine)
{
    pthread_mutex_lock(&lock);
    engine_to_cancel = engine;
    if (engine != NULL && cli_signals_pending() != 0)
        strata_engine_cancel(engine);
    pthread_mutex_unlock(&lock);
}

void cli_signals_ranks(struct strata_engine *engine)
{
    pthread_mutex_lock(&lock);
    engine_to_ask = engine;
    request(0);
    pthread_mutex_unlock(&lock);
}

void cli_signals_saves(void)
{
    pthread_mutex_lock(&lock);
    saves = true;
    pthread_mutex_unlock(&lock);
}

void cli_signals_launched(void)
{
    pthread_mutex_lock(&lock);
    launched = true;
    pthread_mutex_unlock(&lock);
}

void cli_signals_pass_on(int fd)
{
    pthread_mutex_lock(&lock);
    pass_to = fd;
    pthread_mutex_unlock(&lock);
}

void cli_signals_child(pid_t pid)
{
    pthread_mutex_lock(&lock);
    child_to_kill = pid;
    pthread_mutex_unlock(&lock);
}

int cli_signals_pending(void)
{
    return atomic_load(&signal_pending);
}
