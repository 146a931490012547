/* kernels/update_scalar.c - the update rules, the definition: the operations of struct st_update_coef in its order.
 *
 * fmaf rounds once whether it is an instruction or libm's own, so baseline flags give the bits of any other. */
#include "kernels/isa.h"
#include "kernels/scalar.h"

/* One element of a rule: moments in place, returns the new master; d is the gradient with L2 decay. */

static inline float adam_step(float p, float *moment1, float *moment2, float d, const struct st_update_coef *coef)
{
    const float m = fmaf(coef->beta1, *moment1, coef->one_minus_beta1 * d);
    const float v = fmaf(coef->beta2, *moment2, coef->one_minus_beta2 * (d * d));
    const float denom = fmaf(sqrtf(v), coef->vhat_scale, coef->eps);

    *moment1 = st_f32_canonical(m);
    *moment2 = st_f32_canonical(v);
    return st_f32_canonical(fmaf(coef->decay, p, -((coef->step_size * m) / denom)));
}

static inline float adagrad_step(float p, float *moment1, float d, const struct st_update_coef *coef)
{
    const float m = fmaf(d, d, *moment1);

    *moment1 = st_f32_canonical(m);
    return st_f32_canonical(fmaf(coef->decay, p, -((coef->step_size * d) / (sqrtf(m) + coef->eps))));
}

static inline float lion_step(float p, float *moment1, float d, const struct st_update_coef *coef)
{
    const float c = fmaf(coef->beta1, *moment1, coef->one_minus_beta1 * d);
    const float m = fmaf(coef->beta2, *moment1, coef->one_minus_beta2 * d);
    float s = copysignf(coef->step_size, c);

    if (c == 0.0f)
        s = 0.0f; /* of one sign, so that -0 stays -0 in the master */
    if (isnan(c))
        s = c;
    *moment1 = st_f32_canonical(m);
    return st_f32_canonical(fmaf(coef->decay, p, -s));
}

static inline float sgd_step(float p, float *moment1, float d, const struct st_update_coef *coef)
{
    const float m = fmaf(coef->beta1, *moment1, coef->one_minus_beta1 * d);
    const float u = coef->nesterov ? fmaf(coef->beta1, m, d) : m;

    *moment1 = st_f32_canonical(m);
    return st_f32_canonical(fmaf(coef->decay, p, -(coef->step_size * u)));
}

/* Element i, whose master is p; returns the new one.  moment2 is NULL for a rule with one moment. */
static inline float update_step(float p, float *moment1, float *moment2, size_t i, float grad, const struct st_update_coef *coef)
{
    const float g = grad * coef->grad_scale, d = coef->l2 != 0.0f ? fmaf(coef->l2, p, g) : g;

    switch (coef->rule) {
    case ST_RULE_ADAM:
        return adam_step(p, &moment1[i], &moment2[i], d, coef);
    case ST_RULE_ADAGRAD:
        return adagrad_step(p, &moment1[i], d, coef);
    case ST_RULE_LION:
        return lion_step(p, &moment1[i], d, coef);
    case ST_RULE_SGD:
        return sgd_step(p, &moment1[i], d, coef);
    case ST_RULE_COUNT:
        break;
    }
    assert(false && "rule");
    return 0.0f;
}

uint64_t st_update_split_scalar(uint16_t *weight, int16_t *residual, float *moment1, float *moment2, const void *grad,
                                strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef)
{
    uint64_t overflow_count = 0;

    for (size_t i = 0; i < elems; i++) {
        const float p = st_f32_from_bits(st_split_join(weight[i], residual[i]));
        const float g = st_load_f32(grad, grad_dtype, i);
        const uint32_t bits = st_f32_bits(update_step(p, moment1, moment2, i, g, coef));

        weight[i] = st_split_weight(bits);
        residual[i] = st_split_residual(bits);
        overflow_count += st_split_overflows(bits);
    }
    return overflow_count;
}

/* The copy of one master in `dtype`; adds 1 to *overflow_count if a finite one became infinite. */
static inline uint16_t copy_element(float p, strata_dtype dtype, uint64_t *overflow_count)
{
    const uint32_t bits = st_f32_bits(p);

    if (dtype == STRATA_BF16) {
        *overflow_count += st_split_overflows(bits);
        return st_split_weight(bits);
    }
    assert(dtype == STRATA_F16);
    const uint16_t copy = st_f32_to_f16(p);

    *overflow_count += st_f32_bits_are_finite(bits) && (copy & 0x7fffu) == 0x7c00u;
    return copy;
}

uint64_t st_update_master_scalar(float *master, uint16_t *copy_out, strata_dtype copy_dtype, float *moment1, float *moment2,
                                 const void *grad, strata_dtype grad_dtype, size_t elems, const struct st_update_coef *coef)
{
    uint64_t overflow_count = 0;

    for (size_t i = 0; i < elems; i++) {
        const float g = st_load_f32(grad, grad_dtype, i);

        master[i] = update_step(master[i], moment1, moment2, i, g, coef);
        if (copy_out != NULL)
            copy_out[i] = copy_element(master[i], copy_dtype, &overflow_count);
    }
    return overflow_count;
}
