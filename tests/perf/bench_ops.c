/* tests/perf/bench_ops.c - how much of the processor the decoder's ops reach at GPT-2's and nano's shapes.
 *
 * Matmul: GF/s of the op, in blocks over all workers; the roof is the same product as one library call on one thread, times the
 * workers.  Attention counts the whole square, as the model's FLOPs do, though half of it is not computed. Other ops: ns per
 * element for every table of kernels, and the ratio of the bytes per second that they must move (whole tensors, read or written
 * once per pass) to the rate of the device's copy of as many elements.
 *
 *     bench_ops [WORKERS [REPEATS]]      prints minimum and median of the repeats; tables take turns, and minimum times count */
#include "core/system/clock.h"
#include "core/system/workers.h"
#include "offload/device/device.h"
#include "offload/device/tensor_ops.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ARENA_BYTES (768ull << 20)
#define REPEATS_MAX 101u
#define TABLES_MAX  4u

struct bench {
    struct st_workers *workers;
    struct st_device *dev;                /* the one of tables[] in use */
    struct st_device *tables[TABLES_MAX]; /* best first; all use the first one's arena */
    const char *table_names[TABLES_MAX];
    uint32_t table_count;
    const struct st_device_ops *ops;
    const struct st_tensor_ops *tensors;
    struct st_matmul_engine *single; /* for the roof */
    uint32_t worker_count, repeats;
    unsigned char *a, *b, *c, *d; /* quarters of the arena */
};

typedef strata_status run_fn(struct bench *b, const void *arg);

struct seconds {
    double min, median;
};

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static struct seconds measure(struct bench *b, run_fn *run, const void *arg)
{
    double seconds[REPEATS_MAX];

    for (uint32_t i = 0; i <= b->repeats; i++) { /* the first run prepares */
        const uint64_t start = st_clock_ns();

        if (run(b, arg) != STRATA_OK) {
            fprintf(stderr, "bench_ops: %s\n", strata_last_error());
            exit(1);
        }
        seconds[i == 0 ? 0 : i - 1] = (double)(st_clock_ns() - start) * 1e-9;
    }
    qsort(seconds, b->repeats, sizeof(seconds[0]), compare);
    return (struct seconds){seconds[0], seconds[b->repeats / 2]};
}

/* --- matmul --- */

static strata_status run_matmul(struct bench *b, const void *arg)
{
    const struct st_matmul *mm = arg;

    return b->tensors->matmul(b->dev, mm, b->c, b->a, b->b, mm->bias ? b->d : NULL);
}

static strata_status run_single(struct bench *b, const void *arg)
{
    const struct st_matmul *mm = arg;
    const int id = st_matmul_prepare(b->single, mm);

    if (id < 0 || st_matmul_run(b->single, id, 0, b->c, b->a, b->b, mm->bias ? b->d : NULL) != 0)
        return STRATA_E_INTERNAL;
    return STRATA_OK;
}

static void matmul_row(struct bench *b, const char *name, uint32_t m, uint32_t n, uint32_t k, strata_dtype dt)
{
    static const char *const forms[] = {"forward", "d input", "d weight"};

    for (uint32_t form = 0; form < 3; form++) {
        const struct st_matmul mm = {.m = form == 2 ? k : m,
                                     .n = form == 1 ? k : n,
                                     .k = form == 0   ? k
                                          : form == 1 ? n
                                                      : m,
                                     .lda = form == 1 ? n : k,
                                     .ldb = n,
                                     .ldc = form == 1 ? k : n,
                                     .trans_a = form == 2,
                                     .trans_b = form == 1,
                                     .accumulate = form == 2,
                                     .bias = form == 0,
                                     .ab_dtype = dt,
                                     .c_dtype = form == 2 ? STRATA_F32 : dt};
        const double gf = 2e-9 * m * n * k;
        const struct seconds whole = measure(b, run_matmul, &mm), single = measure(b, run_single, &mm);

        printf("%-16s %-9s %-5s %6u %6u %6u  %8.1f %8.1f GF/s   roof %8.1f   ratio %.2f\n", name, forms[form],
               strata_dtype_name(dt), mm.m, mm.n, mm.k, gf / whole.min, gf / whole.median, gf / single.min * b->worker_count,
               single.min / b->worker_count / whole.min);
    }
}

