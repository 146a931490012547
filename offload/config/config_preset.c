/* config_preset.c - XTuner's configurations of DeepSpeed, by the names that its --deepspeed takes. */
#include "offload/config/config_source.h"

#include "core/system/file.h"
#include <string.h>

struct preset {
    const char *name, *text; /* as configs/xtuner has them */
};

#include "offload/config/preset_table.inc"

const char *st_config_preset(const char *name)
{
    bool there = false;

    for (size_t i = 0; i < sizeof(presets) / sizeof(presets[0]); i++)
        if (strcmp(presets[i].name, name) == 0)
            return st_file_find(&there, name) == STRATA_OK && !there ? presets[i].text : NULL;
    return NULL;
}
