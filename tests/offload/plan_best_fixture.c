/* plan_best_fixture.c - see plan_best_fixture.h. */
#include "plan_best_fixture.h"
#include "tests/common/shape.h"
#include "tests/common/test.h"

#include "offload/machine/machine.h"
#include "offload/plan/plan_choose_internal.h"
#include "offload/simulate/simulate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define MI (1ull << 20)

/* --- models --- */

/* Published sizes; slices of the table as model/layout.c cuts them. */
static const struct model {
    const char *name;
    uint32_t blocks, hidden, vocab, slice_rows, seq;
    uint64_t block_params; /* 0: 12 hidden^2 */
    bool tied, positions;
    uint32_t share; /* of 100 cases */
} models[] = {
    {"nano", 4, 128, 256, 256, 256, 0, true, true, 10},
    {"gpt2", 12, 768, 50257, 4096, 1024, 0, true, true, 14},
    {"llama-1b", 16, 2048, 128256, 2048, 2048, 60817408, true, false, 10},
    {"llama-2-7b", 32, 4096, 32000, 1024, 2048, 202383360, false, false, 8},
    {"qwen2.5-14b", 48, 5120, 152064, 512, 2048, 275268608, false, false, 5},
    {"llama-3-70b", 80, 8192, 128256, 512, 2048, 855654400, false, false, 3},
};
#define MODELS      (sizeof(models) / sizeof(models[0]))
#define LARGE_BYTES (8ull << 30) /* of state */

static void published_workload(struct best_case *c, struct plan_draws *draws, const struct model *model)
{
    static const uint32_t accums[] = {1, 1, 2, 4, 8};
    const struct plan_sizes sizes = {.dtype = STRATA_BF16,
                                     .blocks = model->blocks,
                                     .hidden = model->hidden,
                                     .vocab = model->vocab,
                                     .slice_rows = model->slice_rows,
                                     .seq = model->seq >> plan_draw(draws, 3),
                                     .micro_batch = 1u << plan_draw(draws, 4),
                                     .grad_accum = accums[plan_draw(draws, 5)],
                                     .block_params = model->block_params,
                                     .positions = model->positions,
                                     .tied = model->tied};

    plan_workload(&c->w, &sizes, NULL);
    snprintf(c->w.name, sizeof(c->w.name), "%s", model->name);
}

static void make_workload(struct best_case *c, struct plan_draws *draws)
{
    uint64_t drawn = plan_draw(draws, 100);

    for (size_t i = 0; i < MODELS; i++) {
        if (drawn < models[i].share) {
            published_workload(c, draws, &models[i]);
            return;
        }
        drawn -= models[i].share;
    }
    plan_random_workload(&c->w, draws, false);
    snprintf(c->w.name, sizeof(c->w.name), "random");
}

/* --- machines --- */

static const char *const files[] = {"card-24gb", "h100-node8", "h200-node", "laptop-8gb", "two-cores"};
#define FILES (sizeof(files) / sizeof(files[0]))

/* The machine that evaluates where no rates are known: its rates follow from the run. */
static const char nominal[] = "nominal";

