/* gpu_report_nccl.c - whether NCCL, which does the collectives of several GPUs, can be opened.  See
 * offload/device/cuda/gpu_report.h.
 *
 * Only its version is asked for; offload/comm/nccl_library.c opens it for ranks. */
#include "core/base/error.h"
#include "offload/device/cuda/cuda_library.h"
#include "offload/device/cuda/gpu_report.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static strata_status accept(void *ctx, void *handle, const char *file)
{
    struct st_gpu_report *out = ctx;
    int (*get_version)(int *version) = NULL; /* 0 is ncclSuccess */
    void *found = dlsym(handle, "ncclGetVersion");
    int version = 0;

    memcpy(&get_version, &found, sizeof(get_version));
    if (get_version == NULL || get_version(&version) != 0)
        return st_error(STRATA_E_NOSYS, "%s tells no version", file);
    out->nccl_version = (uint32_t)version;
    snprintf(out->nccl, sizeof(out->nccl), "%s", file);
    return STRATA_OK;
}

const struct st_library_kind st_nccl_library = {
    .name = "libnccl.so",
    .versions = {2},
    .asked = "STRATA_NCCL",
    .site = "cuda.nccl",
    .missing = "no NCCL: install NVIDIA's libnccl2 (or pip's nvidia-nccl-cu13), or set STRATA_NCCL to the file libnccl.so.2",
    .accept = accept,
};

void st_gpu_report_nccl(struct st_gpu_report *out)
{
    if (st_library_find(&st_nccl_library, out) != STRATA_OK)
        snprintf(out->nccl_problem, sizeof(out->nccl_problem), "%s", strata_last_error());
}
