/* tests/kernels/update_scalar_fma.c - the scalar kernels once more, compiled with -mfma: fmaf is an instruction here and a
 * call in the library's own object.  test_update.c and test_update_rules.c hold the two against each other. */
#define st_update_split_scalar  st_update_split_scalar_fma
#define st_update_master_scalar st_update_master_scalar_fma
#include "kernels/update_scalar.c"
