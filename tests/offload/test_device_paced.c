/* The paced device: what its queues promise (order, completion, pace, failures), and its real work against the cpu device bit
 * for bit. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/clock.h"
#include "offload/plan/plan.h"
#include "tests/common/fault_walk.h"
#include "tests/common/test.h"
#include "tests/offload/device_fixture.h"

#include <errno.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct df_device open_unpaced(void)
{
    return df_open_paced(&(struct st_machine){0});
}

/* --- queues --- */

struct marks {
    struct df_device *d;
    const unsigned char *last; /* byte that the work before the mark sets */
    atomic_uint count;
    uint32_t order[64];
    unsigned char seen[64];
    strata_status status[64];
    char reason[64][128];
};

struct mark {
    struct marks *all;
    uint32_t index;
};

static void on_done(void *ctx, strata_status st)
{
    const struct mark *m = ctx;
    const uint32_t at = atomic_load_explicit(&m->all->count, memory_order_relaxed);

    m->all->order[at] = m->index;
    m->all->seen[m->index] = m->all->last != NULL ? m->all->last[m->index] : 0;
    m->all->status[m->index] = st;
    snprintf(m->all->reason[m->index], sizeof(m->all->reason[0]), "%s", st != STRATA_OK ? strata_last_error() : "");
    atomic_store_explicit(&m->all->count, at + 1, memory_order_release);
}

TEST(marks_fire_in_order_after_their_work)
{
    struct df_device d = open_unpaced();
    unsigned char *to = d.ops->arena(d.dev), from[64];
    struct marks all = {.d = &d, .last = to};
    struct mark marks[64];

    for (uint32_t i = 0; i < 64; i++) {
        marks[i] = (struct mark){&all, i};
        from[i] = (unsigned char)(i + 1);
    }
    for (uint32_t i = 0; i < 64; i++) {
        df_ok(d.ops->upload(d.dev, to + i, from + i, 1));
        df_ok(d.ops->notify(d.dev, ST_QUEUE_UPLOAD, on_done, &marks[i]));
    }
    df_ok(d.ops->finish(d.dev, ST_QUEUE_UPLOAD));
    assert_int_equal(atomic_load(&all.count), 64);
    for (uint32_t i = 0; i < 64; i++) {
        assert_int_equal(all.order[i], i);
        assert_int_equal(all.seen[i], i + 1);
        assert_int_equal(all.status[i], STRATA_OK);
    }
    d.ops->close(d.dev);
}

/* More tasks than the ring holds: the caller waits, nothing is lost, close runs what is left. */
TEST(a_full_ring_blocks_the_caller)
{
    struct df_device d = open_unpaced();
    unsigned char *p = d.ops->arena(d.dev);
    unsigned char last = 0;

    memset(p, 7, 2001);
    p[0] = 9;
    for (uint32_t i = 0; i < 2000; i++)
        df_ok(d.ops->copy(d.dev, p + i + 1, p + i, 1)); /* each moves what the one before it left */
    df_ok(d.ops->finish(d.dev, ST_QUEUE_COMPUTE));
    assert_int_equal(p[2000], 9);
    df_ok(d.ops->zero(d.dev, p, 1));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_COMPUTE));
    df_ok(d.ops->download(d.dev, &last, p, 1));
    d.ops->close(d.dev);
    assert_int_equal(last, 0);
}

TEST(copies_arrive_whole)
{
    const uint64_t bytes = (5u << 20) + 3;
    struct df_device d = open_unpaced();
    unsigned char *up = malloc(bytes), *down = calloc(bytes, 1), *at = d.ops->arena(d.dev) + 5;

    assert_true(up != NULL && down != NULL);
    for (uint64_t i = 0; i < bytes; i++)
        up[i] = (unsigned char)df_bits(1, i);
    df_ok(d.ops->upload(d.dev, at, up, bytes));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_UPLOAD));
    df_ok(d.ops->copy(d.dev, at + bytes, at, bytes));
    df_ok(d.ops->zero(d.dev, at, bytes));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_COMPUTE));
    df_ok(d.ops->download(d.dev, down, at + bytes, bytes));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_DOWNLOAD));
    assert_memory_equal(up, down, bytes);
    for (uint64_t i = 0; i < bytes; i++)
        assert_int_equal(at[i], 0);
    df_ok(d.ops->upload(d.dev, at, up, 0));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_UPLOAD));
    free(up);
    free(down);
    d.ops->close(d.dev);
}