/* --- attention --- */

static strata_status run_attention_forward(struct bench *b, const void *arg)
{
    const struct st_attention *at = arg;

    return b->tensors->attention_forward(b->dev, at, b->b, (float *)(void *)b->d, b->a, b->d + (ARENA_BYTES >> 3));
}

static strata_status run_attention_backward(struct bench *b, const void *arg)
{
    const struct st_attention *at = arg;

    return b->tensors->attention_backward(b->dev, at, b->c, b->b, b->b, (float *)(void *)b->d, b->a, b->d + (ARENA_BYTES >> 3));
}

static strata_status run_attention_cached(struct bench *b, const void *arg)
{
    const struct st_attention *at = arg;

    return b->tensors->attention_cached(b->dev, at, b->b, b->c, b->c + (ARENA_BYTES >> 3), b->a, at->seq - 1, 1, b->d);
}

static void attention_row(struct bench *b, const char *name, const struct st_attention *shape, strata_dtype dt)
{
    struct st_attention at = *shape;
    const double gf = 4e-9 * at.batch * at.heads * at.seq * at.seq * at.head_dim;
    struct seconds forward, backward;

    at.dt = dt;
    forward = measure(b, run_attention_forward, &at);
    backward = measure(b, run_attention_backward, &at);
    printf("%-16s attention %-5s forward %8.3f ms %8.1f GF/s   backward %8.3f ms %8.1f GF/s", name, strata_dtype_name(dt),
           forward.min * 1e3, gf / forward.min, backward.min * 1e3, 2.5 * gf / backward.min);
    printf("   one row with a cache %8.3f ms\n", measure(b, run_attention_cached, &at).min * 1e3);
}

/* --- the rest --- */

struct rows {
    uint32_t rows, cols;
    strata_dtype dt;
};

static strata_status run_copy(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    return b->ops->copy(b->dev, b->c, b->a, (uint64_t)r->rows * r->cols * strata_dtype_bytes(r->dt));
}

static strata_status run_add(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    return b->tensors->add(b->dev, b->c, b->a, b->b, (uint64_t)r->rows * r->cols, r->dt);
}

static strata_status run_gelu_forward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    return b->tensors->activation_forward(b->dev, ST_GELU_TANH, b->c, b->a, (uint64_t)r->rows * r->cols, r->dt);
}

static strata_status run_norm_forward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    return b->tensors->layernorm_forward(b->dev, b->c, (float *)(void *)b->d, b->a, b->b, b->b, NULL, NULL, r->rows, r->cols,
                                         1e-5f, r->dt);
}

static strata_status run_norm_backward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;
    float *f = (float *)(void *)b->d;

    return b->tensors->layernorm_backward(b->dev, b->c, f + 2 * r->rows, f + 2 * r->rows + r->cols, b->a, r->dt, b->b, f, b->a,
                                          b->c, r->rows, r->cols, r->dt);
}

static strata_status run_bias_backward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    return b->tensors->bias_backward(b->dev, (float *)(void *)b->d, b->a, r->rows, r->cols, r->dt);
}

static strata_status run_rms_forward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;
    const struct st_rmsnorm norm = {.rows = r->rows, .heads = 1, .cols = r->cols, .stride = r->cols, .eps = 1e-5f, .dt = r->dt};

    return b->tensors->rmsnorm_forward(b->dev, &norm, b->c, (float *)(void *)b->d, b->a, b->b, NULL, NULL);
}

static strata_status run_rms_backward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;
    const struct st_rmsnorm norm = {.rows = r->rows, .heads = 1, .cols = r->cols, .stride = r->cols, .dt = r->dt};
    float *f = (float *)(void *)b->d;

    return b->tensors->rmsnorm_backward(b->dev, &norm, b->c, f + r->rows, b->a, r->dt, b->b, f, b->a, b->c);
}

