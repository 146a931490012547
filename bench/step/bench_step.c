/* bench/step/bench_step.c - a training step under each schedule: predicts it, runs it, and compares it with its bounds.
 *
 * The rates that come from this machine (disk and update; on cpu and cuda also links and matmuls) are probed before the first
 * step, between the steps and after them, and never taken from the run itself; their medians give the bounds.  The prediction
 * uses only the first probe, like a machine file made before the run.  The links and the compute of a paced device come from the
 * machine file.
 *
 * With several budgets of device memory, the configuration's own schedule runs with each in turns, in reverse order every other
 * round; the cost of a smaller budget is the median step of the largest budget divided by its own.  So does it with another one
 * that it is compared with. */
#include "bench/step/step_case.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/rng.h"
#include "core/base/size.h"
#include "offload/config/config_options.h"
#include "offload/simulate/simulate.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CASES_MAX 8u /* schedules, or budgets */
#define ROUNDS    2u /* of cases that take turns */
#define SIM_OPS   2000000u

struct variant {
    enum st_update_policy update;
    enum st_accumulation accumulation;
};

/* --load: scales compute to take this many times as long as the busiest other resource. */
static strata_status scale_compute(struct step_bench *b, const struct st_policy *policy)
{
    struct st_plan *plan = NULL;
    struct st_bounds t;
    double rest, factor;
    strata_status st;

    if (!(b->opts->load > 0))
        return STRATA_OK;
    if (b->machine.capacity.device_is_host)
        return st_error(STRATA_E_INVAL, "--load is for a paced device: on cpu the processor computes as fast as it can");
    st = st_plan_make(&plan, &b->of->workload, &b->machine.capacity, policy);
    st = st_plan_advise(plan, st);
    if (st == STRATA_OK) {
        st_bounds_make(&t, &plan->program, &b->machine);
        rest = fmax(fmax(t.io, t.update), fmax(t.upload, t.download));
        if (rest > 0) {
            factor = (t.compute_forward + t.compute_backward) / (b->opts->load * rest);
            b->machine.rates.matmul_flops *= factor;
            b->machine.rates.block_flops *= factor;
            b->machine.rates.experts_flops *= factor;
            b->machine.rates.head_flops *= factor;
            b->machine.rates.memory *= factor;
        }
    }
    st_plan_destroy(plan);
    return st;
}

static strata_status fill_tokens(struct step_bench *b)
{
    const struct st_workload *w = &b->of->workload;
    const uint64_t count = (uint64_t)w->micro_batch * w->seq * w->grad_accum;

    b->tokens = malloc(count * sizeof(*b->tokens));
    b->targets = malloc(count * sizeof(*b->targets));
    if (b->tokens == NULL || b->targets == NULL)
        return st_nomem(0);
    for (uint64_t i = 0; i < count; i++) {
        b->tokens[i] = (int32_t)(st_rng_u64(1, 0, i) % w->vocab);
        b->targets[i] = (int32_t)(st_rng_u64(1, 1, i) % w->vocab);
    }
    return STRATA_OK;
}

/* --- cases --- */

/* Of a steady step, and of what a dropped one costs the next. */
static strata_status predict(const struct step_bench *b, struct step_case *c)
{
    const struct st_program *program = &c->plan->program;
    struct st_simulation sim;
    strata_status st;

    c->forecast = NAN;
    if (!st_simulate_possible(program, &c->machine) || program->op_count > SIM_OPS)
        return STRATA_OK;
    st = st_simulate(&sim, program, &c->machine);
    c->redo = 0;
    if (st == STRATA_OK && b->opts->clip_rate > 0 && program->early_pages > 0)
        st = st_simulate_redo(&c->redo, program, &c->machine);
    if (st == STRATA_OK)
        c->forecast = sim.seconds + b->opts->clip_rate * c->redo;
    return st;
}

/* Both arenas are in this machine's memory, whatever a file says about the rehearsed machine; a GPU's own memory is not. */
static strata_status check_memory(const struct step_bench *b, const struct st_plan *plan)
{
    const uint64_t available = st_topology_memory_available(b->of->topology);
    const bool rehearsed = !plan->capacity.device_is_host && strcmp(b->opts->device, "paced") == 0;
    const uint64_t wanted = plan->rss_bytes_max + (rehearsed ? plan->program.needed[STRATA_TIER_DEVICE] : 0);
    char want[24], have[24];

    if (wanted <= available)
        return STRATA_OK;
    return st_error(STRATA_E_NOFIT, "the run takes %s of memory, %s are free here: lower --host-memory or --device-memory",
                    st_size_text(want, wanted), st_size_text(have, available));
}

