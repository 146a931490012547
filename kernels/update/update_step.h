/* kernels/update/update_step.h - one element of the update rules, the definition: the operations listed at struct st_update_coef,
 * in that order.
 *
 * fmaf rounds once whether it is an instruction or libm's own, so baseline flags give the same bits as any others, and so does a
 * device compiler that neither contracts nor approximates. */
#ifndef KERNELS_UPDATE_UPDATE_STEP_H
#define KERNELS_UPDATE_UPDATE_STEP_H

#include "kernels/isa/scalar.h"

/* One element of a rule: moments in place, returns the new master; d is the gradient with L2 decay. */

ST_LEAF float st_adam_step(float p, float *moment1, float *moment2, float d, const struct st_update_coef *coef)
{
    const float m = fmaf(coef->beta1, *moment1, coef->one_minus_beta1 * d);
    const float v = fmaf(coef->beta2, *moment2, coef->one_minus_beta2 * (d * d));
    const float denom = fmaf(sqrtf(v), coef->vhat_scale, coef->eps);

    *moment1 = st_f32_canonical(m);
    *moment2 = st_f32_canonical(v);
    return st_f32_canonical(fmaf(coef->decay, p, -((coef->step_size * m) / denom)));
}

ST_LEAF float st_adagrad_step(float p, float *moment1, float d, const struct st_update_coef *coef)
{
    const float m = fmaf(d, d, *moment1);

    *moment1 = st_f32_canonical(m);
    return st_f32_canonical(fmaf(coef->decay, p, -((coef->step_size * d) / (sqrtf(m) + coef->eps))));
}

ST_LEAF float st_lion_step(float p, float *moment1, float d, const struct st_update_coef *coef)
{
    const float c = fmaf(coef->beta1, *moment1, coef->one_minus_beta1 * d);
    const float m = fmaf(coef->beta2, *moment1, coef->one_minus_beta2 * d);
    float s = copysignf(coef->step_size, c);

    if (c == 0.0f)
        s = 0.0f; /* always +0, so that -0 stays -0 in the master */
    if (isnan(c))
        s = c;
    *moment1 = st_f32_canonical(m);
    return st_f32_canonical(fmaf(coef->decay, p, -s));
}

ST_LEAF float st_sgd_step(float p, float *moment1, float d, const struct st_update_coef *coef)
{
    const float m = fmaf(coef->beta1, *moment1, coef->one_minus_beta1 * d);
    const float u = coef->nesterov ? fmaf(coef->beta1, m, d) : m;

    *moment1 = st_f32_canonical(m);
    return st_f32_canonical(fmaf(coef->decay, p, -(coef->step_size * u)));
}

/** One element whose master is p; updates the moments in place and returns the new master.  A rule with one moment does not touch
 *  moment2. */
ST_LEAF float st_update_step(float p, float *moment1, float *moment2, float grad, const struct st_update_coef *coef)
{
    const float g = grad * coef->grad_scale, d = coef->l2 != 0.0f ? fmaf(coef->l2, p, g) : g;

    switch (coef->rule) {
    case ST_RULE_ADAM:
        return st_adam_step(p, moment1, moment2, d, coef);
    case ST_RULE_ADAGRAD:
        return st_adagrad_step(p, moment1, d, coef);
    case ST_RULE_LION:
        return st_lion_step(p, moment1, d, coef);
    case ST_RULE_SGD:
        return st_sgd_step(p, moment1, d, coef);
    case ST_RULE_COUNT:
        break;
    }
    assert(false && "rule");
    return 0.0f;
}

/** The copy of one master in `dtype`; adds 1 to *overflow_count if a finite one became infinite. */
ST_LEAF uint16_t st_copy_element(float p, strata_dtype dtype, uint64_t *overflow_count)
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

#endif
