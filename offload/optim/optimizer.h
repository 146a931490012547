/* offload/optim/optimizer.h - an optimizer's arguments, and the kernels' rule and coefficients that they determine.  Pure; any
 * thread. */
#ifndef OFFLOAD_OPTIM_OPTIMIZER_H
#define OFFLOAD_OPTIM_OPTIMIZER_H

#include "kernels/kernels.h"
#include "strata/optim.h"

/* Arguments that the type does not read are 0. */
struct st_optimizer {
    enum strata_optimizer type;
    double lr, weight_decay;
    double beta1, beta2, eps;
    bool bias_correction;
    double momentum, dampening; /* SGD */
    bool nesterov;
};

/* The factor by which the first moment decays; for SGD this is beta1, its momentum. */
static inline double st_optimizer_beta1(const struct st_optimizer *o)
{
    return o->type == STRATA_SGD ? o->momentum : o->beta1;
}

/* The numbers that belong to one optimizer step. */
struct st_step_numbers {
    uint64_t step; /* counted from 1 */
    double lr;
    double beta1, beta2;             /* SGD: beta1 is the momentum; 0 if the type has none */
    double beta1_power, beta2_power; /* beta^step; used only by Adam */
    double divisor;                  /* gradients are divided by it: loss scale x clip factor; above 0 */
};

/** "AdamW", ...: as configurations have it. */
const char *st_optimizer_name(enum strata_optimizer type);
/** The rule of an optimizer: Adam for Adam and AdamW, which differ only in how weights decay. */
enum st_rule st_rule_of(enum strata_optimizer type);

/** beta^step computed by that many multiplications, in order, so that a resumed run has the same bits. */
double st_beta_power(double beta, uint64_t step);

/**
 * Fold the coefficients of a step, as struct st_update_coef states them.
 *
 * @param o       its lr, betas and momentum are not read, since n has them
 * @param n       the step's numbers
 * @param decays  whether weight decay applies to the group
 *
 * @return the coefficients; members that the rule does not read are 0, decay is 1 and l2 is 0 without weight decay.  rounding_key
 *   depends only on the step's number, so that a resumed run rounds like one that never stopped.
 *
 * Numerics  each in double from doubles, then rounded once to fp32. */
struct st_update_coef st_update_coef_of(const struct st_optimizer *o, const struct st_step_numbers *n, bool decays);

#endif
