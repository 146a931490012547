/* cost.c - seconds of one op by the machine's rates.  Pure functions. */
#include "offload/cost.h"

static double per_second(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

double st_cost_call(const struct st_workload *w, const struct st_machine *machine, enum st_call_kind kind, bool recompute)
{
    const double block = machine->block_flops > 0 ? machine->block_flops : machine->matmul_flops;
    const double head = machine->head_flops > 0 ? machine->head_flops : block;

    switch (kind) {
    case ST_CALL_BLOCK_FORWARD:
        return per_second(w->block_forward_flops, block);
    case ST_CALL_BLOCK_BACKWARD:
        return per_second(w->block_backward_flops + (recompute ? w->block_forward_flops : 0), block);
    case ST_CALL_HEAD_STATS:
        return per_second(w->head_forward_flops / w->head_count, head);
    case ST_CALL_HEAD_GRAD:
        return per_second((w->head_backward_flops - (recompute ? 0 : w->head_forward_flops)) / w->head_count, head);
    default:
        return 0;
    }
}

static size_t width_of(const struct st_plan *plan)
{
    return strata_dtype_bytes(plan->workload.dtype);
}

/* Every value is checked when it is used and its checksum renewed when it is changed. */
static double update_seconds(const struct st_plan *plan, const struct st_machine *m, const struct st_op *op)
{
    const struct st_chunk *chunk = &plan->chunks[op->chunk];
    uint64_t bytes = 0;

    if (chunk->tier == STRATA_TIER_NVME)
        bytes += st_plan_state_bytes(plan, chunk->elems);
    if (plan->pages[chunk->page].weight_home == STRATA_TIER_NVME)
        bytes += chunk->elems * width_of(plan);
    return per_second((double)chunk->elems, m->update) + per_second(2 * (double)bytes, m->checksum);
}

static double page_elems(const struct st_plan *plan, const struct st_op *op)
{
    return (double)plan->workload.pages[op->page].elems;
}

/* Tokens' rows of the table, each copied once; the tiles share them. */
static double gather_bytes(const struct st_plan *plan)
{
    return (double)plan->workload.activation_bytes * plan->workload.grad_accum / plan->workload.table_count;
}

/* Each gradient is read and added to its fp32 sum; the first micro-batch zeroes all sums. */
static double scatter_bytes(const struct st_plan *plan, const struct st_op *op)
{
    const struct st_workload *w = &plan->workload;
    const double width = (double)width_of(plan);
    double bytes = (double)w->activation_bytes / width * (width + 2 * sizeof(float));

    for (uint32_t p = w->table_first; op->first && p < w->table_first + w->table_count; p++)
        bytes += (double)w->pages[p].elems * sizeof(float);
    return bytes;
}

/* The device's passes over a page's sums, where the device is the host: rounding them, or zeroing them before a call. */
static double pass_seconds(const struct st_plan *plan, const struct st_machine *m, const struct st_op *op)
{
    double bytes = 0;

    if (!m->device_is_host || op->page == ST_NO_PAGE)
        return 0;
    if (op->kind == ST_OP_FINISH_GRAD)
        bytes += page_elems(plan, op) * (double)(sizeof(float) + width_of(plan));
    if (op->first)
        bytes += page_elems(plan, op) * sizeof(float);
    return per_second(bytes, m->checksum);
}

static double compute_seconds(const struct st_plan *plan, const struct st_machine *m, const struct st_op *op)
{
    const double pass = pass_seconds(plan, m, op);

    switch ((enum st_op_kind)op->kind) {
    case ST_OP_BLOCK_FORWARD:
        return st_cost_call(&plan->workload, m, ST_CALL_BLOCK_FORWARD, false);
    case ST_OP_BLOCK_BACKWARD:
        return pass + st_cost_call(&plan->workload, m, ST_CALL_BLOCK_BACKWARD, op->recompute);
    case ST_OP_HEAD_STATS:
        return st_cost_call(&plan->workload, m, ST_CALL_HEAD_STATS, false);
    case ST_OP_HEAD_GRAD:
        return pass + st_cost_call(&plan->workload, m, ST_CALL_HEAD_GRAD, op->recompute);
    default:
        return pass;
    }
}

static double host_seconds(const struct st_plan *plan, const struct st_machine *m, const struct st_op *op)
{
    switch ((enum st_op_kind)op->kind) {
    case ST_OP_UPDATE:
        return update_seconds(plan, m, op);
    case ST_OP_GATHER_HOST:
        return per_second(gather_bytes(plan), m->checksum);
    case ST_OP_SCATTER_HOST:
        return per_second(scatter_bytes(plan, op), m->checksum);
    case ST_OP_FINISH_HOST:
        return per_second(page_elems(plan, op) * (double)(sizeof(float) + width_of(plan)), m->checksum);
    default:
        return 0;
    }
}

double st_cost_op(const struct st_plan *plan, const struct st_machine *machine, const struct st_op *op)
{
    switch ((enum st_lane)op->lane) {
    case ST_LANE_COMPUTE:
        return compute_seconds(plan, machine, op);
    case ST_LANE_UPDATE:
        return host_seconds(plan, machine, op);
    case ST_LANE_UPDATE_DEVICE:
        return machine->device_is_host ? per_second((double)plan->chunks[op->chunk].elems, machine->update) : 0;
    case ST_LANE_UPLOAD:
        return per_second((double)op->bytes, machine->upload);
    case ST_LANE_DOWNLOAD:
        return per_second((double)op->bytes, machine->download);
    case ST_LANE_READ_STATE:
    case ST_LANE_READ_WEIGHT:
    case ST_LANE_READ_ACTIVATION:
        return per_second((double)op->bytes, machine->read);
    case ST_LANE_WRITE:
        return per_second((double)op->bytes, machine->write);
    default:
        return 0;
    }
}

uint32_t st_cost_read_of(const struct st_plan *plan, const struct st_op *op)
{
    const uint32_t buffer = op->access_count > 0 ? plan->accesses[op->access_first].buffer : ST_NO_BUFFER;

    for (uint32_t i = 0; i < op->wait_count; i++) {
        const struct st_wait *wait = &plan->waits[op->wait_first + i];
        const struct st_op *by = &plan->ops[wait->op];

        if ((by->kind == ST_OP_READ_WEIGHT || by->kind == ST_OP_READ_STATE || by->kind == ST_OP_READ_ACT) && !wait->previous &&
            plan->accesses[by->access_first + 1].buffer == buffer)
            return wait->op;
    }
    return ST_NO_BUFFER;
}

double st_cost_checksums(const struct st_plan *plan, const struct st_machine *machine, const struct st_op *op)
{
    double bytes = 0;

    switch ((enum st_op_kind)op->kind) {
    case ST_OP_UPLOAD_WEIGHT:
    case ST_OP_GATHER_HOST:
        bytes = st_cost_read_of(plan, op) != ST_NO_BUFFER ? page_elems(plan, op) * (double)width_of(plan) : 0;
        break;
    case ST_OP_UPLOAD_ACT:
        bytes = st_cost_read_of(plan, op) != ST_NO_BUFFER ? (double)plan->workload.activation_bytes : 0;
        break;
    case ST_OP_UPLOAD_STATE:
    case ST_OP_DOWNLOAD_STATE:
        bytes = plan->chunks[op->chunk].tier == STRATA_TIER_NVME
                    ? (double)st_plan_state_bytes(plan, plan->chunks[op->chunk].elems)
                    : 0;
        break;
    case ST_OP_DOWNLOAD_WEIGHT:
        bytes = plan->pages[op->page].weight_home == STRATA_TIER_NVME ? page_elems(plan, op) * (double)width_of(plan) : 0;
        break;
    case ST_OP_DOWNLOAD_ACT:
        bytes = plan->activation_tier == STRATA_TIER_NVME ? (double)plan->workload.activation_bytes : 0;
        break;
    default:
        break;
    }
    return per_second(bytes, machine->checksum);
}
