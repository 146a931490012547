/* offload/plan.h - the one plan: placement, slots, program, traffic, bounds.
 *
 * st_plan_make() is a pure function of workload, machine and policy: no I/O, no threads, no tiers touched.  The
 * estimator (`strata plan`), the preflight check and the engine all use its result.
 *
 * Buffers.  Everything an op touches is a buffer: a region that holds one thing for the whole run, a slot that holds
 * one thing for a while, or an extent on NVMe.  An op lists its accesses (op_table.h); what it waits for follows from them.
 *
 * Program.  One list of ops is repeated, once per cycle.  Four masks over it are the phases: a masked-out op does nothing but
 * still waits for what it would have waited for, so that slot reuse stays ordered.
 *   PROLOGUE  first step after a start or a flush: no update is pending
 *   BODY      every further step
 *   EPILOGUE  flush: the pending updates alone
 *   EVAL      forward alone
 * A wait names an op earlier in this cycle, or any op of the previous one. */
#ifndef OFFLOAD_PLAN_H
#define OFFLOAD_PLAN_H

#include "kernels/kernels.h"
#include "offload/config/config.h"
#include "offload/op_table.h"
#include "strata/status.h"

struct st_plan_sums; /* offload/plan_build.h */

#define ST_MACHINE_DIRS_MAX 8u

/* Shares of blocks are counted in so many parts.  AUTO: 0, until st_plan_balance() knows better. */
#define ST_CARRY_PARTS 64u
#define ST_CARRY_AUTO  UINT32_MAX

#define ST_TILE_ELEMS 65536u /* elements of one update and checksum tile; a multiple of ST_NORM_BLOCK */

/* How fast a machine is.  Rates feed bounds and predictions; on a device that is not the host they choose among plans that all
 * capacities allow (plan_balance.c). */
struct st_rates {
    uint32_t drives;                       /* that read, write and mixed are the sum of; 0: one */
    double matmul_flops;                   /* per second, the workload's dtype; hardware bound; 0: unknown */
    double block_flops;                    /* per second over a whole block, norms and attention included; 0: matmul_flops */
    double head_flops;                     /* per second over a tile of the head, softmax included; 0: block_flops */
    double upload, download;               /* bytes per second */
    double read, write, mixed;             /* bytes per second */
    double update;                         /* parameters per second, state in memory */
    double checksum;                       /* bytes per second, in cache, all workers; predictions; 0: takes no time */
    uint32_t dir_count;                    /* of dir_rates; 0: not known, or one directory */
    double dir_rates[ST_MACHINE_DIRS_MAX]; /* bytes per second of each NVMe directory alone; how much of the swap each holds */
};

/* Capacities decide what is placed where. */
struct st_machine {
    char name[64];
    uint64_t capacity[STRATA_TIER_COUNT];   /* bytes that may be used; nvme 0: no directory given */
    char nvme_tightest[ST_CONFIG_PATH_MAX]; /* directory whose free bytes limit capacity[NVME]; "": none is known */
    uint32_t workers;
    bool device_is_host; /* cpu device: its arena is RAM, and compute, copies and updates share the cores */
    struct st_rates rates;
};

struct st_policy {
    strata_tier param_tier, optimizer_tier; /* slowest tier allowed for weights / for state */
    strata_tier activation_tier;            /* checkpoints: DEVICE, HOST, NVME, or COUNT for auto */
    enum st_activation_mode activations;
    enum st_update_policy update;      /* AUTO: in_backward where nothing needs the whole norm first, else gated */
    enum st_accumulation accumulation; /* AUTO: the one that is judged faster */
    bool forward_only;                 /* evaluation, generation: no gradients, no optimizer state */
    bool needs_norm;                   /* clipping or skipping: no update before the step's end */
    uint32_t carried;                  /* share of the blocks with state elsewhere that the device updates; or ST_CARRY_AUTO */
    uint64_t cache;                    /* bytes that may lie above their configured tier; ST_AUTO_BYTES: as many as fit */
    uint32_t moments;                  /* planes of the optimizer beside the master, 1 or 2; 0: 2 */
    enum st_moment_format moment_format;
    uint64_t chunk_elems; /* multiple of ST_NORM_BLOCK; 0: 4 Mi, more for huge models, */
    uint64_t chunk_most;  /* up to this; 0: no limit */
    uint64_t fixed_bytes; /* process's fixed part beside arenas and tables; 0: the built-in figure */
};

