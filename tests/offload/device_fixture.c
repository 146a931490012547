/* tests/offload/device_fixture.c - see device_fixture.h. */
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"
#include "tests/offload/device_mirror.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

strata_status df_open_timed(struct st_device **out, struct st_op_times *times, const struct st_device_ops *ops,
                            const struct st_device_opts *opts)
{
    strata_status st = ops->open(out, opts);

    if (st != STRATA_OK || times == NULL)
        return st;
    df_ok(st_device_timed_open(out, times));
    st_device_timed_op(*out, 0);
    return STRATA_OK;
}

static void open_device(struct df_device *d, const struct st_device_opts *opts)
{
    const struct st_device_ops *ops = st_device_find(DF_DEVICE);
    strata_status st;

    assert_non_null(ops);
    d->times = NULL;
#ifdef DF_TIMED
    df_ok(st_op_times_create(&d->times, &(struct st_op_times_opts){.records = true}));
#endif
    if (ops == &st_device_cpu_ops)
        st = df_open_timed(&d->dev, d->times, ops, opts);
    else
        st = df_mirror_open(&d->dev, d->times, ops, opts);
    if (st == STRATA_E_NOSYS) {
        fprintf(stderr, "skipped: %s\n", strata_last_error());
        exit(77);
    }
    df_ok(st);
    d->ops = d->dev->ops;
    d->tensors = d->ops->tensors;
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
    st_op_times_destroy(d->times);
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

void *df_random(struct df_device *d, uint64_t elems, strata_dtype dt, uint64_t seed, double scale, double offset)
{
    void *p = df_alloc(d, elems, dt);

    for (uint64_t i = 0; i < elems; i++)
        df_set(p, i, dt, df_uniform(seed, i) * scale + offset);
    return p;
}
