/* nvme/mover/stripe.h - which directory holds which part of a swap, and where.
 *
 * The logical space is cut into units of one block.  Units go to directories by a fixed pattern of at most
 * ST_STRIPE_SLOTS_MAX slots that repeats: in proportion to the directories' rates, evenly spread.  Any thread: no state. */
#ifndef NVME_MOVER_STRIPE_H
#define NVME_MOVER_STRIPE_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_STRIPE_DIRS_MAX  8u
#define ST_STRIPE_SLOTS_MAX 64u

struct st_stripe {
    uint32_t dir_count, slot_count, unit_bytes;
    uint8_t dir_of[ST_STRIPE_SLOTS_MAX]; /* [slot_count] */
    uint8_t rank[ST_STRIPE_SLOTS_MAX];   /* [slot_count] slots of the same directory before this one */
    uint8_t weight[ST_STRIPE_DIRS_MAX];  /* [dir_count] slots of a directory, at least 1; they add up to slot_count */
};

struct st_stripe_place {
    uint32_t dir;
    uint64_t offset; /* in the directory's file */
    uint64_t bytes;  /* contiguous bytes there; with one directory unlimited: UINT64_MAX */
};

/** The pattern for `dir_count` (1..ST_STRIPE_DIRS_MAX) directories.
 *  @param rates  [dir_count] positive, finite; NULL: equal.  Takes the shortest pattern within 1 % of them, else the nearest
 *                one. */
void st_stripe_init(struct st_stripe *stripe, uint32_t dir_count, const double *rates, uint32_t unit_bytes);
struct st_stripe_place st_stripe_at(const struct st_stripe *stripe, uint64_t offset);
/** Whether both deal out every space alike. */
bool st_stripe_alike(const struct st_stripe *a, const struct st_stripe *b);
/** Size of a directory's file for a logical space of `bytes`; over all directories they add up to it. */
uint64_t st_stripe_file_bytes(const struct st_stripe *stripe, uint32_t dir, uint64_t bytes);

#endif
