/* test_finite - NaN and infinity in weights are found in every dtype, with their tensor's name, and the largest numbers are none.
 */
#include "model_fixture.h"
#include "tests/common/shape.h"

#include <float.h>
#include <math.h>

/* The same value in each dtype, and whether it is a number. */
static const struct {
    float f32;
    uint16_t bf16, f16;
    bool finite;
} values[] = {
    {0.0f, 0, 0, true},
    {FLT_MAX, 0x7f7f, 0x7bff, true}, /* each dtype's largest */
    {-FLT_MAX, 0xff7f, 0xfbff, true},
    {FLT_TRUE_MIN, 0x0001, 0x0001, true},
    {INFINITY, 0x7f80, 0x7c00, false},
    {-INFINITY, 0xff80, 0xfc00, false},
    {NAN, 0x7fc0, 0x7e00, false},
};

static void put(void *weights, uint64_t at, strata_dtype dtype, size_t value)
{
    if (dtype == STRATA_F32)
        memcpy((float *)weights + at, &values[value].f32, sizeof(float));
    else
        ((uint16_t *)weights)[at] = dtype == STRATA_BF16 ? values[value].bf16 : values[value].f16;
}

TEST(every_value_of_every_dtype)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};

    for (size_t d = 0; d < sizeof(dtypes) / sizeof(dtypes[0]); d++) {
        struct st_model *m = tiny_model(dtypes[d]);
        const struct st_workload *w = st_model_workload(m);
        const struct st_page *page = &w->pages[shape_of(w).norm_page];
        void *weights = calloc(page->elems, sizeof(float));

        assert_non_null(weights);
        for (size_t v = 0; v < sizeof(values) / sizeof(values[0]); v++) {
            put(weights, page->groups[0].offset, dtypes[d], v);
            if (values[v].finite)
                assert_ok(st_model_check_finite(m, shape_of(w).norm_page, 0, page->elems, weights));
            else
                assert_refused(st_model_check_finite(m, shape_of(w).norm_page, 0, page->elems, weights), STRATA_E_NUMERICS,
                               "tensor transformer.ln_f.weight holds 1 value that is not finite");
        }
        free(weights);
        st_model_destroy(m);
    }
}

/* Only the range that is given counts, and of it what a tensor holds. */
TEST(ranges_and_padding)
{
    struct st_model *m = tiny_model(STRATA_F32);
    const struct st_workload *w = st_model_workload(m);
    const struct st_page *page = &w->pages[shape_of(w).norm_page];
    const uint64_t end = page->groups[0].offset + page->groups[0].elems;
    float *weights = calloc(page->elems, sizeof(*weights));

    assert_non_null(weights);
    assert_true(end < page->elems); /* padding follows */
    weights[end] = NAN;
    assert_ok(st_model_check_finite(m, shape_of(w).norm_page, 0, page->elems, weights));
    weights[end - 1] = NAN;
    weights[end - 2] = INFINITY;
    assert_ok(st_model_check_finite(m, shape_of(w).norm_page, 0, end - 2, weights));
    assert_refused(st_model_check_finite(m, shape_of(w).norm_page, end - 2, 2, weights + end - 2), STRATA_E_NUMERICS,
                   "holds 2 values that are not finite");
    free(weights);
    st_model_destroy(m);
}
