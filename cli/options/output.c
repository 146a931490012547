/* cli/options/output.c - see cli/options/output.h. */
#include "cli/options/output.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "strata/engine.h"

#include <stdio.h>
#include <string.h>

/* Files of a Hugging Face directory that are read from --model and replaced in --out. */
static const char *const model_files[] = {"config.json", "generation_config.json", "model.safetensors",
                                          "model.safetensors.index.json"};
#define MODEL_FILES (sizeof(model_files) / sizeof(model_files[0]))

/* What a tokenizer is read from in a directory. */
static const char *const tokenizer_files[] = {
    "tokenizer.json",          "tokenizer_config.json", "tokenizer.model",     "vocab.json",        "merges.txt",
    "special_tokens_map.json", "added_tokens.json",     "chat_template.jinja", "chat_template.json"};
#define TOKENIZER_FILES (sizeof(tokenizer_files) / sizeof(tokenizer_files[0]))

static strata_status check_list(const char *path, const char *const *inputs, uint32_t count)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++)
        if (inputs[i] != NULL)
            st = st_file_check_apart(path, inputs[i]);
    return st;
}

/* An input that is overwritten is lost, and data read from it meanwhile may be neither the old nor the new. */
static strata_status check_inputs(const char *path, const struct cli_args *args)
{
    const char *const files[] = {args->config_file, args->machine,       args->eval_data,    args->prompt_file,
                                 args->lora,        args->chat_template, args->dataset_info, args->recipe_file};
    strata_status st;

    if ((st = check_list(path, files, sizeof(files) / sizeof(files[0]))) != STRATA_OK ||
        (st = check_list(path, args->data.items, args->data.count)) != STRATA_OK)
        return st;
    return check_list(path, args->positional.items, args->positional.count);
}

/* An input that is a file, or a directory with files of these names. */
static strata_status check_files_of(const char *path, const char *of, const char *const *names, size_t count)
{
    char input[ST_PATH_MAX];
    strata_status st = of != NULL ? st_file_check_apart(path, of) : STRATA_OK;

    for (size_t i = 0; i < count && of != NULL && st == STRATA_OK; i++)
        if ((st = st_path_join(input, of, names[i])) == STRATA_OK)
            st = st_file_check_apart(path, input);
    return st;
}

static strata_status check_model(const char *path, const struct cli_args *args)
{
    strata_status st = check_files_of(path, args->model, model_files, MODEL_FILES);

    if (st == STRATA_OK)
        st = check_files_of(path, args->model, tokenizer_files, TOKENIZER_FILES);
    return st == STRATA_OK ? check_files_of(path, args->tokenizer, tokenizer_files, TOKENIZER_FILES) : st;
}

/* What lies in a checkpoint is part of it, whatever --overwrite says. */
static strata_status check_no_checkpoint(const char *path, const char *dir)
{
    static const char *const files[] = {"manifest.json", "extents.bin"};
    char name[ST_PATH_MAX];
    bool there = true;
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]) && st == STRATA_OK && there; i++)
        if ((st = st_path_join(name, dir, files[i])) == STRATA_OK)
            st = st_file_find(&there, name);
    if (st != STRATA_OK || !there)
        return st;
    return st_error(STRATA_E_INPUT, "%s lies in a checkpoint, whose files may not change: name another place", path);
}

/* The same for the directory above, of which `dir` may be the part that holds the model's small files, or one that is not there
 * yet. */
static strata_status check_checkpoints(const char *path, const char *dir)
{
    char above[ST_PATH_MAX];
    strata_status st = check_no_checkpoint(path, dir);

    if (st == STRATA_OK && (st = st_path_join(above, dir, "..")) == STRATA_OK)
        st = check_no_checkpoint(path, above);
    if (st == STRATA_OK && (st = st_path_dir(above, dir)) == STRATA_OK)
        st = check_no_checkpoint(path, above);
    return st;
}

