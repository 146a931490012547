/* strata/optim.h - the CPU optimizers by themselves: AdamW, Adam, Adagrad, Lion and SGD over arrays that the caller owns.
 *
 *     struct strata_optim_config config;
 *     struct strata_optim *opt;
 *
 *     strata_optim_defaults(&config, STRATA_ADAMW);
 *     config.weight_decay = 0.01;
 *     strata_optim_create(&opt, &config);
 *     for (each step) {
 *         ... gradients into tensors[i].grad ...
 *         strata_optim_grad_norm(opt, tensors, count, &norm, &nonfinite);
 *         if (nonfinite == 0)
 *             strata_optim_step(opt, tensors, count, fmax(1.0, norm / max_norm), NULL);
 *     }
 *     strata_optim_destroy(opt);
 *
 * A step reads each array once and writes it once: unscale, clip, decay, moments, weight and its 16-bit copy in one pass. Results
 * have the same bits for every number of threads and every instruction set, however the calling thread rounds (strata/strata.h);
 * NaNs have one pattern (fp32 0x7fc00000).
 *
 * An optimizer holds its parameters, a step count and its threads, but no arrays: the caller's arrays and strata_optim_get_step()
 * are a complete checkpoint. One call at a time on one optimizer; different optimizers are independent.
 *
 * A child of fork() has none of an optimizer's threads: calls that step, or read or write arrays, return STRATA_E_INVAL there,
 * and strata_optim_destroy() does nothing. It may create its own. */
#ifndef STRATA_OPTIM_H
#define STRATA_OPTIM_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The rules.  g is the gradient after division, p the master; "moments" are arrays that go with it. */
enum strata_optimizer {
    STRATA_ADAMW = 0,   /**< two moments; decay decoupled: p (1 - lr weight_decay).  Loshchilov & Hutter, arXiv:1711.05101 */
    STRATA_ADAM = 1,    /**< two moments; decay added to g.  Kingma & Ba, arXiv:1412.6980 */
    STRATA_ADAGRAD = 2, /**< one: the sum of squares; decay added to g.  Duchi, Hazan & Singer, JMLR 12 (2011) */
    STRATA_LION = 3,    /**< one; decay decoupled.  Chen et al., arXiv:2302.06675, Algorithm 2 */
    STRATA_SGD = 4,     /**< one: the momentum, also kept with a momentum of 0; decay added to g.  torch.optim.SGD */
};

/** Parameters of an optimizer.  Members that its rule does not use are ignored.  Fill it with strata_optim_defaults(). */
struct strata_optim_config {
    enum strata_optimizer optimizer;
    double lr;                  /**< learning rate, 0..1e3; see strata_optim_set_lr() */
    double beta1, beta2;        /**< AdamW, Adam, Lion: 0..0.9999999 */
    double eps;                 /**< AdamW, Adam: added to sqrt(v); Adagrad: added to sqrt(sum); 1e-30..1 */
    double weight_decay;        /**< 0..1e3, for tensors with `decay` set */
    bool bias_correction;       /**< AdamW, Adam */
    bool nesterov;              /**< SGD; needs momentum above 0 and dampening 0 */
    double momentum, dampening; /**< SGD: 0..0.9999999; 0..1, from step 2 on */
    uint32_t threads;           /**< 1..256, the caller included; 0: one per core that the process may use */
    const char *isa;            /**< "avx512", "avx2", "neon", "scalar"; NULL or "auto": best.  Borrowed during the call */
};

/** How a tensor's fp32 master is stored. */
enum strata_optim_layout {
    STRATA_OPTIM_SPLIT = 0, /**< master bits = (weight << 16) + low_half: the bf16 weight is what forward and backward use */
    STRATA_OPTIM_FULL = 1,  /**< fp32 master, and a 16-bit copy of it that each step writes */
    STRATA_OPTIM_F32 = 2,   /**< the fp32 master is the weight */
};

#define STRATA_OPTIM_GROUPS 16u   /**< groups of tensors with parameters of their own */
#define STRATA_OPTIM_PACK   4096u /**< elements of a pack of low-bit moments: where tensors may be cut */

