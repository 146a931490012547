/* advise/case.c - see case.h. */
#include "advise/case.h"
#include "core/base/error.h"
#include "core/base/log.h"

const struct st_machine *st_case_evaluator(const struct st_case *c, const struct st_machine *machine)
{
    return c->rates_known && (!c->machine.capacity.device_is_host || c->given) ? machine : NULL;
}

void st_case_share(struct st_machine *node, const struct st_case *c, uint32_t ranks)
{
    const uint64_t *file = c->file->capacity.bytes, available = st_machine_available(c->topology) / ranks;
    const bool here = c->config->host_memory == ST_AUTO_BYTES && (!c->only_plans || file[STRATA_TIER_HOST] == 0);
    uint64_t *capacity = node->capacity.bytes;

    st_machine_share(node, ranks);
    if (c->config->threads != 0)
        node->capacity.workers = c->config->threads;
    if (c->config->device_memory != ST_AUTO_BYTES)
        capacity[STRATA_TIER_DEVICE] = c->config->device_memory;
    else if (here && node->capacity.device_is_host && file[STRATA_TIER_DEVICE] == 0)
        capacity[STRATA_TIER_DEVICE] = st_machine_device_budget(available);
    if (here)
        capacity[STRATA_TIER_HOST] = st_machine_host_budget(
            available, node->capacity.device_is_host ? capacity[STRATA_TIER_DEVICE] : ST_MACHINE_GPU_BYTES);
}

strata_status st_case_check_heads(const struct st_case *c, const struct st_capacity *capacity)
{
    const strata_dtype dtype = c->config->dtype;
    const uint32_t most = dtype == STRATA_F32 ? 64 : 128, size = c->model != NULL ? st_model_config(c->model)->head_dim : 0;

    if (!capacity->lacks_bf16 || dtype == STRATA_BF16 || c->asked.forward_only || size <= most)
        return STRATA_OK;
    return st_error(STRATA_E_CONFIG, "a GPU without bf16 trains heads of at most %u in %s, and the model's have %u: %s", most,
                    strata_dtype_name(dtype), size,
                    size <= 128 ? "set fp16.enabled to true" : "take one of compute capability 8.0 or later");
}

bool st_case_spans_nodes(const struct st_case *c)
{
    return c->world.local_ranks < c->world.ranks;
}

void st_case_note_network(const struct st_case *c)
{
    if (c->rates_known && !(c->machine.rates.link_nodes > 0))
        st_log(ST_LOG_NOTICE, "the network's rate between nodes is not known: exchanges over it count as no time; give "
                              "link_nodes in the machine file");
}
