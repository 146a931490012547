/* tests/cuda/emulator/blas.h - what the emulator's cublasLt tells a test, and what a test may ask of it.
 *
 * The library is opened at run time: a test finds this by dlsym(dlopen(STRATA_CUBLASLT's file), TWIN_BLAS_SYMBOL). */
#ifndef TESTS_CUDA_EMULATOR_BLAS_H
#define TESTS_CUDA_EMULATOR_BLAS_H

#include <stdint.h>

struct twin_blas {
    uint64_t heuristics;    /* asked so far */
    int64_t objects;        /* alive: handles, descriptions, layouts, preferences */
    int refuses_heuristics; /* name no algorithm */
};
#define TWIN_BLAS_SYMBOL "twin_blas"

#endif
