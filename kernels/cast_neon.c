/* kernels/cast_neon.c - split, join, casts and addition, eight elements at a time. */
#include "kernels/neon.h"

#include "kernels/cast_vector.inc"
