/* recipe_fsdp.c - PyTorch's FSDP as ZeRO's stages: which part of a model a rank keeps is placement, and results do not depend on
 * it.
 *
 * Accelerate's config file and Trainer's arguments have the same keys, with or without fsdp_ before them.
 * Source: FullyShardedDataParallelPlugin in utils/dataclasses.py of accelerate 1.15; _process_fsdp_args() in training_args.py of
 * transformers 5; torch.distributed.fsdp.ShardingStrategy. */
#include "offload/config/recipe_fsdp_internal.h"

#include "core/base/text.h"

#include <stdio.h>
#include <string.h>

#define FSDP          "fsdp_config."
#define BOTH(key)     .path = FSDP "fsdp_" key, .aliases = FSDP key
#define VERSION       FSDP "fsdp_version"
#define STRATEGY      FSDP "fsdp_sharding_strategy"
#define RESHARD       FSDP "fsdp_reshard_after_forward"
#define OFFLOAD       FSDP "fsdp_offload_params"
#define CHECKPOINTING FSDP "fsdp_activation_checkpointing"
#define WORD_MAX      64

/* clang-format off */
const struct st_field st_recipe_fsdp_rows[ST_RECIPE_FSDP_ROWS] = {
    {.path = "fsdp_config", .type = ST_FIELD_OBJECT, .in_file = true, .help = "FSDP's keys, with or without fsdp_ before them, or a JSON file that has them"},
    {BOTH("version"), .type = ST_FIELD_ANY, .help = "1: the stage is fsdp_sharding_strategy's; 2: fsdp_reshard_after_forward's"},
    {BOTH("sharding_strategy"), .type = ST_FIELD_ANY,
     .help = "zero_optimization.stage: FULL_SHARD (1) and HYBRID_SHARD (4) 3, SHARD_GRAD_OP (2) and HYBRID_SHARD_ZERO2 (5) 2, NO_SHARD (3) 0; left out: 3"},
    {BOTH("reshard_after_forward"), .type = ST_FIELD_ANY,
     .help = "zero_optimization.stage: true 3, false 2, or as fsdp_sharding_strategy; left out: 3"},
    {.path = FSDP "fsdp_offload_params", .aliases = FSDP "offload_params " FSDP "fsdp_cpu_offload " FSDP "cpu_offload", .type = ST_FIELD_BOOL,
     .help = "true: offload_optimizer and offload_param to cpu; false: the plan decides"},
    {BOTH("activation_checkpointing"), .type = ST_FIELD_BOOL, .help = "true: strata.activations recomputed; false: the plan decides"},
    {BOTH("activation_checkpointing_offload"), .type = ST_FIELD_BOOL, .help = "true: activation_checkpointing.cpu_checkpointing"},
    {BOTH("ignored_modules"), .type = ST_FIELD_ANY, .verdict = ST_VERDICT_REJECTED, .reason = "modules that are not shared get no sum of all ranks' gradients there: remove it, all are trained alike here"},
    ST_RECIPE_OFF(FSDP "xla", BOOL, "false", "TPUs are not in this version"),
    ST_RECIPE_SPEED(FSDP "fsdp_auto_wrap_policy", FSDP "auto_wrap_policy " FSDP "fsdp_transformer_layer_cls_to_wrap " FSDP "transformer_layer_cls_to_wrap "
                     FSDP "fsdp_min_num_params " FSDP "min_num_params", ANY, ST_RECIPE_FSDP_WRAP),
    ST_RECIPE_SPEED(FSDP "fsdp_backward_prefetch", FSDP "backward_prefetch " FSDP "fsdp_backward_prefetch_policy " FSDP "backward_prefetch_policy "
                     FSDP "fsdp_forward_prefetch " FSDP "forward_prefetch " FSDP "fsdp_limit_all_gathers " FSDP "limit_all_gathers", ANY,
                     "the plan decides when parts are gathered"),
    ST_RECIPE_SPEED(FSDP "fsdp_cpu_ram_efficient_loading", FSDP "cpu_ram_efficient_loading " FSDP "fsdp_sync_module_states " FSDP "sync_module_states "
                     FSDP "fsdp_use_orig_params " FSDP "use_orig_params", ANY, "weights are always read straight to their tier"),
    ST_RECIPE_NOTICE(FSDP "fsdp_state_dict_type", FSDP "state_dict_type", ANY, "the model is always saved whole; checkpoints are read by any number of ranks"),
    ST_RECIPE_NOTICE(FSDP "xla_fsdp_settings", FSDP "xla_fsdp_v2 " FSDP "xla_fsdp_grad_ckpt", ANY, "of TPUs"),
};
/* clang-format on */

