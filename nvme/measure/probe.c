/* nvme/measure/probe.c - a short measurement of a directory: the rates of writing, reading and both at once with a given method.
 *
 * It moves bytes through a swap as a run does.  It reads only what the first phase wrote: the file system answers reads of
 * reserved but unwritten blocks without the drive. */
#include "nvme/swap/swap.h"

#include "core/base/error.h"
#include "core/base/rng.h"
#include "core/system/arena.h"
#include "core/system/clock.h"
#include "core/trace/stats.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_DEFAULT (1u << 20)
#define DEPTH_DEFAULT 32u
#define LANES_MAX     64u /* with several directories, since the buffers take memory */
#define PHASES        3
#define NS_PER_SECOND 1e9
#define SMALL_READS   31u /* of which the median is the latency */

struct probe;

/* One buffer and the transfer that uses it. */
struct lane {
    struct st_transfer transfer;
    struct probe *probe;
    struct lane *next; /* free list */
};

struct probe {
    struct st_swap *swap;
    uint32_t block_bytes, depth, lane_count;
    uint64_t block_count;   /* of the file */
    double phase_ns;        /* limit of each phase */
    struct lane *lanes;     /* [lane_count] */
    struct st_arena arena;  /* for the buffers, in huge pages like a run's arena; small ones halve a virtual disk's rate */
    unsigned char *buffers; /* [lane_count * block_bytes] */
    pthread_mutex_t lock;   /* guards the five below */
    pthread_cond_t freed;
    struct lane *free_lanes;
    uint32_t free_count;
    strata_status status; /* first failure */
    struct st_sentence error;
};

static void lane_done(struct st_transfer *t, strata_status st)
{
    struct lane *lane = t->owner;
    struct probe *p = lane->probe;

    pthread_mutex_lock(&p->lock);
    if (st != STRATA_OK && p->status == STRATA_OK) {
        p->status = st;
        st_error_keep(&p->error);
    }
    lane->next = p->free_lanes;
    p->free_lanes = lane;
    p->free_count++;
    pthread_cond_signal(&p->freed);
    pthread_mutex_unlock(&p->lock);
}

/* A free lane, waiting for one if need be.  NULL: a transfer has failed. */
static struct lane *lane_acquire(struct probe *p)
{
    struct lane *lane = NULL;

    pthread_mutex_lock(&p->lock);
    while (p->free_lanes == NULL)
        pthread_cond_wait(&p->freed, &p->lock);
    if (p->status == STRATA_OK) {
        lane = p->free_lanes;
        p->free_lanes = lane->next;
        p->free_count--;
    }
    pthread_mutex_unlock(&p->lock);
    return lane;
}

static strata_status wait_all(struct probe *p)
{
    strata_status st;

    pthread_mutex_lock(&p->lock);
    while (p->free_count < p->lane_count)
        pthread_cond_wait(&p->freed, &p->lock);
    st = p->status;
    pthread_mutex_unlock(&p->lock);
    return st == STRATA_OK ? STRATA_OK : st_error_again(st, &p->error);
}

static strata_status start_block(struct probe *p, struct lane *lane, enum st_io_op op, uint64_t block)
{
    strata_status st;

    lane->transfer.op = op;
    lane->transfer.offset = block * p->block_bytes;
    st = st_swap_submit(p->swap, &lane->transfer);
    if (st != STRATA_OK)
        lane_done(&lane->transfer, st);
    return st;
}

enum phase { PHASE_WRITE, PHASE_READ, PHASE_MIXED };

static enum st_io_op op_of(enum phase phase, uint64_t index)
{
    if (phase == PHASE_MIXED)
        return index % 2 == 0 ? ST_IO_READ : ST_IO_WRITE;
    return phase == PHASE_READ ? ST_IO_READ : ST_IO_WRITE;
}

/* One pass over `blocks` blocks, cut short by the clock.  *moved: blocks, *rate: bytes per second. */
static strata_status run_phase(struct probe *p, enum phase phase, uint64_t blocks, uint64_t *moved, double *rate)
{
    const uint64_t start = st_clock_ns();
    strata_status st;
    uint64_t i = 0;

    do {
        struct lane *lane = lane_acquire(p);

        if (lane == NULL || start_block(p, lane, op_of(phase, i), i) != STRATA_OK)
            break;
        i++;
    } while (i < blocks && (double)(st_clock_ns() - start) < p->phase_ns);
    if ((st = wait_all(p)) != STRATA_OK)
        return st;
    *moved = i;
    *rate = (double)(i * p->block_bytes) * NS_PER_SECOND / (double)(st_clock_ns() - start + 1);
    return STRATA_OK;
}

