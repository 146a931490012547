/* nvme/method/io_thread.h - the thread that owns an io: asleep while there is nothing to do, in reap() while requests are in
 * flight.
 *
 * Other threads hand work over in lists of the owner's, under the owner's lock, and nudge the thread, which hears it in either
 * place.  All calls of the io are made by the thread's own callbacks. */
#ifndef NVME_METHOD_IO_THREAD_H
#define NVME_METHOD_IO_THREAD_H

#include "nvme/method/io.h"
#include <pthread.h>

#define ST_IO_THREAD_ERROR_BYTES 1024

struct st_io_thread {
    /* Set before the start, then constant. */
    const struct st_io_ops *ops;
    struct st_io_opts opts;
    void *region; /* registered with the kernel unless the method or the options refuse; NULL: none */
    uint64_t region_bytes;
    pthread_mutex_t *lock; /* the owner's; guards what follows up to `io`, too */
    void *owner;
    void (*take)(void *owner);    /* lock held: something was handed over since the last call */
    uint32_t (*run)(void *owner); /* does what was taken and starts requests; how many are in flight */
    uint64_t tick_ns;             /* while any are, run() comes at least so often; 0: only when one has ended */

    /* internal */
    pthread_cond_t work;  /* handed, or stopping */
    pthread_cond_t ready; /* started */
    bool handed, stopping;
    bool in_reap; /* the thread may block in reap(): wake() it */
    bool started; /* the members below are final; status: whether the io opened */
    bool registered;
    strata_status status;
    char error[ST_IO_THREAD_ERROR_BYTES];
    pthread_t thread, self;

    struct st_io *io; /* the callbacks' */
    bool reaping;     /* the thread's own */
};

/** Start the thread, which opens the io; what opening it says.  The struct must not move. */
strata_status st_io_thread_start(struct st_io_thread *t);
/** Once everything handed over has ended, close the io and end the thread.  Of one that was started. */
void st_io_thread_stop(struct st_io_thread *t);
/** Lock held: something was handed over. */
void st_io_thread_nudge(struct st_io_thread *t);
bool st_io_thread_is_self(const struct st_io_thread *t);

#endif
