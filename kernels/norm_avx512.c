/* kernels/norm_avx512.c - rounding of a finished gradient, sixteen elements at a time. */
#include "kernels/avx512.h"

#include "kernels/norm_vector.inc"
