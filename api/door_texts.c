/* api/door_texts.c - strata/data.h: texts and conversations as sequences, by a token file that lives as long as it is read. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/temp_dir.h"
#include "model/data/rows/tokenize.h"

#include <string.h>

#define BYTE_VOCAB 256u /* of models that read bytes */

/* *path NULL: one token per byte. */
static strata_status choose_tokenizer(const char **path, const struct strata_model *model, const char *named)
{
    const uint32_t vocab = st_model_config(model->model)->vocab;
    bool there = false;
    strata_status st = STRATA_OK;

    *path = named != NULL && strcmp(named, "byte") == 0 ? NULL : named;
    if (named != NULL)
        return STRATA_OK;
    if (model->is_dir)
        st = st_tokenizer_exists(&there, model->name);
    if (there)
        *path = model->name;
    if (st != STRATA_OK || there || vocab == BYTE_VOCAB)
        return st;
    return st_error(STRATA_E_INPUT,
                    "%s has a vocabulary of %u tokens and no tokenizer (tokenizer.json, tokenizer.model, or vocab.json with "
                    "merges.txt), and only models of %u tokens read bytes: name one with --tokenizer DIR",
                    model->name, vocab, BYTE_VOCAB);
}

static strata_status take_date(struct st_date *out, const char *text)
{
    *out = st_date_today();
    if (text == NULL || st_date_parse(out, text))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "\"%s\" is not a date such as 2026-07-31", text);
}

/* What is left out, or cannot be learnt from the file, is said. */
static void note(const struct st_tokenize_report *r, uint32_t seq)
{
    if (r->replaced > 0)
        st_log(ST_LOG_NOTICE, "%llu times, bytes that are not UTF-8 became the replacement character U+FFFD",
               (unsigned long long)r->replaced);
    if (r->truncated > 0)
        st_log(ST_LOG_NOTICE, "%llu conversations are longer than a sequence of %u tokens and are cut: raise --seq-len",
               (unsigned long long)r->truncated, seq);
    for (unsigned odd = ST_ROW_FINE + 1; odd < ST_ROW_ODDS; odd++)
        if (r->dropped[odd] > 0)
            st_log(ST_LOG_NOTICE, "%llu rows are left out: %s", (unsigned long long)r->dropped[odd],
                   st_row_odd_text((enum st_row_odd)odd));
    if (r->refusal[0] != '\0')
        st_log(ST_LOG_NOTICE, "the first row that the template refuses: %s", r->refusal);
}

static strata_status write_tokens(const char *path, const char *tokenizer, const char *const *paths, uint32_t count, uint32_t seq,
                                  const struct strata_texts_opts *o)
{
    struct st_tokenize_opts how = {
        .inputs = paths, .input_count = count, .tokenizer = tokenizer, .template = o->chat_template, .out = path, .seq_len = seq};
    struct st_tokenize_report report = {0};
    struct st_tokens_report bytes = {0};
    strata_status st;

    if (tokenizer == NULL)
        return st_tokens_from_text(NULL, paths, count, path, 0, false, &bytes);
    st = take_date(&how.date, o->date);
    if (st == STRATA_OK)
        st = st_tokenize(&how, &report);
    if (st == STRATA_OK)
        note(&report, seq);
    return st;
}

strata_status strata_data_open_texts(struct strata_data **data, const struct strata_model *model, const char *const *paths,
                                     uint32_t count, const struct strata_texts_opts *opts)
{
    const char *tokenizer = NULL;
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
        st = write_tokens(path, tokenizer, paths, count, model->seq, &o);
    if (st == STRATA_OK)
        st = strata_data_open(data, model, &made, 1); /* reads on when the name is gone */
    st_temp_dir_remove(&dir);
    return st;
}