void st_policy_from_config(struct st_policy *policy, const struct st_config *config);

/* Where the fp32 master lives: split over weight and residual (bf16), a plane of its own (fp16), or the weight itself (fp32). */
enum st_master { ST_MASTER_SPLIT, ST_MASTER_FULL, ST_MASTER_WEIGHT };
/* Bytes per parameter of a chunk's first plane. */
static inline size_t st_master_width(enum st_master master)
{
    return master == ST_MASTER_SPLIT ? 2 : master == ST_MASTER_FULL ? 4 : 0;
}

/* Planes of one chunk's state, side by side from its buffer's start; each starts at a multiple of 64 bytes. */
struct st_chunk {
    uint32_t page;
    enum st_group_kind group;
    uint64_t first, elems;                   /* elements from the page's start */
    uint64_t position;                       /* of element 0 in the model, every group's begin rounded up to ST_NORM_BLOCK */
    strata_tier tier;                        /* COUNT: no state (frozen, or forward only) */
    bool pinned;                             /* in host memory though the configured tier is NVMe */
    uint32_t region;                         /* buffer: device or host region, or the extent; ST_NO_BUFFER: no state */
    uint64_t moment1_offset, moment2_offset; /* residual or master at 0; bytes; moment2 0: there is none */
    uint64_t bytes;                          /* of all planes, a multiple of 4096 */
    uint64_t tile_first;                     /* index of its first checksum tile */
};

struct st_page_place {
    bool trained;            /* has a group that is not frozen */
    strata_tier weight_home; /* where the authoritative weights live between uses */
    bool resident;           /* a copy (or the home) stays on the device */
    bool device_update;      /* gradient and update on the device; the state too, unless carried */
    bool carried;            /* its state crosses the link for the update, and back */
    bool parked;             /* fp32 accumulator in host memory (table tiles updated on the host) */
    uint32_t weight_region;  /* device buffer if resident, else ST_NO_BUFFER */
    uint32_t home_region;    /* host buffer or extent; ST_NO_BUFFER if home is the device */
    uint32_t grad_region;    /* rounded gradient: device or host buffer */
    uint32_t accum_region;   /* fp32 accumulator that stays (table tiles, fp32 device updates), or ST_NO_BUFFER */
    uint32_t chunk_first, chunk_count;
};

#define ST_NO_BUFFER UINT32_MAX

struct st_buffer {
    strata_tier tier;
    uint64_t offset; /* in the tier's arena or swap space */
    uint64_t bytes;
};

/* Seconds of one steady step.  compute_*: blocks and head at their own rates, as the schedule bound counts them; the hardware
 * bound counts the same FLOPs at the fastest rate known. */
struct st_bounds {
    double compute_forward, compute_backward, upload, download, update, io; /* per resource */
    double hardware, schedule;                                              /* lower bounds; 0 if rates are unknown */
    const char *bound_by;                                                   /* resource that binds the schedule bound */
};

#define ST_PLAN_ITEMS_MAX 32u
struct st_plan_item {
    const char *name;
    strata_tier tier;
    uint64_t bytes;
};

/* Slots of each pool. */
struct st_slots {
    uint32_t weights, host_weights, states, carries, acts, host_acts, grads;
};

/* What is open where workload, machine and policy are given.  Candidates are compared as bytes: there is no padding. */
struct st_decisions {
    enum st_accumulation accumulation; /* not AUTO */
    strata_tier activation_tier;
    uint32_t kept_blocks;                                             /* top-most blocks whose internals are kept */
    uint32_t kept_tiles;                                              /* of the head, from the first on, whose logits are kept */
    uint32_t resident_pages, pinned_weight_pages, device_state_pages; /* counted from the bottom, as the next two */
    uint32_t pinned_chunks;
    uint32_t device_accum_pages; /* horizontal accumulation: pages whose partial sums stay on the device */
    uint32_t carried;            /* of ST_CARRY_PARTS: the policy's, or what fits of it */
    struct st_slots slots;
};
_Static_assert(sizeof(struct st_decisions) == 17 * sizeof(uint32_t), "no padding");