/* c->machine is set. */
static strata_status plan_case(struct step_bench *b, struct step_case *c, const struct st_policy *policy)
{
    strata_status st = st_plan_make(&c->plan, &b->of->workload, &c->machine.capacity, policy);

    st = st_plan_advise(c->plan, st);
    c->beside_bytes = NAN;
    if (st == STRATA_OK && b->opts->ops)
        st = st_op_times_create(&c->op_times, &(struct st_op_times_opts){.table_rows = b->of->workload.vocab});
    if (st == STRATA_OK && b->rates_evaluate)
        st = st_plan_evaluate(&c->plan, &c->machine);
    if (st == STRATA_OK && b->opts->device != NULL)
        st = check_memory(b, c->plan);
    if (st != STRATA_OK)
        return st;
    st_figures_make(&c->figures, &c->plan->program, &c->machine);
    return predict(b, c);
}

/* Computes the bounds from the rates of the case's own probes.  Whether host memory can be pinned is known since the engine. */
static strata_status settle(const struct step_bench *b, struct step_case *c)
{
    struct st_machine rates;

    step_median_rates(&rates, c);
    st_figures_make(&c->figures, &c->plan->program, &rates);
    if (c->staged.bytes == 0)
        return STRATA_OK;
    st_rates_stage(&c->machine.rates, c->plan->program.needed[STRATA_TIER_HOST], &c->staged);
    return predict(b, c);
}

static void free_cases(struct step_case *cases, uint32_t count)
{
    for (uint32_t i = 0; cases != NULL && i < count; i++) {
        st_plan_destroy(cases[i].plan);
        st_op_times_destroy(cases[i].op_times);
    }
    free(cases);
}

/* --- one budget: the schedules one after the other --- */

static const char *const updates[] = {
    [ST_UPDATE_SERIAL] = "serial",
    [ST_UPDATE_GATED] = "gated",
    [ST_UPDATE_IN_BACKWARD] = "in_backward",
    [ST_UPDATE_SPECULATIVE] = "speculative",
};

static void name_variant(char name[64], const struct variant *v, bool accumulates)
{
    snprintf(name, 64, "%s%s", updates[v->update],
             !accumulates                                ? ""
             : v->accumulation == ST_ACCUMULATE_VERTICAL ? " vertical"
                                                         : " horizontal");
}

/* Lists the schedules, the config's own first. */
static uint32_t list_variants(const struct step_bench *b, const struct st_policy *policy, struct variant out[CASES_MAX])
{
    static const enum st_update_policy others[] = {ST_UPDATE_IN_BACKWARD, ST_UPDATE_GATED, ST_UPDATE_SERIAL};
    static const enum st_accumulation orders[] = {ST_ACCUMULATE_VERTICAL, ST_ACCUMULATE_HORIZONTAL};
    const bool accumulates = b->of->workload.grad_accum > 1;
    const enum st_update_policy own = st_policy_update(policy);
    uint32_t count = 0;

    out[count++] = (struct variant){.update = own, .accumulation = policy->accumulation};
    for (size_t u = 0; u < 3 && !b->opts->only; u++) {
        for (size_t o = 0; o < (accumulates ? 2u : 1u); o++) {
            const enum st_accumulation order = accumulates ? orders[o] : policy->accumulation;

            if ((others[u] == ST_UPDATE_IN_BACKWARD && policy->needs_norm) || (others[u] == own && order == policy->accumulation))
                continue;
            out[count++] = (struct variant){.update = others[u], .accumulation = order};
        }
    }
    return count;
}

static strata_status plan_variant(struct step_bench *b, struct step_case *c, const struct st_policy *base,
                                  const struct variant *v)
{
    struct st_policy policy = *base;

    policy.update = v->update == ST_UPDATE_SPECULATIVE ? ST_UPDATE_GATED : v->update;
    policy.early = v->update != ST_UPDATE_SPECULATIVE ? 0 : base->early != 0 ? base->early : ST_EARLY_AUTO;
    policy.accumulation = v->accumulation;
    name_variant(c->name, v, b->of->workload.grad_accum > 1);
    c->machine = b->machine;
    return plan_case(b, c, &policy);
}

static strata_status print_case(struct step_bench *b, struct step_case *c, double fastest)
{
    const strata_status st = settle(b, c);

    if (st != STRATA_OK)
        return st;
    step_print_row(b, c, fastest);
    return step_print_ops(b, c);
}

static strata_status run_schedules(struct step_bench *b, const struct st_policy *base)
{
    struct variant variants[CASES_MAX];
    const uint32_t count = list_variants(b, base, variants);
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        struct step_case *c = calloc(1, sizeof(*c));

        if (c == NULL)
            return st_nomem(sizeof(*c));
        st = plan_variant(b, c, base, &variants[i]);
        if (st == STRATA_OK && b->opts->device != NULL)
            st = step_run(b, c, b->opts->steps, false);
        if (st == STRATA_OK)
            st = print_case(b, c, NAN);
        free_cases(c, 1);
    }
    return st;
}

