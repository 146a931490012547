/* offload/comm/comm_watch.c - see comm_watch.h: a thread that polls pidfds, and an eventfd that ends it. */
#include "offload/comm/comm_watch.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/thread.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

struct st_comm_watch {
    struct st_comm *comm;
    pthread_t thread;
    bool started;
    int end; /* eventfd; -1: none */
    struct pollfd polls[ST_COMM_RANKS_MAX + 1];
    uint32_t ranks[ST_COMM_RANKS_MAX + 1]; /* of polls, from 1 on; 0 is `end` */
    uint32_t count;
};

/* -1: the process is gone, or may not be watched, as on kernels before 5.3. */
static int open_pid(pid_t pid)
{
    return st_fault("comm.pidfd", 0) < 0 ? -1 : (int)syscall(SYS_pidfd_open, pid, 0);
}

static void *watch(void *ctx)
{
    struct st_comm_watch *w = ctx;
    char sentence[96];

    for (;;) {
        const int rc = st_fault_refuses("comm.watch") ? -1 : poll(w->polls, w->count, -1);

        if (rc < 0 && errno == EINTR)
            continue;
        if (rc < 0 || w->polls[0].revents != 0)
            return NULL;
        for (uint32_t i = 1; i < w->count; i++)
            if (w->polls[i].revents != 0) {
                snprintf(sentence, sizeof(sentence), "rank %u is gone: its process has ended", w->ranks[i]);
                st_comm_abort(w->comm, sentence);
                return NULL;
            }
    }
}

static strata_status start(struct st_comm_watch *w, const pid_t *pids)
{
    const struct st_world world = w->comm->world;
    strata_status st;

    w->end = st_fault_refuses("comm.watch_end") ? -1 : eventfd(0, EFD_CLOEXEC);
    if (w->end < 0)
        return st_error_errno(errno, "no descriptor for watching the other ranks");
    w->polls[w->count++] = (struct pollfd){.fd = w->end, .events = POLLIN};
    for (uint32_t r = 0; r < world.ranks; r++) {
        const int fd = r != world.rank && pids[r] > 0 ? open_pid(pids[r]) : -1;

        if (fd < 0)
            continue;
        w->ranks[w->count] = r;
        w->polls[w->count++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    st = st_thread_start(&w->thread, "ranks", watch, w);
    w->started = st == STRATA_OK;
    return st;
}

strata_status st_comm_watch_open(struct st_comm_watch **out, struct st_comm *comm, const pid_t *pids)
{
    struct st_comm_watch *w = st_fault("comm.watch_alloc", 0) < 0 ? NULL : calloc(1, sizeof(*w));
    strata_status st;

    if (w == NULL)
        return st_nomem(sizeof(*w));
    w->comm = comm;
    w->end = -1;
    if ((st = start(w, pids)) != STRATA_OK) {
        st_comm_watch_close(w);
        return st;
    }
    *out = w;
    return STRATA_OK;
}

void st_comm_watch_close(struct st_comm_watch *w)
{
    if (w == NULL || st_comm_is_parents(w->comm)) /* its thread is the parent's */
        return;
    if (w->started) {
        (void)eventfd_write(w->end, 1);
        pthread_join(w->thread, NULL);
    }
    for (uint32_t i = 0; i < w->count; i++)
        close(w->polls[i].fd);
    free(w);
}
