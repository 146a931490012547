/* api/model_named.c - what the name of a model means: a preset, a directory, or a checkpoint. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/hub_id.h"
#include "core/system/path.h"
#include "model/adapter/adapter.h"
#include "strata/model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

bool st_handle_is_directory(const char *path)
{
    struct stat info;

    return !st_fault_refuses("model.stat") && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool is_json_file(const char *name)
{
    static const char end[] = ".json";
    const size_t length = strlen(name), end_length = sizeof(end) - 1;
    struct stat info;

    return length > end_length && strcmp(name + length - end_length, end) == 0 && !st_fault_refuses("model.stat") &&
           stat(name, &info) == 0 && !S_ISDIR(info.st_mode);
}

/* Also of a file, which is refused as that and not as an unknown preset. */
static bool is_there(const char *name)
{
    struct stat info;

    return !st_fault_refuses("model.stat") && stat(name, &info) == 0;
}

static bool is_preset(const char *name)
{
    for (uint32_t i = 0; st_model_preset_name(i) != NULL; i++)
        if (strcmp(st_model_preset_name(i), name) == 0)
            return true;
    return false;
}

/* A checkpoint's small files are in a directory of it, which takes the name's place. */
static strata_status find_checkpoint(struct strata_model *m)
{
    char dir[ST_PATH_MAX];
    strata_status st = st_checkpoint_as_model(&m->from.checkpoint, m->name);

    if (st != STRATA_OK || m->from.checkpoint == NULL)
        return st;
    free(m->name);
    m->name = NULL;
    st = st_checkpoint_model_dir(dir, m->from.checkpoint);
    if (st == STRATA_OK)
        st = st_handle_text(&m->name, dir);
    return st == STRATA_OK ? st_handle_text(&m->from.saved, m->from.checkpoint->path) : st;
}

/* In a plan a published model's name, for which no directory is here, becomes that of the preset.  Whoever trains it does not
 * mean random weights. */
static strata_status take_published(struct strata_model *m)
{
    const char *preset = st_model_preset_of(m->name);
    char *name = NULL;
    strata_status st;

    if (preset == NULL || !st_handle_only_plans(m) || is_preset(m->name) || st_handle_is_directory(m->name) ||
        (strchr(m->name, '/') != NULL && !st_hub_is_id(m->name)))
        return STRATA_OK;
    st_log(ST_LOG_NOTICE, "model.model %s: using the preset %s, which has its shapes", m->name, preset);
    if ((st = st_handle_text(&name, preset)) != STRATA_OK)
        return st;
    free(m->name);
    m->name = name;
    return STRATA_OK;
}

/* What is published as ORG/NAME, and is no directory here, may be in the cache. */
static strata_status take_cached(struct strata_model *m)
{
    char dir[ST_PATH_MAX];
    const char *found = m->name;
    strata_status st = st_handle_find_cached(dir, &found);

    if (st != STRATA_OK || found == m->name)
        return st;
    free(m->name);
    m->name = NULL;
    return st_handle_text(&m->name, dir);
}

bool strata_model_is_away(const char *model)
{
    char dir[ST_PATH_MAX];
    const char *found = model;

    return model != NULL && !is_preset(model) && strchr(model, '/') != NULL && st_handle_find_cached(dir, &found) == STRATA_OK &&
           found == model && !is_there(model);
}

strata_status st_handle_read_config(struct st_model_config *config, struct strata_model *m)
{
    strata_status st = take_published(m);

    if (st != STRATA_OK)
        return st;
    if ((st = take_cached(m)) != STRATA_OK)
        return st;
    if (is_preset(m->name) && st_handle_is_directory(m->name))
        st_log(ST_LOG_NOTICE,
               "%s is both a preset and a directory here: using the preset; for the directory say model.model ./%s", m->name,
               m->name);
    m->is_file = !is_preset(m->name) && is_json_file(m->name);
    if (m->is_file && (!st_handle_only_plans(m) || strcmp(st_path_name(m->name), ST_ADAPTER_CONFIG_NAME) == 0))
        return st_handle_no_such_model(m->name);
    if (m->is_file)
        return st_model_config_read_file(config, m->name);
    m->is_dir = !is_preset(m->name) && (strchr(m->name, '/') != NULL || is_there(m->name));
    if (m->is_dir && !st_handle_is_directory(m->name))
        return st_handle_no_such_model(m->name);
    if (m->is_dir && (st = find_checkpoint(m)) != STRATA_OK)
        return st_error_key(st_error_prefix(st, "model.model"), "model.model");
    if (m->is_dir && (st = st_handle_check_directory(m->name)) != STRATA_OK)
        return st;
    st = m->is_dir ? st_model_config_read(config, m->name) : st_model_preset(config, m->name);
    if (st == STRATA_OK && m->from.checkpoint != NULL) /* not that of the directory, which is the same in all of them */
        snprintf(config->name, sizeof(config->name), "%.*s", (int)sizeof(config->name) - 1, m->from.checkpoint->manifest.model);
    return st;
}

strata_status st_handle_find_files(char dir[ST_PATH_MAX], const char **name)
{
    struct st_checkpoint *ck = NULL;
    strata_status st = st_handle_find_cached(dir, name);

    if (st == STRATA_OK && *name != dir && st_handle_is_directory(*name))
        st = st_checkpoint_as_model(&ck, *name);
    if (st == STRATA_OK && ck != NULL && (st = st_checkpoint_model_dir(dir, ck)) == STRATA_OK)
        *name = dir;
    st_checkpoint_close(ck);
    return st;
}
