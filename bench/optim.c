/* bench/optim.c - how near does an optimizer on the CPU come to the memory's own speed?
 *
 * Each layout's kernels against the faster of two streams over the same planes (bench/planes.h).  Variants take turns, so that
 * all see the same machine; `seconds` is the least of the repeats and the ratio is between least times, `seconds_median` tells
 * how noisy it was.  By default every plane exceeds the caches. */
#include "bench/planes.h"
#include "core/error.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS_DEFAULT  (UINT64_C(16) << 20)
#define REPEATS_DEFAULT 9u
#define STREAMS         2u
#define PASSES_MAX      8u

struct optim {
    struct bench_setup setup;
    struct bench_planes planes;
    struct bench_pass passes[PASSES_MAX]; /* streams first, then the tables, best first */
    uint32_t pass_count;
    double seconds[PASSES_MAX][BENCH_REPEATS_MAX];
    struct bench_printer printer;
};

static strata_status list_passes(struct optim *o, const char *isa)
{
    const bool all = isa == NULL || strcmp(isa, "auto") == 0;
    const struct st_kernels *k;

    o->passes[o->pass_count++] = (struct bench_pass){.name = "stream"};
    o->passes[o->pass_count++] = (struct bench_pass){.name = "stream_prefetch", .prefetch = true};
    for (size_t i = 0; (k = st_kernels_usable(i)) != NULL; i++) {
        if (!all && strcmp(k->name, isa) != 0)
            continue;
        assert(o->pass_count < PASSES_MAX);
        o->passes[o->pass_count++] = (struct bench_pass){.name = k->name, .kernels = k};
    }
    if (o->pass_count == STREAMS)
        return st_error(STRATA_E_INVAL, "--isa \"%s\" is unknown or cannot run on this processor: strata info lists what can",
                        isa);
    return STRATA_OK;
}

static void print_pass(struct optim *o, uint32_t i, double roof_seconds)
{
    static const char *const names[] = {"seconds_median", "ns_per_param", "params", "threads"};
    const uint64_t params = o->planes.params, bytes = params * bench_layouts[o->planes.layout].bytes;
    const double least = bench_least(o->seconds[i], o->setup.repeats);
    const double extra[] = {bench_median(o->seconds[i], o->setup.repeats), least * 1e9 / (double)params, (double)params,
                            o->setup.threads};

    bench_print(&o->printer, &(struct bench_row){.name = bench_layouts[o->planes.layout].name,
                                                 .variant = o->passes[i].name,
                                                 .bytes = bytes,
                                                 .seconds = least,
                                                 .roof_gb_per_s = (double)bytes / roof_seconds * 1e-9,
                                                 .ratio = roof_seconds / least,
                                                 .extra_names = names,
                                                 .extra = extra,
                                                 .extra_count = sizeof(names) / sizeof(names[0])});
}

/* One pass unmeasured, then the variants in turns. */
static strata_status run_layout(struct optim *o, enum bench_layout layout)
{
    const uint32_t repeats = o->setup.repeats;
    double roof_seconds;

    bench_planes_fill(&o->planes, layout);
    bench_planes_run(&o->planes, &o->passes[0]);
    for (uint32_t r = 0; r < repeats; r++) {
        const strata_status st = bench_check_cancelled(&o->setup);

        if (st != STRATA_OK)
            return st;
        bench_progress(&o->setup, bench_layouts[layout].name, r + 1);
        for (uint32_t i = 0; i < o->pass_count; i++)
            o->seconds[i][r] = bench_planes_run(&o->planes, &o->passes[i]);
    }
    bench_progress(&o->setup, NULL, 0);
    roof_seconds = bench_least(o->seconds[0], repeats);
    if (bench_least(o->seconds[1], repeats) < roof_seconds)
        roof_seconds = bench_least(o->seconds[1], repeats);
    for (uint32_t i = 0; i < o->pass_count; i++)
        print_pass(o, i, roof_seconds);
    return STRATA_OK;
}

strata_status bench_optim(const struct bench_opts *opts, FILE *out)
{
    struct optim *o = calloc(1, sizeof(*o));
    strata_status st;

    if (o == NULL)
        return st_error(STRATA_E_NOMEM, "bench optim");
    o->printer = (struct bench_printer){.file = out, .json = opts->json};
    st = list_passes(o, opts->isa);
    if (st == STRATA_OK)
        st = bench_setup_open(&o->setup, opts, REPEATS_DEFAULT);
    if (st == STRATA_OK)
        st = bench_planes_create(&o->planes, &o->setup, opts->params != 0 ? opts->params : PARAMS_DEFAULT);
    for (int layout = 0; st == STRATA_OK && layout < BENCH_LAYOUT_COUNT; layout++)
        st = run_layout(o, (enum bench_layout)layout);
    bench_planes_destroy(&o->planes);
    bench_setup_close(&o->setup);
    free(o);
    return st;
}
