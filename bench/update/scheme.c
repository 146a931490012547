/* bench/update/scheme.c - a ring of chunks between a swap and the workers: chunks are read ahead, updated in order, and written
 * behind. */
#include "bench/update/scheme.h"

#include "bench/update/planes.h"
#include "core/base/error.h"
#include "core/system/arena.h"
#include "core/system/clock.h"
#include "nvme/swap/swap.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_MOST   (UINT64_C(2) << 20) /* elements: 8 MiB of a plane */
#define CHUNKS_LEAST 16u
#define SLOTS        4u
#define NOISE_ELEMS  (UINT64_C(1) << 20)
#define ERROR_BYTES  1024

const char *const bench_scheme_names[BENCH_SCHEME_COUNT] = {"zero-infinity", "mlp-offload"};
const uint32_t bench_scheme_bytes[BENCH_SCHEME_COUNT] = {32, 24};

enum plane { MASTER, MOMENT1, MOMENT2, GRAD, PLANES };

/* A chunk in progress. */
struct slot {
    struct bench_scheme *scheme;
    struct st_transfer transfer[PLANES];
    float *plane[PLANES]; /* [chunk_elems] */
    uint32_t busy;        /* transfers that have not ended */
};

struct bench_scheme {
    enum bench_scheme_kind kind;
    const struct bench_setup *setup;
    const struct st_kernels *kernels;
    uint64_t params, chunk_elems, chunk_count;
    struct st_swap *swap;
    struct st_arena ring, host;
    uint16_t *weights; /* [params], written by the update */
    uint16_t *noise;   /* [NOISE_ELEMS] bf16 gradients, repeated */
    struct slot slots[SLOTS];
    uint64_t updates;     /* updates done so far */
    pthread_mutex_t lock; /* guards `busy` of all slots, and the three members below */
    pthread_cond_t ended;
    strata_status status; /* first failure */
    char error[ERROR_BYTES];
};

/* --- transfers --- */

static void transfer_done(struct st_transfer *t, strata_status st)
{
    struct slot *slot = t->owner;
    struct bench_scheme *s = slot->scheme;

    pthread_mutex_lock(&s->lock);
    if (st != STRATA_OK && s->status == STRATA_OK) {
        s->status = st;
        snprintf(s->error, sizeof(s->error), "%s", strata_last_error());
    }
    slot->busy--;
    pthread_cond_signal(&s->ended);
    pthread_mutex_unlock(&s->lock);
}

/* Wait until nothing of a slot is in flight. */
static strata_status settle(struct slot *slot)
{
    struct bench_scheme *s = slot->scheme;
    strata_status st;

    pthread_mutex_lock(&s->lock);
    while (slot->busy > 0)
        pthread_cond_wait(&s->ended, &s->lock);
    st = s->status;
    pthread_mutex_unlock(&s->lock);
    return st == STRATA_OK ? STRATA_OK : st_error(st, "%s", s->error);
}

static strata_status settle_all(struct bench_scheme *s)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < SLOTS; i++) {
        const strata_status one = settle(&s->slots[i]);

        st = st == STRATA_OK ? one : st;
    }
    return st;
}

static uint64_t chunk_elems_at(const struct bench_scheme *s, uint64_t chunk)
{
    const uint64_t left = s->params - chunk * s->chunk_elems;

    return left < s->chunk_elems ? left : s->chunk_elems;
}

static strata_status start(struct slot *slot, enum st_io_op op, enum plane plane, uint64_t chunk)
{
    struct bench_scheme *s = slot->scheme;
    struct st_transfer *t = &slot->transfer[plane];
    strata_status st;

    *t = (struct st_transfer){
        .op = op,
        .offset = (plane * s->params + chunk * s->chunk_elems) * sizeof(float),
        .bytes = chunk_elems_at(s, chunk) * sizeof(float),
        .buf = slot->plane[plane],
        .done = transfer_done,
        .owner = slot,
    };
    pthread_mutex_lock(&s->lock);
    slot->busy++;
    pthread_mutex_unlock(&s->lock);
    st = st_swap_submit(s->swap, t);
    if (st != STRATA_OK)
        transfer_done(t, st);
    return st;
}

static strata_status start_planes(struct slot *slot, enum st_io_op op, uint32_t count, uint64_t chunk)
{
    strata_status st = STRATA_OK;

    for (uint32_t p = 0; p < count && st == STRATA_OK; p++)
        st = start(slot, op, (enum plane)p, chunk);
    return st;
}

static uint32_t read_planes(const struct bench_scheme *s)
{
    return s->kind == BENCH_ZERO_INFINITY ? PLANES : GRAD;
}

/* --- work on a chunk --- */

struct tile_job {
    struct bench_scheme *s;
    struct slot *slot;
    uint64_t chunk;
    struct st_update_coef coef;
};

