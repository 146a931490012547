/* nvme/swap/swap.c - puts a swap together: run directories, files, I/O thread. */
#include "nvme/swap/swap.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "core/system/ending.h"
#include "nvme/method/io_method.h"
#include "nvme/swap/swap_internal.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* One directory's part of the swap. */
struct part {
    struct st_run_dir run;
    struct st_users users;
    char path[PATH_MAX + 16]; /* of its file */
    uint64_t bytes;
    int fd;     /* -1: fake */
    int litter; /* index, or -1 */
    bool direct;
};

struct st_swap {
    struct st_stripe stripe;
    struct part *parts; /* [stripe.dir_count] */
    uint64_t bytes;
    struct st_swap_info info;
    struct st_mover *mover;
};

static strata_status check_opts(const struct st_swap_opts *opts, bool on_disk)
{
    if (opts->bytes == 0 || opts->bytes % ST_SWAP_ALIGN != 0)
        return st_error(STRATA_E_INVAL, "swap space of %" PRIu64 " bytes: must be a multiple of %u, and not 0", opts->bytes,
                        ST_SWAP_ALIGN);
    if (opts->block_bytes % ST_SWAP_ALIGN != 0 || opts->block_bytes > ST_IO_BYTES_MAX)
        return st_error(STRATA_E_INVAL, "block size %" PRIu32 ": must be a multiple of %u and at most 1 GiB", opts->block_bytes,
                        ST_SWAP_ALIGN);
    if (opts->dir_count > ST_SWAP_DIRS_MAX || (on_disk && opts->dir_count == 0))
        return st_error(STRATA_E_INVAL, "%" PRIu32 " swap directories: one to %u are possible", opts->dir_count,
                        ST_SWAP_DIRS_MAX);
    for (uint32_t i = 0; opts->dir_rates != NULL && i < opts->dir_count; i++)
        if (!(opts->dir_rates[i] > 0) || !isfinite(opts->dir_rates[i]))
            return st_error(STRATA_E_INVAL, "swap directory %" PRIu32 ": a rate of %g bytes per second", i, opts->dir_rates[i]);
    return STRATA_OK;
}

static strata_status choose_method(const struct st_io_ops **out, const char *name)
{
    const char *why;

    *out = st_io_find(name, &why);
    if (*out == NULL)
        return st_error(STRATA_E_INVAL, "I/O method \"%s\" is unknown: auto, uring, aio, threads or fake", name);
    if (why[0] != '\0')
        st_log(ST_LOG_NOTICE, "I/O method %s: %s", (*out)->name, why);
    return STRATA_OK;
}

static bool is_auto(const char *method)
{
    return method == NULL || strcmp(method, "auto") == 0;
}

/* Creates the run directory and records it for st_swap_unlink_all() before any thread can end the process. */
static strata_status create_run(struct part *part, uint32_t index, const char *dir)
{
    strata_status st = st_run_dir_create(&part->run, dir);

    if (st != STRATA_OK)
        return st;
    st_users_join_at(&part->users, part->run.parent_fd);
    part->litter = st_litter_add(&part->run, index, &part->users);
    return STRATA_OK;
}

static strata_status open_part(struct st_swap *swap, uint32_t index, const char *dir)
{
    struct part *part = &swap->parts[index];
    strata_status st;

    st_ending_hold();
    st = create_run(part, index, dir);
    st_ending_release();
    if (st != STRATA_OK)
        return st;
    if (part->litter < 0)
        st_log(ST_LOG_WARN, "%s: too many swaps are open: if the process dies, this one stays on disk until the next run",
               part->run.path);
    return st_swap_file_create(&part->fd, &part->direct, &part->run, index, part->bytes);
}

static strata_status open_disk(struct st_swap *swap, const char *const *dirs)
{
    const uint32_t count = swap->stripe.dir_count;
    strata_status st;

    for (uint32_t i = 0; i < count; i++)
        st_swap_sweep(dirs[i]);
    if ((st = st_swap_check_room(dirs, &swap->stripe, swap->bytes)) != STRATA_OK)
        return st;
    swap->info.direct = true;
    for (uint32_t i = 0; i < count; i++) {
        struct part *part = &swap->parts[i];

        if ((st = open_part(swap, i, dirs[i])) != STRATA_OK)
            return st;
        swap->info.direct = swap->info.direct && part->direct;
        snprintf(part->path, sizeof(part->path), "%s/" ST_SWAP_FILE_NAME "%" PRIu32, part->run.path, i);
    }
    return STRATA_OK;
}

