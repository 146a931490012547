/* tests/nvme/swap_sets_fixture.c - see swap_sets_fixture.h. */
#include "swap_sets_fixture.h"
#include "core/base/error.h"
#include "core/base/rng.h"
#include "swap_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

static char drives[DIRS][64];
char sets_checkpoint[64];
const char *const sets_dirs[DIRS] = {drives[0], drives[1]};

int sets_make_dirs(void)
{
    for (uint32_t d = 0; d < DIRS; d++) {
        snprintf(drives[d], sizeof(drives[d]), "%s/drive-%u", scratch_dir, d);
        if (mkdir(drives[d], 0700) != 0)
            return -1;
    }
    snprintf(sets_checkpoint, sizeof(sets_checkpoint), "%s/checkpoint", scratch_dir);
    return mkdir(sets_checkpoint, 0700);
}

int sets_create(void **state)
{
    (void)swap_private_mounts();
    return scratch_create(state) != 0 ? -1 : sets_make_dirs();
}

struct st_swap_opts sets_options(const char *method)
{
    return (struct st_swap_opts){.dirs = sets_dirs,
                                 .dir_count = DIRS,
                                 .bytes = {SCRATCH, BASE, SET},
                                 .set_count = SETS,
                                 .method = method,
                                 .block_bytes = (uint32_t)BLOCK,
                                 .queue_depth = 4};
}

struct st_swap *sets_open(const char *method)
{
    const struct st_swap_opts opts = sets_options(method);
    struct st_swap *swap;

    assert_int_equal(st_swap_open(&swap, &opts), STRATA_OK);
    return swap;
}

void sets_assert_nothing_left(void)
{
    for (uint32_t d = 0; d < DIRS; d++)
        assert_int_equal(scratch_entries(sets_dirs[d], NULL), 0);
}

void sets_empty_checkpoint(void)
{
    char command[128];

    snprintf(command, sizeof(command), "rm -rf %s/*", sets_checkpoint);
    assert_int_equal(system(command), 0);
}

uint64_t sets_bytes_of(uint32_t volume)
{
    return volume == 0 ? SCRATCH : volume == 1 ? BASE : SET;
}

/* [SET], a function of the seed; free() it. */
static unsigned char *random_bytes(uint64_t seed)
{
    unsigned char *buf = aligned_alloc(ST_SWAP_ALIGN, SET);

    assert_non_null(buf);
    for (uint64_t i = 0; i < SET / 8; i++) {
        const uint64_t word = st_rng_u64(seed, 11, i);

        memcpy(buf + i * 8, &word, 8);
    }
    return buf;
}

strata_status sets_move(struct st_swap *swap, enum st_io_op op, uint32_t volume, uint64_t bytes, void *buf)
{
    struct latch latch = LATCH_INIT;
    struct move move = {.volume = volume};
    const strata_status st = move_start(swap, &move, &latch, op, 0, bytes, buf);

    latch_wait(&latch);
    return st != STRATA_OK ? st : move.status == STRATA_OK ? STRATA_OK : st_error(move.status, "%s", move.sentence);
}

strata_status sets_write(struct st_swap *swap, uint32_t volume, uint64_t seed)
{
    unsigned char *buf = random_bytes(seed);
    const strata_status st = sets_move(swap, ST_IO_WRITE, volume, sets_bytes_of(volume), buf);

    free(buf);
    return st;
}

/* Whether the first `bytes` of a volume are those of the seed. */
bool sets_hold(struct st_swap *swap, uint32_t volume, uint64_t bytes, uint64_t seed)
{
    unsigned char *want = random_bytes(seed), *got = random_bytes(seed + 1);
    const bool equal = sets_move(swap, ST_IO_READ, volume, bytes, got) == STRATA_OK && memcmp(want, got, bytes) == 0;

    free(want);
    free(got);
    return equal;
}

/* "set.0" and so on, as a checkpoint may name them. */
static void link_name(char name[32], uint32_t volume, uint32_t dir)
{
    snprintf(name, 32, "volume-%u.%u", volume, dir);
}

strata_status sets_link(struct st_swap *swap, uint32_t volume, bool *crossed)
{
    const int fd = open(sets_checkpoint, O_RDONLY | O_DIRECTORY);
    strata_status st = STRATA_OK;

    assert_true(fd >= 0);
    for (uint32_t d = 0; d < DIRS && st == STRATA_OK; d++) {
        char name[32];

        link_name(name, volume, d);
        st = st_swap_link(swap, volume, d, fd, name, crossed);
    }
    close(fd);
    return st;
}

strata_status sets_attach(struct st_swap *swap, uint32_t linked, const struct st_stripe *stripe, struct sets_attached *a)
{
    for (uint32_t d = 0; d < DIRS; d++) {
        char name[32];

        link_name(name, linked, d);
        snprintf(a->path[d], sizeof(a->path[d]), "%s/%s", sets_checkpoint, name);
        a->files[d] = (struct st_volume_file){.path = a->path[d], .fd = open(a->path[d], O_RDONLY | O_CLOEXEC), .drive = 77};
        assert_true(a->files[d].fd >= 0);
    }
    return st_swap_attach(swap, &(struct st_volume_opts){.stripe = stripe, .files = a->files, .bytes = sets_bytes_of(linked)},
                          &a->volume);
}

void sets_close_attached(const struct sets_attached *a)
{
    for (uint32_t d = 0; d < DIRS; d++)
        close(a->files[d].fd);
}
