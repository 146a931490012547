/* offload/engine/caller_internal.h - the rendezvous of the engine's thread with those of the caller, for engine*.c only. */
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
    double *losses;             /* [grad_accum] of this rank, and its divisor; 0: dropped */
    strata_status status;       /* of the step that has ended, its sentence and its result */
    struct st_sentence error;
    struct st_step_result result;

    /* Set by begin(), then the caller's. */
    struct st_caller_step step;
    uint32_t micros, micro; /* of the step; the one that is under way */
    uint32_t next;          /* number, among the lane's ops, from which on the next layer is looked for */
    uint32_t entered;       /* op, or ST_NO_OP */
    uint64_t entered_ns;
    struct st_trace_record **records; /* [op_count]; NULL: not traced */
};

/* What enter() calls a layer. */
static inline uint32_t st_caller_layer(const struct st_op *op)
{
    return op->layer - 1;
}

#endif
