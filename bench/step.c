/* bench/step.c - a training step under each schedule: predicted before it runs, run, and held against its bound.
 *
 * Rates that this machine lends (disk and update; on the cpu device links and matmuls as well) are probed before the first step
 * and between the steps, never taken from the run; their medians give the bound.  The prediction uses the first probe alone, as
 * a machine file made before the run would.  A paced device's links and compute are the machine file's. */
#include "bench/bench.h"
#include "bench/bench_setup.h"
#include "core/error.h"
#include "core/rng.h"
#include "core/size.h"
#include "offload/device_paced.h"
#include "offload/machine.h"
#include "offload/simulate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WARM_UPS   2u /* the first step has no update pending, the second a cold disk */
#define PROBES     5u /* rounds in a run, the one before it included */
#define VARIANTS   6u
#define SIM_OPS    2000000u
#define RATE_COUNT 9u

/* Rates that probes renew. */
static double *rate_at(struct st_machine *m, uint32_t i)
{
    double *const rates[RATE_COUNT] = {&m->matmul_flops, &m->block_flops, &m->upload, &m->download, &m->update,
                                       &m->checksum,     &m->read,        &m->write,  &m->mixed};

    return rates[i];
}

struct step_bench {
    const struct bench_step_opts *opts;
    struct bench_setup setup; /* of hooks alone */
    struct bench_opts common;
    struct st_machine machine; /* as the file says, with this machine's first probe */
    struct bench_printer printer;
    bool disk;

    /* of the running schedule */
    struct st_machine probed[PROBES];
    uint32_t probe_count;
    double seconds[BENCH_REPEATS_MAX], stall_ms[BENCH_REPEATS_MAX];
    uint32_t done;
    struct st_traffic moved; /* of one steady step */
    int32_t *tokens, *targets;
};

struct variant {
    enum st_update_policy update;
    enum st_accumulation accumulation;
    char name[48];
};

/* --- rates --- */

static unsigned what_to_probe(const struct step_bench *b)
{
    unsigned what = ST_MEASURE_UPDATE;

    if (b->opts->device != NULL && strcmp(b->opts->device, "cpu") == 0)
        what |= ST_MEASURE_COMPUTE | ST_MEASURE_LINKS;
    return b->disk ? what | ST_MEASURE_DISK : what;
}

static strata_status probe(struct step_bench *b, struct st_machine *machine)
{
    const struct bench_step_opts *o = b->opts;
    const struct st_config *c = o->config;
    const struct st_compute *compute = o->device != NULL && strcmp(o->device, "cpu") == 0 ? &o->compute : NULL;
    strata_status st;

    if (o->device == NULL)
        return STRATA_OK;
    st = st_machine_measure(machine, o->workload, compute, c, o->topology, what_to_probe(b));
    if (strcmp(c->io_method, "fake") == 0) {
        machine->read = machine->write = machine->mixed = (double)c->io_limit;
        machine->drives = 0;
    }
    if (c->upload_limit > 0 && (double)c->upload_limit < machine->upload)
        machine->upload = (double)c->upload_limit;
    if (c->download_limit > 0 && (double)c->download_limit < machine->download)
        machine->download = (double)c->download_limit;
    return st;
}

static strata_status probe_again(struct step_bench *b)
{
    struct st_machine *m = &b->probed[b->probe_count];
    const strata_status st = bench_check_cancelled(&b->setup);

    if (st != STRATA_OK)
        return st;
    *m = b->machine;
    b->probe_count++;
    return probe(b, m);
}

static void median_rates(struct step_bench *b, struct st_machine *out)
{
    double values[PROBES];

    *out = b->machine;
    for (uint32_t r = 0; r < RATE_COUNT; r++) {
        for (uint32_t i = 0; i < b->probe_count; i++)
            values[i] = *rate_at(&b->probed[i], r);
        if (b->probe_count > 0)
            *rate_at(out, r) = bench_median(values, b->probe_count);
    }
}

