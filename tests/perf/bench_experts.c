/* tests/perf/bench_experts.c - what it costs that rows are cut among experts.
 *
 * Products: GF/s of a slice's, beside the roof, which is one dense product of as many rows with one expert's matrix.  Rows: bytes
 * per second of moving and weighing them (op_traffic.h), beside a copy.  Both take turns with their roof.
 *
 *     bench_experts [WORKERS [REPEATS]]      minimum and median of the repeats; minimum times count */
#include "core/system/clock.h"
#include "core/system/workers.h"
#include "offload/device/device.h"
#include "offload/device/op_traffic.h"
#include "offload/device/tensor_ops.h"
#include <stdio.h>
#include <stdlib.h>

#define ARENA_BYTES (1024ull << 20)
#define PART_BYTES  (ARENA_BYTES / 4)
#define REPEATS_MAX 101u

/* Rows of a micro-batch through k of each slice's experts. */
struct model {
    const char *name;
    uint32_t rows, experts, k, hidden, ffn;
};

struct bench {
    struct st_workers *workers;
    struct st_device *dev;
    const struct st_device_ops *ops;
    const struct st_tensor_ops *tensors;
    uint32_t repeats;
    unsigned char *a, *b, *c; /* parts of the arena */
    int32_t *ids, *order, *places, *offsets;
    float *weights;
    struct st_route route;
};

/* An op on the bench's parts, and what it is held against. */
struct pair {
    const struct st_expert_matmul *mm;
    struct st_matmul dense;
    uint32_t op, cols;
    strata_dtype dt;
    uint64_t bytes; /* of the copy */
};

typedef strata_status run_fn(struct bench *b, const struct pair *p);

static double once(struct bench *b, run_fn *run, const struct pair *p)
{
    const uint64_t start = st_clock_ns();

    if (run(b, p) != STRATA_OK) {
        fprintf(stderr, "bench_experts: %s\n", strata_last_error());
        exit(1);
    }
    return (double)(st_clock_ns() - start) * 1e-9;
}

static int compare(const void *x, const void *y)
{
    const double a = *(const double *)x, b = *(const double *)y;

    return (a > b) - (a < b);
}

static void print_pair(struct bench *b, run_fn *run, run_fn *roof, const struct pair *p, double work, double roof_work)
{
    double seconds[REPEATS_MAX], least = 1e9;

    (void)once(b, run, p), (void)once(b, roof, p); /* these prepare */
    for (uint32_t i = 0; i < b->repeats; i++) {
        const double roof_seconds = once(b, roof, p);

        seconds[i] = once(b, run, p);
        least = roof_seconds < least ? roof_seconds : least;
    }
    qsort(seconds, b->repeats, sizeof(seconds[0]), compare);
    printf("%8.1f %8.1f   roof %8.1f   ratio %.2f\n", work / seconds[0] * 1e-9, work / seconds[b->repeats / 2] * 1e-9,
           roof_work / least * 1e-9, work / seconds[0] / (roof_work / least));
}

static strata_status run_grouped(struct bench *b, const struct pair *p)
{
    return b->tensors->experts_matmul(b->dev, p->mm, b->c, b->a, b->b, NULL, b->offsets);
}

static strata_status run_dense(struct bench *b, const struct pair *p)
{
    return b->tensors->matmul(b->dev, &p->dense, b->c, b->a, b->b, NULL);
}

