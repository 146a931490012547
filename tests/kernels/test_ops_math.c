/* The functions the ops are made of, against libm in double: exp, log, gelu, silu and
 * their slopes; edges and NaN.  fp16 against the conversions of kernels/isa/scalar.h. */
#include "kernels/isa/scalar.h"
#include "kernels/ops/ops.h"
#include "tests/common/test.h"
#include "tests/kernels/kernel_fixture.h"
#include <math.h>
#include <string.h>

#define BATCH 4096u

static const struct st_ops *const *usable_ops(void)
{
    static const struct st_ops *tables[8];

    for (size_t t = 0; st_kernels_usable(t) != NULL; t++)
        tables[t] = st_kernels_usable(t)->ops;
    return tables;
}

TEST(exp_error_is_bounded)
{
    static float x[BATCH], y[BATCH];

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

TEST(exp_edges)
{
    const float x[] = {0.0f, -0.0f, -INFINITY, INFINITY, NAN, -88.0f, -1e30f, 89.0f, 1e30f, -87.0f, 88.0f};
    float y[sizeof(x) / sizeof(x[0])];

    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->exp_f32(y, x, sizeof(x) / sizeof(x[0]));
        assert_true(y[0] == 1.0f && y[1] == 1.0f);
        assert_true(y[2] == 0.0f && y[3] == INFINITY && isnan(y[4]));
        assert_true(y[5] == 0.0f && y[6] == 0.0f && y[7] == INFINITY && y[8] == INFINITY);
        assert_true(y[9] > 1.6e-38f && y[9] < 1.7e-38f && y[10] > 1.65e38f && y[10] < 1.66e38f);
    }
}

TEST(log_error_is_bounded)
{
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

TEST(tanh_is_right)
{
    static float x[BATCH], y[BATCH];

    for (uint32_t i = 0; i < BATCH; i++)
        x[i] = kf_uniform(5, i) * (i % 2 == 0 ? 12.0f : 0.7f);
    x[0] = 0.0f, x[1] = INFINITY, x[2] = -INFINITY, x[3] = NAN, x[4] = 1e-30f, x[5] = 0.625f;
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->tanh_f32(y, x, BATCH);
        for (uint32_t i = 0; i < BATCH; i++) {
            const double want = tanh((double)x[i]);

            if (isnan(x[i]) ? !isnan(y[i]) : !(fabs(y[i] - want) <= 0x1p-22 * fabs(want)))
                fail_msg("tanh(%.9g) is %.9g, not %.9g", (double)x[i], (double)y[i], want);
        }
    }
}

static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

static double gelu_erf(double x)
{
    return 0.5 * x * erfc(-x / sqrt(2));
}

/* loss: of the value, relative to it down to 1e-3. */
static void check_gelu(enum st_activation activation, double (*reference)(double x), double loss)
{
    static float x[BATCH], y[BATCH], dx[BATCH], one[BATCH];
    const double h = 1e-5; /* of a central difference */

    for (uint32_t i = 0; i < BATCH; i++) {
        x[i] = kf_uniform(3, i) * 12.0f;
        one[i] = 1.0f;
    }
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->activation_forward(activation, y, x, BATCH, STRATA_F32);
        (*ops)->activation_backward(activation, dx, one, x, BATCH, STRATA_F32);
        for (uint32_t i = 0; i < BATCH; i++) {
            const double at = (double)x[i], want = reference(at), slope = (reference(at + h) - reference(at - h)) / (2 * h);

            if (!(fabs(y[i] - want) <= loss * fmax(fabs(want), 1e-3)))
                fail_msg("gelu %d (%.9g) is %.9g, not %.9g", (int)activation, at, (double)y[i], want);
            if (!(fabs(dx[i] - slope) <= 2e-6))
                fail_msg("gelu %d'(%.9g) is %.9g, not %.9g", (int)activation, at, (double)dx[i], slope);
        }
    }
}

TEST(gelu_is_right)
{
    check_gelu(ST_GELU_TANH, gelu_tanh, 1e-6);
    check_gelu(ST_GELU_ERF, gelu_erf, 1e-6);
}

TEST(gelu_far_out)
{
    const float x[] = {-INFINITY, INFINITY, NAN, -1e10f, 1e10f, 0.0f, -1e30f, 1e30f};
    const float one[] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
    float y[sizeof(x) / sizeof(x[0])], dx[sizeof(x) / sizeof(x[0])];

    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++)
        for (enum st_activation gelu = ST_GELU_TANH; gelu <= ST_GELU_ERF; gelu++) {
            (*ops)->activation_forward(gelu, y, x, sizeof(x) / sizeof(x[0]), STRATA_F32);
            (*ops)->activation_backward(gelu, dx, one, x, sizeof(x) / sizeof(x[0]), STRATA_F32);
            assert_true(isnan(dx[2]) && dx[3] == 0.0f && dx[4] == 1.0f && dx[5] == 0.5f && dx[6] == 0.0f && dx[7] == 1.0f);
            assert_true(y[1] == INFINITY && isnan(y[2]) && y[3] == 0.0f && y[4] == 1e10f && y[5] == 0.0f);
        }
}

