/* nvme/swap/swap.c - puts a swap together: run directories, files, I/O thread. */
#include "nvme/swap/swap_internal.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/cleanup.h"
#include "core/system/clock.h"
#include "nvme/method/io_method.h"

#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BYTES_MAX (UINT64_MAX / 64) /* of a space of several: their sum is a number, too */

/* Whether it takes no space: only attached volumes are read. */
static bool only_reads(const struct st_swap_opts *opts)
{
    const uint64_t *bytes = opts->bytes;

    return opts->dir_count == 0 && opts->set_count == 0 &&
           bytes[ST_SPACE_SCRATCH] + bytes[ST_SPACE_BASE] + bytes[ST_SPACE_SET] == 0;
}

static strata_status check_opts(const struct st_swap_opts *opts, bool on_disk)
{
    const uint64_t *bytes = opts->bytes;

    if (only_reads(opts) && on_disk)
        return STRATA_OK;
    if (opts->set_count > ST_SWAP_SETS_MAX)
        return st_error(STRATA_E_INVAL, "%" PRIu32 " sets: at most %u are possible: keep fewer checkpoints", opts->set_count,
                        ST_SWAP_SETS_MAX);
    for (int space = 0; space < ST_SPACE_COUNT; space++)
        if (bytes[space] % ST_SWAP_ALIGN != 0 || (opts->set_count > 0 && bytes[space] > BYTES_MAX))
            return st_error(STRATA_E_INVAL, "swap space of %" PRIu64 " bytes: must be a multiple of %u, at most %" PRIu64,
                            bytes[space], ST_SWAP_ALIGN, BYTES_MAX);
    if (bytes[ST_SPACE_SCRATCH] + bytes[ST_SPACE_BASE] + bytes[ST_SPACE_SET] == 0 ||
        (opts->set_count == 0 && bytes[ST_SPACE_BASE] + bytes[ST_SPACE_SET] > 0))
        return st_error(STRATA_E_INVAL,
                        "swap space of %" PRIu64 " bytes, %" PRIu64 " of a base, %" PRIu64 " of each of %" PRIu32
                        " sets: it is empty, or needs a set",
                        bytes[ST_SPACE_SCRATCH], bytes[ST_SPACE_BASE], bytes[ST_SPACE_SET], opts->set_count);
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

/* While the program ends: what cannot be removed, the next run sweeps. */
static void unlink_part(void *owner)
{
    const struct st_swap_part *part = owner;
    char name[ST_SWAP_NAME_BYTES];

    for (uint32_t v = 0; v < part->swap->volume_count; v++) {
        st_swap_file_name(name, v, part->index);
        (void)unlinkat(part->run.dir_fd, name, 0);
    }
    (void)unlinkat(part->run.dir_fd, ST_OWNED_DIR_LOCK, 0);
    (void)unlinkat(part->run.parent_fd, part->run.name, AT_REMOVEDIR);
    (void)st_users_unlink(&part->users); /* another run may use it */
}

/* Creates the run directory and lists it for cleanup before any thread can end the process. */
static strata_status create_run(struct st_swap *swap, uint32_t dir, const char *parent)
{
    struct st_swap_part *part = &swap->parts[dir];
    strata_status st = st_owned_dir_create(&part->run, &st_run_dir_kind, parent);

    if (st != STRATA_OK)
        return st;
    st_users_join_at(&part->users, part->run.parent_fd);
    part->swap = swap;
    part->index = dir;
    st_cleanup_add(&part->cleanup, unlink_part, part);
    return STRATA_OK;
}

strata_status st_swap_create_file(const struct st_swap *swap, uint32_t volume, uint32_t dir, int *fd, bool *direct)
{
    const uint64_t bytes = st_stripe_file_bytes(&swap->stripe, dir, st_swap_volume_bytes(swap->bytes, volume));
    char name[ST_SWAP_NAME_BYTES];

    st_swap_file_name(name, volume, dir);
    return st_swap_file_create(fd, direct, &swap->parts[dir].run, name, bytes, volume == ST_SPACE_SCRATCH ? 0600 : 0666);
}

static strata_status open_part(struct st_swap *swap, uint32_t dir, const char *parent)
{
    struct st_swap_part *part = &swap->parts[dir];
    strata_status st;

    st_cleanup_hold();
    st = create_run(swap, dir, parent);
    st_cleanup_release();
    if (st != STRATA_OK)
        return st;
    part->direct = true;
    for (uint32_t v = 0; v < swap->volume_count && st == STRATA_OK; v++) {
        bool direct;

        if ((st = st_swap_create_file(swap, v, dir, &swap->volumes[v].fds[dir], &direct)) == STRATA_OK)
            part->direct = part->direct && direct;
    }
    if (st == STRATA_OK && !part->direct)
        st_log(ST_LOG_WARN, "%s: no direct I/O here; reads and writes go through the page cache, which takes memory from the run",
               part->run.path);
    swap->info.direct = swap->info.direct && part->direct;
    return st;
}

static strata_status open_disk(struct st_swap *swap, const char *const *dirs)
{
    const uint32_t count = swap->stripe.dir_count;
    strata_status st;

    for (uint32_t i = 0; i < count; i++)
        st_swap_sweep(dirs[i]);
    if ((st = st_swap_check_room(dirs, &swap->stripe, swap->bytes, swap->volume_count)) != STRATA_OK)
        return st;
    swap->info.direct = true;
    for (uint32_t i = 0; i < count; i++)
        if ((st = open_part(swap, i, dirs[i])) != STRATA_OK)
            return st;
    return STRATA_OK;
}

/* After the run directories have their names. */
static void name_scratch(struct st_swap *swap)
{
    for (uint32_t i = 0; i < swap->stripe.dir_count; i++) {
        char name[ST_SWAP_NAME_BYTES];

        st_swap_file_name(name, ST_SPACE_SCRATCH, i);
        snprintf(swap->parts[i].scratch, sizeof(swap->parts[i].scratch), "%s/%s", swap->parts[i].run.path, name);
    }
}

void st_swap_describe(const struct st_swap *swap, uint32_t volume, const struct st_swap_files *files,
                      struct st_swap_description *out)
{
    out->opts =
        (struct st_volume_opts){.stripe = &swap->stripe, .files = out->files, .bytes = st_swap_volume_bytes(swap->bytes, volume)};
    for (uint32_t i = 0; i < swap->stripe.dir_count; i++) {
        char name[ST_SWAP_NAME_BYTES];

        st_swap_file_name(name, volume, i);
        snprintf(out->paths[i], sizeof(out->paths[i]), "%s/%s", swap->parts[i].run.path, name);
        out->files[i] = (struct st_volume_file){.path = out->paths[i], .fd = files->fds[i], .drive = i};
    }
}

/* The volumes get the numbers 0, 1, ... in their order. */
static strata_status add_volumes(struct st_swap *swap)
{
    strata_status st = STRATA_OK;

    for (uint32_t v = 0; v < swap->volume_count && st == STRATA_OK; v++) {
        struct st_swap_description d;
        uint32_t number;

        st_swap_describe(swap, v, &swap->volumes[v], &d);
        if ((st = st_mover_add(swap->mover, &d.opts, &number)) == STRATA_OK)
            assert(number == v);
    }
    return st;
}

static strata_status start_mover(struct st_swap *swap, const struct st_io_ops *ops, const struct st_swap_opts *opts)
{
    const struct st_users *users[ST_SWAP_DIRS_MAX];
    strata_status st;

    for (uint32_t i = 0; i < swap->stripe.dir_count; i++)
        users[i] = &swap->parts[i].users;
    snprintf(swap->info.method, sizeof(swap->info.method), "%s", ops->name);
    st = st_mover_start(&swap->mover,
                        &(struct st_mover_opts){
                            .ops = ops,
                            .io = {.queue_depth = opts->queue_depth,
                                   .files = ST_IO_FILES_MAX, /* a checkpoint's may be attached */
                                   .unregistered = opts->unregistered,
                                   .poll_device = opts->poll_device,
                                   .poll_kernel = opts->poll_kernel,
                                   .fake_seed = opts->fake_seed,
                                   .fake_latency_us = opts->fake_latency_us,
                                   .fake_bytes_per_second = opts->fake_bytes_per_second},
                            .drive_count = swap->stripe.dir_count,
                            .drive_users = users,
                            .block_bytes = swap->info.block_bytes,
                            .patience = opts->patience,
                            .region = opts->region,
                            .region_bytes = opts->region_bytes,
                        },
                        &swap->info.registered);
    if (st == STRATA_OK && (st = add_volumes(swap)) != STRATA_OK) {
        st_mover_stop(swap->mover);
        swap->mover = NULL;
    }
    return st;
}

static strata_status start_best(struct st_swap *swap, const struct st_io_ops *ops, const struct st_swap_opts *opts)
{
    strata_status st = start_mover(swap, ops, opts);

    while (st != STRATA_OK && st_io_is_auto(opts->method) && (ops = st_io_next(ops, st)) != NULL)
        st = start_mover(swap, ops, opts);
    return st;
}

/* Allocates memory only; the fake method needs nothing else. */
static strata_status create_parts(struct st_swap *swap, const struct st_swap_opts *opts)
{
    const uint32_t count = opts->dir_count > 0 ? opts->dir_count : 1;
    strata_status st;

    memcpy(swap->bytes, opts->bytes, sizeof(swap->bytes));
    swap->volume_count = only_reads(opts) ? 0 : opts->set_count > 0 ? 2 + opts->set_count : 1;
    swap->info.dir_count = count;
    swap->info.block_bytes = opts->block_bytes > 0 ? opts->block_bytes : ST_SWAP_BLOCK_DEFAULT;
    st_stripe_init(&swap->stripe, count, opts->dir_rates, swap->info.block_bytes);
    if ((st = st_io_alloc((void **)&swap->volumes, swap->volume_count + 1, sizeof(*swap->volumes))) != STRATA_OK)
        return st;
    for (uint32_t v = 0; v < swap->volume_count; v++)
        memset(swap->volumes[v].fds, -1, sizeof(swap->volumes[v].fds));
    if ((st = st_io_alloc((void **)&swap->parts, count, sizeof(*swap->parts))) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < count; i++) {
        struct st_swap_part *part = &swap->parts[i];

        part->run = ST_OWNED_DIR_NONE;
        part->users.fd = -1;
        snprintf(part->run.path, sizeof(part->run.path), "fake");
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
    if ((st = st_io_alloc((void **)&swap, 1, sizeof(*swap))) != STRATA_OK)
        return st;
    swap->fake = !on_disk;
    if ((st = create_parts(swap, opts)) != STRATA_OK ||
        (on_disk && !only_reads(opts) && (st = open_disk(swap, opts->dirs)) != STRATA_OK))
        goto fail;
    name_scratch(swap);
    if ((st = start_best(swap, ops, opts)) != STRATA_OK)
        goto fail;
    *out = swap;
    return STRATA_OK;

fail:
    st_swap_close(swap);
    return st;
}

static void close_part(struct st_swap *swap, uint32_t dir)
{
    struct st_swap_part *part = &swap->parts[dir];

    for (uint32_t v = 0; v < swap->volume_count; v++)
        if (swap->volumes[v].fds[dir] >= 0)
            close(swap->volumes[v].fds[dir]);
    st_cleanup_hold();
    st_owned_dir_clear(&part->run);
    st_cleanup_drop(&part->cleanup); /* it has the descriptors that are closed next */
    st_users_leave(&part->users);
    st_owned_dir_close(&part->run);
    st_cleanup_release();
}

void st_swap_close(struct st_swap *swap)
{
    if (swap == NULL)
        return;
    st_mover_stop(swap->mover);
    for (uint32_t i = 0; swap->parts != NULL && i < swap->stripe.dir_count; i++)
        close_part(swap, i);
    free(swap->parts);
    free(swap->volumes);
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
    *out = (struct st_swap_dir_info){.direct = swap->parts[index].direct};
    for (uint32_t v = 0; v < swap->volume_count; v++)
        out->bytes += st_stripe_file_bytes(&swap->stripe, index, st_swap_volume_bytes(swap->bytes, v));
    out->path = swap->parts[index].scratch;
    st_mover_drive_depth(swap->mover, index, &out->queue_depth, &out->holders);
}

const char *st_swap_place(struct st_swap *swap, uint32_t volume, uint64_t offset, uint64_t *file_offset)
{
    return st_mover_place(swap->mover, volume, offset, file_offset);
}

void st_swap_dir_counters(struct st_swap *swap, uint32_t index, struct st_mover_counters *out)
{
    assert(index < swap->info.dir_count);
    st_mover_drive_counters(swap->mover, index, out);
}
