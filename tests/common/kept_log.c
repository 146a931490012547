/* tests/common/kept_log.c - see kept_log.h. */
#include "tests/common/kept_log.h"

#include <stdio.h>

struct kept_log kept_log;

static void keep(void *ctx, enum st_log_level level, const char *line)
{
    (void)ctx;
    kept_log.count++;
    kept_log.level = level;
    snprintf(kept_log.last, sizeof(kept_log.last), "%s", line);
}

void kept_log_begin(enum st_log_level lowest)
{
    kept_log = (struct kept_log){0};
    st_log_configure(keep, NULL, lowest);
}

void kept_log_end(void)
{
    st_log_configure(NULL, NULL, ST_LOG_INFO);
}
