/* plan_evaluate.c - the evaluator of candidates: seconds of a simulated step, at rates that are known or nominal.
 *
 * Where rates are unknown, it simulates a nominal machine, on which compute, update, disk, both links and what ranks exchange
 * take equally long for the smallest placement (updates, copies and exchanges less, if the device is the host): no measurement
 * enters, so that the plan is the same everywhere. */
#include "offload/plan/plan_choose_internal.h"

#include "core/base/error.h"
#include "offload/simulate/early_forecast.h"
#include "offload/simulate/simulate.h"

#include <math.h>

#define MERGED_MICROS 12u
#define FEW_MICROS    8u
#define MORE_MICROS   12u
#define MANY_MICROS   24u    /* steps of at least so many are not simulated whole, */
#define MANY_OPS      20000u /* if their programs are as long as this */

/* --- the nominal machine --- */

/* At least one, where no layer says any. */
static double flops(const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;
    double sum = 0;

    for (uint32_t l = 0; l < w->layer_count; l = plan->sums->layer_end[l]) {
        const struct st_layer *layer = &w->layers[l];
        const uint32_t count = plan->sums->layer_end[l] - l;

        if (layer->kind == ST_LAYER_BLOCK || layer->kind == ST_LAYER_EXPERTS) /* forward twice */
            sum += count * (2 * layer->forward_flops + layer->backward_flops + layer->experts_forward_flops +
                            layer->experts_backward_flops);
        else
            sum = sum + layer->forward_flops + layer->backward_flops;
    }
    return sum > 0 ? w->grad_accum * sum : 1;
}

/* On a device that is the host, updates and copies are passes over memory, which take little time compared with compute. */
#define HOST_UPDATE 0.125
#define HOST_LINK   0.03125

/* Each resource takes one second for the smallest placement. On a device that is the host, where they take turns, updates and
 * copies take less, and the disk takes as long as all of them together. A resource without work is as fast as the slowest
 * link. */
void st_evaluator_nominal(struct st_machine *machine, const struct st_plan *smallest)
{
    const struct st_workload *w = &smallest->program.workload;
    const uint64_t checkpoints =
        smallest->decided.activation_tier == STRATA_TIER_DEVICE ? 0 : smallest->sums->boundaries_plain * w->grad_accum;
    const bool host = smallest->capacity.device_is_host;
    const double update = host ? HOST_UPDATE : 1, link = host ? HOST_LINK : 1, disk = host ? 1 + update + 2 * link : 1;
    struct st_traffic sum;
    struct st_moved moved;

    st_plan_moved(&moved, smallest);
    sum = st_moved_sum(&moved);
    *machine = (struct st_machine){.name = "nominal", .capacity = smallest->capacity};
    machine->rates.matmul_flops = flops(smallest);
    machine->rates.update = (double)w->params / update;
    machine->rates.upload = (double)(sum.upload + checkpoints + 1) / link;
    machine->rates.download = (double)(sum.download + checkpoints + 1) / link;
    machine->rates.link_node = (double)(sum.comm + 1) / update;
    if (smallest->decided.activation_tier == STRATA_TIER_NVME)
        sum.read += 2 * checkpoints;
    machine->rates.read = machine->rates.write = machine->rates.mixed = (double)(sum.read + sum.write + 1) / disk;
}

/* --- shorter steps --- */

/* A plan for the same pages and chunks in `micros` micro-batches, each with `rows` tokens.  *out NULL: there are too many. */
static strata_status shorter(struct st_plan **out, const struct st_plan *plan, uint32_t micros, uint64_t rows)
{
    const struct st_workload *whole = &plan->program.workload;
    const uint64_t rows_before = (uint64_t)whole->micro_batch * whole->seq;
    const double factor = (double)rows / (double)rows_before;
    struct st_policy policy = plan->policy;
    struct st_workload w;
    strata_status st;

    if (rows > UINT32_MAX)
        return STRATA_OK;
    if ((st = st_workload_copy(&w, whole)) != STRATA_OK)
        return st;
    w.grad_accum = micros;
    w.micro_batch = 1;
    w.seq = (uint32_t)rows; /* costs are given; of these two only the product counts */
    for (uint32_t l = 0; l < w.layer_count; l++) {
        struct st_layer *layer = &w.layers[l];

        layer->boundary_bytes = (layer->boundary_bytes * rows + rows_before - 1) / rows_before;
        layer->forward_flops *= factor;
        layer->backward_flops *= factor;
        layer->experts_forward_flops *= factor;
        layer->experts_backward_flops *= factor;
    }
    policy.leaves = policy.leaves > micros ? micros : policy.leaves;
    st = st_plan_create(out, &w, &plan->capacity, &policy);
    st_workload_fini(&w);
    return st;
}

