/* tests/nvme/swap_dirs_fixture.c - see swap_dirs_fixture.h. */
#include "swap_dirs_fixture.h"
#include "core/base/rng.h"
#include "swap_fixture.h"
#include "tests/common/scratch.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

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
                                 .bytes = SWAP_DIRS_BYTES,
                                 .method = method,
                                 .block_bytes = SWAP_DIRS_BLOCK,
                                 .queue_depth = 6,
                                 .fake_seed = 3,
                                 .fake_latency_us = 30};
}

/* Ends when all of its transfers have. */
struct batch {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint32_t pending;
    strata_status status;
    char sentence[512];
    struct st_transfer moves[MOVES];
};

static void on_done(struct st_transfer *t, strata_status st)
{
    struct batch *b = t->owner;

    pthread_mutex_lock(&b->lock);
    if (st != STRATA_OK && b->status == STRATA_OK) {
        b->status = st;
        snprintf(b->sentence, sizeof(b->sentence), "%s", strata_last_error());
    }
    if (--b->pending == 0)
        pthread_cond_signal(&b->ended);
    pthread_mutex_unlock(&b->lock);
}

strata_status swap_dirs_move(struct st_swap *swap, enum st_io_op op, unsigned char *buf, uint64_t seed, char sentence[512])
{
    struct batch b = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, MOVES, STRATA_OK, "", {{0}}};
    const uint64_t pages = SWAP_DIRS_BYTES / ST_SWAP_ALIGN;
    uint64_t at = 0;

    for (uint32_t i = 0; i < MOVES; i++) {
        const uint64_t left = pages - at, spread = 2 * pages / MOVES;
        uint64_t count = i + 1 < MOVES ? st_rng_u64(seed, 0, i) % spread : left;

        count = count < left ? count : left;
        b.moves[i] = (struct st_transfer){.op = op,
                                          .offset = at * ST_SWAP_ALIGN,
                                          .bytes = count * ST_SWAP_ALIGN,
                                          .buf = buf + at * ST_SWAP_ALIGN,
                                          .done = on_done,
                                          .owner = &b};
        at += count;
    }
    for (uint32_t i = 0; i < MOVES; i++)
        assert_int_equal(st_swap_submit(swap, &b.moves[i]), STRATA_OK);
    pthread_mutex_lock(&b.lock);
    while (b.pending > 0)
        pthread_cond_wait(&b.ended, &b.lock);
    pthread_mutex_unlock(&b.lock);
    if (sentence != NULL)
        snprintf(sentence, 512, "%s", b.sentence);
    return b.status;
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

    assert_int_equal(swap_dirs_move(swap, ST_IO_WRITE, out, seed, NULL), STRATA_OK);
    assert_int_equal(swap_dirs_move(swap, ST_IO_READ, in, seed + 2, NULL), STRATA_OK);
    assert_memory_equal(out, in, SWAP_DIRS_BYTES);
    free(out);
    free(in);
}
