/* kernels/update_avx2.c - the update rules, eight elements at a time. */
#include "kernels/avx2.h"

#include "kernels/update_vector.inc"
