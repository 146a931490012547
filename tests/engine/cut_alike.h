/* tests/engine/cut_alike.h - a comm that refuses exchanges of a device's memory which one rank cuts otherwise than the other one:
 * NCCL cannot do them (offload/comm/comm_nccl.h). */
#ifndef TESTS_ENGINE_CUT_ALIKE_H
#define TESTS_ENGINE_CUT_ALIKE_H

#include "offload/comm/comm.h"

/** @param under  taken: does the exchanges, and is closed with this one */
strata_status cut_alike_open(struct st_comm **out, struct st_comm *under);

#endif
