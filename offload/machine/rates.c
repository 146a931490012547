/* offload/machine/rates.c - divides a node among its ranks, and computes how long an amount of work takes at a machine's rates.
 * Pure functions. */
#include "offload/machine/rates.h"

#include "core/base/error.h"
#include "offload/device/device.h"
#include "offload/device/op_traffic.h"

strata_status st_machine_no_bf16(void)
{
    return st_error(STRATA_E_CONFIG,
                    "the GPU has no bf16, which needs compute capability 8.0: set fp16.enabled to true and bf16.enabled to "
                    "false");
}

double st_seconds_at(double amount, double rate)
{
    return rate > 0 ? amount / rate : 0;
}

void st_rates_share(struct st_rates *rates, bool device_is_host, uint32_t ranks)
{
    double *const shared[] = {&rates->read,       &rates->write,        &rates->mixed,       &rates->update,
                              &rates->checksum,   &rates->matmul_flops, &rates->block_flops, &rates->experts_flops,
                              &rates->head_flops, &rates->upload,       &rates->download};
    const size_t beside_device = 5; /* the others are a device's own */

    if (rates->link_node <= 0)
        rates->link_node = rates->upload; /* what peers copy does not pass through one rank's part of the cores */
    for (size_t i = 0; i < (device_is_host ? sizeof(shared) / sizeof(shared[0]) : beside_device); i++)
        *shared[i] /= ranks;
    for (uint32_t i = 0; i < rates->dir_count; i++)
        rates->dir_rates[i] /= ranks;
    rates->node_ranks = ranks;
}

void st_machine_share(struct st_machine *machine, uint32_t ranks)
{
    struct st_capacity *c = &machine->capacity;

    for (int tier = c->device_is_host ? STRATA_TIER_DEVICE : STRATA_TIER_HOST; tier < STRATA_TIER_COUNT; tier++)
        c->bytes[tier] /= ranks;
    c->workers = c->workers > ranks ? c->workers / ranks : 1;
    st_rates_share(&machine->rates, c->device_is_host, ranks);
}

uint32_t st_node_ranks(const struct st_rates *rates, uint32_t ranks)
{
    return rates->node_ranks > 0 && rates->node_ranks < ranks ? rates->node_ranks : ranks;
}

double st_comm_seconds(const struct st_rates *rates, uint32_t ranks, double bytes)
{
    const double here = st_node_ranks(rates, ranks), of_each = ranks > 1 ? bytes / (ranks - 1) : 0;
    const double inside = st_seconds_at(of_each * (here - 1), rates->link_node > 0 ? rates->link_node : rates->upload);
    const double between = st_seconds_at(of_each * (ranks - here) * here, rates->link_nodes);

    return inside > between ? inside : between;
}

double st_comm_latency(const struct st_rates *rates, uint32_t ranks)
{
    const uint32_t here = st_node_ranks(rates, ranks);
    const double inside = here > 1 ? rates->latency_node : 0, between = here < ranks ? rates->latency_nodes : 0;

    return inside > between ? inside : between;
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

double st_call_seconds(const struct st_layer *layer, const struct st_rates *rates, enum st_call_kind kind, bool recompute)
{
    const double block = rates->block_flops > 0 ? rates->block_flops : rates->matmul_flops;
    const double head = rates->head_flops > 0 ? rates->head_flops : block;
    const double experts = rates->experts_flops > 0 ? rates->experts_flops : block;

    if (layer->forward_seconds > 0) /* the backward of a frozen layer may take none */
        return kind == ST_CALL_BLOCK_FORWARD ? layer->forward_seconds : layer->backward_seconds;
    switch (kind) {
    case ST_CALL_BLOCK_FORWARD:
        return st_seconds_at(layer->forward_flops, block);
    case ST_CALL_BLOCK_BACKWARD:
        return st_seconds_at(layer->backward_flops + (recompute ? layer->forward_flops : 0), block);
    case ST_CALL_HEAD_STATS:
        return st_seconds_at(layer->forward_flops / (layer->use_count - 1), head);
    case ST_CALL_HEAD_GRAD:
        return st_seconds_at((layer->backward_flops - (recompute ? 0 : layer->forward_flops)) / (layer->use_count - 1), head);
    case ST_CALL_ROUTE_FORWARD:
        return st_seconds_at(layer->forward_flops, block);
    case ST_CALL_ROUTE_AGAIN:
        return st_seconds_at(recompute ? layer->forward_flops : 0, block);
    case ST_CALL_ROUTE_BACKWARD:
        return st_seconds_at(layer->backward_flops, block);
    case ST_CALL_EXPERTS_FORWARD:
        return st_seconds_at(layer->experts_forward_flops / st_layer_slices(layer), experts);
    case ST_CALL_EXPERTS_BACKWARD:
        return st_seconds_at(layer->experts_backward_flops / st_layer_slices(layer), experts);
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
    case ST_CALL_ROUTE_FORWARD:
    case ST_CALL_EXPERTS_FORWARD:
    case ST_CALL_EXPERTS_BACKWARD:
    case ST_CALL_ROUTE_BACKWARD:
        return 0;
    case ST_CALL_ROUTE_END: /* a sum in fp32, what it is added to, what comes of it */
        return (double)shape.rows * w->hidden * (sizeof(float) + 2.0 * (double)strata_dtype_bytes(w->dtype));
    case ST_CALL_ROUTE_AGAIN: /* a sum is zeroed */
        return (double)shape.rows * w->hidden * sizeof(float);
    }
    return st_op_traffic(&shape).bytes + beside;
}
