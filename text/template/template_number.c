/* template_number.c - arithmetic of integers and floats: Python's, in 64 bits. */
#include "text/template/template_internal.h"

#include <math.h>

static int64_t floor_div(int64_t a, int64_t b)
{
    const int64_t q = a / b;

    return q - (a % b != 0 && (a < 0) != (b < 0));
}

static struct st_value too_large(struct st_render *r)
{
    return st_render_fail(r, STRATA_E_INPUT, "an integer past 64 bits");
}

/* a % b, which has b's sign, and a // b: Python divides what the remainder leaves, so that both are exact. */
static double real_mod(double a, double b)
{
    const double mod = fmod(a, b);

    if (mod == 0.0)
        return copysign(0.0, b);
    return (mod < 0.0) == (b < 0.0) ? mod : mod + b;
}

static double real_floor_div(double a, double b)
{
    const double mod = fmod(a, b), rest = mod != 0.0 && (mod < 0.0) != (b < 0.0) ? 1.0 : 0.0;
    const double quotient = (a - mod) / b - rest, whole = floor(quotient);

    if (quotient == 0.0)
        return copysign(0.0, a / b);
    return quotient - whole > 0.5 ? whole + 1.0 : whole;
}

static struct st_value real_power(struct st_render *r, double a, double b)
{
    const double power = pow(a, b);

    if (a == 0.0 && b < 0.0)
        return st_render_fail(r, STRATA_E_INPUT, "a division by zero");
    if (isnan(power) && !isnan(a) && !isnan(b))
        return st_render_fail(r, STRATA_E_NOSYS, "a complex number is not supported");
    if (isinf(power) && !isinf(a) && !isinf(b))
        return st_render_fail(r, STRATA_E_INPUT, "a power past the largest float");
    return st_val_float(power);
}

static struct st_value integer_power(struct st_render *r, int64_t a, int64_t b)
{
    int64_t out = 1;

    if (b < 0)
        return real_power(r, (double)a, (double)b);
    for (; b > 0 && st_render_spend(r, 1); b--)
        if (__builtin_mul_overflow(out, a, &out))
            return too_large(r);
    return st_val_int(out);
}

struct st_value st_val_of_integers(struct st_render *r, enum st_sign sign, int64_t a, int64_t b)
{
    int64_t out;

    if ((sign == SIGN_DIV || sign == SIGN_FLOORDIV || sign == SIGN_MOD) && (b == 0 || (b == -1 && a == INT64_MIN)))
        return b == 0 ? st_render_fail(r, STRATA_E_INPUT, "a division by zero") : too_large(r);
    switch (sign) {
    case SIGN_ADD:
        return __builtin_add_overflow(a, b, &out) ? too_large(r) : st_val_int(out);
    case SIGN_SUB:
        return __builtin_sub_overflow(a, b, &out) ? too_large(r) : st_val_int(out);
    case SIGN_MUL:
        return __builtin_mul_overflow(a, b, &out) ? too_large(r) : st_val_int(out);
    case SIGN_DIV:
        return st_val_float((double)a / (double)b);
    case SIGN_FLOORDIV:
        return st_val_int(floor_div(a, b));
    case SIGN_MOD:
        return st_val_int(a - floor_div(a, b) * b);
    default:
        return integer_power(r, a, b);
    }
}

struct st_value st_val_of_reals(struct st_render *r, enum st_sign sign, double a, double b)
{
    if (b == 0.0 && (sign == SIGN_DIV || sign == SIGN_FLOORDIV || sign == SIGN_MOD))
        return st_render_fail(r, STRATA_E_INPUT, "a division by zero");
    switch (sign) {
    case SIGN_ADD:
        return st_val_float(a + b);
    case SIGN_SUB:
        return st_val_float(a - b);
    case SIGN_MUL:
        return st_val_float(a * b);
    case SIGN_DIV:
        return st_val_float(a / b);
    case SIGN_FLOORDIV:
        return st_val_float(real_floor_div(a, b));
    case SIGN_MOD:
        return st_val_float(real_mod(a, b));
    default:
        return real_power(r, a, b);
    }
}
