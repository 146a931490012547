/* plan_fixture.h - workloads, policies and machines for the planner's tests: random ones from a seed, and regular ones by size.
 */
#ifndef TESTS_OFFLOAD_PLAN_FIXTURE_H
#define TESTS_OFFLOAD_PLAN_FIXTURE_H

#include "offload/plan/plan.h"

#define PLAN_PAGES_MAX 64u /* of a random workload */

/* Numbers of a random case, in order, each below a limit. */
struct plan_draws {
    uint64_t seed, at;
};
uint64_t plan_draw(struct plan_draws *draws, uint64_t below);

struct plan_sizes {
    strata_dtype dtype;
    uint32_t blocks, hidden, vocab, slice_rows, seq, micro_batch, grad_accum;
    uint64_t block_params; /* 0: 12 hidden^2 */
    bool positions, tied;
    uint64_t adapter_params; /* of each block, in fp32, while all else is frozen; 0: no adapters */
    bool quantised;          /* the blocks' matrices beside them */
    uint32_t experts;        /* slices of experts of every block but the first; 0: none.  Odd ones of frozen parts are frozen */
    bool chosen;             /* of generation, two experts each: only those come that are chosen; of one sequence */
    bool routes;             /* which add up something for a loss of their own */
};
extern const struct plan_sizes plan_small; /* two blocks in bf16 */
/* How a page's parameters are trained. */
enum plan_frozen { PLAN_TRAINED, PLAN_PART_FROZEN, PLAN_FROZEN };

/** A workload of regular blocks; nothing frozen unless `frozen` (by layer, [blocks + 2]) says so.  Pages: malloc,
 * st_workload_fini. */
void plan_workload(struct st_workload *w, const struct plan_sizes *sizes, const enum plan_frozen *frozen);

/** Random in every respect; `tiny`: at most 4 blocks and few pages and chunks. */
void plan_random_workload(struct st_workload *w, struct plan_draws *draws, bool tiny);
/** The same, tiny, and never one of generation, which trains nothing. */
void plan_random_training(struct st_workload *w, struct plan_draws *draws);
/** A stranger's list of layers: without a vocabulary, with any number of pages in a layer, some used by several. */
void plan_random_layers(struct st_workload *w, struct plan_draws *draws);
/** Whether several layers add to one page's sum: then accumulation is horizontal. */
bool plan_shares(const struct st_workload *w);
void plan_random_policy(struct st_policy *policy, struct plan_draws *draws, const struct st_workload *w);

/** Plan or refusal (fits says which); anything else fails the test, with `what` in the message.  st_plan_destroy(). */
struct st_plan *plan_try(const struct st_workload *w, const struct st_machine *machine, const struct st_policy *policy,
                         const char *what);

/** The same of a workload of regular blocks. */
struct st_plan *plan_of(const struct plan_sizes *sizes, const struct st_machine *machine, const struct st_policy *policy,
                        const char *what);

/** Bytes of a steady step. */
struct st_traffic plan_steady(const struct st_plan *plan);

#endif
