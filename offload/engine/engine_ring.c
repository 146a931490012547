/* engine_ring.c - slots of host memory that take turns, each with the transfer from or to it: load, save and resume keep the
 * drive busy with them while they work on the slot before. */
#include "offload/engine/engine_internal.h"


void *st_engine_host_slot(const struct st_engine *eng, enum st_op_kind kind)
{
    for (uint32_t i = 0; i < eng->program->op_count; i++)
        if (eng->program->ops[i].kind == kind)
            return st_engine_operand(eng, &eng->program->ops[i], ST_ROLE_TO);
    return NULL;
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

strata_status st_ring_start(struct st_ring *ring, struct st_engine *eng, enum st_io_op op, uint32_t extent, uint64_t at,
                            uint64_t bytes)
{
    const uint32_t i = ring->next;
    const strata_status st = st_engine_transfer_start(eng, &ring->io[i], op, extent, at, ring->slot[i], bytes);

    ring->busy[i] = st == STRATA_OK;
    ring->next = (i + 1) % ring->count;
    return st;
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
