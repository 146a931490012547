/* nvme/mover/depth.h - finds the fewest requests in flight that still give a device its full throughput.
 *
 * It compares windows of requests that ended while the queue was full: a step down is kept if it costs less than 1.5 %, a step up
 * if it gains more than 4 %. Windows with different mixes of reads and writes are not compared.  One thread; the caller supplies
 * the time, so that tests can use a model of a device. */
#ifndef NVME_MOVER_DEPTH_H
#define NVME_MOVER_DEPTH_H

#include <stdbool.h>
#include <stdint.h>

#define ST_DEPTH_START 32u
#define ST_DEPTH_MIN   4u
#define ST_DEPTH_MAX   128u

struct st_depth {
    uint32_t depth; /* in use now, ST_DEPTH_MIN..ST_DEPTH_MAX */
    /* internal */
    uint32_t home;      /* the depth that trials start from and return to */
    bool rising;        /* direction of the current trial, or of the next */
    uint32_t hold;      /* windows to spend at home before the next trial */
    uint32_t hold_next; /* length of the next hold; doubles while trials fail */
    double home_rate;   /* bytes per ns; 0: not measured with this mix */
    uint32_t mix;       /* mix of the last window */
    uint32_t settle;    /* requests issued at the previous depth that still have to end */
    uint32_t requests, reads;
    uint64_t bytes, start_ns; /* of the current window; start 0: none is open */
};

void st_depth_init(struct st_depth *d);
/** A request has ended.
 *  @param full  as many requests as allowed were in flight; otherwise the rate says nothing about the device. */
void st_depth_done(struct st_depth *d, uint64_t now_ns, uint32_t bytes, bool read, bool full);

#endif