strata_status cli_output_check_save(const char *option, const char *dir)
{
    const strata_status st = check_checkpoints(dir, dir);

    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}

static strata_status check_checkpoint_of(const char *path)
{
    char dir[ST_PATH_MAX];
    const strata_status st = st_path_dir(dir, path);

    return st == STRATA_OK ? check_checkpoints(path, dir) : st;
}

strata_status cli_output_check_place(const char *option, const char *path)
{
    const strata_status st = check_checkpoint_of(path);

    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}

/* No input is one of these files of a directory. */
static strata_status check_names(const char *dir, const char *const *names, size_t count, const struct cli_args *args)
{
    char path[ST_PATH_MAX];
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < count && st == STRATA_OK; i++)
        if ((st = st_path_join(path, dir, names[i])) == STRATA_OK)
            st = check_inputs(path, args);
    return st;
}

strata_status cli_output_check_dir(const char *option, const char *dir, const struct cli_args *args)
{
    struct strata_export_opts opts = STRATA_EXPORT_OPTS_INIT;
    strata_status st;

    opts.overwrite = args->overwrite;
    st = strata_export_check(dir, &opts);
    if (st == STRATA_OK)
        st = check_names(dir, model_files, MODEL_FILES, args);
    if (st == STRATA_OK)
        st = check_checkpoints(dir, dir);
    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}

/* Whether a tokenizer, named by a directory or a file, is the one in `dir`. */
static bool is_tokenizer_of(const char *dir, const char *tokenizer)
{
    char path[ST_PATH_MAX];
    bool is = st_file_is_same(dir, tokenizer);

    for (size_t i = 0; i < TOKENIZER_FILES && !is; i++)
        is = st_path_join(path, dir, tokenizer_files[i]) == STRATA_OK && st_file_is_same(path, tokenizer);
    return is;
}

strata_status cli_output_check_replaced(const char *option, const char *dir, const struct cli_args *args)
{
    const char *const tokenizer = args->tokenizer != NULL ? args->tokenizer : args->model;
    strata_status st;

    if (!args->overwrite || (tokenizer != NULL && is_tokenizer_of(dir, tokenizer)))
        return STRATA_OK;
    st = check_names(dir, tokenizer_files, TOKENIZER_FILES, args);
    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}

static strata_status check_file(const char *path, const struct cli_args *args)
{
    strata_status st;

    if (strcmp(path, "-") == 0)
        return st_error(STRATA_E_INVAL, "\"-\" is not standard output here: name a file (./- if it is to be called so)");
    if ((st = st_new_file_check(path, args->overwrite)) == STRATA_OK)
        st = check_inputs(path, args);
    if (st == STRATA_OK)
        st = check_model(path, args);
    if (st == STRATA_OK)
        st = check_checkpoint_of(path);
    return st == STRATA_OK && args->out != NULL && path != args->out ? strata_export_check_apart(args->out, path) : st;
}

strata_status cli_output_check(const char *option, const char *path, const struct cli_args *args)
{
    const strata_status st = path != NULL ? check_file(path, args) : STRATA_OK;

    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}

strata_status cli_output_create(struct st_new_file *file, const char *option, const char *path, const struct cli_args *args)
{
    strata_status st = cli_output_check(option, path, args);

    if (st != STRATA_OK || path == NULL)
        return st;
    st = st_new_file_create(file, path, args->overwrite ? ST_NEW_FILE_OVERWRITE : 0);
    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}

strata_status cli_output_set_aside(const char *option, const char *path)
{
    char to[ST_PATH_MAX];
    const strata_status st = st_file_set_aside(to, path);

    if (st == STRATA_OK && to[0] != '\0')
        st_log(ST_LOG_NOTICE, "%s %s: what an earlier attempt wrote is %s now", option, path, to);
    return st == STRATA_OK ? st : st_error_prefix(st, "%s", option);
}
