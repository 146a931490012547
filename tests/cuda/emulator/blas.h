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
    int offered;                    /* algorithms for a product, if more than one is asked for; 0: one */
    int claims;                     /* it says that it found so many, whatever it was asked for; 0: the truth */
    uint64_t code_bytes;            /* of device memory that an algorithm's kernel takes when it runs first */
    uint64_t runs[8];               /* of each algorithm */
};

/* What the algorithms are like, in the order of the heuristic.  Seconds are as events see them. */
enum {
    TWIN_BLAS_FIRST,   /* 3 s */
    TWIN_BLAS_OTHER,   /* other bits, and no time at all */
    TWIN_BLAS_SLOW,    /* 5 s */
    TWIN_BLAS_BEST,    /* 1 s */
    TWIN_BLAS_FAILS,   /* as soon as it is called */
    TWIN_BLAS_UNKNOWN, /* the heuristic says that it cannot be used */
    TWIN_BLAS_ADDS,    /* other bits only where C is added to, and no time at all */
    TWIN_BLAS_SECOND,  /* 2 s */
    TWIN_BLAS_KINDS
};
#define TWIN_BLAS_SYMBOL "twin_blas"

#endif
