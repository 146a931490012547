/* offload/plan/plan_internal.h - shared by the parts of the planner.
 *
 * plan.c         policy, chunks, the smallest placement, refusals; makes the plan
 * plan_remedy.c  what a refusal advises
 * plan_choose.c  the fastest of many candidates (plan_choose_internal.h)
 * plan_draft.c   about how fast the choice will be, in a hundredth of its time
 * plan_traffic.c bytes that a placement moves, from the decisions alone
 * plan_predicates.h  what the decisions say of a page
 * plan_layout.c  from decisions to sizes, and to buffers
 * plan_sums.c    sums that make both quick
 * plan_kinds.c   equal pages, which are sized and counted together
 * plan_early.c   the same where some pages are updated early
 * emit*.c        the program (emit_internal.h) */
#ifndef OFFLOAD_PLAN_PLAN_INTERNAL_H
#define OFFLOAD_PLAN_PLAN_INTERNAL_H

#include "offload/plan/plan.h"

#define ST_POOL_SLOTS_MAX 128u /* of all pools: layers with several pages have many times those of one with one */
#define ST_DEVICE_ALIGN   256u
/* The chunk size grows with the model, so that there are at most this many chunks. */
#define ST_CHUNKS_MOST 16384u

/* Slots of one kind, handed out round robin.  holds[]: what the emitter knows a slot to hold; ST_NO_BUFFER: nothing. */
struct st_pool {
    uint32_t count, next;
    uint32_t buffer[ST_POOL_SLOTS_MAX];
    uint32_t holds[ST_POOL_SLOTS_MAX];
    uint64_t used[ST_POOL_SLOTS_MAX]; /* time of last use, for the activation slots */
};

/* Buffer indices of everything; valid once built. */
struct st_layout {
    uint64_t needed[STRATA_TIER_COUNT];
    uint64_t space_bytes[ST_SPACE_COUNT]; /* of needed[NVME] */
    struct st_buffer_names at;
    uint32_t block_sums;
    uint32_t workspace, rows_host, dact_host;
    uint32_t *internals;   /* [layers * g]: kept, or one that blocks share */
    uint32_t *logits;      /* [kept slices * g] */
    uint32_t *checkpoints; /* [(layers - 1) * g], where program.acts says */
    uint32_t *dact;        /* [g] */
    uint32_t *routes;      /* [g] */
    struct st_pool weights, host_weights, states, streamed_states, acts, host_acts, grads, rounded;
    struct st_pool wires, dact_wires; /* from other ranks: sums of a page, gradients of a micro-batch's rows */
    struct st_pool reductions;        /* sums of a page's leaves beside the one in `grads` */
    struct st_pool host_grads;        /* rounded gradients without a place of their own in host memory */
    struct st_pool saves;             /* in host memory: what lives on the device, on its way to its extent */
    struct st_pool small_weights, small_grads, small_rounded; /* one slot each */
};

/* Pages that are updated early (plan_early.c). */
struct st_early_mix {
    uint32_t *may;       /* [page_count + 1]: pages before this one that may be, whatever is decided */
    uint32_t *chunks;    /* the same of chunks that are, */
    uint64_t *bytes;     /* and of their state, */
    uint64_t largest;    /* of which this is the largest one's: by decisions that leave */
    uint32_t low, pages; /* the lowest that could be, and how many are */
};
/* Of so many chunks, the first that are not updated early: bytes of their state, and of the largest of all others; the first
 * chunk behind them. */
struct st_cached_sums {
    uint64_t bytes, largest_left;
    uint32_t end;
};

/* Sums over pages and chunks that no decision changes.  Equal pages are of one kind, whatever lies between them; of each kind
 * only one page is sized and counted.  A place is an index into `by_kind`. */
struct st_plan_sums {
    uint32_t *by_kind;       /* [page_count]: the pages, kind by kind, those of a kind in order */
    uint32_t *kind_end;      /* [page_count]: by place, the first place after its kind, */
    uint32_t *run_end;       /* [page_count]: and after the pages of its kind that follow one another */
    uint32_t *piece_first;   /* [page_count]: by page, the lowest from which on there are pages of the same kinds */
    uint64_t *state_bytes;   /* [chunk_count + 1]: of the chunks before this one that have state */
    uint64_t *state_largest; /* [chunk_count + 1]: of one chunk, this or a later one */
    uint64_t *page_largest;  /* [page_count]: of one chunk of this page */
    /* [page_count + 1]: by place, bytes that other ranks have of the weights of the pages before it, and of those that an update
     * changes */
    uint64_t *gathered, *regathered;
    uint64_t exchanged;             /* bytes of all gradients that are exchanged */
    uint64_t *wires;                   /* [page_count]: bytes of a slot for what other ranks send and get of a page's sum */
    uint64_t set_bytes, base_bytes; /* of a set, and of the base, for a run that saves */
    uint64_t saved_largest;         /* bytes of the largest extent of a set */
    uint32_t *plain;                /* [page_count + 1]: plain pages before this one */
    uint32_t lowest_layer;          /* that backward must reach; layer_count: none */
    uint32_t last[2];               /* pages whose gradients leave last, of a lookup's layer and of the lowest other one */
    uint32_t *layer_pages;          /* [layer_count + 1]: the first page of this layer or a later one */
    uint32_t *layer_end;            /* [layer_count]: the first layer after it that costs another time */
    uint64_t *internals_from;       /* [layer_count + 1]: on the device, of the blocks from this one on, */
    uint64_t *internals_most;       /* and the largest of those before it, */
    uint64_t *experts_most;         /* of those before it with experts, too */
    uint32_t experts_first;         /* the lowest layer of experts; layer_count: there is none */
    uint64_t boundaries[2];         /* bytes of all of them, on the device and elsewhere, */
    uint64_t boundaries_plain, boundary_most;             /* without padding; of the largest */
    uint32_t pages_at_once, sums_at_once, leaves_at_once; /* pages, trained ones, and those with the small one, that a block's ops
                                                             have: most of any block, at least 1 */
    bool trained_f32;                                     /* every trained group is stored in fp32 */
    bool slices_save;        /* the plain pages' shards and a slot for one are smaller than the pages */
    struct st_early_mix mix; /* of the decisions that were last asked about */
};
strata_status st_plan_sums_make(struct st_plan *plan);
void st_plan_sums_free(struct st_plan_sums *sums);
/* The kinds of pages in the sums.  E_NOMEM. */
strata_status st_plan_kinds_find(const struct st_plan *plan, struct st_plan_sums *sums);
strata_status st_plan_early_make(struct st_plan *plan, struct st_early_mix *mix);
void st_plan_early_free(struct st_early_mix *mix);
/* Bytes of the state of all pages that are updated early; how many chunks may be cached; sums over so many of these. */
uint64_t st_plan_early_bytes(const struct st_plan *plan);
uint32_t st_plan_cacheable(const struct st_plan *plan);
struct st_cached_sums st_plan_cached(const struct st_plan *plan, uint32_t count);
/* Pages that are equal, in themselves and by the decisions: one of them, and how many they are. */
struct st_alike {
    uint32_t page, count;
};
#define ST_ALIKE_MAX 2u
/* The pages from a place on, up to place *end, returned, in one or two parts; returns how many.  Two: every so often one's state
 * is streamed, or one is updated early.  With several ranks each has other slices of its own. */
