/* template_test.c - tests (`value is name`), one row each. */
#include "text/template/template_internal.h"

#include <string.h>

enum test {
    TEST_KIND,    /* the value is of one of these kinds */
    TEST_TRUTH,   /* a boolean of this truth */
    TEST_INTEGER, /* an integer that divides by 2 with this rest */
    TEST_COMPARE,
};

#define KIND(name) (1u << VAL_##name)
#define SEQUENCES  (KIND(STRING) | KIND(LIST) | KIND(TUPLE) | KIND(RANGE) | KIND(DICT))
#define EVERYTHING ((1u << (VAL_LOOP + 1)) - 1)

static const struct {
    const char *name;
    enum test test;
    uint32_t kinds; /* TEST_KIND: bits; TEST_TRUTH, TEST_INTEGER: the value; TEST_COMPARE: the sign */
} tests[] = {
    {"defined", TEST_KIND, EVERYTHING & ~KIND(UNDEFINED)},
    {"undefined", TEST_KIND, KIND(UNDEFINED)},
    {"none", TEST_KIND, KIND(NONE)},
    {"boolean", TEST_KIND, KIND(BOOL)},
    {"integer", TEST_KIND, KIND(INT)},
    {"float", TEST_KIND, KIND(FLOAT)},
    {"number", TEST_KIND, KIND(BOOL) | KIND(INT) | KIND(FLOAT)},
    {"string", TEST_KIND, KIND(STRING)},
    {"mapping", TEST_KIND, KIND(DICT)},
    {"sequence", TEST_KIND, SEQUENCES | KIND(UNDEFINED)},
    {"iterable", TEST_KIND, SEQUENCES | KIND(VIEW) | KIND(ITERATOR) | KIND(UNDEFINED) | KIND(LOOP)},
    {"true", TEST_TRUTH, 1},
    {"false", TEST_TRUTH, 0},
    {"odd", TEST_INTEGER, 1},
    {"even", TEST_INTEGER, 0},
    {"==", TEST_COMPARE, SIGN_EQ},
    {"eq", TEST_COMPARE, SIGN_EQ},
    {"equalto", TEST_COMPARE, SIGN_EQ},
    {"!=", TEST_COMPARE, SIGN_NE},
    {"ne", TEST_COMPARE, SIGN_NE},
    {"<", TEST_COMPARE, SIGN_LT},
    {"lt", TEST_COMPARE, SIGN_LT},
    {"<=", TEST_COMPARE, SIGN_LE},
    {"le", TEST_COMPARE, SIGN_LE},
    {">", TEST_COMPARE, SIGN_GT},
    {"gt", TEST_COMPARE, SIGN_GT},
    {">=", TEST_COMPARE, SIGN_GE},
    {"ge", TEST_COMPARE, SIGN_GE},
    {"in", TEST_COMPARE, SIGN_IN},
};

bool st_apply_test(struct st_render *r, const char *name, const struct st_value *v, const struct st_arguments *args)
{
    const struct st_value *other = st_argument(args, 0, NULL);

    for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
        if (strcmp(tests[i].name, name) != 0)
            continue;
        switch (tests[i].test) {
        case TEST_KIND:
            return (tests[i].kinds >> v->kind & 1) != 0;
        case TEST_TRUTH:
            return v->kind == VAL_BOOL && v->as.truth == (tests[i].kinds != 0);
        case TEST_INTEGER:
            if (v->kind == VAL_INT)
                return (v->as.integer % 2 != 0) == (tests[i].kinds != 0);
            st_render_fail(r, STRATA_E_INPUT, "a test of whether %s can be divided", st_val_type(v));
            return false;
        case TEST_COMPARE:
            if (other != NULL)
                return st_compare_sign(r, (enum st_sign)tests[i].kinds, v, other);
            st_render_fail(r, STRATA_E_INPUT, "the test '%s' needs something to compare with", name);
            return false;
        }
    }
    st_render_fail(r, STRATA_E_NOSYS, "the test '%s' is not supported", name);
    return false;
}
