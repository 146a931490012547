/* cli/progress.h - what a person sees of a run: a line while it goes on, a block when it ends. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include "cli/metrics.h"
#include <stdatomic.h>

#define CLI_PROGRESS_LINE_MAX 512

struct cli_progress {
    FILE *file;
    bool quiet, terminal;
    uint64_t steps_total, every; /* a line per `every` steps where lines are not rewritten */
    double seconds_per_step;     /* moving average, for the time left */
    atomic_bool line_open;       /* the terminal's line is to be rewritten; log lines, from any thread, close it first */
    char line[CLI_PROGRESS_LINE_MAX];
};

/** On a terminal, log lines pass through here until fini.
 *  @param every  0: so that a run has 20 to 50 lines */
void cli_progress_init(struct cli_progress *p, FILE *file, bool quiet, uint64_t steps_total, uint64_t every);
void cli_progress_fini(struct cli_progress *p); /* a zeroed struct is fine */
/** One step.  Always printed: the first three, the last, every skipped one. */
void cli_progress_step(struct cli_progress *p, const struct cli_step *step);
/** What comes next starts on a line of its own. */
void cli_progress_close_line(struct cli_progress *p);
/** A line of its own, after closing the one that is rewritten.  Quiet: nothing. */
void cli_progress_note(struct cli_progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** The block at the end: medians, distance to the bounds, bytes against the plan's, stalls, what bound the run, memory. */
void cli_progress_summary(struct cli_progress *p, const struct st_plan *plan, struct cli_medians *m,
                          const struct cli_summary *summary);

/** Milliseconds, three digits or all before the point. */
const char *cli_ms_text(char buf[16], double ms);

#endif
