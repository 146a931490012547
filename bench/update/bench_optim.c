/* bench/update/bench_optim.c - how close does an optimizer on the CPU come to the limits of memory and arithmetic?
 *
 * Each layout's kernels (bench/roofs/layouts.h) at several sizes of one tensor, against the lower of two roofs of the same turns:
 *   memory      the faster of two streams over the same planes, in memory or in caches as they are
 *   arithmetic  if a rule divides and takes square roots: the same kernel over shares that stay in the second-level caches, on
 *               as many threads
 * Variants take turns, so that all see the same machine; `seconds` is the minimum over the repeats, the ratio compares minimum
 * times, and `seconds_median` shows how noisy the measurement was.  For a small tensor a repeat is many calls, each timed
 * separately and started after the workers have gone to sleep, as they do between the steps of a training run.  The last row is
 * an upper limit for every roof: one division and one square root per element, from registers. */
#include "bench/update/huge_pages.h"
#include "bench/update/planes.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/size.h"
#include "core/system/clock.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define REPEATS_DEFAULT  9u
#define STREAMS          2u
#define PASSES_MAX       8u
#define SAMPLE_SECONDS   2e-3 /* of a repeat, at least ... */
#define CALLS_MAX        5000u
#define ONE_CALL_PARAMS  (UINT64_C(4) << 20) /* ... which one call of this size takes */
#define TRIAL_ROUNDS     4u
#define ITEMS_PER_THREAD 16u
#define PLACES           4u /* places for the shares, used in turns */
#define ROUNDS_MAX       100000u
#define ASLEEP_NS        50000u /* a worker sleeps a few microseconds after a call */
#define DIVIDE_ROUNDS    10000u /* rounds of an item: some hundred microseconds */
#define UNITS_TEXT_BYTES 64u

static const uint64_t sizes_default[] = {UINT64_C(4) << 10, UINT64_C(64) << 10, UINT64_C(1) << 20, UINT64_C(16) << 20};

/* One way to run a case, and its times. */
struct variant {
    struct bench_pass pass;
    uint64_t calls;                       /* of one repeat */
    uint64_t rounds;                      /* passes over each share, for the arithmetic roof */
    double seconds[BENCH_REPEATS_MAX];    /* of a call */
    double arithmetic[BENCH_REPEATS_MAX]; /* of as many parameters that stay in the caches */
};

struct optim {
    struct bench_setup setup;
    struct bench_planes planes, shares;
    struct variant variants[PASSES_MAX]; /* streams first, then the tables, best first */
    uint32_t variant_count;
    bool layouts[BENCH_LAYOUT_COUNT];
    const uint64_t *sizes;
    uint32_t size_count;
    struct bench_printer printer;
};

/* --- rows --- */

enum { MEDIAN, NS_PER_PARAM, PARAMS, THREADS, CALLS, READ, WRITTEN, MEMORY, ARITHMETIC, EVEN, EXTRAS };
static const char *const extra_names[EXTRAS] = {
    [MEDIAN] = "seconds_median",
    [NS_PER_PARAM] = "ns_per_param",
    [PARAMS] = "params",
    [THREADS] = "threads",
    [CALLS] = "calls",
    [READ] = "read_per_param",
    [WRITTEN] = "written_per_param",
    [MEMORY] = "memory_gb_per_s",
    [ARITHMETIC] = "arith_gb_per_s",
    [EVEN] = "fetch_even",
};

