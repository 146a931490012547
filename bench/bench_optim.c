/* bench_optim - how near does Adam on the CPU come to the memory's own speed?
 *
 * Bytes that must cross the memory bus once per element, reads + writes:
 *   split  weight 2, residual 2, moments 8, gradient 2 (bf16) read; all but the gradient written      14 + 12 = 26
 *   full   master 4, moments 8, gradient 2 (bf16) read; master, moments and a bf16 copy written       14 + 14 = 28
 *   fp32   master 4, moments 8, gradient 4 read; master and moments written                           16 + 12 = 28
 * The roof of each is a stream over the same planes with the same reads and writes and one integer operation per word, once
 * plain and once with the kernels' prefetch; the faster counts.  Variants take turns, so that all see the same machine;
 * `seconds` is the least of the repeats and the ratio is between least times, `seconds_median` tells how noisy it was.
 *
 *     bench_optim [--params N] [--threads N] [--repeats N] [--json]
 *
 * Defaults: 16 Mi parameters (every plane exceeds the caches), one thread per usable core, 9 repeats. */
#include "core/arena.h"
#include "core/clock.h"
#include "core/json.h"
#include "core/size.h"
#include "core/stats.h"
#include "core/topology.h"
#include "core/workers.h"
#include "kernels/kernels.h"
#include <assert.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ITEM_ELEMS   (64u * 1024u) /* one worker's turn */
#define LINE_ELEMS   32u           /* elements of a stream's turn: one or two cache lines of each plane */
#define AHEAD_BYTES  4096u
#define REPEATS_MAX  1000u
#define VARIANTS_MAX 8u
#define THREADS_MAX  256u
#define PLANE_BYTES  18u /* per parameter: master or weight + residual, moments, gradient, copy */

enum layout { SPLIT, FULL, FP32, LAYOUT_COUNT };

static const struct {
    const char *name;
    strata_dtype grad_dtype;
    uint32_t bytes; /* per element */
} layouts[LAYOUT_COUNT] = {
    [SPLIT] = {"adam_split", STRATA_BF16, 26},
    [FULL] = {"adam_full_bf16", STRATA_BF16, 28},
    [FP32] = {"adam_full_fp32", STRATA_F32, 28},
};

/* One way to pass over the planes: a table's kernel, or a stream when kernels is NULL. */
struct variant {
    const char *name;
    const struct st_kernels *kernels;
    bool prefetch;
    double seconds[REPEATS_MAX];
    double best;
};

struct bench {
    uint64_t params; /* a multiple of ITEM_ELEMS */
    uint32_t threads, repeats;
    bool json;
    struct st_workers *workers;
    struct st_arena arena;
    float *master, *moment1, *moment2; /* [params]; weight and residual share the bytes of master */
    uint16_t *weight;
    int16_t *residual;
    void *grad;
    uint16_t *copy;
    struct st_adam_coef coef;
    enum layout layout;
    const struct variant *variant;
    uint64_t sink[THREADS_MAX]; /* so that reads are not optimised away */
};

static inline void update_words(uint64_t *words, size_t count, bool prefetch)
{
    if (prefetch) {
        for (size_t i = 0; i < count; i += 8)
            __builtin_prefetch((const char *)(words + i) + AHEAD_BYTES, 0, 2);
    }
    for (size_t i = 0; i < count; i++)
        words[i] += 1;
}

static inline uint64_t read_words(const uint64_t *words, size_t count, bool prefetch)
{
    uint64_t sum = 0;

    if (prefetch) {
        for (size_t i = 0; i < count; i += 8)
            __builtin_prefetch((const char *)(words + i) + AHEAD_BYTES, 0, 2);
    }
    for (size_t i = 0; i < count; i++)
        sum ^= words[i];
    return sum;
}

/* Words of LINE_ELEMS elements from element i on. */
static inline uint64_t *words_of(void *plane, size_t elem_bytes, size_t i)
{
    return (uint64_t *)(void *)((char *)plane + elem_bytes * i);
}

#define WORDS_2 (LINE_ELEMS * 2u / 8u) /* of a plane with 2 bytes per element */
#define WORDS_4 (LINE_ELEMS * 4u / 8u)

static inline __attribute__((always_inline)) uint64_t stream(const struct bench *b, enum layout layout, bool prefetch,
                                                             size_t from, size_t to)
{
    uint64_t sum = 0;

    for (size_t i = from; i < to; i += LINE_ELEMS) {
        if (layout == SPLIT) {
            update_words(words_of(b->weight, 2, i), WORDS_2, prefetch);
            update_words(words_of(b->residual, 2, i), WORDS_2, prefetch);
        } else {
            update_words(words_of(b->master, 4, i), WORDS_4, prefetch);
        }
        update_words(words_of(b->moment1, 4, i), WORDS_4, prefetch);
        update_words(words_of(b->moment2, 4, i), WORDS_4, prefetch);
        if (layout == FP32)
            sum ^= read_words(words_of(b->grad, 4, i), WORDS_4, prefetch);
        else
            sum ^= read_words(words_of(b->grad, 2, i), WORDS_2, prefetch);
        if (layout == FULL) {
            uint64_t *const copy = words_of(b->copy, 2, i);

            for (size_t w = 0; w < WORDS_2; w++)
                copy[w] = i;
        }
    }
    return sum;
}