static double seconds_since(uint64_t start_ns)
{
    return (double)(st_clock_ns() - start_ns) * 1e-9;
}

/* Lower bounds alone: a loaded machine may take any time longer. */
TEST(nothing_is_faster_than_the_machine)
{
    struct df_device d = df_open_paced(&(struct st_machine){.rates.upload = 200e6, .rates.download = 100e6});
    const uint64_t bytes = 3u << 20, start = st_clock_ns();
    unsigned char *host = calloc(bytes, 1), *at = d.ops->arena(d.dev);

    assert_non_null(host);
    for (uint32_t i = 0; i < 3; i++)
        df_ok(d.ops->upload(d.dev, at, host, i == 2 ? bytes / 3 : bytes));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_UPLOAD));
    assert_true(seconds_since(start) >= (double)(2 * bytes + bytes / 3) / 200e6);
    df_ok(d.ops->download(d.dev, host, at, bytes));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_DOWNLOAD));
    assert_true(seconds_since(start) >= (double)(2 * bytes + bytes / 3) / 200e6 + (double)bytes / 100e6);
    free(host);
    d.ops->close(d.dev);
}

/* An op is what a notice is asked for; each takes its launch, also where it moves nothing. */
TEST(every_op_is_launched)
{
    struct df_device d = df_open_paced(&(struct st_machine){.rates.launch = 2e-3});
    struct marks all = {.d = &d};
    struct mark marks[5];
    const uint64_t start = st_clock_ns();

    for (uint32_t i = 0; i < 5; i++) {
        marks[i] = (struct mark){&all, i};
        df_ok(d.ops->notify(d.dev, ST_QUEUE_COMPUTE, on_done, &marks[i]));
    }
    df_ok(d.ops->finish(d.dev, ST_QUEUE_COMPUTE));
    assert_true(seconds_since(start) >= 5 * 2e-3);
    d.ops->close(d.dev);
}

/* The cpu device's links: the same promise. */
TEST(limited_links_of_the_cpu_device)
{
    const struct st_device_ops *ops = st_device_find("cpu");
    struct st_device_opts opts = {
        .arena_bytes = 1u << 20, .kernels = st_kernels_pick(NULL), .upload_limit = 100e6, .download_limit = 50e6};
    unsigned char *host = malloc(1u << 20);
    struct st_device *dev;
    uint64_t start;

    assert_non_null(host);
    memset(host, 5, 1u << 20);
    df_ok(st_workers_create(&opts.workers, 2, NULL));
    df_ok(ops->open(&dev, &opts));
    start = st_clock_ns();
    for (uint32_t i = 0; i < 4; i++)
        df_ok(ops->upload(dev, ops->arena(dev), host, 1u << 18));
    assert_true(seconds_since(start) >= (1u << 20) / 100e6);
    df_ok(ops->upload(dev, ops->arena(dev), host, 1u << 20));
    memset(host, 0, 1u << 20);
    start = st_clock_ns();
    df_ok(ops->download(dev, host, ops->arena(dev), 1u << 20));
    assert_true(seconds_since(start) >= (1u << 20) / 50e6);
    for (uint32_t i = 0; i < 1u << 20; i++)
        assert_int_equal(host[i], 5);
    ops->close(dev);
    st_workers_destroy(opts.workers);
    free(host);
}

TEST(failures_are_reported_once)
{
    struct df_device d = open_unpaced();
    struct marks all = {.d = &d};
    struct mark marks[3] = {{&all, 0}, {&all, 1}, {&all, 2}};
    unsigned char *p = d.ops->arena(d.dev);

    st_fault_arm(&(struct st_fault_spec){.site = "paced.task", .after = 1, .count = 2, .result = -EIO});
    for (uint32_t i = 0; i < 3; i++) {
        df_ok(d.ops->zero(d.dev, p, 64));
        df_ok(d.ops->zero(d.dev, p, 64));
        df_ok(d.ops->notify(d.dev, ST_QUEUE_COMPUTE, on_done, &marks[i]));
    }
    df_ok(d.ops->finish(d.dev, ST_QUEUE_COMPUTE)); /* the marks took the failures */
    assert_int_equal(st_fault_disarm(), 2);
    assert_int_equal(all.status[0], STRATA_E_IO);
    assert_int_equal(all.status[1], STRATA_E_IO);
    assert_int_equal(all.status[2], STRATA_OK);
    assert_non_null(strstr(all.reason[0], "paced device: a task failed"));

    st_fault_arm(&(struct st_fault_spec){.site = "paced.task", .count = 1, .result = -ENOMEM});
    df_ok(d.ops->zero(d.dev, p, 64));
    assert_int_equal(d.ops->finish(d.dev, ST_QUEUE_COMPUTE), STRATA_E_NOMEM);
    assert_non_null(strstr(strata_last_error(), "paced device: a task failed"));
    df_ok(d.ops->finish(d.dev, ST_QUEUE_COMPUTE));
    st_fault_disarm();
    d.ops->close(d.dev);
}

