/* cli/report/bound_by.h - what a run was bound by, in words of resources: where its steps' time went. */
#ifndef CLI_REPORT_BOUND_BY_H
#define CLI_REPORT_BOUND_BY_H

#include "cli/report/metrics.h"

#define CLI_BOUND_TEXT_MAX 256u

struct cli_bound_by {
    const char *resource; /* "compute", "update", "nvme read", ..., "memory pressure"; NULL: no step ran */
    double fraction;      /* of the steps' time */
    char text[CLI_BOUND_TEXT_MAX];
};

/** "nvme read" for the lanes that read, and so on. */
const char *cli_resource_of_lane(enum st_lane lane);

/** Time that is not forward, backward or a stall goes to update, upload and download as they were busy.  Memory pressure lies
 *  inside the others' time: it is the reason when it takes more than half of the largest.
 *  @param m            steps so far
 *  @param memory_fraction  of the run, waiting for memory; NaN or 0: no pressure */
void cli_bound_by(struct cli_bound_by *out, const struct cli_medians *m, double memory_fraction);

/** No step beats a lower bound.  One that does, by more than rates scatter (5 %), shows that a rate is too low and the bound is
 *  none: it was measured while the machine was busy, or is another machine's.  True where either is unknown. */
bool cli_bound_holds(double step_seconds, double bound_seconds);

#endif
