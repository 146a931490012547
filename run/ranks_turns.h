/* run/ranks_turns.h - ranks that do something one after the other, as long as it takes each. */
#ifndef RUN_RANKS_TURNS_H
#define RUN_RANKS_TURNS_H

#include "offload/comm/comm.h"

/** Without a comm run `work`; else run it on rank 0, then on the first rank of each other machine, then on all others, so that
 * those who share files find what is there already.  Those who wait do so as long as it takes.
 *  @param what  for sentences
 *  @return the status of this rank's work; if another rank's failed, that verdict (st_comm_abort_as()); E_IO: a rank is gone */
strata_status st_ranks_take_turns(struct st_comm *comm, strata_status (*work)(void *ctx), void *ctx, const char *what);

#endif
