/* advise/endurance.h - how much a run writes to its drives, which wear out by bytes written. */
#ifndef ADVISE_ENDURANCE_H
#define ADVISE_ENDURANCE_H

#include "advise/case.h"
#include "core/json/json.h"
#include <stdio.h>

struct st_endurance {
    uint64_t step_bytes; /* of a steady step */
    double run_bytes;    /* by all steps, without the initial write; NaN: the number of steps is not known */
    double day_bytes;    /* at this pace; NaN: unknown */
};

/** For a plan: so many steps at the predicted pace; 0: nobody knows how many. */
void st_endurance_planned(struct st_endurance *out, const struct st_case *of, uint64_t steps);

/** For a run so far, of which the median step writes so many bytes, and all together so many in so many seconds. */
void st_endurance_counted(struct st_endurance *out, double step_bytes, uint64_t bytes, double seconds);

/** Prints one line, or nothing if nothing is written. */
void st_endurance_print(const struct st_endurance *e, const char *label, FILE *file);
/** "written": {"step", "run", "day"} in bytes, into an object that is open. */
void st_endurance_put(const struct st_endurance *e, struct st_json_writer *w);

#endif
