/* nvme/swap.c - a swap put together: run directory, file, I/O thread; and the paths to unlink when the process dies. */
#include "nvme/swap.h"

#include "core/clock.h"
#include "core/error.h"
#include "core/log.h"
#include "core/size.h"
#include "nvme/io_method.h"
#include "nvme/swap_parts.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_DEFAULT (1u << 20)
#define DEPTH_DEFAULT 32u
#define LITTER_MAX    8u /* swaps remembered for unlink_all */
#define LITTER_PATH   (PATH_MAX + NAME_MAX)

struct st_swap {
    struct st_run_dir run;
    int fd; /* -1: fake */
    uint64_t bytes;
    struct st_swap_info info;
    struct st_mover *mover;
    int litter; /* index, or -1 */
};

enum litter_state { LITTER_FREE = 0, LITTER_FILLING, LITTER_LIVE };

/* Paths ready for a signal handler: it reads them only in state LITTER_LIVE (acquire, pairs with the release in
 * litter_add()).  Static, so that a handler never meets freed memory. */
static struct litter {
    _Atomic int state;
    char file[LITTER_PATH], lock[LITTER_PATH], dir[PATH_MAX];
} litter[LITTER_MAX];

static int litter_add(const char *run_path)
{
    for (uint32_t i = 0; i < LITTER_MAX; i++) {
        int expected = LITTER_FREE;

        if (!atomic_compare_exchange_strong(&litter[i].state, &expected, LITTER_FILLING))
            continue;
        snprintf(litter[i].file, sizeof(litter[i].file), "%s/" ST_SWAP_FILE_NAME "0", run_path);
        snprintf(litter[i].lock, sizeof(litter[i].lock), "%s/" ST_SWAP_LOCK_NAME, run_path);
        snprintf(litter[i].dir, sizeof(litter[i].dir), "%s", run_path);
        atomic_store_explicit(&litter[i].state, LITTER_LIVE, memory_order_release);
        return (int)i;
    }
    return -1;
}

static void litter_remove(int index)
{
    if (index >= 0)
        atomic_store_explicit(&litter[index].state, LITTER_FREE, memory_order_release);
}

void st_swap_unlink_all(void)
{
    for (uint32_t i = 0; i < LITTER_MAX; i++) {
        if (atomic_load_explicit(&litter[i].state, memory_order_acquire) != LITTER_LIVE)
            continue;
        unlink(litter[i].file);
        unlink(litter[i].lock);
        rmdir(litter[i].dir);
    }
}

static strata_status check_opts(const struct st_swap_opts *opts, bool on_disk)
{
    if (opts->bytes == 0 || opts->bytes % ST_SWAP_ALIGN != 0)
        return st_error(STRATA_E_INVAL, "swap space of %" PRIu64 " bytes: must be a multiple of %u, and not 0", opts->bytes,
                        ST_SWAP_ALIGN);
    if (opts->block_bytes % ST_SWAP_ALIGN != 0 || opts->block_bytes > ST_IO_BYTES_MAX)
        return st_error(STRATA_E_INVAL, "block size %" PRIu32 ": must be a multiple of %u and at most 1 GiB", opts->block_bytes,
                        ST_SWAP_ALIGN);
    if (on_disk && opts->dir_count != 1)
        return st_error(STRATA_E_INVAL, "%" PRIu32 " swap directories: this version takes exactly one", opts->dir_count);
    return STRATA_OK;
}

static strata_status choose_method(const struct st_io_ops **out, const char *name)
{
    const char *why;

    *out = st_io_find(name, &why);
    if (*out == NULL)
        return st_error(STRATA_E_INVAL, "I/O method \"%s\" is unknown: auto, uring, threads or fake", name);
    if (why[0] != '\0')
        st_log(ST_LOG_NOTICE, "I/O method %s: %s", (*out)->name, why);
    return STRATA_OK;
}

static bool is_auto(const char *method)
{
    return method == NULL || strcmp(method, "auto") == 0;
}

/* The likely case is told before anything is created; posix_fallocate() decides. */
static strata_status check_free(const char *dir, uint64_t bytes)
{
    char needed[24], there[24];
    uint64_t free_bytes;
    strata_status st = st_swap_free_bytes(dir, &free_bytes);

    if (st != STRATA_OK || bytes <= free_bytes)
        return st;
    return st_error(STRATA_E_NOSPC, "%s: %s of swap space needed, %s free: free space, or name another directory with --nvme",
                    dir, st_size_text(needed, bytes), st_size_text(there, free_bytes));
}

