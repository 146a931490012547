/* core/trace/metrics_put.h - numbers of a step (strata/train.h) as members of a JSON object. */
#ifndef CORE_TRACE_METRICS_PUT_H
#define CORE_TRACE_METRICS_PUT_H

#include "core/json/json.h"
#include "strata/train.h"

/* strata_metric_name(), which knows more than is known here. */
typedef const char *st_metric_name_fn(uint32_t metric, const char **object, enum strata_metric_kind *kind);

void st_metric_put(struct st_json_writer *w, const char *key, enum strata_metric_kind kind, double value);
/** All of them into the object that is open.
 *  @param value    [STRATA_METRIC_COUNT]
 *  @param summary  of many steps: without the step's number, and whether it was skipped */
void st_metrics_put(struct st_json_writer *w, const double *value, st_metric_name_fn *name, bool summary);

#endif