static double silu_reference(double x)
{
    return x / (1 + exp(-x));
}

/* With up = 1 the product is silu and the gradient of the gate its slope. */
TEST(silu_is_right)
{
    static float gate_up[2 * BATCH], y[BATCH], one[BATCH], slope[2 * BATCH];
    const double h = 1e-5;

    for (uint32_t i = 0; i < BATCH; i++) {
        gate_up[i] = kf_uniform(4, i) * 20.0f;
        gate_up[BATCH + i] = one[i] = 1.0f;
    }
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->gated_forward(ST_SILU, y, gate_up, 1, BATCH, STRATA_F32);
        (*ops)->gated_backward(ST_SILU, slope, NULL, one, gate_up, 1, BATCH, STRATA_F32);
        for (uint32_t i = 0; i < BATCH; i++) {
            const double x = (double)gate_up[i], want = silu_reference(x);
            const double want_slope = (silu_reference(x + h) - silu_reference(x - h)) / (2 * h);

            if (!(fabs(y[i] - want) <= 4e-7 * fabs(want)))
                fail_msg("silu(%.9g) is %.9g, not %.9g", x, (double)y[i], want);
            if (!(fabs(slope[BATCH + i] - want) <= 4e-7 * fabs(want)))
                fail_msg("silu(%.9g) of the gradient is %.9g, not %.9g", x, (double)slope[BATCH + i], want);
            if (!(fabs(slope[i] - want_slope) <= 1e-6))
                fail_msg("silu'(%.9g) is %.9g, not %.9g", x, (double)slope[i], want_slope);
        }
    }
}

TEST(silu_far_out)
{
    float gate_up[10] = {1e30f, -1e30f, 200.0f, -200.0f, NAN, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f}, y[5], d[10];
    const float one[5] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f};

    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->gated_forward(ST_SILU, y, gate_up, 1, 5, STRATA_F32);
        (*ops)->gated_backward(ST_SILU, d, NULL, one, gate_up, 1, 5, STRATA_F32);
        assert_true(y[0] == 1e30f && y[1] == 0.0f && y[2] == 200.0f && y[3] == 0.0f && isnan(y[4]));
        assert_true(d[0] == 1.0f && d[1] == 0.0f && d[2] == 1.0f && d[3] == 0.0f && isnan(d[4]));
        assert_true(d[5] == 1e30f && d[6] == 0.0f && d[7] == 200.0f && d[8] == 0.0f && isnan(d[9]));
    }
}

/* Every fp16 pattern. */
TEST(fp16_widens_exactly)
{
    static uint16_t x[65536];
    static float y[65536];

    for (uint32_t i = 0; i < 65536; i++)
        x[i] = (uint16_t)i;
    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        (*ops)->widen_rows(y, 65536, x, 65536, 1, 65536, STRATA_F16);
        for (uint32_t i = 0; i < 65536; i++) {
            if (isnan(y[i]))
                assert_true((i & 0x7fffu) > 0x7c00u);
            else
                assert_int_equal(st_f32_bits(y[i]), st_f32_bits(st_f16_to_f32((uint16_t)i)));
        }
    }
}

/* Patterns all over the range, and every one near the ties of small numbers. */
TEST(fp16_rounds_once)
{
    static float x[BATCH];
    static uint16_t y[BATCH];

    for (const struct st_ops *const *ops = usable_ops(); *ops != NULL; ops++) {
        for (uint32_t batch = 0; batch < 512; batch++) {
            for (uint32_t i = 0; i < BATCH; i++)
                x[i] = st_f32_from_bits(i % 8 == 0 && batch == 0 ? kf_special[i / 8 % KF_SPECIAL_COUNT]
                                        : batch % 2 == 0         ? (batch * BATCH + i) * 2053u
                                                                 : 0x33000000u + (kf_bits(batch, i) & 0x9fffffffu) % 0x15000000u);
            (*ops)->round_rows(y, BATCH, x, BATCH, 1, BATCH, STRATA_F16);
            for (uint32_t i = 0; i < BATCH; i++)
                if (y[i] != st_f32_to_f16(x[i]))
                    fail_msg("%s: %08x rounds to %04x, not %04x", (*ops)->name, st_f32_bits(x[i]), y[i], st_f32_to_f16(x[i]));
        }
    }
}
