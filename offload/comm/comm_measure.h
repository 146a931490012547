/* offload/comm/comm_measure.h - how fast the links between ranks are: of each pair, and as a machine file says it.
 *
 * Everything is measured both ways at once, as exchanges are: a rate is what one side receives while it sends as many bytes. */
#ifndef OFFLOAD_COMM_COMM_MEASURE_H
#define OFFLOAD_COMM_COMM_MEASURE_H

#include "offload/comm/comm.h"

#define ST_LINKS_RANKS_MAX 16u /* each pair is measured by itself */

struct st_links {
    uint32_t ranks, here;                                /* ranks in all, and on rank 0's node */
    double pair[ST_LINKS_RANKS_MAX][ST_LINKS_RANKS_MAX]; /* bytes per second of only two ranks, [a][b] with a < b */
    double link_node, link_nodes;       /* as struct st_rates has them; 0: all are on one node, or each on its own */
    double latency_node, latency_nodes; /* seconds */
};

/** Measure; collective, over host memory, less than a second for each pair.  Every rank gets the same figures.
 *  @param node_of  [ranks] what ranks of one node have alike
 *  E_INVAL: more ranks than ST_LINKS_RANKS_MAX; E_NOMEM; otherwise as st_comm_exchange(). */
strata_status st_comm_measure(struct st_links *out, struct st_comm *comm, const uint16_t *node_of);

#endif
