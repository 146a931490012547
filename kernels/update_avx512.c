/* kernels/update_avx512.c - the update rules, sixteen elements at a time. */
#include "kernels/avx512.h"

#include "kernels/update_vector.inc"