void best_nominal_rates(struct st_machine *machine, const struct best_case *c)
{
    struct st_machine evaluator;
    struct st_plan *smallest;

    if (st_plan_create(&smallest, &c->w, &machine->capacity, &c->policy) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    (void)st_plan_smallest_fits(smallest);
    st_evaluator_nominal(&evaluator, smallest);
    machine->rates = evaluator.rates;
    st_plan_destroy(smallest);
}

/* 1, 2, 4, ... times `least`, and some percent. */
static double draw_rate(struct plan_draws *draws, double least, uint64_t powers)
{
    return least * (double)(1ull << plan_draw(draws, powers)) * (1.0 + 0.1 * (double)plan_draw(draws, 10));
}

static void random_machine(struct st_machine *m, struct plan_draws *draws)
{
    struct st_rates *r = &m->rates;

    *m = (struct st_machine){.name = "random", .capacity.workers = 2, .capacity.device_is_host = plan_draw(draws, 3) == 0};
    r->drives = 1;
    r->matmul_flops = draw_rate(draws, 1e12, 10);
    r->block_flops = 0.8 * r->matmul_flops;
    r->memory = r->matmul_flops / ST_MACHINE_FLOPS_PER_BYTE;
    r->upload = r->download = draw_rate(draws, 1e9, 7);
    r->read = draw_rate(draws, 5e8, 6);
    r->write = r->read * 0.1 * (double)(4 + plan_draw(draws, 7));
    r->mixed = 0.5 * (r->read + r->write);
    r->update = draw_rate(draws, 2.5e8, 6);
    r->checksum = 60 * r->update;
    r->link_node = r->upload;
}

static void make_machine(struct best_case *c, struct plan_draws *draws)
{
    char path[64];
    const uint64_t drawn = plan_draw(draws, 2 * FILES + 1);

    if (drawn >= FILES) {
        random_machine(&c->machine, draws);
        if (drawn == 2 * FILES)
            snprintf(c->machine.name, sizeof(c->machine.name), "%s", nominal);
        return;
    }
    snprintf(path, sizeof(path), "tests/machines/%s.json", files[drawn]);
    if (st_machine_read(&c->machine, path) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    snprintf(c->machine.name, sizeof(c->machine.name), "%s", files[drawn]);
}

/* --- cases --- */

static void make_policy(struct best_case *c, struct plan_draws *draws)
{
    static const strata_tier tiers[][2] = {{STRATA_TIER_HOST, STRATA_TIER_HOST},   {STRATA_TIER_HOST, STRATA_TIER_HOST},
                                           {STRATA_TIER_HOST, STRATA_TIER_NVME},   {STRATA_TIER_NVME, STRATA_TIER_NVME},
                                           {STRATA_TIER_DEVICE, STRATA_TIER_HOST}, {STRATA_TIER_DEVICE, STRATA_TIER_NVME}};
    const strata_tier *tier = tiers[plan_draw(draws, 6)];

    c->policy = (struct st_policy){.param_tier = tier[0],
                                   .optimizer_tier = tier[1],
                                   .activation_tier = STRATA_TIER_COUNT,
                                   .update = ST_UPDATE_AUTO,
                                   .accumulation = ST_ACCUMULATE_AUTO,
                                   .needs_norm = plan_draw(draws, 3) > 0,
                                   .streamed = ST_STREAMED_AUTO,
                                   .cache = ST_AUTO_BYTES};
    if (plan_draw(draws, 8) > 0)
        return;
    c->policy.ranks = 2u << plan_draw(draws, 2);
    c->policy.stage = (uint32_t)plan_draw(draws, 4);
}

static uint64_t bytes_of_all(const struct st_workload *w, strata_tier tier)
{
    const uint64_t state = 12 * w->params, weights = 4 * w->params;
    const uint64_t kept =
        (shape_of(w).block_internal_bytes + shape_of(w).activation_bytes) * shape_of(w).block_count * w->grad_accum;

    return tier == STRATA_TIER_DEVICE ? state + weights + kept : state + weights;
}

/* From what the smallest placement needs to a little more than there could be use for, small ones more often. */
static void make_budgets(struct best_case *c, struct plan_draws *draws)
{
    struct st_plan *plan;

    c->machine.capacity.bytes[STRATA_TIER_NVME] = 1ull << 46;
    c->machine.capacity.bytes[STRATA_TIER_DEVICE] = c->machine.capacity.bytes[STRATA_TIER_HOST] = 0;
    plan = plan_try(&c->w, &c->machine, &c->policy, "least");
    for (int t = STRATA_TIER_DEVICE; t <= STRATA_TIER_HOST; t++) {
        const double part = (double)plan_draw(draws, 1001) / 1000;

        c->machine.capacity.bytes[t] =
            plan->minimum[t] + (uint64_t)(1.1 * part * part * part * (double)bytes_of_all(&c->w, (strata_tier)t));
    }
    st_plan_destroy(plan);
}

static const char *tier_letter(strata_tier tier)
{
    return tier == STRATA_TIER_DEVICE ? "device" : tier == STRATA_TIER_HOST ? "host" : "nvme";
}

static void make_case(struct best_case *c, uint64_t seed, uint32_t micros)
{
    struct plan_draws draws = {.seed = seed};

    *c = (struct best_case){.seed = seed};
    make_workload(c, &draws);
    if (micros > 0)
        c->w.grad_accum = (micros << plan_draw(&draws, 4)) + (uint32_t)(seed % 3);
    make_machine(c, &draws);
    make_policy(c, &draws);
    c->large = 12 * c->w.params > LARGE_BYTES;
    make_budgets(c, &draws);
    if (strcmp(c->machine.name, nominal) == 0)
        best_nominal_rates(&c->machine, c);
    snprintf(
        c->what, sizeof(c->what),
        "seed %llu: %s, %u x %u tokens x %u, on %s%s, weights %s, state %s%s, ranks %u stage %u, device %.4g MiB, host %.4g MiB",
        (unsigned long long)seed, c->w.name, c->w.micro_batch, c->w.seq, c->w.grad_accum, c->machine.name,
        c->machine.capacity.device_is_host ? " (cpu)" : "", tier_letter(c->policy.param_tier),
        tier_letter(c->policy.optimizer_tier), c->policy.needs_norm ? ", norm" : "", c->policy.ranks, c->policy.stage,
        (double)c->machine.capacity.bytes[STRATA_TIER_DEVICE] / MI, (double)c->machine.capacity.bytes[STRATA_TIER_HOST] / MI);
}

void best_case_make(struct best_case *c, uint64_t seed)
{
    make_case(c, seed, 0);
}

void best_case_many_micros(struct best_case *c, uint64_t seed)
{
    make_case(c, seed, 16);
}

void best_case_fini(struct best_case *c)
{
    st_workload_fini(&c->w);
}

/* --- settings --- */

static const struct {
    const char *name;
    uint32_t count;
    const char *values[6];
} axes[BEST_AXES] = {
    [BEST_STREAMED] = {"streamed", 17, {NULL}},
    [BEST_CACHE] = {"cache", 5, {"none", "1/4", "1/2", "3/4", "auto"}},
    [BEST_ACTIVATIONS] = {"activations", 3, {"auto", "kept", "recomputed"}},
    [BEST_ACCUMULATION] = {"accumulation", 2, {"vertical", "horizontal"}},
    [BEST_UPDATE] = {"update", 3, {"serial", "gated", "in_backward"}},
    [BEST_CHUNK] = {"chunk", 4, {"1 Mi", "4 Mi", "16 Mi", "64 Mi"}},
};

const struct best_setting best_all_open = {{BEST_OPEN, BEST_OPEN, BEST_OPEN, BEST_OPEN, BEST_OPEN, BEST_OPEN}};

uint32_t best_axis_values(enum best_axis axis)
{
    return axes[axis].count;
}

bool best_setting_policy(struct st_policy *policy, const struct best_case *c, const struct best_setting *s, uint64_t promoted)
{
    const uint32_t *v = s->value;

    *policy = c->policy;
    if (v[BEST_STREAMED] != BEST_OPEN)
        policy->streamed = v[BEST_STREAMED] * (ST_STREAMED_PARTS / 16);
    if (v[BEST_CACHE] != BEST_OPEN && v[BEST_CACHE] < 4)
        policy->cache = promoted / 4 * v[BEST_CACHE];
    if (v[BEST_ACTIVATIONS] != BEST_OPEN)
        policy->activations = (enum st_activation_mode)v[BEST_ACTIVATIONS];
    if (v[BEST_ACCUMULATION] != BEST_OPEN)
        policy->accumulation = (enum st_accumulation)v[BEST_ACCUMULATION];
    if (v[BEST_UPDATE] != BEST_OPEN)
        policy->update = (enum st_update_policy)(ST_UPDATE_SERIAL + v[BEST_UPDATE]);
    if (v[BEST_CHUNK] != BEST_OPEN)
        policy->chunk_elems = MI << 2 * v[BEST_CHUNK];
    return !(policy->update == ST_UPDATE_IN_BACKWARD && policy->needs_norm) &&
           !(v[BEST_ACCUMULATION] != BEST_OPEN && c->w.grad_accum == 1);
}

void best_setting_text(char *buf, size_t bytes, const struct best_setting *s)
{
    size_t length = 0;

    buf[0] = '\0';
    for (uint32_t a = 0; a < BEST_AXES; a++) {
        char number[16];

        if (s->value[a] == BEST_OPEN)
            continue;
        snprintf(number, sizeof(number), "%u/16", s->value[a]);
        length += (size_t)snprintf(buf + length, bytes - length, "%s%s %s", length > 0 ? ", " : "", axes[a].name,
                                   a == BEST_STREAMED ? number : axes[a].values[s->value[a]]);
        if (length >= bytes)
            return;
    }
}

/* --- plans --- */

struct st_plan *best_plan(const struct best_case *c, const struct st_policy *policy, const struct st_machine *machine)
{
    struct st_plan *plan = NULL;
    const strata_status st = st_plan_make_evaluated(&plan, &c->w, &machine->capacity, policy, machine, ST_EFFORT_WHOLE);

    if (st != STRATA_OK && st != STRATA_E_NOFIT)
        fail_msg("%s: %s", c->what, strata_last_error());
    if (st == STRATA_OK)
        return plan;
    st_plan_destroy(plan);
    return NULL;
}

double best_seconds(const struct st_plan *plan, const struct st_machine *machine)
{
    struct st_simulation sim;

    if (st_simulate(&sim, &plan->program, machine) != STRATA_OK)
        fail_msg("%s", strata_last_error());
    return sim.seconds;
}

/* --- what is worst --- */

/* The row that a case has already, else the last one. */
static uint32_t row_of(const struct best_worst *worst, uint64_t seed)
{
    uint32_t row = 0;

    while (row < BEST_WORST - 1 && worst->rows[row].seed != seed)
        row++;
    return row;
}

void best_note(struct best_worst *worst, const struct best_case *c, double seconds, double best, const char *how)
{
    const double excess = seconds / best - 1;
    uint32_t row = row_of(worst, c->seed);

    worst->compared++;
    worst->over += excess > worst->limit;
    if (excess > worst->limit)
        print_message("%s: %+.2f %%: %.6g s, %.6g s %s; %s\n", worst->property, 100 * excess, seconds, best, how, c->what);
    if (worst->rows[row].seed != 0 && excess <= worst->rows[row].excess)
        return;
    for (; row > 0 && (worst->rows[row - 1].seed == 0 || excess > worst->rows[row - 1].excess); row--)
        worst->rows[row] = worst->rows[row - 1];
    worst->rows[row].excess = excess;
    worst->rows[row].seed = c->seed;
    snprintf(worst->rows[row].what, sizeof(worst->rows[row].what), "%.6g s, %.6g s %s; %s", seconds, best, how, c->what);
}

void best_print(const struct best_worst *worst)
{
    print_message("%s: %llu compared, %llu above %.1f %%\n", worst->property, (unsigned long long)worst->compared,
                  (unsigned long long)worst->over, 100 * worst->limit);
    for (uint32_t i = 0; i < BEST_WORST && worst->rows[i].seed != 0; i++)
        print_message("  %+.2f %%: %s\n", 100 * worst->rows[i].excess, worst->rows[i].what);
}

bool best_holds(const struct best_worst *worst)
{
    return (double)worst->over <= ceil(worst->part * (double)worst->compared) && worst->rows[0].excess <= worst->most;
}
