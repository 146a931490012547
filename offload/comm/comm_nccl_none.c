/* comm_nccl_none.c - no NCCL, in a build without the cuda device. */
#include "core/base/error.h"
#include "offload/comm/comm_nccl.h"

strata_status st_comm_nccl_open(struct st_comm **out, struct st_comm *host, uint32_t device)
{
    (void)out, (void)host, (void)device;
    return st_error(STRATA_E_NOSYS, "nccl: this build has no cuda device: configure with -DSTRATA_CUDA=ON");
}
