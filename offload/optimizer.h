/* offload/optimizer.h - from the config's optimizer to the kernels' rule and its coefficients.  Pure; any thread. */
#ifndef OFFLOAD_OPTIMIZER_H
#define OFFLOAD_OPTIMIZER_H

#include "kernels/kernels.h"
#include "offload/config/config.h"

/* The numbers of one optimizer step. */
struct st_step_numbers {
    uint64_t step; /* counted from 1 */
    double lr;
    double beta1, beta2;             /* as st_betas_at gives them */
    double beta1_power, beta2_power; /* beta^step; Adam's alone */
    double divisor;                  /* gradients are divided by it: loss scale x clip factor; above 0 */
};

/** The rule of the config's optimizer: Adam for Adam and AdamW, which differ in how weights decay alone. */
enum st_rule st_rule_of(const struct st_config *c);

/** How the config's moments are kept. */
enum st_moment_format st_moment_format_of(const struct st_config *c);

/**
 * Fold the coefficients of a step, as struct st_update_coef states them.
 *
 * @param c       resolved config
 * @param n       the step's numbers
 * @param decays  with weight decay, or as for a group without it
 *
 * @return the coefficients; members that the rule does not read are 0, decay is 1 and l2 is 0 without weight decay.  rounding_key
 *         follows from the step's number alone, so that a resumed run rounds as one that never stopped.
 *
 * Numerics  each in double from doubles, then rounded once to fp32.
 */
struct st_update_coef st_fold_coef(const struct st_config *c, const struct st_step_numbers *n, bool decays);

#endif