/* --load: compute takes so many times what the busiest other resource takes. */
static strata_status scale_compute(struct step_bench *b, const struct st_policy *policy)
{
    struct st_plan *plan = NULL;
    const struct st_bounds *t;
    double rest;
    strata_status st;

    if (!(b->opts->load > 0))
        return STRATA_OK;
    if (b->machine.device_is_host)
        return st_error(STRATA_E_INVAL, "--load is for a paced device: on cpu the processor computes as fast as it can");
    st = st_plan_make(&plan, b->opts->workload, &b->machine, policy);
    if (st == STRATA_OK) {
        t = &plan->bounds;
        rest = fmax(fmax(t->io, t->update), fmax(t->upload, t->download));
        if (rest > 0) {
            b->machine.matmul_flops *= (t->compute_forward + t->compute_backward) / (b->opts->load * rest);
            b->machine.block_flops = 0;
        }
    }
    st_plan_destroy(plan);
    return st;
}

/* --- one schedule, run --- */

static strata_status fill_tokens(struct step_bench *b)
{
    const struct st_workload *w = b->opts->workload;
    const uint64_t count = (uint64_t)w->micro_batch * w->seq * w->grad_accum;

    b->tokens = malloc(count * sizeof(*b->tokens));
    b->targets = malloc(count * sizeof(*b->targets));
    if (b->tokens == NULL || b->targets == NULL)
        return st_error(STRATA_E_NOMEM, "bench step: no memory for %llu tokens", (unsigned long long)count);
    for (uint64_t i = 0; i < count; i++) {
        b->tokens[i] = (int32_t)(st_rng_u64(1, 0, i) % w->vocab);
        b->targets[i] = (int32_t)(st_rng_u64(1, 1, i) % w->vocab);
    }
    return STRATA_OK;
}

static strata_status one_step(struct step_bench *b, struct st_engine *engine, struct st_step_result *result)
{
    const strata_status st = bench_check_cancelled(&b->setup);

    return st == STRATA_OK ? st_engine_step(engine, b->tokens, b->targets, result) : st;
}

static strata_status measured_steps(struct step_bench *b, struct st_engine *engine)
{
    const uint32_t between = (b->opts->steps + PROBES - 2) / (PROBES - 1); /* steps from one probe to the next */
    struct st_step_result result;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < WARM_UPS && st == STRATA_OK; i++)
        st = one_step(b, engine, &result);
    while (st == STRATA_OK && b->done < b->opts->steps) {
        st = one_step(b, engine, &result);
        if (st != STRATA_OK)
            break;
        b->seconds[b->done] = result.seconds;
        b->stall_ms[b->done++] = result.stall_ms;
        b->moved = result.bytes;
        bench_progress(&b->setup, "step", b->done);
        if (b->done % between == 0 && b->probe_count < PROBES)
            st = probe_again(b);
    }
    return st;
}

static strata_status run_schedule(struct step_bench *b, const struct st_plan *plan)
{
    const struct bench_step_opts *o = b->opts;
    const bool paced = strcmp(o->device, "paced") == 0;
    struct st_paced_model model = {.workload = &plan->workload, .machine = b->machine};
    const struct st_engine_opts opts = {.plan = plan,
                                        .config = o->config,
                                        .compute = paced ? st_paced_compute(&model) : o->compute,
                                        .topology = o->topology,
                                        .device = o->device,
                                        .pace = &b->machine,
                                        .fake_seed = o->fake_seed,
                                        .fake_latency_us = o->fake_latency_us};
    struct st_engine *engine = NULL;
    strata_status st;

    b->done = b->probe_count = 0;
    st = probe_again(b);
    if (st != STRATA_OK)
        return st;
    o->hooks.hold();
    st = st_engine_create(&engine, &opts);
    o->hooks.release();
    o->hooks.engine(engine);
    bench_progress(&b->setup, "loading the state", 0);
    if (st == STRATA_OK)
        st = paced ? st_engine_load(engine, st_paced_fill, NULL) : st_engine_load(engine, o->fill, o->fill_ctx);
    if (st == STRATA_OK)
        st = measured_steps(b, engine);
    o->hooks.engine(NULL);
    st_engine_destroy(engine);
    bench_progress(&b->setup, NULL, 0);
    return st;
}

