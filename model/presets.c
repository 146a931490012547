/* model/presets.c - models known by name.  Numbers: the published config.json files; nano and mini are strata's own and read
 * bytes. */
#include "core/base/error.h"
#include "core/base/text.h"
#include "core/base/word.h"
#include "core/system/path.h"
#include "model/layout.h"
#include <stdio.h>
#include <string.h>

#define NO_ROPE_INTERVAL 4u   /* of smollm3-3b */
#define FEWER_EXPERTS    32u  /* of gpt-oss-20b; its family's default is that of gpt-oss-120b */
#define GPT2_DROPOUT     0.1f /* as in the published files */

/* One row of published numbers; options follow from the family. */
struct preset {
    const char *name;
    uint32_t blocks, hidden, heads, kv_heads, head_dim, ffn, vocab, context, window;
    float norm_eps;
    enum st_model_family family;
    float rope_base; /* GPT-2: 0 */
    float llama3;    /* rope scaling by this, 1, 4, 8192; 0: none */
    bool untied;
};

#define GPT2    ST_FAMILY_GPT2
#define LLAMA   ST_FAMILY_LLAMA
#define QWEN2   ST_FAMILY_QWEN2
#define QWEN3   ST_FAMILY_QWEN3
#define MISTRAL ST_FAMILY_MISTRAL
#define SMOLLM3 ST_FAMILY_SMOLLM3
#define PHI3    ST_FAMILY_PHI3
#define GEMMA2  ST_FAMILY_GEMMA2
#define GEMMA3  ST_FAMILY_GEMMA3
#define OLMO2   ST_FAMILY_OLMO2
#define QWEN2_M ST_FAMILY_QWEN2_MOE
#define QWEN3_M ST_FAMILY_QWEN3_MOE
#define OLMOE   ST_FAMILY_OLMOE
#define MIXTRAL ST_FAMILY_MIXTRAL
#define GPT_OSS ST_FAMILY_GPT_OSS

