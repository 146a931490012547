/* kernels/ops/ops_scalar.c - the ops for any processor: four lanes, which every compiler target can express. */
#define OPS_LANES 4u
#define OPS_TABLE st_ops_scalar
#define OPS_NAME  "scalar"
#include "kernels/ops/ops_body.inc"
