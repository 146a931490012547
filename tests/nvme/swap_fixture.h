/* tests/nvme/swap_fixture.h - transfers that are waited for, and mounts that nobody else sees. */
#ifndef TESTS_NVME_SWAP_FIXTURE_H
#define TESTS_NVME_SWAP_FIXTURE_H

#include "nvme/swap/swap.h"

#include <pthread.h>
#include <stdbool.h>

/* Counts transfers that are still to end. */
struct latch {
    pthread_mutex_t lock; /* guards `pending`, and what a move says of its end */
    pthread_cond_t zero;
    uint32_t pending;
};
#define LATCH_INIT                                                                                                               \
    {                                                                                                                            \
        PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0                                                                   \
    }
void latch_wait(struct latch *latch);

/* A transfer, and how it ended. */
struct move {
    struct st_transfer transfer;
    uint32_t volume;
    struct latch *latch;
    uint32_t done_count;
    strata_status status;
    char sentence[512];
    struct st_swap *swap; /* set: done() submits the transfer again, `again` times */
    uint32_t again;
};
/** Counted by the latch where it was taken; the status is that of submitting. */
strata_status move_start(struct st_swap *swap, struct move *move, struct latch *latch, enum st_io_op op, uint64_t offset,
                         uint64_t bytes, void *buf);
/** Starts it and waits: what submitting said, or how the transfer ended, with its sentence. */
strata_status move_wait(struct st_swap *swap, struct move *move, enum st_io_op op, uint64_t offset, uint64_t bytes, void *buf);
/** The same of `bytes` at the start of the space. */
strata_status swap_move(struct st_swap *swap, enum st_io_op op, void *buf, uint64_t bytes);
/** Gives this process mounts of its own: false, with a message, where it may not have them. */
bool swap_private_mounts(void);

#endif
