/* device_cuda_blas.c - finds cublasLt and its functions.  The library has half a gigabyte, and a machine without a GPU needs
 * none of it. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "offload/device/cuda/device_cuda_blas_internal.h"

#include <dlfcn.h>
#include <stdio.h>
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

static strata_status load_symbols(struct st_blas *blas, void *handle)
{
    for (size_t i = 0; i < sizeof(symbols) / sizeof(symbols[0]); i++) {
        void *found = dlsym(handle, symbols[i].name);

        if (found == NULL)
            return st_error(STRATA_E_NOSYS, "%s has no %s: cuBLAS 12 or 13 is needed", blas->name, symbols[i].name);
        memcpy((char *)blas + symbols[i].offset, &found, sizeof(found));
    }
    return STRATA_OK;
}

/* A library whose handle cannot be made is too new or too old for the driver, or lacks a part of itself. */
static strata_status create(struct st_blas *blas)
{
    const int rc = st_fault("cuda.blas_create", 0) != 0 ? 1 : blas->create(&blas->handle);

    if (rc == 0)
        return STRATA_OK;
    blas->handle = NULL;
    return st_error(rc == BLAS_ALLOC_FAILED ? STRATA_E_DEVICE_OOM : STRATA_E_NOSYS, "cublasLtCreate of %s returned status %d",
                    blas->name, rc);
}

struct wanted {
    struct st_blas *out;
    bool with_handle;
};

static strata_status accept(void *ctx, void *handle, const char *file)
{
    const struct wanted *wanted = ctx;
    struct st_blas blas = {0};
    strata_status st;

    snprintf(blas.name, sizeof(blas.name), "%s", file);
    st = load_symbols(&blas, handle);
    if (st == STRATA_OK && wanted->with_handle)
        st = create(&blas);
    if (st != STRATA_OK)
        return st;
    blas.library = handle;
    *wanted->out = blas;
    return STRATA_OK;
}

/* The build's own major comes first: with it the program was compiled, and it is the one that an installation is likely to match.
 */
const struct st_library_kind st_blas_library = {
    .name = "libcublasLt.so",
    .versions = {CUDART_VERSION / 1000, CUDART_VERSION / 1000 == 13 ? 12 : 13, CUDART_VERSION / 1000 > 13 ? 12 : 0},
    .asked = "STRATA_CUBLASLT",
    .site = "cuda.blas",
    .missing = "cuda: no cuBLAS that can be used, which does the matmuls: install NVIDIA's libcublas 12 or 13 (package "
               "libcublas-13-0, or pip's nvidia-cublas), or set STRATA_CUBLASLT to the file libcublasLt.so.13",
    .accept = accept,
};

strata_status st_blas_open(struct st_blas *out, const struct st_library_kind *kind, bool with_handle)
{
    struct wanted wanted = {out, with_handle};

    return st_library_find(kind, &wanted);
}

void st_blas_close(struct st_blas *blas)
{
    if (blas->handle != NULL)
        (void)blas->destroy(blas->handle);
    if (blas->library != NULL)
        (void)dlclose(blas->library);
    *blas = (struct st_blas){0};
}
