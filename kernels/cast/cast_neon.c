/* kernels/cast/cast_neon.c - split, join, casts and addition, eight elements at a time. */
#include "kernels/isa/neon.h"

#include "kernels/cast/cast_vector.inc"
