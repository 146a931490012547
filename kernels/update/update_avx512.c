/* kernels/update/update_avx512.c - the update rules, sixteen elements at a time. */
#include "kernels/isa/avx512.h"

#include "kernels/update/update_vector.inc"
