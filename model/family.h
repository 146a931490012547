/* model/family.h - the families of models that the one decoder computes: a row each, which layout, decoder, readers and writers
 * of config.json read.
 *
 * A row says what a family's files can express: the names of its tensors, and, as a config without sizes, its fixed options and
 * the values of keys that are absent.  What a block computes follows from options and from which tensors it has, never from the
 * family's name: a norm is there if its weight is, q, k and v are one matrix if k has no name. */
#ifndef MODEL_FAMILY_H
#define MODEL_FAMILY_H

#include "model/model.h"

#define ST_EXPERTS_STACKED  "mlp.experts" /* of all families, in names of stacked experts in a block */
#define ST_GPT2_VOCAB       50257u
#define ST_GPT2_END_OF_TEXT 50256u /* also marks the beginning of a text */

/* The role of a tensor in a block, in list order: matrices (decayed), then norms and biases.  A fused matrix of q, k and v has
 * the role Q; GPT-2's first feed-forward matrix, and a fused matrix of gate and up values, the role GATE.  GATE, UP and DOWN of a
 * sparse block are those of the expert that all tokens go through. */
enum st_block_role {
    ST_ROLE_Q_WEIGHT,
    ST_ROLE_K_WEIGHT,
    ST_ROLE_V_WEIGHT,
    ST_ROLE_PROJ_WEIGHT,
    ST_ROLE_GATE_WEIGHT,
    ST_ROLE_UP_WEIGHT,
    ST_ROLE_DOWN_WEIGHT,
    ST_ROLE_SHARED_GATE_WEIGHT, /* a column: what the shared expert gives is multiplied by its sigmoid */
    ST_ROLE_ROUTER_WEIGHT,
    ST_ROLE_SINKS,        /* of heads: a score beside the keys'.  No matrix, but decayed, as in transformers' Trainer */
    ST_ROLE_NORM1_WEIGHT, /* of attention's input */
    ST_ROLE_NORM1_BIAS,
    ST_ROLE_Q_BIAS,
    ST_ROLE_K_BIAS,
    ST_ROLE_V_BIAS,
    ST_ROLE_Q_NORM, /* of queries and keys, before they are rotated */
    ST_ROLE_K_NORM,
    ST_ROLE_PROJ_BIAS,
    ST_ROLE_POST1_WEIGHT, /* of what attention adds to the residual stream */
    ST_ROLE_NORM2_WEIGHT, /* of the feed-forward's input */
    ST_ROLE_NORM2_BIAS,
    ST_ROLE_GATE_BIAS,
    ST_ROLE_UP_BIAS,
    ST_ROLE_DOWN_BIAS,
    ST_ROLE_ROUTER_BIAS,
    ST_ROLE_POST2_WEIGHT, /* of what the feed-forward adds */
    ST_ROLE_COUNT,
};

/* The tensors of an expert, in list order.  Matrices are [out, in], as the model's others.  Without UP, GATE is both: its columns
 * alternate, matrices are [in, out], files have them in stacks alone, and both have biases. */
enum st_expert_part { ST_EXPERT_GATE, ST_EXPERT_UP, ST_EXPERT_DOWN, ST_EXPERT_GATE_BIAS, ST_EXPERT_DOWN_BIAS, ST_EXPERT_PARTS };

/* How config.json says which layers have the window. */
enum st_window_rule {
    ST_WINDOW_NONE,    /* none; layer_types must agree */
    ST_WINDOW_ALL,     /* sliding_window: every layer, whatever layer_types says */
    ST_WINDOW_FROM,    /* use_sliding_window: layer_types, else the layers from max_window_layers on */
    ST_WINDOW_PERIOD,  /* layer_types, else every layer but each sliding_window_pattern-th */
    ST_WINDOW_NO_ROPE, /* use_sliding_window: layer_types, else the layers that are not rotated */
    ST_WINDOW_SWITCH,  /* use_sliding_window: every layer */
    ST_WINDOW_UNTIL,   /* use_sliding_window: layer_types, else every other layer before max_window_layers */
};

