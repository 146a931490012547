/* cli/report/bound_by.h - what bound a run: the resources on which its steps spent their time. */
#ifndef CLI_REPORT_BOUND_BY_H
#define CLI_REPORT_BOUND_BY_H

#include "cli/report/metrics.h"

#define CLI_BOUND_TEXT_MAX 256u

struct cli_bound_by {
    const char *resource; /* "compute", "update", "nvme read", ..., "memory pressure"; NULL: no step ran */
    double fraction;      /* of the steps' time */
    char text[CLI_BOUND_TEXT_MAX];
};

/** Time that is not forward, backward or a stall is divided among update, upload and download by how busy they were. Memory
 *  pressure is part of the others' time: it is named as the cause if it takes more than half of the largest.
 *  @param m            steps so far
 *  @param memory_fraction  part of the run spent waiting for memory; NaN or 0: no pressure */
void cli_bound_by(struct cli_bound_by *out, const struct cli_medians *m, double memory_fraction);

/** No step can be shorter than a lower bound. If one is, by more than the scatter of rates (5 %), then a rate is too low and the
 *  bound is invalid: the rate was measured while the machine was busy, or on another machine. True if either value is unknown. */
bool cli_bound_holds(double step_seconds, double bound_seconds);

#endif
