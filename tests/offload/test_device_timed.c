/* tests/offload/test_device_timed.c - the timed device: what is counted, in which class, when it ran.
 *
 * Compiled with DF_DEVICE, another device's name, as device_fixture.h is; needs no tensors on the host. */
#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/workers.h"
#include "core/trace/trace.h"
#include "offload/device/device_timed.h"
#include "offload/device/tensor_ops.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef DF_DEVICE
#define DF_DEVICE "cpu"
#endif

#define ARENA     (1u << 20)
#define RECORDS   20000u
#define OP        7u
#define MANY      5000u /* more than the stamps of any queue */
#define MANY_ROWS 600u  /* more shapes than there are classes */

struct timed {
    struct st_workers *workers;
    struct st_trace *trace;
    struct st_op_times *times;
    struct st_device *dev;
    unsigned char *arena;
    uint64_t opened_ns;
};

static void ok(strata_status st)
{
    if (st != STRATA_OK)
        fail_msg("%s", strata_last_error());
}

/* Without a GPU there is nothing to test. */
static void open_or_skip(struct st_device **dev, const struct st_device_opts *opts)
{
    const strata_status st = st_device_find(DF_DEVICE)->open(dev, opts);

    if (st == STRATA_E_NOSYS) {
        fprintf(stderr, "skipped: %s\n", strata_last_error());
        exit(77);
    }
    ok(st);
}

static void open_timed(struct timed *t)
{
    const struct st_trace_opts trace = {.steps_max = 1, .records_per_step = RECORDS, .bytes_max = UINT64_MAX};
    struct st_device_opts opts = {.arena_bytes = ARENA, .kernels = st_kernels_pick(NULL)};

    ok(st_workers_create(&t->workers, 2, NULL));
    ok(st_trace_create(&t->trace, &trace));
    ok(st_op_times_create(&t->times, &(struct st_op_times_opts){.table_rows = 100, .trace = t->trace, .records = true}));
    opts.workers = t->workers;
    open_or_skip(&t->dev, &opts);
    t->opened_ns = st_clock_ns();
    ok(st_device_timed_open(&t->dev, t->times));
    st_device_timed_op(t->dev, OP);
    t->arena = t->dev->ops->arena(t->dev);
    assert_non_null(st_trace_cycle(t->trace, 1, 0, t->opened_ns));
}

static void close_timed(struct timed *t)
{
    t->dev->ops->close(t->dev);
    st_op_times_destroy(t->times);
    st_trace_destroy(t->trace);
    st_workers_destroy(t->workers);
}

static void zero(struct timed *t, uint64_t bytes)
{
    ok(t->dev->ops->zero(t->dev, t->arena, bytes));
}

static void multiply(struct timed *t, uint32_t m)
{
    const struct st_matmul mm = {
        .m = m, .n = 32, .k = 16, .lda = 16, .ldb = 32, .ldc = 32, .ab_dtype = STRATA_F32, .c_dtype = STRATA_F32};

    ok(t->dev->ops->tensors->matmul(t->dev, &mm, t->arena, t->arena + 65536, t->arena + 131072, NULL));
}

/* The class of an op that has this many rows and columns; 0, 0: of several shapes. */
static const struct st_op_class *class_of(const struct timed *t, enum st_device_op op, uint64_t rows, uint64_t cols)
{
    for (uint32_t i = 0; i < ST_OP_CLASSES; i++) {
        const struct st_op_class *c = st_op_times_at(t->times, i);

        if (c->shape.op == op && c->shape.rows == rows && c->shape.cols == cols)
            return c;
    }
    fail_msg("no class of %s with %u x %u", st_device_op_rows[op].name, (unsigned)rows, (unsigned)cols);
    return NULL;
}

static uint64_t all_calls(const struct timed *t)
{
    uint64_t calls = 0;

    for (uint32_t i = 0; i < ST_OP_CLASSES; i++)
        calls += st_op_times_at(t->times, i)->calls;
    return calls;
}

