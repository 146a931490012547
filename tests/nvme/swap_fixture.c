/* tests/nvme/swap_fixture.c - see swap_fixture.h. */
#include "swap_fixture.h"
#include "core/base/error.h"
#include "tests/common/test.h"

#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>

void latch_wait(struct latch *latch)
{
    pthread_mutex_lock(&latch->lock);
    while (latch->pending > 0)
        pthread_cond_wait(&latch->zero, &latch->lock);
    pthread_mutex_unlock(&latch->lock);
}

static void on_done(struct st_transfer *t, strata_status st)
{
    struct move *move = t->owner;

    if (move->again > 0) {
        move->again--;
        if (st_swap_submit(move->swap, t) == STRATA_OK)
            return;
    }
    pthread_mutex_lock(&move->latch->lock);
    move->done_count++;
    move->status = st;
    snprintf(move->sentence, sizeof(move->sentence), "%s", st == STRATA_OK ? "" : strata_last_error());
    if (--move->latch->pending == 0)
        pthread_cond_signal(&move->latch->zero);
    pthread_mutex_unlock(&move->latch->lock);
}

strata_status move_start(struct st_swap *swap, struct move *move, struct latch *latch, enum st_io_op op, uint64_t offset,
                         uint64_t bytes, void *buf)
{
    strata_status st;

    move->transfer = (struct st_transfer){
        .op = op, .volume = move->volume, .offset = offset, .bytes = bytes, .buf = buf, .done = on_done, .owner = move};
    move->latch = latch;
    move->done_count = 0;
    pthread_mutex_lock(&latch->lock);
    latch->pending++;
    pthread_mutex_unlock(&latch->lock);
    if ((st = st_swap_submit(swap, &move->transfer)) != STRATA_OK) {
        pthread_mutex_lock(&latch->lock);
        latch->pending--;
        pthread_mutex_unlock(&latch->lock);
    }
    return st;
}

strata_status move_wait(struct st_swap *swap, struct move *move, enum st_io_op op, uint64_t offset, uint64_t bytes, void *buf)
{
    struct latch latch = LATCH_INIT;
    const strata_status st = move_start(swap, move, &latch, op, offset, bytes, buf);

    latch_wait(&latch);
    if (st != STRATA_OK || move->status == STRATA_OK)
        return st;
    return st_error(move->status, "%s", move->sentence); /* which the I/O thread was told */
}

strata_status swap_move(struct st_swap *swap, enum st_io_op op, void *buf, uint64_t bytes)
{
    struct move move = {0};

    return move_wait(swap, &move, op, 0, bytes, buf);
}

bool swap_private_mounts(void)
{
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        return true;
    print_message("no mount namespace (%s)\n", strerror(errno));
    return false;
}
