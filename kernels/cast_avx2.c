/* kernels/cast_avx2.c - split, join, casts and addition, eight elements at a time. */
#include "kernels/avx2.h"

#include "kernels/cast_vector.inc"
