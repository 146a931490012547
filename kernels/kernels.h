/* kernels/kernels.h - optimizer, cast and norm kernels, one table per instruction set.
 *
 * The scalar files are the definition: a stated sequence of correctly rounded fp32 operations.  Every other table gives the same
 * bits for every input, length and alignment, and the result does not depend on how an array is cut into calls (grad_finish, and
 * moments that are not fp32, must be cut at multiples of ST_NORM_BLOCK).  Leaf functions: no allocation, no errors, any thread.
 * They expect the default rounding mode and keep subnormals.  Arrays are aligned to their elements and do not overlap unless
 * stated otherwise.
 *
 * NaN has one pattern: if a result of arithmetic or rounding is NaN, the kernel writes fp32 0x7fc00000, bf16 0x7fc0, fp16 0x7e00
 * or the quiet double 0x7ff8000000000000, whatever the operands were.  Exact copies and the widening of bf16 keep payloads. */
#ifndef KERNELS_KERNELS_H
#define KERNELS_KERNELS_H

#include "strata/types.h"
#include <stdbool.h>

/* A function that host and device code may call. */
#ifdef __CUDACC__
#define ST_LEAF static __host__ __device__ inline
#else
#define ST_LEAF static inline
#endif

/* Elements of one gradient-norm block. */
#define ST_NORM_BLOCK 4096u
/* Elements of a tile: what one worker takes of an update at a time, and what has one checksum.  Tiles are counted from the start
 * of a group of parameters, and chunks are cut at whole ones.  A power of two and a multiple of ST_NORM_BLOCK. */
#define ST_TILE_ELEMS  16384u
#define ST_TILE_BLOCKS (ST_TILE_ELEMS / ST_NORM_BLOCK)

/* Best stagger, in bytes, between planes that are read together: at equal offsets of equally sized pages they compete for the
 * same cache sets and the same memory banks (AdamW over four fp32 planes, Zen 4, two threads: 38 GB/s without, 57 to 84 with;
 * strata bench optim).  Two kernel pages and a line. */
#define ST_PLANE_SKEW 8256u

enum st_rule { ST_RULE_ADAM, ST_RULE_ADAGRAD, ST_RULE_LION, ST_RULE_SGD, ST_RULE_COUNT };

/* Moment planes of a rule; one with a single moment has no moment2. */
ST_LEAF uint32_t st_rule_moments(enum st_rule rule)
{
    return rule == ST_RULE_ADAM ? 2 : 1;
}

/* How moments are stored.  Formats other than fp32 are rounded stochastically: up or down with a probability that makes the mean
 * exact, using bits that depend only on the step and the element's position in the model (st_rounding_bits in scalar.h).
 *   BF16   2 bytes
 *   8BIT   a code of 8 bits, and an fp32 scale, never negative, for each ST_MOMENT_BLOCK elements.  In packs of ST_NORM_BLOCK
 *          elements: the pack's 16 scales, then its codes; the last pack has all 16 scales and as many codes as elements
 *          remain.  A code is a small float: a moment has a sign, 3 bits of exponent and 4 of mantissa; a sum of squares has 4
 *          and 4.  Dettmers et al., arXiv:2110.02861, for moments in blocks; the format is st_code_decode's in scalar.h. */
enum st_moment_format { ST_MOMENTS_F32, ST_MOMENTS_BF16, ST_MOMENTS_8BIT, ST_MOMENTS_COUNT };

#define ST_MOMENT_BLOCK 256u

/* The moments of an array, in one format. */
struct st_moments {
    enum st_moment_format format;
    void *moment1, *moment2; /* aligned to 4 bytes (BF16: 2); moment2 NULL for a rule with one moment */
    uint64_t position;       /* of element 0 in the model, a multiple of ST_NORM_BLOCK; F32: not read */
};

