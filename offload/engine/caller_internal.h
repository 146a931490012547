/* offload/engine/caller_internal.h - the rendezvous of the engine's thread with those of the caller, for engine*.c only.
 *
 * engine_caller.c        the engine's side: its thread, ops that are handed over
 * engine_caller_calls.c  the caller's side: the calls of caller.h */
#ifndef OFFLOAD_ENGINE_CALLER_INTERNAL_H
#define OFFLOAD_ENGINE_CALLER_INTERNAL_H

#include "offload/engine/caller.h"
#include "offload/engine/engine_internal.h"

/* Of an op of the caller's lane, in a cycle. */
enum st_caller_state {
    ST_CALLER_AHEAD,  /* not issued yet */
    ST_CALLER_HANDED, /* the caller may compute it, or does */
    ST_CALLER_OVER    /* its part is done; the op is finished, or will be as it is issued */
};

/* The caller's calls come one at a time; what they share with the engine's thread is guarded by the engine's lock. */
struct st_caller {
    pthread_t thread;
    bool thread_runs;
    bool inside; /* a step has begun and is not closed; the caller's alone */

    /* Guarded. */
    pthread_cond_t work, moved; /* the thread waits for the one, the caller for the other */
    bool stop, running;         /* running: the step's cycle */
    bool ended, dropped;        /* what the caller has said */
    bool waiting;               /* the caller waits for the engine */
    uint8_t *state;             /* [op_count] st_caller_state */
    uint64_t pass_ns[2];        /* the caller's time in layers, by st_pass */
    uint64_t (*layer_ns)[2];    /* [blocks] the same of a layer's shortest micro-batch in the steps that are timed; 0: none */
    uint32_t timed;             /* steps that were */
    double *losses;             /* [grad_accum] of this rank, and its divisor; 0: dropped */
    strata_status status;       /* of the step that has ended, its sentence (or that of what it was to save) and its result */
    struct st_sentence error;
    struct st_step_result result;

    /* Set by begin(), then the caller's. */
    struct st_caller_step step;
    uint32_t micros, micro; /* of the step; the one that is under way */
    uint32_t next;          /* number, among the lane's ops, from which on the next layer is looked for */
    uint32_t entered;       /* op, or ST_NO_OP */
    uint64_t entered_ns;
    bool joined;                      /* its stream has not been waited for */
    struct st_trace_record **records; /* [op_count]; NULL: not traced */
};

/* What enter() calls a layer. */
static inline uint32_t st_caller_layer(const struct st_op *op)
{
    return op->layer - 1;
}

/* The ops of the caller's lane, in order. */
static inline uint32_t st_caller_count(const struct st_engine *eng)
{
    return eng->dispatch.lanes[STRATA_LANE_CALLER].end - eng->dispatch.lanes[STRATA_LANE_CALLER - 1].end;
}

static inline uint32_t st_caller_op(const struct st_engine *eng, uint32_t i)
{
    return eng->dispatch.lane_ops[eng->dispatch.lanes[STRATA_LANE_CALLER - 1].end + i];
}

static inline bool st_caller_is_layer(const struct st_op *op)
{
    return op->kind == ST_OP_LAYER_FORWARD || op->kind == ST_OP_LAYER_BACKWARD;
}

/* Whether the step has this op at all. */
static inline bool st_caller_takes(const struct st_caller *c, const struct st_op *op)
{
    return op->micro < c->micros && (!c->step.evaluates || (op->phases & ST_PHASE_EVAL) != 0);
}

/* Whether the caller computes on a stream of the device. */
static inline bool st_caller_has_stream(const struct st_engine *eng)
{
    return eng->device->ops->join != NULL;
}

/* engine_caller.c: wait until the caller's stream, if any, has passed everything; not under the lock. */
void st_caller_wait_stream(struct st_engine *eng);

/* Something has happened for which the engine's thread may wait; under the lock. */
static inline void st_caller_wake(struct st_engine *eng)
{
    eng->events++;
    pthread_cond_signal(&eng->wake);
}

/* The op is over; under the lock. */
static inline void st_caller_finish(struct st_engine *eng, uint32_t op)
{
    eng->caller->state[op] = ST_CALLER_OVER;
    st_dispatch_finish(&eng->dispatch, op);
    st_caller_wake(eng);
}

#endif
