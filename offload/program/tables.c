/* tables.c - see tables.h. */
#include "offload/program/tables.h"

#include "offload/program/dispatch.h"

uint64_t st_act_pieces(const struct st_workload *w)
{
    return (st_workload_boundary_most(w) + ST_ACT_PIECE - 1) / ST_ACT_PIECE;
}

static uint64_t count_transfers(const struct st_program *program)
{
    uint64_t count = 0;

    for (uint32_t i = 0; i < program->op_count; i++)
        count += st_lane_is_io(program->ops[i].lane);
    return count;
}

static uint64_t largest_sum(const struct st_workload *w)
{
    uint64_t elems = 0;

    for (uint32_t p = 0; p < w->page_count; p++)
        elems = w->pages[p].trained_elems > elems ? w->pages[p].trained_elems : elems;
    return elems;
}

static size_t program_bytes(const struct st_program *program)
{
    return program->op_count * sizeof(*program->ops) + program->access_count * sizeof(*program->accesses) +
           program->wait_count * sizeof(*program->waits) + program->buffer_count * sizeof(*program->buffers) +
           program->chunk_count * sizeof(*program->chunks) +
           program->workload.page_count * (sizeof(*program->pages) + sizeof(*program->shards) + sizeof(*program->workload.pages));
}

uint64_t st_exchange_parts(const struct st_program *program)
{
    const struct st_workload *w = &program->workload;

    return 2ull * program->ranks * ST_GROUPS_MAX + (program->ranks + 1ull) * w->micro_batch * w->seq * w->grad_accum;
}

uint64_t st_scalars_parts(const struct st_program *program)
{
    uint64_t count = 2; /* losses, the tally */

    count += st_program_called(program) ? 1 : 0; /* the divisor */
    count += program->workload.routes_bytes > 0 ? 1 : 0;
    for (uint32_t p = 0; p < program->workload.page_count; p++)
        for (uint32_t i = 0; i < program->workload.pages[p].group_count; i++)
            count += program->pages[p].grad != ST_WHERE_NONE && program->workload.pages[p].groups[i].kind != ST_GROUP_FROZEN;
    return count;
}

static size_t exchanges_bytes(const struct st_program *program)
{
    if (program->ranks == 1)
        return 0;
    return ST_EXCHANGES * (program->ranks * ST_EXCHANGE_BYTES + st_exchange_parts(program) * ST_PART_RECORD_BYTES) +
           program->ranks * st_scalars_parts(program) * ST_PART_RECORD_BYTES;
}

uint64_t st_tables_size(struct st_tables *t, const struct st_program *program, uint32_t workers, bool queues)
{
    const struct st_workload *w = &program->workload;
    const uint64_t boundaries = (uint64_t)(w->layer_count - 1) * w->grad_accum, ops = program->op_count;

    *t = (struct st_tables){
        .program = program_bytes(program),
        .dispatch = st_dispatch_bytes(ops),
        .transfers = count_transfers(program) * ST_TRANSFER_RECORD_BYTES,
        .jobs = queues ? ops * ST_JOB_RECORD_BYTES : 0,
        .ranks = program->ranks > 1 ? program->ranks * (ST_PEER_RECORD_BYTES + ST_ANSWER_RECORD_BYTES) : 0,
        .exchanges = exchanges_bytes(program),
        .checks = queues ? ops : 0,
        .caller = st_program_called(program) ? ops + 2 * sizeof(uint64_t) * st_block_count(w) : 0,
        .verified = program->buffer_count,
        .fresh = program->chunk_count,
        .left_out = w->experts > 0 ? w->page_count : 0,
        .turned = program->early_pages > 0 ? program->buffer_count : 0,
        .volumes = program->sets > 0 ? program->buffer_count * sizeof(uint32_t) : 0,
        .checksums = program->tile_count * sizeof(uint64_t),
        .early_sums =
            program->early_pages > 0 && program->needed[STRATA_TIER_NVME] > 0 ? program->tile_count * sizeof(uint64_t) : 0,
        .act_checksums = program->acts == ST_WHERE_NVME ? boundaries * st_act_pieces(w) * sizeof(uint64_t) : 0,
        .grad_sums = program->swaps_grads ? program->tile_count * sizeof(uint64_t) : 0,
        .scratch = workers * ST_SCRATCH_BYTES,
        .block_sums = (largest_sum(w) / ST_NORM_BLOCK + 1) * sizeof(double),
        .extents = program->sets > 0
                       ? ST_PLANE_COUNT * (program->chunk_count * ST_EXTENT_ROW_BYTES + program->tile_count * sizeof(uint64_t))
                       : 0,
        .bounce = program->sets > 0 ? (size_t)ST_BOUNCE_COUNT * ST_BOUNCE_BYTES : 0,
    };
    return t->program + t->dispatch + t->transfers + t->jobs + t->ranks + t->exchanges + t->checks + t->caller + t->verified +
           t->fresh + t->left_out + t->turned + t->volumes + ST_PLANE_COUNT * (t->checksums + t->early_sums) + t->act_checksums +
           t->grad_sums + 2 * t->scratch + t->block_sums + t->bounce + t->extents;
}