TEST(calls_are_counted_by_shape)
{
    struct timed t;
    unsigned char host[512];
    const struct st_op_class *c;

    open_timed(&t);
    for (uint32_t i = 0; i < 3; i++)
        zero(&t, 4096);
    zero(&t, 64);
    ok(t.dev->ops->tensors->zero(t.dev, t.arena, 64));
    ok(t.dev->ops->copy(t.dev, t.arena + 4096, t.arena, 4096));
    multiply(&t, 8);
    multiply(&t, 8);
    multiply(&t, 24);
    ok(t.dev->ops->finish(t.dev, ST_QUEUE_COMPUTE));
    ok(t.dev->ops->upload(t.dev, t.arena, host, sizeof(host)));
    ok(t.dev->ops->finish(t.dev, ST_QUEUE_UPLOAD));
    ok(t.dev->ops->download(t.dev, host, t.arena, sizeof(host)));
    ok(st_device_timed_collect(t.dev));
    assert_int_equal(all_calls(&t), 11);
    c = class_of(&t, ST_DEVICE_ZERO, 1, 4096);
    assert_true(c->calls == 3 && c->bytes == 3 * 4096 && c->flops == 0 && c->queue == ST_QUEUE_COMPUTE && c->ns > 0);
    assert_true(class_of(&t, ST_DEVICE_ZERO, 1, 64)->calls == 2); /* of either table */
    assert_true(class_of(&t, ST_DEVICE_COPY, 1, 4096)->bytes == 8192);
    c = class_of(&t, ST_DEVICE_MATMUL, 8, 32);
    assert_true(c->calls == 2 && c->flops == 2 * 2 * 8 * 32 * 16 && c->ns > 0);
    assert_true(c->bytes == 2 * 4 * (8 * 16 + 16 * 32 + 8 * 32));
    assert_true(class_of(&t, ST_DEVICE_MATMUL, 24, 32)->calls == 1);
    assert_true(class_of(&t, ST_DEVICE_UPLOAD, 1, 512)->queue == ST_QUEUE_UPLOAD);
    assert_true(class_of(&t, ST_DEVICE_DOWNLOAD, 1, 512)->queue == ST_QUEUE_DOWNLOAD);
    close_timed(&t);
}

/* What an op reads or writes beside its usual operands counts: a residual, gradients of weights, what C holds, a bias, aux. */
TEST(optional_operands_count)
{
    enum { ROWS = 8, COLS = 32 };
    struct st_rmsnorm norm = {.rows = ROWS, .heads = 1, .cols = COLS, .stride = COLS, .eps = 1e-5f, .dt = STRATA_F32};
    const struct st_matmul base = {
        .m = ROWS, .n = COLS, .k = 16, .lda = 16, .ldb = COLS, .ldc = COLS, .ab_dtype = STRATA_F32, .c_dtype = STRATA_F32};
    const struct st_tensor_ops *o;
    double bytes[8] = {0};
    struct timed t;
    float *at[8];

    open_timed(&t);
    o = t.dev->ops->tensors;
    for (uint32_t i = 0; i < 8; i++)
        at[i] = (float *)(void *)(t.arena + 8192 * i);
    for (uint32_t i = 0; i < 8; i++) { /* bit 0: a residual; bit 1: gradients; bit 2: LayerNorm */
        float *residual = (i & 1) != 0 ? at[6] : NULL, *dweight = (i & 2) != 0 ? at[4] : NULL;

        norm.rows = ROWS + i; /* a class of its own */
        if ((i & 4) != 0)
            ok(o->layernorm_backward(t.dev, at[0], dweight, dweight != NULL ? at[5] : NULL, at[1], STRATA_F32, at[2], at[3],
                                     at[7], residual, ROWS + i, COLS, STRATA_F32));
        else
            ok(o->rmsnorm_backward(t.dev, &norm, at[0], dweight, at[1], STRATA_F32, at[2], at[3], at[7], residual));
    }
    for (uint32_t i = 0; i < 2; i++) { /* a sum before the norm: its second term and itself */
        void *const sum = i == 1 ? at[4] : NULL;

        norm.rows = ROWS + i;
        ok(o->layernorm_forward(t.dev, at[0], at[3], at[2], at[7], at[7], sum, sum, ROWS + i, COLS, 1e-5f, STRATA_F32));
        ok(o->rmsnorm_forward(t.dev, &norm, at[0], at[3], at[2], at[7], sum, sum));
    }
    ok(st_device_timed_collect(t.dev));
    for (uint32_t i = 0; i < 2; i++) {
        assert_true(class_of(&t, ST_DEVICE_LAYERNORM_FORWARD, ROWS + i, COLS)->bytes ==
                    4.0 * COLS * ((ROWS + i) * (2 + 2 * i) + 2) + 8.0 * (ROWS + i));
        assert_true(class_of(&t, ST_DEVICE_RMSNORM_FORWARD, ROWS + i, COLS)->bytes ==
                    4.0 * COLS * ((ROWS + i) * (2 + 2 * i) + 1) + 4.0 * (ROWS + i));
    }
    for (uint32_t i = 0; i < 8; i++) {
        const struct st_op_class *c =
            class_of(&t, (i & 4) != 0 ? ST_DEVICE_LAYERNORM_BACKWARD : ST_DEVICE_RMSNORM_BACKWARD, ROWS + i, COLS);

        assert_true(c->calls == 1 && c->shape.frozen == ((i & 2) == 0));
        /* of each row; then dx, dy and x of each element, and the residual */
        bytes[i] = c->bytes - (double)(ROWS + i) * COLS * 4 * (3 + (i & 1));
    }
    for (uint32_t i = 0; i < 8; i++) { /* sums are read and written: one of them or two */
        const double sums = (i & 2) != 0 ? COLS * 8.0 * ((i & 4) != 0 ? 2 : 1) : 0;
        const double row = (bytes[(i & 4) + 1] - bytes[i & 4]), own = bytes[i & 4] - row * (ROWS + (i & 4));

        assert_true(bytes[i] == own + row * (ROWS + i) + sums);
    }
    for (uint32_t i = 0; i < 6; i++) {
        static const enum st_epilogue epilogues[6] = {
            [3] = ST_EPILOGUE_GELU, [4] = ST_EPILOGUE_GELU_INPUT, [5] = ST_EPILOGUE_GELU_BACKWARD};
        const uint32_t outs = i == 2 || i == 3 || i == 5 ? 2 : 1; /* C is read and written, or C and aux */
        struct st_matmul mm = base;

        mm.m += 8 * i;
        mm.bias = i == 1;
        mm.accumulate = i == 2;
        mm.epilogue = epilogues[i];
        mm.aux = mm.epilogue != ST_EPILOGUE_NONE ? at[5] : NULL;
        ok(o->matmul(t.dev, &mm, at[0], at[1], at[2], mm.bias ? at[4] : NULL));
        ok(st_device_timed_collect(t.dev));
        assert_true(class_of(&t, ST_DEVICE_MATMUL, mm.m, COLS)->bytes ==
                    4.0 * (mm.m * 16 + 16 * COLS + mm.m * COLS * outs + (i == 1 ? COLS : 0)));
    }
    close_timed(&t);
}