/* Heads of 64 over the whole row; the table's values do not matter. */
static strata_status run_rope(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    const struct st_rope rope = {.rows = r->rows,
                                 .stride = r->cols,
                                 .heads = r->cols / 64,
                                 .head_dim = 64,
                                 .rotary_dim = 64,
                                 .seq = r->rows,
                                 .table = (const float *)(const void *)b->a,
                                 .dt = r->dt};

    return b->tensors->rope(b->dev, &rope, b->c);
}

static strata_status run_swiglu_forward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    return b->tensors->gated_forward(b->dev, ST_SILU, b->c, b->a, r->rows, r->cols, r->dt);
}

static strata_status run_swiglu_backward(struct bench *b, const void *arg)
{
    const struct rows *r = arg;

    return b->tensors->gated_backward(b->dev, ST_SILU, b->c, b->b, b->b, b->a, r->rows, r->cols, r->dt);
}

static double measure_once(struct bench *b, run_fn *run, const struct rows *r)
{
    const uint32_t repeats = b->repeats;
    double seconds;

    b->repeats = 1;
    seconds = measure(b, run, r).min;
    b->repeats = repeats;
    return seconds;
}

static void op_row(struct bench *b, const char *name, const struct rows *r, const char *op, run_fn *run, double moved)
{
    const double elems = (double)r->rows * r->cols, bytes = elems * (double)strata_dtype_bytes(r->dt);
    double best[TABLES_MAX], copy = 1e9;

    for (uint32_t i = 0; i < b->repeats; i++) {
        for (uint32_t t = 0; t < b->table_count; t++) {
            double seconds;

            b->dev = b->tables[t];
            seconds = measure_once(b, run, r);
            best[t] = i == 0 || seconds < best[t] ? seconds : best[t];
        }
        const double seconds = measure_once(b, run_copy, r);

        copy = seconds < copy ? seconds : copy;
    }
    b->dev = b->tables[0];
    printf("%-10s %-5s %5u x %-5u %-15s copy %6.1f GB/s ", name, strata_dtype_name(r->dt), r->rows, r->cols, op,
           2e-9 * bytes / copy);
    for (uint32_t t = 0; t < b->table_count; t++)
        printf("  %s %.3f ns ratio %.2f", b->table_names[t], best[t] * 1e9 / elems, moved / 2 * copy / best[t]);
    printf("\n");
}

static void rows_row(struct bench *b, const char *name, uint32_t rows, uint32_t cols, strata_dtype dt)
{
    static const struct {
        const char *name;
        run_fn *run;
        double moved; /* elements moved per element */
    } ops[] = {{"add", run_add, 3},
               {"gelu", run_gelu_forward, 2},
               {"swiglu", run_swiglu_forward, 3},
               {"swiglu backward", run_swiglu_backward, 6},
               {"norm", run_norm_forward, 2},
               {"norm backward", run_norm_backward, 6},
               {"rms", run_rms_forward, 2},
               {"rms backward", run_rms_backward, 6},
               {"rope", run_rope, 2},
               {"bias backward", run_bias_backward, 1}};
    const struct rows r = {rows, cols, dt};

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
        op_row(b, name, &r, ops[i].name, ops[i].run, ops[i].moved);
}

static void fill(unsigned char *p, uint64_t bytes)
{
    uint16_t *h = (uint16_t *)(void *)p; /* as bf16 and as fp32: numbers near one half */

    for (uint64_t i = 0; i < bytes / 2; i++)
        h[i] = (uint16_t)(0x3e80 + (i * 2654435761u >> 13) % 256 + (i % 3 == 0 ? 0x8000u : 0));
}

/* Opens a device per table; all but the first have a minimal arena. */
static strata_status open_tables(struct bench *b)
{
    struct st_device_opts opts = {.arena_bytes = ARENA_BYTES, .workers = b->workers};

    for (; b->table_count < TABLES_MAX && (opts.kernels = st_kernels_usable(b->table_count)) != NULL; b->table_count++) {
        const strata_status st = b->ops->open(&b->tables[b->table_count], &opts);

        if (st != STRATA_OK)
            return st;
        b->table_names[b->table_count] = opts.kernels->name;
        opts.arena_bytes = 4096;
    }
    b->dev = b->tables[0];
    return STRATA_OK;
}

