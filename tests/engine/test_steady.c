/* test_steady - in steady state the engine allocates, maps and opens nothing, and the resident set stays flat.
 *
 *   test_engine_steady ALLOC_COUNTER.so [--all]
 *
 * Starts itself again with the counter preloaded.  Each I/O method: no call of ours to malloc, mmap or open after the second
 * step.  One method: resident bytes at step 250 less step 50 are at most 64 KiB, at step 1000 less step 100 256 KiB; peak within
 * the plan. */
#include "rig.h"

#include "core/trace/stats.h"
#include "core/trace/trace.h"
#include "offload/device/op_times.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TOKENS (2 * 16)

typedef void arm_fn(int on);
typedef uint64_t total_fn(void);

struct counter {
    arm_fn *arm;
    total_fn *total, *total_all;
};

/* Steps of the run whose resident set stays flat, and after how many it must have settled. */
static uint32_t flat_steps(void)
{
    return sample_is_all() ? 1000 : 250;
}

static uint32_t settled(void)
{
    return sample_is_all() ? 100 : 50;
}

static int fail(const char *what)
{
    printf("FAIL %s: %s\n", what, strata_last_error());
    return 1;
}

static strata_status run_steps(struct st_engine *eng, uint32_t steps, const struct counter *counter, uint64_t rss[2])
{
    int32_t tokens[TOKENS], targets[TOKENS];
    struct st_step_result result;
    strata_status st = STRATA_OK;

    for (uint32_t i = 1; i <= steps && st == STRATA_OK; i++) {
        for (uint32_t t = 0; t < TOKENS; t++) {
            tokens[t] = (int32_t)((i * 31 + t * 17) % 8500);
            targets[t] = (int32_t)((i * 31 + t * 17 + 5) % 8500);
        }
        st = st_engine_step(eng, tokens, targets, NULL, &result);
        if (i == 2)
            counter->arm(1);
        if (i == settled())
            rss[0] = st_stats_rss_bytes();
    }
    rss[1] = st_stats_rss_bytes();
    if (st == STRATA_OK)
        st = st_engine_flush(eng, NULL);
    counter->arm(0);
    return st;
}

/* traced: with a recorder of 50 steps and of every call of the device's ops. */
static int steady_run(const char *method, enum rig_budget host, uint32_t steps, bool traced, const struct counter *counter)
{
    struct rig_cell cell = rig_swapped();
    struct st_model *model = NULL;
    struct st_plan *plan = NULL;
    struct st_engine *eng = NULL;
    struct st_trace *trace = NULL;
    struct st_op_times *op_times = NULL;
    struct st_model_init init;
    struct st_weight_source source;
    struct st_engine_opts opts;
    struct st_config config;
    const uint64_t before = counter->total(), before_all = counter->total_all();
    uint64_t rss[2] = {0}, ours;
    int failed = 0;

    cell.io_method = method;
    cell.host = host;
    cell.act_tier = STRATA_TIER_NVME;
    if (rig_model(&model, &cell) != STRATA_OK || rig_plan(&plan, model, &cell) != STRATA_OK)
        return fail(method);
    rig_config(&config, &cell, scratch_dir);
    init = (struct st_model_init){.model = model, .seed = 1};
    source = st_model_init_source(&init);
    st_config_engine_opts(&opts, &config);
    opts.program = &plan->program;
    opts.compute = st_model_compute(model);
    opts.nvme.fake_latency_us = 1;
    (void)st_stats_rss_bytes(); /* keeps its descriptor from now on */
    if (traced && (st_engine_trace_create(&trace, &plan->program, 50, true) != STRATA_OK ||
                   st_op_times_create(&op_times, &(struct st_op_times_opts){.trace = trace, .records = true}) != STRATA_OK))
        return fail(method);
    opts.trace = trace;
    opts.op_times = op_times;
    if (st_engine_create(&eng, &opts) != STRATA_OK || st_engine_load(eng, source.read, source.ctx) != STRATA_OK ||
        run_steps(eng, steps, counter, rss) != STRATA_OK)
        failed = fail(method);
    ours = counter->total() - before;
    printf("%s: %u steps, %" PRIu64 " allocations, maps and opens of ours after step 2 (%" PRIu64 " inside libraries)\n", method,
           steps, ours, counter->total_all() - before_all - ours);
    if (ours != 0) {
        printf("FAIL %s allocates in steady state\n", method);
        failed = 1;
    }
    if (steps == flat_steps()) {
        const uint64_t peak = st_stats_rss_peak_bytes(), most = plan->rss_bytes_max + plan->rss_bytes_max * 3 / 100 + (32u << 20);

        printf("resident: step %u %" PRIu64 ", step %u %" PRIu64 ", peak %" PRIu64 " of at most %" PRIu64 "\n", settled(), rss[0],
               steps, rss[1], peak, most);
        if (rss[1] > rss[0] + (sample_is_all() ? 256u << 10 : 64u << 10) || peak > most) {
            printf("FAIL the resident set grows, or is over the plan\n");
            failed = 1;
        }
    }
    st_engine_destroy(eng);
    st_op_times_destroy(op_times);
    st_trace_destroy(trace);
    st_plan_destroy(plan);
    st_model_destroy(model);
    return failed;
}

/* The counter must see a call of ours, or all the zeros below mean nothing. */
static int counter_counts(const struct counter *counter)
{
    const uint64_t before = counter->total();
    void *volatile block;

    counter->arm(1);
    block = malloc(64);
    counter->arm(0);
    free(block);
    if (counter->total() == before + 1)
        return 0;
    printf("FAIL the counter missed a malloc\n");
    return 1;
}

static int run_all(const struct counter *counter)
{
    int failed = counter_counts(counter);

    if (scratch_create(NULL) != 0)
        return 1;
    failed |= steady_run("uring", RIG_ALL, flat_steps(), false, counter);
    failed |= steady_run("uring", RIG_SMALLEST, 20, false, counter);
    failed |= steady_run("uring", RIG_SMALLEST, 60, true, counter);
    failed |= steady_run("threads", RIG_ALL, 20, false, counter);
    failed |= steady_run("fake", RIG_ALL, 20, false, counter);
    failed |= scratch_remove_empty(NULL) != 0;
    return failed;
}

int main(int argc, char **argv)
{
    struct counter counter;

    if (argc < 2) {
        fprintf(stderr, "usage: %s ALLOC_COUNTER.so [--all]\n", argv[0]);
        return 2;
    }
    if (getenv("LD_PRELOAD") == NULL) {
        setenv("LD_PRELOAD", argv[1], 1);
        execv("/proc/self/exe", argv);
        perror("exec");
        return 1;
    }
    *(void **)&counter.arm = dlsym(RTLD_DEFAULT, "alloc_counter_arm");
    *(void **)&counter.total = dlsym(RTLD_DEFAULT, "alloc_counter_total");
    *(void **)&counter.total_all = dlsym(RTLD_DEFAULT, "alloc_counter_total_all");
    if (counter.arm == NULL || counter.total == NULL || counter.total_all == NULL) {
        printf("FAIL the counter is not loaded: %s\n", argv[1]);
        return 1;
    }
    sample_init(argc - 1, argv + 1);
    return run_all(&counter);
}
