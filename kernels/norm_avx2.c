/* kernels/norm_avx2.c - rounding of a finished gradient, eight elements at a time. */
#include "kernels/avx2.h"

#include "kernels/norm_vector.inc"
