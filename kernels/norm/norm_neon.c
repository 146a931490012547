/* kernels/norm/norm_neon.c - rounding of a finished gradient, eight elements at a time. */
#include "kernels/isa/neon.h"

#include "kernels/norm/norm_vector.inc"
