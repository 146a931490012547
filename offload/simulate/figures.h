/* offload/simulate/figures.h - what is foreseen of a program on a machine: bytes over each link, and the two lower bounds of a
 * step, and what a checkpoint costs.
 *
 * Nothing that decides or runs reads them; who prints or compares them asks for them, again when rates are known. */
#ifndef OFFLOAD_SIMULATE_FIGURES_H
#define OFFLOAD_SIMULATE_FIGURES_H

#include "offload/simulate/bounds.h"

struct st_figures {
    struct st_machine machine;                 /* that they are for */
    struct st_traffic traffic[ST_PHASE_COUNT]; /* by phase: PROLOGUE, BODY, EPILOGUE, EVAL */
    struct st_traffic fresh[2];                /* of the first two steps after a load */
    uint64_t parameter_bytes_nvme;             /* read + written per step without alignment padding */
    uint64_t save_bytes;                       /* that a checkpoint writes at its step, of what lives in memory */
    double save_seconds;                       /* for that, at the rate of writes alone; NaN: unknown */
    struct st_bounds bounds;
};

/** Of a program that is written.  Pure; a few walks over its ops. */
void st_figures_make(struct st_figures *out, const struct st_program *program, const struct st_machine *machine);

#endif
