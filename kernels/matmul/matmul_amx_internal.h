/* kernels/matmul/matmul_amx_internal.h - products of bf16 on the tiles of AMX.  Only matmul.c calls it.
 *
 * An element of C has the same bits whatever block it is computed in. */
#ifndef KERNELS_MATMUL_MATMUL_AMX_INTERNAL_H
#define KERNELS_MATMUL_MATMUL_AMX_INTERNAL_H

#include "kernels/matmul/matmul.h"
#include <stddef.h>
#include <stdint.h>

#if defined(__x86_64__)
/** Bytes that a run needs beside its operands, aligned to 64. */
size_t st_amx_scratch(const struct st_matmul *mm);
/** For operands in BF16, C in BF16 or F32; bias may be NULL.  The calling thread's tiles are as before. */
void st_amx_run(const struct st_matmul *mm, void *c, const uint16_t *a, const uint16_t *b, const uint16_t *bias,
                unsigned char *scratch);
#else
static inline size_t st_amx_scratch(const struct st_matmul *mm)
{
    (void)mm;
    return 0;
}

static inline void st_amx_run(const struct st_matmul *mm, void *c, const uint16_t *a, const uint16_t *b, const uint16_t *bias,
                              unsigned char *scratch)
{
    (void)mm, (void)c, (void)a, (void)b, (void)bias, (void)scratch;
}
#endif

#endif
