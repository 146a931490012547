/* core/picture/trace_events_internal.h - the events of a trace file, one after the other, without all of them in memory. */
#ifndef CORE_PICTURE_TRACE_EVENTS_INTERNAL_H
#define CORE_PICTURE_TRACE_EVENTS_INTERNAL_H

#include "core/json/json.h"
#include "strata/status.h"
#include <stdint.h>

/* Where a value begins, from 1. */
struct st_trace_place {
    const char *path;
    uint64_t line, column;
};

/** E_INPUT, with the place in front. */
strata_status st_trace_bad(const struct st_trace_place *place, const char *problem);

/** Is called with each event, an object.  An error ends the walk. */
typedef strata_status st_trace_event_fn(void *ctx, const st_json *event, const struct st_trace_place *place);

/** Walk through a file that is open.  Strict JSON (core/json/json.h), but keys of the outermost object may be twice.
 *  E_INPUT, E_CONFIG: no trace; an error of the callback; E_NOMEM; E_IO. */
strata_status st_trace_events(int fd, uint64_t bytes, const char *path, st_trace_event_fn *event, void *ctx);

#endif
