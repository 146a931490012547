/* model/family.c - the table of families.  Names and defaults: transformers' configuration and model classes. */
#include "model/family.h"
#include <stdio.h>
#include <string.h>

#define LLAMA_END 2u
#define GEMMA_END 1u

/* Names in families whose blocks are named like Llama's. */
#define LLAMA_NAMES                                                                                                              \
    .table = "model.embed_tokens.weight", .block = "model.layers", .norm_weight = "model.norm.weight", .head = "lm_head.weight"
#define LLAMA_TARGETS "q_proj v_proj"
#define LLAMA_ATTENTION                                                                                                          \
    [ST_ROLE_Q_WEIGHT] = "self_attn.q_proj.weight", [ST_ROLE_K_WEIGHT] = "self_attn.k_proj.weight",                              \
    [ST_ROLE_V_WEIGHT] = "self_attn.v_proj.weight", [ST_ROLE_PROJ_WEIGHT] = "self_attn.o_proj.weight",                           \
    [ST_ROLE_Q_BIAS] = "self_attn.q_proj.bias", [ST_ROLE_K_BIAS] = "self_attn.k_proj.bias",                                      \
    [ST_ROLE_V_BIAS] = "self_attn.v_proj.bias", [ST_ROLE_PROJ_BIAS] = "self_attn.o_proj.bias"
#define LLAMA_MLP                                                                                                                \
    [ST_ROLE_GATE_WEIGHT] = "mlp.gate_proj.weight", [ST_ROLE_UP_WEIGHT] = "mlp.up_proj.weight",                                  \
    [ST_ROLE_DOWN_WEIGHT] = "mlp.down_proj.weight", [ST_ROLE_GATE_BIAS] = "mlp.gate_proj.bias",                                  \
    [ST_ROLE_UP_BIAS] = "mlp.up_proj.bias", [ST_ROLE_DOWN_BIAS] = "mlp.down_proj.bias"
#define LLAMA_NORMS   [ST_ROLE_NORM1_WEIGHT] = "input_layernorm.weight", [ST_ROLE_NORM2_WEIGHT] = "post_attention_layernorm.weight"
#define LLAMA_OPTIONS .positions = ST_POSITION_ROTARY, .rope_base = 10000.0f, .out_in = true
#define QK_NORMS      [ST_ROLE_Q_NORM] = "self_attn.q_norm.weight", [ST_ROLE_K_NORM] = "self_attn.k_norm.weight"
#define LLAMA_EXPERTS                                                                                                            \
    .experts = "mlp.experts",                                                                                                    \
    .expert_tensors = {                                                                                                          \
        [ST_EXPERT_GATE] = "gate_proj.weight", [ST_EXPERT_UP] = "up_proj.weight", [ST_EXPERT_DOWN] = "down_proj.weight"}
/* Of a sparse block without an expert that all tokens go through. */
#define NO_MLP [ST_ROLE_GATE_WEIGHT] = "", [ST_ROLE_UP_WEIGHT] = "", [ST_ROLE_DOWN_WEIGHT] = ""
#define GEMMA_NORMS                                                                                                              \
    [ST_ROLE_NORM1_WEIGHT] = "input_layernorm.weight", [ST_ROLE_POST1_WEIGHT] = "post_attention_layernorm.weight",               \
    [ST_ROLE_NORM2_WEIGHT] = "pre_feedforward_layernorm.weight", [ST_ROLE_POST2_WEIGHT] = "post_feedforward_layernorm.weight"
#define GEMMA_OPTIONS                                                                                                            \
    .positions = ST_POSITION_ROTARY, .out_in = true, .norm = ST_NORM_RMSNORM_FROM_1, .activation = ST_ACTIVATION_GEGLU,          \
    .biases = ST_BIAS_NONE, .norm_eps = 1e-6f, .kv_heads = 4, .head_dim = 256, .query_scalar = 256.0f, .embed_scaled = true,     \
    .window = 4096

