/* cli/report/progress.h - what a person sees of a run: a line during it, and a block at its end. */
#ifndef CLI_REPORT_PROGRESS_H
#define CLI_REPORT_PROGRESS_H

#include "cli/report/metrics.h"
#include <stdatomic.h>

#define CLI_PROGRESS_LINE_MAX 512

/* What the terminal's last line shows and may be rewritten; a log line, from any thread, closes it first. */
enum cli_line { CLI_LINE_NONE, CLI_LINE_STEP, CLI_LINE_WORK };

struct cli_progress {
    FILE *file;
    bool quiet, terminal;        /* terminal: the last line can be rewritten */
    bool verbose;                /* steps: with times, mean loss, tiers and links; set after init */
    bool narrow;                 /* a terminal of any kind: lines are cut to its width */
    bool patient;                /* work goes on despite a signal: ranks end together, where all hear of it */
    uint64_t steps_total, every; /* one line in `every` steps stays */
    double seconds_per_step;     /* moving average, for the remaining time */
    _Atomic(enum cli_line) line;
    char text[CLI_PROGRESS_LINE_MAX];
    const char *work; /* borrowed */
    uint64_t work_total, work_start_ns, work_every_ns;
    atomic_uint_fast64_t work_done, work_shown_ns;
};

/** On a terminal, log lines go through here until fini.
 *  @param every  0: chosen so that a run has 20 to 50 lines */
void cli_progress_init(struct cli_progress *p, FILE *file, bool quiet, uint64_t steps_total, uint64_t every);
void cli_progress_fini(struct cli_progress *p); /* a zeroed struct is fine */
/** Report one step.  Lines of the first three steps, of the last and of skipped ones always stay. */
void cli_progress_step(struct cli_progress *p, const struct strata_metrics *step);
/** A model's strata_progress_fn for long work: rewrites a line on a terminal, and prints one every 30 seconds elsewhere.  False
 *  once a signal has asked the run to end, unless it is patient.
 *  @param progress  a struct cli_progress
 *  @param what      such as "loading weights" */
bool cli_progress_watch(void *progress, const char *what, uint64_t done, uint64_t total);
/** The work has ended: remove its line. */
void cli_progress_work_end(struct cli_progress *p);
/** Make the next output start on a line of its own. */
void cli_progress_close_line(struct cli_progress *p);
/** Print a line of its own, after closing the one that is rewritten.  Quiet: nothing. */
void cli_progress_note(struct cli_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** Print the block at the end: medians, distance to the bounds, bytes compared with the plan, stalls, what bound the run,
 *  memory. */
void cli_progress_summary(struct cli_progress *p, const struct strata_plan_info *plan, struct cli_medians *m,
                          const struct cli_summary *summary);

/** Milliseconds with three digits, or all digits before the point. */
const char *cli_ms_text(char buf[16], double ms);

#endif
