/* tests/cuda/emulator/blas.h - what the emulator's cublasLt tells a test, and what a test may ask of it.
 *
 * The library is opened at run time: a test finds this by dlsym(dlopen(STRATA_CUBLASLT's file), TWIN_BLAS_SYMBOL). */
#ifndef TESTS_CUDA_EMULATOR_BLAS_H
#define TESTS_CUDA_EMULATOR_BLAS_H

#include <stdint.h>

struct twin_blas {
    uint64_t heuristics;            /* asked so far */
    uint64_t invalid;               /* calls answered with INVALID_VALUE */
    uint64_t gelus, gelu_gradients; /* matmuls with such an epilogue */
    int64_t objects;                /* alive: handles, descriptions, layouts, preferences */
    int refuses_heuristics;         /* name no algorithm */
    int refuses_gelu;               /* name none with one of those epilogues */
    int refuses_bias;               /* name none with a bias */
};
#define TWIN_BLAS_SYMBOL "twin_blas"

#endif