static strata_status start_mover(struct st_swap *swap, const struct st_io_ops *ops, const struct st_swap_opts *opts)
{
    const struct st_users *users[ST_SWAP_DIRS_MAX];
    struct st_volume_file files[ST_SWAP_DIRS_MAX];

    for (uint32_t i = 0; i < swap->stripe.dir_count; i++) {
        users[i] = &swap->parts[i].users;
        files[i] = (struct st_volume_file){.path = swap->parts[i].path, .fd = swap->parts[i].fd, .drive = i};
    }
    snprintf(swap->info.method, sizeof(swap->info.method), "%s", ops->name);
    return st_mover_start(&swap->mover,
                          &(struct st_mover_opts){
                              .ops = ops,
                              .io = {.queue_depth = opts->queue_depth,
                                     .unregistered = opts->unregistered,
                                     .poll_device = opts->poll_device,
                                     .poll_kernel = opts->poll_kernel,
                                     .fake_seed = opts->fake_seed,
                                     .fake_latency_us = opts->fake_latency_us,
                                     .fake_bytes_per_second = opts->fake_bytes_per_second},
                              .drive_count = swap->stripe.dir_count,
                              .drive_users = users,
                              .volumes = &(struct st_volume_opts){.stripe = &swap->stripe, .files = files, .bytes = swap->bytes},
                              .volume_count = 1,
                              .block_bytes = swap->info.block_bytes,
                              .region = opts->region,
                              .region_bytes = opts->region_bytes,
                          },
                          &swap->info.registered);
}

/* "auto" chooses a method by opening it with a depth of 1.  With the real depth it may lack memory, say; then the next best is
 * tried. */
static strata_status start_best(struct st_swap *swap, const struct st_io_ops *ops, const struct st_swap_opts *opts)
{
    strata_status st = start_mover(swap, ops, opts);

    while (st != STRATA_OK && st != STRATA_E_INVAL && st != STRATA_E_INPUT && is_auto(opts->method) &&
           (ops = st_io_next(ops)) != NULL) {
        st_log(ST_LOG_NOTICE, "%s: using I/O method %s", strata_last_error(), ops->name);
        st = start_mover(swap, ops, opts);
    }
    return st;
}

/* Allocates memory only; the fake method needs nothing else. */
static strata_status create_parts(struct st_swap *swap, const struct st_swap_opts *opts)
{
    const uint32_t count = opts->dir_count > 0 ? opts->dir_count : 1;
    strata_status st;

    swap->bytes = opts->bytes;
    swap->info.dir_count = count;
    swap->info.block_bytes = opts->block_bytes > 0 ? opts->block_bytes : ST_SWAP_BLOCK_DEFAULT;
    st_stripe_init(&swap->stripe, count, opts->dir_rates, swap->info.block_bytes);
    if ((st = st_io_alloc((void **)&swap->parts, "swap directories", count, sizeof(*swap->parts))) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < count; i++) {
        struct part *part = &swap->parts[i];

        part->run = ST_RUN_DIR_NONE;
        part->users.fd = part->fd = part->litter = -1;
        part->bytes = st_stripe_file_bytes(&swap->stripe, i, swap->bytes);
        snprintf(part->path, sizeof(part->path), "fake swap%s%.*" PRIu32, count > 1 ? " " : "", count > 1, i);
    }
    return STRATA_OK;
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
    if ((st = create_parts(swap, opts)) != STRATA_OK || (on_disk && (st = open_disk(swap, opts->dirs)) != STRATA_OK))
        goto fail;
    if ((st = start_best(swap, ops, opts)) != STRATA_OK)
        goto fail;
    *out = swap;
    return STRATA_OK;

fail:
    st_swap_close(swap);
    return st;
}

static void close_part(struct part *part)
{
    if (part->fd >= 0)
        close(part->fd);
    st_ending_hold();
    st_run_dir_clear(&part->run);
    st_litter_remove(part->litter); /* it holds the descriptors that are closed next */
    st_users_leave(&part->users);
    st_run_dir_close(&part->run);
    st_ending_release();
}

void st_swap_close(struct st_swap *swap)
{
    if (swap == NULL)
        return;
    st_mover_stop(swap->mover);
    for (uint32_t i = 0; swap->parts != NULL && i < swap->stripe.dir_count; i++)
        close_part(&swap->parts[i]);
    free(swap->parts);
    free(swap);
}

strata_status st_swap_submit(struct st_swap *swap, struct st_transfer *t)
{
    return st_mover_submit(swap->mover, t);
}

void st_swap_info(struct st_swap *swap, struct st_swap_info *out)
{
    *out = swap->info;
    out->queue_depth = 0;
    for (uint32_t i = 0; i < swap->info.dir_count; i++) {
        struct st_swap_dir_info dir;

        st_swap_dir_info(swap, i, &dir);
        out->queue_depth = dir.queue_depth > out->queue_depth ? dir.queue_depth : out->queue_depth;
    }
}

void st_swap_counters(struct st_swap *swap, struct st_mover_counters *out)
{
    st_mover_counters(swap->mover, out);
}

void st_swap_dir_info(struct st_swap *swap, uint32_t index, struct st_swap_dir_info *out)
{
    assert(index < swap->info.dir_count);
    *out = (struct st_swap_dir_info){
        .path = swap->parts[index].path, .bytes = swap->parts[index].bytes, .direct = swap->parts[index].direct};
    st_mover_drive_depth(swap->mover, index, &out->queue_depth, &out->holders);
}

const char *st_swap_place(const struct st_swap *swap, uint64_t offset, uint64_t *file_offset)
{
    const struct st_stripe_place place = st_stripe_at(&swap->stripe, offset);

    *file_offset = place.offset;
    return swap->parts[place.dir].path;
}

void st_swap_dir_counters(struct st_swap *swap, uint32_t index, struct st_mover_counters *out)
{
    assert(index < swap->info.dir_count);
    st_mover_drive_counters(swap->mover, index, out);
}
