/* kernels/matmul/matmul.h - single-threaded matmul blocks: from a library (oneDNN; only matmul_dnnl.c calls it), and for bf16 on
 * AMX from matmul_amx.c.
 *
 * C[m,n] = op(A)[m,k] x op(B)[k,n] (+ bias[n]) (+ C when accumulate).  Row-major with leading dimensions. dtypes: A and B have
 * the same one, F32, BF16 or F16; C is F32 or, without accumulate, A's dtype, or any dtype if A's is F32; bias has A's dtype, or
 * is NULL.  F16 operands, and BF16 ones where the processor has no native bf16, are widened to fp32 first (exact) and multiplied
 * in fp32.  Only the processor decides the path, never strata.isa: bits must not depend on that option.
 *
 * Memory is taken in prepare, at the first use of a shape; run itself allocates nothing (the library may). */
#ifndef KERNELS_MATMUL_MATMUL_H
#define KERNELS_MATMUL_MATMUL_H

#include "kernels/op_shapes.h"

/* What a device does together with the product (offload/device/tensor_ops.h's matmul; st_matmul_prepare refuses all but NONE).
 * aux [m,n] has C's dtype and rows; it overlaps neither C nor an operand.  With an epilogue C is dense (ldc = n) and accumulate
 * false. */
enum st_epilogue {
    ST_EPILOGUE_NONE,
    ST_EPILOGUE_GELU,         /* aux = A B + bias, rounded; C = gelu of aux, or of the fp32 values before their rounding */
    ST_EPILOGUE_GELU_INPUT,   /* computes aux, with the same bits as GELU; C is scratch and may or may not be written */
    ST_EPILOGUE_GELU_BACKWARD /* C = A B * gelu'(aux); the product may be rounded to C's dtype in between.  No bias */
};

struct st_matmul {
    uint32_t m, n, k;
    uint32_t lda, ldb, ldc; /* elements between rows as stored */
    bool trans_a, trans_b;  /* stored [k,m] / [n,k] */
    bool accumulate, bias;
    strata_dtype ab_dtype, c_dtype;
    enum st_epilogue epilogue;
    enum st_activation activation; /* the epilogue's gelu */
    void *aux;                     /* of the epilogue */
};

/* What multiplies a shape: of one dtype a property of the processor. */
enum st_matmul_path {
    ST_MATMUL_WIDENED, /* the library, in fp32 */
    ST_MATMUL_LIBRARY, /* the library, in the operands' dtype */
    ST_MATMUL_TILES    /* AMX: bf16, but for single rows, which the library has faster */
};

struct st_matmul_engine; /* primitive cache and per-worker scratch */

/* Statuses of the library that have a meaning here; others say which of its calls failed, to those who know it. */
#define ST_MATMUL_NO_MEMORY   1 /* an allocation failed, the library's or one of those here */
#define ST_MATMUL_UNSUPPORTED 3

/** @param workers  the number of workers that will call st_matmul_run.  Returns 0 or the library's status. */
int st_matmul_create(struct st_matmul_engine **out, uint32_t workers);
void st_matmul_destroy(struct st_matmul_engine *e); /* NULL is fine */
/** Name and version of the library, and the instruction set that it may use: products have the same bits where this is the same.
 */
#define ST_MATMUL_LIBRARY_BYTES 64u
void st_matmul_library(char name[ST_MATMUL_LIBRARY_BYTES]);
enum st_matmul_path st_matmul_path_of(const struct st_matmul_engine *e, const struct st_matmul *mm);
/** Multiply bf16 by at most this path of those that the processor has; before the first prepare.  For tests. */
void st_matmul_limit(struct st_matmul_engine *e, enum st_matmul_path bf16);
/** Find or create a shape for `mm` (allocates, at first use only; one thread at a time, while no matmul runs).  Returns an id >=
 *  0, or the library's status, negated. */
int st_matmul_prepare(struct st_matmul_engine *e, const struct st_matmul *mm);
/** Run a prepared shape on one thread.  Different workers may run at once.  0, or the library's status. */
int st_matmul_run(struct st_matmul_engine *e, int id, uint32_t worker, void *c, const void *a, const void *b, const void *bias);

#endif
