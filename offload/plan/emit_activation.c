/* emit_activation.c - layer boundaries: on the device, or in slots with their activation checkpoint on host or NVMe. */
#include "offload/plan/emit_internal.h"

uint64_t st_emit_act_id(const struct st_emitter *e, uint32_t boundary, uint32_t micro)
{
    return (uint64_t)boundary * e->program->workload.grad_accum + micro;
}

static uint32_t act_slot(struct st_emitter *e, uint32_t id)
{
    struct st_pool *pool = &e->lay->acts;
    uint32_t oldest = 0;

    for (uint32_t i = 1; i < pool->count; i++)
        if (pool->used[i] < pool->used[oldest])
            oldest = i;
    pool->holds[oldest] = id;
    pool->used[oldest] = ++e->tick;
    return pool->buffer[oldest];
}

uint32_t st_emit_act_fresh(struct st_emitter *e, uint32_t boundary, uint32_t micro)
{
    const uint64_t id = st_emit_act_id(e, boundary, micro);

    return e->program->acts == ST_WHERE_DEVICE ? e->lay->checkpoints[id] : act_slot(e, (uint32_t)id);
}

/* The activation checkpoint in host memory: its region, or a slot filled from its extent. */
static uint32_t host_act(struct st_emitter *e, uint64_t id, uint32_t micro, unsigned phases)
{
    uint32_t slot;

    if (e->program->acts == ST_WHERE_HOST)
        return e->lay->checkpoints[id];
    slot = st_pool_find(&e->lay->host_acts, (uint32_t)id);
    if (slot != ST_NO_BUFFER)
        return slot;
    slot = st_pool_take(&e->lay->host_acts, (uint32_t)id);
    st_emit_copy(e, ST_OP_READ_ACT, phases, e->lay->checkpoints[id], slot, id, e->program->buffers[e->lay->checkpoints[id]].bytes)
        ->micro = micro;
    return slot;
}

uint32_t st_emit_act_get(struct st_emitter *e, uint32_t boundary, uint32_t micro, unsigned phases)
{
    const uint64_t id = st_emit_act_id(e, boundary, micro);
    struct st_pool *pool = &e->lay->acts;
    uint32_t slot, host;

    if (e->program->acts == ST_WHERE_DEVICE)
        return e->lay->checkpoints[id];
    for (uint32_t i = 0; i < pool->count; i++) {
        if (pool->holds[i] == id) {
            pool->used[i] = ++e->tick;
            return pool->buffer[i];
        }
    }
    host = host_act(e, id, micro, phases);
    slot = act_slot(e, (uint32_t)id);
    st_emit_copy(e, ST_OP_UPLOAD_ACT, phases, host, slot, id, e->program->workload.layers[boundary].boundary_bytes)->micro =
        micro;
    return slot;
}

void st_emit_act_keep(struct st_emitter *e, uint32_t boundary, uint32_t micro, uint32_t slot, unsigned phases)
{
    const uint64_t id = st_emit_act_id(e, boundary, micro);
    const uint32_t checkpoint = e->lay->checkpoints[id];
    const bool nvme = e->program->acts == ST_WHERE_NVME;
    uint32_t host;

    if (e->program->acts == ST_WHERE_DEVICE)
        return;
    host = nvme ? st_pool_take(&e->lay->host_acts, (uint32_t)id) : checkpoint;
    st_emit_copy(e, ST_OP_DOWNLOAD_ACT, phases, slot, host, id, e->program->workload.layers[boundary].boundary_bytes)->micro =
        micro;
    if (nvme)
        st_emit_copy(e, ST_OP_WRITE_ACT, phases, host, checkpoint, id, e->program->buffers[checkpoint].bytes)->micro = micro;
}
