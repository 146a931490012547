/* cli/report/metrics.h - medians of a run's steps, and its summary.  All memory is allocated at creation. */
#ifndef CLI_REPORT_METRICS_H
#define CLI_REPORT_METRICS_H

#include "core/json/json.h"
#include "core/system/pressure.h"
#include "strata/train.h"

#define CLI_SAMPLES_MAX 256u

/* Medians over all steps, or over every stride-th if there are many; sums are over all.  The first step warms up and has no
 * update pending, so it counts only if it is the only one. */
struct cli_medians {
    double samples[STRATA_METRIC_COUNT][CLI_SAMPLES_MAX];
    double scratch[CLI_SAMPLES_MAX];
    double last[STRATA_METRIC_COUNT]; /* of the last step; of an evaluation the latest */
    double sum[STRATA_METRIC_COUNT];  /* of known values, after the first step */
    double tokens_before;             /* of the run, before the first step of this program */
    uint64_t steps, skipped, pressed, stride;
    uint64_t beaten; /* steps after the first that were faster than the schedule's bound */
    uint32_t count;
    uint64_t stalled_by[STRATA_LANE_COUNT + 1]; /* steps whose largest stall was on that lane; last: none */
};
strata_status cli_medians_create(struct cli_medians **out);
void cli_medians_add(struct cli_medians *m, const struct strata_metrics *step);
double cli_medians_get(struct cli_medians *m, enum strata_metric column); /* NaN: never known */
bool cli_medians_bound_holds(const struct cli_medians *m);                /* at most a quarter of the steps beat it */

/* The results of a run. */
struct cli_summary {
    strata_status status;
    uint64_t peak_rss_bytes, rss_bytes_max;
    struct strata_training_info run;           /* of which: its evaluations */
    uint64_t write_bytes;                      /* to NVMe by all steps, with what checkpoints write in them, and flushes */
    const struct strata_engine_info *early;    /* what became of early updates; NULL: the plan has none */
    double seconds;                            /* of the whole run, from the first step on */
    struct st_pressure_verdict pressure;       /* the same */
    char weights_digest[33], state_digest[33]; /* "" if not asked for */
};

/* How a header begins, and goes on with the name of its run, or null. */
#define CLI_METRICS_ID "{\"run\":{\"id\":"

/** The line that ends a run. */
void cli_metrics_summary(struct st_json_writer *w, struct cli_medians *medians, const struct cli_summary *summary);

#endif
