/* kernels/cast_avx512.c - split, join, casts and addition, sixteen elements at a time. */
#include "kernels/avx512.h"

#include "kernels/cast_vector.inc"
