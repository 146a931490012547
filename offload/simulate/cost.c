/* cost.c - seconds of one op by the machine's rates.  Pure functions. */
#include "offload/simulate/cost.h"

#include "offload/device/op_traffic.h"

/* The host's update verifies data from NVMe when it uses it, and renews the checksums of what it has changed. */
static double resum_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    const struct st_chunk *chunk = &program->chunks[op->chunk];
    const uint64_t weights = st_format_bytes(chunk->format, chunk->elems); /* as many as of its gradient */
    uint64_t bytes = 0;

    if (op->lane != STRATA_LANE_UPDATE)
        return 0;
    if (chunk->state == ST_WHERE_NVME)
        bytes += 2 * st_chunk_state_bytes(program, chunk);
    if (program->pages[chunk->page].home == ST_WHERE_NVME)
        bytes += 2 * weights;
    if (st_page_swaps_grad(program, chunk->page))
        bytes += weights;
    return st_seconds_at((double)bytes, m->rates.checksum);
}

static double sum_elems(const struct st_program *program, const struct st_op *op)
{
    return (double)program->workload.pages[op->page].trained_elems;
}

/* Of those, what this rank rounds: its slices. */
static double own_elems(const struct st_program *program, const struct st_op *op)
{
    return program->ranks > 1 ? (double)st_program_own_elems(program, op->page) : sum_elems(program, op);
}

/* Tokens' rows of the table, each copied once; the slices and the ranks share them. */
static double gather_bytes(const struct st_program *program)
{
    return (double)program->workload.layers[0].boundary_bytes * program->workload.grad_accum / program->workload.gathered_count /
           st_program_cuts(program);
}

/* Each gradient of a row that the rank has is read and added to its fp32 sum; the first micro-batch zeroes all sums. */
static double scatter_bytes(const struct st_program *program, const struct st_op *op)
{
    const struct st_workload *w = &program->workload;
    const double width = (double)strata_dtype_bytes(w->dtype);
    double bytes = (double)w->layers[0].boundary_bytes / width * (width + 2 * sizeof(float)) / program->ranks;

    for (uint32_t p = 0; op->first && p < w->gathered_count; p++)
        bytes += (double)(program->pages[p].sum_cut ? program->shards : w->pages)[p].trained_elems * sizeof(float);
    return bytes;
}

/* The first op that adds to a sum zeroes what it does not write. */
static double zero_bytes(const struct st_program *program, const struct st_op *op)
{
    const struct st_workload *w = &program->workload;
    double bytes = 0;

    for (uint32_t i = op->access_first; i < op->access_first + op->access_count; i++)
        if (program->accesses[i].role == ST_ROLE_SUM && program->accesses[i].mode == ST_WRITE)
            bytes += (double)st_page_zeroed_bytes(&w->pages[program->accesses[i].index % w->page_count]);
    return bytes;
}

/* Elements that an op rounds: this rank's slices, or, for the wire, those of the others. */
static double rounded_elems(const struct st_program *program, const struct st_op *op)
{
    return op->kind == ST_OP_ROUND_SUM ? sum_elems(program, op) - own_elems(program, op) : own_elems(program, op);
}

static double round_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    const struct st_page *page = &program->workload.pages[op->page];
    const double width = op->kind == ST_OP_ROUND_SUM ? (double)st_program_wire_width(program)
                                                     : (double)page->trained_bytes / (double)page->trained_elems;

    return st_seconds_at(rounded_elems(program, op) * (sizeof(float) + width), m->rates.checksum);
}

/* Of ranks each but one is added to another. */
static double reduce_bytes(const struct st_program *program, const struct st_op *op)
{
    const double elems = op->kind == ST_OP_REDUCE_RANKS ? own_elems(program, op) * (program->ranks - 1) : sum_elems(program, op);
    const size_t width = op->kind == ST_OP_REDUCE_RANKS ? st_program_wire_width(program) : sizeof(float);

    return elems * (double)(2 * sizeof(float) + width);
}

/* --- a separate device's own passes --- */

/* Rows of one micro-batch, from a table that is on the device. */
static double gather_pass(const struct st_workload *w)
{
    return st_op_traffic(
               &(struct st_op_shape){
                   .op = ST_DEVICE_EMBED_GATHER, .dt = w->dtype, .rows = (uint64_t)w->micro_batch * w->seq, .cols = w->hidden})
        .bytes;
}

/* All tokens of a step, of several ranks those of one micro-batch, as if every slice of the table, and of it every rank, had an
 * equal part of them and no token came twice. */
