/* nap.c - see offload/comm/nap.h. */
#include "offload/comm/nap.h"
#include "core/system/clock.h"

#include <sched.h>

#define EAGER_NS    50000u /* a nap takes at least this long, since timers of the system are late by that much */
#define NAP_NS_MOST 100000u

void st_nap_begin(struct st_nap *nap)
{
    *nap = (struct st_nap){.since_ns = st_clock_ns(), .next_ns = 1000};
}

uint64_t st_nap(struct st_nap *nap)
{
    const uint64_t now = st_clock_ns();

    if (now - nap->since_ns < EAGER_NS) {
        (void)sched_yield();
    } else {
        st_clock_sleep_until(now + nap->next_ns);
        nap->next_ns = nap->next_ns < NAP_NS_MOST / 2 ? 2 * nap->next_ns : NAP_NS_MOST;
    }
    return now - nap->since_ns;
}
