/* kernels/ops/ops_avx2.c - the ops for AVX2.  Only this file gets -mavx2 -mfma -mf16c. */
#define OPS_LANES 8u
#define OPS_TABLE st_ops_avx2
#define OPS_NAME  "avx2"
#include "kernels/ops/ops_body.inc"
