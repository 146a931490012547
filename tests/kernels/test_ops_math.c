/* The functions the ops are made of, against libm in double: exp, log, gelu and its slope; edges and NaN. */
#include "core/cpu.h"
#include "kernels/ops.h"
#include "tests/kernels/kernel_fixture.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define BATCH 4096u

static const struct st_ops *const *usable_ops(void)
{
    static const struct st_ops *tables[3] = {&st_ops_scalar};

#if defined(__x86_64__)
    if ((st_cpu_features() & ST_CPU_AVX2_FMA) != 0)
        tables[1] = &st_ops_avx2;
#endif
    return tables;
}

static void exp_error_is_bounded(void **state)
{
    static float x[BATCH], y[BATCH];

    (void)state;
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        double worst = 0;

        for (uint64_t batch = 0; batch < 500; batch++) {
            for (uint64_t i = 0; i < BATCH; i++)
                x[i] = kf_uniform(batch, i) * 87.0f + 0.8f;
            (*ops)->exp_f32(y, x, BATCH);
            for (uint32_t i = 0; i < BATCH; i++)
                worst = fmax(worst, fabs(y[i] / exp((double)x[i]) - 1));
        }
        assert_true(worst < 0x1p-23 * 0.87);
    }
}

static void exp_edges(void **state)
{
    const float x[] = {0.0f, -0.0f, -INFINITY, INFINITY, NAN, -88.0f, -1e30f, 89.0f, 1e30f, -87.0f, 88.0f};
    float y[sizeof(x) / sizeof(x[0])];

    (void)state;
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->exp_f32(y, x, sizeof(x) / sizeof(x[0]));
        assert_true(y[0] == 1.0f && y[1] == 1.0f);
        assert_true(y[2] == 0.0f && y[3] == INFINITY && isnan(y[4]));
        assert_true(y[5] == 0.0f && y[6] == 0.0f && y[7] == INFINITY && y[8] == INFINITY);
        assert_true(y[9] > 1.6e-38f && y[9] < 1.7e-38f && y[10] > 1.65e38f && y[10] < 1.66e38f);
    }
}

static void log_error_is_bounded(void **state)
{
    (void)state;
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        for (uint64_t i = 0; i < 1000000; i++) {
            const double x = ldexp(1.0 + 0.5 * ((double)kf_uniform(1, i) + 1.0), (int)(kf_bits(2, i) % 60) - 20);

            if (!(fabs((*ops)->log_f64(x) - log(x)) <= 0x1p-50 * fmax(fabs(log(x)), 1.0)))
                fail_msg("log(%a) is %a, not %a", x, (*ops)->log_f64(x), log(x));
        }
        assert_true((*ops)->log_f64(1.0) == 0.0);
        assert_true(isnan((*ops)->log_f64((double)NAN)) && isnan((*ops)->log_f64(-1.0)) && isnan((*ops)->log_f64(0.0)));
        assert_true((*ops)->log_f64((double)INFINITY) == (double)INFINITY);
    }
}

static double gelu_reference(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

/* Central differences, in double. */
static double gelu_slope(double x)
{
    const double h = 1e-5;

    return (gelu_reference(x + h) - gelu_reference(x - h)) / (2 * h);
}

static void gelu_is_right(void **state)
{
    static float x[BATCH], y[BATCH], dx[BATCH], one[BATCH];

    (void)state;
    for (uint32_t i = 0; i < BATCH; i++) {
        x[i] = kf_uniform(3, i) * 12.0f;
        one[i] = 1.0f;
    }
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->gelu_forward(y, x, BATCH, STRATA_F32);
        (*ops)->gelu_backward(dx, one, x, BATCH, STRATA_F32);
        for (uint32_t i = 0; i < BATCH; i++) {
            const double want = gelu_reference((double)x[i]), slope = gelu_slope((double)x[i]);

            if (!(fabs(y[i] - want) <= 1e-6 * fmax(fabs(want), 1e-3)))
                fail_msg("gelu(%.9g) is %.9g, not %.9g", (double)x[i], (double)y[i], want);
            if (!(fabs(dx[i] - slope) <= 2e-6))
                fail_msg("gelu'(%.9g) is %.9g, not %.9g", (double)x[i], (double)dx[i], slope);
        }
    }
}

static void gelu_far_out(void **state)
{
    const float x[] = {-INFINITY, INFINITY, NAN, -1e10f, 1e10f, 0.0f};
    float y[sizeof(x) / sizeof(x[0])];

    (void)state;
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->gelu_forward(y, x, sizeof(x) / sizeof(x[0]), STRATA_F32);
        assert_true(y[1] == INFINITY && isnan(y[2]) && y[3] == 0.0f && y[4] == 1e10f && y[5] == 0.0f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exp_error_is_bounded), cmocka_unit_test(exp_edges),    cmocka_unit_test(log_error_is_bounded),
        cmocka_unit_test(gelu_is_right),        cmocka_unit_test(gelu_far_out),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
