/* recipes/fsdp.c - PyTorch's FSDP as ZeRO's stages: which part of a model a rank keeps is placement, and results do not depend on
 * it.
 *
 * Accelerate's config file and Trainer's arguments have the same keys, with or without fsdp_ before them.
 * Source: FullyShardedDataParallelPlugin in utils/dataclasses.py of accelerate 1.15; _process_fsdp_args() in training_args.py of
 * transformers 5; torch.distributed.fsdp.ShardingStrategy. */
#include "recipes/fsdp_internal.h"

#include "core/base/text.h"

#include <stdio.h>
#include <string.h>

#define FSDP                  "fsdp_config."
#define BOTH(key)             .path = FSDP "fsdp_" key, .aliases = FSDP key
#define VERSION               FSDP "fsdp_version"
#define STRATEGY              FSDP "fsdp_sharding_strategy"
#define RESHARD               FSDP "fsdp_reshard_after_forward"
#define OFFLOAD               FSDP "fsdp_offload_params" /* Accelerate's */
#define CPU_OFFLOAD           FSDP "fsdp_cpu_offload"    /* Trainer's */
#define CPU_TIERS             "true: offload_optimizer and offload_param to cpu; false: the plan decides"
#define CHECKPOINTING         FSDP "fsdp_activation_checkpointing"
#define CHECKPOINTING_OFFLOAD CHECKPOINTING "_offload"
#define WORD_MAX              64

/* Words without effect that are no words of theirs are mistakes there, too. */
#define WORD(text_)                                                                                                              \
    {                                                                                                                            \
        text_, 0, ST_VERDICT_HONOURED                                                                                            \
    }
static const struct st_choice wrap_choices[] = {WORD("TRANSFORMER_BASED_WRAP"), WORD("SIZE_BASED_WRAP"), WORD("NO_WRAP"),
                                                WORD(NULL)};
static const struct st_choice prefetch_choices[] = {
    WORD("BACKWARD_PRE"), WORD("BACKWARD_POST"), WORD("NO_PREFETCH"), WORD("1"), WORD("2"), WORD(NULL)};
static const struct st_choice state_choices[] = {
    WORD("FULL_STATE_DICT"), WORD("LOCAL_STATE_DICT"), WORD("SHARDED_STATE_DICT"), WORD("1"), WORD("2"), WORD("3"), WORD(NULL)};
/* As str_to_bool() there reads them: no before, yes after. */
static const struct st_choice switch_choices[] = {{"false", 0, ST_VERDICT_HONOURED},
                                                  {"no", 0, ST_VERDICT_HONOURED},
                                                  {"n", 0, ST_VERDICT_HONOURED},
                                                  {"f", 0, ST_VERDICT_HONOURED},
                                                  {"off", 0, ST_VERDICT_HONOURED},
                                                  {"0", 0, ST_VERDICT_HONOURED},
                                                  {"true", 1, ST_VERDICT_HONOURED},
                                                  {"yes", 1, ST_VERDICT_HONOURED},
                                                  {"y", 1, ST_VERDICT_HONOURED},
                                                  {"t", 1, ST_VERDICT_HONOURED},
                                                  {"on", 1, ST_VERDICT_HONOURED},
                                                  {"1", 1, ST_VERDICT_HONOURED},
                                                  WORD(NULL)};
#define SPEED(key, more_, words, reason_)                                                                                        \
    {                                                                                                                            \
        .path = FSDP "fsdp_" key, .aliases = FSDP key more_, .type = ST_FIELD_CHOICE, .choices = (words),                        \
        .verdict = ST_VERDICT_NOTICE, .changes = ST_CHANGES_SPEED, .reason = (reason_)                                           \
    }
#define GATHERS "the plan decides when parts are gathered"
#define READ    "weights are always read straight to their tier"

