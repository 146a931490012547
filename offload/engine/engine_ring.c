/* engine_ring.c - slots of host memory that take turns, each with the transfer from or to it: load, save and resume keep the
 * drive busy with them while they work on the slot before. */
#include "offload/engine/engine_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <stdlib.h>

void *st_engine_host_slot(const struct st_engine *eng, enum st_op_kind kind)
{
    for (uint32_t i = 0; i < eng->program->op_count; i++)
        if (eng->program->ops[i].kind == kind)
            return st_engine_operand(eng, &eng->program->ops[i], ST_ROLE_TO);
    return NULL;
}

strata_status st_ring_bounce(struct st_ring *ring, struct st_engine *eng)
{
    const size_t bytes = ST_BOUNCE_COUNT * (size_t)ST_BOUNCE_BYTES;
    strata_status st = STRATA_OK;

    if (eng->bounce == NULL) {
        eng->bounce = st_fault_refuses("engine.bounce") ? NULL : aligned_alloc(ST_EXTENT_ALIGN, bytes);
        if (eng->bounce == NULL)
            return st_nomem(bytes);
        if (eng->device->ops->pin != NULL)
            st = eng->device->ops->pin(eng->device, eng->bounce, bytes, NULL);
    }
    ring->count = ST_BOUNCE_COUNT;
    for (uint32_t i = 0; i < ST_BOUNCE_COUNT; i++)
        ring->slot[i] = eng->bounce + i * (size_t)ST_BOUNCE_BYTES;
    return st;
}

void st_ring_open(struct st_ring *ring, const struct st_engine *eng, enum st_op_kind kind)
{
    for (uint32_t i = 0; i < eng->program->op_count && ring->count < ST_RING_SLOTS_MAX; i++) {
        unsigned char *slot;
        uint32_t known = 0;

        if (eng->program->ops[i].kind != kind)
            continue;
        slot = st_engine_operand(eng, &eng->program->ops[i], ST_ROLE_TO);
        while (known < ring->count && ring->slot[known] != slot)
            known++;
        ring->slot[known] = slot;
        ring->count += known == ring->count;
    }
}

void st_ring_split(struct st_ring *ring, uint64_t bytes, uint64_t part)
{
    const uint32_t slots = ring->count;

    for (uint64_t at = part; at + part <= bytes; at += part)
        for (uint32_t i = 0; i < slots && ring->count < ST_RING_SLOTS_MAX; i++)
            ring->slot[ring->count++] = ring->slot[i] + at;
}

static strata_status wait_for(struct st_ring *ring, struct st_engine *eng, uint32_t i)
{
    if (!ring->busy[i])
        return STRATA_OK;
    ring->busy[i] = false;
    return st_engine_transfer_wait(eng, &ring->io[i]);
}

strata_status st_ring_take(struct st_ring *ring, struct st_engine *eng, unsigned char **out)
{
    *out = ring->slot[ring->next];
    return wait_for(ring, eng, ring->next);
}

/* The slot that was taken last has a transfer now, if that could be started. */
static strata_status turn(struct st_ring *ring, strata_status st)
{
    ring->busy[ring->next] = st == STRATA_OK;
    ring->next = (ring->next + 1) % ring->count;
    return st;
}

strata_status st_ring_start(struct st_ring *ring, struct st_engine *eng, enum st_io_op op, uint32_t extent, uint64_t at,
                            uint64_t bytes)
{
    return turn(ring,
                st_engine_transfer_start(eng, &ring->io[ring->next], op, extent, at, ring->slot[ring->next], bytes, ring->apart));
}

strata_status st_ring_start_page(struct st_ring *ring, struct st_engine *eng, enum st_io_op op, uint32_t page)
{
    return turn(ring, st_engine_page_start(eng, &ring->io[ring->next], op, page, ring->slot[ring->next]));
}

strata_status st_ring_read_volume(struct st_ring *ring, struct st_engine *eng, uint32_t volume, uint64_t offset, uint64_t bytes)
{
    return turn(ring, st_engine_volume_start(eng, &ring->io[ring->next], ST_IO_READ, volume, offset, ring->slot[ring->next],
                                             bytes, ring->apart));
}

strata_status st_ring_wait(struct st_ring *ring, struct st_engine *eng, uint32_t back, unsigned char **out)
{
    const uint32_t i = (ring->next + ring->count - back) % ring->count;

    *out = ring->slot[i];
    return wait_for(ring, eng, i);
}

strata_status st_ring_close(struct st_ring *ring, struct st_engine *eng)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < ring->count; i++) {
        const strata_status one = wait_for(ring, eng, i);

        st = st == STRATA_OK ? one : st;
    }
    return st;
}
