/* kernels/cast/nf4_avx512.c - NF4, sixteen elements at a time. */
#include "kernels/isa/avx512.h"

#include "kernels/cast/nf4_vector.inc"
