/* tests/offload/attention_reference.h - causal attention and its gradient in fp64 over packed rows: what devices are compared
 * with. */
#ifndef TESTS_OFFLOAD_ATTENTION_REFERENCE_H
#define TESTS_OFFLOAD_ATTENTION_REFERENCE_H

#include "offload/device/tensor_ops.h"

struct attention_reference {
    struct st_attention at;
    uint64_t qkv_elems, out_elems, lse_elems;
    double *qkv, *dqkv; /* [batch * seq][qkv_stride] */
    double *dout, *out; /* [batch * seq][out_stride]; columns past the heads are nobody's: 0 in out */
    double *lse;        /* [batch][heads][seq] */
    double *p;          /* [seq], scratch */
    double *sinks;      /* [heads], or NULL */
};

/** Of operands that have at->dt, and positions and sinks that the host may read; dout NULL: zeros.  Nothing is computed yet: out,
 * lse and dqkv are zeros. */
struct attention_reference ar_create(const struct st_attention *at, const void *qkv, const void *dout);
void ar_destroy(struct attention_reference *r);

/** out and lse of every row, or of row t of a head. */
void ar_forward(struct attention_reference *r);
void ar_forward_row(struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t);
/** dqkv from out, which must be there: of every row; or what row t of a head adds to it. */
void ar_backward(struct attention_reference *r);
void ar_backward_row(struct attention_reference *r, uint64_t b, uint64_t h, uint64_t t);

/** Fails unless element i of dqkv is the slope of out . dout along element i of qkv, by a central difference. */
void ar_assert_slope(struct attention_reference *r, uint64_t i);
/** The same slope along a head's sink. */
double ar_sink_slope(struct attention_reference *r, uint32_t head);

/** The first key that row t of sample b sees. */
uint64_t ar_first_key(const struct st_attention *at, uint64_t b, uint64_t t);
/** Positions of rows in documents of 1 to 90 rows, one in three of at most 4: a function of the seed. */
void ar_documents(int32_t *positions, uint32_t batch, uint32_t seq, uint64_t seed);

/** Columns of qkv where the keys begin, and the values, and where they end. */
uint64_t ar_key_column(const struct st_attention *at);
uint64_t ar_value_column(const struct st_attention *at);
uint64_t ar_end_column(const struct st_attention *at);

#endif
