/* cli/report/endurance.h - how much a run writes to its drives, which wear out by bytes written. */
#ifndef CLI_REPORT_ENDURANCE_H
#define CLI_REPORT_ENDURANCE_H

#include "cli/report/metrics.h"

struct cli_endurance {
    uint64_t step_bytes; /* of a steady step */
    double run_bytes;    /* by all steps, without the initial write; NaN: the number of steps is not known */
    double day_bytes;    /* at this pace; NaN: unknown */
};

/** For a plan: --max-steps steps at the predicted pace. */
void cli_endurance_planned(struct cli_endurance *out, const struct strata_plan *of, uint64_t max_steps);
/** For a run so far, which has written so many bytes to NVMe in so many seconds. */
void cli_endurance_counted(struct cli_endurance *out, struct cli_medians *m, uint64_t bytes, double seconds);

/** Prints one line, or nothing if nothing is written. */
void cli_endurance_print(const struct cli_endurance *e, const char *label, FILE *file);
/** "written": {"step", "run", "day"} in bytes, into an object that is open. */
void cli_endurance_put(const struct cli_endurance *e, struct st_json_writer *w);

#endif
