/* kernels/cast/cast_avx512.c - split, join, casts and addition, sixteen elements at a time. */
#include "kernels/isa/avx512.h"

#include "kernels/cast/cast_vector.inc"
