/* run/save_rule.c - see run/save_rule.h. */
#include "run/save_rule.h"

static bool divides(uint64_t every, uint64_t step)
{
    return every != 0 && step % every == 0;
}

bool st_save_rule_due(const struct strata_save_rule *rule, uint64_t step)
{
    return divides(rule->every, step);
}

bool st_save_rule_may_follow(const struct strata_save_rule *rule, uint64_t step, bool best)
{
    return step == rule->steps || divides(rule->every, step) || (best && divides(rule->eval_every, step));
}
