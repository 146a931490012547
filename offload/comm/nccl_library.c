/* nccl_library.c - finds NCCL and its functions.  See offload/comm/nccl_library_internal.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/comm/nccl_library_internal.h"
#include "offload/device/cuda/cuda_library.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct symbol {
    const char *name;
    size_t offset; /* in struct st_nccl */
};

#define AT(member) offsetof(struct st_nccl, member)
static const struct symbol symbols[] = {
    {"ncclGetVersion", AT(version)},
    {"ncclGetUniqueId", AT(unique_id)},
    {"ncclCommInitRankConfig", AT(init)},
    {"ncclCommDestroy", AT(destroy)},
    {"ncclCommAbort", AT(abort)},
    {"ncclCommGetAsyncError", AT(async_error)},
    {"ncclGetErrorString", AT(error_string)},
    {"ncclGroupStart", AT(group_start)},
    {"ncclGroupEnd", AT(group_end)},
    {"ncclSend", AT(send)},
    {"ncclRecv", AT(receive)},
};

static strata_status refuse_version(const struct st_nccl *nccl)
{
    return st_error(STRATA_E_NOSYS, "%s is NCCL %d.%d.%d, and 2.14 or a later 2.x is needed", nccl->name, nccl->found / 10000,
                    nccl->found / 100 % 100, nccl->found % 100);
}

static strata_status accept(void *ctx, void *handle, const char *file)
{
    struct st_nccl nccl = {0};

    snprintf(nccl.name, sizeof(nccl.name), "%s", file);
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(handle, symbols[i].name);

        memcpy((char *)&nccl + symbols[i].offset, &found, sizeof(found));
        if (i == 0 && (found == NULL || st_fault("nccl.version", nccl.version(&nccl.found)) != 0))
            return st_error(STRATA_E_NOSYS, "%s tells no version", nccl.name);
        if (i == 0 && (nccl.found < NCCL_VERSION_LEAST || nccl.found >= 30000))
            return refuse_version(&nccl);
        if (found == NULL)
            return st_error(STRATA_E_NOSYS, "%s has no %s: NCCL 2.14 or a later 2.x is needed", nccl.name, symbols[i].name);
    }
    *(struct st_nccl *)ctx = nccl;
    return STRATA_OK;
}

strata_status st_nccl_open(struct st_nccl *out)
{
    struct st_library_kind kind = st_nccl_library;

    kind.accept = accept;
    return st_library_find(&kind, out);
}
