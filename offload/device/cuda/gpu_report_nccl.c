/* gpu_report_nccl.c - whether NCCL, which does the collectives of several GPUs, can be opened.  See
 * offload/device/cuda/gpu_report.h.
 *
 * Only its version is asked for, since no run has several ranks yet. */
#include "core/base/fault.h"
#include "offload/device/cuda/gpu_report.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#define NAME "libnccl.so.2"

/* The system's library first, then the toolkit's own. */
static const char *const usual_names[] = {NAME, "/usr/local/cuda/lib64/" NAME, "/usr/local/cuda/lib/" NAME};

/* NULL: none; `problem` then says why the system's library was not opened */
static void *open_library(char *problem, size_t bytes)
{
    if (st_fault("cuda.nccl", 0) != 0) {
        snprintf(problem, bytes, "%s: refused by a test", NAME);
        return NULL;
    }
    for (size_t i = 0; i < sizeof(usual_names) / sizeof(usual_names[0]); i++) {
        void *library = dlopen(usual_names[i], RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);

        if (library != NULL)
            return library;
        if (i == 0)
            snprintf(problem, bytes, "%s", dlerror());
    }
    return NULL;
}

void st_gpu_report_nccl(struct st_gpu_report *out)
{
    int (*get_version)(int *version) = NULL; /* ncclGetVersion; 0 is ncclSuccess */
    void *library = open_library(out->nccl_problem, sizeof(out->nccl_problem)), *found;
    Dl_info info;
    int version = 0;

    if (library == NULL)
        return;
    found = dlsym(library, "ncclGetVersion");
    memcpy(&get_version, &found, sizeof(get_version));
    if (get_version == NULL || get_version(&version) != 0) {
        snprintf(out->nccl_problem, sizeof(out->nccl_problem), "%s tells no version", NAME);
    } else {
        out->nccl_problem[0] = '\0';
        out->nccl_version = (uint32_t)version;
        snprintf(out->nccl, sizeof(out->nccl), "%s", dladdr(found, &info) != 0 && info.dli_fname != NULL ? info.dli_fname : NAME);
    }
    (void)dlclose(library);
}