bool st_recipe_fsdp_take(struct st_recipe_fsdp *fsdp, const char *word)
{
    static const struct {
        const char *name, *digit;
        int stage;
        bool hybrid;
    } strategies[] = {{"FULL_SHARD", "1", 3, false},
                      {"SHARD_GRAD_OP", "2", 2, false},
                      {"NO_SHARD", "3", 0, false},
                      {"HYBRID_SHARD", "4", 3, true},
                      {"HYBRID_SHARD_ZERO2", "5", 2, true}};

    for (size_t i = 0; i < sizeof(strategies) / sizeof(strategies[0]); i++)
        if (st_text_same(word, strategies[i].name) || strcmp(word, strategies[i].digit) == 0) {
            fsdp->stage = strategies[i].stage;
            fsdp->hybrid = strategies[i].hybrid;
            return true;
        }
    return false;
}

/* A value as text, kept; "": there is none. */
static const char *word_of(struct strata_recipe *r, const char *key)
{
    const st_json *node = st_recipe_node(r, key);
    char word[WORD_MAX] = "";

    if (node != NULL)
        st_value_show(word, sizeof(word), node);
    return st_source_keep(r->src, "%s", word);
}

static void resolve_version(struct strata_recipe *r, struct st_recipe_fsdp *fsdp)
{
    const char *word = word_of(r, VERSION);

    if (strcmp(word, "1") == 0 || strcmp(word, "2") == 0)
        fsdp->version = word[0] - '0';
    else if (st_recipe_given(r, VERSION))
        st_recipe_reject(r, VERSION, st_source_keep(r->src, "must be 1 or 2, not %s", word));
}

static void resolve_reshard(struct strata_recipe *r, struct st_recipe_fsdp *fsdp)
{
    const char *word = word_of(r, RESHARD);
    const bool on = st_text_same(word, "true"), is_switch = on || st_text_same(word, "false");

    if (!st_recipe_given(r, RESHARD))
        return;
    if (is_switch && fsdp->version == 1) {
        st_recipe_note(r, RESHARD, "not used: true and false are fsdp_version 2's; 1 has fsdp_sharding_strategy");
        return;
    }
    if (is_switch) {
        fsdp->stage = on ? 3 : 2;
        fsdp->hybrid = false;
    } else if (!st_recipe_fsdp_take(fsdp, word)) {
        st_recipe_reject(r, RESHARD, st_source_keep(r->src, "must be true, false or a name of %s, not %s", STRATEGY, word));
        return;
    }
    fsdp->key = RESHARD;
}

static void resolve_strategy(struct strata_recipe *r, struct st_recipe_fsdp *fsdp)
{
    const char *word = word_of(r, STRATEGY);

    if (!st_recipe_given(r, STRATEGY))
        return;
    if (fsdp->version == 2) {
        st_recipe_note(r, STRATEGY, "not used: fsdp_version 2 has fsdp_reshard_after_forward");
        return;
    }
    if (!st_recipe_fsdp_take(fsdp, word)) {
        st_recipe_reject(
            r, STRATEGY,
            st_source_keep(
                r->src, "must be FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2 or 1 to 5, not %s", word));
        return;
    }
    if (fsdp->key != NULL && strcmp(fsdp->key, RESHARD) == 0)
        st_recipe_note(r, RESHARD, "not used: fsdp_sharding_strategy counts");
    fsdp->key = STRATEGY;
}

void st_recipe_fsdp(struct strata_recipe *r, struct st_recipe_fsdp fsdp)
{
    const char *offload = st_recipe_on(r, OFFLOAD) ? OFFLOAD : fsdp.offload ? fsdp.key : NULL;

    resolve_version(r, &fsdp);
    resolve_reshard(r, &fsdp);
    resolve_strategy(r, &fsdp);
    if (fsdp.key == NULL)
        fsdp.key = fsdp.version == 2 ? RESHARD : STRATEGY;
    st_recipe_put(r, fsdp.key, "zero_optimization.stage", "%d", fsdp.stage);
    if (fsdp.hybrid)
        st_recipe_announce(r, fsdp.key, "parts are split over all ranks, not over those of one machine");
    if (offload != NULL) {
        st_recipe_put(r, offload, "zero_optimization.offload_optimizer.device", "\"cpu\"");
        st_recipe_put(r, offload, "zero_optimization.offload_param.device", "\"cpu\"");
    }
    if (st_recipe_on(r, CHECKPOINTING))
        st_recipe_put(r, CHECKPOINTING, "strata.activations", "\"recomputed\"");
    if (st_recipe_on(r, CHECKPOINTING "_offload"))
        st_recipe_put(r, CHECKPOINTING "_offload", "activation_checkpointing.cpu_checkpointing", "true");
}

void st_recipe_fsdp_leave(struct strata_recipe *r, const char *reason)
{
    for (size_t i = 0; i < ST_RECIPE_FSDP_ROWS; i++)
        if (st_recipe_fsdp_rows[i].type != ST_FIELD_OBJECT && st_recipe_given(r, st_recipe_fsdp_rows[i].path))
            st_recipe_announce(r, st_recipe_fsdp_rows[i].path, reason);
}
