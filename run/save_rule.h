/* run/save_rule.h - after which steps a run saves. */
#ifndef RUN_SAVE_RULE_H
#define RUN_SAVE_RULE_H

#include "strata/checkpoint.h"

/** Whether a save is due after this step of the run, from 1 on, that nobody has asked for. */
bool st_save_rule_due(const struct strata_save_rule *rule, uint64_t step);
/** Whether one may follow it, which may be asked for: what can be written beside the step is.
 *  @param best  the checkpoints of the best evaluations are kept */
bool st_save_rule_may_follow(const struct strata_save_rule *rule, uint64_t step, bool best);

#endif
