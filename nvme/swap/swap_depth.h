/* nvme/swap/swap_depth.h - finds how many requests a device wants in flight: as few as still give its full throughput.
 *
 * Windows of requests that ended while the queue was full are compared: a step down stays where it costs less than 1.5 %, a step
 * up where it brings more than 4 %.  Windows of other mixes of reads and writes are not compared.  One thread; a clock is the
 * caller's, so that a model of a device can stand for one. */
#ifndef NVME_SWAP_SWAP_DEPTH_H
#define NVME_SWAP_SWAP_DEPTH_H

#include <stdbool.h>
#include <stdint.h>

#define ST_DEPTH_START 32u
#define ST_DEPTH_MIN   4u
#define ST_DEPTH_MAX   128u

struct st_depth {
    uint32_t depth; /* in use now, ST_DEPTH_MIN..ST_DEPTH_MAX */
    /* internal */
    uint32_t home;      /* the depth that is left and returned to by trials */
    bool rising;        /* direction of the trial under way, or of the next */
    uint32_t hold;      /* windows at home still to pass before it */
    uint32_t hold_next; /* doubles while trials fail */
    double home_rate;   /* bytes per ns; 0: not measured with this mix */
    uint32_t mix;       /* of the last window */
    uint32_t settle;    /* requests of the depth before, still to end */
    uint32_t requests, reads;
    uint64_t bytes, start_ns; /* of the window; start 0: none open */
};

void st_depth_init(struct st_depth *d);
/** A request has ended.
 *  @param full  as many requests as allowed were in flight: without that a rate says nothing about the device. */
void st_depth_done(struct st_depth *d, uint64_t now_ns, uint32_t bytes, bool read, bool full);

#endif
