/* core/system/arena.c - one mapping, aligned for huge pages, resident before use. */
#include "core/system/arena.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/size.h"
#include "core/system/topology.h"
#include "core/system/workers.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#define KERNEL_PAGE_BYTES UINT64_C(4096)
#define ARENA_HUGE_BYTES  (UINT64_C(2) << 20)

static void arena_touch(void *ctx, uint64_t index, uint32_t worker)
{
    struct st_arena *arena = ctx;
    uint64_t begin = index * ARENA_HUGE_BYTES;
    uint64_t end = begin + ARENA_HUGE_BYTES < arena->bytes ? begin + ARENA_HUGE_BYTES : arena->bytes;

    (void)worker;
    for (uint64_t at = begin; at < end; at += KERNEL_PAGE_BYTES)
        *(volatile unsigned char *)(arena->base + at) = 0;
}

/* Unmaps what alignment left over at both ends, so that no huge page reaches past the arena.  If the kernel refuses (too many
 * mappings), the surplus stays mapped and untouched. */
static void arena_trim(struct st_arena *arena)
{
    unsigned char *map = arena->base - arena->mapped_head;
    uint64_t tail = arena->mapped_bytes - arena->mapped_head - arena->bytes;

    if (tail > 0 && munmap(arena->base + arena->bytes, tail) == 0)
        arena->mapped_bytes -= tail;
    if (arena->mapped_head > 0 && munmap(map, arena->mapped_head) == 0) {
        arena->mapped_bytes -= arena->mapped_head;
        arena->mapped_head = 0;
    }
}

strata_status st_arena_create(struct st_arena *arena, const char *name, uint64_t bytes, struct st_workers *workers)
{
    return st_arena_create_near(arena, name, bytes, workers, NULL);
}

strata_status st_arena_create_near(struct st_arena *arena, const char *name, uint64_t bytes, struct st_workers *workers,
                                   const struct st_topology *topo)
{
    struct st_arena made = {.bytes = (bytes + KERNEL_PAGE_BYTES - 1) & ~(KERNEL_PAGE_BYTES - 1)};
    uint64_t items = (made.bytes + ARENA_HUGE_BYTES - 1) / ARENA_HUGE_BYTES;
    char size[24];
    void *map;

    if (bytes == 0) {
        *arena = made;
        return STRATA_OK;
    }
    if (made.bytes < bytes || made.bytes + ARENA_HUGE_BYTES < made.bytes)
        return st_error(STRATA_E_NOMEM, "%s arena: %llu bytes cannot be addressed", name, (unsigned long long)bytes);
    made.mapped_bytes = made.bytes + ARENA_HUGE_BYTES;
    map = mmap(NULL, made.mapped_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (map != MAP_FAILED && st_fault("arena.mmap", 0) < 0) {
        munmap(map, made.mapped_bytes);
        map = MAP_FAILED;
        errno = ENOMEM;
    }
    if (map == MAP_FAILED)
        return st_error(STRATA_E_NOMEM, "%s arena: %s could not be mapped: %s: lower its budget or raise ulimit -v", name,
                        st_size_text(size, made.bytes), strerror(errno));
    made.mapped_head = (ARENA_HUGE_BYTES - (uintptr_t)map % ARENA_HUGE_BYTES) % ARENA_HUGE_BYTES;
    made.base = (unsigned char *)map + made.mapped_head;
    arena_trim(&made);
    if (made.bytes >= ARENA_HUGE_BYTES)
        (void)madvise(made.base, made.bytes, MADV_HUGEPAGE); /* a kernel without huge pages is only slower */
    if (topo != NULL && workers != NULL)
        (void)st_topology_place_memory(topo, made.base, made.bytes, st_workers_count(workers)); /* else: first touch */
    if (workers != NULL)
        st_workers_run(workers, arena_touch, &made, items);
    else
        for (uint64_t i = 0; i < items; i++)
            arena_touch(&made, i, 0);
    *arena = made;
    return STRATA_OK;
}

void st_arena_destroy(struct st_arena *arena)
{
    if (arena->base != NULL)
        munmap(arena->base - arena->mapped_head, arena->mapped_bytes);
    memset(arena, 0, sizeof(*arena));
}