static double scatter_pass(const struct st_program *program, const struct st_op *op)
{
    const struct st_workload *w = &program->workload;
    const uint32_t micros = op->kind == ST_OP_SCATTER_MICRO ? 1 : w->grad_accum;
    const uint64_t rows = (uint64_t)w->micro_batch * w->seq * micros / w->gathered_count / program->ranks;
    const uint32_t held = w->pages[op->page].row_count;

    return st_op_traffic(&(struct st_op_shape){.op = ST_DEVICE_EMBED_SCATTER,
                                               .dt = w->dtype,
                                               .rows = rows,
                                               .cols = w->hidden,
                                               .positions = rows < held ? rows : held})
        .bytes;
}

/* Trained groups come first, and are as a rule all stored alike. */
static double finish_pass(const struct st_program *program, const struct st_op *op)
{
    return st_op_traffic(&(struct st_op_shape){
                             .op = ST_DEVICE_GRAD_FINISH,
                             .dt = op->kind == ST_OP_ROUND_SUM ? STRATA_BF16 : program->workload.pages[op->page].groups[0].format,
                             .rows = 1,
                             .cols = (uint64_t)rounded_elems(program, op)})
        .bytes;
}

/* A full master leaves a copy as the weight; other weights are part of what is read and written. */
static double update_pass(const struct st_program *program, const struct st_chunk *chunk)
{
    const bool copied = chunk->master == ST_MASTER_FULL;

    return st_op_traffic(&(struct st_op_shape){.op = ST_DEVICE_UPDATE,
                                               .dt = chunk->format,
                                               .other = chunk->format,
                                               .rows = 1,
                                               .cols = chunk->elems,
                                               .state_bytes = st_chunk_state_bytes(program, chunk) +
                                                              (copied ? 0 : st_format_bytes(chunk->format, chunk->elems)),
                                               .more.others = copied})
        .bytes;
}

struct st_passes st_cost_passes(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    const struct st_workload *w = &program->workload;
    const double rate = machine->rates.memory;
    struct st_passes p = {0};

    if (machine->capacity.device_is_host || (op->lane != STRATA_LANE_COMPUTE && op->lane != STRATA_LANE_UPDATE_DEVICE))
        return p;
    p.zero = st_seconds_at(zero_bytes(program, op), rate);
    if (op->kind == ST_OP_UPDATE_DEVICE)
        p.update = st_seconds_at(update_pass(program, &program->chunks[op->chunk]), rate);
    else if (op->kind == ST_OP_FINISH_GRAD || op->kind == ST_OP_ROUND_SUM)
        p.round = st_seconds_at(finish_pass(program, op), rate);
    else if (st_op_rows[op->kind].work == ST_WORK_REDUCE)
        p.reduce = st_seconds_at(reduce_bytes(program, op), rate);
    else if (op->kind == ST_OP_PLACE_WEIGHT)
        p.rows = st_seconds_at(2 * (double)op->bytes, rate);
    else if (op->kind == ST_OP_GATHER_DEVICE)
        p.rows = st_seconds_at(gather_pass(w), rate);
    else if (op->kind == ST_OP_SCATTER_DEVICE || op->kind == ST_OP_SCATTER_MICRO)
        p.rows = st_seconds_at(scatter_pass(program, op), rate);
    else if (st_op_rows[op->kind].work == ST_WORK_CALL)
        p.rows = st_seconds_at(st_call_bytes(w, st_op_rows[op->kind].call), rate);
    return p;
}

static double pass_seconds(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    const struct st_passes p = st_cost_passes(program, machine, op);

    return st_passes_sum(&p);
}

/* --- ops --- */

/* What the host's workers do for an op; on a device that is the host, all of it but the calls. */
static double host_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    switch (st_op_rows[op->kind].work) {
    case ST_WORK_UPDATE:
        return st_seconds_at((double)st_cost_updated(program, m, op), m->rates.update) + resum_seconds(program, m, op);
    case ST_WORK_ROUND:
        return round_seconds(program, m, op);
    case ST_WORK_REDUCE:
        return st_seconds_at(reduce_bytes(program, op), m->rates.checksum);
    case ST_WORK_COPY:
        return st_seconds_at(2 * (double)op->bytes, m->rates.checksum);
    case ST_WORK_GATHER:
        return st_seconds_at(gather_bytes(program), m->rates.checksum);
    case ST_WORK_SCATTER:
        return st_seconds_at(scatter_bytes(program, op), m->rates.checksum);
    default:
        return st_seconds_at(zero_bytes(program, op), m->rates.checksum);
    }
}

static double call_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    return st_call_seconds(&program->workload.layers[op->layer], &m->rates, st_op_rows[op->kind].call, op->recompute);
}

