/* tests/cli/signal_timer.c - preloaded into the program: a handler that does nothing, called a thousand times a second.
 *
 * Kernels that use the stack pointer as a data pointer do not survive it on a thread that computes. */
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/time.h>

static atomic_uint calls;

static void do_nothing(int number)
{
    (void)number;
    atomic_fetch_add_explicit(&calls, 1, memory_order_relaxed);
}

__attribute__((constructor)) static void start(void)
{
    struct sigaction action = {.sa_handler = do_nothing, .sa_flags = SA_RESTART};
    const struct itimerval every = {.it_interval = {.tv_usec = 1000}, .it_value = {.tv_usec = 1000}};

    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &every, NULL);
}

__attribute__((destructor)) static void stop(void)
{
    fprintf(stderr, "timer: %u calls\n", atomic_load(&calls));
}
