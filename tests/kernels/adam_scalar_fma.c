/* tests/kernels/adam_scalar_fma.c - the scalar kernels once more, compiled with -mfma: fmaf is an instruction here and a
 * call in the library's own object.  test_adam.c holds the two against each other. */
#define st_adam_split_scalar  st_adam_split_scalar_fma
#define st_adam_master_scalar st_adam_master_scalar_fma
#include "kernels/adam_scalar.c"