static uint64_t stream_range(const struct bench *b, size_t from, size_t to)
{
    const bool prefetch = b->variant->prefetch;

    switch (b->layout) {
    case SPLIT:
        return prefetch ? stream(b, SPLIT, true, from, to) : stream(b, SPLIT, false, from, to);
    case FULL:
        return prefetch ? stream(b, FULL, true, from, to) : stream(b, FULL, false, from, to);
    default:
        return prefetch ? stream(b, FP32, true, from, to) : stream(b, FP32, false, from, to);
    }
}

static void update_range(const struct bench *b, size_t from, size_t elems)
{
    const struct st_kernels *const k = b->variant->kernels;
    const strata_dtype dtype = layouts[b->layout].grad_dtype;
    const void *const grad = (const char *)b->grad + strata_dtype_bytes(dtype) * from;
    float *const moment1 = b->moment1 + from, *const moment2 = b->moment2 + from;

    if (b->layout == SPLIT)
        k->adam_split(b->weight + from, b->residual + from, moment1, moment2, grad, dtype, elems, &b->coef);
    else
        k->adam_master(b->master + from, b->layout == FULL ? b->copy + from : NULL, STRATA_BF16, moment1, moment2, grad, dtype,
                       elems, &b->coef);
}

static void run_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct bench *const b = ctx;
    const size_t from = (size_t)index * ITEM_ELEMS;

    if (b->variant->kernels != NULL)
        update_range(b, from, ITEM_ELEMS);
    else
        b->sink[worker] ^= stream_range(b, from, from + ITEM_ELEMS);
}

/* Ordinary values, so that neither subnormals nor NaN slow anything. */
static void fill_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct bench *const b = ctx;

    (void)worker;
    for (size_t i = (size_t)index * ITEM_ELEMS; i < (size_t)(index + 1) * ITEM_ELEMS; i++) {
        const float sign = i % 3 == 0 ? -1.0f : 1.0f, size = 1.0f + (float)(i % 61) / 61.0f;

        b->moment1[i] = sign * size * 1e-4f;
        b->moment2[i] = size * 1e-6f;
        if (b->layout == SPLIT) {
            b->weight[i] = (uint16_t)(0x3c80u + i % 61);
            b->residual[i] = (int16_t)(i % 1021);
        } else {
            b->master[i] = sign * size * 0.02f;
        }
        if (b->layout == FP32)
            ((float *)b->grad)[i] = sign * size * 1e-3f;
        else
            ((uint16_t *)b->grad)[i] = (uint16_t)(0x3a80u + i % 61);
    }
}

static double measure(struct bench *b, const struct variant *variant)
{
    const uint64_t begin_ns = st_clock_ns();

    b->variant = variant;
    st_workers_run(b->workers, run_item, b, b->params / ITEM_ELEMS);
    return (double)(st_clock_ns() - begin_ns) * 1e-9;
}

/* Streams first, then the tables, best first. */
static size_t list_variants(struct variant *variants)
{
    const struct st_kernels *k;
    size_t count = 2;

    variants[0] = (struct variant){.name = "stream"};
    variants[1] = (struct variant){.name = "stream_prefetch", .prefetch = true};
    for (size_t i = 0; (k = st_kernels_usable(i)) != NULL; i++) {
        assert(count < VARIANTS_MAX);
        variants[count++] = (struct variant){.name = k->name, .kernels = k};
    }
    return count;
}

