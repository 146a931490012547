/* tests/common/kept_log.h - what is logged while a test keeps it, instead of being printed. */
#ifndef TESTS_COMMON_KEPT_LOG_H
#define TESTS_COMMON_KEPT_LOG_H

#include "core/base/log.h"

#include <stdint.h>

/* Since kept_log_begin(). */
extern struct kept_log {
    uint32_t count;
    enum st_log_level level; /* of the last line */
    char last[4096];
} kept_log;

/** Keeps lines of this level and above, none so far. */
void kept_log_begin(enum st_log_level lowest);
/** Lines are printed again; what was kept stays. */
void kept_log_end(void);

#endif
