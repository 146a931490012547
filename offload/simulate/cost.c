/* cost.c - seconds of one op by the machine's rates.  Pure functions. */
#include "offload/simulate/cost.h"

static size_t width_of(const struct st_program *program)
{
    return strata_dtype_bytes(program->workload.dtype);
}

/* The host's update verifies data from NVMe when it uses it, and renews the checksums when it has changed it. */
static double resum_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    const struct st_chunk *chunk = &program->chunks[op->chunk];
    uint64_t bytes = 0;

    if (op->lane != ST_LANE_UPDATE)
        return 0;
    if (chunk->state == ST_WHERE_NVME)
        bytes += st_chunk_state_bytes(program, chunk);
    if (program->pages[chunk->page].home == ST_WHERE_NVME)
        bytes += st_format_bytes(chunk->format, chunk->elems);
    return st_seconds_at(2 * (double)bytes, m->rates.checksum);
}

static double sum_elems(const struct st_program *program, const struct st_op *op)
{
    return (double)program->workload.pages[op->page].trained_elems;
}

/* Tokens' rows of the table, each copied once; the slices share them. */
static double gather_bytes(const struct st_program *program)
{
    return (double)program->workload.activation_bytes * program->workload.grad_accum / program->workload.table_count;
}

/* Each gradient is read and added to its fp32 sum; the first micro-batch zeroes all sums. */
static double scatter_bytes(const struct st_program *program, const struct st_op *op)
{
    const struct st_workload *w = &program->workload;
    const double width = (double)width_of(program);
    double bytes = (double)w->activation_bytes / width * (width + 2 * sizeof(float));

    for (uint32_t p = w->table_first; op->first && p < w->table_first + w->table_count; p++)
        bytes += (double)w->pages[p].trained_elems * sizeof(float);
    return bytes;
}

/* The first op that adds to a sum zeroes it; on a separate device that takes no time. */
static double zero_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    return m->capacity.device_is_host && op->first ? st_seconds_at(sum_elems(program, op) * sizeof(float), m->rates.checksum) : 0;
}

static double round_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    const bool here = m->capacity.device_is_host || op->lane == ST_LANE_UPDATE;

    return here ? st_seconds_at(sum_elems(program, op) * (double)(sizeof(float) + width_of(program)), m->rates.checksum) : 0;
}

static double call_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    return st_call_seconds(&program->workload, &m->rates, st_op_rows[op->kind].call, op->recompute);
}

double st_cost_flops(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    return st_op_rows[op->kind].work == ST_WORK_CALL ? call_seconds(program, machine, op) : 0;
}

uint64_t st_cost_updated(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    const bool here = op->lane == ST_LANE_UPDATE || machine->capacity.device_is_host;

    return st_op_rows[op->kind].work == ST_WORK_UPDATE && here ? program->chunks[op->chunk].elems : 0;
}

double st_cost_rate(const struct st_machine *machine, enum st_lane lane)
{
    if (st_lane_is_io(lane))
        return st_lane_reads(lane) ? machine->rates.read : machine->rates.write;
    return lane == ST_LANE_UPLOAD ? machine->rates.upload : machine->rates.download;
}

double st_cost_op(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    switch (st_op_rows[op->kind].work) {
    case ST_WORK_COPY:
        return st_seconds_at((double)op->bytes, st_cost_rate(machine, (enum st_lane)op->lane));
    case ST_WORK_CALL:
        return zero_seconds(program, machine, op) + call_seconds(program, machine, op);
    case ST_WORK_UPDATE:
        return st_seconds_at((double)st_cost_updated(program, machine, op), machine->rates.update) +
               resum_seconds(program, machine, op);
    case ST_WORK_ROUND:
        return round_seconds(program, machine, op);
    case ST_WORK_GATHER:
        return st_seconds_at(gather_bytes(program), machine->rates.checksum);
    case ST_WORK_SCATTER:
        return st_seconds_at(scatter_bytes(program, op), machine->rates.checksum);
    default:
        return zero_seconds(program, machine, op);
    }
}

uint32_t st_cost_read_of(const struct st_program *program, const struct st_op *op)
{
    const uint32_t buffer = op->access_count > 0 ? program->accesses[op->access_first].buffer : ST_NO_BUFFER;

    for (uint32_t i = 0; i < op->wait_count; i++) {
        const struct st_wait *wait = &program->waits[op->wait_first + i];
        const struct st_op *by = &program->ops[wait->op];

        if (st_lane_reads(by->lane) && !wait->previous && st_op_access(program->accesses, by, ST_ROLE_TO)->buffer == buffer)
            return wait->op;
    }
    return ST_NO_BUFFER;
}

/* Bytes with checksums that an op moves; 0: the thing is not on NVMe. */
static double sealed_bytes(const struct st_program *program, const struct st_op *op)
{
    const bool opens = st_op_rows[op->kind].seal == ST_SEAL_OPENS;

    switch ((enum st_content)st_op_rows[op->kind].operands[0].content) {
    case ST_HOLDS_STATE:
        return program->chunks[op->chunk].state == ST_WHERE_NVME
                   ? (double)st_chunk_state_bytes(program, &program->chunks[op->chunk])
                   : 0;
    case ST_HOLDS_WEIGHT:
        return (opens ? st_cost_read_of(program, op) != ST_NO_BUFFER : program->pages[op->page].home == ST_WHERE_NVME)
                   ? (double)(opens ? program->workload.pages[op->page].bytes : op->bytes)
                   : 0;
    default:
        return (opens ? st_cost_read_of(program, op) != ST_NO_BUFFER : program->acts == ST_WHERE_NVME)
                   ? (double)program->workload.activation_bytes
                   : 0;
    }
}

double st_cost_checksums(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    const enum st_seal seal = st_op_rows[op->kind].seal;

    if (seal != ST_SEAL_OPENS && seal != ST_SEAL_CLOSES)
        return 0;
    return st_seconds_at(sealed_bytes(program, op), machine->rates.checksum);
}
