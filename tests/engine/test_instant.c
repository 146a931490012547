/* test_instant - transfers that end at the worst moments: runs go on, with the same bits.
 *
 * Before their submission returns: what the engine writes down of a transfer it must write before.  And all of them at one of the
 * locks that the thread that trains takes, be it that before a look at what is ready or that before the sleep which follows: who
 * sleeps until the next event must have counted events before he looked.  Both are rare; here they are always so, as the linker
 * puts this file's functions before the swap's and the system's. */
#include "agree.h"
#include "nvme/swap/swap.h"
#include "tests/common/sample.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <pthread.h>
#include <stdlib.h>

#define STEPS 3u

static enum { BEFORE_SUBMIT_RETURNS, AT_SOME_LOCK } moment;
static pthread_t trainer;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards the three below */
static pthread_cond_t change = PTHREAD_COND_INITIALIZER;
static int32_t under_way; /* transfers; below 0: one has ended that is not counted yet */
static uint32_t submitted;
static bool held; /* transfers do not end */

static bool in_swap;           /* the trainer submits: it holds locks that a transfer needs to end */
static uint32_t locks, period; /* of the trainer's locks, one in so many lets all transfers end before it */

/* What the engine has in a transfer, while this file's stands there. */
struct engines {
    void (*done)(struct st_transfer *t, strata_status st);
    void *owner;
};

strata_status __real_st_swap_submit(struct st_swap *swap, struct st_transfer *t);
strata_status __wrap_st_swap_submit(struct st_swap *swap, struct st_transfer *t);
int __real_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex);
int __real_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);
int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex);

static void hold(bool yes)
{
    __real_pthread_mutex_lock(&lock);
    held = yes;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

static void wait_for_all(void)
{
    hold(false);
    __real_pthread_mutex_lock(&lock);
    while (under_way > 0)
        __real_pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
    hold(moment == AT_SOME_LOCK);
}

static bool by_trainer(void)
{
    return moment == AT_SOME_LOCK && pthread_equal(pthread_self(), trainer);
}

static void count(int32_t more)
{
    __real_pthread_mutex_lock(&lock);
    under_way += more;
    submitted += more > 0;
    pthread_cond_broadcast(&change);
    pthread_mutex_unlock(&lock);
}

/* On the swap's thread. */
static void end(struct st_transfer *t, strata_status st)
{
    struct engines *kept = t->owner;
    const struct engines was = *kept;

    __real_pthread_mutex_lock(&lock);
    while (held)
        __real_pthread_cond_wait(&change, &lock);
    pthread_mutex_unlock(&lock);
    free(kept);
    t->owner = was.owner;
    t->done = was.done;
    was.done(t, st);
    count(-1);
}

strata_status __wrap_st_swap_submit(struct st_swap *swap, struct st_transfer *t)
{
    struct engines *kept = malloc(sizeof(*kept));
    strata_status st;

    assert_non_null(kept);
    *kept = (struct engines){t->done, t->owner};
    t->owner = kept;
    t->done = end;
    in_swap = true;
    st = __real_st_swap_submit(swap, t);
    in_swap = false;
    assert_int_equal(st, STRATA_OK);
    count(1);
    if (moment == BEFORE_SUBMIT_RETURNS)
        wait_for_all();
    return st;
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    if (by_trainer() && !in_swap && ++locks % period == 0)
        wait_for_all();
    return __real_pthread_mutex_lock(mutex);
}

/* Who sleeps is woken. */
int __wrap_pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
    int rc;

    if (!by_trainer())
        return __real_pthread_cond_wait(cond, mutex);
    hold(false);
    rc = __real_pthread_cond_wait(cond, mutex);
    hold(true);
    return rc;
}

int __wrap_pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex, const struct timespec *until)
{
    int rc;

    if (!by_trainer())
        return __real_pthread_cond_timedwait(cond, mutex, until);
    hold(false);
    rc = __real_pthread_cond_timedwait(cond, mutex, until);
    hold(true);
    return rc;
}

/* On a device whose calls are done when they return, and on one with queues of its own; the first cell moves nothing. */
static void agree(void)
{
    for (uint32_t paced = 0; paced < 2; paced++) {
        struct rig_cell cells[AGREE_PLACES];

        submitted = 0;
        for (size_t i = 0; i < AGREE_PLACES; i++) {
            cells[i] = agree_place(i);
            cells[i].dtype = STRATA_BF16;
            cells[i].paced = paced != 0;
        }
        (void)rig_agree(cells, AGREE_PLACES, STEPS, scratch_dir);
        assert_true(submitted > 50);
    }
}

TEST(transfers_end_before_their_submission_returns)
{
    moment = BEFORE_SUBMIT_RETURNS;
    agree();
}

TEST(transfers_end_at_some_lock)
{
    trainer = pthread_self();
    moment = AT_SOME_LOCK;
    for (period = 1; period <= 4; period++)
        if (sample_takes(period, 3, 1))
            agree();
    moment = BEFORE_SUBMIT_RETURNS;
    hold(false);
}

TEST_GROUP(scratch_create, scratch_remove_empty);
