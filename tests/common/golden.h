/* tests/common/golden.h - directories with a tiny model and what PyTorch computes with it.  tools/make_golden.py made those of
 * GOLDEN_TORCH, tools/make_golden_families.py, by transformers, the others. */
#ifndef TESTS_COMMON_GOLDEN_H
#define TESTS_COMMON_GOLDEN_H

#define GOLDEN_TORCH "tests/golden/gpt2_tiny", "tests/golden/llama_tiny_tied", "tests/golden/llama_tiny_untied"
#define GOLDEN_FAMILIES                                                                                                          \
    "tests/golden/families/gpt2_exact", "tests/golden/families/llama_linear", "tests/golden/families/mistral_window",            \
        "tests/golden/families/qwen2_layers", "tests/golden/families/qwen3_bias", "tests/golden/families/smollm3_yarn",          \
        "tests/golden/families/phi3_long", "tests/golden/families/gemma2_caps", "tests/golden/families/gemma3_local",            \
        "tests/golden/families/olmo2"
/* Models with experts, by the same tool. */
#define GOLDEN_EXPERTS                                                                                                           \
    "tests/golden/experts/qwen3_moe", "tests/golden/experts/qwen3_moe_one", "tests/golden/experts/qwen2_moe",                    \
        "tests/golden/experts/olmoe", "tests/golden/experts/mixtral", "tests/golden/experts/gpt_oss",                            \
        "tests/golden/experts/gpt_oss_one"
/* Of some of these, golden_aux.json: with their auxiliary loss. */
#define GOLDEN_AUX                                                                                                               \
    "tests/golden/experts/qwen3_moe", "tests/golden/experts/qwen3_moe_one", "tests/golden/experts/qwen2_moe",                    \
        "tests/golden/experts/olmoe", "tests/golden/experts/mixtral", "tests/golden/experts/gpt_oss",                            \
        "tests/golden/experts/gpt_oss_one"
/* Of some, golden_packed.json: windows that are documents. */
#define GOLDEN_PACKED "tests/golden/experts/qwen3_moe", "tests/golden/experts/gpt_oss"
/* Adapters of these, by tools/make_golden_merge.py, of attention and of stacks of experts: {of them, the model}. */
#define GOLDEN_ADAPTER_OF(name, model)                                                                                           \
    {                                                                                                                            \
        "tests/golden/adapters/" name, "tests/golden/experts/" model                                                             \
    }
#define GOLDEN_EXPERTS_ADAPTED                                                                                                   \
    GOLDEN_ADAPTER_OF("mixtral", "mixtral"), GOLDEN_ADAPTER_OF("olmoe", "olmoe"), GOLDEN_ADAPTER_OF("qwen2_moe", "qwen2_moe"),   \
        GOLDEN_ADAPTER_OF("qwen3_moe", "qwen3_moe"), GOLDEN_ADAPTER_OF("gpt_oss", "gpt_oss"), GOLDEN_EXPERTS_STACKED
#define GOLDEN_EXPERTS_STACKED                                                                                                   \
    GOLDEN_ADAPTER_OF("mixtral_params", "mixtral"), GOLDEN_ADAPTER_OF("qwen2_moe_params", "qwen2_moe"),                          \
        GOLDEN_ADAPTER_OF("qwen3_moe_params", "qwen3_moe_one"), GOLDEN_ADAPTER_OF("olmoe_params", "olmoe"),                      \
        GOLDEN_ADAPTER_OF("gpt_oss_params", "gpt_oss_one")
/* Adapters of some of them, and what PEFT computes (tools/make_golden_lora.py): {of them, the model}. */
#define GOLDEN_LORA_OF(name, model)                                                                                              \
    {                                                                                                                            \
        "tests/golden/lora/" name, "tests/golden/" model                                                                         \
    }
#define GOLDEN_LORA                                                                                                              \
    GOLDEN_LORA_OF("gpt2_tiny", "gpt2_tiny"), GOLDEN_LORA_OF("gpt2_exact", "families/gpt2_exact"),                               \
        GOLDEN_LORA_OF("llama_linear", "families/llama_linear"), GOLDEN_LORA_OF("mistral_window", "families/mistral_window"),    \
        GOLDEN_LORA_OF("qwen2_layers", "families/qwen2_layers"), GOLDEN_LORA_OF("qwen3_bias", "families/qwen3_bias"),            \
        GOLDEN_LORA_OF("smollm3_yarn", "families/smollm3_yarn"), GOLDEN_LORA_OF("phi3_long", "families/phi3_long"),              \
        GOLDEN_LORA_OF("gemma2_caps", "families/gemma2_caps"), GOLDEN_LORA_OF("gemma3_local", "families/gemma3_local"),          \
        GOLDEN_LORA_OF("olmo2", "families/olmo2"), GOLDEN_LORA_DROPOUT
#define GOLDEN_LORA_DROPOUT                                                                                                      \
    GOLDEN_LORA_OF("gpt2_dropout", "gpt2_tiny"), GOLDEN_LORA_OF("mistral_dropout", "families/mistral_window"),                   \
        GOLDEN_LORA_OF("gemma2_dropout", "families/gemma2_caps")

#endif
