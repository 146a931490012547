/* run/save_rule.c - see run/save_rule.h. */
#include "run/save_rule.h"

static bool divides(uint64_t every, uint64_t step)
{
    return every != 0 && step % every == 0;
}

bool st_save_rule_due(const struct strata_save_rule *rule, uint64_t step)
{
    return divides(rule->every, step) || (step != 0 && step == rule->steps);
}

bool st_save_rule_may_follow(const struct strata_save_rule *rule, uint64_t step, bool best)
{
    return st_save_rule_due(rule, step) || (best && divides(rule->eval_every, step));
}
