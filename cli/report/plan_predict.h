/* cli/report/plan_predict.h - what a step takes under other schedules and on other machines. */
#ifndef CLI_REPORT_PLAN_PREDICT_H
#define CLI_REPORT_PLAN_PREDICT_H

#include "core/json/json.h"
#include "strata/plan.h"
#include <stdio.h>

/** The same run under every update policy (and, with several micro-batches, both orders of accumulation) that it may have.
 *  E_NOMEM. */
strata_status cli_schedules_print(const struct strata_plan *of, FILE *file);
strata_status cli_schedules_put(const struct strata_plan *of, struct st_json_writer *w);

/** What one more drive, a faster link, faster compute or updates, or more memory would change, fit to the width of `to`.  Nothing
 * where rates are unknown. E_NOMEM. */
strata_status cli_one_more_print(const struct strata_plan *of, FILE *to);
strata_status cli_one_more_put(const struct strata_plan *of, struct st_json_writer *w);

#endif