static const struct preset presets[] = {
    {"nano", 4, 128, 4, 4, 32, 512, 256, 256, 0, 1e-5f, GPT2, 0, 0, false},
    {"mini", 6, 384, 6, 6, 64, 1536, 256, 512, 0, 1e-5f, GPT2, 0, 0, false},
    {"gpt2", 12, 768, 12, 12, 64, 3072, 50257, 1024, 0, 1e-5f, GPT2, 0, 0, false},
    {"gpt2-medium", 24, 1024, 16, 16, 64, 4096, 50257, 1024, 0, 1e-5f, GPT2, 0, 0, false},
    {"gpt2-large", 36, 1280, 20, 20, 64, 5120, 50257, 1024, 0, 1e-5f, GPT2, 0, 0, false},
    {"gpt2-xl", 48, 1600, 25, 25, 64, 6400, 50257, 1024, 0, 1e-5f, GPT2, 0, 0, false},
    {"nano-llama", 4, 128, 4, 2, 32, 384, 256, 8192, 0, 1e-5f, LLAMA, 10000, 0, false},
    {"mini-llama", 6, 384, 6, 2, 64, 1024, 256, 8192, 0, 1e-5f, LLAMA, 10000, 0, false},
    {"smollm2-135m", 30, 576, 9, 3, 64, 1536, 49152, 8192, 0, 1e-5f, LLAMA, 100000, 0, false},
    {"gemma-3-270m", 18, 640, 4, 1, 256, 2048, 262144, 32768, 512, 1e-6f, GEMMA3, 1000000, 0, false},
    {"smollm2-360m", 32, 960, 15, 5, 64, 2560, 49152, 8192, 0, 1e-5f, LLAMA, 100000, 0, false},
    {"qwen2.5-0.5b", 24, 896, 14, 2, 64, 4864, 151936, 32768, 0, 1e-6f, QWEN2, 1000000, 0, false},
    {"qwen3-0.6b", 28, 1024, 16, 8, 128, 3072, 151936, 40960, 0, 1e-6f, QWEN3, 1000000, 0, false},
    {"tinyllama-1.1b", 22, 2048, 32, 4, 64, 5632, 32000, 2048, 0, 1e-5f, LLAMA, 10000, 0, true},
    {"llama-1b", 16, 2048, 32, 8, 64, 8192, 128256, 131072, 0, 1e-5f, LLAMA, 500000, 32, false},
    {"olmo-2-1b", 16, 2048, 16, 16, 128, 8192, 100352, 4096, 0, 1e-6f, OLMO2, 500000, 0, true},
    {"olmoe-1b-7b", 16, 2048, 16, 16, 128, 1024, 50304, 4096, 0, 1e-5f, OLMOE, 10000, 0, true},
    {"qwen2.5-1.5b", 28, 1536, 12, 2, 128, 8960, 151936, 131072, 0, 1e-6f, QWEN2, 1000000, 0, false},
    {"smollm2-1.7b", 24, 2048, 32, 32, 64, 8192, 49152, 8192, 0, 1e-5f, LLAMA, 130000, 0, false},
    {"qwen3-1.7b", 28, 2048, 16, 8, 128, 6144, 151936, 40960, 0, 1e-6f, QWEN3, 1000000, 0, false},
    {"gemma-2-2b", 26, 2304, 8, 4, 256, 9216, 256000, 8192, 4096, 1e-6f, GEMMA2, 10000, 0, false},
    {"smollm3-3b", 36, 2048, 16, 4, 128, 11008, 128256, 65536, 0, 1e-6f, SMOLLM3, 5000000, 0, false},
    {"qwen2.5-3b", 36, 2048, 16, 2, 128, 11008, 151936, 32768, 0, 1e-6f, QWEN2, 1000000, 0, false},
    {"llama-3.2-3b", 28, 3072, 24, 8, 128, 8192, 128256, 131072, 0, 1e-5f, LLAMA, 500000, 32, false},
    {"phi-3-mini", 32, 3072, 32, 32, 96, 8192, 32064, 4096, 2047, 1e-5f, PHI3, 10000, 0, true},
    {"qwen3-4b", 36, 2560, 32, 8, 128, 9728, 151936, 40960, 0, 1e-6f, QWEN3, 1000000, 0, false},
    {"llama-2-7b", 32, 4096, 32, 32, 128, 11008, 32000, 4096, 0, 1e-5f, LLAMA, 10000, 0, true},
    {"mistral-7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768, 4096, 1e-5f, MISTRAL, 10000, 0, true},
    {"qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064, 131072, 0, 1e-6f, QWEN2, 1000000, 0, true},
    {"llama-3-8b", 32, 4096, 32, 8, 128, 14336, 128256, 8192, 0, 1e-5f, LLAMA, 500000, 0, true},
    {"llama-3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256, 131072, 0, 1e-5f, LLAMA, 500000, 8, true},
    {"qwen3-8b", 36, 4096, 32, 8, 128, 12288, 151936, 40960, 0, 1e-6f, QWEN3, 1000000, 0, true},
    {"qwen1.5-moe-a2.7b", 24, 2048, 16, 16, 128, 5632, 151936, 8192, 0, 1e-6f, QWEN2_M, 1000000, 0, true},
    {"qwen3-14b", 40, 5120, 40, 8, 128, 17408, 151936, 40960, 0, 1e-6f, QWEN3, 1000000, 0, true},
    {"qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064, 131072, 0, 1e-5f, QWEN2, 1000000, 0, true},
    {"gpt-oss-20b", 24, 2880, 64, 8, 64, 2880, 201088, 131072, 128, 1e-5f, GPT_OSS, 150000, 0, true},
    {"qwen3-30b-a3b", 48, 2048, 32, 4, 128, 6144, 151936, 40960, 0, 1e-6f, QWEN3_M, 1000000, 0, true},
    {"qwen3-32b", 64, 5120, 64, 8, 128, 25600, 151936, 40960, 0, 1e-6f, QWEN3, 1000000, 0, true},
    {"qwen2.5-32b", 64, 5120, 40, 8, 128, 27648, 152064, 131072, 0, 1e-5f, QWEN2, 1000000, 0, true},
    {"mixtral-8x7b", 32, 4096, 32, 8, 128, 14336, 32000, 32768, 0, 1e-5f, MIXTRAL, 1000000, 0, true},
    {"llama-3-70b", 80, 8192, 64, 8, 128, 28672, 128256, 8192, 0, 1e-5f, LLAMA, 500000, 0, true},
    {"llama-3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256, 131072, 0, 1e-5f, LLAMA, 500000, 8, true},
    {"gpt-oss-120b", 36, 2880, 64, 8, 64, 2880, 201088, 131072, 128, 1e-5f, GPT_OSS, 150000, 0, true},
};
#define PRESET_COUNT (sizeof(presets) / sizeof(presets[0]))

/* Other names of the same shapes. */
static const char *const aliases[][2] = {
    {"llama-3.2-1b", "llama-1b"},
    {"llama-3.3-70b", "llama-3.1-70b"},
    {"olmoe-1b-7b-0924", "olmoe-1b-7b"},
};

/* What publishers put behind a name, of models that have its shapes. */
static const char *const endings[] = {"-instruct", "-base", "-chat", "-it", "-hf", "-v0.1"};

const char *st_model_preset_name(uint32_t i)
{
    return i < PRESET_COUNT ? presets[i].name : NULL;
}

static bool cut_ending(char *name)
{
    const size_t length = strlen(name);

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        const size_t bytes = strlen(endings[i]);

        if (length > bytes && st_text_same(name + length - bytes, endings[i])) {
            name[length - bytes] = '\0';
            return true;
        }
    }
    return false;
}

const char *st_model_preset_of(const char *published)
{
    char name[64];

    snprintf(name, sizeof(name), "%s", st_path_name(published));
    do {
        const char *wanted = name + (st_text_begins(name, "meta-") ? 5 : 0);

        for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
            if (st_text_same(wanted, aliases[i][0]))
                return aliases[i][1];
        for (uint32_t i = 0; i < PRESET_COUNT; i++)
            if (st_text_same(wanted, presets[i].name))
                return presets[i].name;
    } while (cut_ending(name));
    return NULL;
}

static strata_status unknown_preset(const char *name)
{
    uint32_t nearest = 0, nearest_distance = UINT32_MAX;
    char list[1024] = "";
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
    return st_error_remedy(
        st_error(
            STRATA_E_INVAL,
            "no model preset \"%s\" (nearest: %s); there are %s. Name other models by their directory; nothing is downloaded",
            name, presets[nearest].name, list),
        "model.model", "fetch it with \"hf download %s --local-dir DIR\", then say model.model DIR", name);
}

/* Defaults have the published numbers; all blocks are sparse. */
static void add_experts(struct st_model_config *c, const struct st_family *family)
{
    if ((family->keys & ST_KEY_MOE_FFN) == 0)
        c->expert_ffn = c->ffn;
    c->experts_divided = c->experts_divided || c->family == ST_FAMILY_QWEN3_MOE;
    if (strcmp(c->name, "gpt-oss-20b") == 0)
        c->experts = FEWER_EXPERTS;
    for (uint32_t b = 0; b < c->blocks; b++)
        st_layer_set(c->sparse, b);
}

static struct st_model_config config_of(const struct preset *p)
{
    const struct st_family *family = st_family_of(p->family);
    struct st_model_config c = family->defaults;

    snprintf(c.name, sizeof(c.name), "%s", p->name);
    c.blocks = p->blocks;
    c.hidden = p->hidden;
    c.heads = p->heads;
    c.ffn = p->ffn;
    c.vocab = p->vocab;
    c.context = p->context;
    c.norm_eps = p->norm_eps;
    c.window = p->window;
    for (uint32_t i = 0; i < p->blocks; i++) {
        if (p->window > 0 && (family->windows == ST_WINDOW_ALL || (i + 1) % family->window_period != 0))
            st_layer_set(c.sliding, i);
        if ((family->keys & ST_KEY_NO_ROPE_LAYERS) != 0 && (i + 1) % NO_ROPE_INTERVAL == 0)
            st_layer_set(c.unrotated, i);
    }
    if (p->family == ST_FAMILY_GPT2) {
        c.dropout = p->vocab == ST_GPT2_VOCAB ? GPT2_DROPOUT : 0.0f;
        return c;
    }
    c.kv_heads = p->kv_heads;
    c.head_dim = p->head_dim;
    c.rope_base = p->rope_base;
    c.untied = p->untied;
    if (family->experts != NULL)
        add_experts(&c, family);
    if (p->llama3 > 0) {
        c.rope_type = ST_ROPE_LLAMA3;
        c.rope_factor = p->llama3;
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
