/* core/base/log.h - the one place the library prints through.  Default sink: stderr. */
#ifndef CORE_BASE_LOG_H
#define CORE_BASE_LOG_H

enum st_log_level { ST_LOG_DEBUG = 0, ST_LOG_INFO = 1, ST_LOG_NOTICE = 2, ST_LOG_WARN = 3, ST_LOG_ERROR = 4 };

typedef void st_log_fn(void *ctx, enum st_log_level level, const char *line);

/** Replace the sink (NULL: stderr) and the lowest level passed to it.  Not thread-safe: call at start. */
void st_log_configure(st_log_fn *sink, void *ctx, enum st_log_level lowest);

/** Change only the lowest level, in the same way; returns the one before. */
enum st_log_level st_log_lowest(enum st_log_level lowest);

/** "warning: ", or nothing: what the line of a level begins with. */
const char *st_log_word(enum st_log_level level);

/** One line, no newline at the end.  Any thread. */
void st_log(enum st_log_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
