/* plan_balance.c - decides which processor updates what, once rates are known: the share of the state that is streamed to the
 * device.
 *
 * An update on the host reads and writes state and weight in host memory.  The gradient also arrives there and is read, and the
 * new weight is stored there and sent out.  That is 2 (s + w) + 4 w bytes per parameter, at the host's rate of updates.  An
 * update on the device costs host memory only 2 (s + w), but the link carries s more bytes each way, in addition to the weight's.
 * With a share x updated on the device, the time
 *     t(x) = max(((1 - x) host + x streamed) / D, (w + s x) / B)
 * is least where both terms are equal.  Compute may hide some of that, so this share or a smaller one is used only if a simulated
 * step is shorter.  The same rates also judge what is kept and the order of micro-batches, which were first chosen for a nominal
 * machine. */
#include "offload/plan/plan_internal.h"

#include "offload/simulate/simulate.h"

#include <math.h>

#define WORTH 0.99 /* of the step without it; a smaller gain does not justify the bytes */

/* Bytes of host memory traffic for one parameter. */
struct passes {
    double host, streamed; /* a parameter updated by the host; one whose state is streamed to the device */
    double weight, state;  /* the weight's and the state's part, which crosses the link once each way */
};

/* How most of what is trained is stored. */
static strata_dtype trained_format(const struct st_workload *w)
{
    for (uint32_t b = 0; b < w->block_count; b++) {
        const struct st_page *page = &w->pages[w->block_first + b];

        if (page->trained_elems > 0)
            return page->groups[0].format;
    }
    return w->dtype;
}

static struct passes passes_of(const struct st_plan *plan)
{
    const strata_dtype format = trained_format(&plan->program.workload);
    const uint64_t elems = plan->policy.chunk_elems;
    const double weight = (double)strata_dtype_bytes(format);
    const double state = (double)st_state_bytes(&plan->program, st_master_of(format), elems) / (double)elems;
    const double streamed = 2 * (state + weight);

    return (struct passes){.host = streamed + 4 * weight, .streamed = streamed, .weight = weight, .state = state};
}

static double best_share(const struct st_plan *plan, const struct st_machine *m)
{
    const struct passes p = passes_of(plan);
    const double memory = p.host * m->rates.update, link = fmin(m->rates.upload, m->rates.download);
    const double share = (p.host / memory - p.weight / link) / ((p.host - p.streamed) / memory + p.state / link);

    return fmin(fmax(share, 0), 1);
}

/* Simulated seconds of a step.  Streamed state passes through host memory while the host updates, and slows the host's
 * updates. */
static strata_status step_seconds(double *seconds, const struct st_plan *plan, const struct st_machine *rates)
{
    const struct passes p = passes_of(plan);
    struct st_machine m = *rates;
    double host = 0, streamed = 0;
    struct st_simulation simulation;
    strata_status st;

    for (uint32_t c = 0; c < plan->program.chunk_count; c++) {
        const struct st_page_place *place = &plan->program.pages[plan->program.chunks[c].page];

        streamed += place->state == ST_WHERE_STREAMED ? (double)plan->program.chunks[c].elems : 0;
        host += place->grad == ST_WHERE_DEVICE ? 0 : (double)plan->program.chunks[c].elems;
    }
    if (streamed > 0 && host > 0)
        m.rates.update *= p.host * host / (p.host * host + p.streamed * streamed);
    if ((st = st_simulate(&simulation, &plan->program, &m)) == STRATA_OK)
        *seconds = simulation.seconds;
    return st;
}

/* If a plan with this share streamed has a step that is enough shorter than *best, it replaces *plan, and *best is updated. */
static strata_status take_if_faster(struct st_plan **plan, double *best, const struct st_machine *rates, uint32_t share)
{
    struct st_policy policy = (*plan)->policy;
    struct st_plan *other = NULL;
    double seconds = 0;
    strata_status st;

    policy.streamed = share;
    if ((st = st_plan_make_judged(&other, &(*plan)->program.workload, &(*plan)->capacity, &policy, rates)) != STRATA_OK ||
        (st = step_seconds(&seconds, other, rates)) != STRATA_OK || seconds >= WORTH * *best) {
        st_plan_destroy(other);
        return st;
    }
    other->policy = (*plan)->policy;
    st_plan_destroy(*plan);
    *plan = other;
    *best = seconds;
    return STRATA_OK;
}

static strata_status balance(struct st_plan **plan, const struct st_machine *rates)
{
    const uint32_t asked = (*plan)->policy.streamed;
    double seconds;
    strata_status st;

    if ((st = step_seconds(&seconds, *plan, rates)) == STRATA_OK)
        st = take_if_faster(plan, &seconds, rates, asked);
    if (asked != ST_STREAMED_AUTO)
        return st;
    for (uint32_t share = (uint32_t)lround(best_share(*plan, rates) * ST_STREAMED_PARTS); st == STRATA_OK && share > 0;
         share /= 2)
        st = take_if_faster(plan, &seconds, rates, share);
    return st;
}

strata_status st_plan_balance(struct st_plan **plan, const struct st_machine *rates)
{
    const uint32_t rank = (*plan)->policy.rank;
    strata_status st;

    if ((*plan)->policy.forward_only || (*plan)->capacity.device_is_host || !(rates->rates.update > 0) ||
        !(rates->rates.upload > 0) || !(rates->rates.download > 0) || !st_simulate_possible(&(*plan)->program, rates))
        return STRATA_OK;
    if ((st = st_plan_take_rank(*plan, 0)) == STRATA_OK && (st = balance(plan, rates)) == STRATA_OK)
        st = st_plan_take_rank(*plan, rank);
    return st;
}
