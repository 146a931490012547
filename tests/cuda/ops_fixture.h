/* tests/cuda/ops_fixture.h - one op on the device and by the scalar table, over the same operands: results are close, the
 * device's bits stay from launch to launch, and nothing is written beyond the outputs. */
#ifndef TESTS_CUDA_OPS_FIXTURE_H
#define TESTS_CUDA_OPS_FIXTURE_H

#include "tests/cuda/cuda_fixture.h"
#include <stdbool.h>

#define OPS_INPUTS  4u
#define OPS_OUTPUTS 3u

enum ops_kind { OPS_NOT_USED, OPS_OWN_DTYPE, OPS_SINGLE, OPS_DOUBLE };

/* What a case writes, and how far it may be off: ulps of the output's dtype, and an absolute part for sums and cancellation. */
struct ops_output {
    unsigned char *start; /* the first element */
    enum ops_kind kind;
    uint64_t elems;
    double ulps, slack;
};

struct ops_call {
    cudaStream_t stream;
    bool device; /* which of the two is to run, and where the pointers below point */
    uint32_t rows, cols;
    strata_dtype dt;
    const void *x[OPS_INPUTS];  /* dt, numbers in -2 .. 2 */
    const float *f[OPS_INPUTS]; /* f32, the same, f[1] eight times as large */
    const float *stats;         /* [rows][3] positive */
    const int32_t *tokens;      /* [rows], -1 .. rows + 3 */
    const int32_t *positions;   /* [rows], of documents of one to three rows */
    float *scratch;             /* [rows][2] */
    void *workspace;            /* of the device: 8 bytes for each of rows cols */
    struct ops_output out[OPS_OUTPUTS];
};

/* A case: runs its op on the device or by the scalar table. */
typedef void ops_case_fn(struct ops_call *c);

/** Announces output `which`, aligned to the call's dtype (0), to fp32 (1), to doubles (2); holds numbers, the same on both sides.
 */
void *ops_out(struct ops_call *c, uint32_t which, enum ops_kind kind, uint64_t elems, double ulps, double slack);
/** One that begins as a copy of an input of the call's dtype. */
void *ops_in_place(struct ops_call *c, uint32_t which, const void *from, uint64_t elems, double ulps, double slack);

/* What a call's pointers point into. */
struct ops_memory {
    uint32_t shift; /* elements that operands begin after a multiple of 64 bytes */
    struct cf_buffer x[OPS_INPUTS], f[OPS_INPUTS], stats, tokens, positions, scratch, workspace, out[OPS_OUTPUTS];
    size_t out_at[OPS_OUTPUTS];       /* where an output's first element is */
    unsigned char *got[OPS_OUTPUTS];  /* what the device's first launch left */
    unsigned char *more[OPS_OUTPUTS]; /* and a later one */
};

/** Operands of 2 rows cols + 8 cols + 64 elements; opens the call's stream. */
void ops_open(struct ops_memory *m, struct ops_call *c, uint32_t shift);
void ops_close(struct ops_memory *m, struct ops_call *c);
/** Runs the case twice on the device and once by the table, and compares. */
void ops_compare(struct ops_call *c, const struct ops_memory *m, ops_case_fn *run, const char *name);
/** The distance of numbers of the dtype near x. */
double ops_ulp(double x, strata_dtype dt);
/** The same for every dtype and {rows, cols}, with operands at multiples of 64 bytes and one element further. */
void ops_check(ops_case_fn *run, const char *name, const uint32_t shapes[][2], size_t count);

#endif
