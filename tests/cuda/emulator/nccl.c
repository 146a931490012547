/* tests/cuda/emulator/nccl.c - the part of NCCL that offload/comm/nccl_library_internal.h names, over memory: ranks are threads
 * of one process.  A group is one operation of its stream.  As with NCCL, messages between two ranks are matched in order, a
 * group ends when all of it has been sent and received, one whose other side never comes does not end but by ncclCommAbort, and
 * of a communicator that does not block each call is in progress first. */
#include "tests/cuda/emulator/nccl.h"
#include "offload/comm/nccl_library_internal.h"
#include "tests/cuda/emulator/twin.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#ifndef TWIN_NCCL_LACKING
#define TWIN_NCCL_LACKING 0
#endif
#define API       __attribute__((visibility("default")))
#define RANKS_MAX 8
#define OPS_MAX   256u

extern API struct twin_nccl twin_nccl;
struct twin_nccl twin_nccl = {.version = 22809, .in_progress = 2};

/* A message that its sender's stream has come to. */
struct offer {
    struct offer *next;
    int from, to, taken;
    const void *data;
    size_t bytes;
};

struct world {
    struct world *next;
    nccl_id_t id;
    int ranks, joined, left;
    struct offer *offers; /* in the order of their posting */
};

struct nccl_comm {
    struct world *world;
    int rank, aborted, ended, jobs, in_progress;
};

struct op {
    int sends, peer;
    void *data;
    size_t bytes;
};

