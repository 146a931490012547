/* kernels/norm_neon.c - rounding of a finished gradient, eight elements at a time. */
#include "kernels/neon.h"

#include "kernels/norm_vector.inc"