/* Rows of all sequences; columns of all heads, and of those of keys and values. */
TEST(attention_says_its_heads)
{
    const struct st_attention at = {.batch = 2,
                                    .seq = 16,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 8,
                                    .qkv_stride = 64,
                                    .out_stride = 32,
                                    .dt = STRATA_F32,
                                    .window = 5};
    const struct st_op_class *c;
    struct timed t;

    open_timed(&t);
    assert_true(t.dev->ops->tensors->attention_workspace(&at, 2) < ARENA / 2);
    ok(t.dev->ops->tensors->attention_forward(t.dev, &at, t.arena, (float *)(void *)(t.arena + 8192), t.arena + 16384,
                                              t.arena + ARENA / 2));
    ok(st_device_timed_collect(t.dev));
    c = class_of(&t, ST_DEVICE_ATTENTION_FORWARD, 32, 32);
    assert_true(c->shape.kv_cols == 16 && c->shape.heads == 4 && c->shape.positions == 16);
    assert_true(c->shape.depth == (1 + 2 + 3 + 4 + 12 * 5) / 16.0);
    close_timed(&t);
}

/* In the order of the calls, one after the other, between the clock before and after; the same times as the classes have. */
TEST(calls_ran_when_the_trace_says)
{
    struct st_trace_count count;
    struct timed t;
    uint64_t before, ns = 0, last;

    open_timed(&t);
    for (uint32_t i = 0; i < MANY; i++)
        zero(&t, 64 * (1 + i % 2));
    ok(st_device_timed_collect(t.dev));
    st_trace_count(t.trace, &count);
    assert_true(count.records == 1 + MANY && count.dropped == 0);
    before = t.opened_ns;
    for (uint64_t i = 1; i < count.records; i++) {
        const struct st_trace_record *r = st_trace_at(t.trace, i);

        assert_true(r->kind == ST_TRACE_CALL && r->cause == OP);
        assert_true(st_op_times_at(t.times, r->item) == class_of(&t, ST_DEVICE_ZERO, 1, 64 * (1 + (i - 1) % 2)));
        assert_true(r->start_ns + 1000 >= before && r->end_ns >= r->start_ns); /* an event's time is rounded */
        before = r->end_ns;
        ns += r->end_ns - r->start_ns;
    }
    last = st_clock_ns();
    assert_true(before <= last + 1000);
    assert_true(ns == class_of(&t, ST_DEVICE_ZERO, 1, 64)->ns + class_of(&t, ST_DEVICE_ZERO, 1, 128)->ns);
    close_timed(&t);
}