static void open_bench(struct bench *b, int argc, char **argv)
{
    b->repeats = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 7;
    b->repeats = b->repeats < 1 ? 1 : b->repeats > REPEATS_MAX ? REPEATS_MAX : b->repeats;
    b->ops = st_device_find("cpu");
    b->tensors = b->ops->tensors;
    if (st_workers_create(&b->workers, argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0, NULL) != STRATA_OK)
        goto fail;
    b->worker_count = st_workers_count(b->workers);
    if (open_tables(b) != STRATA_OK || st_matmul_create(&b->single, 1) != 0)
        goto fail;
    b->a = b->ops->arena(b->dev);
    b->b = b->a + ARENA_BYTES / 4;
    b->c = b->b + ARENA_BYTES / 4;
    b->d = b->c + ARENA_BYTES / 4;
    fill(b->a, ARENA_BYTES);
    return;

fail:
    fprintf(stderr, "bench_ops: %s\n", strata_last_error());
    exit(1);
}

int main(int argc, char **argv)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
    static const struct st_attention gpt2 = {
        .batch = 1, .seq = 512, .heads = 12, .kv_heads = 12, .head_dim = 64, .qkv_stride = 2304, .out_stride = 768};
    static const struct st_attention gpt2_long = {
        .batch = 1, .seq = 1024, .heads = 12, .kv_heads = 12, .head_dim = 64, .qkv_stride = 2304, .out_stride = 768};
    static const struct st_attention nano = {
        .batch = 16, .seq = 256, .heads = 4, .kv_heads = 4, .head_dim = 32, .qkv_stride = 384, .out_stride = 128};
    static const struct st_attention nano_llama = {
        .batch = 1, .seq = 4096, .heads = 4, .kv_heads = 2, .head_dim = 32, .qkv_stride = 256, .out_stride = 128};
    static const struct st_attention window = {
        .batch = 1, .seq = 4096, .heads = 4, .kv_heads = 2, .head_dim = 32, .qkv_stride = 256, .out_stride = 128, .window = 512};
    struct bench b = {0};

    open_bench(&b, argc, argv);
    printf("workers %u, repeats %u: minimum and median\n", b.worker_count, b.repeats);
    for (size_t i = 0; i < 3; i++) {
        matmul_row(&b, "gpt2 qkv", 512, 2304, 768, dtypes[i]);
        matmul_row(&b, "gpt2 projection", 512, 768, 768, dtypes[i]);
        matmul_row(&b, "gpt2 ffn up", 512, 3072, 768, dtypes[i]);
        matmul_row(&b, "gpt2 ffn down", 512, 768, 3072, dtypes[i]);
        matmul_row(&b, "gpt2 head slice", 512, 4096, 768, dtypes[i]);
        matmul_row(&b, "nano qkv", 4096, 384, 128, dtypes[i]);
        matmul_row(&b, "nano projection", 4096, 128, 128, dtypes[i]);
        matmul_row(&b, "nano ffn up", 4096, 512, 128, dtypes[i]);
        matmul_row(&b, "nano ffn down", 4096, 128, 512, dtypes[i]);
        attention_row(&b, "gpt2", &gpt2, dtypes[i]);
        attention_row(&b, "gpt2, 1024", &gpt2_long, dtypes[i]);
        attention_row(&b, "nano", &nano, dtypes[i]);
        attention_row(&b, "nano-llama, 4096", &nano_llama, dtypes[i]);
        attention_row(&b, "window of 512", &window, dtypes[i]);
        rows_row(&b, "gpt2", 512, 768, dtypes[i]);
        rows_row(&b, "gpt2 ffn", 512, 3072, dtypes[i]);
        rows_row(&b, "nano", 4096, 128, dtypes[i]);
        rows_row(&b, "nano ffn", 4096, 512, dtypes[i]);
    }
    st_matmul_destroy(b.single);
    for (uint32_t t = 0; t < b.table_count; t++)
        b.ops->close(b.tables[t]);
    st_workers_destroy(b.workers);
    return 0;
}
