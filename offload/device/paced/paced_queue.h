/* offload/device/paced/paced_queue.h - one queue of the paced device: a thread, a ring of tasks and a clock of its own.
 *
 * A task is work in pieces, with the seconds that the whole task must take.  The queue's clock says when a piece would have ended
 * on the imitated machine.  It never lags behind a task's arrival, and each piece advances it by its share of the seconds, or by
 * the time of the real work if that was longer.  After each piece the thread sleeps until the clock's time.  Waking late does not
 * advance the clock, so delays do not add up.
 *
 * Queues of one processor take turns, a piece each, and have one clock: what a processor does for both takes as long as their
 * sum. */
#ifndef OFFLOAD_DEVICE_PACED_PACED_QUEUE_H
#define OFFLOAD_DEVICE_PACED_PACED_QUEUE_H

#include "core/base/error.h"
#include "kernels/kernels.h"
#include "offload/compute.h"

#include <pthread.h>

#define ST_PACED_RING 256u /* tasks that can wait; adding one more blocks */

struct paced_device;
struct st_paced_model;

struct paced_copy {
    void *dst;
    const void *src; /* NULL: clear */
    uint64_t bytes;
};

struct paced_reduce {
    float *sum;
    const void *addend;
    strata_dtype dt;
    uint64_t elems;
};

struct paced_finish {
    void *out;
    const float *acc;
    uint64_t elems;
    double *block_sums, *norm2;
    uint64_t *nonfinite;
    strata_dtype dt;
};

struct paced_update {
    void *weight;
    int16_t *low_half;
    float *master;
    struct st_moments moments;
    const void *grad;
    uint64_t elems, *overflowed;
    struct st_update_coef coef;
    strata_dtype dt;
};

struct paced_rows {
    void *to;         /* rows gathered, or the table's fp32 gradient */
    const void *from; /* the table, or the rows' gradient */
    const int32_t *tokens;
    uint32_t rows, cols, row_first, row_count;
    strata_dtype dt;
};

struct paced_mark {
    void (*done)(void *ctx, strata_status st);
    void *ctx;
};

struct paced_call {
    const struct st_paced_model *model; /* borrowed */
    struct st_call call;
};

struct paced_task {
    /* Does the work of piece `index` of `pieces`, on the queue's thread. */
    void (*work)(struct paced_device *dev, const struct paced_task *task, uint64_t index);
    uint64_t pieces;
    double seconds; /* of all pieces together, which take equal parts */
    uint64_t arrived_ns;
    union {
        struct paced_copy copy;
        struct paced_reduce reduce;
        struct paced_finish finish;
        struct paced_update update;
        struct paced_rows rows;
        struct paced_mark mark; /* if work is NULL */
        struct paced_call call;
    } of;
};

/* A clock, and whose turn it is. */
struct paced_processor {
    pthread_mutex_t lock;  /* guards all of it */
    pthread_cond_t turned; /* turn has grown */
    uint64_t asked, turn;  /* pieces that queues asked to run; the one that may */
    uint64_t clock_ns;
};

struct paced_queue {
    struct paced_device *device;
    struct paced_processor *processor; /* borrowed; may be shared */
    pthread_t thread;
    bool started;
    pthread_mutex_t lock;      /* guards added, taken, stopping, and status and reason */
    pthread_cond_t waiting;    /* added has grown, or stopping */
    pthread_cond_t progress;   /* taken has grown */
    uint64_t added, taken;     /* counts since the start; the tasks in between are in the ring, for the thread to read */
    bool stopping;             /* end when the ring is empty */
    strata_status status;      /* the first failure since the last report */
    struct st_sentence reason; /* its sentence */
    struct paced_task ring[ST_PACED_RING];
};

void st_paced_processor_init(struct paced_processor *p);
/** No queue that runs may have it. */
void st_paced_processor_fini(struct paced_processor *p);

/** Start the thread of a queue that was zeroed.  E_NOMEM. */
strata_status st_paced_queue_start(struct paced_queue *q, struct paced_device *device, struct paced_processor *processor,
                                   const char *name);
/** Run the queued tasks, then end the thread.  A queue that was never started is allowed. */
void st_paced_queue_stop(struct paced_queue *q);
/** Add a copy of *task; blocks while the ring is full. */
void st_paced_queue_add(struct paced_queue *q, const struct paced_task *task);
/** Wait until all added tasks are done.  Returns the first failure since the last report; it is not reported again. */
strata_status st_paced_queue_finish(struct paced_queue *q);

#endif