static strata_status open_disk(struct st_swap *swap, const char *dir)
{
    strata_status st;

    st_swap_sweep(dir);
    if ((st = check_free(dir, swap->bytes)) != STRATA_OK)
        return st;
    if ((st = st_run_dir_create(&swap->run, dir)) != STRATA_OK)
        return st;
    swap->litter = litter_add(swap->run.path);
    if (swap->litter < 0)
        st_log(ST_LOG_WARN, "%s: more than %u swaps are open: this one stays behind if the process dies, until the next run",
               swap->run.path, LITTER_MAX);
    return st_swap_file_create(&swap->fd, &swap->info.direct, &swap->run, swap->bytes);
}

static strata_status start_mover(struct st_swap *swap, const struct st_io_ops *ops, const struct st_swap_opts *opts)
{
    char path[LITTER_PATH] = "fake swap";

    snprintf(swap->info.method, sizeof(swap->info.method), "%s", ops->name);
    if (swap->fd >= 0)
        snprintf(path, sizeof(path), "%s/" ST_SWAP_FILE_NAME "0", swap->run.path);
    return st_mover_start(&swap->mover,
                          &(struct st_mover_opts){
                              .ops = ops,
                              .io = {.queue_depth = swap->info.queue_depth,
                                     .fake_seed = opts->fake_seed,
                                     .fake_latency_us = opts->fake_latency_us,
                                     .fake_bytes_per_second = opts->fake_bytes_per_second},
                              .path = path,
                              .fd = swap->fd,
                              .bytes = swap->bytes,
                              .block_bytes = swap->info.block_bytes,
                              .region = opts->region,
                              .region_bytes = opts->region_bytes,
                          },
                          &swap->info.registered);
}

strata_status st_swap_open(struct st_swap **out, const struct st_swap_opts *opts)
{
    const struct st_io_ops *ops;
    struct st_swap *swap;
    strata_status st = choose_method(&ops, opts->method);
    const bool on_disk = st == STRATA_OK && ops != &st_io_fake_ops;

    if (st != STRATA_OK || (st = check_opts(opts, on_disk)) != STRATA_OK)
        return st;
    if ((st = st_io_alloc((void **)&swap, "swap", 1, sizeof(*swap))) != STRATA_OK)
        return st;
    swap->run = (struct st_run_dir){.dir_fd = -1, .lock_fd = -1};
    swap->fd = swap->litter = -1;
    swap->bytes = opts->bytes;
    swap->info.block_bytes = opts->block_bytes > 0 ? opts->block_bytes : BLOCK_DEFAULT;
    swap->info.queue_depth = opts->queue_depth > 0 ? opts->queue_depth : DEPTH_DEFAULT;
    if (on_disk && (st = open_disk(swap, opts->dirs[0])) != STRATA_OK)
        goto fail;
    st = start_mover(swap, ops, opts);
    if ((st == STRATA_E_NOMEM || st == STRATA_E_NOSYS) && ops == &st_io_uring_ops && is_auto(opts->method)) {
        st_log(ST_LOG_NOTICE, "%s: I/O method threads is used", strata_last_error());
        st = start_mover(swap, &st_io_threads_ops, opts);
    }
    if (st != STRATA_OK)
        goto fail;
    *out = swap;
    return STRATA_OK;

fail:
    st_swap_close(swap);
    return st;
}

void st_swap_close(struct st_swap *swap)
{
    if (swap == NULL)
        return;
    st_mover_stop(swap->mover);
    if (swap->fd >= 0)
        close(swap->fd);
    st_run_dir_remove(&swap->run);
    litter_remove(swap->litter);
    free(swap);
}

strata_status st_swap_submit(struct st_swap *swap, struct st_transfer *t)
{
    assert(t->op == ST_IO_READ || t->op == ST_IO_WRITE);
    assert(t->done != NULL);
    if ((t->offset | t->bytes | (uint64_t)(uintptr_t)t->buf) % ST_SWAP_ALIGN != 0)
        return st_error(STRATA_E_INVAL, "transfer of %" PRIu64 " bytes at offset %" PRIu64 ": not aligned to %u", t->bytes,
                        t->offset, ST_SWAP_ALIGN);
    if (t->offset > swap->bytes || t->bytes > swap->bytes - t->offset)
        return st_error(STRATA_E_INVAL,
                        "transfer of %" PRIu64 " bytes at offset %" PRIu64 " ends outside the swap's %" PRIu64 " bytes", t->bytes,
                        t->offset, swap->bytes);
    t->bytes_issued = t->bytes_finished = 0;
    t->in_flight = 0;
    t->status = STRATA_OK;
    t->start_ns = st_clock_ns();
    st_mover_submit(swap->mover, t);
    return STRATA_OK;
}

void st_swap_info(const struct st_swap *swap, struct st_swap_info *out)
{
    *out = swap->info;
}

void st_swap_counters(struct st_swap *swap, struct st_swap_counters *out)
{
    st_mover_counters(swap->mover, out);
}