/* A layer of the caller's of which neither seconds nor FLOPs are known takes as long as going through its weights. */
static double layer_seconds(const struct st_program *program, const struct st_machine *m, const struct st_op *op)
{
    const double known = call_seconds(program, m, op), rate = m->rates.memory > 0 ? m->rates.memory : m->rates.checksum;
    double bytes = 0;

    for (uint32_t i = 0; i < program->workload.layers[op->layer].use_count; i++)
        bytes += (double)program->workload.pages[st_layer_page(&program->workload, op->layer, i)].bytes;
    return known > 0 || program->workload.layers[op->layer].forward_seconds > 0 ? known : st_seconds_at(bytes, rate);
}

double st_cost_flops(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    if (st_op_rows[op->kind].work == ST_WORK_LAYER)
        return layer_seconds(program, machine, op);
    return st_op_rows[op->kind].work == ST_WORK_CALL ? call_seconds(program, machine, op) : 0;
}

double st_cost_streaming(const struct st_program *program)
{
    double streamed = 0, host = 0;

    for (uint32_t c = 0; c < program->chunk_count; c++) {
        const struct st_chunk *chunk = &program->chunks[c];
        const struct st_page_place *place = &program->pages[chunk->page];
        const double weight = (double)st_format_bytes(chunk->format, chunk->elems);
        const double both_ways = 2 * ((double)st_chunk_state_bytes(program, chunk) + weight);

        if (chunk->group == ST_GROUP_FROZEN)
            continue;
        streamed += place->state == ST_WHERE_STREAMED ? both_ways : 0;
        host += place->grad == ST_WHERE_DEVICE ? 0 : both_ways + 4 * weight;
    }
    return host > 0 ? (host + streamed) / host : 1;
}

uint64_t st_cost_updated(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    const bool here = op->lane == STRATA_LANE_UPDATE || machine->capacity.device_is_host;

    return st_op_rows[op->kind].work == ST_WORK_UPDATE && here ? program->chunks[op->chunk].elems : 0;
}

double st_cost_comm(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    return op->lane == STRATA_LANE_COMM ? st_comm_seconds(&machine->rates, program->ranks, (double)op->bytes) : 0;
}

double st_cost_rate(const struct st_machine *machine, enum strata_lane lane)
{
    if (st_lane_is_io(lane))
        return st_lane_reads(lane) ? machine->rates.read : machine->rates.write;
    return lane == STRATA_LANE_UPLOAD ? machine->rates.upload : machine->rates.download;
}

double st_cost_op(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    const bool here = machine->capacity.device_is_host || op->lane == STRATA_LANE_UPDATE;
    const double launch = here || st_lane_is_io(op->lane) ? 0 : machine->rates.launch;

    if (op->lane == STRATA_LANE_CALLER)
        return st_cost_flops(program, machine, op);
    if (op->lane == STRATA_LANE_COMM)
        return st_cost_comm(program, machine, op) + st_comm_latency(&machine->rates, program->ranks);
    if (st_op_rows[op->kind].work == ST_WORK_COPY && op->kind != ST_OP_PLACE_WEIGHT)
        return launch + st_seconds_at((double)op->bytes, st_cost_rate(machine, (enum strata_lane)op->lane));
    return launch + st_cost_flops(program, machine, op) +
           (here ? host_seconds(program, machine, op) : pass_seconds(program, machine, op));
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

/* Bytes with checksums that an op moves; 0: the thing is not on NVMe, and not saved. */
static double checksummed_bytes(const struct st_program *program, const struct st_op *op)
{
    const bool opens = st_op_rows[op->kind].checksum == ST_CHECKSUM_OPENS;

    if (op->phases == ST_PHASE_SAVE)
        return (double)op->bytes;
    switch ((enum st_content)st_op_rows[op->kind].operands[0].content) {
    case ST_HOLDS_STATE:
        return program->chunks[op->chunk].state == ST_WHERE_NVME
                   ? (double)st_chunk_state_bytes(program, &program->chunks[op->chunk])
                   : 0;
    case ST_HOLDS_WEIGHT:
        return (opens ? st_cost_read_of(program, op) != ST_NO_BUFFER : program->pages[op->page].home == ST_WHERE_NVME)
                   ? (double)(opens ? program->workload.pages[op->page].bytes : op->bytes)
                   : 0;
    case ST_HOLDS_GRAD:
        return st_page_swaps_grad(program, op->page) ? (double)op->bytes : 0;
    default:
        return (opens ? st_cost_read_of(program, op) != ST_NO_BUFFER : program->acts == ST_WHERE_NVME) ? (double)op->bytes : 0;
    }
}

double st_cost_checksums(const struct st_program *program, const struct st_machine *machine, const struct st_op *op)
{
    const enum st_checksum_mode mode = st_op_rows[op->kind].checksum;

    if (mode != ST_CHECKSUM_OPENS && mode != ST_CHECKSUM_CLOSES)
        return 0;
    return st_seconds_at(checksummed_bytes(program, op), machine->rates.checksum);
}
