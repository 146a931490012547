/* offload/plan/emit_internal.h - the parts of the program writer.
 *
 * emit.c            ops, accesses, slots; one cycle
 * emit_update.c     weights in and out, updates of a page
 * emit_activation.c layer boundaries: slots, activation checkpoints on host and NVMe
 * emit_layer.c      forward and backward of a layer: its parts
 * emit_lookup.c     rows of the gathered pages, and their gradients
 * emit_sum.c        gradients: sums, rounding, where they go */
#ifndef OFFLOAD_PLAN_EMIT_INTERNAL_H
#define OFFLOAD_PLAN_EMIT_INTERNAL_H

#include "offload/plan/plan_predicates.h"

enum {
    PRO = ST_PHASE_PROLOGUE,
    BODY = ST_PHASE_BODY,
    EPI = ST_PHASE_EPILOGUE,
    EVAL = ST_PHASE_EVAL,
    SAVE = ST_PHASE_SAVE,
    REDO = ST_PHASE_REDO | EPI | SAVE, /* cycles that make early updates again */
    FORWARD = PRO | BODY | EVAL,
    BACKWARD = PRO | BODY,
    EARLY = BACKWARD | ST_PHASE_EARLY, /* backward of cycles that make updates early, and of those that make none: */
    LATE = ST_PHASE_LATE,
    ALWAYS = PRO | BODY | EPI | EVAL,
};

#define ST_HELD_MAX 2u /* plan->sums->last */

/* Ops of a layer that have the same pages, one for each micro-batch (emit_layer.c). */
struct st_unit {
    uint32_t layer, part, slice;
    uint32_t use, count; /* its pages: workload.uses[use ...] */
};

/* A page's sum while a unit's ops add to it. */
struct st_open_sum {
    uint32_t page, number; /* which of the unit's sums it is */
    uint32_t buffer;       /* on the device; ST_NO_BUFFER: nothing of the page is trained */
    bool opens, closes;    /* no layer adds to it before this one, or after it, in a micro-batch */
};

struct st_emitter {
    const struct st_plan *plan; /* decisions */
    struct st_program *program; /* being written */
    struct st_layout *lay;
    uint64_t tick;                     /* for least recently used */
    bool first_ahead;                  /* the first block's update and upload go before the table's */
    uint32_t ahead[ST_POOL_SLOTS_MAX]; /* [tail_reads] chunks read ahead by the previous cycle, in the order of their updates */
    uint32_t tail_reads;
    uint8_t update_phases; /* when updates run */
    uint8_t chunk_phases;  /* when those of the page run that is updated now: others, if they are made early or again */
    bool early;            /* they are made early */
    uint32_t early_left;   /* pages that are still to be updated early in this cycle */
    struct {
        uint32_t page, from;
    } held[ST_HELD_MAX]; /* downloads of gradients that are deferred to after the step's end */
    uint32_t held_count;
    struct {
        uint32_t page, sum, wire, micro;
    } underway;             /* the page whose sums the ranks exchange while the next one is computed; page ST_NO_PAGE: none */
    struct st_unit current; /* whose pages keep their slots; count 0: none */
    struct st_op *op;       /* the op begun last: in the list, or `dummy` once memory has run out */
    struct st_op dummy;
    bool no_memory;
};

/* A run of micro-batches that goes through the layers together. */
struct st_micros {
    uint32_t first, end; /* [first, end) */
    bool opens, closes;  /* contains the step's first, its last micro-batch */
};

/* --- emit.c --- */

/* Begin an op; the caller sets its indices and flags, and adds its operands in the order of its row. If memory has run out it is
 * a dummy that is in no list: emission continues, and st_emit_program() reports it at the end. */
struct st_op *st_emit_op(struct st_emitter *e, enum st_op_kind kind, unsigned phases);
/* Add an operand to the op begun last; the row says how it is used and what it holds. */
void st_emit_operand(struct st_emitter *e, enum st_role role, uint32_t buffer, uint64_t index);
/* Emit an op that copies thing `index` from one buffer to another. */
struct st_op *st_emit_copy(struct st_emitter *e, enum st_op_kind kind, unsigned phases, uint32_t from, uint32_t to,
                           uint64_t index, uint64_t bytes);

/* The slot that holds `what`, or ST_NO_BUFFER; take the next slot, which holds it from now on. */
uint32_t st_pool_find(const struct st_pool *pool, uint32_t what);
uint32_t st_pool_take(struct st_pool *pool, uint32_t what);
void st_pool_forget(struct st_pool *pool);
/* Forget that slots hold this. */
void st_pool_drop(struct st_pool *pool, uint32_t what);

/* Bytes of page p's weights, of its rounded gradient, and of its sum. */
uint64_t st_emit_page_bytes(const struct st_emitter *e, uint32_t p);
uint64_t st_emit_grad_bytes(const struct st_emitter *e, uint32_t p);
uint64_t st_emit_sum_bytes(const struct st_emitter *e, uint32_t p);
bool st_emit_gated(const struct st_emitter *e);
bool st_emit_in_backward(const struct st_emitter *e);
/* Whether page p's updates are made as soon as its gradient is there. */
bool st_emit_at_once(const struct st_emitter *e, uint32_t p);