/* @param roofs  seconds of a call at the memory's and at the arithmetic's roof; NaN: there is none. */
static void print_variant(struct optim *o, const struct variant *v, const double roofs[2])
{
    const uint64_t params = o->planes.params;
    const struct bench_traffic traffic = bench_layout_traffic(o->planes.layout, params);
    const double bytes = (double)(traffic.read + traffic.written), least = bench_least(v->seconds, o->setup.repeats);
    const bool arithmetic = roofs[1] > roofs[0];
    const double roof = arithmetic ? roofs[1] : roofs[0];
    const double extra[EXTRAS] = {
        [MEDIAN] = bench_median(v->seconds, o->setup.repeats),
        [NS_PER_PARAM] = least * 1e9 / (double)params,
        [PARAMS] = (double)params,
        [THREADS] = bench_planes_threads(&o->planes),
        [CALLS] = (double)v->calls,
        [READ] = (double)traffic.read / (double)params,
        [WRITTEN] = (double)traffic.written / (double)params,
        [MEMORY] = bytes / roofs[0] * 1e-9,
        [ARITHMETIC] = bytes / roofs[1] * 1e-9,
        [EVEN] = v->pass.kernels == NULL ? NAN : v->pass.fetch == ST_FETCH_EVEN,
    };

    bench_print(&o->printer, &(struct bench_row){.name = bench_layouts[o->planes.layout].name,
                                                 .variant = v->pass.name,
                                                 .bytes = traffic.read + traffic.written,
                                                 .seconds = least,
                                                 .roof_gb_per_s = bytes / roof * 1e-9,
                                                 .ratio = roof / least,
                                                 .extra_names = extra_names,
                                                 .extra = extra,
                                                 .extra_count = EXTRAS,
                                                 .bound_by = arithmetic ? "arithmetic" : "memory"});
}

static void print_case(struct optim *o)
{
    const uint32_t repeats = o->setup.repeats;
    double roofs[2] = {INFINITY, NAN};

    for (uint32_t i = 0; i < STREAMS; i++)
        roofs[0] = fmin(roofs[0], bench_least(o->variants[i].seconds, repeats));
    for (uint32_t i = 0; i < o->variant_count; i++) {
        const struct variant *const v = &o->variants[i];

        roofs[1] = v->rounds > 0 ? bench_least(v->arithmetic, repeats) : NAN;
        print_variant(o, v, roofs);
    }
}

/* Prints threads and kernel pages, for people. */
static void print_machine(const struct optim *o, bool bound)
{
    const double huge = bench_huge_fraction(o->planes.arena.base, o->planes.arena.bytes);
    const uint32_t threads = o->setup.threads;
    char size[24], units[UNITS_TEXT_BYTES];

    st_topology_units_text(o->setup.topology, threads, UINT32_MAX, units, sizeof(units));
    st_print(o->printer.file, "%s: %u thread%s, %s%s; planes of %s, ", st_topology_cpu_name(o->setup.topology), threads,
             threads == 1 ? "" : "s", bound ? "bound to " : "not bound: the system refuses", bound ? units : "",
             st_size_text(size, o->planes.arena.bytes));
    if (isnan(huge))
        st_print(o->printer.file, "on pages of unknown size\n");
    else
        st_print(o->printer.file, "%.0f %% of them on huge pages\n", huge * 100);
}

/* --- a case: one layout at one size --- */

/* Spins: waiting workers soon fall asleep, while a caller that sleeps might be woken late. */
static void let_workers_sleep(void)
{
    const uint64_t until_ns = st_clock_ns() + ASLEEP_NS;

    while (st_clock_ns() < until_ns) {
    }
}

/* Seconds of a call. */
static double run_calls(struct optim *o, const struct variant *v)
{
    const bool wake = v->calls > 1 && bench_planes_threads(&o->planes) > 1;
    double sum = 0;

    for (uint64_t i = 0; i < v->calls; i++) {
        if (wake)
            let_workers_sleep();
        sum += bench_planes_run(&o->planes, &v->pass);
    }
    return sum / (double)v->calls;
}

/* As many items as occupy the workers of a call: for all workers, enough short turns that one may come late; otherwise one turn
 * each. */
static uint64_t share_items(const struct optim *o)
{
    const uint32_t threads = bench_planes_threads(&o->planes);

    return threads > 1 && threads == o->setup.threads ? threads * ITEMS_PER_THREAD : threads;
}

/* Seconds for as many parameters as a call has. */
static double run_arithmetic(struct optim *o, const struct variant *v, uint32_t repeat)
{
    const struct bench_share_turns turns = {.place = repeat % PLACES, .items = share_items(o), .rounds = v->rounds};
    const double seconds = bench_planes_run_shares(&o->shares, &v->pass, &turns);

    return seconds * (double)o->planes.params / (BENCH_SHARE_ELEMS * (double)(turns.items * turns.rounds));
}

static uint64_t count_for(double seconds, uint64_t most)
{
    const double count = ceil(SAMPLE_SECONDS / seconds);

    return count < (double)most ? (uint64_t)count : most;
}

