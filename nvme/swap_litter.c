/* nvme/swap_litter.c - the names of all open swaps, kept where the handler of a dying process can unlink them. */
#include "nvme/swap_parts.h"

#include <fcntl.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

#define LITTER_MAX 32u /* run directories */

enum litter_state { LITTER_FREE = 0, LITTER_FILLING, LITTER_LIVE };

/* Ready for a signal handler: it reads them only in state LITTER_LIVE (acquire, pairs with the release in st_litter_add()).
 * Static, so that a handler never meets freed memory.  Descriptors are the swap's, which forgets them here before it closes them.
 */
static struct litter {
    _Atomic int state;
    int parent_fd, dir_fd;
    char file[32], dir[32];
    struct st_share share;
} litter[LITTER_MAX];

int st_litter_add(const struct st_run_dir *run, uint32_t index, const struct st_share *share)
{
    for (uint32_t i = 0; i < LITTER_MAX; i++) {
        int expected = LITTER_FREE;

        if (!atomic_compare_exchange_strong(&litter[i].state, &expected, LITTER_FILLING))
            continue;
        litter[i].parent_fd = run->parent_fd;
        litter[i].dir_fd = run->dir_fd;
        snprintf(litter[i].file, sizeof(litter[i].file), ST_SWAP_FILE_NAME "%" PRIu32, index);
        snprintf(litter[i].dir, sizeof(litter[i].dir), "%s", run->name);
        litter[i].share = *share;
        atomic_store_explicit(&litter[i].state, LITTER_LIVE, memory_order_release);
        return (int)i;
    }
    return -1;
}

void st_litter_remove(int index)
{
    if (index >= 0)
        atomic_store_explicit(&litter[index].state, LITTER_FREE, memory_order_release);
}

void st_swap_unlink_all(void)
{
    for (uint32_t i = 0; i < LITTER_MAX; i++) {
        if (atomic_load_explicit(&litter[i].state, memory_order_acquire) != LITTER_LIVE)
            continue;
        (void)unlinkat(litter[i].dir_fd, litter[i].file, 0);
        (void)unlinkat(litter[i].dir_fd, ST_SWAP_LOCK_NAME, 0);
        (void)unlinkat(litter[i].parent_fd, litter[i].dir, AT_REMOVEDIR);
        (void)st_share_unlink(&litter[i].share);
    }
}