/* --- rows --- */

static double predicted(const struct st_plan *plan, const struct st_machine *machine, strata_status *st)
{
    struct st_simulation sim;

    *st = STRATA_OK;
    if (!st_simulate_possible(plan, machine) || plan->op_count > SIM_OPS)
        return NAN;
    *st = st_simulate(&sim, plan, machine);
    return *st == STRATA_OK ? sim.seconds : NAN;
}

static void print_row(struct step_bench *b, const struct st_plan *plan, const char *variant, double forecast)
{
    static const char *const names[] = {"predicted_ms", "bound_ms", "step/bound", "hardware_ms", "stall_ms",
                                        "upload_mb",    "down_mb",  "read_mb",    "write_mb"};
    const bool ran = b->opts->device != NULL;
    const struct st_traffic *moved = ran ? &b->moved : &plan->traffic[st_phase_index(ST_PHASE_BODY)];
    const double seconds = ran ? bench_median(b->seconds, b->done) : forecast;
    const double bound = plan->bounds.schedule > 0 ? plan->bounds.schedule : NAN;
    const double extra[] = {forecast * 1e3,
                            bound * 1e3,
                            seconds / bound,
                            plan->bounds.hardware * 1e3,
                            ran ? bench_median(b->stall_ms, b->done) : NAN,
                            (double)moved->upload * 1e-6,
                            (double)moved->download * 1e-6,
                            (double)moved->read * 1e-6,
                            (double)moved->write * 1e-6};
    const struct bench_row row = {.name = ran ? "step" : "step (predicted)",
                                  .variant = variant,
                                  .seconds = seconds,
                                  .roof_gb_per_s = NAN,
                                  .ratio = bound / seconds,
                                  .extra_names = names,
                                  .extra = extra,
                                  .extra_count = sizeof(names) / sizeof(names[0]),
                                  .bound_by = plan->bounds.bound_by};

    bench_print(&b->printer, &row);
}

static strata_status bench_variant(struct step_bench *b, const struct st_policy *base, const struct variant *v)
{
    struct st_policy policy = *base;
    struct st_plan *plan = NULL;
    struct st_machine rates;
    double forecast = NAN;
    strata_status st;

    policy.update = v->update;
    policy.accumulation = v->accumulation;
    st = st_plan_make(&plan, b->opts->workload, &b->machine, &policy);
    if (st == STRATA_OK)
        forecast = predicted(plan, &b->machine, &st);
    if (st == STRATA_OK && b->opts->device != NULL)
        st = run_schedule(b, plan);
    if (st == STRATA_OK) {
        median_rates(b, &rates);
        st_plan_set_rates(plan, &rates);
        print_row(b, plan, v->name, forecast);
    }
    st_plan_destroy(plan);
    return st;
}

/* --- which schedules --- */

static void name_variant(struct variant *v, bool accumulates)
{
    static const char *const updates[] = {
        [ST_UPDATE_SERIAL] = "serial", [ST_UPDATE_GATED] = "gated", [ST_UPDATE_IN_BACKWARD] = "in_backward"};

    snprintf(v->name, sizeof(v->name), "%s%s", updates[v->update],
             !accumulates                                ? ""
             : v->accumulation == ST_ACCUMULATE_VERTICAL ? " vertical"
                                                         : " horizontal");
}

