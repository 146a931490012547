/* advise/plan_zero.c - what ZeRO needs and moves as its authors count it. */
#include "advise/plan_report.h"
#include "core/base/print.h"
#include "core/base/size.h"

#include <math.h>
#include <string.h>

#define STATE_BYTES                                                                                                              \
    16.0 /* of a trained parameter: weight, gradient, two fp32 moments, and of 16 bits an fp32 master (section 3.1) */

static bool trains(const struct st_group *g)
{
    return g->kind != ST_GROUP_FROZEN;
}

/* Section 7: gradients are reduced and weights gathered in the format of the weights, at stage 2 and 3 for every micro-batch, and
 * at stage 3 weights twice, frozen ones, too, which the ranks share like the others there. */
double st_zero_comm_bytes(const struct st_program *program)
{
    const struct st_workload *w = &program->workload;
    const double often = program->stage >= 2 ? w->grad_accum : 1, gathers = program->stage == 3 ? 2 * often : 1;
    double trained = 0, all = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++) {
            const struct st_group *g = &w->pages[p].groups[i];

            all += (double)g->bytes;
            trained += trains(g) ? (double)g->bytes : 0;
        }
    return (often * trained + gathers * (program->stage == 3 ? all : trained)) * (program->ranks - 1) / program->ranks;
}

/* Section 5: of N ranks each has whole what its stage does not share.  In 16 bits that is 16 P, 4 P + 12 P / N, 2 P + 14 P / N
 * and 16 P / N for stages 0 to 3.  Frozen weights are shared as the others are, at stage 3. */
static double state_bytes(const struct st_program *program, double *params)
{
    const struct st_workload *w = &program->workload;
    const double n = program->ranks;
    double bytes = 0;

    *params = 0;
    for (uint32_t p = 0; p < w->page_count; p++)
        for (uint32_t i = 0; i < w->pages[p].group_count; i++) {
            const struct st_group *g = &w->pages[p].groups[i];
            const double weights = (double)g->bytes, gradients = trains(g) ? weights : 0,
                         rest = trains(g) ? STATE_BYTES * (double)g->elems - weights - gradients : 0;

            *params += (double)g->elems;
            bytes += program->stage >= 3 ? weights / n : weights;
            bytes += program->stage >= 2 ? gradients / n : gradients;
            bytes += program->stage >= 1 ? rest / n : rest;
        }
    return bytes;
}

/* What this plan has of some kinds, wherever it lies.  names: ended by NULL */
static uint64_t bytes_of(const struct st_plan *plan, const char *const *names)
{
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < plan->item_count; i++)
        for (size_t n = 0; names[n] != NULL; n++)
            bytes += strcmp(plan->items[i].name, names[n]) == 0 ? plan->items[i].bytes : 0;
    return bytes;
}

static const char *const states[] = {"weights", "weights in slices", "gradients", "optimizer state", NULL},
                         *const sums[] = {"gradient accumulators", "host accumulators", NULL};

void st_zero_print_states(const struct st_plan *plan, FILE *file)
{
    double params;
    const double zero = state_bytes(&plan->program, &params);
    const uint64_t own = bytes_of(plan, states), summed = bytes_of(plan, sums);
    char text[24];

    if (plan->policy.forward_only)
        return;
    st_print(file, "  model states as ZeRO-%u counts them: %s, %.2f bytes a parameter", plan->program.stage,
             st_size_text(text, (uint64_t)zero), zero / params);
    if (plan->fits)
        st_print(file, "; here %s, %.2f: weights, gradients and optimizer state", st_size_text(text, own), (double)own / params);
    if (plan->fits && summed > 0)
        st_print(file, ", beside %s of accumulators in fp32", st_size_text(text, summed));
    st_print_text(file, "\n");
}

void st_zero_put_states(const struct st_plan *plan, struct st_json_writer *w)
{
    double params;

    if (plan->policy.forward_only)
        return;
    st_json_object_open(w, "model_states");
    st_json_put_u64(w, "zero_bytes", (uint64_t)state_bytes(&plan->program, &params));
    st_json_put_double(w, "bytes", plan->fits ? (double)bytes_of(plan, states) : (double)NAN);
    st_json_object_close(w);
}