/**
 * How moments are stored. A step computes in fp32 whatever the format; it uses its new moments at full precision and then rounds
 * them.
 *
 * BF16 and 8BIT round stochastically, up or down with a probability that makes the mean exact, because moments often change by
 * less than such a format can represent. The random bits depend only on the step number (strata_optim_get_step()) and the
 * element's `position`: a repeated or resumed run has the same bits, with any threads, instruction set and way of cutting
 * tensors.
 *
 * 8BIT lies in packs of 4096 elements: 16 fp32 scales, one for each 256 elements, then 4096 codes of a byte.  The last pack
 * has all of its scales and as many codes as there are elements.  What a code c stands for:
 *
 *     scale 2^-15 (2^(c div 16) (1 + (c mod 16) / 16) - 1)    of a sum of squares: Adam's moment2, Adagrad's moment1
 *
 *     scale 2^-7 (2^(c div 16) (1 + (c mod 16) / 16) - 1)     of other moments: c is the low 7 bits; the highest bit is the sign
 *
 * The largest magnitude of 256 has the largest code; if it is below 2^-100, all are 0; if it is infinite or NaN, all are NaN.  In
 * a block that is not all 0, no sum of squares becomes 0: its least code is 1. Bytes of zero stand for zeros.
 *
 * Source  Dettmers et al., arXiv:2110.02861, for moments in blocks.
 */
enum strata_optim_moments {
    STRATA_OPTIM_MOMENTS_F32 = 0,  /**< 4 bytes */
    STRATA_OPTIM_MOMENTS_BF16 = 1, /**< 2 bytes */
    STRATA_OPTIM_MOMENTS_8BIT = 2, /**< 1 byte, and 64 per pack */
};

/**
 * One tensor, or a part of one: a step gives the same bits however tensors are cut.
 *
 * Tensors of F32 moments may be cut anywhere; others at multiples of STRATA_OPTIM_PACK elements, the part from element `first`
 * on having its moments strata_optim_moment_bytes(moment_format, first) bytes further and its `position` first elements further.
 *
 * All arrays have `elems` elements, are borrowed during a call, aligned to their elements (64 bytes is fastest) and do not
 * overlap. If elems is 0, pointers may be NULL.  The caller zeroes the moments before the first step.
 */
struct strata_optim_tensor {
    enum strata_optim_layout layout;
    uint16_t *weight;        /**< SPLIT: [elems] bf16, in and out: the master rounded to nearest, ties away from zero */
    int16_t *low_half;       /**< SPLIT: [elems] in and out */
    float *master;           /**< FULL, F32: [elems] f32, in and out */
    uint16_t *copy;          /**< FULL: [elems] copy_dtype, out */
    strata_dtype copy_dtype; /**< FULL: BF16, rounded as `weight` is, or F16, to nearest even */
    void *moment1;           /**< [elems] moment_format, in and out; aligned to 4 bytes, BF16 to 2 */
    void *moment2;           /**< AdamW, Adam: likewise; NULL for rules with one moment */
    const void *grad;        /**< [elems] grad_dtype, in */
    strata_dtype grad_dtype; /**< F32, BF16 or F16; widened exactly */
    size_t elems;            /**< any number, 0 included */
    bool decay;              /**< whether weight_decay applies (usually not to biases and norm weights) */
    enum strata_optim_moments moment_format;
    /** Of element 0 among all parameters: a multiple of STRATA_OPTIM_PACK, the same in every step, so each tensor's begin is
     *  rounded up to one.  Elements at one position round by the same random bits.  F32 moments: not read. */
    uint64_t position;
    uint32_t group; /**< whose parameters apply, below STRATA_OPTIM_GROUPS: see strata_optim_set_group() */
};

struct strata_optim;

/**
 * Defaults of a rule as in DeepSpeed, for SGD as in PyTorch: lr 1e-3 (Adagrad 1e-2), betas 0.9 and 0.999, eps 1e-8 (Adagrad
 * 1e-10), no weight decay, bias correction, no momentum; threads 0, isa NULL.
 *
 * @param config     out
 * @param optimizer  copied unchecked: strata_optim_create() checks it
 *
 * Thread  any.
 */
STRATA_API void strata_optim_defaults(struct strata_optim_config *config, enum strata_optimizer optimizer);

