/* tests/kernels/update_scalar_fma.c - the scalar kernels once more, compiled with -mfma: fmaf is an instruction here and a
 * call in the library's own object.  test_update.c, test_update_rules.c and test_update_moments.c hold the two against each
 * other. */
#define st_update_split_scalar  st_update_split_scalar_fma
#define st_update_master_scalar st_update_master_scalar_fma
#define st_moments_open         st_moments_open_fma
#define st_moments_close        st_moments_close_fma
#define st_moment_close         st_moment_close_fma
#include "kernels/update/update_scalar.c"
