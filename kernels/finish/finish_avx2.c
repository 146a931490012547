/* kernels/finish/finish_avx2.c - rounding of a finished gradient, eight elements at a time. */
#include "kernels/isa/avx2.h"

#include "kernels/finish/finish_vector.inc"
