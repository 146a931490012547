/* offload/comm/comm_lane.h - the thread that does a comm's exchanges, in the order in which they were submitted.
 *
 * The order is the same on every rank: the program's.  While the lane is open nobody else exchanges over its comm. */
#ifndef OFFLOAD_COMM_COMM_LANE_H
#define OFFLOAD_COMM_COMM_LANE_H

#include "offload/comm/comm.h"

/* Caller-owned; untouchable between submit and done. */
struct st_comm_job {
    const struct st_comm_peer *peers; /* [ranks] borrowed until done, with their parts, as is `what` (st_comm_exchange()) */
    const char *what;
    /* On the lane's thread, once; keep it short; may submit.  A failure's sentence is in strata_last_error(). */
    void (*done)(struct st_comm_job *job, strata_status st);
    void *ctx; /* the caller's */
    /* out */
    uint64_t start_ns, end_ns; /* st_clock_ns(), around the exchange */
    /* internal */
    struct st_comm_job *next;
};

struct st_comm_lane;

/** Start the thread.  @param comm  borrowed until close.  E_NOMEM. */
strata_status st_comm_lane_open(struct st_comm_lane **out, struct st_comm *comm);
/** Any thread.  Never fails, waits or allocates; after a failure of the comm its jobs end at once, each with the same sentence.
 */
void st_comm_lane_submit(struct st_comm_lane *lane, struct st_comm_job *job);
/** When all that was submitted has ended, end the thread; who does not want to wait for the other ranks calls st_comm_abort()
 * first. Not from done(); nothing may be submitted any more but by done().  NULL: does nothing. */
void st_comm_lane_close(struct st_comm_lane *lane);

#endif