/**
 * Create an optimizer that has taken no step.
 *
 * @param opt     out, returned: the caller destroys it
 * @param config  copied
 *
 * @return STRATA_E_INVAL  a parameter is outside its range, or threads is above 256
 *         STRATA_E_NOSYS  isa is unknown, or this CPU lacks it
 *         STRATA_E_NOMEM  no memory, or no more threads from the system
 *
 * Cost    everything that it ever allocates: about 150 KiB plus 16 KiB per thread.
 * Thread  any.  The new threads are bound to cores near each other; the calling thread, which takes part, is not bound.
 *         OMP_NUM_THREADS, which launchers set to 1, is ignored: only `threads` counts.
 */
STRATA_API strata_status strata_optim_create(struct strata_optim **opt, const struct strata_optim_config *config);

/** End the threads and free; NULL is fine.  In a child of fork() it does nothing. */
STRATA_API void strata_optim_destroy(struct strata_optim *opt);

/** Bytes of one moment of `elems` elements; 0 for an invalid format.  Thread: any. */
STRATA_API uint64_t strata_optim_moment_bytes(enum strata_optim_moments format, uint64_t elems);

/**
 * One optimizer step over all tensors.
 *
 * @param tensors       [count] borrowed; pass all of them in one call, since each call is a step
 * @param grad_divisor  gradients are divided by it: loss scale times clip factor, above 0; 1 leaves them as they are
 * @param overflowed    out, or NULL: the number of finite masters whose weight or copy rounded to infinity
 *
 * @return STRATA_OK: every tensor was updated and the step count went up by one. Otherwise nothing was changed:
 *         STRATA_E_INVAL  a tensor lacks an array, has moment2 although the rule has one moment, is misaligned, has an unknown
 *                         dtype, layout or format, or a position that its format does not allow; or grad_divisor is not finite
 *                         and above 0
 *
 * It does not check that gradients are finite: see strata_optim_grad_norm().
 *
 * Cost      per element, with a 16-bit gradient: 14 bytes read and 12 written with two moments, 10 and 8 with one; moments in
 *           BF16: 10 and 8, 8 and 6; in 8BIT: 8 and 6, 7 and 5, and 1/64 more each way per moment.  An fp32 gradient adds 2 read,
 *           FULL adds 2 written.  No allocation.
 * Numerics  a stated sequence of correctly rounded fp32 operations per element; coefficients in double, beta^t by repeated
 *           multiplication, so that a resumed run has the same bits.  Moments: see enum strata_optim_moments.
 */
STRATA_API strata_status strata_optim_step(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                           double grad_divisor, uint64_t *overflowed);

/**
 * The same step in parts, for gradients that come one after the other:
 *
 *     strata_optim_begin(opt, divisor);
 *     strata_optim_apply(opt, &tensors[i], 1, NULL);      any tensors, in any order and number of calls, each once
 *     strata_optim_end(opt);                              counts the step; or, before any tensor, strata_optim_skip()
 *
 * Bits are those of strata_optim_step() with all of the tensors; one that is left out stays as it is.  Rates and groups that are
 * set while a step is open are those of the next one; strata_optim_set_step() forgets an open step.
 *
 * @return STRATA_E_INVAL  an argument is NULL, or as in strata_optim_step(): these tensors are unchanged, and the step stays as
 * it was; or a step is open already (begin, strata_optim_step()), or none (apply, end, skip); or a tensor was updated (skip)
 */
STRATA_API strata_status strata_optim_begin(struct strata_optim *opt, double grad_divisor);
STRATA_API strata_status strata_optim_apply(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                            uint64_t *overflowed);
STRATA_API strata_status strata_optim_end(struct strata_optim *opt);
STRATA_API strata_status strata_optim_skip(struct strata_optim *opt);

/**
 * L2 norm of all gradients as stored, without division, and how many are infinite or NaN.
 *
 * @param tensors    [count] borrowed; grad, grad_dtype and elems are read, other members may be anything
 * @param norm       out; infinite or NaN if nonfinite is above 0
 * @param nonfinite  out, or NULL
 *
 * @return STRATA_E_INVAL  a tensor has no grad, or it is misaligned or of an unknown dtype
 *
 * Cost      reads the gradients once.  No allocation.
 * Numerics  squares are exact in double, added in a fixed order: within blocks of 4096 elements from each tensor's beginning,
 *           four blocks one after the other, those fours in a balanced binary tree, tensors as they are given.  The same bits for
 *           every number of threads and every instruction set.
 */
