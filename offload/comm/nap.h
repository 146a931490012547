/* offload/comm/nap.h - how a thread waits for what tells nobody when it is done: it asks again and again, ever less often. */
#ifndef OFFLOAD_COMM_NAP_H
#define OFFLOAD_COMM_NAP_H

#include <stdint.h>

struct st_nap {
    uint64_t since_ns; /* since when nothing has happened */
    uint64_t next_ns;  /* how long the next nap is */
};

/** Something has happened. */
void st_nap_begin(struct st_nap *nap);
/** Nothing has: leaves the core to others for at most 100 us.
 *  @return nanoseconds since something happened */
uint64_t st_nap(struct st_nap *nap);

#endif