TEST(open_fails_cleanly)
{
    const struct st_device_ops *ops = st_device_find("paced");
    struct st_machine machine = {0};
    struct st_device_opts opts = {.arena_bytes = 1u << 20, .kernels = st_kernels_pick(NULL)};
    struct st_device *dev = NULL;
    struct fault_walk walk = {.result = -ENOMEM};

    assert_int_equal(ops->open(&dev, &opts), STRATA_E_INVAL);
    assert_null(dev);
    opts.pace = &machine;
    while (fault_walk_next(&walk)) {
        const strata_status st = ops->open(&dev, &opts);

        fault_walk_end(&walk, st);
        if (st == STRATA_OK)
            ops->close(dev);
        else
            assert_int_equal(st, STRATA_E_NOMEM);
    }
    assert_true(walk.runs >= 4); /* the arena and three threads */
    ops->close(NULL);
}

/* --- the real work, against the cpu device --- */

enum { ROWS = 37, COLS = 96, VOCAB = 53, SLICE = 30, ELEMS = 3 * ST_NORM_BLOCK + 77 };

struct work {
    void *table, *rows, *out, *weight, *grad, *rounded;
    float *dtable, *acc, *reduced, *master;
    void *moment1, *moment2;
    int16_t *low_half;
    int32_t *tokens;
    double *sums, *norm2;
    uint64_t *nonfinite, *overflowed;
};

/* One update, from moments that are values in fp32, and 0 in other formats. */
static void do_update(struct df_device *d, struct work *w, strata_dtype dt, enum st_moment_format format)
{
    const struct st_update_coef coef = {.grad_scale = 1,
                                        .beta1 = 0.9f,
                                        .one_minus_beta1 = 0.1f,
                                        .beta2 = 0.99f,
                                        .one_minus_beta2 = 0.01f,
                                        .eps = 1e-8f,
                                        .step_size = 1e-3f,
                                        .vhat_scale = 1,
                                        .decay = 0.99f};
    const bool plain = format == ST_MOMENTS_F32;

    w->moment1 = plain ? df_random(d, ELEMS, STRATA_F32, 7, 1, 0) : df_alloc(d, ELEMS, STRATA_F32);
    w->moment2 = plain ? df_random(d, ELEMS, STRATA_F32, 8, 0.4, 0.5) : df_alloc(d, ELEMS, STRATA_F32);
    /* in storage that ends with the call: the device copies what it names */
    const struct st_moments moments = {format, w->moment1, w->moment2, 3 * ST_NORM_BLOCK};

    df_ok(d->ops->update(d->dev, w->weight, dt == STRATA_BF16 ? w->low_half : NULL, dt == STRATA_F16 ? w->master : NULL, &moments,
                         w->grad, dt, ELEMS, &coef, w->overflowed));
}

