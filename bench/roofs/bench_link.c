/* bench/roofs/bench_link.c - how close do copies through a device's table come to the rate of its links?
 *
 * Upload, download, and both at once (on a device whose calls are done when they return: one after the other).  A repeat submits
 * enough copies at once to move LEAST_BYTES or more (COUNT_MOST at most) and waits for all of them, as a lane of the engine has
 * several in flight; `seconds` is the minimum over the repeats, divided by the number of copies.  The roof moves the same bytes
 * in turns with the device: on a device with its own memory by bare copies that bypass the table
 * (offload/device/cuda/link_roof.h), on a cpu device by a memcpy with the same number of threads between arenas of the same kind.
 */
#include "bench/bench_setup.h"
#include "core/base/error.h"
#include "core/base/size.h"
#include "core/system/arena.h"
#include "core/system/clock.h"
#include "offload/device/cuda/link_roof.h"
#include "offload/device/device.h"

#include <stdlib.h>
#include <string.h>

#define REPEATS_DEFAULT 9u
#define LEAST_BYTES     (UINT64_C(8) << 20)  /* least bytes of a repeat: a copy of 64 KiB is too short to time */
#define LEAST_QUEUED    (UINT64_C(64) << 20) /* on a device with queues, which has faster links and longer waits */
#define PIECE_BYTES     (UINT64_C(256) << 10)
#define COUNT_MOST      1000u
#define ALIGN           4096u
#define BYTES_MOST      (UINT64_C(1) << 56)

static const uint64_t sizes[] = {UINT64_C(64) << 10, UINT64_C(1) << 20, UINT64_C(16) << 20, UINT64_C(256) << 20};
static const char *const directions[] = {"upload", "download", "both"};
enum { UPLOAD, DOWNLOAD, BOTH, DIRECTIONS };

struct link {
    struct bench_setup setup;
    const struct st_device_ops *ops;
    struct st_device *device;
    unsigned char *on_device;  /* room for two copies: source and target of a repeat never overlap */
    struct st_arena host;      /* the same in host memory; pinned, if the device pins memory */
    struct st_arena other;     /* target of the plain copy; only for cpu */
    struct st_link_roof *roof; /* NULL: the plain copy is the roof */
    const char *name;          /* of the device, as the user gave it */
    uint64_t room;             /* bytes of one copy, at most */
    double copied[DIRECTIONS][BENCH_REPEATS_MAX], plain[DIRECTIONS][BENCH_REPEATS_MAX];
    struct bench_printer printer;
};

/* --- the plain copy --- */

struct plain_copy {
    unsigned char *to;
    const unsigned char *from;
    uint64_t bytes;
};

static void copy_piece(void *ctx, uint64_t index, uint32_t worker)
{
    const struct plain_copy *c = ctx;
    const uint64_t first = index * PIECE_BYTES, left = c->bytes - first;

    (void)worker;
    memcpy(c->to + first, c->from + first, left < PIECE_BYTES ? left : PIECE_BYTES);
}

static void copy_plain(struct link *l, uint64_t to, uint64_t from, uint64_t bytes)
{
    struct plain_copy c = {l->other.base + to, l->host.base + from, bytes};

    st_workers_run(l->setup.workers, copy_piece, &c, (bytes + PIECE_BYTES - 1) / PIECE_BYTES);
}

static double run_plain(struct link *l, int direction, uint64_t bytes, uint64_t count)
{
    const uint64_t begin_ns = st_clock_ns();

    for (uint64_t i = 0; i < count; i++) {
        copy_plain(l, 0, 0, bytes);
        if (direction == BOTH)
            copy_plain(l, l->room, l->room, bytes);
    }
    return (double)(st_clock_ns() - begin_ns) * 1e-9 / (double)count;
}

static strata_status run_roof(struct link *l, int direction, uint64_t bytes, uint64_t count, double *seconds)
{
    static const enum st_link_direction bare[] = {ST_LINK_UPLOAD, ST_LINK_DOWNLOAD, ST_LINK_BOTH};

    if (l->roof != NULL)
        return st_link_roof_run(l->roof, bare[direction], bytes, count, seconds);
    *seconds = run_plain(l, direction, bytes, count);
    return STRATA_OK;
}

/* --- the device's copies --- */

static strata_status copy_once(struct link *l, int direction, uint64_t bytes)
{
    strata_status st = STRATA_OK;

    if (direction != DOWNLOAD)
        st = l->ops->upload(l->device, l->on_device, l->host.base, bytes);
    if (st == STRATA_OK && direction != UPLOAD)
        st = l->ops->download(l->device, l->host.base + l->room, l->on_device + l->room, bytes);
    return st;
}

static strata_status run_copies(struct link *l, int direction, uint64_t bytes, uint64_t count, double *seconds)
{
    const uint64_t begin_ns = st_clock_ns();
    strata_status st = STRATA_OK;

    for (uint64_t i = 0; i < count && st == STRATA_OK; i++)
        st = copy_once(l, direction, bytes);
    if (st == STRATA_OK && direction != DOWNLOAD)
        st = l->ops->finish(l->device, ST_QUEUE_UPLOAD);
    if (st == STRATA_OK && direction != UPLOAD)
        st = l->ops->finish(l->device, ST_QUEUE_DOWNLOAD);
    *seconds = (double)(st_clock_ns() - begin_ns) * 1e-9 / (double)count;
    return st;
}

/* --- rows --- */

