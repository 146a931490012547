/* tests/offload/device_values.c - see device_values.h. */
#include "tests/common/test.h"
#include "tests/offload/device_values.h"
#include "kernels/isa/scalar.h"
#include <math.h>
#include <stdlib.h>

uint64_t df_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u; /* splitmix64 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

double df_uniform(uint64_t seed, uint64_t index)
{
    return (double)(df_bits(seed, index) >> 11) * 0x1p-52 - 1;
}

double df_at(const void *p, uint64_t i, strata_dtype dt)
{
    return (double)st_load_f32(p, dt, i);
}

void df_set(void *p, uint64_t i, strata_dtype dt, double x)
{
    const float rounded = (float)x;

    if (dt == STRATA_F32)
        ((float *)p)[i] = rounded;
    else
        ((uint16_t *)p)[i] = dt == STRATA_BF16 ? st_f32_to_bf16(rounded) : st_f32_to_f16(rounded);
}

double *df_doubles(const void *p, uint64_t elems, strata_dtype dt)
{
    double *out = malloc(elems * sizeof(*out) + 1);

    assert_non_null(out);
    for (uint64_t i = 0; i < elems; i++)
        out[i] = df_at(p, i, dt);
    return out;
}

void df_assert_close(const char *what, const void *got, strata_dtype dt, const double *want, uint64_t elems, double tolerance)
{
    double size = 0;

    for (uint64_t i = 0; i < elems; i++)
        size = fmax(size, fabs(want[i]));
    for (uint64_t i = 0; i < elems; i++)
        if (!(fabs(df_at(got, i, dt) - want[i]) <= tolerance * size))
            fail_msg("%s: element %llu is %.9g, not %.9g (largest %.3g)", what, (unsigned long long)i, df_at(got, i, dt), want[i],
                     size);
}

double df_tolerance(strata_dtype dt)
{
    return dt == STRATA_BF16 ? 1.2e-2 : dt == STRATA_F16 ? 1.5e-3 : 4e-6;
}

double df_slope(double (*loss)(void *of), void *of, double *at)
{
    const double kept = *at;
    double up, down;

    *at = kept + DF_STEP;
    up = loss(of);
    *at = kept - DF_STEP;
    down = loss(of);
    *at = kept;
    return (up - down) / (2 * DF_STEP);
}