uint32_t st_plan_alike(struct st_alike parts[ST_ALIKE_MAX], const struct st_plan *plan, uint32_t place, uint32_t *end);

/* What a buffer of so many bytes takes on the device. */
static inline uint64_t st_device_bytes(uint64_t bytes)
{
    return (bytes + ST_DEVICE_ALIGN - 1) / ST_DEVICE_ALIGN * ST_DEVICE_ALIGN;
}

/* Size (and with `build`, place) everything for the decisions in plan.  Without build no allocation is made. */
strata_status st_layout_make(struct st_layout *lay, struct st_plan *plan, bool build);
void st_layout_fini(struct st_layout *lay);
/* The slots of its pools; 0 if nothing needs them. */
struct st_slots st_layout_slots(const struct st_layout *lay, const struct st_plan_sums *sums);

/* Which chunks of the state are the cached ones (plan_spread.c): of those on NVMe, that many are put in host memory. */
void st_plan_spread(struct st_plan *plan);

/* Rates evaluate if none is missing that the smallest placement, which the plan has, needs, since it uses whatever any does; else
 * *rates becomes NULL.  E_NOMEM. */
strata_status st_plan_known_rates(const struct st_machine **rates, struct st_plan *plan);

/* Bytes that the decisions need on each tier, and how many of them are above their configured tier. */
void st_plan_size(const struct st_plan *plan, uint64_t needed[STRATA_TIER_COUNT]);
uint64_t st_plan_promoted(const struct st_plan *plan);
/* Whether the decisions fit the machine and the cache limit. */
bool st_plan_allowed(const struct st_plan *plan);
/* Set a decision to the largest value up to `high` with which they fit. */
void st_plan_raise(struct st_plan *plan, uint32_t *decision, uint32_t high);

/* The parts of a step, in order.  TAIL: what follows its end when updates are serial. */
enum st_window { ST_WINDOW_FORWARD, ST_WINDOW_BACKWARD, ST_WINDOW_TAIL, ST_WINDOW_COUNT };
/* Bytes of a steady step that depend on placement: weights, state, gradients, rows of the table; not activations. */
struct st_moved {
    struct st_traffic in[ST_WINDOW_COUNT];
};
void st_plan_moved(struct st_moved *moved, const struct st_plan *plan);
struct st_traffic st_moved_sum(const struct st_moved *moved);
/* When pages are updated. */
enum st_window st_plan_update_window(const struct st_plan *plan);

/* Lay out and write the program for the decisions. */
strata_status st_plan_build(struct st_plan *plan);
/* Decide on the smallest placement for this order of accumulation; sets plan->minimum to what it needs.  False: it does not
 * fit. */
bool st_plan_smallest(struct st_plan *plan, enum st_accumulation order);
/* The same in either order of accumulation, if that is open; if neither fits, leaves the one that lacks less. */
bool st_plan_smallest_fits(struct st_plan *plan);
/* From the smallest placement to the plan: decide and build.  rates: the machine to evaluate by; NULL: a nominal machine.  *plan
 * may be replaced by one in chunks of another size. */
strata_status st_plan_choose(struct st_plan **plan, const struct st_machine *rates, enum st_effort effort);
/* A plan without decisions: pages and chunks of its workload, and sums over them. */
strata_status st_plan_create(struct st_plan **out, const struct st_workload *workload, const struct st_capacity *capacity,
                             const struct st_policy *policy);
/** Turn a plan that is built into the one of another rank, with the same decisions.  What ranks move and update differs a little,
 *  and no choice must: choices are made by the plan of rank 0, which each rank then turns into its own. */
strata_status st_plan_take_rank(struct st_plan *plan, uint32_t rank);
/* Write the program's ops, accesses and waits. */
strata_status st_emit_program(struct st_plan *plan, struct st_layout *lay);

/* Bytes of the planes of a chunk of `elems` elements; offsets of the moments, of which there are `moments`. */
uint64_t st_chunk_layout(enum st_master master, uint32_t moments, enum st_moment_format format, uint64_t elems,
                         uint64_t *moment1_offset, uint64_t *moment2_offset);

#endif