static void print_direction(struct link *l, int direction, uint64_t bytes)
{
    static const char *const names[] = {"seconds_median", "threads"};
    const double least = bench_least(l->copied[direction], l->setup.repeats);
    const double plain = bench_least(l->plain[direction], l->setup.repeats);
    const double extra[] = {bench_median(l->copied[direction], l->setup.repeats), l->setup.threads};
    const uint64_t moved = direction == BOTH ? 2 * bytes : bytes;

    bench_print(&l->printer, &(struct bench_row){.name = directions[direction],
                                                 .variant = l->name,
                                                 .bytes = moved,
                                                 .seconds = least,
                                                 .roof_gb_per_s = (double)moved / plain * 1e-9,
                                                 .ratio = plain / least,
                                                 .extra_names = names,
                                                 .extra = extra,
                                                 .extra_count = sizeof(names) / sizeof(names[0])});
}

static strata_status run_size(struct link *l, uint64_t bytes)
{
    const uint64_t least = l->ops->notify != NULL ? LEAST_QUEUED : LEAST_BYTES;
    const uint64_t fill = bytes < least ? least / bytes : 1, count = fill < COUNT_MOST ? fill : COUNT_MOST;
    char text[24];
    strata_status st = STRATA_OK;

    for (uint32_t r = 0; r < l->setup.repeats; r++) {
        bench_progress(&l->setup, st_size_text(text, bytes), r + 1);
        for (int d = 0; d < DIRECTIONS; d++) {
            st = run_copies(l, d, bytes, count, &l->copied[d][r]);
            if (st == STRATA_OK)
                st = run_roof(l, d, bytes, count, &l->plain[d][r]);
            if (st != STRATA_OK)
                return st;
        }
    }
    bench_progress(&l->setup, NULL, 0);
    for (int d = 0; d < DIRECTIONS; d++)
        print_direction(l, d, bytes);
    return STRATA_OK;
}

/* --- begin and end --- */

static strata_status find_device(struct link *l, const char *name)
{
    l->name = name != NULL ? name : "cpu";
    l->ops = st_device_find(l->name);
    if (l->ops == NULL || (l->ops->memory == NULL && strcmp(l->name, "cpu") != 0))
        return st_error(STRATA_E_INVAL, "--device %s: bench link knows cpu, and in a build with CUDA cuda and cuda:N", l->name);
    return STRATA_OK;
}

/* Allocates the host memory of the copies and of the roof. */
static strata_status take_host(struct link *l)
{
    struct bench_setup *const s = &l->setup;
    const bool own = l->ops->memory != NULL;
    strata_status st = bench_check_memory(s, (own ? 4 : 6) * l->room, "lower --bytes");

    if (st == STRATA_OK)
        st = st_arena_create_near(&l->host, "host", 2 * l->room, s->workers, s->topology);
    if (st == STRATA_OK && own)
        return st_link_roof_open(&l->roof, l->name, l->room);
    if (st == STRATA_OK)
        st = st_arena_create_near(&l->other, "copy", 2 * l->room, s->workers, s->topology);
    return st;
}

static strata_status open_device(struct link *l)
{
    const struct st_device_opts opts = {.arena_bytes = 2 * l->room,
                                        .index = st_device_index(l->name),
                                        .workers = l->setup.workers,
                                        .kernels = st_kernels_pick(NULL),
                                        .topology = l->setup.topology};
    strata_status st = l->ops->open(&l->device, &opts);

    if (st != STRATA_OK)
        return st;
    l->on_device = l->ops->arena(l->device);
    return l->ops->pin != NULL ? l->ops->pin(l->device, l->host.base, l->host.bytes, NULL) : STRATA_OK;
}

/* The workers that copy also touch the arenas first, as in an engine. */
static strata_status take(struct link *l)
{
    strata_status st;

    if (l->room > BYTES_MOST)
        return st_error(STRATA_E_NOFIT, "copies of this many bytes do not fit any memory: lower --bytes");
    l->room = (l->room + ALIGN - 1) / ALIGN * ALIGN;
    st = take_host(l);
    if (st == STRATA_OK)
        st = open_device(l);
    return st;
}

static strata_status run_sizes(struct link *l)
{
    const uint64_t bytes = l->setup.opts->bytes;
    strata_status st = STRATA_OK;

    if (bytes != 0)
        return run_size(l, bytes);
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && st == STRATA_OK; i++)
        st = run_size(l, sizes[i]);
    return st;
}

strata_status bench_link(const struct bench_opts *opts, FILE *out)
{
    const uint64_t largest = sizes[sizeof(sizes) / sizeof(sizes[0]) - 1];
    struct link *l = calloc(1, sizeof(*l));
    strata_status st;

    if (l == NULL)
        return st_nomem(sizeof(*l));
    l->printer = (struct bench_printer){.file = out, .json = opts->json};
    l->room = opts->bytes != 0 ? opts->bytes : largest;
    st = bench_setup_open(&l->setup, opts, REPEATS_DEFAULT);
    if (st == STRATA_OK)
        st = find_device(l, opts->device);
    if (st == STRATA_OK)
        st = take(l);
    if (st == STRATA_OK)
        st = run_sizes(l);
    if (l->device != NULL)
        l->ops->close(l->device);
    st_link_roof_close(l->roof);
    st_arena_destroy(&l->host);
    st_arena_destroy(&l->other);
    bench_setup_close(&l->setup);
    free(l);
    return st;
}