/* Sets how often each variant runs in a repeat, from a second, warm run. */
static void size_samples(struct optim *o, struct variant *v, bool arithmetic)
{
    const struct bench_share_turns trial = {.items = share_items(o), .rounds = TRIAL_ROUNDS};

    v->calls = 1;
    v->rounds = 0;
    if (o->planes.params < ONE_CALL_PARAMS) {
        bench_planes_run(&o->planes, &v->pass);
        v->calls = count_for(bench_planes_run(&o->planes, &v->pass), CALLS_MAX);
    }
    if (arithmetic && v->pass.kernels != NULL) {
        bench_planes_run_shares(&o->shares, &v->pass, &trial);
        v->rounds = count_for(bench_planes_run_shares(&o->shares, &v->pass, &trial) / TRIAL_ROUNDS, ROUNDS_MAX);
    }
}

static void prepare_case(struct optim *o, enum bench_layout layout, uint64_t params)
{
    const bool arithmetic = bench_rule_divides(bench_layouts[layout].rule);

    bench_planes_fill(&o->planes, layout, params);
    if (arithmetic)
        bench_planes_fill(&o->shares, layout, o->shares.params_most);
    bench_planes_run(&o->planes, &o->variants[0].pass);
    for (uint32_t i = 0; i < o->variant_count; i++) {
        if (o->variants[i].pass.kernels != NULL)
            bench_planes_choose_fetch(&o->planes, &o->variants[i].pass);
        size_samples(o, &o->variants[i], arithmetic);
    }
}

/* Runs the variants in turns. */
static strata_status run_case(struct optim *o, enum bench_layout layout, uint64_t params)
{
    prepare_case(o, layout, params);
    for (uint32_t r = 0; r < o->setup.repeats; r++) {
        bench_progress(&o->setup, bench_layouts[layout].name, r + 1);
        for (uint32_t i = 0; i < o->variant_count; i++) {
            struct variant *const v = &o->variants[i];

            v->seconds[r] = run_calls(o, v);
            if (v->rounds > 0)
                v->arithmetic[r] = run_arithmetic(o, v, r);
        }
    }
    bench_progress(&o->setup, NULL, 0);
    print_case(o);
    return STRATA_OK;
}

static strata_status run_cases(struct optim *o)
{
    strata_status st = STRATA_OK;

    for (int layout = 0; layout < BENCH_LAYOUT_COUNT; layout++)
        for (uint32_t i = 0; st == STRATA_OK && o->layouts[layout] && i < o->size_count; i++)
            st = run_case(o, (enum bench_layout)layout, o->sizes[i]);
    return st;
}

/* --- division and square root --- */

struct divide {
    const struct bench_probe *probe;
    float values[BENCH_THREADS_MAX][BENCH_DIVIDE_ELEMS];
};

static void divide_item(void *ctx, uint64_t index, uint32_t worker)
{
    struct divide *const d = ctx;

    (void)index;
    d->probe->divide(d->values[worker], DIVIDE_ROUNDS);
}

static void print_divide(struct optim *o, const char *variant, const double *seconds)
{
    const double elems = (double)o->setup.threads * ITEMS_PER_THREAD * BENCH_DIVIDE_ELEMS * DIVIDE_ROUNDS;
    const double least = bench_least(seconds, o->setup.repeats);
    const double extra[EXTRAS] = {
        [MEDIAN] = bench_median(seconds, o->setup.repeats),
        [NS_PER_PARAM] = least * 1e9 / elems,
        [PARAMS] = elems,
        [THREADS] = o->setup.threads,
        [CALLS] = 1,
        [READ] = NAN,
        [WRITTEN] = NAN,
        [MEMORY] = NAN,
        [ARITHMETIC] = NAN,
        [EVEN] = NAN,
    };

    bench_print(&o->printer, &(struct bench_row){.name = "divide_sqrt",
                                                 .variant = variant,
                                                 .seconds = least,
                                                 .roof_gb_per_s = NAN,
                                                 .ratio = NAN,
                                                 .extra_names = extra_names,
                                                 .extra = extra,
                                                 .extra_count = EXTRAS,
                                                 .bound_by = "arithmetic"});
}

