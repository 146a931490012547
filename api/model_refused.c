/* api/model_refused.c - what is given as a model and is none: the sentence names what it is, and what makes a model of it. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include "model/adapter/adapter.h"
#include "model/hf/hub.h"
#include "offload/checkpoint/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define CONFIG_BYTES_MAX (1u << 20)

#define GGUF                                                                                                                     \
    "GGUF is not read: convert model and tokenizer with transformers: from_pretrained(DIR, gguf_file=NAME), then "               \
    "save_pretrained()"
#define WEIGHTS "a file of weights: name its directory, which has config.json, too"
#define TABLE   "a table of data, not a model: give it to strata_data_open_texts() as .jsonl (datasets.load_dataset(...).to_json())"

/* Names of files by their endings. */
static const struct {
    const char *ending, *what;
} files[] = {
    {".gguf", GGUF},
    {".safetensors", WEIGHTS},
    {".bin", "weights: name their directory, with config.json; tokens: give them to strata_data_open()"},
    {".pt", WEIGHTS},
    {".pth", WEIGHTS},
    {".ckpt", WEIGHTS},
    {".parquet", TABLE},
    {".arrow", TABLE},
    {".csv", TABLE},
    {".tsv", TABLE},
    {".jsonl", "data, not a model: give it to strata_data_open_texts()"},
    {".txt", "data, not a model: give it to strata_data_open_texts()"},
    {ST_ADAPTER_CONFIG_NAME, "settings of an adapter: name its base with model.model, and its directory with model.adapter"},
    {".json", "a file of shapes without weights, for strata plan only: name the directory with the weights"},
};

static strata_status refuse_file(const char *name)
{
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (st_path_ends(name, files[i].ending))
            return st_error_key(st_error(STRATA_E_INPUT, "model.model %s: %s", name, files[i].what), "model.model");
    return st_error_key(st_error(STRATA_E_INPUT, "model.model %s is not a directory", name), "model.model");
}

strata_status st_handle_find_cached(char dir[ST_PATH_MAX], const char **name)
{
    char root[ST_PATH_MAX];
    strata_status st;

    if (!st_hub_is_id(*name) || st_handle_is_directory(*name))
        return STRATA_OK;
    st = st_hub_find(dir, root, *name);
    if (st == STRATA_OK && dir[0] != '\0')
        *name = dir;
    return st == STRATA_OK ? st : st_error_key(st_error_prefix(st, "model.model"), "model.model");
}

strata_status st_handle_no_such_model(const char *name)
{
    char dir[ST_PATH_MAX], root[ST_PATH_MAX], command[ST_HUB_COMMAND_MAX];
    struct stat info;
    const bool there = !st_fault_refuses("model.stat") && stat(name, &info) == 0;

    if (there)
        return refuse_file(name);
    if (errno != ENOENT)
        return st_error_key(st_error_errno(errno, "model.model %s", name), "model.model");
    if (!st_hub_is_id(name))
        return st_error_key(st_error(STRATA_E_INPUT, "model.model %s: no such directory", name), "model.model");
    (void)!st_hub_find(dir, root, name); /* whoever looked before was told what is wrong */
    st_hub_command(command, name);
    return st_error_remedy(
        st_error(STRATA_E_INPUT,
                 "model.model %s: no such directory, none in the Hugging Face cache%s%s, and nothing is downloaded", name,
                 root[0] != '\0' ? " " : "", root),
        "model.model", "fetch it with \"%s\"", command);
}

/* --- directories --- */

static strata_status refuse_adapter(const char *dir, const char *config)
{
    const st_json *member = NULL;
    const char *base = NULL;
    st_json *root = NULL;
    strata_status st;

    if (st_json_parse_file(&root, config, CONFIG_BYTES_MAX) == STRATA_OK)
        member = st_json_get(root, "base_model_name_or_path");
    if (member != NULL)
        base = st_json_string(member);
    st = st_error(STRATA_E_INPUT,
                  "model.model %s: an adapter of %s: name that with model.model, this with model.adapter; strata export "
                  "(strata_adapter_merge()) merges both",
                  dir, base != NULL && base[0] != '\0' ? base : "another model");
    st_json_free(root);
    return st;
}

/* A file there whose name has this ending. */
static bool has_ending(const char *dir, const char *ending)
{
    DIR *entries = st_fault_refuses("model.opendir") ? NULL : opendir(dir);
    const struct dirent *entry = NULL;

    while (entries != NULL && (entry = st_dir_next(entries)) != NULL)
        if (st_path_ends(entry->d_name, ending))
            break;
    if (entries != NULL)
        closedir(entries);
    return entry != NULL;
}

/* What a directory has that is looked into; false: it is not there, or cannot be known. */
static bool has_file(char path[ST_PATH_MAX], const char *dir, const char *name)
{
    bool there = false;

    return st_path_join(path, dir, name) == STRATA_OK && st_file_find(&there, path) == STRATA_OK && there;
}

strata_status st_handle_check_directory(const char *dir)
{
    char path[ST_PATH_MAX];

    if (has_file(path, dir, "config.json"))
        return STRATA_OK;
    if (has_file(path, dir, ST_ADAPTER_CONFIG_NAME))
        return refuse_adapter(dir, path);
    if (has_ending(dir, ".gguf"))
        return st_error_key(st_error(STRATA_E_INPUT, "model.model %s: %s", dir, GGUF), "model.model");
    if (has_file(path, dir, "params.json"))
        return st_error(STRATA_E_INPUT,
                        "model.model %s: has params.json, not config.json: name a directory that transformers has written "
                        "(save_pretrained())",
                        dir);
    return st_checkpoint_refuse_python(dir); /* whoever reads config.json says that it is missing */
}
