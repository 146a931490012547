/* offload/machine/machine_measure_handover.c - measures what passes between an op's end and the start of one that waits for it:
 * between two threads, as between the engine's and the one that runs the workers or the swap; on a device with queues, by its
 * notices. */
#include "offload/machine/machine_measure_internal.h"

#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/thread.h"
#include "core/trace/stats.h"

#include <pthread.h>

#define HANDOVER_SECONDS 0.03
#define RUNS_MAX         255u
#define ROUNDS           32u /* in one run */
#define SMALL_BYTES      256u

/* Two sides take turns; each sleeps until it is its own. */
struct turns {
    pthread_mutex_t lock;
    pthread_cond_t changed[2];
    int turn; /* side whose turn it is */
    bool over;
};

static void turns_init(struct turns *t)
{
    *t = (struct turns){0};
    pthread_mutex_init(&t->lock, NULL);
    for (int side = 0; side < 2; side++)
        pthread_cond_init(&t->changed[side], NULL);
}

static void turns_fini(struct turns *t)
{
    for (int side = 0; side < 2; side++)
        pthread_cond_destroy(&t->changed[side]);
    pthread_mutex_destroy(&t->lock);
}

static void give_turn(struct turns *t, int side, bool over)
{
    pthread_mutex_lock(&t->lock);
    t->turn = side;
    t->over = over;
    pthread_cond_signal(&t->changed[side]);
    pthread_mutex_unlock(&t->lock);
}

/* False: the other side has ended. */
static bool await_turn(struct turns *t, int side)
{
    bool over;

    pthread_mutex_lock(&t->lock);
    while (t->turn != side)
        pthread_cond_wait(&t->changed[side], &t->lock);
    over = t->over;
    pthread_mutex_unlock(&t->lock);
    return !over;
}

/* --- repeats --- */

typedef strata_status rounds_fn(struct st_prober *m, struct turns *t);

/* Seconds of a round: the median of runs, after one to warm up.  It feeds predictions, not bounds, so the best of them is not
 * what is asked for. */
static strata_status median_round(struct st_prober *m, rounds_fn *fn, struct turns *t, double *seconds)
{
    const double limit = st_measure_patience(HANDOVER_SECONDS);
    double each[RUNS_MAX], spent = 0;
    uint32_t count = 0;
    strata_status st = fn(m, t);

    if (st != STRATA_OK)
        return st;
    do {
        const uint64_t start = st_clock_ns();

        st = fn(m, t);
        each[count] = (double)(st_clock_ns() - start) * 1e-9;
        spent += each[count++];
    } while (st == STRATA_OK && spent < limit && count < RUNS_MAX);
    *seconds = st_stats_median(each, count) / ROUNDS;
    return st;
}

/* --- two threads --- */

static void *other_side(void *arg)
{
    struct turns *t = arg;

    while (await_turn(t, 1))
        give_turn(t, 0, false);
    return NULL;
}

static strata_status threads_rounds(struct st_prober *m, struct turns *t)
{
    (void)m;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        give_turn(t, 1, false);
        (void)await_turn(t, 0);
    }
    return STRATA_OK;
}

strata_status st_measure_handover(struct st_prober *m, double *seconds)
{
    struct turns t;
    pthread_t other;
    strata_status st;

    turns_init(&t);
    st = st_thread_start(&other, "strata-probe", other_side, &t);
    if (st == STRATA_OK) {
        st = median_round(m, threads_rounds, &t, seconds);
        give_turn(&t, 1, true);
        pthread_join(other, NULL);
    }
    turns_fini(&t);
    return st;
}

/* --- a device's queue --- */

/* A failure is what finish() says, too. */
static void noticed(void *ctx, strata_status st)
{
    (void)st;
    if (ctx != NULL)
        give_turn(ctx, 0, false);
}

/* An op that does next to nothing; waits: NULL, or who is to be given a turn when it is done. */
static strata_status start_small(struct st_prober *m, struct turns *waits)
{
    const strata_status st = m->ops->zero(m->device, m->ops->arena(m->device), SMALL_BYTES);

    return st == STRATA_OK ? m->ops->notify(m->device, ST_QUEUE_COMPUTE, noticed, waits) : st;
}

/* Each op is asked for when the notice of the one before has come. */
static strata_status notices_rounds(struct st_prober *m, struct turns *t)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < ROUNDS && st == STRATA_OK; i++) {
        t->turn = 1;
        if ((st = start_small(m, t)) == STRATA_OK)
            (void)await_turn(t, 0);
    }
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_COMPUTE) : st;
}

/* One after the other, with a notice of each, but none is waited for. */
static strata_status launches_rounds(struct st_prober *m, struct turns *t)
{
    strata_status st = STRATA_OK;

    (void)t;
    for (uint32_t i = 0; i < ROUNDS && st == STRATA_OK; i++)
        st = start_small(m, NULL);
    return st == STRATA_OK ? m->ops->finish(m->device, ST_QUEUE_COMPUTE) : st;
}

strata_status st_measure_queue(struct st_prober *m, double *handover, double *launch)
{
    struct turns t;
    double round = 0, one = 0;
    strata_status st;

    turns_init(&t);
    if ((st = median_round(m, notices_rounds, &t, &round)) == STRATA_OK)
        st = median_round(m, launches_rounds, &t, &one);
    turns_fini(&t);
    if (st != STRATA_OK)
        return st;
    *launch = one;
    *handover = round > one ? round - one : 0;
    return STRATA_OK;
}
