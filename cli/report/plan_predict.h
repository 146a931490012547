/* cli/report/plan_predict.h - the predicted step under other schedules and on other machines. */
#ifndef CLI_REPORT_PLAN_PREDICT_H
#define CLI_REPORT_PLAN_PREDICT_H

#include "advise/case.h"
#include "core/json/json.h"
#include <stdio.h>

/** The same run under every update policy (and, with several micro-batches, both orders of accumulation) that is possible for it.
 *  E_NOMEM. */
strata_status cli_schedules_print(const struct st_case *of, FILE *file);
strata_status cli_schedules_put(const struct st_case *of, struct st_json_writer *w);

/** Print what one more drive, a faster link, faster compute or updates, or more memory would change, fitted to the width of `to`.
 *  Prints nothing if rates are unknown.  E_NOMEM. */
strata_status cli_one_more_print(const struct st_case *of, FILE *to);
strata_status cli_one_more_put(const struct st_case *of, struct st_json_writer *w);

#endif
