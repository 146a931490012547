/* template_number.c - arithmetic of integers and floats, as Python computes it, in 64 bits. */
#include "text/template/template_internal.h"

static struct st_value too_large(struct st_render *r)
{
    return st_render_fail(r, STRATA_E_INPUT, "an integer past 64 bits");
}

struct st_value st_val_of_integers(struct st_render *r, enum st_sign sign, int64_t a, int64_t b)
{
    int64_t out;

    if ((sign == SIGN_DIV || sign == SIGN_MOD) && b == 0)
        return st_render_fail(r, STRATA_E_INPUT, "a division by zero");
    switch (sign) {
    case SIGN_ADD:
        return __builtin_add_overflow(a, b, &out) ? too_large(r) : st_val_int(out);
    case SIGN_SUB:
        return __builtin_sub_overflow(a, b, &out) ? too_large(r) : st_val_int(out);
    case SIGN_MUL:
        return __builtin_mul_overflow(a, b, &out) ? too_large(r) : st_val_int(out);
    case SIGN_DIV:
        return st_val_float((double)a / (double)b);
    default: /* a % b, with the sign of b */
        out = b == -1 ? 0 : a % b;
        return st_val_int(out != 0 && (out < 0) != (b < 0) ? out + b : out);
    }
}

struct st_value st_val_of_reals(struct st_render *r, enum st_sign sign, double a, double b)
{
    if (sign == SIGN_DIV && b == 0.0)
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
    default:
        return st_render_fail(r, STRATA_E_NOSYS, "%% of a float is not supported");
    }
}
