/* offload/program/dispatch.h - chooses the next op: takes a program's ops over its lanes, cycle by cycle.
 *
 * The engine starts the ops that this hands out on real lanes, the simulator on a clock.  Both use the same code, so that a
 * prediction and a run go through the program in the same order.
 *
 * A lane issues its ops in program order.  An op is ready when everything that it waits for is done, including its own run in the
 * previous cycle.  An op that the phase masks is done as soon as it is ready; so is one on a page that the cycle does without. On
 * a device that is the host, one executor runs everything but I/O and exchanges between ranks, the earliest ready op first; on a
 * device with queues each lane hands out ready ops, up to ST_JOBS_AHEAD beyond the running one.  Waits only point backwards, so
 * the earliest op that is not done can always proceed.
 *
 * Threads.  One thread asks and passes; any thread may finish an op. st_dispatch_finish() stores done[op] (release); the asking
 * thread loads it (acquire) before it uses the op's results. */
#ifndef OFFLOAD_PROGRAM_DISPATCH_H
#define OFFLOAD_PROGRAM_DISPATCH_H

#include "offload/program/program.h"

#include <stdatomic.h>

#define ST_NO_OP      UINT32_MAX
#define ST_JOBS_AHEAD 16u /* of one lane: enough to keep a queue busy, few enough that none fills up */

struct st_dispatch {
    const struct st_program *program; /* borrowed */
    bool queues;                      /* each executing lane is a queue, which runs in order */
    enum st_phase phase;              /* of the running cycle, */
    uint32_t cycle;                   /* counted from 1 */
    uint32_t passed;                  /* ops of the cycle that were handed out or masked */
    struct {
        uint32_t next, end;   /* into lane_ops */
        uint32_t waits_met;   /* of the next op, from its first wait on */
        bool ready;           /* all waits are met, which stays so within the cycle */
        uint32_t on, on_done; /* else the op that it waits for, until done[on] equals on_done; NO_OP: not checked yet */
    } lanes[STRATA_LANE_COUNT];
    _Atomic uint32_t *done; /* [op_count]: last cycle in which the op finished; in one piece of memory with */
    uint32_t *lane_ops;     /* [op_count], by lane */
    /* [page_count], borrowed: pages that the running cycle does without.  An op may write a page's if all ops on that page wait
     * for it.  NULL: there is none. */
    const _Atomic bool *left_out;
};

/** Initialise before the first cycle.  E_NOMEM.  Cost: st_dispatch_bytes(). */
strata_status st_dispatch_init(struct st_dispatch *d, const struct st_program *program, bool queues);
void st_dispatch_fini(struct st_dispatch *d);
/** Initialise in memory of the caller's, of st_dispatch_bytes() bytes: without st_dispatch_fini(). */
void st_dispatch_place(struct st_dispatch *d, const struct st_program *program, bool queues, void *memory);
/** Memory that this takes for a program of `ops` ops. */
uint64_t st_dispatch_bytes(uint64_t ops);

void st_dispatch_begin(struct st_dispatch *d, enum st_phase phase);
/** Whether every op of the cycle has been passed.  Then the next cycle may begin, though ops may still be in flight. */
static inline bool st_dispatch_over(const struct st_dispatch *d)
{
    return d->passed == d->program->op_count;
}

/** The lane's next op; NO_OP: the lane is at its end. */
static inline uint32_t st_dispatch_head(const struct st_dispatch *d, uint32_t lane)
{
    return d->lanes[lane].next == d->lanes[lane].end ? ST_NO_OP : d->lane_ops[d->lanes[lane].next];
}
/** Number of the lane's next op, of an I/O lane, among all I/O ops. */
static inline uint32_t st_dispatch_io(const struct st_dispatch *d, uint32_t lane)
{
    return d->lanes[lane].next - d->lanes[STRATA_LANE_READ_STATE - 1].end;
}
/** Whether the cycle does without this op's page. */
static inline bool st_dispatch_left_out(const struct st_dispatch *d, uint32_t op)
{
    const uint32_t page = d->program->ops[op].page;

    return d->left_out != NULL && page != ST_NO_PAGE && atomic_load_explicit(&d->left_out[page], memory_order_relaxed);
}
/** Whether this op, if it is ready, has nothing to do in this cycle.  Then it is done when passed. */
static inline bool st_dispatch_masked(const struct st_dispatch *d, uint32_t op)
{
    return !st_op_runs(&d->program->ops[op], d->phase) || st_dispatch_left_out(d, op);
}
/** The op that the lane's next one waits for; NO_OP: it is ready.  The lane must not be at its end.  The first checks further
 *  waits, the second starts with the one that was not met last time. */
uint32_t st_dispatch_look(struct st_dispatch *d, uint32_t lane);
static inline uint32_t st_dispatch_blocker(struct st_dispatch *d, uint32_t lane)
{
    const uint32_t on = d->lanes[lane].on;

    if (d->lanes[lane].ready)
        return ST_NO_OP;
    if (on != ST_NO_OP && atomic_load_explicit(&d->done[on], memory_order_acquire) < d->lanes[lane].on_done)
        return on;
    return st_dispatch_look(d, lane);
}
void st_dispatch_pass(struct st_dispatch *d, uint32_t lane);
/** The lane's next op if it is ready to start, masked ones before it passed; else NO_OP.  Start it, then pass it. */
static inline uint32_t st_dispatch_ready(struct st_dispatch *d, uint32_t lane)
{
    for (uint32_t op; (op = st_dispatch_head(d, lane)) != ST_NO_OP && st_dispatch_blocker(d, lane) == ST_NO_OP;) {
        if (!st_dispatch_masked(d, op))
            return op;
        st_dispatch_pass(d, lane);
    }
    return ST_NO_OP;
}
/** The earliest next op of the executing lanes that is ready (masked ones too: pass them); NO_OP: none is. */
uint32_t st_dispatch_pick(struct st_dispatch *d);

/* Why compute is waiting. */
struct st_stall {
    uint32_t op; /* the op that cannot start; NO_OP: all lanes are at their end */
    uint32_t on; /* the op that it ultimately waits for, following ops that were not handed out themselves; NO_OP: none */
    enum strata_lane lane; /* of `on` */
};
/** busy: lanes (bits) whose executor is at work; their own ops need not be asked what they wait for. */
struct st_stall st_dispatch_stall(struct st_dispatch *d, uint32_t busy);

/** Mark the op as done in this cycle: once per cycle, on any thread. */
static inline void st_dispatch_finish(struct st_dispatch *d, uint32_t op)
{
    /* An op is started again only after it was done, so no other thread stores meanwhile. */
    const uint32_t before = atomic_load_explicit(&d->done[op], memory_order_relaxed);

    atomic_store_explicit(&d->done[op], before + 1, memory_order_release);
}
/** Lanes (bits) whose next op was last seen to wait for this one: after it has finished, on the asking thread, those to ask
 *  again.  A lane that st_dispatch_ready() was not asked about since its last pass is not among them. */
static inline uint32_t st_dispatch_waiting(const struct st_dispatch *d, uint32_t op)
{
    uint32_t lanes = 0;

    for (uint32_t lane = 0; lane < STRATA_LANE_COUNT; lane++)
        lanes |= (uint32_t)(d->lanes[lane].on == op) << lane;
    return lanes;
}

#endif
