/* offload/simulate/bounds.h - the two lower bounds of a step (docs/design.md, section 4). */
#ifndef OFFLOAD_SIMULATE_BOUNDS_H
#define OFFLOAD_SIMULATE_BOUNDS_H

#include "offload/machine/rates.h"
#include "offload/program/program.h"
#include "offload/simulate/cost.h"

/* Seconds of one steady step.  compute_*: blocks and head at their own rates and a separate device's own passes, as the schedule
 * bound counts them; the hardware bound counts the same FLOPs at the fastest rate known, and of the passes the updates alone, as
 * work of the device's memory. */
struct st_bounds {
    double compute_forward, compute_backward, upload, download, update, io, comm; /* per resource */
    struct st_passes passes;                                                      /* of the device, a part of compute_* */
    double hardware, schedule;                                                    /* lower bounds; 0 if rates are unknown */
    const char *bound_by;                                                         /* resource that binds the schedule bound */
};

/** Of a program on a machine. */
void st_bounds_make(struct st_bounds *out, const struct st_program *program, const struct st_machine *machine);

#endif
