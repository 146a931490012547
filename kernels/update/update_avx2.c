/* kernels/update/update_avx2.c - the update rules, eight elements at a time. */
#include "kernels/isa/avx2.h"

#include "kernels/update/update_vector.inc"
