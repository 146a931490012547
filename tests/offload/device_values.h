/* tests/offload/device_values.h - values of tensors in every dtype: made, read as doubles and compared, wherever they lie. */
#ifndef TESTS_OFFLOAD_DEVICE_VALUES_H
#define TESTS_OFFLOAD_DEVICE_VALUES_H

#include "strata/types.h"
#include <stdint.h>

/** 64 bits that are a function of seed and index. */
uint64_t df_bits(uint64_t seed, uint64_t index);
/** Uniform in [-1, 1), a function of seed and index. */
double df_uniform(uint64_t seed, uint64_t index);
/** Element i, from and to a double; the latter rounds to fp32 and from there to dt. */
double df_at(const void *p, uint64_t i, strata_dtype dt);
void df_set(void *p, uint64_t i, strata_dtype dt, double x);
/** A copy as doubles; free() it. */
double *df_doubles(const void *p, uint64_t elems, strata_dtype dt);

/** Fails unless |got[i] - want[i]| <= tolerance * max |want| for every i, where `got` has dtype dt. */
void df_assert_close(const char *what, const void *got, strata_dtype dt, const double *want, uint64_t elems, double tolerance);
/** What fp32, bf16 and fp16 arithmetic may lose, relative to the largest value of the tensor. */
double df_tolerance(strata_dtype dt);

#define DF_STEP 1e-5 /* of a central difference */
/** Central difference of loss(of) along the value at `at`, which loss reads and which is as before afterwards. */
double df_slope(double (*loss)(void *of), void *of, double *at);

#endif
