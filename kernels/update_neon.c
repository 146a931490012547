/* kernels/update_neon.c - the update rules, eight elements at a time. */
#include "kernels/neon.h"

#include "kernels/update_vector.inc"