/* clang-format off */
const struct st_field st_recipe_fsdp_rows[ST_RECIPE_FSDP_ROWS] = {
    {.path = "fsdp_config", .type = ST_FIELD_OBJECT, .in_file = true, .help = "FSDP's keys, with or without fsdp_ before them, or a JSON file that has them"},
    {BOTH("version"), .type = ST_FIELD_ANY, .help = "1: the stage is fsdp_sharding_strategy's; 2: fsdp_reshard_after_forward's; left out: 1 of Accelerate, 2 of Trainer"},
    {BOTH("sharding_strategy"), .type = ST_FIELD_ANY,
     .help = "zero_optimization.stage: FULL_SHARD (1) and HYBRID_SHARD (4) 3, SHARD_GRAD_OP (2) and HYBRID_SHARD_ZERO2 (5) 2, NO_SHARD (3) 0; left out: 3"},
    {BOTH("reshard_after_forward"), .type = ST_FIELD_ANY,
     .help = "zero_optimization.stage with fsdp_version 2: true 3, false 2; left out: 3; with fsdp_version 1 no word of it counts, as there"},
    {BOTH("offload_params"), .type = ST_FIELD_BOOL, .help = CPU_TIERS "; Accelerate's"},
    {BOTH("cpu_offload"), .type = ST_FIELD_BOOL, .help = CPU_TIERS "; Trainer's"},
    {BOTH("activation_checkpointing"), .type = ST_FIELD_BOOL, .help = "true: strata.activations recomputed; false: the plan decides"},
    {BOTH("activation_checkpointing_offload"), .type = ST_FIELD_BOOL, .help = "true: activation_checkpointing.cpu_checkpointing"},
    {BOTH("ignored_modules"), .type = ST_FIELD_ANY, .verdict = ST_VERDICT_REJECTED, .reason = "modules that are not shared get no sum of all ranks' gradients there: remove it, all are trained alike here"},
    ST_RECIPE_OFF(FSDP "xla", BOOL, "false", "TPUs are not in this version"),
    SPEED("auto_wrap_policy", "", wrap_choices, ST_RECIPE_FSDP_WRAP),
    ST_RECIPE_SPEED(FSDP "fsdp_transformer_layer_cls_to_wrap", FSDP "transformer_layer_cls_to_wrap " FSDP "fsdp_min_num_params " FSDP "min_num_params", ANY,
                    ST_RECIPE_FSDP_WRAP),
    SPEED("backward_prefetch", "", prefetch_choices, GATHERS),
    SPEED("forward_prefetch", " " FSDP "fsdp_limit_all_gathers " FSDP "limit_all_gathers", switch_choices, GATHERS),
    ST_RECIPE_SPEED(FSDP "fsdp_backward_prefetch_policy", FSDP "backward_prefetch_policy", ANY, GATHERS),
    SPEED("cpu_ram_efficient_loading", " " FSDP "fsdp_sync_module_states " FSDP "sync_module_states " FSDP "fsdp_use_orig_params " FSDP "use_orig_params",
          switch_choices, READ),
    {BOTH("state_dict_type"), .type = ST_FIELD_CHOICE, .choices = state_choices, .verdict = ST_VERDICT_NOTICE, .changes = ST_CHANGES_NEITHER,
     .reason = "the model is always saved whole; checkpoints are read by any number of ranks"},
    ST_RECIPE_NOTICE(FSDP "xla_fsdp_settings", FSDP "xla_fsdp_v2 " FSDP "xla_fsdp_grad_ckpt", ANY, "of TPUs"),
};
/* clang-format on */