uint64_t st_plan_ops_about(const struct st_plan *plan)
{
    const struct st_workload *w = &plan->program.workload;

    return plan->program.chunk_count + 4ull * w->page_count +
           (4ull * st_block_count(w) + 2ull * st_slice_count(w) + 2ull * st_experts_count(w)) * w->grad_accum;
}

/* Leaves of a merged step are as many as before, or the step is not merged; with leaves the others are not shortened. */
static strata_status shorten(struct st_evaluator *evaluator)
{
    const struct st_plan *plan = evaluator->plan;
    const uint32_t micros = plan->program.workload.grad_accum, leaves = plan->policy.leaves;
    const uint32_t merged = leaves * (leaves < MERGED_MICROS ? MERGED_MICROS / leaves : 1);
    const uint64_t rows = (uint64_t)plan->program.workload.micro_batch * plan->program.workload.seq;
    strata_status st = STRATA_OK;

    if (st_plan_ops_about(plan) < MANY_OPS)
        return STRATA_OK;
    if (plan->policy.accumulation != ST_ACCUMULATE_HORIZONTAL && 2 * merged <= micros)
        st = shorter(&evaluator->merged, plan, merged, (rows * micros + merged / 2) / merged);
    if (st == STRATA_OK && plan->policy.accumulation != ST_ACCUMULATE_VERTICAL && leaves == 1 && micros >= MANY_MICROS &&
        (st = shorter(&evaluator->few, plan, FEW_MICROS, rows)) == STRATA_OK)
        st = shorter(&evaluator->more, plan, MORE_MICROS, rows);
    return st;
}

strata_status st_evaluator_init(struct st_evaluator *evaluator, struct st_plan *plan, const struct st_machine *machine)
{
    strata_status st;

    *evaluator = (struct st_evaluator){.machine = machine, .plan = plan};
    if ((st = shorten(evaluator)) != STRATA_OK)
        st_evaluator_fini(evaluator);
    return st;
}

void st_evaluator_fini(struct st_evaluator *evaluator)
{
    st_plan_destroy(evaluator->merged);
    st_plan_destroy(evaluator->few);
    st_plan_destroy(evaluator->more);
    *evaluator = (struct st_evaluator){0};
}

/* The mean of a run of which so many steps are clipped. */
static strata_status weigh_clipped(double *seconds, struct st_evaluator *evaluator, struct st_plan *plan)
{
    struct st_early_forecast f = {.kept = *seconds};
    double redone;
    strata_status st = st_simulate_beside(&redone, &plan->program, evaluator->machine, ST_PHASE_REDO, &plan->scratch);

    if (st == STRATA_OK)
        st = st_simulate_beside(&f.gated, &plan->program, evaluator->machine, ST_PHASE_REDO | ST_PHASE_LATE, &plan->scratch);
    evaluator->ops += 2 * plan->program.op_count;
    f.redo_adds = fmax(0, redone - f.kept); /* about */
    *seconds = st_early_forecast_mean(&f, plan->policy.clip_rate);
    return st;
}

static strata_status simulate(double *seconds, struct st_evaluator *evaluator, struct st_plan *plan, double limit)
{
    strata_status st;

    if (plan != evaluator->plan) {
        plan->decided = evaluator->plan->decided;
        plan->policy.update = evaluator->plan->policy.update;
    }
    if ((st = st_plan_build(plan)) != STRATA_OK)
        return st;
    evaluator->ops += plan->program.op_count;
    st = st_simulate_seconds(seconds, &plan->program, evaluator->machine, limit, &plan->scratch);
    return st == STRATA_OK && plan->policy.clip_rate > 0 && plan->program.early_pages > 0 && *seconds <= limit
               ? weigh_clipped(seconds, evaluator, plan)
               : st;
}

/* Each micro-batch more takes as long as those of which one program has more than the other; but what these hide may come to
 * light with many, so that the step is no shorter than its bound. */
static strata_status extrapolate(double *seconds, struct st_evaluator *evaluator)
{
    const double beyond = evaluator->plan->program.workload.grad_accum - MORE_MICROS;
    double few, more, work, bound;
    strata_status st;

    if ((st = simulate(&few, evaluator, evaluator->few, HUGE_VAL)) != STRATA_OK ||
        (st = simulate(&more, evaluator, evaluator->more, HUGE_VAL)) != STRATA_OK)
        return st;
    bound = st_plan_bound(evaluator->plan, evaluator->machine, &work);
    *seconds = fmax(bound, more + beyond * (more - few) / (MORE_MICROS - FEW_MICROS));
    return STRATA_OK;
}

strata_status st_evaluator_seconds(double *seconds, struct st_evaluator *evaluator, double limit)
{
    const bool horizontal = evaluator->plan->decided.accumulation == ST_ACCUMULATE_HORIZONTAL;

    if (horizontal && evaluator->more != NULL)
        return extrapolate(seconds, evaluator);
    return simulate(seconds, evaluator, horizontal || evaluator->merged == NULL ? evaluator->plan : evaluator->merged, limit);
}