static void print_row(const struct bench *b, struct variant *v, double roof_seconds)
{
    const uint64_t bytes = b->params * layouts[b->layout].bytes;
    const double rate = (double)bytes / v->best * 1e-9, roof = (double)bytes / roof_seconds * 1e-9;
    const double median = st_stats_median(v->seconds, b->repeats);
    struct st_json_writer w;

    if (!b->json) {
        printf("%-15s %-15s %9.3f %9.3f %9.3f %9.2f %9.2f %7.3f\n", layouts[b->layout].name, v->name, v->best * 1e3, median * 1e3,
               v->best * 1e9 / (double)b->params, rate, roof, rate / roof);
        return;
    }
    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_string(&w, "name", layouts[b->layout].name);
    st_json_put_string(&w, "variant", v->name);
    st_json_put_u64(&w, "bytes", bytes);
    st_json_put_double(&w, "seconds", v->best);
    st_json_put_double(&w, "seconds_median", median);
    st_json_put_double(&w, "gb_per_s", rate);
    st_json_put_double(&w, "roof_gb_per_s", roof);
    st_json_put_double(&w, "ratio", rate / roof);
    st_json_put_u64(&w, "params", b->params);
    st_json_put_u64(&w, "threads", b->threads);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* One pass unmeasured, then the variants in turns. */
static void bench_layout(struct bench *b)
{
    static struct variant variants[VARIANTS_MAX];
    const size_t count = list_variants(variants);

    st_workers_run(b->workers, fill_item, b, b->params / ITEM_ELEMS);
    measure(b, &variants[0]);
    for (uint32_t r = 0; r < b->repeats; r++) {
        for (size_t i = 0; i < count; i++) {
            struct variant *const v = &variants[i];

            v->seconds[r] = measure(b, v);
            if (r == 0 || v->seconds[r] < v->best)
                v->best = v->seconds[r];
        }
    }
    const double roof_seconds = variants[0].best < variants[1].best ? variants[0].best : variants[1].best;

    for (size_t i = 0; i < count; i++)
        print_row(b, &variants[i], roof_seconds);
}

static int usage(const char *complaint, const char *value)
{
    fprintf(stderr, "bench_optim: %s %s\nusage: bench_optim [--params N] [--threads N] [--repeats N] [--json]\n", complaint,
            value);
    return 2;
}

static int parse(struct bench *b, int argc, char **argv)
{
    static const struct option options[] = {{"params", required_argument, NULL, 'p'},
                                            {"threads", required_argument, NULL, 't'},
                                            {"repeats", required_argument, NULL, 'r'},
                                            {"json", no_argument, NULL, 'j'},
                                            {0}};
    uint64_t value = 0;
    int c;

    while ((c = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (c == '?')
            return usage("see", "below");
        if (optarg != NULL && st_size_parse(optarg, &value) != 0)
            return usage("not a number:", optarg);
        if (c == 'p')
            b->params = (value + ITEM_ELEMS - 1) / ITEM_ELEMS * ITEM_ELEMS;
        else if (c == 't')
            b->threads = value <= THREADS_MAX ? (uint32_t)value : THREADS_MAX;
        else if (c == 'r')
            b->repeats = value <= REPEATS_MAX ? (uint32_t)value : REPEATS_MAX;
        else
            b->json = true;
    }
    if (optind < argc)
        return usage("unexpected", argv[optind]);
    return b->params == 0 || b->repeats == 0 ? usage("--params and --repeats must be above", "0") : 0;
}

static strata_status setup(struct bench *b, const struct st_topology *topo)
{
    strata_status st = st_workers_create(&b->workers, b->threads, topo);

    if (st != STRATA_OK)
        return st;
    b->threads = st_workers_count(b->workers);
    st = st_arena_create(&b->arena, "bench", b->params * PLANE_BYTES, b->workers);
    if (st != STRATA_OK)
        return st;
    unsigned char *const at = b->arena.base;

    b->master = (void *)at;
    b->weight = (void *)at;
    b->residual = (void *)(at + 2 * b->params);
    b->moment1 = (void *)(at + 4 * b->params);
    b->moment2 = (void *)(at + 8 * b->params);
    b->grad = at + 12 * b->params;
    b->copy = (void *)(at + 16 * b->params);
    /* beta1 0.9, beta2 0.999, eps 1e-8, lr 1e-3, decay 0.01, far from the start */
    b->coef = (struct st_adam_coef){.grad_scale = 1.0f,
                                    .beta1 = 0.9f,
                                    .one_minus_beta1 = 0.1f,
                                    .beta2 = 0.999f,
                                    .one_minus_beta2 = 0.001f,
                                    .eps = 1e-8f,
                                    .step_size = 1e-3f,
                                    .vhat_scale = 1.0f,
                                    .decay = 0.99999f};
    return STRATA_OK;
}

int main(int argc, char **argv)
{
    static struct bench b = {.params = 16u << 20, .repeats = 9};
    struct st_topology *topo = NULL;
    strata_status st;

    if (parse(&b, argc, argv) != 0)
        return 2;
    st = st_topology_load(&topo, NULL);
    if (st == STRATA_OK)
        st = setup(&b, topo);
    if (st == STRATA_OK) {
        if (!b.json)
            printf("%s, %u threads, %llu parameters, %u repeats\n%-15s %-15s %9s %9s %9s %9s %9s %7s\n",
                   st_topology_cpu_name(topo), b.threads, (unsigned long long)b.params, b.repeats, "name", "variant", "ms",
                   "median ms", "ns/param", "GB/s", "roof", "ratio");
        for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
            b.layout = (enum layout)layout;
            bench_layout(&b);
        }
    } else {
        fprintf(stderr, "bench_optim: %s\n", strata_last_error());
    }
    st_arena_destroy(&b.arena);
    st_workers_destroy(b.workers);
    st_topology_destroy(topo);
    return strata_status_exit_code(st);
}
