/* kernels/cast/nf4_neon.c - NF4, eight elements at a time. */
#include "kernels/isa/neon.h"

#include "kernels/cast/nf4_vector.inc"
