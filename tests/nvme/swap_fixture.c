/* tests/nvme/swap_fixture.c - see swap_fixture.h. */
#include "swap_fixture.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>

#include <cmocka.h>

struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t done;
    bool ended;
    strata_status status;
};

static void on_done(struct st_transfer *t, strata_status st)
{
    struct waiter *w = t->owner;

    pthread_mutex_lock(&w->lock);
    w->ended = true;
    w->status = st;
    pthread_cond_signal(&w->done);
    pthread_mutex_unlock(&w->lock);
}

strata_status swap_move(struct st_swap *swap, enum st_io_op op, void *buf, uint64_t bytes)
{
    struct waiter w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, STRATA_OK};
    struct st_transfer t = {.op = op, .bytes = bytes, .buf = buf, .done = on_done, .owner = &w};
    const strata_status st = st_swap_submit(swap, &t);

    pthread_mutex_lock(&w.lock);
    while (st == STRATA_OK && !w.ended)
        pthread_cond_wait(&w.done, &w.lock);
    pthread_mutex_unlock(&w.lock);
    return st != STRATA_OK ? st : w.status;
}

bool swap_private_mounts(void)
{
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0)
        return true;
    print_message("no mount namespace (%s)\n", strerror(errno));
    return false;
}
