/* config_options.c - see config_options.h. */
#include "offload/config/config_options.h"

#include <math.h>

#define NS_PER_SECOND UINT64_C(1000000000)

static uint32_t ranks_of(const struct st_config *config)
{
    const uint32_t own = config->micro_batch * config->grad_accum;

    return own > 0 && config->train_batch > own ? config->train_batch / own : 1;
}

void st_config_policy(struct st_policy *policy, const struct st_config *config)
{
    *policy = (struct st_policy){
        .param_tier = config->param_tier,
        .optimizer_tier = config->optimizer_tier,
        .activation_tier = config->activation_tier,
        .activations = config->activations,
        .update = config->update == ST_UPDATE_SPECULATIVE ? ST_UPDATE_GATED : config->update,
        .early = config->update == ST_UPDATE_SPECULATIVE                         ? ST_EARLY_AUTO
                 : config->update == ST_UPDATE_AUTO && !isnan(config->clip_rate) ? ST_EARLY_OFFERED
                                                                                 : 0,
        .clip_rate = isnan(config->clip_rate) ? 0 : config->clip_rate,
        .accumulation = config->accumulation,
        .wire = config->wire,
        .leaves = config->leaves / ranks_of(config),
        .needs_norm = config->gradient_clipping > 0 || config->dtype == STRATA_F16 ||
                      (config->dtype == STRATA_BF16 && config->check_grad_overflow),
        .streamed =
            isnan(config->update_ratio) ? ST_STREAMED_AUTO : (uint32_t)lround((1 - config->update_ratio) * ST_STREAMED_PARTS),
        .cache = config->cache,
        .moments = st_rule_moments(st_rule_of(config->optimizer.type)),
        .moment_format = config->moments,
        .chunk_elems = config->chunk_size == ST_AUTO_BYTES ? 0 : config->chunk_size,
        .chunk_most = config->sub_group_size,
        .sets = config->save[0] != '\0' ? st_sets_of_keep(config->keep + config->keep_best) : 0,
        .keep = config->keep,
        .keep_best = config->keep_best,
    };
}

bool st_config_uses_nvme(const struct st_config *config)
{
    return config->optimizer_tier == STRATA_TIER_NVME || config->param_tier == STRATA_TIER_NVME ||
           config->activation_tier == STRATA_TIER_NVME;
}

/* Without a tier on NVMe what is saved lies in the directory of the checkpoints. */
static struct st_nvme_opts nvme_opts(const struct st_config *config)
{
    struct st_nvme_opts nvme = {.dir_count = config->nvme_dir_count,
                                .method = config->io_method,
                                .block_bytes = config->block_bytes,
                                .queue_depth = config->queue_depth,
                                .patience = {.deadline_ns = config->io_deadline * NS_PER_SECOND},
                                .fake_bytes_per_second = config->io_limit};

    for (uint32_t i = 0; i < config->nvme_dir_count; i++)
        nvme.dirs[i] = config->nvme_dirs[i];
    if (config->save[0] != '\0' && !st_config_uses_nvme(config)) {
        nvme.dirs[0] = config->save;
        nvme.dir_count = 1;
    }
    return nvme;
}

void st_config_engine_opts(struct st_engine_opts *opts, const struct st_config *config)
{
    *opts = (struct st_engine_opts){
        .training = {.optimizer = config->optimizer,
                     .scaling = config->scaling,
                     .clip_norm = config->gradient_clipping,
                     .skip_overflow = config->check_grad_overflow,
                     .max_skipped = config->max_skipped},
        .isa = config->isa,
        .fetch = config->update_fetch,
        .threads = config->threads,
        .upload_limit = (double)config->upload_limit,
        .download_limit = (double)config->download_limit,
        .device_deadline_ns = config->device_deadline * NS_PER_SECOND,
        .nvme = nvme_opts(config),
    };
}

void st_config_machine_opts(struct st_machine_opts *opts, const struct st_config *config)
{
    *opts = (struct st_machine_opts){
        .device_memory = config->device_memory,
        .host_memory = config->host_memory,
        .threads = config->threads,
        .isa = config->isa,
        .fetch = config->update_fetch,
        .rule = st_rule_of(config->optimizer.type),
        .moments = config->moments,
        .device_deadline_ns = config->device_deadline * NS_PER_SECOND,
        .nvme = nvme_opts(config),
    };
}

void st_config_set_rates(const struct st_config *config, struct st_engine *engine)
{
    const uint64_t step = st_engine_steps(engine) + 1;
    double beta1, beta2;

    st_betas_at(&config->schedule, &config->optimizer, step, &beta1, &beta2);
    st_engine_set_lr(engine, st_lr_at(&config->schedule, &config->optimizer, step));
    st_engine_set_betas(engine, beta1, beta2);
}