static void product_rows(struct bench *b, const struct model *m, strata_dtype dt)
{
    static const char *const forms[] = {"forward", "d input", "d weight"};
    const uint32_t rows = m->rows * m->k, n = 2 * m->ffn;

    for (uint32_t form = 0; form < 3; form++) {
        const bool matrix = form == 2;
        const struct st_expert_matmul mm = {.of = {m->rows, m->experts, m->k, 0, m->experts},
                                            .m = matrix ? n : 0,
                                            .n = form == 0 ? n : m->hidden,
                                            .k = form == 0 ? m->hidden
                                                 : matrix  ? 0
                                                           : n,
                                            .lda = form == 0 ? m->hidden : n,
                                            .ldb = m->hidden,
                                            .ldc = form == 0 ? n : m->hidden,
                                            .trans_b = form == 0,
                                            .accumulate = matrix,
                                            .stride = (uint64_t)m->hidden * n,
                                            .ab_dtype = dt,
                                            .c_dtype = matrix ? STRATA_F32 : dt};
        const struct pair p = {.mm = &mm,
                               .dense = {.m = matrix ? n : rows,
                                         .n = mm.n,
                                         .k = matrix ? rows : mm.k,
                                         .lda = mm.lda,
                                         .ldb = mm.ldb,
                                         .ldc = mm.ldc,
                                         .trans_a = matrix,
                                         .trans_b = mm.trans_b,
                                         .accumulate = matrix,
                                         .ab_dtype = dt,
                                         .c_dtype = mm.c_dtype}};
        const double flops = 2.0 * rows * n * m->hidden;

        printf("%-14s %-9s %-5s %2u x about %3u rows %5u x %5u GF/s ", m->name, forms[form], strata_dtype_name(dt), m->experts,
               rows / m->experts, n, m->hidden);
        print_pair(b, run_grouped, run_dense, &p, flops, flops);
    }
}

static strata_status run_rows(struct bench *b, const struct pair *p)
{
    const struct st_experts of = {b->route.rows, b->route.experts, b->route.k, 0, b->route.experts};
    float *const sum = (float *)(void *)b->c;

    switch (p->op) {
    case ST_DEVICE_ROUTE_CHOOSE:
        return b->tensors->route_choose(b->dev, &b->route, b->ids, b->weights, sum, b->a);
    case ST_DEVICE_ROUTE_SORT:
        return b->tensors->route_sort(b->dev, &b->route, b->order, b->places, b->offsets, b->ids);
    case ST_DEVICE_EXPERTS_GATHER:
        return b->tensors->experts_gather(b->dev, &of, b->c, b->a, b->order, b->offsets, p->cols, p->dt);
    case ST_DEVICE_EXPERTS_ADD:
        return b->tensors->experts_add(b->dev, &of, sum, b->a, b->weights, b->order, b->places, b->offsets, p->cols, p->dt);
    default:
        return b->tensors->experts_add_backward(b->dev, &of, b->c, b->weights, b->b, b->a, b->weights, b->order, b->offsets,
                                                p->cols, p->dt);
    }
}

static strata_status run_copy(struct bench *b, const struct pair *p)
{
    return b->ops->copy(b->dev, b->c, b->a, p->bytes);
}

static void rows_rows(struct bench *b, const struct model *m, strata_dtype dt)
{
    static const uint32_t ops[] = {ST_DEVICE_ROUTE_CHOOSE, ST_DEVICE_ROUTE_SORT, ST_DEVICE_EXPERTS_GATHER, ST_DEVICE_EXPERTS_ADD,
                                   ST_DEVICE_EXPERTS_ADD_BACKWARD};

    for (size_t i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
        const bool routes = i < 2;
        const struct st_op_shape shape = {.op = (enum st_device_op)ops[i],
                                          .dt = dt,
                                          .heads = m->k,
                                          .rows = routes ? m->rows : m->rows * m->k,
                                          .cols = routes ? m->experts : m->hidden,
                                          .positions = m->rows};
        const double bytes = st_op_traffic(&shape).bytes;
        const struct pair p = {.op = ops[i], .cols = m->hidden, .dt = dt, .bytes = (uint64_t)bytes / 2};

        printf("%-14s %-24s %-5s %5u rows, %u of %3u, %5u GB/s ", m->name, st_device_op_rows[ops[i]].name, strata_dtype_name(dt),
               m->rows, m->k, m->experts, m->hidden);
        print_pair(b, run_rows, run_copy, &p, bytes, bytes);
    }
}

