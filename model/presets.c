/* model/presets.c - models known by name.  Numbers: the published config.json files; nano and mini are strata's own and read
 * bytes. */
#include "core/base/error.h"
#include "core/base/word.h"
#include "model/layout.h"
#include <stdio.h>
#include <string.h>

#define GPT2_DROPOUT 0.1f /* as in the published files */

/* One row of published numbers; options follow from the family. */
struct preset {
    const char *name;
    uint32_t blocks, hidden, heads, kv_heads, ffn, vocab, context;
    float norm_eps;
    enum st_model_family family;
    float rope_base; /* GPT-2: 0 */
    bool llama3;     /* rope scaling 32, 1, 4, 8192 */
    bool untied;
};

#define GPT2  ST_FAMILY_GPT2
#define LLAMA ST_FAMILY_LLAMA
#define QWEN2 ST_FAMILY_QWEN2

static const struct preset presets[] = {
    {"nano", 4, 128, 4, 4, 512, 256, 256, 1e-5f, GPT2, 0, false, false},
    {"mini", 6, 384, 6, 6, 1536, 256, 512, 1e-5f, GPT2, 0, false, false},
    {"gpt2", 12, 768, 12, 12, 3072, 50257, 1024, 1e-5f, GPT2, 0, false, false},
    {"gpt2-medium", 24, 1024, 16, 16, 4096, 50257, 1024, 1e-5f, GPT2, 0, false, false},
    {"gpt2-large", 36, 1280, 20, 20, 5120, 50257, 1024, 1e-5f, GPT2, 0, false, false},
    {"gpt2-xl", 48, 1600, 25, 25, 6400, 50257, 1024, 1e-5f, GPT2, 0, false, false},
    {"nano-llama", 4, 128, 4, 2, 384, 256, 8192, 1e-5f, LLAMA, 10000, false, false},
    {"mini-llama", 6, 384, 6, 2, 1024, 256, 8192, 1e-5f, LLAMA, 10000, false, false},
    {"smollm2-135m", 30, 576, 9, 3, 1536, 49152, 8192, 1e-5f, LLAMA, 100000, false, false},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 4864, 151936, 32768, 1e-6f, QWEN2, 1000000, false, false},
    {"tinyllama-1.1b", 22, 2048, 32, 4, 5632, 32000, 2048, 1e-5f, LLAMA, 10000, false, true},
    {"llama-1b", 16, 2048, 32, 8, 8192, 128256, 131072, 1e-5f, LLAMA, 500000, true, false},
    {"llama-2-7b", 32, 4096, 32, 32, 11008, 32000, 4096, 1e-5f, LLAMA, 10000, false, true},
};
#define PRESET_COUNT (sizeof(presets) / sizeof(presets[0]))
const char *st_model_preset_name(uint32_t i)
{
    return i < PRESET_COUNT ? presets[i].name : NULL;
}

static strata_status unknown_preset(const char *name)
{
    uint32_t nearest = 0, nearest_distance = UINT32_MAX;
    char list[256] = "";
    size_t length = 0;

    for (uint32_t i = 0; i < PRESET_COUNT; i++) {
        const uint32_t distance = st_word_edits(name, presets[i].name);

        if (distance < nearest_distance) {
            nearest = i;
            nearest_distance = distance;
        }
        if (length < sizeof(list))
            length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%s", i > 0 ? ", " : "", presets[i].name);
    }
    return st_error(STRATA_E_INVAL,
                    "no model preset \"%s\" (nearest: %s); known presets are %s. Name a Hugging Face model by its directory; "
                    "nothing is downloaded: fetch it with \"hf download %s --local-dir DIR\", then say --model DIR",
                    name, presets[nearest].name, list, name);
}

static struct st_model_config config_of(const struct preset *p)
{
    struct st_model_config c = st_family_of(p->family)->defaults;

    snprintf(c.name, sizeof(c.name), "%s", p->name);
    c.blocks = p->blocks;
    c.hidden = p->hidden;
    c.heads = p->heads;
    c.ffn = p->ffn;
    c.vocab = p->vocab;
    c.context = p->context;
    c.norm_eps = p->norm_eps;
    c.window = 0;
    if (p->family == ST_FAMILY_GPT2) {
        c.dropout = p->vocab == ST_GPT2_VOCAB ? GPT2_DROPOUT : 0.0f;
        return c;
    }
    c.kv_heads = p->kv_heads;
    c.head_dim = p->hidden / p->heads;
    c.rope_base = p->rope_base;
    c.untied = p->untied;
    if (p->llama3) {
        c.rope_factor = 32.0f;
        c.rope_low = 1.0f;
        c.rope_high = 4.0f;
        c.rope_original = 8192;
    }
    return c;
}

strata_status st_model_preset(struct st_model_config *out, const char *name)
{
    for (uint32_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(name, presets[i].name) == 0) {
            *out = config_of(&presets[i]);
            return STRATA_OK;
        }
    }
    return unknown_preset(name);
}
