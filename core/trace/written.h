/* core/trace/written.h - how much a run writes to its drives, which wear out by bytes written. */
#ifndef CORE_TRACE_WRITTEN_H
#define CORE_TRACE_WRITTEN_H

#include "core/json/json.h"

#include <stdio.h>

#define ST_WRITTEN_DAY 86400.0 /* seconds */

struct st_written {
    uint64_t step_bytes; /* of a steady step */
    double run_bytes;    /* by all steps, without the initial write; NaN: the number of steps is not known */
    double day_bytes;    /* at this pace; NaN: unknown */
};

/** Of a run so far, of which the median step writes so many bytes, and all together so many in so many seconds. */
void st_written_counted(struct st_written *out, double step_bytes, uint64_t bytes, double seconds);

/** Prints one line, or nothing if nothing is written. */
void st_written_print(const struct st_written *e, const char *label, FILE *file);
/** "written": {"step", "run", "day"} in bytes, into an object that is open. */
void st_written_put(const struct st_written *e, struct st_json_writer *w);

#endif
