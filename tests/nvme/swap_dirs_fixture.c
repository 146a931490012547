/* tests/nvme/swap_dirs_fixture.c - see swap_dirs_fixture.h. */
#include "swap_dirs_fixture.h"
#include "core/base/error.h"
#include "core/base/rng.h"
#include "swap_fixture.h"
#include "tests/common/scratch.h"
#include "tests/common/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MOVES 40u

static char paths[SWAP_DIRS_COUNT][64];
const char *const swap_dirs[] = {paths[0], paths[1], paths[2]};
const double swap_dirs_rates[] = {5e9, 3e9, 1e9};

int swap_dirs_create(void **state)
{
    (void)swap_private_mounts();
    if (scratch_create(state) != 0)
        return -1;
    for (uint32_t d = 0; d < SWAP_DIRS_COUNT; d++) {
        snprintf(paths[d], sizeof(paths[d]), "%s/drive-%u", scratch_dir, d);
        if (mkdir(paths[d], 0700) != 0)
            return -1;
    }
    return 0;
}

int swap_dirs_remove(void **state)
{
    return scratch_remove(state);
}

void swap_dirs_assert_empty(void)
{
    for (uint32_t d = 0; d < SWAP_DIRS_COUNT; d++)
        assert_int_equal(scratch_entries(swap_dirs[d], NULL), 0);
}

struct st_swap_opts swap_dirs_options(const char *method, uint32_t dir_count, bool equal)
{
    return (struct st_swap_opts){.dirs = swap_dirs,
                                 .dir_count = dir_count,
                                 .dir_rates = equal ? NULL : swap_dirs_rates,
                                 .bytes = {SWAP_DIRS_BYTES},
                                 .method = method,
                                 .block_bytes = SWAP_DIRS_BLOCK,
                                 .queue_depth = 6,
                                 .fake_seed = 3,
                                 .fake_latency_us = 30};
}

strata_status swap_dirs_move(struct st_swap *swap, enum st_io_op op, unsigned char *buf, uint64_t seed)
{
    struct latch latch = LATCH_INIT;
    struct move moves[MOVES] = {0}, *failed = NULL;
    const uint64_t pages = SWAP_DIRS_BYTES / ST_SWAP_ALIGN;
    uint64_t at = 0;

    for (uint32_t i = 0; i < MOVES; i++) {
        const uint64_t left = pages - at, spread = 2 * pages / MOVES;
        uint64_t count = i + 1 < MOVES ? st_rng_u64(seed, 0, i) % spread : left;

        count = count < left ? count : left;
        assert_int_equal(
            move_start(swap, &moves[i], &latch, op, at * ST_SWAP_ALIGN, count * ST_SWAP_ALIGN, buf + at * ST_SWAP_ALIGN),
            STRATA_OK);
        at += count;
    }
    latch_wait(&latch);
    for (uint32_t i = 0; i < MOVES && failed == NULL; i++)
        failed = moves[i].status != STRATA_OK ? &moves[i] : NULL;
    return failed != NULL ? st_error(failed->status, "%s", failed->sentence) : STRATA_OK;
}

unsigned char *swap_dirs_random(uint64_t seed)
{
    unsigned char *buf = aligned_alloc(ST_SWAP_ALIGN, SWAP_DIRS_BYTES);

    assert_non_null(buf);
    for (uint64_t i = 0; i < SWAP_DIRS_BYTES / 8; i++) {
        const uint64_t word = st_rng_u64(seed, 9, i);

        memcpy(buf + i * 8, &word, 8);
    }
    return buf;
}

void swap_dirs_assert_works(struct st_swap *swap, uint64_t seed)
{
    unsigned char *out = swap_dirs_random(seed), *in = swap_dirs_random(seed + 1);

    assert_int_equal(swap_dirs_move(swap, ST_IO_WRITE, out, seed), STRATA_OK);
    assert_int_equal(swap_dirs_move(swap, ST_IO_READ, in, seed + 2), STRATA_OK);
    assert_memory_equal(out, in, SWAP_DIRS_BYTES);
    free(out);
    free(in);
}
