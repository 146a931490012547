/* kernels/op_shapes.h - what ops are told beside their tensors: one description for the table of a device
 * (offload/device/tensor_ops.h), the ops of the processor (kernels/ops/ops.h) and the launchers of a GPU (kernels/cuda/).
 *
 * Zero in every option is what GPT-2 does. */
#ifndef KERNELS_OP_SHAPES_H
#define KERNELS_OP_SHAPES_H

#include "strata/types.h"
#include <stdbool.h>

enum st_activation {
    ST_GELU_TANH, /* gelu_new: x (1 + tanh u) / 2, u = sqrt(2/pi) (x + 0.044715 x^3) */
    ST_GELU_ERF,  /* x (1 + erf(x / sqrt 2)) / 2 */
    ST_SILU       /* x / (1 + exp(-x)) */
};

/* Multi-head causal attention over packed q,k,v rows.  Row i of a sequence attends to its rows j <= i, fewer with a window or
 * with documents; keys that no row of a tile attends to cost nothing. */
struct st_attention {
    uint32_t batch, seq, heads, kv_heads, head_dim;
    uint32_t qkv_stride; /* elements between rows of qkv and of dqkv; q at 0, k at heads*d, v at (heads+kv_heads)*d */
    uint32_t out_stride; /* elements between rows of out and dout */
    strata_dtype dt;
    uint32_t window; /* i - window < j; 0: every j */
    float scale;     /* a score is scale * q k; 0: 1 / sqrt(head_dim) */
    float softcap;   /* a score is softcap * tanh(scale * q k / softcap); 0: scale * q k */
    /* [batch * seq] device: the row's position in its document, 0 where one begins and one more than the row before elsewhere;
     * the first row of a sequence begins one.  A row attends to its own document.  NULL: a sequence is one document.
     * attention_cached does not read it. */
    const int32_t *positions;
    /* [heads] dt, device: a score beside the keys' of each row, of a key without a value.  NULL: none. */
    const void *sinks;
};

/* RMSNorm of `heads` groups of `cols` elements that follow each other at the start of each row; all share the weight. */
struct st_rmsnorm {
    uint32_t rows, heads, cols;
    uint32_t stride; /* elements between rows, the same in every tensor; rows without gaps: heads * cols */
    float eps;
    float offset; /* added to the weight in fp32: 0, or 1 where weights are stored as their distance from 1 */
    strata_dtype dt;
};

/* Rotary positions: rotates the pairs (i, i + rotary_dim / 2) of each of `heads` heads at the start of each row. */
struct st_rope {
    uint32_t rows, stride; /* elements between rows */
    uint32_t heads, head_dim;
    uint32_t rotary_dim;      /* even; elements past it stay as they are */
    uint32_t seq, first;      /* the position of row r is first + r % seq */
    const int32_t *positions; /* [rows] device: of st_attention, instead of r % seq; or NULL */
    const float *table;       /* [position][rotary_dim / 2][2] device: cos, sin */
    bool inverse;             /* by minus the angle */
    strata_dtype dt;
};

/* Rows in another dtype; one of the two is F32. */
struct st_cast {
    uint32_t rows, cols;
    uint32_t to_stride, from_stride; /* elements between rows */
    strata_dtype to, from;
};

/* C [rows, cols] fp32 = scale (op(P) op(Q)), or scale (C + op(P) op(Q)), in fp32: for each element fma(P, Q, sum) in order of k,
 * then the scale.  Made for few rows, columns or k; any will do. */
struct st_thin {
    uint32_t rows, cols, k;
    uint32_t ldp, ldq, ldc, ld_to; /* elements between rows as stored */
    bool trans_p, trans_q;         /* stored [k, rows] / [cols, k]; trans_q: Q is F32 */
    bool add;
    float scale;
    strata_dtype p, q;
    strata_dtype to; /* dtype of a result that goes elsewhere, rounded once; C is scratch then */
};

/* Dropout of dense rows: an element is kept where its 32 random bits are at least `limit`, and multiplied by `scale` then.  Row r
 * is position (first + r) % seq of sequence `sequence` + (first + r) / seq.  Column c has word c % 4 of the block that
 * Philox4x32-10 (Salmon et al., SC 2011) gives for the key `key` and the counter (c / 4, position, sequence's low half, its high
 * half): st_rng_block() of core/base/rng.h. */
struct st_dropout {
    uint32_t rows, cols;
    uint32_t first, seq;
    uint64_t sequence, key;
    uint64_t limit; /* p 2^32; 2^32: nothing is kept */
    float scale;    /* 1 / (1 - p) */
    bool add;       /* to += what is kept; else what is not kept is 0 */
    strata_dtype from;
};

/* Which k of `experts` compute each row, and with what weights, from the row's logits [experts].  The k largest logits are
 * chosen, of equal ones those of lower index.  A weight is the softmax over all logits, in fp32.
 *
 * The auxiliary loss of rows is E sum over experts (c / R) (s / R): c choices of the expert, s the sum of its probs, of R rows, all
 * counted over the layers of a micro-batch.  R is the sum of c over k. */
struct st_route {
    uint32_t rows, experts, k;
    bool divided;    /* weights are divided by the row's sum of them */
    bool after;      /* weights are the softmax over the chosen logits instead */
    bool round;      /* weights are rounded to dt in the end */
    strata_dtype dt; /* of logits and their gradient */
    /* [rows] device: a row of STRATA_TARGET_PADDING has no part in the auxiliary loss.  NULL: every row has. */
    const int32_t *targets;
};

/* A slice of the experts: first .. first + count - 1.  The rows' choices stand sorted by expert, and by row within one: expert e
 * has places offsets[e] .. offsets[e + 1] - 1 of rows * k.  A tensor over a slice has its places as rows, from offsets[first] on:
 * rows * min(k, count) of them at most, of which those behind the last one are neither read nor written. */
struct st_experts {
    uint32_t rows, experts, k; /* of the route */
    uint32_t first, count;
};

/* A product for each expert of a slice, named as st_matmul's.  m is 0: the expert's rows of C = A op(B) + bias with its matrix B.
 * Or k is 0: its matrix C [m, n] = or += A^T B over its rows; of an expert without rows 0 is written.  An expert's matrix begins
 * `stride` elements after that of the one before, its bias `bias_stride`. */
struct st_expert_matmul {
    struct st_experts of;
    uint32_t m, n, k;
    uint32_t lda, ldb, ldc; /* elements between rows as stored */
    bool trans_b;           /* stored [n, k] */
    bool accumulate, bias;
    uint64_t stride, bias_stride;
    strata_dtype ab_dtype, c_dtype;
};

/* A slice's rows of one side in fp32, in the other's dtype; both fp32: times a factor. */
struct st_expert_cast {
    struct st_experts of;
    uint32_t cols;
    strata_dtype to, from;
    float factor;
};

/* The gate of an expert's feed-forward: activation(gate) * up, gates of a row before its ups.  If limit is not 0 that of gpt_oss
 * instead, gates and ups alternating: g / (1 + exp(-alpha g)) (u + 1) with g = min(gate, limit), u = up within -limit .. limit.
 */
struct st_gate {
    enum st_activation activation;
    float alpha, limit;
};

#endif