struct job {
    struct nccl_comm *comm;
    uint32_t count;
    struct op ops[OPS_MAX];
    struct offer offers[OPS_MAX];
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards worlds, and all in them */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct world *worlds;
static uint64_t ids;

static _Thread_local struct job *group;
static _Thread_local cudaStream_t group_stream;
static _Thread_local int group_depth;

API int ncclGetVersion(int *version);
API int ncclGetUniqueId(nccl_id_t *id);
API int ncclCommInitRankConfig(nccl_comm_t *comm, int ranks, nccl_id_t id, int rank, struct nccl_config *config);
API int ncclCommDestroy(nccl_comm_t comm);
API int ncclCommAbort(nccl_comm_t comm);
API int ncclCommGetAsyncError(nccl_comm_t comm, int *error);
API const char *ncclGetErrorString(int error);
API int ncclGroupStart(void);
API int ncclGroupEnd(void);
API int ncclSend(const void *data, size_t count, int type, int to, nccl_comm_t comm, void *stream);
API int ncclRecv(void *data, size_t count, int type, int from, nccl_comm_t comm, void *stream);

int ncclGetVersion(int *version)
{
    *version = atomic_fetch_add(&twin_nccl.version, twin_nccl.version_step);
    return NCCL_SUCCESS;
}

int ncclGetUniqueId(nccl_id_t *id)
{
    memset(id, 0, sizeof(*id));
    pthread_mutex_lock(&lock);
    ids++;
    memcpy(id->internal, &ids, sizeof(ids));
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

const char *ncclGetErrorString(int error)
{
    return error == 6                     ? "remote process exited or there was a network error"
           : error == NCCL_INTERNAL_ERROR ? "internal error"
                                          : "error";
}

/* --- communicators --- */

#if !TWIN_NCCL_LACKING
int ncclCommInitRankConfig(nccl_comm_t *comm, int ranks, nccl_id_t id, int rank, struct nccl_config *config)
{
    struct nccl_comm *c = calloc(1, sizeof(*c));
    struct world *w;

    if (config->magic != 0xcafebeef || config->blocking != 0 || config->size != sizeof(*config) || ranks > RANKS_MAX)
        abort();
    pthread_mutex_lock(&lock);
    for (w = worlds; w != NULL && memcmp(&w->id, &id, sizeof(id)) != 0;)
        w = w->next;
    if (w == NULL) {
        w = calloc(1, sizeof(*w));
        w->id = id;
        w->ranks = ranks;
        w->next = worlds;
        worlds = w;
    }
    w->joined++;
    *c = (struct nccl_comm){.world = w, .rank = rank, .in_progress = twin_nccl.in_progress};
    pthread_mutex_unlock(&lock);
    twin_nccl.comms++;
    *comm = c;
    return NCCL_IN_PROGRESS;
}
#endif

/* With the lock held: the last rank that leaves, of those that came, takes the world along. */
static void leave(struct world *w)
{
    struct world **at = &worlds;

    if (++w->left < w->joined)
        return;
    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    free(w);
}

/* With the lock held: a communicator goes when it has ended, and with it its last job. */
static void release(struct nccl_comm *c)
{
    if (!c->ended || c->jobs > 0)
        return;
    leave(c->world);
    free(c);
    twin_nccl.comms--;
}

static int end(nccl_comm_t comm)
{
    pthread_mutex_lock(&lock);
    comm->aborted = comm->ended = 1;
    pthread_cond_broadcast(&changed);
    release(comm);
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

int ncclCommDestroy(nccl_comm_t comm)
{
    return end(comm);
}

int ncclCommAbort(nccl_comm_t comm)
{
    return end(comm);
}

int ncclCommGetAsyncError(nccl_comm_t comm, int *error)
{
    pthread_mutex_lock(&lock);
    *error = twin_nccl.state;
    if (comm->world->joined < comm->world->ranks || comm->in_progress > 0)
        *error = NCCL_IN_PROGRESS;
    if (comm->in_progress > 0)
        comm->in_progress--;
    pthread_mutex_unlock(&lock);
    return NCCL_SUCCESS;
}

/* --- messages --- */

static struct offer *offer_to(const struct nccl_comm *c, int from)
{
    struct offer *o = c->world->offers;

    while (o != NULL && (o->taken || o->from != from || o->to != c->rank))
        o = o->next;
    return o;
}

/* With the lock held: false if the communicator was aborted. */
static int receive(struct nccl_comm *c, const struct op *op)
{
    struct offer *o;

    while (!c->aborted && ((o = offer_to(c, op->peer)) == NULL || (o->bytes != op->bytes && !twin_nccl.lenient)))
        pthread_cond_wait(&changed, &lock);
    if (c->aborted)
        return 0;
    memcpy(op->data, o->data, o->bytes < op->bytes ? o->bytes : op->bytes);
    o->taken = 1;
    pthread_cond_broadcast(&changed);
    return 1;
}

static void offer_all(struct job *j)
{
    struct offer **at = &j->comm->world->offers;

    while (*at != NULL)
        at = &(*at)->next;
    for (uint32_t i = 0; i < j->count; i++)
        if (j->ops[i].sends) {
            j->offers[i] =
                (struct offer){.from = j->comm->rank, .to = j->ops[i].peer, .data = j->ops[i].data, .bytes = j->ops[i].bytes};
            *at = &j->offers[i];
            at = &j->offers[i].next;
        }
    pthread_cond_broadcast(&changed);
}

/* With the lock held: a message that was not received is lost. */
static void withdraw_all(struct job *j)
{
    for (struct offer **at = &j->comm->world->offers; *at != NULL;)
        if (*at >= j->offers && *at < j->offers + OPS_MAX)
            *at = (*at)->next;
        else
            at = &(*at)->next;
}

static void run_job(void *data)
{
    struct job *j = data;
    struct nccl_comm *c = j->comm;
    int goes_on = 1;

    pthread_mutex_lock(&lock);
    offer_all(j);
    for (uint32_t i = 0; i < j->count && goes_on; i++)
        if (!j->ops[i].sends)
            goes_on = receive(c, &j->ops[i]);
    for (uint32_t i = 0; i < j->count; i++)
        while (j->ops[i].sends && !j->offers[i].taken && !c->aborted)
            pthread_cond_wait(&changed, &lock);
    withdraw_all(j);
    c->jobs--;
    pthread_cond_broadcast(&changed);
    release(c);
    pthread_mutex_unlock(&lock);
    free(j);
}

static int add(int sends, void *data, size_t bytes, int type, int peer, nccl_comm_t comm, void *stream)
{
    if (group_depth == 0 || type != NCCL_UINT8 || (group != NULL && (group->comm != comm || group->count == OPS_MAX)))
        abort();
    if (group == NULL)
        group = calloc(1, sizeof(*group));
    group->comm = comm;
    group_stream = stream;
    group->ops[group->count++] = (struct op){.sends = sends, .peer = peer, .data = data, .bytes = bytes};
    return NCCL_SUCCESS;
}

int ncclGroupStart(void)
{
    group_depth++;
    return NCCL_SUCCESS;
}

int ncclGroupEnd(void)
{
    struct job *j = group;

    if (--group_depth > 0 || j == NULL)
        return NCCL_SUCCESS;
    group = NULL;
    pthread_mutex_lock(&lock);
    j->comm->jobs++;
    j->comm->in_progress = twin_nccl.in_progress;
    pthread_mutex_unlock(&lock);
    if (twin_launch(group_stream, run_job, j) == cudaSuccess)
        return NCCL_IN_PROGRESS;
    pthread_mutex_lock(&lock);
    j->comm->jobs--;
    pthread_mutex_unlock(&lock);
    free(j);
    return 1; /* ncclUnhandledCudaError */
}

int ncclSend(const void *data, size_t count, int type, int to, nccl_comm_t comm, void *stream)
{
    return add(1, (void *)(uintptr_t)data, count, type, to, comm, stream);
}

int ncclRecv(void *data, size_t count, int type, int from, nccl_comm_t comm, void *stream)
{
    return add(0, data, count, type, from, comm, stream);
}
