/* optimizer.c - rule and coefficients of the config's optimizer. */
#include "offload/optimizer.h"

#include "core/base/rng.h"

#include <assert.h>
#include <math.h>

#define ROUNDING_SEED   0x726f756e64696e67u
#define ROUNDING_STREAM 0u

static_assert((int)ST_CONFIG_MOMENTS_F32 == (int)ST_MOMENTS_F32, "one numbering");
static_assert((int)ST_CONFIG_MOMENTS_BF16 == (int)ST_MOMENTS_BF16, "one numbering");
static_assert((int)ST_CONFIG_MOMENTS_8BIT == (int)ST_MOMENTS_8BIT, "one numbering");

enum st_moment_format st_moment_format_of(const struct st_config *c)
{
    return (enum st_moment_format)c->moments;
}

enum st_rule st_rule_of(const struct st_config *c)
{
    switch (c->optimizer) {
    case ST_OPTIMIZER_ADAMW:
    case ST_OPTIMIZER_ADAM:
        break;
    case ST_OPTIMIZER_ADAGRAD:
        return ST_RULE_ADAGRAD;
    case ST_OPTIMIZER_LION:
        return ST_RULE_LION;
    case ST_OPTIMIZER_SGD:
        return ST_RULE_SGD;
    }
    return ST_RULE_ADAM;
}

static void fold_moments(struct st_update_coef *coef, const struct st_step_numbers *n)
{
    coef->beta1 = (float)n->beta1;
    coef->one_minus_beta1 = (float)(1.0 - n->beta1);
    coef->beta2 = (float)n->beta2;
    coef->one_minus_beta2 = (float)(1.0 - n->beta2);
}

/* Bias correction goes into the step size and the second moment's scale. */
static void fold_adam(struct st_update_coef *coef, const struct st_config *c, const struct st_step_numbers *n)
{
    fold_moments(coef, n);
    coef->eps = (float)c->eps;
    coef->step_size = (float)(n->lr / (c->bias_correction ? 1.0 - n->beta1_power : 1.0));
    coef->vhat_scale = (float)(1.0 / sqrt(c->bias_correction ? 1.0 - n->beta2_power : 1.0));
}

/* The first gradient enters the momentum whole, and without momentum the step takes every gradient as it is: as PyTorch. */
static void fold_sgd(struct st_update_coef *coef, const struct st_config *c, const struct st_step_numbers *n)
{
    const bool damped = n->step > 1 && n->beta1 > 0;

    coef->beta1 = (float)n->beta1;
    coef->one_minus_beta1 = (float)(damped ? 1.0 - c->dampening : 1.0);
    coef->nesterov = c->nesterov;
}

static bool decays_decoupled(const struct st_config *c)
{
    return c->optimizer == ST_OPTIMIZER_ADAMW || c->optimizer == ST_OPTIMIZER_LION;
}

struct st_update_coef st_fold_coef(const struct st_config *c, const struct st_step_numbers *n, bool decays)
{
    struct st_update_coef coef = {
        .rule = st_rule_of(c),
        .grad_scale = (float)(1.0 / n->divisor),
        .step_size = (float)n->lr,
        .decay = 1.0f,
        .rounding_key = st_rng_u64(ROUNDING_SEED, ROUNDING_STREAM, n->step),
    };

    switch (coef.rule) {
    case ST_RULE_ADAM:
        fold_adam(&coef, c, n);
        break;
    case ST_RULE_ADAGRAD:
        coef.eps = (float)c->eps;
        break;
    case ST_RULE_LION:
        fold_moments(&coef, n);
        break;
    case ST_RULE_SGD:
        fold_sgd(&coef, c, n);
        break;
    case ST_RULE_COUNT:
        break;
    }
    if (decays && decays_decoupled(c))
        coef.decay = (float)(1.0 - n->lr * c->weight_decay);
    else if (decays)
        coef.l2 = (float)c->weight_decay;
    return coef;
}