/* Rows that choose k experts by turns, or of which each chooses one at random. */
static void set_route(struct bench *b, const struct model *m, strata_dtype dt)
{
    unsigned char *at = b->a + 3 * PART_BYTES;
    const uint64_t bytes = ((uint64_t)m->rows * m->k + m->experts + 1) * 4;

    b->route = (struct st_route){.rows = m->rows, .experts = m->experts, .k = m->k, .divided = true, .dt = dt};
    b->ids = (int32_t *)(void *)at;
    b->order = (int32_t *)(void *)(at + bytes);
    b->places = (int32_t *)(void *)(at + 2 * bytes);
    b->offsets = (int32_t *)(void *)(at + 3 * bytes);
    b->weights = (float *)(void *)(at + 4 * bytes);
    for (uint64_t i = 0; i < (uint64_t)m->rows * m->k; i++) {
        b->ids[i] = (int32_t)(m->k > 1 ? i * 7 % m->experts : (i * 2654435761u >> 9 ^ i * 40503u >> 3) % m->experts);
        b->weights[i] = 0.125f;
    }
    if (b->tensors->route_sort(b->dev, &b->route, b->order, b->places, b->offsets, b->ids) != STRATA_OK)
        exit(1);
}

static void fill(unsigned char *p, uint64_t bytes)
{
    uint16_t *h = (uint16_t *)(void *)p; /* as bf16 and as fp32: numbers near one half */

    for (uint64_t i = 0; i < bytes / 2; i++)
        h[i] = (uint16_t)(0x3e80 + (i * 2654435761u >> 13) % 256 + (i % 3 == 0 ? 0x8000u : 0));
}

int main(int argc, char **argv)
{
    static const strata_dtype dtypes[] = {STRATA_F32, STRATA_BF16, STRATA_F16};
    static const struct model slices[] = {{"olmoe", 256, 8, 8, 2048, 1024},
                                          {"qwen3", 128, 8, 8, 2048, 768},
                                          {"uneven", 2000, 8, 1, 2048, 768},
                                          {"uneven, less", 700, 8, 1, 2048, 768},
                                          {"few rows", 20, 8, 8, 2048, 768}};
    static const struct model whole = {"olmoe", 2048, 64, 8, 2048, 1024};
    const char *const repeats = argc > 2 ? argv[2] : "5";
    struct bench b = {.ops = st_device_find("cpu"), .repeats = (uint32_t)strtoul(repeats, NULL, 10)};
    struct st_device_opts opts = {.arena_bytes = ARENA_BYTES, .kernels = st_kernels_pick(NULL)};

    b.repeats = b.repeats < 1 ? 1 : b.repeats > REPEATS_MAX ? REPEATS_MAX : b.repeats;
    b.tensors = b.ops->tensors;
    if (st_workers_create(&b.workers, argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 0, NULL) != STRATA_OK)
        return 1;
    opts.workers = b.workers;
    if (b.ops->open(&b.dev, &opts) != STRATA_OK)
        return 1;
    b.a = b.ops->arena(b.dev);
    b.b = b.a + PART_BYTES;
    b.c = b.b + PART_BYTES;
    fill(b.a, 2 * PART_BYTES);
    printf("workers %u, repeats %u: minimum and median\n", st_workers_count(b.workers), b.repeats);
    for (size_t d = 0; d < 3; d++) {
        for (size_t i = 0; i < sizeof(slices) / sizeof(slices[0]); i++) {
            set_route(&b, &slices[i], dtypes[d]);
            product_rows(&b, &slices[i], dtypes[d]);
        }
        set_route(&b, &whole, dtypes[d]);
        rows_rows(&b, &whole, dtypes[d]);
    }
    b.ops->close(b.dev);
    st_workers_destroy(b.workers);
    return 0;
}
