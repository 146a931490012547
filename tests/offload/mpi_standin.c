/* mpi_standin.c - see tests/offload/mpi_standin.h. */
#include "tests/offload/mpi_standin.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EAGER_BYTES 8192u
#define RANKS_MAX   4u

enum { BROKEN = 7, TRUNCATED = 15 };

struct message {
    struct message *next;
    uint32_t from, tag, bytes, slot;
    const unsigned char *data; /* the sender's, until it is received; or `copy` */
    unsigned char copy[];
};

struct transfer {
    int receives, active, done, error;
    unsigned char *data;
    uint32_t bytes, from, tag, came;
    uint64_t order; /* of posting */
};

struct rank {
    uint32_t index, slots;
    struct transfer *transfers; /* [slots] */
    struct message *first;      /* to this rank */
    int open;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* guards all below */
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct rank world[RANKS_MAX];
static uint32_t ranks, node_ranks, opened, ended, closed_whole, breaks_from, serialized_now = 1;
static int hangs_now, hanging;
static uint64_t posted;
static sigset_t blocked; /* where the last rank was opened */

void mpi_standin_world(uint32_t count, uint32_t per_node)
{
    pthread_mutex_lock(&lock);
    memset(world, 0, sizeof(world));
    ranks = count;
    node_ranks = per_node;
    opened = ended = closed_whole = breaks_from = 0;
    hangs_now = hanging = 0;
    pthread_mutex_unlock(&lock);
}

static void set(uint32_t *what, uint32_t value)
{
    pthread_mutex_lock(&lock);
    *what = value;
    pthread_mutex_unlock(&lock);
}

static uint32_t get(const uint32_t *what)
{
    uint32_t value;

    pthread_mutex_lock(&lock);
    value = *what;
    pthread_mutex_unlock(&lock);
    return value;
}

void mpi_standin_serialized(uint32_t serialized)
{
    set(&serialized_now, serialized);
}

void mpi_standin_breaks(uint32_t bytes)
{
    set(&breaks_from, bytes);
}

uint32_t mpi_standin_ended(void)
{
    return get(&ended);
}

uint32_t mpi_standin_closed_whole(void)
{
    return get(&closed_whole);
}

int mpi_standin_blocked(int signal)
{
    int is;

    pthread_mutex_lock(&lock);
    is = sigismember(&blocked, signal);
    pthread_mutex_unlock(&lock);
    return is;
}

void mpi_standin_hang(int hangs)
{
    pthread_mutex_lock(&lock);
    hangs_now = hangs;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void mpi_standin_await_hang(void)
{
    pthread_mutex_lock(&lock);
    while (!hanging)
        pthread_cond_wait(&changed, &lock);
    pthread_mutex_unlock(&lock);
}

static int standin_open(void **mpi, uint32_t slots, struct st_mpi_world *out)
{
    struct rank *r;

    pthread_mutex_lock(&lock);
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    r = &world[opened];
    *r = (struct rank){.index = opened++, .slots = slots * ranks, .open = 1};
    r->transfers = calloc(r->slots, sizeof(*r->transfers));
    *out = (struct st_mpi_world){.rank = r->index,
                                 .ranks = ranks,
                                 .local_rank = r->index % node_ranks,
                                 .local_ranks = node_ranks,
                                 .serialized = serialized_now};
    snprintf(out->library, sizeof(out->library), "stand-in of MPI");
    pthread_mutex_unlock(&lock);
    *mpi = r;
    return 0;
}

static int standin_send(void *mpi, uint32_t slot, const void *data, uint32_t bytes, uint32_t to, enum st_mpi_tag tag)
{
    const int eager = bytes <= EAGER_BYTES;
    struct message *m = calloc(1, sizeof(*m) + (eager ? bytes : 0)), **at;
    struct rank *r = mpi;

    pthread_mutex_lock(&lock);
    *m = (struct message){.from = r->index, .tag = tag, .bytes = bytes, .slot = slot, .data = eager ? m->copy : data};
    if (eager)
        memcpy(m->copy, data, bytes);
    r->transfers[slot] = (struct transfer){.active = 1, .done = eager};
    for (at = &world[to].first; *at != NULL;)
        at = &(*at)->next;
    if (world[to].open)
        *at = m;
    else
        free(m); /* to a process that is gone */
    pthread_mutex_unlock(&lock);
    return 0;
}

static int standin_receive(void *mpi, uint32_t slot, void *data, uint32_t bytes, uint32_t from, enum st_mpi_tag tag)
{
    struct rank *r = mpi;

    pthread_mutex_lock(&lock);
    r->transfers[slot] =
        (struct transfer){.receives = 1, .active = 1, .data = data, .bytes = bytes, .from = from, .tag = tag, .order = posted++};
    pthread_mutex_unlock(&lock);
    return 0;
}

static int standin_cancel(void *mpi, uint32_t slot)
{
    struct rank *r = mpi;

    pthread_mutex_lock(&lock);
    r->transfers[slot].done = 1;
    pthread_mutex_unlock(&lock);
    return 0;
}

/* The receive that a message is for: the one that was posted first. */
static struct transfer *receive_of(struct rank *r, const struct message *m)
{
    struct transfer *first = NULL;

    for (uint32_t i = 0; i < r->slots; i++) {
        struct transfer *t = &r->transfers[i];

        if (t->active && t->receives && !t->done && t->tag == m->tag && (t->from == m->from || t->from == ST_MPI_ANY_RANK) &&
            (first == NULL || t->order < first->order))
            first = t;
    }
    return first;
}

static void land(struct transfer *t, struct message *m)
{
    t->done = 1;
    t->error = m->bytes > t->bytes ? TRUNCATED : breaks_from > 0 && m->bytes >= breaks_from ? BROKEN : 0;
    t->came = m->bytes < t->bytes ? m->bytes : t->bytes;
    if (t->came > 0)
        memcpy(t->data, m->data, t->came);
    if (m->data != m->copy)
        world[m->from].transfers[m->slot].done = 1;
    free(m);
}

static int standin_test(void *mpi, struct st_mpi_done *done, uint32_t *count)
{
    struct rank *r = mpi;

    *count = 0;
    pthread_mutex_lock(&lock);
    while (hangs_now) {
        hanging = 1;
        pthread_cond_broadcast(&changed);
        pthread_cond_wait(&changed, &lock);
    }
    for (struct message **at = &r->first; *at != NULL;) {
        struct message *m = *at;
        struct transfer *t = receive_of(r, m);

        if (t != NULL)
            *at = m->next;
        else
            at = &m->next;
        if (t != NULL)
            land(t, m);
    }
    for (uint32_t i = 0; i < r->slots; i++)
        if (r->transfers[i].active && r->transfers[i].done) {
            done[(*count)++] = (struct st_mpi_done){.slot = i, .bytes = r->transfers[i].came, .error = r->transfers[i].error};
            r->transfers[i].active = 0;
        }
    pthread_mutex_unlock(&lock);
    return 0;
}

static void standin_error_text(int error, char text[ST_MPI_TEXT_BYTES])
{
    snprintf(text, ST_MPI_TEXT_BYTES, "the stand-in's error %d", error);
}

static void standin_end(void *mpi, int exit_code)
{
    (void)mpi;
    (void)exit_code;
    set(&ended, get(&ended) + 1);
}

/* What other ranks have not yet received of this one's memory is lost. */
static int standin_close(void *mpi, uint32_t whole)
{
    struct rank *r = mpi;

    pthread_mutex_lock(&lock);
    closed_whole += whole;
    r->open = 0;
    for (uint32_t to = 0; to < ranks; to++)
        for (struct message **at = &world[to].first; *at != NULL;) {
            struct message *m = *at;

            if (to == r->index || (m->from == r->index && m->data != m->copy)) {
                *at = m->next;
                free(m);
            } else {
                at = &m->next;
            }
        }
    free(r->transfers);
    r->transfers = NULL;
    pthread_mutex_unlock(&lock);
    return 0;
}

const struct st_mpi_plugin mpi_standin = {
    .abi = ST_MPI_ABI,
    .bytes = sizeof(struct st_mpi_plugin),
    .open = standin_open,
    .send = standin_send,
    .receive = standin_receive,
    .cancel = standin_cancel,
    .test = standin_test,
    .error_text = standin_error_text,
    .end = standin_end,
    .close = standin_close,
};
