/* program.c - see program.h. */
#include "offload/program/program.h"

#include <stdlib.h>

const char *st_plane_name(enum st_plane plane)
{
    static const char *const names[ST_PLANE_COUNT] = {"master", "moment1", "moment2", "weight"};

    return names[plane];
}

void st_program_fini(struct st_program *program)
{
    st_workload_fini(&program->workload);
    free(program->shards);
    free(program->norm_first);
    free(program->pages);
    free(program->chunks);
    free(program->buffers);
    free(program->ops);
    free(program->accesses);
    free(program->waits);
}

static void trim(void **array, uint32_t *room, uint32_t count, size_t size)
{
    void *trimmed = count > 0 ? realloc(*array, (size_t)count * size) : NULL;

    if (trimmed == NULL)
        return;
    *array = trimmed;
    *room = count;
}

void st_program_trim(struct st_program *program)
{
    trim((void **)&program->ops, &program->op_room, program->op_count, sizeof(*program->ops));
    trim((void **)&program->accesses, &program->access_room, program->access_count, sizeof(*program->accesses));
    trim((void **)&program->waits, &program->wait_room, program->wait_count, sizeof(*program->waits));
    trim((void **)&program->buffers, &program->buffer_room, program->buffer_count, sizeof(*program->buffers));
}

uint64_t st_program_own_elems(const struct st_program *program, uint32_t page)
{
    const struct st_page *p = &program->workload.pages[page];
    uint64_t elems = 0;

    for (uint32_t i = 0; i < p->group_count; i++)
        if (p->groups[i].kind != ST_GROUP_FROZEN)
            elems += st_slice_of(&program->workload, page, i, program->ranks, program->rank).elems;
    return elems;
}

size_t st_program_wire_width(const struct st_program *program)
{
    return program->wire_bf16 ? sizeof(uint16_t) : sizeof(float);
}

/* Bytes of what comes: room for the largest slices that any rank has. */
static uint64_t coming(const struct st_program *program, uint32_t page)
{
    struct st_page room;

    if (program->ranks == 1)
        return 0;
    st_shard_make(&room, &program->workload, page, program->ranks);
    return (program->ranks - 1) * room.trained_elems * st_program_wire_width(program);
}

uint64_t st_program_wire_leaving(const struct st_program *program, uint32_t page)
{
    return (coming(program, page) + ST_WIRE_BESIDE - 1) / ST_WIRE_BESIDE * ST_WIRE_BESIDE;
}

uint64_t st_program_wire_slot(const struct st_program *program, uint32_t page)
{
    if (!program->wire_bf16 || program->ranks == 1)
        return coming(program, page);
    return 2 * st_program_wire_leaving(program, page) + ST_WIRE_BESIDE;
}

uint64_t st_program_wire_bytes(const struct st_program *program, uint32_t page)
{
    return (program->ranks - 1) * st_program_own_elems(program, page) * st_program_wire_width(program);
}

uint64_t st_program_gathered_grads(const struct st_program *program, uint32_t page)
{
    const struct st_page *p = &program->workload.pages[page];
    uint64_t bytes = 0;

    for (uint32_t i = 0; i < p->group_count; i++) {
        const struct st_group *g = &p->groups[i];

        if (g->kind != ST_GROUP_FROZEN)
            bytes += st_format_bytes(g->format,
                                     g->elems - st_slice_of(&program->workload, page, i, program->ranks, program->rank).elems);
    }
    return bytes;
}

uint32_t st_program_backward(const struct st_program *program)
{
    uint32_t first = 0;

    while (first < program->op_count && program->ops[first].kind != ST_OP_HEAD_GRAD &&
           program->ops[first].kind != ST_OP_LAYER_BACKWARD)
        first++;
    return first;
}

static uint64_t spared(const struct st_chunk *chunk)
{
    return chunk->state == ST_WHERE_NVME ? chunk->bytes - st_chunk_fresh_bytes(chunk) : 0;
}

uint64_t st_program_spared(const struct st_program *program)
{
    uint64_t bytes = 0;

    for (uint32_t c = 0; c < program->chunk_count; c++)
        bytes += spared(&program->chunks[c]);
    return bytes;
}

static uint64_t extent_bytes(const struct st_program *program, uint32_t extent)
{
    return extent == ST_NO_BUFFER ? 0 : program->buffers[extent].bytes;
}

uint64_t st_program_unsaved(const struct st_program *program)
{
    uint64_t bytes = 0;

    if (program->sets == 0)
        return 0;
    for (uint32_t p = 0; p < program->workload.page_count; p++)
        if (program->pages[p].home != ST_WHERE_NVME)
            bytes += extent_bytes(program, program->pages[p].extent);
    for (uint32_t c = 0; c < program->chunk_count; c++)
        if (program->chunks[c].state != ST_WHERE_NVME)
            bytes += extent_bytes(program, program->chunks[c].extent);
    return bytes;
}

struct st_traffic st_program_traffic(const struct st_program *program, enum st_phase phase)
{
    struct st_traffic traffic = {0};

    for (uint32_t i = 0; i < program->op_count; i++) {
        uint64_t *link = st_traffic_of(&traffic, program->ops[i].lane);

        if (st_op_runs(&program->ops[i], phase) && link != NULL)
            *link += program->ops[i].bytes;
    }
    return traffic;
}

struct st_traffic st_program_fresh_traffic(const struct st_program *program, uint32_t step)
{
    const enum st_phase first = st_program_gated(program) ? ST_PHASE_PROLOGUE : ST_PHASE_BODY;
    struct st_traffic traffic = st_program_traffic(program, step == 0 ? first : ST_PHASE_BODY);

    for (uint32_t i = 0; i < program->op_count; i++) {
        const struct st_op *op = &program->ops[i];
        const bool before = (op->phases & first) != 0; /* already in the first step */

        if (op->kind == ST_OP_READ_STATE && (step == 0 ? before : !before && (op->phases & ST_PHASE_BODY) != 0))
            traffic.read -= spared(&program->chunks[op->chunk]);
    }
    return traffic;
}