/* --- emit_update.c --- */

/* Get a device buffer that holds page p's weights. */
uint32_t st_emit_device_weight(struct st_emitter *e, uint32_t p, unsigned phases);
/* Get a host buffer that holds them: the home, or a slot that is filled from the extent in the given phases (0: the caller fills
 * it). */
uint32_t st_emit_host_weight(struct st_emitter *e, uint32_t p, unsigned phases);
/* Get a host buffer into which page p's rounded gradient goes; have it go on to where it waits for the update, if that is NVMe.
 */
uint32_t st_emit_host_grad(struct st_emitter *e, uint32_t p);
void st_emit_store_grad(struct st_emitter *e, uint32_t p, uint32_t from);
/* Emit page p's updates, and the ops that bring in its state and weights and write them back. */
void st_emit_update(struct st_emitter *e, uint32_t p);
/* The same in backward, before the step is over: they leave the page's other version.  The last one reads ahead. */
void st_emit_early(struct st_emitter *e, uint32_t p);
/* State that the next cycle's updates need first is read during this cycle's backward: once its early updates have left the
 * slots, or from the beginning. */
void st_emit_read_ahead(struct st_emitter *e, unsigned phases);
/* The op begun last is made only if the cycle has page p. */
void st_emit_if_chosen(struct st_emitter *e, uint32_t p);
/* Upload slice t of a table that is looked up on the host and stays on the device. */
void st_emit_table_slice(struct st_emitter *e, uint32_t t);
/* Is the lookup on the host while the table stays on the device?  Then its upload is left to st_emit_table_slice(). */
bool st_emit_uploads_later(const struct st_emitter *e);
/* Forget what the slots hold, except page `but` on the device, if not ST_NO_PAGE. */
void st_emit_forget_weights(struct st_emitter *e, uint32_t but);
/* Forget that a slot holds page p. */
void st_emit_forget_page(struct st_emitter *e, uint32_t p);
/* Find out whether the first block goes ahead, and which chunks are read ahead. */
void st_emit_order(struct st_emitter *e);

/* --- emit_activation.c --- */

uint64_t st_emit_act_id(const struct st_emitter *e, uint32_t boundary, uint32_t micro);
/* Buffer in which to compute a boundary's activation; the boundary's activation itself, fetched if it is not on the device. */
uint32_t st_emit_act_fresh(struct st_emitter *e, uint32_t boundary, uint32_t micro);
uint32_t st_emit_act_get(struct st_emitter *e, uint32_t boundary, uint32_t micro, unsigned phases);
/* Store the activation checkpoint on its tier. */
void st_emit_act_keep(struct st_emitter *e, uint32_t boundary, uint32_t micro, uint32_t slot, unsigned phases);

/* --- emit_layer.c --- */

void st_emit_forward(struct st_emitter *e, const struct st_micros *micros);
void st_emit_backward(struct st_emitter *e, const struct st_micros *micros);
/* Emit one call of a unit; weights, sums: of its pages. */
void st_emit_call(struct st_emitter *e, const struct st_unit *u, enum st_op_kind kind, unsigned phases, uint32_t m,
                  const uint32_t *weights, const struct st_open_sum *sums);

/* --- emit_caller.c --- */

/* Pages that the caller uses: from here on; their sums, after the layers; then what the caller says at the step's end. */
void st_emit_use_pages(struct st_emitter *e, const struct st_micros *micros);
void st_emit_close_pages(struct st_emitter *e, const struct st_micros *micros);
void st_emit_caller_end(struct st_emitter *e);

/* --- emit_lookup.c --- */

void st_emit_lookup(struct st_emitter *e, const struct st_micros *micros);
/* Emit the lookup's part of the gathered pages' gradients, all micro-batches in order, and its one rounding. */
void st_emit_table_backward(struct st_emitter *e);

/* --- emit_sum.c --- */

/* Get the device buffer in which a layer's op adds to page p's gradient, from this micro-batch on; it is page `number` of its
 * unit. */
struct st_open_sum st_emit_open_sum(struct st_emitter *e, uint32_t p, uint32_t layer, uint32_t number, uint32_t micro);
/* Make the op begun last, of this micro-batch, add to a sum; add up the sums that the micro-batch completes, if it ends a leaf.
 */
void st_emit_add(struct st_emitter *e, const struct st_open_sum *s, uint32_t micro);
void st_emit_reduce(struct st_emitter *e, struct st_open_sum *s, uint32_t micro);
/* Deal with a sum after these micro-batches: finish it, exchange it, or let it wait. */
void st_emit_close_sum(struct st_emitter *e, const struct st_open_sum *s, const struct st_micros *micros);
/* Add up what the exchange that is under way has brought. */
void st_emit_conclude(struct st_emitter *e);
/* Round once, compute the norm, and send the gradient to where the update will be; then update, if that need not wait. */
void st_emit_finish_grad(struct st_emitter *e, uint32_t p, uint32_t sum);
/* Stage 0: every rank needs all of the rounded gradient. */
void st_emit_gather_grad(struct st_emitter *e, uint32_t p, uint32_t grad);
/* Emit the downloads that backward deferred. */
void st_emit_held(struct st_emitter *e);

#endif