TEST(only_what_is_asked_for_is_recorded)
{
    struct timed t;

    open_timed(&t);
    st_op_times_record(t.times, false);
    zero(&t, 64);
    st_op_times_record(t.times, true);
    st_device_timed_op(t.dev, ST_NO_CLASS);
    zero(&t, 64);
    ok(st_device_timed_collect(t.dev));
    assert_int_equal(all_calls(&t), 0);
    st_device_timed_op(t.dev, OP);
    zero(&t, 64);
    ok(st_device_timed_collect(t.dev));
    assert_int_equal(all_calls(&t), 1);
    close_timed(&t);
}

TEST(shapes_beyond_the_classes_share_one)
{
    const struct st_op_class *shared;
    struct timed t;
    char text[ST_OP_SHAPE_TEXT];

    open_timed(&t);
    for (uint32_t i = 1; i <= MANY_ROWS; i++)
        zero(&t, 4 * i);
    multiply(&t, 8);
    ok(st_device_timed_collect(t.dev));
    shared = class_of(&t, ST_DEVICE_ZERO, 0, 0);
    assert_int_equal(shared->calls, MANY_ROWS - ST_OP_CLASSES_OWN);
    assert_true(shared->bytes == 2.0 * (MANY_ROWS * (MANY_ROWS + 1.0) - ST_OP_CLASSES_OWN * (ST_OP_CLASSES_OWN + 1.0)));
    assert_true(shared->ns > 0);
    assert_string_equal(st_op_shape_text(text, &shared->shape), "other shapes");
    assert_true(class_of(&t, ST_DEVICE_MATMUL, 0, 0)->flops == 2 * 8 * 32 * 16);
    assert_int_equal(all_calls(&t), MANY_ROWS + 1);
    close_timed(&t);
}

/* A slice has its part of the tokens: 25 of 100 rows. */
TEST(slices_of_the_table_have_their_part_of_the_rows)
{
    static const int32_t tokens[40] = {0};
    struct timed t;

    open_timed(&t);
    ok(t.dev->ops->upload(t.dev, t.arena, tokens, sizeof(tokens)));
    ok(t.dev->ops->finish(t.dev, ST_QUEUE_UPLOAD));
    ok(t.dev->ops->embed_gather(t.dev, t.arena + 4096, t.arena + 65536, (const int32_t *)(void *)t.arena, 40, 32, 0, 25,
                                STRATA_F32));
    ok(t.dev->ops->embed_scatter(t.dev, (float *)(void *)(t.arena + 65536), t.arena + 4096, (const int32_t *)(void *)t.arena, 40,
                                 32, 0, 5, STRATA_F32));
    ok(st_device_timed_collect(t.dev));
    assert_true(class_of(&t, ST_DEVICE_EMBED_GATHER, 10, 32)->bytes == 10 * (2 * 128 + 4));
    assert_true(class_of(&t, ST_DEVICE_EMBED_SCATTER, 2, 32)->bytes == 2 * (128 + 4) + 2 * 2 * 128);
    close_timed(&t);
}

TEST(a_device_that_waits_cannot_be_timed)
{
    struct st_device inner = {.ops = &st_device_paced_ops}, *dev = &inner;
    struct st_op_times *times;

    ok(st_op_times_create(&times, &(struct st_op_times_opts){0}));
    assert_int_equal(st_device_timed_open(&dev, times), STRATA_E_NOSYS);
    assert_non_null(strstr(strata_last_error(), "paced"));
    assert_ptr_equal(dev, &inner);
    st_op_times_destroy(times);
}

/* The state of Adam has one moment more than that of SGD. */
TEST(updates_count_their_moments)
{
    static const struct st_update_coef coefs[] = {{.rule = ST_RULE_SGD, .grad_scale = 1},
                                                  {.rule = ST_RULE_ADAM, .grad_scale = 1}};
    double bytes[2];
    struct timed t;

    open_timed(&t);
    zero(&t, ARENA);
    for (uint32_t adam = 0; adam < 2; adam++) {
        const uint64_t elems = 1024 << adam; /* a class each */
        const struct st_moments moments = {.moment1 = t.arena + 65536, .moment2 = adam ? t.arena + 131072 : NULL};

        ok(t.dev->ops->update(t.dev, t.arena, (int16_t *)(void *)(t.arena + 16384), NULL, &moments, t.arena + 32768, STRATA_BF16,
                              elems, &coefs[adam], (uint64_t *)(void *)(t.arena + 262144)));
        ok(t.dev->ops->finish(t.dev, ST_QUEUE_UPDATE));
        ok(st_device_timed_collect(t.dev));
        bytes[adam] = class_of(&t, ST_DEVICE_UPDATE, 1, elems)->bytes / (double)elems;
    }
    assert_true(bytes[1] - bytes[0] == 2 * sizeof(float));
    close_timed(&t);
}
