/* model/presets.c - models known by name.  Numbers: the published config.json files; nano is ours and reads bytes. */
#include "core/error.h"
#include "model/model.h"
#include <stdio.h>
#include <string.h>

#define NAME_MAX_BYTES 32

static const struct st_model_config presets[] = {
    {"nano", 4, 128, 4, 512, 256, 256, 1e-5f, 0.0f},
    {"gpt2", 12, 768, 12, 3072, 50257, 1024, 1e-5f, 0.1f},
    {"gpt2-medium", 24, 1024, 16, 4096, 50257, 1024, 1e-5f, 0.1f},
    {"gpt2-large", 36, 1280, 20, 5120, 50257, 1024, 1e-5f, 0.1f},
    {"gpt2-xl", 48, 1600, 25, 6400, 50257, 1024, 1e-5f, 0.1f},
};
#define PRESET_COUNT (sizeof(presets) / sizeof(presets[0]))

const char *st_model_preset_name(uint32_t i)
{
    return i < PRESET_COUNT ? presets[i].name : NULL;
}

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c)
{
    const uint32_t ab = a < b ? a : b;

    return ab < c ? ab : c;
}

/* Levenshtein distance; what is longer than the table's names is cut. */
static uint32_t edit_distance(const char *a, const char *b)
{
    const size_t a_length = strnlen(a, NAME_MAX_BYTES), b_length = strnlen(b, NAME_MAX_BYTES);
    uint32_t row[NAME_MAX_BYTES + 1];

    for (uint32_t j = 0; j <= b_length; j++)
        row[j] = j;
    for (size_t i = 0; i < a_length; i++) {
        uint32_t diagonal = row[0];

        row[0] = (uint32_t)i + 1;
        for (size_t j = 0; j < b_length; j++) {
            const uint32_t above = row[j + 1];

            row[j + 1] = min3(above + 1, row[j] + 1, diagonal + (a[i] != b[j]));
            diagonal = above;
        }
    }
    return row[b_length];
}

static strata_status unknown_preset(const char *name)
{
    uint32_t nearest = 0, nearest_distance = UINT32_MAX;
    char list[128] = "";
    size_t length = 0;

    for (uint32_t i = 0; i < PRESET_COUNT; i++) {
        const uint32_t distance = edit_distance(name, presets[i].name);

        if (distance < nearest_distance) {
            nearest = i;
            nearest_distance = distance;
        }
        length += (size_t)snprintf(list + length, sizeof(list) - length, "%s%s", i > 0 ? ", " : "", presets[i].name);
    }
    return st_error(STRATA_E_INVAL,
                    "no model preset \"%s\" (nearest: %s); known are %s, or the directory of a Hugging Face model", name,
                    presets[nearest].name, list);
}

strata_status st_model_preset(struct st_model_config *out, const char *name)
{
    for (uint32_t i = 0; i < PRESET_COUNT; i++) {
        if (strcmp(name, presets[i].name) == 0) {
            *out = presets[i];
            return STRATA_OK;
        }
    }
    return unknown_preset(name);
}
