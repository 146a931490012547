/* strata/log.h - where the library's log lines go: notices, warnings, and problems beyond the one that a status reports.
 *
 * By default they go to standard error, with "strata: " before them.  The library prints nowhere else. */
#ifndef STRATA_LOG_H
#define STRATA_LOG_H

#include "strata/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Levels of lines, the least important first. */
enum strata_log_level {
    STRATA_LOG_DEBUG = 0,
    STRATA_LOG_INFO = 1,
    STRATA_LOG_NOTICE = 2, /**< something may be unexpected: a key without effect, a default that was used */
    STRATA_LOG_WARN = 3,   /**< something is wrong, but the work continues */
    STRATA_LOG_ERROR = 4,  /**< further causes of a failure, beside its sentence */
    STRATA_LOG_NONE = 5,   /**< as `lowest`: no lines at all */
};

/** Receives one line.  Called on any thread of the library or the caller, several at once; it must not call the library.
 *
 *  @param line  borrowed during the call; no newline, control characters are escaped */
typedef void strata_log_fn(void *ctx, enum strata_log_level level, const char *line);

/**
 * Send lines elsewhere, for the whole process.
 *
 * @param sink    NULL: standard error
 * @param ctx     passed to `sink`; must outlive its use
 * @param lowest  lines below it are dropped; STRATA_LOG_INFO at the start of a program
 *
 * Thread  one, while no other call of the library is in progress and no handle with threads is open: at the start.
 */
STRATA_API void strata_log_configure(strata_log_fn *sink, void *ctx, enum strata_log_level lowest);

#ifdef __cplusplus
}
#endif
#endif
