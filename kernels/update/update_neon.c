/* kernels/update/update_neon.c - the update rules, eight elements at a time. */
#include "kernels/isa/neon.h"

#include "kernels/update/update_vector.inc"
