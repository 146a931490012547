/* core/base/size.c - sizes as people write them; integer arithmetic, so that no digit is lost. */
#include "core/base/size.h"

#include "core/base/text.h"

#include <ctype.h>
#include <stdio.h>

#define FRACTION_UNIT 1000000000u /* nine digits after the point count */

struct size_unit {
    char letter;
    uint64_t binary, decimal;
};

static const struct size_unit size_units[] = {
    {'k', UINT64_C(1) << 10, 1000u},
    {'m', UINT64_C(1) << 20, 1000000u},
    {'g', UINT64_C(1) << 30, 1000000000u},
    {'t', UINT64_C(1) << 40, UINT64_C(1000000000000)},
    {'p', UINT64_C(1) << 50, UINT64_C(1000000000000000)},
};

/* Bytes of a unit such as "", "B", "G", "GiB", "GB"; 0 if the text is not a unit. */
static uint64_t size_unit_bytes(const char *unit)
{
    if (unit[0] == '\0' || st_text_same(unit, "b"))
        return 1;
    for (size_t i = 0; i < sizeof(size_units) / sizeof(size_units[0]); i++) {
        if (st_text_lower(unit[0]) != size_units[i].letter)
            continue;
        if (unit[1] == '\0' || st_text_same(unit + 1, "ib"))
            return size_units[i].binary;
        if (st_text_same(unit + 1, "b"))
            return size_units[i].decimal;
    }
    return 0;
}

/* Reads digits at *at into *value; -1 if there are none or too many. */
static int parse_whole(const char **at, uint64_t *value)
{
    if (!isdigit((unsigned char)**at))
        return -1;
    for (*value = 0; isdigit((unsigned char)**at); (*at)++)
        if (__builtin_mul_overflow(*value, 10u, value) || __builtin_add_overflow(*value, (uint64_t)(**at - '0'), value))
            return -1;
    return 0;
}

/* Reads ".digits" at *at, if present, as billionths. */
static int parse_fraction(const char **at, uint64_t *billionths)
{
    *billionths = 0;
    if (**at != '.')
        return 0;
    (*at)++;
    if (!isdigit((unsigned char)**at))
        return -1;
    for (uint64_t scale = FRACTION_UNIT / 10; isdigit((unsigned char)**at); (*at)++, scale /= 10)
        *billionths += (uint64_t)(**at - '0') * scale;
    return 0;
}

int st_size_parse(const char *text, uint64_t *out)
{
    uint64_t whole, billionths, unit, bytes;
    const char *at = text;

    if (parse_whole(&at, &whole) != 0 || parse_fraction(&at, &billionths) != 0)
        return -1;
    while (*at == ' ')
        at++;
    unit = size_unit_bytes(at);
    if (unit == 0 || (unit == 1 && billionths != 0) || __builtin_mul_overflow(whole, unit, &bytes))
        return -1;
    if (__builtin_add_overflow(bytes, (uint64_t)((unsigned __int128)unit * billionths / FRACTION_UNIT), &bytes))
        return -1;
    *out = bytes;
    return 0;
}

/* Digits after the point so that three are shown, or all those before the point. */
static int digits_after_point(double value)
{
    return value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
}

const char *st_size_text(char buf[24], uint64_t bytes)
{
    static const char *const names[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes / 1024;
    size_t i = 0;

    if (bytes < 1024) {
        snprintf(buf, 24, "%u B", (unsigned)bytes);
        return buf;
    }
    for (; value >= 1024 && i + 1 < sizeof(names) / sizeof(names[0]); i++)
        value /= 1024;
    snprintf(buf, 24, "%.*f %s", digits_after_point(value), value, names[i]);
    return buf;
}

const char *st_count_text(char buf[24], uint64_t count)
{
    static const char *const names[] = {"thousand", "million", "billion", "trillion"};
    double value = (double)count / 1000;
    size_t i = 0;

    if (count < 1000) {
        snprintf(buf, 24, "%u", (unsigned)count);
        return buf;
    }
    for (; value >= 999.5 && i + 1 < sizeof(names) / sizeof(names[0]); i++)
        value /= 1000;
    snprintf(buf, 24, "%.*f %s", digits_after_point(value), value, names[i]);
    return buf;
}

/* Three digits, but whole seconds as they are; what would be rounded to a thousand of a unit is one of the next. */
const char *st_seconds_text(char buf[24], double seconds)
{
    if (seconds >= 999.5)
        snprintf(buf, 24, "%.0f s", seconds);
    else if (seconds >= 0.9995)
        snprintf(buf, 24, "%.3g s", seconds);
    else if (seconds >= 0.9995e-3)
        snprintf(buf, 24, "%.3g ms", seconds * 1e3);
    else
        snprintf(buf, 24, "%.3g us", seconds * 1e6);
    return buf;
}
