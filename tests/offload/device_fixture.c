/* tests/offload/device_fixture.c - see device_fixture.h. */
#include "tests/offload/device_fixture.h"
#include "tests/offload/device_mirror.h"
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void open_device(struct df_device *d, const struct st_device_opts *opts)
{
    const struct st_device_ops *ops = st_device_find(DF_DEVICE);
    strata_status st;

    assert_non_null(ops);
    if (ops == &st_device_cpu_ops)
        st = ops->open(&d->dev, opts);
    else
        st = df_mirror_open(&d->dev, ops, opts);
    if (st == STRATA_E_NOSYS) {
        fprintf(stderr, "skipped: %s\n", strata_last_error());
        exit(77);
    }
    df_ok(st);
    d->ops = d->dev->ops;
}

void df_open(struct df_device *d, const struct df_opts *opts)
{
    struct st_device_opts dev_opts = {.arena_bytes = opts->arena_bytes != 0 ? opts->arena_bytes : 16u << 20,
                                      .kernels = st_kernels_pick(opts->kernels),
                                      .widen_bf16 = opts->widen_bf16};

    assert_non_null(dev_opts.kernels);
    df_ok(st_workers_create(&d->workers, opts->workers != 0 ? opts->workers : 2, NULL));
    dev_opts.workers = d->workers;
    open_device(d, &dev_opts);
    d->used = 0;
    d->bytes = dev_opts.arena_bytes;
}

void df_close(struct df_device *d)
{
    d->ops->close(d->dev);
    st_workers_destroy(d->workers);
}

struct df_device df_open_paced(const struct st_machine *machine)
{
    struct df_device d = {.ops = st_device_find("paced"), .bytes = 16u << 20};
    const struct st_device_opts opts = {.arena_bytes = d.bytes, .kernels = st_kernels_pick(NULL), .pace = machine};

    assert_non_null(d.ops);
    df_ok(d.ops->open(&d.dev, &opts));
    return d;
}

void df_each_dtype(void (*check)(struct df_device *d, strata_dtype dt))
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct df_device d;

        df_open(&d, &(struct df_opts){0});
        check(&d, dt);
        df_close(&d);
    }
}

void *df_alloc(struct df_device *d, uint64_t elems, strata_dtype dt)
{
    const uint64_t bytes = (elems * strata_dtype_bytes(dt) + 63) / 64 * 64;
    void *p = d->ops->arena(d->dev) + d->used;

    assert_true(d->used + bytes <= d->bytes);
    d->used += bytes;
    df_mirror_use(d->dev, d->used);
    memset(p, 0, bytes);
    return p;
}

uint64_t df_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0xd1342543de82ef95u + (index + 1) * 0x9e3779b97f4a7c15u; /* splitmix64 */

    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void *df_random(struct df_device *d, uint64_t elems, strata_dtype dt, uint64_t seed, double scale, double offset)
{
    const struct st_kernels *scalar = st_kernels_pick("scalar");
    void *p = df_alloc(d, elems, dt);

    for (uint64_t i = 0; i < elems; i++) {
        const float x = (float)(((double)(df_bits(seed, i) >> 11) * 0x1p-52 - 1) * scale + offset);

        if (dt == STRATA_BF16)
            scalar->f32_to_bf16((uint16_t *)p + i, &x, 1);
        else if (dt == STRATA_F16)
            scalar->f32_to_f16((uint16_t *)p + i, &x, 1);
        else
            ((float *)p)[i] = x;
    }
    return p;
}

double df_at(const void *p, uint64_t i, strata_dtype dt)
{
    float x;

    if (dt == STRATA_F32)
        return ((const float *)p)[i];
    if (dt == STRATA_BF16)
        st_kernels_pick("scalar")->bf16_to_f32(&x, (const uint16_t *)p + i, 1);
    else
        st_kernels_pick("scalar")->f16_to_f32(&x, (const uint16_t *)p + i, 1);
    return x;
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
