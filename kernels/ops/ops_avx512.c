/* kernels/ops/ops_avx512.c - the ops for AVX-512 F, BW, VL and DQ: one register holds all lanes of a sum. */
#define OPS_LANES 16u
#define OPS_TABLE st_ops_avx512
#define OPS_NAME  "avx512"
#include "kernels/ops/ops_body.inc"
