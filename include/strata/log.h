/* strata/log.h - where the library's lines go: notices, warnings, and problems that a status has no room for.
 *
 * Until told otherwise they go to standard error, with "strata: " before them.  The library writes nowhere else. */
#ifndef STRATA_LOG_H
#define STRATA_LOG_H

#include "strata/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/** What a line is about, the least important first. */
enum strata_log_level {
    STRATA_LOG_DEBUG = 0,
    STRATA_LOG_INFO = 1,
    STRATA_LOG_NOTICE = 2, /**< something is not as one might expect: a key without effect, a default that was taken */
    STRATA_LOG_WARN = 3,   /**< something is wrong, and the work goes on */
    STRATA_LOG_ERROR = 4,  /**< beside the sentence of a failure: its other causes */
    STRATA_LOG_NONE = 5,   /**< as `lowest`: no line at all */
};

/** Receives one line.  Any thread of the library or of the caller, several at once; it may not call the library.
 *
 *  @param line  borrowed during the call; no newline, control characters written out */
typedef void strata_log_fn(void *ctx, enum strata_log_level level, const char *line);

/**
 * Send lines elsewhere, for the whole process.
 *
 * @param sink    NULL: standard error
 * @param ctx     handed to `sink`; must outlive its use
 * @param lowest  lines below it are dropped; STRATA_LOG_INFO at the start of a program
 *
 * Thread  one, while no other call of the library is in progress and no handle with threads is open: at the start.
 */
STRATA_API void strata_log_configure(strata_log_fn *sink, void *ctx, enum strata_log_level lowest);

#ifdef __cplusplus
}
#endif
#endif
