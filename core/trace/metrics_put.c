/* core/trace/metrics_put.c - see metrics_put.h. */
#include "core/trace/metrics_put.h"

#include <math.h>
#include <string.h>

void st_metric_put(struct st_json_writer *w, const char *key, enum strata_metric_kind kind, double value)
{
    if (kind == STRATA_METRIC_FLAG)
        st_json_put_bool(w, key, value != 0);
    else if (kind == STRATA_METRIC_WHOLE && value >= 0 && value == floor(value))
        st_json_put_u64(w, key, (uint64_t)value);
    else
        st_json_put_double(w, key, value);
}

void st_metrics_put(struct st_json_writer *w, const double *value, st_metric_name_fn *name, bool summary)
{
    const char *open = NULL, *object, *key;
    enum strata_metric_kind kind;

    for (uint32_t i = 0; (key = name(i, &object, &kind)) != NULL; i++) {
        if (summary && (i == STRATA_METRIC_STEP || i == STRATA_METRIC_SKIPPED))
            continue;
        if (kind == STRATA_METRIC_RARE && isnan(value[i])) /* an object of nothing else is left out, too */
            continue;
        if (open != NULL && (object == NULL || strcmp(open, object) != 0)) {
            st_json_object_close(w);
            open = NULL;
        }
        if (open == NULL && object != NULL) {
            st_json_object_open(w, object);
            open = object;
        }
        st_metric_put(w, key, kind, value[i]);
    }
    if (open != NULL)
        st_json_object_close(w);
}
