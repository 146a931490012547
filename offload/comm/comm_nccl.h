/* offload/comm/comm_nccl.h - ranks with a GPU each, by NCCL: from one GPU's memory into another's. */
#ifndef OFFLOAD_COMM_COMM_NCCL_H
#define OFFLOAD_COMM_COMM_NCCL_H

#include "offload/comm/comm.h"

/** Opens libnccl.so.2 (STRATA_NCCL's, or where cublasLt is searched for, too) and joins all ranks of `host`.  Collective.
 *
 *  @param out          the comm; its world and deadline are host's
 *  @param host         borrowed until close: takes NCCL's id round, and is watched: when it has failed, so has this
 *  @param device       this rank's GPU, the N of "cuda:N"
 *  @return as host's; E_NOSYS on every rank: one has no NCCL of 2.14 or later that it can use, or this build has no cuda device;
 * the sentence names the rank.  E_CONFIG: ranks have different versions of it.  E_IO: it does not start
 *
 *  Parts lie on the GPU.  NCCL knows messages and no streams of bytes, so what goes from one rank to another is cut alike by
 * both: as many parts, of the same sizes (empty ones do not count).  Ranks that disagree about the call or the cuts are told so
 * where NCCL gets through with it, and by the deadline where it does not; it is the whole exchange's, since NCCL tells of no
 * progress. abort() ends what is under way here; the other ranks learn of it by their host comm, or by the deadline. */
strata_status st_comm_nccl_open(struct st_comm **out, struct st_comm *host, uint32_t device);

#endif
