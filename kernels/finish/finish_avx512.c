/* kernels/finish/finish_avx512.c - rounding of a finished gradient, sixteen elements at a time. */
#include "kernels/isa/avx512.h"

#include "kernels/finish/finish_vector.inc"