STRATA_API strata_status strata_optim_grad_norm(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                                double *norm, uint64_t *nonfinite);

/** A sum of squares that is exact, whatever order it was added in.  Begin with {0}; any copy of its bytes is the same sum, so
 * that processes can send them. */
struct strata_optim_norm {
    uint64_t words[10]; /**< a number in units of 2^-298, lowest word first */
    uint64_t nonfinite; /**< gradients that are infinite or NaN, whose blocks are not in the sum */
};

/**
 * Add the gradients' squares to a sum: the norm of all gradients is the same for every way to part them between calls and
 * processes, if tensors are cut at multiples of STRATA_OPTIM_PACK.  Its last bit may differ from strata_optim_grad_norm()'s.
 *
 * @param tensors  [count] as in strata_optim_grad_norm()
 * @param norm     in and out
 *
 * @return STRATA_E_INVAL  as strata_optim_grad_norm(); the sum is unchanged
 *
 * Cost      reads the gradients once.  No allocation.
 * Numerics  squares are added in double in a fixed order within blocks of 4096 elements; the blocks' sums are added exactly.
 */
STRATA_API strata_status strata_optim_norm_add(struct strata_optim *opt, const struct strata_optim_tensor *tensors, size_t count,
                                               struct strata_optim_norm *norm);

/** Add another sum, of another process, say.  NULL is nothing.  Thread: any. */
STRATA_API void strata_optim_norm_merge(struct strata_optim_norm *norm, const struct strata_optim_norm *other);

/** The root of the sum, rounded once before and once after; infinite if nonfinite is above 0; 0 of NULL.  Thread: any. */
STRATA_API double strata_optim_norm_value(const struct strata_optim_norm *norm);

/**
 * Split fp32 masters into bf16 weights and low halves; strata_optim_join() gives the same bits back, except that all NaNs become
 * one: weight 0x7fc0, low half 0.
 *
 * @param weight    [elems] bf16, out: rounded to nearest, ties away from zero
 * @param low_half  [elems] out
 * @param master    [elems] f32, in; overlaps neither
 *
 * @return STRATA_E_INVAL  an array is NULL or misaligned, with elems above 0
 */
STRATA_API strata_status strata_optim_split(struct strata_optim *opt, uint16_t *weight, int16_t *low_half, const float *master,
                                            size_t elems);

/** The fp32 masters of weights and low halves, exactly; arrays and errors as in strata_optim_split(). */
STRATA_API strata_status strata_optim_join(struct strata_optim *opt, float *master, const uint16_t *weight,
                                           const int16_t *low_half, size_t elems);

/**
 * Set the parameters of a group for the following steps: of strata_optim_tensor.group.  All groups begin with those that the
 * optimizer was created with; a changed beta counts as if it had been this one from the first step on, as in PyTorch.
 *
 * @param group   below STRATA_OPTIM_GROUPS
 * @param config  copied; its rule is the optimizer's, its threads and isa are not read
 *
 * @return STRATA_E_INVAL  an argument is NULL, group is too large, the rule is another one, or a parameter is outside its range:
 * the old ones stay
 */
STRATA_API strata_status strata_optim_set_group(struct strata_optim *opt, uint32_t group,
                                                const struct strata_optim_config *config);

/** Set the learning rate of group 0 for the following steps, 0..1e3.  STRATA_E_INVAL: outside; the old one stays. */
STRATA_API strata_status strata_optim_set_lr(struct strata_optim *opt, double lr);

/** Set or get the number of steps taken: 0 at creation; set it to resume.  It goes no further than 2^64 - 1.
 *
 *  Cost  setting takes a multiplication per step and beta, until beta^step is 0 or no longer changes. */
STRATA_API void strata_optim_set_step(struct strata_optim *opt, uint64_t step);
STRATA_API uint64_t strata_optim_get_step(const struct strata_optim *opt);

/** Number of working threads, the caller's included; name of the instruction set, static.  NULL: 0 and "". */
STRATA_API uint32_t strata_optim_get_threads(const struct strata_optim *opt);
STRATA_API const char *strata_optim_get_isa(const struct strata_optim *opt);

#ifdef __cplusplus
}
#endif
#endif