static void do_work(struct df_device *d, struct work *w, strata_dtype dt)
{
    const uint32_t row_bytes = COLS * (uint32_t)strata_dtype_bytes(dt);

    w->table = df_random(d, VOCAB * COLS, dt, 1, 1, 0);
    w->rows = df_random(d, ROWS * COLS, dt, 2, 1, 0);
    w->out = df_alloc(d, ROWS * COLS, dt);
    w->dtable = df_random(d, VOCAB * COLS, STRATA_F32, 3, 1, 0);
    w->tokens = df_alloc(d, ROWS, STRATA_F32);
    w->acc = df_random(d, ELEMS, STRATA_F32, 4, 1, 0);
    w->acc[5] = NAN;
    w->reduced = df_random(d, ELEMS, STRATA_F32, 11, 1, 0);
    w->rounded = df_alloc(d, ELEMS, dt);
    w->sums = df_alloc(d, 64, STRATA_F32);
    w->norm2 = df_alloc(d, 2, STRATA_F32);
    w->nonfinite = df_alloc(d, 2, STRATA_F32);
    w->overflowed = df_alloc(d, 2, STRATA_F32);
    w->weight = df_random(d, ELEMS, dt, 5, 1, 0);
    w->grad = df_random(d, ELEMS, dt, 6, 1, 0);
    w->master = df_random(d, ELEMS, STRATA_F32, 9, 1, 0);
    w->low_half = df_alloc(d, ELEMS, STRATA_BF16);
    for (uint32_t i = 0; i < ROWS; i++)
        w->tokens[i] = (int32_t)(df_bits(10, i) % VOCAB);
    *w->norm2 = 3.25;
    for (uint32_t first = 0; first < VOCAB; first += SLICE) {
        const uint32_t count = VOCAB - first < SLICE ? VOCAB - first : SLICE;

        df_ok(
            d->ops->embed_gather(d->dev, w->out, (char *)w->table + first * row_bytes, w->tokens, ROWS, COLS, first, count, dt));
        df_ok(
            d->ops->embed_scatter(d->dev, w->dtable + (uint64_t)first * COLS, w->rows, w->tokens, ROWS, COLS, first, count, dt));
    }
    df_ok(d->ops->reduce(d->dev, w->acc, w->reduced, STRATA_F32, ELEMS));
    df_ok(d->ops->grad_finish(d->dev, w->rounded, dt, w->acc, ELEMS, w->sums, w->norm2, w->nonfinite));
    for (int f = 0; f < ST_MOMENTS_COUNT; f++)
        do_update(d, w, dt, (enum st_moment_format)f);
    df_ok(d->ops->finish(d->dev, ST_QUEUE_COMPUTE));
    df_ok(d->ops->finish(d->dev, ST_QUEUE_UPDATE));
}

TEST(real_work_has_the_cpu_devices_bits)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct df_device cpu, paced = open_unpaced();
        struct work a, b;

        df_open(&cpu, &(struct df_opts){0});
        do_work(&cpu, &a, dt);
        do_work(&paced, &b, dt);
        assert_int_equal(cpu.used, paced.used);
        assert_memory_equal(cpu.ops->arena(cpu.dev), paced.ops->arena(paced.dev), cpu.used);
        assert_int_equal(*b.nonfinite, 1);
        df_close(&cpu);
        paced.ops->close(paced.dev);
    }
}

/* Bytes for which updates are kept waiting: exactly those that they move. */
static double update_bytes;

struct st_op_traffic __real_st_op_traffic(const struct st_op_shape *shape);
struct st_op_traffic __wrap_st_op_traffic(const struct st_op_shape *shape);

struct st_op_traffic __wrap_st_op_traffic(const struct st_op_shape *shape)
{
    const struct st_op_traffic traffic = __real_st_op_traffic(shape);

    update_bytes += shape->op == ST_DEVICE_UPDATE ? traffic.bytes : 0;
    return traffic;
}

TEST(updates_pay_for_what_they_move)
{
    for (strata_dtype dt = STRATA_F32; dt <= STRATA_F16; dt++) {
        struct df_device d = open_unpaced();
        uint64_t moments = 0;
        struct work w;

        update_bytes = 0;
        do_work(&d, &w, dt);
        for (int f = 0; f < ST_MOMENTS_COUNT; f++)
            moments += 2 * st_moment_bytes((enum st_moment_format)f, ELEMS);
        /* moments and 4 bytes of value both ways, the gradient; beside a master the weight, written alone */
        assert_true(update_bytes ==
                    2.0 * (double)moments +
                        (double)ELEMS * ST_MOMENTS_COUNT * (2 * 4 + (double)strata_dtype_bytes(dt) * (dt == STRATA_F16 ? 2 : 1)));
        d.ops->close(d.dev);
    }
}

/* Bytes of passes over the device's memory; updates and the other passes are made by one processor.  Lower bounds alone. */
TEST(passes_take_turns_at_the_memorys_rate)
{
    struct df_device d = df_open_paced(&(struct st_machine){.rates.memory = 20e6});
    const uint64_t start = st_clock_ns();
    struct work w;

    do_work(&d, &w, STRATA_F16);
    /* ROWS rows looked up and scattered, a gradient rounded, three updates of a master by moments in 32, 16 and 8 bits. */
    assert_true(seconds_since(start) >=
                ((double)ROWS * COLS * (4 + 2) + ELEMS * (6.0 + 3 * (2 + 2 + 8) + 2 * (8 + 4 + 2))) / 20e6);
    d.ops->close(d.dev);
}
