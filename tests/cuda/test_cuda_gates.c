/* Gates of every pattern of 16 bits, of which exp and 1 / x are approximations, against doubles: rounded once from near the true
 * value, its slope too, and one value in forward and backward. */
#include "kernels/cuda/cuda_ops.h"
#include "tests/common/test.h"
#include "tests/cuda/ops_fixture.h"
#include "tests/offload/device_values.h"
#include <math.h>

#define PATTERNS 65536u

static double sigmoid_of(enum st_activation activation, double x)
{
    return 1 / (1 + exp(-(activation == ST_SILU ? x : 2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))));
}

/* x s, and s + x s (1 - s) v' with v = x or 2u. */
static void want_gate(enum st_activation activation, double x, double *value, double *slope)
{
    const double s = sigmoid_of(activation, x), rest = sigmoid_of(activation, -x);
    const double dv = activation == ST_SILU ? 1 : 2 * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);

    *value = x * s;
    *slope = s + x * s * rest * dv;
}

/* Half a unit of the dtype for its rounding, an eighth for the approximation. */
static bool rounds_to(double got, double want, double slack, strata_dtype dt)
{
    const double most = dt == STRATA_F16 ? 65504 : 0x1.fep127;

    if (fabs(want) > most)
        return isinf(got) || fabs(got) == most;
    return fabs(got - want) <= 0.625 * ops_ulp(want, dt) + slack;
}

static void check_every_gate(enum st_activation activation, strata_dtype dt)
{
    struct cf_buffer gate_up = cf_create(2 * PATTERNS * 2, 0), dy = cf_create(PATTERNS * 2, 0), y = cf_create(PATTERNS * 2, 0);
    struct cf_buffer left = cf_create(PATTERNS * 2, 0), d = cf_create(2 * PATTERNS * 2, 0);

    for (uint32_t i = 0; i < PATTERNS; i++) {
        ((uint16_t *)(void *)gate_up.host)[i] = (uint16_t)i;
        df_set(gate_up.host, PATTERNS + i, dt, 1);
        df_set(dy.host, i, dt, 1);
    }
    cf_upload(&gate_up);
    cf_upload(&dy);
    cf_ok(st_cuda_gated_forward(NULL, activation, y.device, gate_up.device, 1, PATTERNS, dt));
    cf_ok(st_cuda_gated_backward(NULL, activation, d.device, left.device, dy.device, gate_up.device, 1, PATTERNS, dt));
    cf_ok(cudaDeviceSynchronize());
    cf_download(&y);
    cf_download(&left);
    cf_download(&d);
    assert_memory_equal(left.host, y.host, PATTERNS * 2);
    assert_memory_equal(d.host + PATTERNS * 2, y.host, PATTERNS * 2); /* of up, for dy and up of 1 */
    for (uint32_t i = 0; i < PATTERNS; i++) {
        const double x = df_at(gate_up.host, i, dt), got = df_at(y.host, i, dt), got_slope = df_at(d.host, i, dt);
        double value, slope;

        want_gate(activation, x, &value, &slope);
        if (isnan(x) || isinf(x) ? !isnan(got_slope) || (isinf(x) && x > 0 ? got != x : !isnan(got))
                                 : !rounds_to(got, value, 0x1p-118, dt) || !rounds_to(got_slope, slope, 0x1p-20, dt))
            fail_msg("activation %d dtype %d of %.9g: %.9g, slope %.9g, not %.9g, %.9g", (int)activation, (int)dt, x, got,
                     got_slope, value, slope);
    }
    cf_destroy(&gate_up), cf_destroy(&dy), cf_destroy(&y), cf_destroy(&left), cf_destroy(&d);
}

TEST(test_every_gate)
{
    for (strata_dtype dt = STRATA_BF16; dt <= STRATA_F16; dt++) {
        check_every_gate(ST_SILU, dt);
        check_every_gate(ST_GELU_TANH, dt);
    }
}
