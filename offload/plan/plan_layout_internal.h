/* offload/plan/plan_layout_internal.h - the walk that sizes or builds a layout, shared by plan_layout*.c. */
#ifndef OFFLOAD_PLAN_PLAN_LAYOUT_INTERNAL_H
#define OFFLOAD_PLAN_PLAN_LAYOUT_INTERNAL_H

#include "offload/plan/plan_predicates.h"

/* Rows of the plan's table. */
enum st_layout_item {
    ST_ITEM_WEIGHTS,
    ST_ITEM_WEIGHT_SLICES,
    ST_ITEM_WEIGHT_SLOTS,
    ST_ITEM_GRADIENTS,
    ST_ITEM_GRADIENT_SLOTS,
    ST_ITEM_ACCUMULATORS,
    ST_ITEM_HOST_ACCUMULATORS,
    ST_ITEM_STATE,
    ST_ITEM_STATE_SLOTS,
    ST_ITEM_EARLY,
    ST_ITEM_SAVED_SLOTS,
    ST_ITEM_CHECKPOINTS,
    ST_ITEM_ACTIVATION_SLOTS,
    ST_ITEM_ACTIVATIONS,
    ST_ITEM_WORKSPACE,
    ST_ITEM_WIRES,
    ST_ITEM_ROWS,
    ST_ITEM_CONSTANTS,
    ST_ITEM_SMALL,
    ST_ITEM_SAVED,
    ST_ITEM_COUNT
};

struct st_walk {
    struct st_layout *lay;
    struct st_plan *plan;
    bool build;
    bool no_memory;
    uint8_t row[STRATA_TIER_COUNT][ST_ITEM_COUNT];       /* 1 + index in plan->items; 0: none yet */
    uint64_t streamed, from_nvme;                        /* bytes of the largest page's weights, */
    uint64_t slot_grads, most;                           /* trained elements of the largest, of each kind, */
    uint64_t leaving;                                    /* bytes of the largest rounded gradients, */
    uint64_t unkept_grads;                               /* of those without a place in host memory, */
    uint64_t small_streamed, small_grads, small_leaving; /* and the same of the small ones */
    uint64_t reduced;                                     /* of the largest whose leaves' sums share slots */
    uint64_t streamed_state;                             /* bytes of the largest streamed chunk */
    uint64_t wire;                                       /* bytes of the largest page's sums from other ranks */
};

/* Take `count` times `bytes` of a tier, when sizing. */
void st_walk_take_many(struct st_walk *k, strata_tier tier, uint64_t bytes, uint64_t count);
/* Take `bytes` of a tier; returns the buffer's index when building. */
uint32_t st_walk_take(struct st_walk *k, strata_tier tier, uint64_t bytes, enum st_layout_item item);
void st_walk_take_pool(struct st_walk *k, struct st_pool *pool, uint32_t count, strata_tier tier, uint64_t bytes,
                       enum st_layout_item item);

/* plan_layout_activations.c: workspace, activations, gradients of layer boundaries. */
void st_walk_activations(struct st_walk *k);

#endif
