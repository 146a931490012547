/* nvme/mover/users.h - how many live swaps use a directory, so that they divide its queue instead of fighting for it.
 *
 * One empty file in the directory; every live swap holds an open-file-description lock on one byte of it, which the kernel drops
 * when the owner dies.  The last one out removes the file.  If such locks do not exist, or the file cannot be created, a swap
 * counts only itself: sharing affects speed, never correctness. */
#ifndef NVME_MOVER_USERS_H
#define NVME_MOVER_USERS_H

#include <stdbool.h>
#include <stdint.h>

#define ST_USERS_FILE_NAME ".strata-users"
#define ST_USERS_SLOTS     64u /* at most this many holders are counted */

struct st_users {
    int fd;     /* -1: not taking part */
    int dir_fd; /* borrowed; the directory may be renamed meanwhile */
};

/** Take a slot in the directory, whose descriptor must outlive it. */
void st_users_join_at(struct st_users *users, int dir_fd);
/** Give the slot back; does nothing if fd is -1. */
void st_users_leave(struct st_users *users);
/** Live swaps of this directory, this one included; at least 1. */
uint32_t st_users_holders(const struct st_users *users);
/** A holder's part of the queue, at least 1. */
uint32_t st_users_part(uint32_t queue_depth, uint32_t holders);
/** Give the slot back, keep the descriptor, and remove the file if no other holds a slot; async-signal-safe. */
bool st_users_unlink(const struct st_users *users);
/** The same for a file whose holders are all dead; there may be none. */
void st_users_sweep_at(int dir_fd);

#endif
