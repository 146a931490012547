/* core/system/arena.h - one region of memory, allocated at the start and divided by the plan's offsets. */
#ifndef CORE_SYSTEM_ARENA_H
#define CORE_SYSTEM_ARENA_H

#include "strata/status.h"
#include <stdint.h>

struct st_topology;
struct st_workers;

struct st_arena {
    unsigned char *base; /* 2 MiB aligned */
    uint64_t bytes;      /* as requested, rounded up to 4 KiB */
    uint64_t mapped_bytes;
    uint64_t mapped_head;
};

/** mmap anonymous memory (THP advised), touched by the workers, one kernel page after another, so that later use never faults.
 *  It holds zeros.
 *  @param name  for the error sentence; bytes 0 gives base NULL and OK.
 *  @param workers  NULL: touched by the caller. */
strata_status st_arena_create(struct st_arena *arena, const char *name, uint64_t bytes, struct st_workers *workers);
/** The same with kernel pages placed near these workers (st_topology_place_memory), if the system allows it.  Both may be
 *  NULL. */
strata_status st_arena_create_near(struct st_arena *arena, const char *name, uint64_t bytes, struct st_workers *workers,
                                   const struct st_topology *topo);
void st_arena_destroy(struct st_arena *arena); /* zeroed struct is fine */

#endif
