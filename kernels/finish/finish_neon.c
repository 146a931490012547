/* kernels/finish/finish_neon.c - rounding of a finished gradient, eight elements at a time. */
#include "kernels/isa/neon.h"

#include "kernels/finish/finish_vector.inc"