/* --- several cases, in turns --- */

static strata_status run_rounds(struct step_bench *b, struct step_case *cases, uint32_t count)
{
    const uint32_t rounds = b->opts->device != NULL ? ROUNDS : 0;
    strata_status st = STRATA_OK;

    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t until = (b->opts->steps * (round + 1) + ROUNDS - 1) / ROUNDS;

        for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
            struct step_case *c = &cases[round % 2 == 0 ? i : count - 1 - i];

            if (c->done < until) /* the last one of a round is the next round's first */
                st = step_run(b, c, until, i + 1 == count && round + 1 < rounds && until < b->opts->steps);
        }
    }
    return st;
}

/* The schedule of the configuration, and the one beside it. */
static strata_status run_beside(struct step_bench *b, const struct st_policy *base, enum st_update_policy beside)
{
    const struct variant variants[] = {{base->early != 0 ? ST_UPDATE_SPECULATIVE : base->update, base->accumulation},
                                       {beside, base->accumulation}};
    struct step_case *cases = calloc(2, sizeof(*cases));
    strata_status st = cases != NULL ? STRATA_OK : st_nomem(2 * sizeof(*cases));

    for (uint32_t i = 0; i < 2 && st == STRATA_OK; i++)
        st = plan_variant(b, &cases[i], base, &variants[i]);
    if (st == STRATA_OK)
        st = run_rounds(b, cases, 2);
    for (uint32_t i = 0; i < 2 && st == STRATA_OK; i++)
        st = print_case(b, &cases[i], NAN);
    free_cases(cases, 2);
    return st;
}

static uint64_t device_bytes(const struct step_case *c)
{
    return c->machine.capacity.bytes[STRATA_TIER_DEVICE];
}

static double largest_seconds(const struct step_bench *b, const struct step_case *cases)
{
    uint32_t largest = 0;

    for (uint32_t i = 1; i < b->opts->budget_count; i++)
        largest = device_bytes(&cases[i]) > device_bytes(&cases[largest]) ? i : largest;
    return b->opts->device != NULL ? step_seconds(b, &cases[largest]) : cases[largest].forecast;
}

static strata_status run_budgets(struct step_bench *b, const struct st_policy *policy)
{
    const uint32_t count = b->opts->budget_count;
    struct step_case *cases = calloc(count, sizeof(*cases));
    strata_status st = cases != NULL ? STRATA_OK : st_nomem(count * sizeof(*cases));

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        const struct bench_budget *budget = &b->opts->budgets[i];

        snprintf(cases[i].name, sizeof(cases[i].name), "%.40s", budget->name);
        cases[i].machine = b->machine;
        if (budget->bytes != ST_AUTO_BYTES)
            cases[i].machine.capacity.bytes[STRATA_TIER_DEVICE] = budget->bytes;
        st = plan_case(b, &cases[i], policy);
    }
    if (st == STRATA_OK)
        st = run_rounds(b, cases, count);
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        st = print_case(b, &cases[i], largest_seconds(b, cases));
    free_cases(cases, count);
    return st;
}

/* --- all --- */

/* Lets the planner itself resolve "auto". */
static strata_status resolve_policy(const struct step_bench *b, struct st_policy *policy)
{
    struct st_plan *plan = NULL;
    strata_status st;

    st_config_policy(policy, &b->config);
    if (b->opts->clip_rate > 0)
        policy->clip_rate = b->opts->clip_rate;
    st = st_plan_make_evaluated(&plan, &b->of->workload, &b->machine.capacity, policy, b->rates_evaluate ? &b->machine : NULL,
                                ST_EFFORT_WHOLE);
    st = st_plan_advise(plan, st);
    if (st == STRATA_OK) {
        policy->update = plan->policy.update;
        policy->early = plan->policy.early;
        policy->accumulation = plan->decided.accumulation;
    }
    if (st == STRATA_OK && b->opts->device != NULL)
        st = check_memory(b, plan);
    st_plan_destroy(plan);
    return st;
}

static void print_machine(const struct step_bench *b, FILE *out)
{
    const struct st_machine *m = &b->machine;

    if (b->opts->json)
        return;
    st_print(out,
             "%s: %.4g M parameters, %u x %u x %u tokens a step; %s: matmul %.4g TFLOP/s, links %.3g and %.3g GB/s, update %.3g "
             "G/s, disk %.3g, %.3g, mixed %.3g GB/s\n",
             b->of->workload.name, (double)b->of->workload.params * 1e-6, b->of->workload.grad_accum, b->of->workload.micro_batch,
             b->of->workload.seq, m->name, m->rates.matmul_flops * 1e-12, m->rates.upload * 1e-9, m->rates.download * 1e-9,
             m->rates.update * 1e-9, m->rates.read * 1e-9, m->rates.write * 1e-9, m->rates.mixed * 1e-9);
}

