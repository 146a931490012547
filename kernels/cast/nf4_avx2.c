/* kernels/cast/nf4_avx2.c - NF4, eight elements at a time. */
#include "kernels/isa/avx2.h"

#include "kernels/cast/nf4_vector.inc"
