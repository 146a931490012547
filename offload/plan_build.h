/* offload/plan_build.h - what plan.c, plan_layout.c and program_emit.c share while a plan is made. */
#ifndef OFFLOAD_PLAN_BUILD_H
#define OFFLOAD_PLAN_BUILD_H

#include "offload/plan.h"

#define ST_POOL_SLOTS_MAX 16u
#define ST_SWAP_PAGE      4096u /* alignment of extents and of their slots */

/* Slots of one kind, handed out round robin.  holds[]: what the emitter knows to be inside; ST_NO_BUFFER: nothing. */
struct st_pool {
    uint32_t count, next;
    uint32_t buffer[ST_POOL_SLOTS_MAX];
    uint32_t holds[ST_POOL_SLOTS_MAX];
    uint64_t used[ST_POOL_SLOTS_MAX]; /* time of last use, for the activation slots */
};

/* Where everything lies: buffer indices, valid when built. */
struct st_layout {
    uint64_t needed[STRATA_TIER_COUNT];
    uint32_t tokens_host, tokens_device, scalars_device, scalars_host, norms_host, block_sums, constants;
    uint32_t workspace, rows_host, dact_host;
    uint32_t *internals;  /* [blocks * g]: kept, or the shared one */
    uint32_t *head;       /* [g] */
    uint32_t *act_device; /* [(blocks + 1) * g] or ST_NO_BUFFER each */
    uint32_t *act_host;   /* the same on the host, */
    uint32_t *act_nvme;   /* or as extents */
    uint32_t *dact;       /* [g] */
    struct st_pool weights, host_weights, states, acts, host_acts, grads, rounded;
};

/* Size (and with `build`, place) everything for the decisions in plan.  Without build no allocation is made. */
strata_status st_layout_make(struct st_layout *lay, struct st_plan *plan, bool build);
void st_layout_fini(struct st_layout *lay);

/* Placement predicates, functions of the decisions alone. */
bool st_place_resident(const struct st_plan *plan, uint32_t page);
bool st_place_device_update(const struct st_plan *plan, uint32_t page);
strata_tier st_place_weight_home(const struct st_plan *plan, uint32_t page);
bool st_place_table_resident(const struct st_plan *plan); /* every tile */
bool st_place_is_table(const struct st_plan *plan, uint32_t page);
bool st_place_trained(const struct st_plan *plan, uint32_t page);

/* Write plan->ops, accesses, waits, traffic. */
strata_status st_program_emit(struct st_plan *plan, struct st_layout *lay);

/* Bytes of the planes of a chunk of `elems` elements; offsets of the moments. */
uint64_t st_chunk_layout(enum st_master master, uint64_t elems, uint64_t *moment1_offset, uint64_t *moment2_offset);

void st_plan_bounds(struct st_plan *plan);

#endif
