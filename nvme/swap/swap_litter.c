/* nvme/swap/swap_litter.c - the names of all open swaps, for the thread that ends the process.  Guarded by st_ending_hold(). */
#include "nvme/swap/swap_internal.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>
#include <unistd.h>

#define LITTER_MAX 32u /* run directories */

/* The descriptors belong to the swap, which removes them here before it closes them. */
static struct litter {
    bool used;
    pid_t pid; /* that made it: a child of fork() leaves it alone */
    int parent_fd, dir_fd;
    uint32_t index, volume_count;
    char dir[64];
    struct st_users users;
} litter[LITTER_MAX];

int st_litter_add(const struct st_owned_dir *run, uint32_t index, uint32_t volume_count, const struct st_users *users)
{
    for (uint32_t i = 0; i < LITTER_MAX; i++) {
        if (litter[i].used)
            continue;
        litter[i].used = true;
        litter[i].pid = getpid();
        litter[i].parent_fd = run->parent_fd;
        litter[i].dir_fd = run->dir_fd;
        litter[i].index = index;
        litter[i].volume_count = volume_count;
        snprintf(litter[i].dir, sizeof(litter[i].dir), "%s", run->name);
        litter[i].users = *users;
        return (int)i;
    }
    return -1;
}

void st_litter_remove(int index)
{
    if (index >= 0)
        litter[index].used = false;
}

void st_swap_unlink_all(void)
{
    for (uint32_t i = 0; i < LITTER_MAX; i++) {
        if (!litter[i].used || litter[i].pid != getpid())
            continue;
        for (uint32_t v = 0; v < litter[i].volume_count; v++) {
            char name[ST_SWAP_NAME_BYTES];

            st_swap_file_name(name, v, litter[i].index);
            (void)unlinkat(litter[i].dir_fd, name, 0);
        }
        (void)unlinkat(litter[i].dir_fd, ST_OWNED_DIR_LOCK, 0);
        (void)unlinkat(litter[i].parent_fd, litter[i].dir, AT_REMOVEDIR);
        (void)st_users_unlink(&litter[i].users); /* another run may use it */
    }
}