/** Bytes of one moment of `elems` elements. */
ST_LEAF uint64_t st_moment_bytes(enum st_moment_format format, uint64_t elems)
{
    if (format == ST_MOMENTS_8BIT)
        return elems + (elems + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK * (ST_NORM_BLOCK / ST_MOMENT_BLOCK) * sizeof(float);
    return elems * (format == ST_MOMENTS_BF16 ? 2 : 4);
}

/** The moments from element `first` on, which must be a multiple of ST_NORM_BLOCK; F32: any. */
ST_LEAF struct st_moments st_moments_at(const struct st_moments *moments, uint64_t first)
{
    const uint64_t bytes = st_moment_bytes(moments->format, first);
    struct st_moments at = *moments;

    at.moment1 = (char *)at.moment1 + bytes;
    if (at.moment2 != NULL)
        at.moment2 = (char *)at.moment2 + bytes;
    at.position += first;
    return at;
}

/** Store the moments of an array as Adam's update stores new ones, by random bits that no step has.
 *  @param moment1, moment2  [elems] as they are; a sum of squares is never negative */
void st_moments_store(const struct st_moments *to, const float *moment1, const float *moment2, size_t elems);

/* A record of NF4, as weights that are never trained may be stored (Dettmers et al., arXiv:2305.14314): 64 elements of one
 * tensor, in the order of its rows.  A code is an index into 16 fixed values from -1 to 1; an
 * element is its value times the largest magnitude of the record.  Element 2 i is the high half of codes[i], 2 i + 1 the low. */
#define ST_NF4_ELEMS 64u

struct st_nf4_block {
    float absmax;
    uint8_t codes[ST_NF4_ELEMS / 2];
};

/* The values of the codes: bitsandbytes' table, whose fp32 numbers these are. */
#define ST_NF4_VALUES                                                                                                            \
    {                                                                                                                            \
        -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f, -0.28444138169288635f, -0.18477343022823334f,  \
            -0.09105003625154495f, 0.0f, 0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f, \
            0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f                                                 \
    }

/**
 * Store fp32 values as records of NF4, as bitsandbytes 0.50 does on the CPU: an element times the reciprocal of the record's
 * largest magnitude (at least 1e-38), and the code whose value is nearest, of two as near the smaller.  The last record of a
 * tensor may have fewer than ST_NF4_ELEMS elements: those are divided by the magnitude, which is stored as at least 1e-38, and
 * what is missing becomes 0.
 *
 * @param out    [ceil(elems / ST_NF4_ELEMS)] records
 * @param in     [elems]; finite: an infinity or a NaN leaves its record without sense, though the same in each table
 */
typedef void st_nf4_quantise_fn(struct st_nf4_block *out, const float *in, size_t elems);

/**
 * The elements of records: value times magnitude in fp32, then rounded to `dtype` (nearest even).
 *
 * @param out    [elems] dtype: F32, BF16 or F16
 */
typedef void st_nf4_widen_fn(void *out, strata_dtype dtype, const struct st_nf4_block *in, size_t elems);

/* How an update fetches its arrays ahead (kernels/isa/stream.h): some processors are faster with one, some with the other, and
 * bits do not depend on it.  AUTO: not measured, as BURSTS. */
enum st_fetch { ST_FETCH_AUTO, ST_FETCH_BURSTS, ST_FETCH_EVEN };

/* The caller computes the coefficients in double, once per step, and rounds them to fp32.  For one element, each line is rounded
 * as written; m and v are moment1 and moment2:
 *   g     = grad * grad_scale                     (unscale and clip in one factor)
 *   d     = fma(l2, p, g)                         L2 decay; g when l2 == 0
 * ADAM, AdamW
 *   m     = fma(beta1, m, one_minus_beta1 * d)
 *   v     = fma(beta2, v, one_minus_beta2 * (d * d))
 *   denom = fma(sqrt(v), vhat_scale, eps)         vhat_scale = 1 / sqrt(1 - beta2^t)
 *   p     = fma(decay, p, -((step_size * m) / denom))   decay = 1 - lr * weight_decay, step_size = lr / (1 - beta1^t)
 *   Kingma & Ba, arXiv:1412.6980; Loshchilov & Hutter, arXiv:1711.05101, Algorithm 2.
 * ADAGRAD
 *   m     = fma(d, d, m)                          the sum of squares
 *   p     = fma(decay, p, -((step_size * d) / (sqrt(m) + eps)))   decay = 1, step_size = lr
 *   Duchi, Hazan & Singer, JMLR 12 (2011), the diagonal case.
 * LION
 *   c     = fma(beta1, m, one_minus_beta1 * d)
 *   p     = fma(decay, p, -s)                     s = step_size with the sign of c; 0 when c is 0; NaN when c is NaN
 *   m     = fma(beta2, m, one_minus_beta2 * d)
 *   Chen et al., arXiv:2302.06675, Algorithm 2; decay = 1 - lr * weight_decay, step_size = lr.
 * SGD
 *   m     = fma(beta1, m, one_minus_beta1 * d)    beta1 the momentum, one_minus_beta1 = 1 - dampening, at step 1: 1
 *   p     = fma(decay, p, -(step_size * u))       u = m, nesterov: fma(beta1, m, d); decay = 1, step_size = lr
 *   Sutskever et al., ICML 2013, as PyTorch has it. */
struct st_update_coef {
    enum st_rule rule; /* 0: Adam */
    bool nesterov;     /* SGD */
    bool fetch_even;   /* enum st_fetch; checkpoints do not have it */
    float grad_scale;
    float beta1, one_minus_beta1, beta2, one_minus_beta2;
    float eps, step_size, vhat_scale, decay, l2;
    uint64_t rounding_key; /* random, different for each step; not read for F32 moments */
};

/**
 * One step on a split master: master bits = (weight << 16) + low_half, the weight being the master rounded to nearest with
 * ties away from zero.  A NaN master becomes 0x7fc00000 before the split.
 *
 * @param weight      [elems] bf16, in and out
 * @param low_half    [elems] in and out
 * @param moments     [elems] each, in and out.  The step uses the new moment at full precision and rounds it afterwards. 8BIT: a
 *                    moment that is infinite or NaN makes its whole block NaN; a block whose magnitudes are all below 2^-100
 *                    becomes 0; squares are never rounded to 0 in any other block
 * @param grad        [elems] grad_dtype (F32, BF16, F16), widened exactly
 *
 * @return the number of finite masters whose weight rounded to infinity.
 * Cost    with a bf16 gradient 14 bytes read, 12 written per element; 10 and 8 with one moment.  Moments in BF16: 10 and 8, 8 and
 *         6 with one; in 8BIT: 8 and 6, 7 and 5, and 1/64 more each way per moment.
 */
typedef uint64_t st_update_split_fn(uint16_t *weight, int16_t *low_half, const struct st_moments *moments, const void *grad,
                                    strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef);

/**
 * One step on a full fp32 master; the same masters and moments as st_update_split_fn.
 *
 * @param copy_out    [elems] out, or NULL: the new master as BF16 exactly as the split rounds it (ties away from zero),
 *                    or as F16 (nearest even)
 * @param copy_dtype  BF16 or F16; ignored when copy_out is NULL
 *
 * @return the number of finite masters whose copy rounded to infinity; 0 without a copy.
 * Cost    as st_update_split_fn; a copy writes 2 bytes more.
 */
typedef uint64_t st_update_master_fn(float *master, uint16_t *copy_out, strata_dtype copy_dtype, const struct st_moments *moments,
                                     const void *grad, strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef);

/**
 * Round the accumulated fp32 gradient once to `dtype` and compute the sums of squares of the values written.
 *
 * @param out         [elems] dtype: BF16 or F16 (nearest even), or F32 (copied; may be acc itself)
 * @param acc         [elems] f32
 * @param block_sums  [ceil(elems / ST_NORM_BLOCK)] out: per block, squares (exact in double) added in index order into
 *                    8 lanes by index mod 8, lanes added ((0+4)+(2+6))+((1+5)+(3+7))
 *
 * @return the number of written values that are infinite or NaN.
 */
typedef uint64_t st_grad_finish_fn(void *out, strata_dtype dtype, const float *acc, size_t elems, double *block_sums);

typedef void st_master_split_fn(uint16_t *weight, int16_t *low_half, const float *master, size_t elems);      /* NaN: 0x7fc0, 0 */
typedef void st_master_join_fn(float *master, const uint16_t *weight, const int16_t *low_half, size_t elems); /* exact */
typedef void st_cast_f32_bf16_fn(uint16_t *out, const float *in, size_t elems); /* nearest even; NaN: 0x7fc0, without its sign */
typedef void st_cast_bf16_f32_fn(float *out, const uint16_t *in, size_t elems); /* exact */
typedef void st_add_f32_fn(float *acc, const float *in, size_t elems);          /* acc += in */
typedef void st_cast_f32_f16_fn(uint16_t *out, const float *in, size_t elems);  /* nearest even; NaN: 0x7e00, without its sign */
typedef void st_cast_f16_f32_fn(float *out, const uint16_t *in, size_t elems);  /* exact; NaN: 0x7fc00000 */

/* The sum of squares of a group's gradients, from its norm blocks' sums: those of a tile are added in index order, the tiles' in
 * a balanced binary tree over their index, split at the largest power of two below the count.  Tiles come in order, and what has
 * been added so far are the sums of runs of 2^i tiles, one where `tiles` has bit i: so whoever has such a run alone, from a
 * multiple of its length on, has a node of the tree. */
struct st_norm_sum {
    uint64_t tiles; /* 0 before the first one */
    double run[50]; /* of all that 64 bits can count */
};

/** A tile's sum.  `blocks`: those of the whole group. */
ST_LEAF double st_norm_tile(const double *block_sums, uint64_t tile, uint64_t blocks)
{
    const uint64_t first = tile * ST_TILE_BLOCKS;
    double sum = 0;

    for (uint32_t i = 0; i < ST_TILE_BLOCKS; i++)
        sum += first + i < blocks ? block_sums[first + i] : 0.0; /* a sum of squares is never -0 */
    return sum;
}

/** Add the sum of the next run of tiles, whose number is a power of two that divides that of the tiles before it. */
ST_LEAF void st_norm_add_run(struct st_norm_sum *sum, double run, uint64_t tiles)
{
    uint32_t i = 0;

    while ((tiles >> i & 1) == 0)
        i++;
    for (; (sum->tiles >> i & 1) != 0; i++)
        run = sum->run[i] + run;
    sum->run[i] = run;
    sum->tiles += tiles;
}

/** Add the next tile's sum. */
ST_LEAF void st_norm_add(struct st_norm_sum *sum, double tile)
{
    st_norm_add_run(sum, tile, 1);
}

/** The most tiles from `tile` on, before `end`, that st_norm_add_run() takes at once. */
ST_LEAF uint64_t st_norm_run(uint64_t tile, uint64_t end)
{
    uint64_t tiles = tile == 0 ? (uint64_t)1 << 48 : tile & (~tile + 1);

    while (tiles > end - tile)
        tiles /= 2;
    return tiles;
}

ST_LEAF double st_norm_total(const struct st_norm_sum *sum)
{
    double total = 0;

    for (uint32_t i = 0; sum->tiles >> i != 0; i++)
        if ((sum->tiles >> i & 1) != 0)
            total = sum->run[i] + total;
    return total;
}

/** The sum of a whole group. */
ST_LEAF double st_norm_group(const double *block_sums, uint64_t blocks)
{
    struct st_norm_sum sum;

    sum.tiles = 0;
    for (uint64_t tile = 0; tile * ST_TILE_BLOCKS < blocks; tile++)
        st_norm_add(&sum, st_norm_tile(block_sums, tile, blocks));
    return st_norm_total(&sum);
}

struct st_ops; /* transformer ops of this instruction set: kernels/ops/ops.h */

struct st_kernels {
    const char *name; /* "avx512", "avx2", "neon", "scalar" */
    uint32_t needs;   /* st_cpu_feature bits */
    st_update_split_fn *update_split;
    st_update_master_fn *update_master;
    st_grad_finish_fn *grad_finish;
    st_master_split_fn *master_split;
    st_master_join_fn *master_join;
    st_cast_f32_bf16_fn *f32_to_bf16;
    st_cast_bf16_f32_fn *bf16_to_f32;
    st_add_f32_fn *add_f32;
    const struct st_ops *ops;
    st_cast_f32_f16_fn *f32_to_f16;
    st_cast_f16_f32_fn *f16_to_f32;
    st_nf4_quantise_fn *nf4_quantise;
    st_nf4_widen_fn *nf4_widen;
};

/** Best usable table, or the named one ("auto" and NULL: best).  NULL if unknown or not usable here. */
const struct st_kernels *st_kernels_pick(const char *want);
/** The i-th table that is usable here, best first; NULL past the end. */
const struct st_kernels *st_kernels_usable(size_t i);

#endif
