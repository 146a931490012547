/* device_cuda_blas.c - finds cublasLt and its functions.  The library has half a gigabyte, and a machine without a GPU needs
 * none of it. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/device/cuda/device_cuda_blas_internal.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct symbol {
    const char *name;
    size_t offset; /* in struct st_blas */
};

#define AT(member) offsetof(struct st_blas, member)
static const struct symbol symbols[] = {
    {"cublasLtGetVersion", AT(version)},
    {"cublasLtCreate", AT(create)},
    {"cublasLtDestroy", AT(destroy)},
    {"cublasLtMatmulDescCreate", AT(desc_create)},
    {"cublasLtMatmulDescDestroy", AT(desc_destroy)},
    {"cublasLtMatmulDescSetAttribute", AT(desc_set)},
    {"cublasLtMatrixLayoutCreate", AT(layout_create)},
    {"cublasLtMatrixLayoutDestroy", AT(layout_destroy)},
    {"cublasLtMatmulPreferenceCreate", AT(preference_create)},
    {"cublasLtMatmulPreferenceDestroy", AT(preference_destroy)},
    {"cublasLtMatmulPreferenceSetAttribute", AT(preference_set)},
    {"cublasLtMatmulAlgoGetHeuristic", AT(heuristic)},
    {"cublasLtMatmul", AT(matmul)},
};

static const char *const usual_names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "/usr/local/cuda/lib64/libcublasLt.so"};

/* Never unloaded, because not all CUDA libraries survive it and opening one again takes long. */
static void *open_library(const char *name)
{
    return st_fault("cuda.blas", 0) != 0 ? NULL : dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
}

static strata_status find_library(struct st_blas *blas)
{
    const char *asked = getenv("STRATA_CUBLASLT");

    if (asked != NULL && asked[0] != '\0') {
        blas->library = open_library(asked);
        if (blas->library == NULL)
            return st_error(STRATA_E_NOSYS, "cuda: STRATA_CUBLASLT names %s, which cannot be opened: %s", asked, dlerror());
        snprintf(blas->name, sizeof(blas->name), "%s", asked);
        return STRATA_OK;
    }
    for (size_t i = 0; i < sizeof(usual_names) / sizeof(usual_names[0]); i++) {
        blas->library = open_library(usual_names[i]);
        if (blas->library != NULL) {
            snprintf(blas->name, sizeof(blas->name), "%s", usual_names[i]);
            return STRATA_OK;
        }
    }
    return st_error(STRATA_E_NOSYS, "cuda: no cuBLAS found (libcublasLt.so.13 or .12), which does the matmuls: install NVIDIA's "
                                    "libcublas (package libcublas-13-0, or pip's nvidia-cublas), and set LD_LIBRARY_PATH to its "
                                    "folder or STRATA_CUBLASLT to the file");
}

strata_status st_blas_open(struct st_blas *out)
{
    struct st_blas blas = {0};
    strata_status st = find_library(&blas);

    if (st != STRATA_OK)
        return st;
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(blas.library, symbols[i].name);

        if (found == NULL) {
            st = st_error(STRATA_E_NOSYS, "cuda: %s has no %s: cuBLAS 12 or 13 is needed", blas.name, symbols[i].name);
            st_blas_close(&blas);
            return st;
        }
        memcpy((char *)&blas + symbols[i].offset, &found, sizeof(found));
    }
    *out = blas;
    return STRATA_OK;
}

void st_blas_close(struct st_blas *blas)
{
    if (blas->library != NULL)
        (void)dlclose(blas->library);
    blas->library = NULL;
}
