/* api/metrics.h - the numbers of a step (strata/train.h): where they come from. */
#ifndef API_METRICS_H
#define API_METRICS_H

#include "core/system/pressure.h"
#include "strata/train.h"

/** All but the mean loss, the epoch, evaluations and memory pressure, which are NaN.
 *  @param data  the training set, for source bytes per token
 *  @param step  1-based; tokens_total: including this step's */
void st_metrics_fill(struct strata_metrics *out, const struct strata_plan_info *planned, const struct strata_data *data,
                     const struct strata_step *result, uint64_t step, uint64_t tokens_total);
/** Memory pressure during this step. */
void st_metrics_press(struct strata_metrics *out, const struct st_pressure_verdict *verdict);

#endif
