/* yaml_scalar.c - resolves plain scalars: PyYAML's resolver with OmegaConf's numbers.
 *
 * Source: yaml/resolver.py and constructor.py of PyYAML 6; get_yaml_loader() of OmegaConf 2.3. */
#include "core/yaml/yaml_scalar.h"

#include "core/base/number.h"
#include "core/base/text.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NUMBER_BYTES_MAX 64u

static bool is_one_of(const char *text, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strcmp(text, *words) == 0)
            return true;
    return false;
}

static const char *pass_sign(const char *at)
{
    return at + (*at == '-' || *at == '+');
}

/* Digits of a base and underscores. */
static size_t span(const char *at, const char *digits)
{
    char with[32] = "_";

    strcat(with, digits);
    return strspn(at, with);
}

/* All of `at` in base 2, 8, 10 or 16; underscores are passed over. */
static double whole(const char *at, unsigned base)
{
    double value = 0;

    for (; *at != '\0'; at++)
        if (*at != '_')
            value = value * base + (isdigit((unsigned char)*at) ? *at - '0' : st_text_lower(*at) - 'a' + 10);
    return value;
}

static double plain_real(const char *text)
{
    char copy[NUMBER_BYTES_MAX + 1];
    size_t used = 0;

    for (; *text != '\0'; text++)
        if (*text != '_')
            copy[used++] = *text;
    copy[used] = '\0';
    return st_number_read(copy, NULL);
}

/* What YAML 1.1 would read in base 60: 1:30 as 90. */
static bool is_base_60(const char *text)
{
    const char *at = pass_sign(text);

    return isdigit((unsigned char)*at) && strchr(at, ':') != NULL && at[strspn(at, "0123456789_:.")] == '\0';
}

static bool is_int(const char *text, double *value)
{
    const char *at = pass_sign(text);
    bool is = true;

    if (at[0] == '0' && at[1] == 'b' && at[2] != '\0' && at[2 + span(at + 2, "01")] == '\0')
        *value = whole(at + 2, 2);
    else if (at[0] == '0' && at[1] == 'x' && at[2] != '\0' && at[2 + span(at + 2, "0123456789abcdefABCDEF")] == '\0')
        *value = whole(at + 2, 16);
    else if (at[0] == '0' && at[1] != '\0' && at[1 + span(at + 1, "01234567")] == '\0')
        *value = whole(at + 1, 8);
    else if (strcmp(at, "0") == 0 || (*at >= '1' && *at <= '9' && at[span(at, "0123456789")] == '\0'))
        *value = whole(at, 10);
    else
        is = false;
    if (is && *text == '-')
        *value = -*value;
    return is;
}

/* Bytes of an exponent ("e5", "E-05"); 0: there is none.  Behind a fraction without an integer (.5e3) OmegaConf wants a sign. */
static size_t exponent_bytes(const char *at, bool needs_sign)
{
    const size_t sign = (*at == 'e' || *at == 'E') && (at[1] == '-' || at[1] == '+');
    const size_t digits = *at == 'e' || *at == 'E' ? strspn(at + 1 + sign, "0123456789") : 0;

    return digits == 0 || (needs_sign && sign == 0) ? 0 : 1 + sign + digits;
}

static bool is_real(const char *text, double *value)
{
    const char *at = pass_sign(text);
    const size_t digits = isdigit((unsigned char)*at) ? span(at, "0123456789") : 0;
    const bool point = at[digits] == '.';
    const size_t fraction = point ? span(at + digits + 1, "0123456789") : 0;
    const char *rest = at + digits + point + fraction;
    const size_t exponent = exponent_bytes(rest, digits == 0);

    if (rest[exponent] != '\0' || !(digits > 0 ? point || exponent > 0 : point && fraction > 0 && at == text))
        return false;
    *value = plain_real(text);
    return true;
}

static enum st_yaml_kind number(const char *text, double *value)
{
    static const char *const odd[] = {".inf", ".Inf", ".INF", ".nan", ".NaN", ".NAN", NULL};

    if (is_one_of(pass_sign(text), odd))
        return ST_YAML_NOT_FINITE;
    if (is_base_60(text))
        return ST_YAML_BASE_60;
    if (strlen(text) > NUMBER_BYTES_MAX)
        return ST_YAML_TEXT;
    if (is_int(text, value))
        return isfinite(*value) ? ST_YAML_INT : ST_YAML_NOT_FINITE;
    if (is_real(text, value))
        return isfinite(*value) ? ST_YAML_REAL : ST_YAML_NOT_FINITE;
    return ST_YAML_TEXT;
}

enum st_yaml_kind st_yaml_scalar(const char *text, double *value)
{
    static const char *const nulls[] = {"", "~", "null", "Null", "NULL", NULL};
    static const char *const yes[] = {"yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON", NULL};
    static const char *const no[] = {"no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF", NULL};

    *value = 0;
    if (is_one_of(text, nulls))
        return ST_YAML_NULL;
    if (is_one_of(text, no))
        return ST_YAML_BOOL;
    if (is_one_of(text, yes)) {
        *value = 1;
        return ST_YAML_BOOL;
    }
    return number(text, value);
}