/* Buffers that are asked for by name. */
struct st_plan_names {
    uint32_t tokens_host, tokens_device, scalars_device, scalars_host, norms_host, constants;
    uint32_t overflows_device, overflows_host; /* uint64_t: weights that rounded to infinity on the device, ever */
    uint32_t head_internals;                   /* of micro-batch 0 */
};

struct st_plan {
    struct st_workload workload; /* own copy */
    struct st_machine machine;
    struct st_policy policy;
    bool fits;
    uint64_t needed[STRATA_TIER_COUNT];           /* bytes of each arena and of the swap space, exactly what is taken */
    uint64_t minimum[STRATA_TIER_COUNT];          /* what the smallest placement of this policy needs */
    uint64_t fixed_bytes, rss_bytes_max;          /* with tables.h; host + cpu device + that */
    struct st_plan_item items[ST_PLAN_ITEMS_MAX]; /* rows of the table: what lies where */
    uint32_t item_count;

    enum st_master master;
    uint32_t moments; /* 1 or 2 */
    enum st_moment_format moment_format;
    struct st_decisions decided;
    struct st_slots reserved; /* decided.slots before pools that nothing uses were dropped */

    struct st_page_place *pages; /* [workload.page_count] */
    struct st_plan_sums *sums;   /* the planner's own */
    struct st_chunk *chunks;
    uint32_t chunk_count;
    struct st_buffer *buffers;
    uint32_t buffer_count;
    uint64_t tile_count; /* checksum tiles over all chunks */

    struct st_op *ops;
    uint32_t op_count;
    struct st_access *accesses;
    uint32_t access_count;
    struct st_wait *waits;
    uint32_t wait_count;

    struct st_traffic traffic[ST_PHASE_COUNT]; /* by phase: PROLOGUE, BODY, EPILOGUE, EVAL */
    uint64_t parameter_bytes_nvme;             /* read + written per step without alignment padding */
    struct st_bounds bounds;

    struct st_plan_names at;
};

/* The first op of backward; op_count: there is none. */
uint32_t st_plan_backward(const struct st_plan *plan);

/* Bytes of the state of `elems` elements, without the padding of its planes. */
static inline uint64_t st_plan_state_bytes(const struct st_plan *plan, uint64_t elems)
{
    return elems * st_master_width(plan->master) + plan->moments * st_moment_bytes(plan->moment_format, elems);
}

/* The small results of a step, its scalars, on the device and once more on the host: norms of [page_count] pages, then losses of
 * [grad_accum] micro-batches. */
struct st_norm {
    double norm2;
    uint64_t nonfinite;
};
static inline uint64_t st_scalars_bytes(uint32_t pages, uint32_t grad_accum)
{
    return pages * sizeof(struct st_norm) + grad_accum * sizeof(double);
}
static inline double *st_scalars_losses(struct st_norm *scalars, uint32_t pages)
{
    return (double *)(void *)&scalars[pages];
}

/** Plan.  *out is set also on E_NOFIT (fits false; needed[] is the smallest placement's, so it says what is lacking);
 *  the error sentence names the tier, both figures and what would help.
 *  E_NOFIT: a tier lacks room.  E_INVAL: bad workload.  E_NOMEM. */
strata_status st_plan_make(struct st_plan **out, const struct st_workload *workload, const struct st_machine *machine,
                           const struct st_policy *policy);
void st_plan_destroy(struct st_plan *plan);

/** Prove the program sound: every input resident and current when used under any order the waits allow, no slot in two
 *  roles, buffers inside capacities and disjoint, every op reachable.  E_INTERNAL with the first fault found. */
strata_status st_plan_verify(const struct st_plan *plan);

/** Other rates, and the bounds that follow from them. */
void st_plan_set_rates(struct st_plan *plan, const struct st_rates *rates);

/** Rates are known now: on a device that is not the host, *plan is replaced by what is fastest at these rates, judged by the
 *  simulator: what is kept and what recomputed, the order of accumulation where it is AUTO, and with ST_CARRY_AUTO the share of
 *  blocks whose state is carried to the device: none, the closed form's, or half, a quarter, ... of that.  Any of them gives the
 *  same bits.  After an error *plan is one of them still.  E_NOMEM. */
strata_status st_plan_balance(struct st_plan **plan, const struct st_machine *rates);

#endif
