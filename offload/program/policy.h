/* offload/program/policy.h - a caller's requests for a plan; everything else follows from workload and machine. */
#ifndef OFFLOAD_PROGRAM_POLICY_H
#define OFFLOAD_PROGRAM_POLICY_H

#include "core/base/size.h"
#include "kernels/kernels.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdint.h>

/* Unit for fractions of the blocks.  AUTO: 0, until st_plan_evaluate() decides. */
#define ST_STREAMED_PARTS 64u
#define ST_STREAMED_AUTO  UINT32_MAX

/* Unit for the share of pages whose updates are made early, in backward (program.h).  AUTO: as many as the planner finds best.
 * OFFERED: the same where the update is AUTO and it gains by them clearly. */
#define ST_EARLY_PARTS   8u
#define ST_EARLY_AUTO    UINT32_MAX
#define ST_EARLY_OFFERED (UINT32_MAX - 1)

/* Checkpoints are kept in so many sets; beside those one is written by the running step, and one more by what it saves. */
static inline uint32_t st_sets_of_keep(uint32_t keep)
{
    return keep + 2;
}

/* What a save brings down from the device passes through host slots of so many bytes and what a part overlaps the next one by. */
#define ST_PART_BYTES (32u << 20)

enum st_accumulation { ST_ACCUMULATE_VERTICAL = 0, ST_ACCUMULATE_HORIZONTAL = 1, ST_ACCUMULATE_AUTO = 2 };
enum st_wire { ST_WIRE_F32 = 0, ST_WIRE_BF16 = 1 };
/* SPECULATIVE is a configuration's word: the policy for it is GATED, with st_policy.early. */
enum st_update_policy {
    ST_UPDATE_AUTO = 0,
    ST_UPDATE_SERIAL = 1,
    ST_UPDATE_GATED = 2,
    ST_UPDATE_IN_BACKWARD = 3,
    ST_UPDATE_SPECULATIVE = 4
};
enum st_activation_mode { ST_ACT_AUTO = 0, ST_ACT_KEPT = 1, ST_ACT_RECOMPUTED = 2 };

struct st_policy {
    uint32_t ranks, rank;                   /* of the world, and this one; 0 ranks: 1 */
    uint32_t stage;                         /* ZeRO's; above 0 each rank has its shards alone */
    strata_tier param_tier, optimizer_tier; /* slowest tier allowed for weights / for state */
    strata_tier activation_tier;            /* of activation checkpoints: DEVICE, HOST, NVME, or COUNT for auto */
    enum st_activation_mode activations;
    enum st_update_policy update; /* AUTO: the one evaluated to be faster; in_backward only if nothing needs the whole norm first */
    uint32_t early; /* gated: of ST_EARLY_PARTS of the pages, as far as they fit, or ST_EARLY_AUTO; 0: none */
    double clip_rate; /* share of the steps that is expected to be clipped or skipped: what is updated early is made again there */
    enum st_accumulation accumulation; /* AUTO: the one evaluated to be faster */
    uint32_t leaves;                   /* of a step's micro-batches, of equal size (program.h); 0: 1 */
    enum st_wire wire;                 /* how sums go to other ranks; BF16 changes bits */
    bool forward_only;                 /* evaluation, generation: no gradients, no optimizer state */
    bool needs_norm;                   /* clipping or skipping: no update before the step's end */
    uint32_t streamed;                 /* share of the blocks with state elsewhere that the device updates; or ST_STREAMED_AUTO */
    uint64_t cache;                    /* bytes that may be above their configured tier; ST_AUTO_BYTES: as many as fit */
    uint32_t moments;                  /* planes of the optimizer beside the master, 1 or 2; 0: 2 */
    enum st_moment_format moment_format;
    uint64_t chunk_elems; /* rounded down to tiles, at least one; 0: 4 Mi, more for huge models, */
    uint64_t chunk_most;  /* up to this; 0: no limit */
    uint32_t sets;        /* of a run that saves checkpoints, whatever its tiers: 2 or more; 0: it saves none */
    uint64_t part_bytes;  /* of what a save brings down from the device at a time, whole blocks; 0: ST_PART_BYTES */
    uint32_t keep_best; /* of those, the ones of the lowest scores */
    uint32_t keep; /* checkpoints that it keeps: sets is st_sets_of_keep() of it, less those whose space is there already */
    /* Of a caller that computes the layers: what it holds itself on the device and the host, and its threads.  Capacity and workers
     * are without them (st_plan_leave()). */
    uint64_t caller_bytes[STRATA_TIER_NVME];
    uint32_t caller_threads;
    uint64_t fixed_bytes; /* process's fixed part beside arenas and tables; 0: the built-in figure */
};

/* In a configuration's words. */
static inline enum st_update_policy st_policy_update(const struct st_policy *policy)
{
    return policy->early != 0 ? ST_UPDATE_SPECULATIVE : policy->update;
}

#endif
