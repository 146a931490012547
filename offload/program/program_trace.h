/* offload/program/program_trace.h - a program as the source of a trace: items are ops, rows are lanes (docs/trace.md). */
#ifndef OFFLOAD_PROGRAM_PROGRAM_TRACE_H
#define OFFLOAD_PROGRAM_PROGRAM_TRACE_H

#include "core/trace/trace.h"
#include "offload/program/program.h"

struct st_op_times;

struct st_program_trace {
    const struct st_program *program;
    const struct st_op_times *times; /* whose calls are recorded, too; NULL: none are */
    struct st_trace_row rows[STRATA_LANE_COUNT];
    struct st_trace_arg resident[STRATA_TIER_COUNT];
    struct st_trace_source source; /* its context is this struct; cycles and calls are left to the caller */
};

void st_program_trace_init(struct st_program_trace *t, const struct st_program *program);

#endif
