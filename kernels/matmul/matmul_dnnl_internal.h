/* kernels/matmul/matmul_dnnl_internal.h - a small interface to oneDNN, whose own types stay in matmul_dnnl.c.  For matmul.c
 * alone.
 *
 * Thread  create and destroy: one at a time, no product running; run: one call per worker at a time. */
#ifndef KERNELS_MATMUL_MATMUL_DNNL_INTERNAL_H
#define KERNELS_MATMUL_MATMUL_DNNL_INTERNAL_H

#include "kernels/matmul/matmul.h"
#include <stddef.h>
#include <stdint.h>

struct st_dnnl;         /* the library's engine, and a stream for each worker */
struct st_dnnl_product; /* a matmul that is ready to run: its primitive, and for each worker the memory objects that point at the
                           tensors */

/** 0, or the library's status: ST_MATMUL_NO_MEMORY also where an allocation here failed. */
int st_dnnl_create(struct st_dnnl **out, uint32_t workers);
void st_dnnl_destroy(struct st_dnnl *lib); /* NULL is fine; its products are gone */
/** How the processor and what the library may use of it multiply bf16. */
enum st_matmul_path st_dnnl_bf16_path(void);

/** For operands in F32 or BF16.  0 or a status, as above. */
int st_dnnl_product_create(struct st_dnnl_product **out, struct st_dnnl *lib, const struct st_matmul *mm);
void st_dnnl_product_destroy(struct st_dnnl_product *s); /* NULL is fine */
/** Bytes that a run needs beside its operands, aligned to 64. */
size_t st_dnnl_product_scratchpad(const struct st_dnnl_product *s);
/** Runs only on the calling thread.  0, or the library's status. */
int st_dnnl_product_run(const struct st_dnnl_product *s, uint32_t worker, void *c, const void *a, const void *b, const void *bias,
                        void *scratchpad);

#endif
