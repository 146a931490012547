/* core/base/log.c - the sink for everything the library prints.
 *
 * The sink is set at start, before other threads exist; lines come from any thread and reach it whole. */
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/base/wrap.h"

#include <stdarg.h>
#include <stdio.h>

#define LOG_LINE_BYTES 2048

const char *st_log_word(enum st_log_level level)
{
    static const char *const words[] = {"debug: ", "", "notice: ", "warning: ", "error: "};

    return words[level];
}

static void log_to_stderr(void *ctx, enum st_log_level level, const char *line)
{
    (void)ctx;
    st_wrap_print(stderr, "strata: %s%s\n", st_log_word(level), line);
}

static st_log_fn *log_sink = log_to_stderr;
static void *log_ctx;
static enum st_log_level log_lowest = ST_LOG_INFO;

void st_log_configure(st_log_fn *sink, void *ctx, enum st_log_level lowest)
{
    log_sink = sink != NULL ? sink : log_to_stderr;
    log_ctx = ctx;
    log_lowest = lowest;
}

enum st_log_level st_log_lowest(enum st_log_level lowest)
{
    const enum st_log_level before = log_lowest;

    log_lowest = lowest;
    return before;
}

void st_log(enum st_log_level level, const char *fmt, ...)
{
    char text[LOG_LINE_BYTES], line[LOG_LINE_BYTES];
    va_list args;

    if (level < log_lowest)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    st_text_escape(line, sizeof(line), text);
    log_sink(log_ctx, level, line);
}
