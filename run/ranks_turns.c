/* run/ranks_turns.c - see run/ranks_turns.h.
 *
 * Those who wait would give up at the comm's deadline: while a rank works, a thread of its own says every second that it does. */
#include "run/ranks_turns.h"
#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#define TELL_NS UINT64_C(1000000000)

enum state { STATE_IDLE, STATE_WORKING, STATE_DONE, STATE_FAILED };

/* What a rank tells of itself. */
struct said {
    int32_t state;
    int32_t status; /* of work that failed, as it is on other ranks */
};

struct turn {
    struct st_comm *comm;
    const char *what;
    pthread_mutex_t lock; /* guards own; ended is signalled when it changes */
    pthread_cond_t ended;
    struct said own;
    strata_status status;  /* of the comm */
    uint32_t failed;       /* a rank whose work did; ranks: none */
    strata_status verdict; /* of that */
};

/* Tells the others this rank's state, and whether anybody still works. */
static bool tell(struct turn *t, struct said mine)
{
    struct said all[ST_COMM_RANKS_MAX];
    bool working = false;

    t->status = st_comm_gather(t->comm, &mine, sizeof(mine), all, t->what);
    for (uint32_t r = 0; r < t->comm->world.ranks && t->status == STRATA_OK; r++) {
        working = working || all[r].state == STATE_WORKING;
        if (all[r].state == STATE_FAILED && t->failed == t->comm->world.ranks) {
            t->failed = r;
            t->verdict = (strata_status)all[r].status;
        }
    }
    return working;
}

/* The state now, or a second later if this rank still works then. */
static struct said wait_a_while(struct turn *t)
{
    const uint64_t until_ns = st_clock_ns() + TELL_NS;
    struct said own;

    pthread_mutex_lock(&t->lock);
    while (t->own.state == STATE_WORKING && st_cond_wait(&t->ended, &t->lock, until_ns))
        ;
    own = t->own;
    pthread_mutex_unlock(&t->lock);
    return own;
}

static void *keep_telling(void *ctx)
{
    struct turn *t = ctx;

    while (tell(t, wait_a_while(t)))
        ;
    return NULL;
}

static strata_status work_and_tell(struct turn *t, strata_status (*work)(void *ctx), void *ctx)
{
    pthread_t teller;
    strata_status st;

    t->own = (struct said){.state = STATE_WORKING};
    if ((st = st_thread_start(&teller, "ranks", keep_telling, t)) != STRATA_OK)
        return st;
    st = work(ctx);
    pthread_mutex_lock(&t->lock);
    t->own.state = st == STRATA_OK ? STATE_DONE : STATE_FAILED;
    t->own.status = (int32_t)st_comm_verdict(st);
    pthread_cond_signal(&t->ended);
    pthread_mutex_unlock(&t->lock);
    pthread_join(teller, NULL);
    return st;
}

static strata_status take_turns(struct turn *t, strata_status (*work)(void *ctx), void *ctx)
{
    const struct st_world world = t->comm->world;
    const uint32_t mine = world.rank == 0 ? 0 : world.local_rank == 0 ? 1 : 2;
    strata_status st = STRATA_OK;

    for (uint32_t turn = 0; turn < 3 && st == STRATA_OK && t->status == STRATA_OK && t->failed == world.ranks; turn++) {
        if (turn == mine)
            st = work_and_tell(t, work, ctx);
        else
            while (tell(t, (struct said){.state = STATE_IDLE}))
                ;
    }
    if (st == STRATA_OK && t->status != STRATA_OK)
        st = st_comm_barrier(t->comm, t->what); /* fails with the same sentence, which another thread may have */
    if (st != STRATA_OK)
        return st;
    return t->failed == world.ranks ? STRATA_OK : st_error(t->verdict, "%s: rank %u failed: see its log", t->what, t->failed);
}

strata_status st_ranks_take_turns(struct st_comm *comm, strata_status (*work)(void *ctx), void *ctx, const char *what)
{
    struct turn t = {.comm = comm, .what = what};
    strata_status st;

    if (comm == NULL)
        return work(ctx);
    t.failed = comm->world.ranks;
    pthread_mutex_init(&t.lock, NULL);
    st_cond_init(&t.ended);
    st = take_turns(&t, work, ctx);
    pthread_cond_destroy(&t.ended);
    pthread_mutex_destroy(&t.lock);
    return st;
}