static strata_status run_divide(struct optim *o, struct divide *d, struct variant *v)
{
    d->probe = bench_probe_find(v->pass.name);
    if (d->probe == NULL)
        return STRATA_OK;
    for (uint32_t r = 0; r < o->setup.repeats; r++) {
        const uint64_t begin_ns = st_clock_ns();

        st_workers_run(o->setup.workers, divide_item, d, (uint64_t)o->setup.threads * ITEMS_PER_THREAD);
        v->seconds[r] = (double)(st_clock_ns() - begin_ns) * 1e-9;
    }
    print_divide(o, v->pass.name, v->seconds);
    return STRATA_OK;
}

static strata_status run_divides(struct optim *o)
{
    struct divide *const d = calloc(1, sizeof(*d));
    strata_status st = STRATA_OK;

    if (d == NULL)
        return st_nomem(sizeof(*d));
    for (uint32_t i = 0; i < BENCH_THREADS_MAX; i++)
        for (uint32_t k = 0; k < BENCH_DIVIDE_ELEMS; k++)
            d->values[i][k] = 1.0f + (float)k / BENCH_DIVIDE_ELEMS;
    for (uint32_t i = STREAMS; st == STRATA_OK && i < o->variant_count; i++)
        st = run_divide(o, d, &o->variants[i]);
    free(d);
    return st;
}

/* --- begin and end --- */

static strata_status list_variants(struct optim *o, const char *isa)
{
    const bool all = isa == NULL || strcmp(isa, "auto") == 0;
    const struct st_kernels *k;

    o->variants[o->variant_count++].pass = (struct bench_pass){.name = "stream"};
    o->variants[o->variant_count++].pass = (struct bench_pass){.name = "stream_prefetch", .prefetch = true};
    for (size_t i = 0; (k = st_kernels_usable(i)) != NULL; i++) {
        if (!all && strcmp(k->name, isa) != 0)
            continue;
        assert(o->variant_count < PASSES_MAX);
        o->variants[o->variant_count++].pass = (struct bench_pass){.name = k->name, .kernels = k};
    }
    if (o->variant_count == STREAMS)
        return st_error(STRATA_E_INVAL, "--isa \"%s\" is unknown or cannot run on this processor: strata info lists what can",
                        isa);
    return STRATA_OK;
}

static void choose_sizes(struct optim *o, const struct bench_opts *opts)
{
    const bool given = opts->size_count > 0;

    o->sizes = given ? opts->sizes : sizes_default;
    o->size_count = given ? opts->size_count : (uint32_t)(sizeof(sizes_default) / sizeof(sizes_default[0]));
}

static strata_status create_planes(struct optim *o)
{
    uint64_t most = 0;
    strata_status st;

    for (uint32_t i = 0; i < o->size_count; i++)
        most = o->sizes[i] > most ? o->sizes[i] : most;
    st = bench_planes_create(&o->planes, &o->setup, most);
    return st == STRATA_OK ? bench_planes_create(&o->shares, &o->setup, (uint64_t)o->setup.threads * BENCH_SHARE_ELEMS * PLACES)
                           : st;
}

static strata_status open_all(struct optim *o, const struct bench_opts *opts)
{
    strata_status st = list_variants(o, opts->isa);

    choose_sizes(o, opts);
    if (st == STRATA_OK)
        st = bench_layouts_choose(o->layouts, opts->layouts, opts->layout_count);
    if (st == STRATA_OK)
        st = bench_setup_open(&o->setup, opts, REPEATS_DEFAULT);
    if (st != STRATA_OK)
        return st;
    const bool bound = st_topology_bind(o->setup.topology, 0) == STRATA_OK; /* this thread is worker 0 */

    st = create_planes(o);
    if (st == STRATA_OK && !opts->json)
        print_machine(o, bound);
    return st;
}

strata_status bench_optim(const struct bench_opts *opts, FILE *out)
{
    struct optim *o = calloc(1, sizeof(*o));
    strata_status st;

    if (o == NULL)
        return st_nomem(sizeof(*o));
    o->printer = (struct bench_printer){.file = out, .json = opts->json};
    st = open_all(o, opts);
    if (st == STRATA_OK)
        st = run_cases(o);
    if (st == STRATA_OK)
        st = run_divides(o);
    bench_planes_destroy(&o->shares);
    bench_planes_destroy(&o->planes);
    bench_setup_close(&o->setup);
    free(o);
    return st;
}