/* The median of small reads, one after the other, each from another block of those written; as many as there is time for. */
static strata_status run_latency(struct probe *p, uint64_t blocks, double *seconds)
{
    const uint64_t start = st_clock_ns();
    double each[SMALL_READS];
    uint32_t count = 0;

    do {
        const uint64_t begun = st_clock_ns();
        struct lane *lane = lane_acquire(p);
        strata_status st;

        if (lane != NULL) {
            lane->transfer.bytes = ST_SWAP_ALIGN;
            (void)start_block(p, lane, ST_IO_READ, count * (blocks / SMALL_READS + 1) % blocks); /* wait_all() says what failed */
        }
        if ((st = wait_all(p)) != STRATA_OK)
            return st;
        lane->transfer.bytes = p->block_bytes;
        each[count++] = (double)(st_clock_ns() - begun) / NS_PER_SECOND;
    } while (count < SMALL_READS && (double)(st_clock_ns() - start) < p->phase_ns);
    *seconds = st_stats_median(each, count);
    return STRATA_OK;
}

/* Fills with random bytes: a drive or a file system may compress repetitive data. */
static void fill(struct probe *p)
{
    const uint64_t words = (uint64_t)p->lane_count * p->block_bytes / sizeof(uint64_t);

    for (uint64_t i = 0; i < words; i++) {
        const uint64_t word = st_rng_u64(1, 0, i);

        memcpy(p->buffers + i * sizeof(word), &word, sizeof(word));
    }
}

static strata_status buffers_create(struct probe *p)
{
    strata_status st;

    p->lanes = calloc(p->lane_count, sizeof(*p->lanes));
    if (p->lanes == NULL)
        return st_nomem(p->lane_count * sizeof(*p->lanes));
    st = st_arena_create(&p->arena, "probe", (uint64_t)p->lane_count * p->block_bytes, NULL);
    if (st != STRATA_OK)
        return st;
    p->buffers = p->arena.base;
    fill(p);
    for (uint32_t i = 0; i < p->lane_count; i++) {
        struct lane *lane = &p->lanes[i];

        lane->probe = p;
        lane->transfer.owner = lane;
        lane->transfer.done = lane_done;
        lane->transfer.bytes = p->block_bytes;
        lane->transfer.buf = p->buffers + (size_t)i * p->block_bytes;
        lane->next = p->free_lanes;
        p->free_lanes = lane;
        p->free_count++;
    }
    return STRATA_OK;
}

static strata_status measure(struct probe *p, struct st_probe_rates *out)
{
    struct st_probe_rates rates;
    uint64_t written, moved;
    strata_status st;

    if ((st = run_phase(p, PHASE_WRITE, p->block_count, &written, &rates.write)) != STRATA_OK)
        return st;
    if ((st = run_phase(p, PHASE_READ, written, &moved, &rates.read)) != STRATA_OK)
        return st;
    if ((st = run_phase(p, PHASE_MIXED, written, &moved, &rates.mixed)) != STRATA_OK)
        return st;
    if ((st = run_latency(p, written, &rates.latency)) != STRATA_OK)
        return st;
    *out = rates;
    return STRATA_OK;
}

static strata_status probe_open(struct probe *p, const struct st_probe_opts *opts)
{
    strata_status st = buffers_create(p);

    if (st != STRATA_OK)
        return st;
    return st_swap_open(&p->swap, &(struct st_swap_opts){
                                      .dirs = opts->dir_count > 0 ? opts->dirs : &opts->dir,
                                      .dir_count = opts->dir_count > 0 ? opts->dir_count : 1,
                                      .dir_rates = opts->dir_rates,
                                      .bytes = {p->block_count * p->block_bytes},
                                      .method = opts->method,
                                      .block_bytes = p->block_bytes,
                                      .queue_depth = p->depth,
                                      .region = p->buffers,
                                      .region_bytes = (uint64_t)p->lane_count * p->block_bytes,
                                  });
}

strata_status st_probe_run(const struct st_probe_opts *opts, struct st_probe_rates *out)
{
    struct probe p = {.block_bytes = opts->block_bytes > 0 ? opts->block_bytes : BLOCK_DEFAULT,
                      .depth = opts->queue_depth > 0 ? opts->queue_depth : DEPTH_DEFAULT,
                      .phase_ns = opts->seconds_max * NS_PER_SECOND / PHASES};
    strata_status st;

    p.lane_count = p.depth;
    if (opts->dir_count > 1 && p.lane_count < LANES_MAX)
        p.lane_count = p.depth * opts->dir_count < LANES_MAX ? p.depth * opts->dir_count : LANES_MAX;
    p.block_count = opts->bytes / p.block_bytes > 2 ? opts->bytes / p.block_bytes : 2;
    pthread_mutex_init(&p.lock, NULL);
    pthread_cond_init(&p.freed, NULL);
    st = probe_open(&p, opts);
    if (st == STRATA_OK)
        st = measure(&p, out);
    st_swap_close(p.swap);
    st_arena_destroy(&p.arena);
    free(p.lanes);
    pthread_cond_destroy(&p.freed);
    pthread_mutex_destroy(&p.lock);
    return st;
}

strata_status st_probe_rates(const char *dir, const char *method, uint64_t bytes, double seconds_max, struct st_probe_rates *out)
{
    return st_probe_run(&(struct st_probe_opts){.dir = dir, .method = method, .bytes = bytes, .seconds_max = seconds_max}, out);
}
