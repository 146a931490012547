/* model/hf/hf_fields.c - see hf_fields_internal.h. */
#include "core/base/error.h"
#include "model/hf/hf_fields_internal.h"
#include <math.h>
#include <stdio.h>

strata_status st_hf_key_fault(const char *where, const char *key, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s: \"%s\" %s", where, key, what);
}

/* As the file has it, cut. */
static void value_text(char out[64], const st_json *n)
{
    char number[32];

    switch (st_json_type(n)) {
    case ST_JSON_NUMBER:
        snprintf(out, 64, "%.60s",
                 st_json_number_text(n) != NULL ? st_json_number_text(n) : st_json_double_text(number, st_json_number(n)));
        break;
    case ST_JSON_STRING:
        snprintf(out, 64, "\"%.40s\"", st_json_string(n));
        break;
    case ST_JSON_BOOL:
        snprintf(out, 64, "%s", st_json_bool(n) ? "true" : "false");
        break;
    default:
        snprintf(out, 64, "%s", st_json_type(n) == ST_JSON_OBJECT ? "an object" : "a list");
    }
}

strata_status st_hf_node_fault(const st_json *n, const char *where, const char *key, const char *what)
{
    char value[64];

    if (n == NULL) /* a default, or what follows from other keys */
        return st_hf_key_fault(where, key, what);
    value_text(value, n);
    return st_error(STRATA_E_INPUT, "%s: \"%s\" %s (it is %s)", where, key, what, value);
}

strata_status st_hf_value_fault(const st_json *root, const char *where, const char *key, const char *what)
{
    return st_hf_node_fault(st_hf_member(root, key), where, key, what);
}

const st_json *st_hf_member(const st_json *root, const char *key)
{
    const st_json *n = st_json_get(root, key);

    return n != NULL && st_json_type(n) != ST_JSON_NULL ? n : NULL;
}

strata_status st_hf_read_size(const st_json *root, const char *key, enum st_hf_field kind, uint32_t *out, const char *where)
{
    const st_json *n = st_hf_member(root, key);
    uint64_t value;

    if (n == NULL)
        return kind == ST_HF_OPTIONAL ? STRATA_OK : st_hf_key_fault(where, key, "is missing");
    if (!st_json_u64(n, &value) || value == 0 || value > UINT32_MAX)
        return st_hf_value_fault(root, where, key, "must be a whole number above 0, at most 4294967295");
    *out = (uint32_t)value;
    return STRATA_OK;
}

strata_status st_hf_read_real(const st_json *root, const char *key, double *out, const char *where)
{
    const st_json *n = st_hf_member(root, key);

    if (n == NULL)
        return STRATA_OK;
    if (st_json_type(n) != ST_JSON_NUMBER)
        return st_hf_value_fault(root, where, key, "must be a number");
    *out = st_json_number(n);
    return STRATA_OK;
}

strata_status st_hf_read_single(const st_json *root, const char *key, double *out, const char *where)
{
    double value = 0.0;
    const strata_status st = st_hf_read_real(root, key, &value, where);

    if (st != STRATA_OK || st_hf_member(root, key) == NULL)
        return st;
    if (!isfinite((float)value) || ((float)value == 0.0f && value != 0.0))
        return st_hf_value_fault(root, where, key, "is outside the range of single precision");
    *out = value;
    return STRATA_OK;
}

strata_status st_hf_read_bool(const st_json *root, const char *key, bool *out, const char *where)
{
    const st_json *n = st_hf_member(root, key);

    if (n == NULL)
        return STRATA_OK;
    if (st_json_type(n) != ST_JSON_BOOL)
        return st_hf_value_fault(root, where, key, "must be true or false");
    *out = st_json_bool(n);
    return STRATA_OK;
}

strata_status st_hf_read_text(const st_json *root, const char *key, const char **out, const char *where)
{
    const st_json *n = st_hf_member(root, key);

    if (n == NULL)
        return STRATA_OK;
    if (st_json_type(n) != ST_JSON_STRING)
        return st_hf_value_fault(root, where, key, "must be a string");
    *out = st_json_string(n);
    return STRATA_OK;
}

strata_status st_hf_want_bool(const st_json *root, const char *key, bool want, const char *where)
{
    bool have = want;
    const strata_status st = st_hf_read_bool(root, key, &have, where);

    if (st != STRATA_OK || have == want)
        return st;
    return st_hf_key_fault(where, key, want ? "false is not supported" : "true is not supported");
}

strata_status st_hf_read_eps(const st_json *root, const char *key, double value, float *out, const char *where)
{
    const strata_status st = st_hf_read_single(root, key, &value, where);

    if (st != STRATA_OK)
        return st;
    if (!(value > 0.0 && value < 1.0))
        return st_hf_value_fault(root, where, key, "must lie between 0 and 1");
    *out = (float)value;
    return STRATA_OK;
}

strata_status st_hf_read_dropout(const st_json *root, const char *const *keys, size_t count, double value, float *out,
                                 const char *where)
{
    strata_status st;

    *out = 0.0f;
    for (size_t i = 0; i < count; i++) {
        double rate = value;

        if ((st = st_hf_read_single(root, keys[i], &rate, where)) != STRATA_OK)
            return st;
        if (!(rate >= 0.0 && rate <= 1.0))
            return st_hf_value_fault(root, where, keys[i], "must lie between 0 and 1");
        *out = fmaxf(*out, (float)rate);
    }
    return STRATA_OK;
}
