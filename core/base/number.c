/* core/base/number.c - see core/base/number.h.  Any thread; only the calling thread's locale changes, and only within a call. */
#include "core/base/number.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static pthread_once_t once = PTHREAD_ONCE_INIT;
static locale_t plain; /* the C locale, written once; the system keeps it, so that nothing is allocated */

static void find_plain(void)
{
    plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
}

locale_t st_number_begin(void)
{
    pthread_once(&once, find_plain);
    return uselocale(plain);
}

void st_number_end(locale_t before)
{
    uselocale(before);
}

double st_number_read(const char *text, char **end)
{
    pthread_once(&once, find_plain);
    return strtod_l(text, end, plain);
}

int st_number_print(char *buf, size_t bytes, const char *fmt, ...)
{
    const locale_t before = st_number_begin();
    va_list args;
    int length;

    va_start(args, fmt);
    length = vsnprintf(buf, bytes, fmt, args);
    va_end(args);
    st_number_end(before);
    return length;
}