/* Keys of config.json that only some families have. */
enum st_family_key {
    ST_KEY_ATTENTION_BIAS = 1 << 0,
    ST_KEY_MLP_BIAS = 1 << 1,
    ST_KEY_PARTIAL_ROTARY = 1 << 2,
    ST_KEY_SU_IS_LONGROPE = 1 << 3, /* and so is yarn */
    ST_KEY_NO_ROPE_LAYERS = 1 << 4,
    ST_KEY_LAYER_ROPES = 1 << 5,  /* sliding layers have another base; sliding_window_pattern */
    ST_KEY_QUERY_SCALAR = 1 << 6, /* query_pre_attn_scalar, hidden_activation, final_logit_softcapping */
    ST_KEY_SCORE_CAP = 1 << 7,    /* attn_logit_softcapping */
    ST_KEY_AXES = 1 << 8,         /* the rotary type mrope; of no family, but of a text model within another */
    ST_KEY_MOE_FFN = 1 << 9,      /* moe_intermediate_size, decoder_sparse_step, mlp_only_layers */
    ST_KEY_SHARED = 1 << 10,      /* shared_expert_intermediate_size */
    ST_KEY_TOPK_NORM = 1 << 11,   /* norm_topk_prob */
    ST_KEY_JITTER = 1 << 12,      /* router_jitter_noise */
    ST_KEY_QKV_BIAS = 1 << 13,
    ST_KEY_QKV_CLIP = 1 << 14,      /* clip_qkv */
    ST_KEY_GATE_LIMIT = 1 << 15,    /* swiglu_limit, swiglu_alpha; no other activation */
    ST_KEY_LOCAL_EXPERTS = 1 << 16, /* num_local_experts is written, not num_experts */
};

struct st_family {
    const char *model_type, *architecture;
    const char *table, *positions, *block, *norm_weight, *norm_bias, *head; /* a block's tensors follow its number */
    const char *tensors[ST_ROLE_COUNT];                                     /* in a block; NULL: none in this family */
    const char *sparse[ST_ROLE_COUNT]; /* in a sparse block, where it differs; "": not there */
    const char *experts;               /* in a sparse block: experts' tensors follow their number; NULL: no block is sparse */
    const char *expert_tensors[ST_EXPERT_PARTS];
    const char *stacked_router;      /* as files with stacked experts have it; NULL: as others */
    const char *adapter_targets;     /* what has adapters if target_modules is absent, as in PEFT; NULL: it must be there */
    struct st_model_config defaults; /* options, and values of absent keys */
    enum st_window_rule windows;
    uint32_t window_period; /* ST_WINDOW_PERIOD: if neither key is there */
    uint32_t keys;          /* bits of st_family_key */
    uint32_t end_token;     /* in generation, if config.json lacks the key, as in transformers 4; 0: none */
    bool residual_init;     /* projections to the residual stream begin smaller, by sqrt(2 blocks) */
    bool exact_weights;     /* of experts: fp32, not rounded to the run's dtype */
    bool weights_after;     /* of experts: the softmax over those chosen */
    bool experts_joined;    /* PEFT beside transformers 5 takes their linear layers' names for those of their stacks */
};

/* A model of more than text, whose text model is one of a family's.  For text only it computes the same: positions of several
 * axes are all equal then, and masks that images open are causal. */
struct st_wrapper {
    const char *model_type;         /* of its config.json */
    const char *text_type;          /* of its text model's settings, if they say none: that of a family */
    const char *text_alias;         /* what they may say for that family; NULL: nothing else */
    const char *text;               /* in names of tensors in place of the family's "model." */
    const char *older, *older_head; /* the same, and the head's name, in files as transformers writes them */
    float norm_eps, rope_base;      /* of absent keys, where text_alias is another class; 0: the family's */
    uint32_t kv_heads;              /* the same */
    bool needs_base;                /* a base must be there: versions of transformers have different ones for that class */
};

/** The row of a model_type; NULL: none. */
const struct st_wrapper *st_wrapper_named(const char *model_type);

/** The name of one of the family's tensors, which says "model.", in a model. */
void st_model_tensor_name(char out[sizeof(((struct st_tensor *)0)->name)], const struct st_model_config *config,
                          const char *name);

/** A role's name in a block; NULL: the family has no such tensor there. */
const char *st_family_tensor(const struct st_family *family, enum st_block_role role, bool sparse);

/** Whether experts have gate and up in one matrix: see enum st_expert_part. */
static inline bool st_family_is_fused(const struct st_family *family)
{
    return family->experts != NULL && family->expert_tensors[ST_EXPERT_UP] == NULL;
}

/** The row of a family. */
const struct st_family *st_family_of(enum st_model_family family);
/** The family of a model_type; NULL: none. */
const struct st_family *st_family_named(const char *model_type);

#endif
