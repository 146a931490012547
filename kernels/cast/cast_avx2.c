/* kernels/cast/cast_avx2.c - split, join, casts and addition, eight elements at a time. */
#include "kernels/isa/avx2.h"

#include "kernels/cast/cast_vector.inc"
