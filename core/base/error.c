/* core/base/error.c - the sentence behind the last failure, one per thread, and the texts of the statuses.
 *
 * Any thread; nothing is shared.  A sentence is one line, safe to print (core/base/text.h), and is cut at 1 KiB.  The remedy is
 * its end, so that there is one text; a remedy that a cut reaches is none. */
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/text.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local struct st_sentence last;

struct status_row {
    strata_status status;
    int exit_code;
    const char *text;
};

static const struct status_row status_rows[] = {
#define STRATA_X(name, value, exit_code, text) {STRATA_##name, exit_code, text},
    STRATA_STATUS_MAP(STRATA_X)
#undef STRATA_X
};

static const struct status_row *status_find(strata_status st)
{
    for (size_t i = 0; i < sizeof(status_rows) / sizeof(status_rows[0]); i++)
        if (status_rows[i].status == st)
            return &status_rows[i];
    return NULL;
}

const char *strata_status_text(strata_status st)
{
    const struct status_row *row = status_find(st);

    return row != NULL ? row->text : "unknown status";
}

int strata_status_exit_code(strata_status st)
{
    const struct status_row *row = status_find(st);

    return row != NULL ? row->exit_code : 1;
}

const char *strata_last_error(void)
{
    return last.text;
}

const char *strata_error_key(void)
{
    return last.key;
}

const char *strata_error_remedy(void)
{
    return last.text + strlen(last.text) - last.remedy_bytes;
}

/* Another failure has neither. */
static void forget_remedy(void)
{
    last.key[0] = '\0';
    last.remedy_bytes = 0;
}

/* A sentence that is raised again, also behind a prefix, is about the same key. */
static bool ends_with_last(const char *text)
{
    const size_t length = strlen(text), before = strlen(last.text);

    return before > 0 && before <= length && strcmp(text + length - before, last.text) == 0;
}

/* The arguments may point into last.text, so the new sentence is formatted into another buffer. */
__attribute__((format(printf, 2, 0))) static void error_format(const char *tail, const char *fmt, va_list args)
{
    char text[ST_SENTENCE_BYTES], shown[ST_SENTENCE_BYTES];
    int used = vsnprintf(text, sizeof(text), fmt, args);
    size_t length = used < 0 ? 0 : (size_t)used < sizeof(text) ? (size_t)used : sizeof(text) - 1;

    if (tail != NULL)
        snprintf(text + length, sizeof(text) - length, ": %s", tail);
    st_text_escape(shown, sizeof(shown), text);
    if (!ends_with_last(shown))
        forget_remedy();
    memcpy(last.text, shown, sizeof(shown));
}

strata_status st_error(strata_status st, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    error_format(NULL, fmt, args);
    va_end(args);
    return st;
}

void st_error_keep(struct st_sentence *kept)
{
    *kept = last;
}

strata_status st_error_again(strata_status st, const struct st_sentence *kept)
{
    last = *kept;
    return st;
}

strata_status st_error_key(strata_status st, const char *key)
{
    snprintf(last.key, sizeof(last.key), "%s", key);
    return st;
}

strata_status st_error_remedy(strata_status st, const char *key, const char *fmt, ...)
{
    const size_t cause = strlen(last.text);
    char text[ST_SENTENCE_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    last.remedy_bytes = 0;
    if (cause + strlen(text) + 2 < ST_SENTENCE_BYTES) {
        snprintf(last.text + cause, ST_SENTENCE_BYTES - cause, ": ");
        st_text_escape(last.text + cause + 2, ST_SENTENCE_BYTES - cause - 2, text);
        last.remedy_bytes = (uint32_t)(strlen(last.text) - cause - 2);
    }
    return st_error_key(st, key);
}

static strata_status status_of_errno(int err)
{
    switch (err) {
    case 0:
        return STRATA_E_INTERNAL;
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
        return STRATA_E_NOSPC;
    case ENOMEM:
        return STRATA_E_NOMEM;
    case ENOSYS:
    case EOPNOTSUPP:
        return STRATA_E_NOSYS;
    case EBUSY:
    case EAGAIN:
        return STRATA_E_BUSY;
    case ECANCELED:
        return STRATA_E_CANCELLED;
    case ENOENT:
    case ENOTDIR:
    case EISDIR:
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP:
    case ENAMETOOLONG:
        return STRATA_E_INPUT;
    default:
        return STRATA_E_IO;
    }
}

const char *st_errno_text(int err, char buf[ST_ERRNO_BYTES])
{
    static const struct {
        int err;
        __rlimit_resource_t resource;
        const char *text, *after;
    } limits[] = {{EFBIG, RLIMIT_FSIZE, "File too large: ulimit -f", " bytes"},
                  {EMFILE, RLIMIT_NOFILE, "Too many open files: ulimit -n", ": raise it"}};
    struct rlimit limit;

    if (err == ENAMETOOLONG)
        return "File name too long: most file systems allow 255 bytes, of which an unfinished file needs 28";
    if (err == ENFILE)
        return "Too many open files in the system: raise sysctl fs.file-max";
    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++)
        if (err == limits[i].err && getrlimit(limits[i].resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
            snprintf(buf, ST_ERRNO_BYTES, "%s allows %llu%s", limits[i].text, (unsigned long long)limit.rlim_cur,
                     limits[i].after);
            return buf;
        }
    return strerror_r(err, buf, ST_ERRNO_BYTES);
}

strata_status st_error_errno(int err, const char *fmt, ...)
{
    char reason[ST_ERRNO_BYTES];
    va_list args;

    va_start(args, fmt);
    error_format(st_errno_text(err, reason), fmt, args);
    va_end(args);
    return status_of_errno(err);
}

strata_status st_error_prefix(strata_status st, const char *fmt, ...)
{
    char sentence[ST_SENTENCE_BYTES];
    va_list args;

    memcpy(sentence, last.text, sizeof(sentence));
    va_start(args, fmt);
    error_format(sentence, fmt, args);
    va_end(args);
    return st;
}

void st_error_clear(void)
{
    last.text[0] = '\0';
    forget_remedy();
}

strata_status st_nomem(uint64_t bytes)
{
    return bytes == 0 ? st_error(STRATA_E_NOMEM, "no memory")
                      : st_error(STRATA_E_NOMEM, "no memory for %" PRIu64 " bytes", bytes);
}

strata_status st_error_missing(const char *function, const char *what)
{
    return st_error(STRATA_E_INVAL, "%s: %s is NULL", function, what);
}
