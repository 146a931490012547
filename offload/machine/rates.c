/* offload/machine/rates.c - computes how long an amount of work takes at a machine's rates.  Pure functions. */
#include "offload/machine/rates.h"

#include "offload/device/device.h"
#include "offload/device/op_traffic.h"

double st_seconds_at(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

/* A staged copy crosses the same link, so it is never the faster one. */
static double mixed_rate(double rate, double staged, double fraction)
{
    return staged > 0 && staged < rate ? 1 / ((1 - fraction) / rate + fraction / staged) : rate;
}

void st_rates_stage(struct st_rates *rates, uint64_t bytes, const struct st_staged *staged)
{
    const double fraction = bytes > 0 ? (double)staged->bytes / (double)bytes : 0;

    rates->upload = mixed_rate(rates->upload, staged->upload, fraction);
    rates->download = mixed_rate(rates->download, staged->download, fraction);
}

double st_call_seconds(const struct st_workload *w, const struct st_rates *rates, enum st_call_kind kind, bool recompute)
{
    const double block = rates->block_flops > 0 ? rates->block_flops : rates->matmul_flops;
    const double head = rates->head_flops > 0 ? rates->head_flops : block;

    switch (kind) {
    case ST_CALL_BLOCK_FORWARD:
        return st_seconds_at(w->block_forward_flops, block);
    case ST_CALL_BLOCK_BACKWARD:
        return st_seconds_at(w->block_backward_flops + (recompute ? w->block_forward_flops : 0), block);
    case ST_CALL_HEAD_STATS:
        return st_seconds_at(w->head_forward_flops / w->head_count, head);
    case ST_CALL_HEAD_GRAD:
        return st_seconds_at((w->head_backward_flops - (recompute ? 0 : w->head_forward_flops)) / w->head_count, head);
    default:
        return 0;
    }
}

double st_call_bytes(const struct st_workload *w, enum st_call_kind kind)
{
    struct st_op_shape shape = {
        .dt = w->dtype, .other = STRATA_F32, .rows = (uint64_t)w->micro_batch * w->seq, .cols = w->hidden, .positions = w->seq};
    double beside = 0;

    switch (kind) {
    case ST_CALL_EMBED_FORWARD:
        shape.op = ST_DEVICE_EMBED_ADD_POSITION;
        break;
    case ST_CALL_EMBED_BACKWARD:
        shape.op = ST_DEVICE_EMBED_POSITION_BACKWARD;
        break;
    case ST_CALL_HEAD_NORM: /* it also clears the fp32 gradient of the norm's output */
        shape.op = ST_DEVICE_RMSNORM_FORWARD;
        beside = (double)shape.rows * w->hidden * sizeof(float);
        break;
    case ST_CALL_HEAD_LOSS:
        shape.op = ST_DEVICE_XENT_LOSS;
        break;
    case ST_CALL_HEAD_BACKWARD:
        shape.op = ST_DEVICE_RMSNORM_BACKWARD;
        break;
    case ST_CALL_BLOCK_FORWARD:
    case ST_CALL_BLOCK_BACKWARD:
    case ST_CALL_HEAD_STATS:
    case ST_CALL_HEAD_GRAD:
        return 0;
    }
    return st_op_traffic(&shape).bytes + beside;
}
