/* optimizer.c - the rule and the coefficients of an optimizer. */
#include "offload/optim/optimizer.h"

#include "core/base/rng.h"

#include <math.h>

#define ROUNDING_SEED   0x726f756e64696e67u
#define ROUNDING_STREAM 0u

const char *st_optimizer_name(enum strata_optimizer type)
{
    static const char *const names[] = {[STRATA_ADAMW] = "AdamW",
                                        [STRATA_ADAM] = "Adam",
                                        [STRATA_ADAGRAD] = "Adagrad",
                                        [STRATA_LION] = "Lion",
                                        [STRATA_SGD] = "SGD"};

    return names[type];
}

enum st_rule st_rule_of(enum strata_optimizer type)
{
    switch (type) {
    case STRATA_ADAMW:
    case STRATA_ADAM:
        break;
    case STRATA_ADAGRAD:
        return ST_RULE_ADAGRAD;
    case STRATA_LION:
        return ST_RULE_LION;
    case STRATA_SGD:
        return ST_RULE_SGD;
    }
    return ST_RULE_ADAM;
}

/* Stops early when the value no longer changes. */
double st_beta_power(double beta, uint64_t step)
{
    double product = 1.0;

    for (uint64_t i = 0; i < step && product * beta != product; i++)
        product *= beta;
    return product;
}

static void coef_of_moments(struct st_update_coef *coef, const struct st_step_numbers *n)
{
    coef->beta1 = (float)n->beta1;
    coef->one_minus_beta1 = (float)(1.0 - n->beta1);
    coef->beta2 = (float)n->beta2;
    coef->one_minus_beta2 = (float)(1.0 - n->beta2);
}

/* Bias correction is folded into the step size and into the scale of the second moment. */
static void coef_of_adam(struct st_update_coef *coef, const struct st_optimizer *o, const struct st_step_numbers *n)
{
    coef_of_moments(coef, n);
    coef->eps = (float)o->eps;
    coef->step_size = (float)(n->lr / (o->bias_correction ? 1.0 - n->beta1_power : 1.0));
    coef->vhat_scale = (float)(1.0 / sqrt(o->bias_correction ? 1.0 - n->beta2_power : 1.0));
}

/* The first gradient enters the momentum undamped, and without momentum every step takes the gradient unchanged, both as in
 * PyTorch. */
static void coef_of_sgd(struct st_update_coef *coef, const struct st_optimizer *o, const struct st_step_numbers *n)
{
    const bool damped = n->step > 1 && n->beta1 > 0;

    coef->beta1 = (float)n->beta1;
    coef->one_minus_beta1 = (float)(damped ? 1.0 - o->dampening : 1.0);
    coef->nesterov = o->nesterov;
}

static bool decays_decoupled(const struct st_optimizer *o)
{
    return o->type == STRATA_ADAMW || o->type == STRATA_LION;
}

struct st_update_coef st_update_coef_of(const struct st_optimizer *o, const struct st_step_numbers *n, bool decays)
{
    struct st_update_coef coef = {
        .rule = st_rule_of(o->type),
        .grad_scale = (float)(1.0 / n->divisor),
        .step_size = (float)n->lr,
        .decay = 1.0f,
        .rounding_key = st_rng_u64(ROUNDING_SEED, ROUNDING_STREAM, n->step),
    };

    switch (coef.rule) {
    case ST_RULE_ADAM:
        coef_of_adam(&coef, o, n);
        break;
    case ST_RULE_ADAGRAD:
        coef.eps = (float)o->eps;
        break;
    case ST_RULE_LION:
        coef_of_moments(&coef, n);
        break;
    case ST_RULE_SGD:
        coef_of_sgd(&coef, o, n);
        break;
    case ST_RULE_COUNT:
        break;
    }
    if (decays && decays_decoupled(o))
        coef.decay = (float)(1.0 - n->lr * o->weight_decay);
    else if (decays)
        coef.l2 = (float)o->weight_decay;
    return coef;
}
