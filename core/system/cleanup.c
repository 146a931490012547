/* core/system/cleanup.c - see core/system/cleanup.h. */
#include "core/system/cleanup.h"

#include <pthread.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#define WAIT_SECONDS 5

static pthread_mutex_t making = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* guards names on disk that are not listed yet */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;               /* guards the list */
static struct st_cleanup *last;

void st_cleanup_hold(void)
{
    pthread_mutex_lock(&making);
}

void st_cleanup_release(void)
{
    pthread_mutex_unlock(&making);
}

void st_cleanup_lock(void)
{
    pthread_mutex_lock(&mutex);
}

void st_cleanup_unlock(void)
{
    pthread_mutex_unlock(&mutex);
}

void st_cleanup_add(struct st_cleanup *c, void (*remove)(void *owner), void *owner)
{
    st_cleanup_lock();
    *c = (struct st_cleanup){.remove = remove, .owner = owner, .pid = getpid(), .next = last};
    last = c;
    st_cleanup_unlock();
}

void st_cleanup_drop(const struct st_cleanup *c)
{
    st_cleanup_lock();
    for (struct st_cleanup **at = &last; *at != NULL; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    st_cleanup_unlock();
}

struct st_cleanup *st_cleanup_last(void)
{
    return last;
}

void st_cleanup_begin(void)
{
    struct timespec until;

    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += WAIT_SECONDS;
    (void)pthread_mutex_timedlock(&making, &until); /* locked or timed out: either way the process ends */
}

void st_cleanup_run(void)
{
    st_cleanup_lock();
    for (const struct st_cleanup *c = last; c != NULL; c = c->next)
        if (c->pid == getpid())
            c->remove(c->owner);
    st_cleanup_unlock();
}