static const uint16_t *noise_at(const struct tile_job *job, uint64_t at)
{
    return job->s->noise + (job->chunk * job->s->chunk_elems + at) % NOISE_ELEMS;
}

static uint64_t tile_elems(const struct tile_job *job, uint64_t at)
{
    const uint64_t left = chunk_elems_at(job->s, job->chunk) - at;

    return left < BENCH_ITEM_ELEMS ? left : BENCH_ITEM_ELEMS;
}

static void update_tile(void *ctx, uint64_t index, uint32_t worker)
{
    const struct tile_job *job = ctx;
    const struct slot *slot = job->slot;
    const uint64_t at = index * BENCH_ITEM_ELEMS;
    const struct st_moments moments = {ST_MOMENTS_F32, slot->plane[MOMENT1] + at, slot->plane[MOMENT2] + at, 0};
    const bool stored = job->s->kind == BENCH_ZERO_INFINITY;

    (void)worker;
    job->s->kernels->update_master(slot->plane[MASTER] + at, job->s->weights + job->chunk * job->s->chunk_elems + at, STRATA_BF16,
                                   &moments, stored ? (const void *)(slot->plane[GRAD] + at) : noise_at(job, at),
                                   stored ? STRATA_F32 : STRATA_BF16, tile_elems(job, at), &job->coef);
}

/* Widens a gradient as backward leaves it to the precision that storage keeps. */
static void widen_tile(void *ctx, uint64_t index, uint32_t worker)
{
    const struct tile_job *job = ctx;
    const uint64_t at = index * BENCH_ITEM_ELEMS;

    (void)worker;
    job->s->kernels->bf16_to_f32(job->slot->plane[GRAD] + at, noise_at(job, at), tile_elems(job, at));
}

static void run_tiles(struct slot *slot, uint64_t chunk, st_work_fn *fn)
{
    struct tile_job job = {slot->scheme, slot, chunk, bench_adam_coef()};

    st_workers_run(slot->scheme->setup->workers, fn, &job,
                   (chunk_elems_at(job.s, chunk) + BENCH_ITEM_ELEMS - 1) / BENCH_ITEM_ELEMS);
}

/* --- one update --- */

static strata_status store_grads(struct bench_scheme *s)
{
    strata_status st = STRATA_OK;

    for (uint64_t c = 0; c < s->chunk_count && st == STRATA_OK; c++) {
        struct slot *slot = &s->slots[c % SLOTS];

        if ((st = settle(slot)) != STRATA_OK)
            break;
        run_tiles(slot, c, widen_tile);
        st = start(slot, ST_IO_WRITE, GRAD, c);
    }
    return st;
}

/* The chunk that is updated at `turn`. */
static uint64_t chunk_at(const struct bench_scheme *s, uint64_t turn)
{
    return s->kind == BENCH_MLP_OFFLOAD && s->updates % 2 == 1 ? s->chunk_count - 1 - turn : turn;
}

static strata_status read_ahead(struct bench_scheme *s, uint64_t turn)
{
    struct slot *slot = &s->slots[turn % SLOTS];
    const strata_status st = settle(slot);

    return st != STRATA_OK ? st : start_planes(slot, ST_IO_READ, read_planes(s), chunk_at(s, turn));
}

/* Two chunks are read ahead while one is updated and one is written. */
static strata_status update_all(struct bench_scheme *s)
{
    const uint64_t ahead = SLOTS - 2;
    strata_status st = STRATA_OK;

    for (uint64_t turn = 0; turn < s->chunk_count + ahead && st == STRATA_OK; turn++) {
        const uint64_t now = turn - ahead; /* the chunk whose reads began two turns ago */
        struct slot *slot = &s->slots[now % SLOTS];

        if (turn < s->chunk_count)
            st = read_ahead(s, turn);
        if (st != STRATA_OK || turn < ahead)
            continue;
        if ((st = settle(slot)) != STRATA_OK)
            break;
        run_tiles(slot, chunk_at(s, now), update_tile);
        st = start_planes(slot, ST_IO_WRITE, GRAD, chunk_at(s, now));
    }
    return st;
}

strata_status bench_scheme_update(struct bench_scheme *s, double *seconds, uint64_t *bytes_read, uint64_t *bytes_written)
{
    const uint64_t begin_ns = st_clock_ns();
    struct st_mover_counters before, after;
    strata_status st = STRATA_OK, settled;

    st_swap_counters(s->swap, &before);
    if (s->kind == BENCH_ZERO_INFINITY)
        st = store_grads(s);
    settled = settle_all(s);
    if (st == STRATA_OK && settled == STRATA_OK)
        st = update_all(s);
    settled = settle_all(s);
    st = st == STRATA_OK ? settled : st;
    *seconds = (double)(st_clock_ns() - begin_ns) * 1e-9;
    st_swap_counters(s->swap, &after);
    *bytes_read = after.bytes_read - before.bytes_read;
    *bytes_written = after.bytes_written - before.bytes_written;
    s->updates++;
    return st;
}