bool st_recipe_fsdp_take(struct st_recipe_fsdp *fsdp, const char *word)
{
    static const struct {
        const char *name, *digit;
        int stage;
        bool hybrid;
    } strategies[] = {{"FULL_SHARD", "1", 3, false},        {"SHARD_GRAD_OP", "2", 2, false},
                      {"NO_SHARD", "3", 0, false},          {"HYBRID_SHARD", "4", 3, true},
                      {"HYBRID_SHARD_ZERO2", "5", 2, true}, {"_HYBRID_SHARD_ZERO2", "5", 2, true}}; /* torch's name */

    for (size_t i = 0; i < sizeof(strategies) / sizeof(strategies[0]); i++)
        if (st_text_same(word, strategies[i].name) || strcmp(word, strategies[i].digit) == 0) {
            fsdp->stage = strategies[i].stage;
            fsdp->hybrid = strategies[i].hybrid;
            fsdp->named = true;
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

/* Version 1 goes by its strategy instead, FULL_SHARD where none is named. */
static void resolve_reshard(struct strata_recipe *r, struct st_recipe_fsdp *fsdp)
{
    const char *word = word_of(r, RESHARD);
    const struct st_choice *on = st_choice_find(switch_choices, word);
    struct st_recipe_fsdp named;

    if (!st_recipe_given(r, RESHARD))
        return;
    if (fsdp->version == 1 && fsdp->of_trainer && !st_recipe_fsdp_take(&named, word)) {
        st_recipe_reject(r, RESHARD,
                         st_source_keep(r->src, "must be a name of fsdp_sharding_strategy with version 1, not %s", word));
    } else if (fsdp->version == 1) {
        st_recipe_idle(r, RESHARD, "not used, as there: fsdp_version 1 has fsdp_sharding_strategy");
    } else if (on == NULL) {
        st_recipe_reject(r, RESHARD, st_source_keep(r->src, "must be true or false with fsdp_version 2, not %s", word));
    } else {
        fsdp->stage = on->value == 1 ? 3 : 2;
        fsdp->hybrid = false;
        fsdp->key = RESHARD;
    }
}

static void resolve_strategy(struct strata_recipe *r, struct st_recipe_fsdp *fsdp)
{
    const char *word = word_of(r, STRATEGY);

    if (!st_recipe_given(r, STRATEGY))
        return;
    if (fsdp->of_trainer || fsdp->version == 2) {
        st_recipe_idle(r, STRATEGY,
                       fsdp->of_trainer ? "not used: Trainer has fsdp, and fsdp_config.reshard_after_forward with version 2"
                                        : "not used: fsdp_version 2 has fsdp_reshard_after_forward");
        return;
    }
    if (!st_recipe_fsdp_take(fsdp, word)) {
        st_recipe_reject(
            r, STRATEGY,
            st_source_keep(
                r->src, "must be FULL_SHARD, SHARD_GRAD_OP, NO_SHARD, HYBRID_SHARD, HYBRID_SHARD_ZERO2 or 1 to 5, not %s", word));
        return;
    }
    fsdp->key = STRATEGY;
}

/* Each trainer has one of two keys, which Trainer's word offload yields to. */
static void resolve_offload(struct strata_recipe *r, const struct st_recipe_fsdp *fsdp)
{
    const char *key = fsdp->of_trainer ? CPU_OFFLOAD : OFFLOAD, *other = fsdp->of_trainer ? OFFLOAD : CPU_OFFLOAD;
    const char *asks = st_recipe_given(r, key) ? (st_recipe_on(r, key) ? key : NULL) : fsdp->offload ? "fsdp" : NULL;

    if (st_recipe_given(r, other))
        st_recipe_idle(r, other,
                       fsdp->of_trainer ? "not used, as there: Trainer has cpu_offload"
                                        : "not used, as there: Accelerate has fsdp_offload_params");
    if (asks == NULL)
        return;
    st_recipe_put(r, asks, "zero_optimization.offload_optimizer.device", "\"cpu\"");
    st_recipe_put(r, asks, "zero_optimization.offload_param.device", "\"cpu\"");
}

static void resolve_checkpointing(struct strata_recipe *r, const struct st_recipe_fsdp *fsdp)
{
    if (st_recipe_on(r, CHECKPOINTING))
        st_recipe_put(r, CHECKPOINTING, "strata.activations", "\"recomputed\"");
    if (fsdp->of_trainer && st_recipe_given(r, CHECKPOINTING_OFFLOAD))
        st_recipe_idle(r, CHECKPOINTING_OFFLOAD, "not used, as there: Trainer does not read it");
    else if (st_recipe_on(r, CHECKPOINTING_OFFLOAD) && (fsdp->version != 2 || !st_recipe_on(r, CHECKPOINTING)))
        st_recipe_reject(r, CHECKPOINTING_OFFLOAD, "needs fsdp_version 2 and fsdp_activation_checkpointing true, as there");
    else if (st_recipe_on(r, CHECKPOINTING_OFFLOAD))
        st_recipe_put(r, CHECKPOINTING_OFFLOAD, "activation_checkpointing.cpu_checkpointing", "true");
}

void st_recipe_fsdp(struct strata_recipe *r, struct st_recipe_fsdp fsdp)
{
    resolve_version(r, &fsdp);
    resolve_reshard(r, &fsdp);
    resolve_strategy(r, &fsdp);
    if (fsdp.key == NULL)
        fsdp.key = fsdp.version == 2 ? RESHARD : STRATEGY;
    st_recipe_put(r, fsdp.key, "zero_optimization.stage", "%d", fsdp.stage);
    if (fsdp.hybrid)
        st_recipe_announce(r, fsdp.key, "parts are split over all ranks, not over those of one machine");
    resolve_offload(r, &fsdp);
    resolve_checkpointing(r, &fsdp);
}

void st_recipe_fsdp_leave(struct strata_recipe *r, const char *reason)
{
    for (size_t i = 0; i < ST_RECIPE_FSDP_ROWS; i++)
        if (st_recipe_fsdp_rows[i].type != ST_FIELD_OBJECT && st_recipe_given(r, st_recipe_fsdp_rows[i].path))
            st_recipe_announce(r, st_recipe_fsdp_rows[i].path, reason);
}
