/* api/door_log.c - strata/log.h: the public sink in front of the library's. */
#include "core/base/log.h"
#include "strata/log.h"

#include <stddef.h>

_Static_assert((int)STRATA_LOG_DEBUG == (int)ST_LOG_DEBUG && (int)STRATA_LOG_ERROR == (int)ST_LOG_ERROR, "the same levels");

static strata_log_fn *user_sink; /* set at the start, before there are other threads */

static void pass_on(void *ctx, enum st_log_level level, const char *line)
{
    user_sink(ctx, (enum strata_log_level)level, line);
}

void strata_log_configure(strata_log_fn *sink, void *ctx, enum strata_log_level lowest)
{
    user_sink = sink;
    st_log_configure(sink != NULL ? pass_on : NULL, ctx, (enum st_log_level)lowest);
}