static const struct st_family families[] = {
    [ST_FAMILY_GPT2] = {.model_type = "gpt2",
                        .architecture = "GPT2LMHeadModel",
                        .table = "transformer.wte.weight",
                        .positions = "transformer.wpe.weight",
                        .block = "transformer.h",
                        .norm_weight = "transformer.ln_f.weight",
                        .norm_bias = "transformer.ln_f.bias",
                        .head = "lm_head.weight",
                        .tensors = {[ST_ROLE_Q_WEIGHT] = "attn.c_attn.weight",
                                    [ST_ROLE_PROJ_WEIGHT] = "attn.c_proj.weight",
                                    [ST_ROLE_GATE_WEIGHT] = "mlp.c_fc.weight",
                                    [ST_ROLE_DOWN_WEIGHT] = "mlp.c_proj.weight",
                                    [ST_ROLE_NORM1_WEIGHT] = "ln_1.weight",
                                    [ST_ROLE_NORM1_BIAS] = "ln_1.bias",
                                    [ST_ROLE_Q_BIAS] = "attn.c_attn.bias",
                                    [ST_ROLE_PROJ_BIAS] = "attn.c_proj.bias",
                                    [ST_ROLE_NORM2_WEIGHT] = "ln_2.weight",
                                    [ST_ROLE_NORM2_BIAS] = "ln_2.bias",
                                    [ST_ROLE_GATE_BIAS] = "mlp.c_fc.bias",
                                    [ST_ROLE_DOWN_BIAS] = "mlp.c_proj.bias"},
                        .defaults = {.family = ST_FAMILY_GPT2, .norm_eps = 1e-5f},
                        .adapter_targets = "c_attn",
                        .end_token = ST_GPT2_END_OF_TEXT,
                        .residual_init = true},
    [ST_FAMILY_LLAMA] = {.model_type = "llama",
                         .architecture = "LlamaForCausalLM",
                         LLAMA_NAMES,
                         .adapter_targets = LLAMA_TARGETS,
                         .tensors = {LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS},
                         .defaults = {.family = ST_FAMILY_LLAMA,
                                      LLAMA_OPTIONS,
                                      .norm = ST_NORM_RMSNORM,
                                      .activation = ST_ACTIVATION_SWIGLU,
                                      .biases = ST_BIAS_NONE,
                                      .norm_eps = 1e-6f,
                                      .untied = true},
                         .keys = ST_KEY_ATTENTION_BIAS | ST_KEY_MLP_BIAS,
                         .end_token = LLAMA_END},
    [ST_FAMILY_QWEN2] = {.model_type = "qwen2",
                         .architecture = "Qwen2ForCausalLM",
                         LLAMA_NAMES,
                         .adapter_targets = LLAMA_TARGETS,
                         .tensors = {LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS},
                         .defaults = {.family = ST_FAMILY_QWEN2,
                                      LLAMA_OPTIONS,
                                      .norm = ST_NORM_RMSNORM,
                                      .activation = ST_ACTIVATION_SWIGLU,
                                      .biases = ST_BIAS_QKV,
                                      .norm_eps = 1e-6f,
                                      .kv_heads = 32,
                                      .window = 4096,
                                      .untied = true},
                         .windows = ST_WINDOW_FROM},
    [ST_FAMILY_MISTRAL] = {.model_type = "mistral",
                           .architecture = "MistralForCausalLM",
                           LLAMA_NAMES,
                           .adapter_targets = LLAMA_TARGETS,
                           .tensors = {LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS},
                           .defaults = {.family = ST_FAMILY_MISTRAL,
                                        LLAMA_OPTIONS,
                                        .norm = ST_NORM_RMSNORM,
                                        .activation = ST_ACTIVATION_SWIGLU,
                                        .biases = ST_BIAS_NONE,
                                        .norm_eps = 1e-6f,
                                        .kv_heads = 8,
                                        .window = 4096,
                                        .untied = true},
                           .windows = ST_WINDOW_ALL,
                           .end_token = LLAMA_END},
    [ST_FAMILY_QWEN3] = {.model_type = "qwen3",
                         .architecture = "Qwen3ForCausalLM",
                         LLAMA_NAMES,
                         .adapter_targets = LLAMA_TARGETS,
                         .tensors = {LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS, QK_NORMS},
                         .defaults = {.family = ST_FAMILY_QWEN3,
                                      LLAMA_OPTIONS,
                                      .norm = ST_NORM_RMSNORM,
                                      .qk_norm = ST_QK_NORM_HEAD,
                                      .activation = ST_ACTIVATION_SWIGLU,
                                      .biases = ST_BIAS_NONE,
                                      .norm_eps = 1e-6f,
                                      .kv_heads = 32,
                                      .head_dim = 128,
                                      .window = 4096,
                                      .untied = true},
                         .windows = ST_WINDOW_FROM,
                         .keys = ST_KEY_ATTENTION_BIAS},
    [ST_FAMILY_SMOLLM3] = {.model_type = "smollm3",
                           .architecture = "SmolLM3ForCausalLM",
                           LLAMA_NAMES,
                           .tensors = {LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS},
                           .defaults = {.family = ST_FAMILY_SMOLLM3,
                                        .norm = ST_NORM_RMSNORM,
                                        .activation = ST_ACTIVATION_SWIGLU,
                                        .positions = ST_POSITION_ROTARY,
                                        .biases = ST_BIAS_NONE,
                                        .out_in = true,
                                        .norm_eps = 1e-6f,
                                        .rope_base = 2000000.0f,
                                        .kv_heads = 4},
                           .windows = ST_WINDOW_NO_ROPE,
                           .keys = ST_KEY_ATTENTION_BIAS | ST_KEY_MLP_BIAS | ST_KEY_NO_ROPE_LAYERS,
                           .end_token = 128001},
    [ST_FAMILY_PHI3] =
        {.model_type = "phi3",
         .architecture = "Phi3ForCausalLM",
         LLAMA_NAMES,
         .tensors =
             {LLAMA_NORMS, [ST_ROLE_Q_WEIGHT] = "self_attn.qkv_proj.weight", [ST_ROLE_PROJ_WEIGHT] = "self_attn.o_proj.weight",
              [ST_ROLE_GATE_WEIGHT] = "mlp.gate_up_proj.weight", [ST_ROLE_DOWN_WEIGHT] = "mlp.down_proj.weight"},
         .defaults = {.family = ST_FAMILY_PHI3,
                      LLAMA_OPTIONS,
                      .norm = ST_NORM_RMSNORM,
                      .activation = ST_ACTIVATION_SWIGLU,
                      .biases = ST_BIAS_NONE,
                      .norm_eps = 1e-5f,
                      .rope_original = 4096,
                      .untied = true},
         .windows = ST_WINDOW_ALL,
         .keys = ST_KEY_PARTIAL_ROTARY | ST_KEY_SU_IS_LONGROPE,
         .end_token = 32000},
    [ST_FAMILY_GEMMA2] =
        {.model_type = "gemma2",
         .architecture = "Gemma2ForCausalLM",
         LLAMA_NAMES,
         .adapter_targets = LLAMA_TARGETS,
         .tensors = {LLAMA_ATTENTION, LLAMA_MLP, GEMMA_NORMS},
         .defaults = {.family = ST_FAMILY_GEMMA2, GEMMA_OPTIONS, .rope_base = 10000.0f, .score_cap = 50.0f, .logit_cap = 30.0f},
         .windows = ST_WINDOW_PERIOD,
         .window_period = 2,
         .keys = ST_KEY_ATTENTION_BIAS | ST_KEY_QUERY_SCALAR | ST_KEY_SCORE_CAP,
         .end_token = GEMMA_END},
    [ST_FAMILY_GEMMA3] = {.model_type = "gemma3_text",
                          .architecture = "Gemma3ForCausalLM",
                          LLAMA_NAMES,
                          .adapter_targets = LLAMA_TARGETS,
                          .tensors = {LLAMA_ATTENTION, LLAMA_MLP, GEMMA_NORMS, QK_NORMS},
                          .defaults = {.family = ST_FAMILY_GEMMA3,
                                       GEMMA_OPTIONS,
                                       .qk_norm = ST_QK_NORM_HEAD,
                                       .rope_base = 1000000.0f,
                                       .rope_local_base = 10000.0f},
                          .windows = ST_WINDOW_PERIOD,
                          .window_period = 6,
                          .keys = ST_KEY_ATTENTION_BIAS | ST_KEY_QUERY_SCALAR | ST_KEY_LAYER_ROPES,
                          .end_token = GEMMA_END},
    [ST_FAMILY_OLMO2] = {.model_type = "olmo2",
                         .architecture = "Olmo2ForCausalLM",
                         LLAMA_NAMES,
                         .tensors = {LLAMA_ATTENTION, LLAMA_MLP,
                                     QK_NORMS, [ST_ROLE_POST1_WEIGHT] = "post_attention_layernorm.weight",
                                     [ST_ROLE_POST2_WEIGHT] = "post_feedforward_layernorm.weight"},
                         .defaults = {.family = ST_FAMILY_OLMO2,
                                      LLAMA_OPTIONS,
                                      .norm = ST_NORM_RMSNORM,
                                      .qk_norm = ST_QK_NORM_ALL,
                                      .activation = ST_ACTIVATION_SWIGLU,
                                      .biases = ST_BIAS_NONE,
                                      .norm_eps = 1e-5f,
                                      .untied = true},
                         .keys = ST_KEY_ATTENTION_BIAS,
                         .end_token = 50279},
    [ST_FAMILY_QWEN2_MOE] = {.model_type = "qwen2_moe",
                             .architecture = "Qwen2MoeForCausalLM",
                             LLAMA_NAMES,
                             LLAMA_EXPERTS,
                             .tensors = {LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS},
                             .sparse = {[ST_ROLE_GATE_WEIGHT] = "mlp.shared_expert.gate_proj.weight",
                                        [ST_ROLE_UP_WEIGHT] = "mlp.shared_expert.up_proj.weight",
                                        [ST_ROLE_DOWN_WEIGHT] = "mlp.shared_expert.down_proj.weight",
                                        [ST_ROLE_SHARED_GATE_WEIGHT] = "mlp.shared_expert_gate.weight",
                                        [ST_ROLE_ROUTER_WEIGHT] = "mlp.gate.weight"},
                             .defaults = {.family = ST_FAMILY_QWEN2_MOE,
                                          LLAMA_OPTIONS,
                                          .norm = ST_NORM_RMSNORM,
                                          .activation = ST_ACTIVATION_SWIGLU,
                                          .biases = ST_BIAS_QKV,
                                          .norm_eps = 1e-6f,
                                          .kv_heads = 16,
                                          .window = 4096,
                                          .untied = true,
                                          .experts = 60,
                                          .experts_chosen = 4,
                                          .expert_ffn = 1408,
                                          .shared_ffn = 5632,
                                          .aux_loss_coef = 0.001f},
                             .windows = ST_WINDOW_UNTIL,
                             .keys = ST_KEY_MOE_FFN | ST_KEY_SHARED | ST_KEY_TOPK_NORM | ST_KEY_QKV_BIAS},
    [ST_FAMILY_QWEN3_MOE] = {.model_type = "qwen3_moe",
                             .architecture = "Qwen3MoeForCausalLM",
                             LLAMA_NAMES,
                             LLAMA_EXPERTS,
                             .tensors = {LLAMA_ATTENTION, LLAMA_MLP, LLAMA_NORMS, QK_NORMS},
                             .sparse = {NO_MLP, [ST_ROLE_ROUTER_WEIGHT] = "mlp.gate.weight"},
                             .defaults = {.family = ST_FAMILY_QWEN3_MOE,
                                          LLAMA_OPTIONS,
                                          .norm = ST_NORM_RMSNORM,
                                          .qk_norm = ST_QK_NORM_HEAD,
                                          .activation = ST_ACTIVATION_SWIGLU,
                                          .biases = ST_BIAS_NONE,
                                          .norm_eps = 1e-6f,
                                          .kv_heads = 4,
                                          .window = 4096,
                                          .untied = true,
                                          .experts = 128,
                                          .experts_chosen = 8,
                                          .expert_ffn = 768,
                                          .aux_loss_coef = 0.001f},
                             .windows = ST_WINDOW_SWITCH,
                             .keys = ST_KEY_ATTENTION_BIAS | ST_KEY_MOE_FFN | ST_KEY_TOPK_NORM,
                             .experts_joined = true},
    [ST_FAMILY_OLMOE] = {.model_type = "olmoe",
                         .architecture = "OlmoeForCausalLM",
                         LLAMA_NAMES,
                         LLAMA_EXPERTS,
                         .tensors = {LLAMA_ATTENTION, LLAMA_NORMS, QK_NORMS},
                         .sparse = {[ST_ROLE_ROUTER_WEIGHT] = "mlp.gate.weight"},
                         .defaults = {.family = ST_FAMILY_OLMOE,
                                      LLAMA_OPTIONS,
                                      .norm = ST_NORM_RMSNORM,
                                      .qk_norm = ST_QK_NORM_ALL,
                                      .activation = ST_ACTIVATION_SWIGLU,
                                      .biases = ST_BIAS_NONE,
                                      .norm_eps = 1e-5f,
                                      .untied = true,
                                      .experts = 64,
                                      .experts_chosen = 8,
                                      .aux_loss_coef = 0.01f},
                         .keys = ST_KEY_ATTENTION_BIAS | ST_KEY_TOPK_NORM | ST_KEY_QKV_CLIP,
                         .end_token = 50279,
                         .experts_joined = true},
    [ST_FAMILY_MIXTRAL] =
        {.model_type = "mixtral",
         .architecture = "MixtralForCausalLM",
         LLAMA_NAMES,
         .experts = "block_sparse_moe.experts",
         .expert_tensors = {[ST_EXPERT_GATE] = "w1.weight", [ST_EXPERT_UP] = "w3.weight", [ST_EXPERT_DOWN] = "w2.weight"},
         .stacked_router = "mlp.gate.weight",
         .adapter_targets = LLAMA_TARGETS,
         .tensors = {LLAMA_ATTENTION, LLAMA_NORMS},
         .sparse = {[ST_ROLE_ROUTER_WEIGHT] = "block_sparse_moe.gate.weight"},
         .defaults = {.family = ST_FAMILY_MIXTRAL,
                      .positions = ST_POSITION_ROTARY,
                      .rope_base = 1000000.0f,
                      .out_in = true,
                      .norm = ST_NORM_RMSNORM,
                      .activation = ST_ACTIVATION_SWIGLU,
                      .biases = ST_BIAS_NONE,
                      .norm_eps = 1e-5f,
                      .kv_heads = 8,
                      .untied = true,
                      .experts = 8,
                      .experts_chosen = 2,
                      .experts_divided = true,
                      .aux_loss_coef = 0.001f},
         .windows = ST_WINDOW_ALL,
         .keys = ST_KEY_JITTER | ST_KEY_LOCAL_EXPERTS,
         .end_token = LLAMA_END,
         .exact_weights = true,
         .experts_joined = true},
    [ST_FAMILY_GPT_OSS] = {.model_type = "gpt_oss",
                           .architecture = "GptOssForCausalLM",
                           LLAMA_NAMES,
                           .experts = "mlp.experts",
                           .expert_tensors = {[ST_EXPERT_GATE] = "gate_up_proj",
                                              [ST_EXPERT_DOWN] = "down_proj",
                                              [ST_EXPERT_GATE_BIAS] = "gate_up_proj_bias",
                                              [ST_EXPERT_DOWN_BIAS] = "down_proj_bias"},
                           .tensors = {LLAMA_ATTENTION, LLAMA_NORMS, [ST_ROLE_SINKS] = "self_attn.sinks"},
                           .sparse = {[ST_ROLE_ROUTER_WEIGHT] = "mlp.router.weight", [ST_ROLE_ROUTER_BIAS] = "mlp.router.bias"},
                           .defaults = {.family = ST_FAMILY_GPT_OSS,
                                        .positions = ST_POSITION_ROTARY,
                                        .rope_type = ST_ROPE_YARN,
                                        .rope_base = 150000.0f,
                                        .rope_factor = 32.0f,
                                        .rope_low = 1.0f,
                                        .rope_high = 32.0f,
                                        .rope_original = 4096,
                                        .rope_attention = 1.3465735902799727f, /* 0.1 log 32 + 1 */
                                        .out_in = true,
                                        .norm = ST_NORM_RMSNORM,
                                        .activation = ST_ACTIVATION_SWIGLU,
                                        .biases = ST_BIAS_ATTENTION,
                                        .norm_eps = 1e-5f,
                                        .kv_heads = 8,
                                        .head_dim = 64,
                                        .window = 128,
                                        .untied = true,
                                        .stacked = true,
                                        .experts = 128,
                                        .experts_chosen = 4,
                                        .gate_alpha = 1.702f,
                                        .gate_limit = 7.0f,
                                        .aux_loss_coef = 0.001f},
                           .windows = ST_WINDOW_PERIOD,
                           .window_period = 2,
                           .keys = ST_KEY_ATTENTION_BIAS | ST_KEY_GATE_LIMIT | ST_KEY_LOCAL_EXPERTS,
                           .weights_after = true},
};
#define FAMILY_COUNT (sizeof(families) / sizeof(families[0]))