static strata_status run_all(struct step_bench *b, enum st_update_policy beside, FILE *out)
{
    struct st_policy policy;
    strata_status st = resolve_policy(b, &policy);

    if (st == STRATA_OK && beside == ST_UPDATE_IN_BACKWARD && policy.needs_norm)
        st = st_error(STRATA_E_INVAL, "--beside in_backward: clipping, or a step that may be skipped, needs the whole gradient "
                                      "first; set gradient_clipping to 0 and bf16.check_grad_overflow to false");
    if (st == STRATA_OK)
        st = fill_tokens(b);
    if (st == STRATA_OK)
        st = step_probe(b, &b->machine);
    if (st == STRATA_OK)
        st = scale_compute(b, &policy);
    if (st != STRATA_OK)
        return st;
    print_machine(b, out);
    if (beside != ST_UPDATE_AUTO)
        return run_beside(b, &policy, beside);
    return b->opts->budget_count > 1 ? run_budgets(b, &policy) : run_schedules(b, &policy);
}

/* Whether the device can stand for the one of the machine that is rehearsed. */
static strata_status check_device(const struct step_bench *b)
{
    const char *device = b->opts->device, *file = b->opts->machine;
    const bool is_host = b->machine.capacity.device_is_host;

    if (device == NULL)
        return STRATA_OK;
    if (strcmp(device, "paced") == 0 && is_host)
        return st_error(STRATA_E_INVAL,
                        "--machine %s: its device is its host; a paced device stands for a GPU: set device_is_host to false",
                        file);
    if (strcmp(device, "cpu") == 0 && !is_host)
        return st_error(STRATA_E_INVAL, "--machine %s describes a GPU: --device paced rehearses it, --simulate predicts", file);
    if (strncmp(device, "cuda", 4) == 0 && is_host)
        return st_error(STRATA_E_INVAL, "--machine %s: its device is its host, not a GPU", file);
    return STRATA_OK;
}

/* *beside: AUTO for none. */
static strata_status check_turns(const struct step_bench *b, enum st_update_policy *beside)
{
    const char *name = b->opts->beside;
    const uint32_t first = b->opts->clip_rate > 0 ? step_first_dropped(b->opts->clip_rate) : 0;

    *beside = ST_UPDATE_AUTO;
    for (size_t i = ST_UPDATE_SERIAL; name != NULL && i < sizeof(updates) / sizeof(updates[0]); i++)
        if (strcmp(name, updates[i]) == 0)
            *beside = (enum st_update_policy)i;
    if (name != NULL && *beside == ST_UPDATE_AUTO)
        return st_error(STRATA_E_INVAL, "--beside: no update is called \"%s\": serial, gated, in_backward or speculative", name);
    if (name != NULL && b->opts->budget_count > 1)
        return st_error(STRATA_E_INVAL, "--beside and several budgets of --device-memory: leave one out");
    if (b->opts->clip_rate > 0 && b->opts->device != NULL && first >= b->opts->steps)
        return st_error(STRATA_E_INVAL,
                        "--clip-rate %g: none of %u steps follows one that is dropped: ask for at least %u --steps",
                        b->opts->clip_rate, b->opts->steps, first + 1);
    return STRATA_OK;
}

/* Probes and engine run on this machine: with its workers, but with no more than the rehearsed machine has scratch for. */
static void take_plan(struct step_bench *b)
{
    const struct st_case *of = st_plan_case(b->opts->plan);
    const uint32_t here = st_machine_workers(of->topology, b->opts->device, 0), most = of->workload.workers;

    b->of = of;
    b->config = *of->config;
    if (b->config.threads == 0)
        b->config.threads = here < most ? here : most;
    b->machine = of->machine;
    b->rates_evaluate = st_case_evaluator(of, &of->machine) != NULL;
    b->compute = st_model_compute(of->model);
    b->init = (struct st_model_init){.model = of->model, .seed = b->opts->seed};
    b->weights = st_model_init_source(&b->init);
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
    enum st_update_policy beside;
    strata_status st;

    if (b == NULL)
        return st_nomem(sizeof(*b));
    b->opts = opts;
    b->common = (struct bench_opts){.json = opts->json, .hooks = opts->hooks};
    b->setup = (struct bench_setup){.opts = &b->common, .repeats = opts->steps};
    take_plan(b);
    assert(opts->steps <= BENCH_REPEATS_MAX && opts->budget_count <= BENCH_BUDGETS_MAX);
    b->printer = (struct bench_printer){.file = out, .json = opts->json};
    b->disk = uses_disk(&b->config);
    st = check_device(b);
    if (st == STRATA_OK)
        st = check_turns(b, &beside);
    if (st == STRATA_OK)
        st = run_all(b, beside, out);
    free(b->tokens);
    free(b->targets);
    free(b);
    return st;
}
