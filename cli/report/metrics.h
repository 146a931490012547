/* cli/report/metrics.h - the numbers of a step: JSON lines during a run, medians at its end.
 *
 * One table of columns drives the lines and the medians.  All memory is allocated at creation; a step allocates nothing. */
#ifndef CLI_REPORT_METRICS_H
#define CLI_REPORT_METRICS_H

#include "cli/report/losses.h"
#include "core/json/json.h"
#include "core/system/pressure.h"
#include "strata/engine.h"

enum cli_column {
    CLI_STEP,
    CLI_EPOCH,
    CLI_LOSS,
    CLI_LOSS_MEAN, /* of the last 20 */
    CLI_BITS_PER_BYTE,
    CLI_GRAD_NORM,
    CLI_LR,
    CLI_LOSS_SCALE,
    CLI_SKIPPED,
    CLI_TOKENS,
    CLI_TOKENS_TOTAL,
    CLI_TOKENS_PER_SECOND,
    CLI_MFU,
    CLI_STEP_SECONDS,
    CLI_HARDWARE_BOUND,
    CLI_SCHEDULE_BOUND,
    CLI_EVAL_LOSS,
    CLI_EVAL_BITS_PER_BYTE,
    CLI_WEIGHTS_OVERFLOWED,
    CLI_MS_FORWARD,
    CLI_MS_BACKWARD,
    CLI_MS_STALL,
    CLI_MS_OTHER,
    CLI_BUSY_MS, /* one per lane */
    CLI_STALL_MS = CLI_BUSY_MS + STRATA_LANE_COUNT,
    CLI_UPLOAD = CLI_STALL_MS + STRATA_LANE_COUNT,
    CLI_DOWNLOAD,
    CLI_READ,
    CLI_WRITE,
    CLI_COMM,
    CLI_RESIDENT, /* one per tier */
    CLI_MAJOR_FAULTS = CLI_RESIDENT + STRATA_TIER_COUNT,
    CLI_SWAP_BYTES,
    CLI_PSI_SOME,
    CLI_PSI_FULL,
    CLI_COLUMN_COUNT
};

/* Whole numbers up to 2^53 are exact; unknown values are NaN. */
struct cli_step {
    double value[CLI_COLUMN_COUNT];
    enum strata_lane stalled_by;
    bool pressed; /* memory pressure explains lost time */
};

/** @param bits_per_byte_of  the training set, for source bytes per token.
 *  @param step  1-based; tokens_total: including this step's. */
void cli_step_fill(struct cli_step *out, const struct strata_plan_info *planned, const struct strata_data *bits_per_byte_of,
                   const struct strata_step *result, uint64_t step, uint64_t tokens_total);

/** Fill in the memory pressure during this step. */
void cli_step_pressure(struct cli_step *out, const struct st_pressure_verdict *verdict);

#define CLI_SAMPLES_MAX 256u

/* Medians over all steps, or over every stride-th if there are many; sums are over all.  The first step warms up and has no
 * update pending, so it counts only if it is the only one. */
struct cli_medians {
    double samples[CLI_COLUMN_COUNT][CLI_SAMPLES_MAX];
    double scratch[CLI_SAMPLES_MAX];
    double last[CLI_COLUMN_COUNT]; /* of the last step; of an evaluation the latest */
    double sum[CLI_COLUMN_COUNT];  /* of known values, after the first step */
    double tokens_before;          /* of the run, before the first step of this program */
    uint64_t steps, skipped, pressed, stride;
    uint64_t beaten; /* steps after the first that were faster than the schedule's bound */
    uint32_t count;
    uint64_t stalled_by[STRATA_LANE_COUNT + 1]; /* steps whose largest stall was on that lane; last: none */
};
strata_status cli_medians_create(struct cli_medians **out);
void cli_medians_add(struct cli_medians *m, const struct cli_step *step);
double cli_medians_get(struct cli_medians *m, enum cli_column column); /* NaN: never known */
bool cli_medians_bound_holds(const struct cli_medians *m);             /* at most a quarter of the steps beat it */

/* The results of a run. */
struct cli_summary {
    strata_status status;
    uint64_t peak_rss_bytes, rss_bytes_max;
    const struct cli_evals *evals;             /* borrowed */
    uint64_t write_bytes;                      /* to NVMe by all steps, with what checkpoints write in them, and flushes */
    double seconds;                            /* of the whole run, from the first step on */
    struct st_pressure_verdict pressure;       /* the same */
    char weights_digest[33], state_digest[33]; /* "" if not asked for */
};

/* How a header begins, and goes on with the name of its run, or null. */
#define CLI_METRICS_ID "{\"run\":{\"id\":"

/** Write the lines that follow the header (strata_engine_json()); each is flushed. */
void cli_metrics_step(struct st_json_writer *w, const struct cli_step *step);
/** Of an evaluation that is made up for, after the line of its step. */
void cli_metrics_eval(struct st_json_writer *w, uint64_t step, const struct strata_eval *eval);
void cli_metrics_summary(struct st_json_writer *w, struct cli_medians *medians, const struct cli_summary *summary);

#endif
