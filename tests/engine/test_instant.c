/* test_instant - every transfer has ended before its submission returns, and runs go on with the same bits.
 *
 * What the engine writes down of a transfer it must write before the submission: a thread of the swap may end the transfer while
 * the submitter has not come back.  That is rare; here it is always so, as the linker puts this file's st_swap_submit() before
 * the swap's. */
#include "agree.h"
#include "nvme/swap/swap.h"
#include "tests/common/scratch.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define STEPS 3u

static uint32_t instant_count; /* transfers that ended so */

/* One submission, until its transfer has ended. */
struct submission {
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool ended;
    void (*done)(struct st_transfer *t, strata_status st); /* as the engine has it */
    void *owner;
};

strata_status __real_st_swap_submit(struct st_swap *swap, struct st_transfer *t);
strata_status __wrap_st_swap_submit(struct st_swap *swap, struct st_transfer *t);

/* On the swap's thread. */
static void end(struct st_transfer *t, strata_status st)
{
    struct submission *s = t->owner;

    t->owner = s->owner;
    t->done = s->done;
    s->done(t, st);
    pthread_mutex_lock(&s->lock);
    s->ended = true;
    pthread_cond_signal(&s->change);
    pthread_mutex_unlock(&s->lock);
}

strata_status __wrap_st_swap_submit(struct st_swap *swap, struct st_transfer *t)
{
    struct submission s = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false, t->done, t->owner};
    strata_status st;

    t->owner = &s;
    t->done = end;
    if ((st = __real_st_swap_submit(swap, t)) != STRATA_OK)
        return st;
    pthread_mutex_lock(&s.lock);
    while (!s.ended)
        pthread_cond_wait(&s.change, &s.lock);
    pthread_mutex_unlock(&s.lock);
    instant_count++;
    return STRATA_OK;
}

/* On a device whose calls are done when they return, and on one with queues of its own; the first cell moves nothing. */
static void runs_go_on_and_agree(void **state)
{
    (void)state;
    for (uint32_t paced = 0; paced < 2; paced++) {
        struct rig_cell cells[AGREE_PLACES];

        instant_count = 0;
        for (size_t i = 0; i < AGREE_PLACES; i++) {
            cells[i] = agree_place(i);
            cells[i].dtype = STRATA_BF16;
            cells[i].paced = paced != 0;
        }
        (void)rig_agree(cells, AGREE_PLACES, STEPS, scratch_dir);
        assert_true(instant_count > 50);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(runs_go_on_and_agree)};

    return cmocka_run_group_tests_name("instant transfers", tests, scratch_create, scratch_remove_empty);
}
