/* api/door_texts.c - strata/data.h: texts as sequences, by a token file that lives as long as it is read. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/temp_dir.h"

#include <string.h>

#define BYTE_VOCAB 256u /* of models that read bytes */

/* *out NULL: one token per byte. */
static strata_status choose_tokenizer(struct st_tokenizer **out, const struct strata_model *model, const char *named)
{
    const uint32_t vocab = st_model_config(model->model)->vocab;
    bool there = false;
    strata_status st = STRATA_OK;

    *out = NULL;
    if (named != NULL)
        return strcmp(named, "byte") == 0 ? STRATA_OK : st_tokenizer_open(out, named);
    if (model->is_dir)
        st = st_tokenizer_exists(&there, model->name);
    if (st != STRATA_OK || there)
        return st == STRATA_OK ? st_tokenizer_open(out, model->name) : st;
    if (vocab == BYTE_VOCAB)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT,
                    "%s has a vocabulary of %u tokens and no tokenizer (tokenizer.json, tokenizer.model, or vocab.json with "
                    "merges.txt), and only models of %u tokens read bytes: name one with --tokenizer DIR",
                    model->name, vocab, BYTE_VOCAB);
}

strata_status strata_data_open_texts(struct strata_data **data, const struct strata_model *model, const char *const *paths,
                                     uint32_t count, const struct strata_texts_opts *opts)
{
    struct st_tokens_report report = {0};
    struct st_tokenizer *tokenizer = NULL;
    struct strata_texts_opts o;
    struct st_temp_dir dir;
    char path[ST_PATH_MAX];
    const char *const made = path;
    strata_status st;

    if (data == NULL || model == NULL || paths == NULL)
        return st_error_missing(__func__, data == NULL ? "data" : model == NULL ? "model" : "paths");
    if (count == 0)
        return st_error(STRATA_E_INVAL, "%s: count is 0: name a text", __func__);
    for (uint32_t i = 0; i < count; i++)
        if (paths[i] == NULL)
            return st_error_missing(__func__, "one of paths");
    if ((st = st_handle_opts(&o, sizeof(o), sizeof(o), opts, "strata_texts_opts")) != STRATA_OK ||
        (st = choose_tokenizer(&tokenizer, model, o.tokenizer)) != STRATA_OK)
        return st;
    st = st_temp_dir_create(&dir);
    if (st == STRATA_OK)
        st = st_path_join(path, dir.path, "texts.bin");
    if (st == STRATA_OK)
        st = st_tokens_from_text(tokenizer, paths, count, path, 0, false, &report);
    if (st == STRATA_OK && report.replaced > 0)
        st_log(ST_LOG_NOTICE, "%llu times, bytes that are not UTF-8 became the replacement character U+FFFD",
               (unsigned long long)report.replaced);
    if (st == STRATA_OK)
        st = strata_data_open(data, model, &made, 1); /* reads on when the name is gone */
    st_temp_dir_remove(&dir);
    st_tokenizer_close(tokenizer);
    return st;
}
