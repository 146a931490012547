/* mpi_other.c - a strata_mpi.so of another version of the program. */
#include <stdint.h>

extern __attribute__((visibility("default"))) const uint32_t strata_mpi[4];
const uint32_t strata_mpi[4] = {99, 16, 0, 0};