/* --- open and close --- */

/* Masters of one ordinary value, moments of 0.  The first write also allocates the extents. */
static strata_status write_state(struct bench_scheme *s)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < SLOTS; i++) {
        for (uint64_t e = 0; e < s->chunk_elems; e++)
            s->slots[i].plane[MASTER][e] = 0.02f;
    }
    for (uint64_t c = 0; c < s->chunk_count && st == STRATA_OK; c++) {
        st = settle(&s->slots[c % SLOTS]);
        if (st == STRATA_OK)
            st = start_planes(&s->slots[c % SLOTS], ST_IO_WRITE, read_planes(s), c);
    }
    return st == STRATA_OK ? settle_all(s) : st;
}

static strata_status take_memory(struct bench_scheme *s)
{
    const uint64_t plane = s->chunk_elems * sizeof(float) + 2 * (uint64_t)ST_SWAP_ALIGN, ring = SLOTS * PLANES * plane;
    const uint64_t host = (s->params + NOISE_ELEMS + BENCH_ITEM_ELEMS) * sizeof(uint16_t);
    strata_status st = bench_check_memory(s->setup, ring + host, "lower --params");

    if (st == STRATA_OK)
        st = st_arena_create_near(&s->ring, "bench", ring, s->setup->workers, s->setup->topology);
    if (st == STRATA_OK)
        st = st_arena_create_near(&s->host, "bench", host, s->setup->workers, s->setup->topology);
    if (st != STRATA_OK)
        return st;
    s->noise = (uint16_t *)(void *)s->host.base;
    s->weights = s->noise + NOISE_ELEMS + BENCH_ITEM_ELEMS; /* a tile may begin at the last element of the noise */
    for (uint64_t i = 0; i < NOISE_ELEMS + BENCH_ITEM_ELEMS; i++)
        s->noise[i] = (uint16_t)(0x3a80u + i % 61 + (i % 2 << 15));
    for (uint32_t i = 0; i < SLOTS; i++) {
        s->slots[i].scheme = s;
        for (uint32_t p = 0; p < PLANES; p++) /* two kernel pages apart, so that planes do not compete for the same cache sets */
            s->slots[i].plane[p] = (float *)(void *)(s->ring.base + (i * PLANES + p) * plane);
    }
    return STRATA_OK;
}

static strata_status take_files(struct bench_scheme *s)
{
    const struct bench_opts *opts = s->setup->opts;

    return st_swap_open(&s->swap, &(struct st_swap_opts){
                                      .dirs = opts->dirs,
                                      .dir_count = opts->dir_count,
                                      .bytes = {(uint64_t)read_planes(s) * s->params * sizeof(float)},
                                      .method = opts->io_method,
                                      .region = s->ring.base,
                                      .region_bytes = s->ring.bytes,
                                      .block_bytes = 1u << 20,
                                      .queue_depth = 32,
                                  });
}

strata_status bench_scheme_open(struct bench_scheme **out, const struct bench_setup *setup, const struct bench_scheme_opts *opts)
{
    struct bench_scheme *s = calloc(1, sizeof(*s));
    strata_status st;

    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->kind = opts->kind;
    s->setup = setup;
    s->kernels = opts->kernels;
    s->params = (opts->params + ST_NORM_BLOCK - 1) / ST_NORM_BLOCK * ST_NORM_BLOCK;
    s->chunk_elems = s->params / CHUNKS_LEAST / ST_NORM_BLOCK * ST_NORM_BLOCK;
    s->chunk_elems = s->chunk_elems < ST_NORM_BLOCK ? ST_NORM_BLOCK : s->chunk_elems > CHUNK_MOST ? CHUNK_MOST : s->chunk_elems;
    s->chunk_count = (s->params + s->chunk_elems - 1) / s->chunk_elems;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->ended, NULL);
    st = take_memory(s);
    if (st == STRATA_OK)
        st = take_files(s);
    if (st == STRATA_OK)
        st = write_state(s);
    if (st != STRATA_OK) {
        bench_scheme_close(s);
        return st;
    }
    *out = s;
    return STRATA_OK;
}

void bench_scheme_close(struct bench_scheme *s)
{
    if (s == NULL)
        return;
    if (s->swap != NULL)
        (void)settle_all(s); /* only to make sure that nothing is in flight */
    st_swap_close(s->swap);
    st_arena_destroy(&s->host);
    st_arena_destroy(&s->ring);
    pthread_cond_destroy(&s->ended);
    pthread_mutex_destroy(&s->lock);
    free(s);
}
