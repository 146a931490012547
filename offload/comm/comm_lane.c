/* offload/comm/comm_lane.c - see comm_lane.h. */
#include "offload/comm/comm_lane.h"

#include "core/base/error.h"
#include "core/system/clock.h"
#include "core/system/thread.h"

#include <stdlib.h>

struct st_comm_lane {
    struct st_comm *comm;
    pthread_t thread;
    pthread_mutex_t lock; /* guards what follows */
    pthread_cond_t work;  /* a job, or stopping */
    struct st_comm_job *first, *last;
    bool stopping;
};

/* Waits for a job; NULL: stopping, and all have ended. */
static struct st_comm_job *next_job(struct st_comm_lane *lane)
{
    struct st_comm_job *job;

    pthread_mutex_lock(&lane->lock);
    while (lane->first == NULL && !lane->stopping)
        pthread_cond_wait(&lane->work, &lane->lock);
    job = lane->first;
    if (job != NULL)
        lane->first = job->next;
    pthread_mutex_unlock(&lane->lock);
    return job;
}

static void *lane_main(void *arg)
{
    struct st_comm_lane *lane = arg;
    struct st_comm_job *job;

    while ((job = next_job(lane)) != NULL) {
        strata_status st;

        job->start_ns = st_clock_ns();
        st = st_comm_exchange(lane->comm, job->peers, job->what);
        job->end_ns = st_clock_ns();
        job->done(job, st);
    }
    return NULL;
}

static void lane_free(struct st_comm_lane *lane)
{
    pthread_cond_destroy(&lane->work);
    pthread_mutex_destroy(&lane->lock);
    free(lane);
}

strata_status st_comm_lane_open(struct st_comm_lane **out, struct st_comm *comm)
{
    struct st_comm_lane *lane = calloc(1, sizeof(*lane));
    strata_status st;

    if (lane == NULL)
        return st_nomem(sizeof(*lane));
    lane->comm = comm;
    pthread_mutex_init(&lane->lock, NULL);
    pthread_cond_init(&lane->work, NULL);
    if ((st = st_thread_start(&lane->thread, "strata-comm", lane_main, lane)) != STRATA_OK) {
        lane_free(lane);
        return st;
    }
    *out = lane;
    return STRATA_OK;
}

void st_comm_lane_submit(struct st_comm_lane *lane, struct st_comm_job *job)
{
    job->next = NULL;
    pthread_mutex_lock(&lane->lock);
    if (lane->first == NULL)
        lane->first = job;
    else
        lane->last->next = job;
    lane->last = job;
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&lane->lock);
}

void st_comm_lane_close(struct st_comm_lane *lane)
{
    if (lane == NULL)
        return;
    pthread_mutex_lock(&lane->lock);
    lane->stopping = true;
    pthread_cond_signal(&lane->work);
    pthread_mutex_unlock(&lane->lock);
    pthread_join(lane->thread, NULL);
    lane_free(lane);
}
