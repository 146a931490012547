/* tests/nvme/swap_dirs_fixture.h - one swap over several directories, moved as a whole. */
#ifndef TESTS_NVME_SWAP_DIRS_FIXTURE_H
#define TESTS_NVME_SWAP_DIRS_FIXTURE_H

#include "nvme/swap/swap.h"

#include <stdbool.h>

#define SWAP_DIRS_COUNT 3u
#define SWAP_DIRS_BLOCK 65536u
#define SWAP_DIRS_BYTES (67 * (uint64_t)SWAP_DIRS_BLOCK + 8192)

extern const char *const swap_dirs[SWAP_DIRS_COUNT];
extern const double swap_dirs_rates[SWAP_DIRS_COUNT];

/** Group setup and teardown: the directories, in mounts of this process's own where it may have them. */
int swap_dirs_create(void **state);
int swap_dirs_remove(void **state);
/** Over the first dir_count of them, equal parts or by swap_dirs_rates. */
struct st_swap_opts swap_dirs_options(const char *method, uint32_t dir_count, bool equal);
/** All of the space in pieces of random size, which lie anywhere over the units; the first failure by place, with its sentence.
 */
strata_status swap_dirs_move(struct st_swap *swap, enum st_io_op op, unsigned char *buf, uint64_t seed);
/** [SWAP_DIRS_BYTES], a function of the seed; free() it. */
unsigned char *swap_dirs_random(uint64_t seed);
/** Fails unless all of the space comes back as it was written. */
void swap_dirs_assert_works(struct st_swap *swap, uint64_t seed);
/** Fails if anything is left; the files that say who shares a directory count, too. */
void swap_dirs_assert_empty(void);

#endif
