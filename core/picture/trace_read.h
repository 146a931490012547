/* core/picture/trace_read.h - one step of a trace file (docs/trace.md) as lanes.
 *
 * The file is anybody's: it is read twice, an event at a time, and only the wanted step is kept.  At most 64 KiB of an event,
 * ST_LANES_MAX lanes of ST_TRACE_THREADS_MAX rows in all, and ST_TRACE_SPANS_MAX spans of a step. */
#ifndef CORE_PICTURE_TRACE_READ_H
#define CORE_PICTURE_TRACE_READ_H

#include "core/picture/lanes.h"
#include "strata/status.h"

#define ST_TRACE_EVENT_MAX   65536u
#define ST_TRACE_THREADS_MAX 1024u
#define ST_TRACE_SPANS_MAX   (2u << 20)

struct st_trace_names;

struct st_trace_step {
    struct st_lanes lanes; /* title: "step 3" */
    uint64_t number;
    struct st_trace_names *names; /* that the lanes borrow */
    char title[32];
};

/** Read step `number`, from 1; 0: the last that was recorded.  E_INPUT: no trace, or not of this step; the sentence names file,
 *  line and column.  E_NOMEM, E_IO.  Free with st_trace_step_free(). */
strata_status st_trace_step_read(struct st_trace_step *out, const char *path, uint64_t number);
void st_trace_step_free(struct st_trace_step *step);

#endif
