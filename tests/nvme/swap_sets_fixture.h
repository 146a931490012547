/* tests/nvme/swap_sets_fixture.h - the swap of a run that saves, over two directories, and a directory for what it links. */
#ifndef TESTS_NVME_SWAP_SETS_FIXTURE_H
#define TESTS_NVME_SWAP_SETS_FIXTURE_H

#include "nvme/swap/swap.h"

#include <stdbool.h>

#define BLOCK    UINT64_C(8192)
#define SCRATCH  (5 * BLOCK)
#define BASE     (3 * BLOCK + 4096)
#define SET      (11 * BLOCK)
#define SETS     3u
#define DIRS     2u
#define VOLUMES  (2 + SETS)
#define BYTES_OF (SCRATCH + BASE + SETS * SET)

extern const char *const sets_dirs[DIRS];
extern char sets_checkpoint[64];

/** Group setup: the directories, in mounts of this process's own where it may have them; scratch_remove() removes them. */
int sets_create(void **state);
/** The directories again, in a file system that hides the first ones. */
int sets_make_dirs(void);
struct st_swap_opts sets_options(const char *method);
struct st_swap *sets_open(const char *method);
/** Fails if a directory of the swap has anything in it. */
void sets_assert_nothing_left(void);
void sets_empty_checkpoint(void);
uint64_t sets_bytes_of(uint32_t volume);
/** Moves the first `bytes` of a volume and waits. */
strata_status sets_move(struct st_swap *swap, enum st_io_op op, uint32_t volume, uint64_t bytes, void *buf);
/** All of a volume, with what follows from the seed. */
strata_status sets_write(struct st_swap *swap, uint32_t volume, uint64_t seed);
/** Whether the first `bytes` of a volume are those of the seed. */
bool sets_hold(struct st_swap *swap, uint32_t volume, uint64_t bytes, uint64_t seed);
/** Both files of a volume, as volume-V.D in the checkpoint's directory. */
strata_status sets_link(struct st_swap *swap, uint32_t volume, bool *crossed);

/* What was linked from a volume, opened to be read. */
struct sets_attached {
    struct st_volume_file files[DIRS];
    char path[DIRS][128];
    uint32_t volume;
};
strata_status sets_attach(struct st_swap *swap, uint32_t linked, const struct st_stripe *stripe, struct sets_attached *a);
void sets_close_attached(const struct sets_attached *a);

#endif