const char *st_model_family_name(enum st_model_family family)
{
    return st_family_of(family)->model_type;
}

const char *st_family_tensor(const struct st_family *family, enum st_block_role role, bool sparse)
{
    const char *own = sparse ? family->sparse[role] : NULL;

    if (own != NULL)
        return own[0] != '\0' ? own : NULL;
    return family->tensors[role];
}

const struct st_family *st_family_of(enum st_model_family family)
{
    return &families[family];
}

const struct st_family *st_family_named(const char *model_type)
{
    for (size_t i = 0; i < FAMILY_COUNT; i++) {
        if (strcmp(model_type, families[i].model_type) == 0)
            return &families[i];
    }
    return NULL;
}

/* --- models of more than text --- */

#define IN_LANGUAGE_MODEL                                                                                                        \
    .text = "model.language_model.", .older = "language_model.model.", .older_head = "language_model.lm_head.weight"
#define IN_TEXT_MODEL .text = "model.text_model.", .older = "model.text_model.", .older_head = "lm_head.weight"
#define BESIDE_VISUAL .text = "model.language_model.", .older = "model.", .older_head = "lm_head.weight"

static const struct st_wrapper wrappers[] = {
    {.model_type = "gemma3", .text_type = "gemma3_text", IN_LANGUAGE_MODEL},
    {.model_type = "llava", .text_type = "llama", IN_LANGUAGE_MODEL},
    {.model_type = "llava_next", .text_type = "llama", IN_LANGUAGE_MODEL},
    {.model_type = "llava_next_video", .text_type = "llama", IN_LANGUAGE_MODEL},
    {.model_type = "llava_onevision", .text_type = "qwen2", IN_LANGUAGE_MODEL},
    {.model_type = "vipllava", .text_type = "llama", IN_LANGUAGE_MODEL},
    {.model_type = "got_ocr2", .text_type = "qwen2", IN_LANGUAGE_MODEL},
    {.model_type = "internvl", .text_type = "qwen2", IN_LANGUAGE_MODEL},
    {.model_type = "mistral3", .text_type = "mistral", IN_LANGUAGE_MODEL},
    {.model_type = "idefics3", .text_type = "llama", IN_TEXT_MODEL},
    {.model_type = "smolvlm", .text_type = "llama", IN_TEXT_MODEL},
    {.model_type = "qwen2_vl",
     .text_type = "qwen2",
     .text_alias = "qwen2_vl_text",
     BESIDE_VISUAL,
     .norm_eps = 1e-5f,
     .rope_base = 1000000.0f,
     .kv_heads = 8},
    {.model_type = "qwen2_5_vl",
     .text_type = "qwen2",
     .text_alias = "qwen2_5_vl_text",
     BESIDE_VISUAL,
     .norm_eps = 1e-5f,
     .rope_base = 1000000.0f,
     .kv_heads = 8},
    {.model_type = "qwen3_vl",
     .text_type = "qwen3",
     .text_alias = "qwen3_vl_text",
     .text = "model.language_model.",
     .older = "model.language_model.",
     .older_head = "lm_head.weight",
     .needs_base = true},
};

const struct st_wrapper *st_wrapper_named(const char *model_type)
{
    for (size_t i = 0; i < sizeof(wrappers) / sizeof(wrappers[0]); i++)
        if (strcmp(model_type, wrappers[i].model_type) == 0)
            return &wrappers[i];
    return NULL;
}

void st_model_tensor_name(char out[sizeof(((struct st_tensor *)0)->name)], const struct st_model_config *config, const char *name)
{
    static const char whole[] = "model.";
    const bool within = config->wrapper != NULL && strncmp(name, whole, sizeof(whole) - 1) == 0;

    snprintf(out, sizeof(((struct st_tensor *)0)->name), "%s%s", within ? config->wrapper->text : "",
             within ? name + sizeof(whole) - 1 : name);
}