/* The config's own first. */
static uint32_t list_variants(const struct step_bench *b, const struct st_policy *policy, struct variant out[VARIANTS])
{
    static const enum st_update_policy updates[] = {ST_UPDATE_IN_BACKWARD, ST_UPDATE_GATED, ST_UPDATE_SERIAL};
    static const enum st_accumulation orders[] = {ST_ACCUMULATE_VERTICAL, ST_ACCUMULATE_HORIZONTAL};
    const bool accumulates = b->opts->workload->grad_accum > 1;
    uint32_t count = 0;

    out[count++] = (struct variant){.update = policy->update, .accumulation = policy->accumulation};
    for (size_t u = 0; u < 3 && !b->opts->only; u++) {
        for (size_t o = 0; o < (accumulates ? 2u : 1u); o++) {
            const enum st_accumulation order = accumulates ? orders[o] : policy->accumulation;

            if ((updates[u] == ST_UPDATE_IN_BACKWARD && policy->needs_norm) ||
                (updates[u] == policy->update && order == policy->accumulation))
                continue;
            out[count++] = (struct variant){.update = updates[u], .accumulation = order};
        }
    }
    for (uint32_t i = 0; i < count; i++)
        name_variant(&out[i], accumulates);
    return count;
}

/* "auto" resolved, by the planner itself. */
static strata_status resolve_policy(const struct step_bench *b, struct st_policy *policy)
{
    struct st_plan *plan = NULL;
    strata_status st;

    st_policy_from_config(policy, b->opts->config);
    st = st_plan_make(&plan, b->opts->workload, &b->machine, policy);
    if (st == STRATA_OK) {
        policy->update = plan->policy.update;
        policy->accumulation = plan->policy.accumulation;
    }
    st_plan_destroy(plan);
    return st;
}

static void print_machine(const struct step_bench *b, FILE *out)
{
    const struct st_machine *m = &b->machine;

    if (b->opts->json)
        return;
    fprintf(out,
            "%s: %.4g M parameters, %u x %u x %u tokens a step; %s: matmul %.4g TFLOP/s, links %.3g and %.3g GB/s, update %.3g "
            "G/s, disk %.3g, %.3g, mixed %.3g GB/s\n",
            b->opts->workload->name, (double)b->opts->workload->params * 1e-6, b->opts->workload->grad_accum,
            b->opts->workload->micro_batch, b->opts->workload->seq, m->name, m->matmul_flops * 1e-12, m->upload * 1e-9,
            m->download * 1e-9, m->update * 1e-9, m->read * 1e-9, m->write * 1e-9, m->mixed * 1e-9);
}

static strata_status run_all(struct step_bench *b, FILE *out)
{
    struct variant variants[VARIANTS];
    struct st_policy policy;
    uint32_t count;
    strata_status st = resolve_policy(b, &policy);

    if (st == STRATA_OK)
        st = probe(b, &b->machine);
    if (st == STRATA_OK)
        st = scale_compute(b, &policy);
    if (st != STRATA_OK)
        return st;
    print_machine(b, out);
    count = list_variants(b, &policy, variants);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = bench_variant(b, &policy, &variants[i]);
    return st;
}

static bool uses_disk(const struct st_config *c)
{
    return (c->optimizer_tier == STRATA_TIER_NVME || c->param_tier == STRATA_TIER_NVME ||
            c->activation_tier == STRATA_TIER_NVME) &&
           strcmp(c->io_method, "fake") != 0;
}

strata_status bench_step(const struct bench_step_opts *opts, FILE *out)
{
    struct step_bench *b = calloc(1, sizeof(*b));
    strata_status st;

    if (b == NULL)
        return st_error(STRATA_E_NOMEM, "bench step");
    b->opts = opts;
    b->common = (struct bench_opts){.json = opts->json, .hooks = opts->hooks};
    b->setup.opts = &b->common;
    b->machine = *opts->machine;
    b->printer = (struct bench_printer){.file = out, .json = opts->json};
    b->disk = uses_disk(opts->config);
    st = fill_tokens(b);
    if (st == STRATA_OK)
        st = run_all(b, out);
    free(b->tokens);
    free(b->targets);
    free(b);
    return st;
}
