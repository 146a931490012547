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

#endif
