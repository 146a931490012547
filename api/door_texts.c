/* api/door_texts.c - strata/data.h: texts and conversations as sequences, by a token file that is kept for the next run, or lives
 * as long as it is read. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "core/system/temp_dir.h"
#include "run/ranks_turns.h"
#include "text/data/rows/dataset_info.h"
#include "text/data/rows/tokenize.h"
#include "text/data/rows/tokens_kept.h"
#include "text/data/texts.h"
#include "text/data/tokens.h"

#include <malloc.h>
#include <stdio.h>
#include <string.h>

#define VAL_ROWS_MAX 9007199254740992.0 /* 2^53 */

#define BYTE_VOCAB 256u /* of models that read bytes */

/* *path NULL: one token per byte. */
static strata_status choose_tokenizer(const char **path, const struct strata_model *model, const char *named)
{
    const uint32_t vocab = st_model_config(model->model)->vocab;
    bool there = false;
    strata_status st = STRATA_OK;

    if (named == NULL)
        named = model->beside.tokenizer;
    *path = named != NULL && strcmp(named, "byte") == 0 ? NULL : named;
    if (named != NULL && *path == NULL && vocab < BYTE_VOCAB)
        return st_error(STRATA_E_INPUT, "texts.tokenizer byte: bytes need %u tokens, the vocabulary of %s has %u: name another",
                        BYTE_VOCAB, model->name, vocab);
    if (named != NULL)
        return STRATA_OK;
    if (model->is_dir)
        st = st_tokenizer_exists(&there, model->name);
    if (there)
        *path = model->name;
    if (st != STRATA_OK || there || vocab == BYTE_VOCAB)
        return st;
    return st_error_remedy(st_error(STRATA_E_INPUT,
                                    "%s has no tokenizer (tokenizer.json, tokenizer.model or vocab.json) for its %u tokens",
                                    model->name, vocab),
                           "texts.tokenizer", "name one with texts.tokenizer DIR");
}

static strata_status take_date(struct st_date *out, const char *text)
{
    *out = st_date_today();
    if (text == NULL || st_date_parse(out, text))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "\"%s\" is not a date such as 2026-07-31", text);
}

/* What is left out, or cannot be learnt from the file, is said. */
static void note(const struct st_tokenize_report *r, const struct st_tokenize_opts *how)
{
    st_tokenize_note(r);
    if (r->truncated > 0)
        st_log(ST_LOG_NOTICE, "%llu conversations are longer than a sequence of %u tokens and are cut: raise %s",
               (unsigned long long)r->truncated, how->seq_len, how->as_trl ? "max_length (model.seq_len)" : "model.seq_len");
    st_tokenize_note_dropped(r);
}

static strata_status write_tokens(const struct st_tokenize_opts *how, bool *dated)
{
    struct st_tokenize_report report = {0};
    strata_status st;

    *dated = false;
    if (how->tokenizer == NULL && how->origin != NULL)
        return st_tokens_from_bytes(how->inputs, how->input_count, how->out, how->origin);
    if (how->tokenizer == NULL)
        return st_tokens_from_text(NULL, how->inputs, how->input_count, how->out, 0, false, NULL);
    st = st_tokenize(how, &report);
    (void)malloc_trim(0); /* what tables and rows took is given back before the run has its memory */
    *dated = report.dated;
    if (st == STRATA_OK)
        note(&report, how);
    return st;
}

/* What people call the data: its token file has a name that they never gave. */
static strata_status open_named(struct strata_data **data, const struct strata_model *model, const char *path,
                                const struct st_tokenize_opts *how, bool dated, const char *part)
{
    const bool files = how->input_count > 0;
    char first[ST_PATH_MAX], name[ST_PATH_MAX + 16];
    strata_status st;

    st_texts_name(first, sizeof(first), files ? how->inputs : how->datasets, how->input_count + how->dataset_count);
    snprintf(name, sizeof(name), "%s%s", first, part);
    st = st_handle_data_of_texts(data, model, path, name);
    if (st == STRATA_OK && dated)
        st_date_text((*data)->date, &how->date);
    return st;
}

/* In a file that is gone when it is no longer read; so is what is held out.  @param heldout  NULL: nothing is */
static strata_status open_temporary(struct strata_data **data, struct strata_data **heldout, const struct strata_model *model,
                                    struct st_tokenize_opts how)
{
    struct st_temp_dir dir;
    char path[ST_PATH_MAX], aside[ST_PATH_MAX];
    bool dated = false;
    strata_status st = st_temp_dir_create(&dir);

    if (st == STRATA_OK)
        st = st_path_join(path, dir.own.path, "texts.bin");
    how.out = path;
    if (st == STRATA_OK)
        st = write_tokens(&how, &dated);
    if (st == STRATA_OK)
        st = open_named(data, model, path, &how, dated, ""); /* reads on when the name is gone */
    if (st == STRATA_OK && heldout != NULL && (st = st_tokens_heldout_path(aside, path)) == STRATA_OK)
        st = open_named(heldout, model, aside, &how, dated, " (held out)");
    if (st != STRATA_OK && *data != NULL) {
        strata_data_close(*data);
        *data = NULL;
    }
    st_temp_dir_remove(&dir);
    return st;
}

/* Makes the tokens there if no run has.  *there false: they cannot be kept, which is no reason not to train. */
static strata_status make_kept(bool *there, struct st_kept *k, struct st_tokenize_opts how)
{
    bool dated;
    strata_status st = st_kept_find(there, k);

    if (st != STRATA_OK)
        return st;
    if (*there) {
        st_log(ST_LOG_INFO, "reusing cached tokens: %s", st_kept_path(k));
        return STRATA_OK;
    }
    how.out = st_kept_path(k);
    how.origin = st_kept_origin(k);
    st = write_tokens(&how, &dated);
    *there = st == STRATA_OK;
    if (*there)
        st_log(ST_LOG_INFO, "%s: tokens kept for the next run", how.out);
    if (st != STRATA_E_NOSPC && !how.origin->refused)
        return st;
    st_log(ST_LOG_NOTICE, "tokens are not kept: %s", strata_last_error());
    return STRATA_OK;
}

struct keeping {
    bool there;
    struct st_kept *kept;
    const struct st_tokenize_opts *how;
};

static strata_status keep_turn(void *ctx)
{
    struct keeping *k = ctx;

    return make_kept(&k->there, k->kept, *k->how);
}

/* One of the ranks that share the directory makes the tokens, and the others find them. */
static strata_status open_kept(struct strata_data **data, const struct strata_model *model, const char *dir,
                               const struct st_tokenize_opts *how)
{
    struct keeping keeping = {.how = how};
    strata_status st = st_kept_open(&keeping.kept, dir, how);

    if (st == STRATA_OK && keeping.kept != NULL)
        st = st_ranks_take_turns(st_handle_comm(model), keep_turn, &keeping, "the tokens of the texts");
    if (st == STRATA_OK)
        st = keeping.there ? open_named(data, model, st_kept_path(keeping.kept), how, st_kept_dated(keeping.kept), "")
                           : open_temporary(data, NULL, model, *how);
    st_kept_close(keeping.kept);
    return st;
}

/* What the options say to the tokens' maker. */
static strata_status take_opts(struct st_tokenize_opts *how, enum st_token_layout *layout, const struct strata_texts_opts *o)
{
    how->dataset_info = o->dataset_info;
    how->datasets = o->datasets;
    how->dataset_count = o->dataset_count;
    how->max_samples = o->max_samples;
    how->train_on_prompt = o->train_on_prompt;
    how->last_answer_only = o->mask_history;
    how->turn_ends = o->turn_ends;
    how->as_trl = o->as_trl;
    how->strict = o->strict;
    how->val_size = o->val_size;
    how->seed = o->seed;
    how->template = o->chat_template;
    how->kwargs = o->chat_template_kwargs;
    for (unsigned i = 0; o->layout != NULL && i < ST_LAYOUT_COUNT; i++)
        if (strcmp(o->layout, st_token_layout_name((enum st_token_layout)i)) == 0) {
            *layout = (enum st_token_layout)i;
            how->layout = layout;
        }
    if (o->layout != NULL && how->layout == NULL)
        return st_error_key(st_error(STRATA_E_INVAL, "texts.layout %s is unknown: use concatenated, packed or rows", o->layout),
                            "texts.layout");
    if (o->train_on_prompt && o->mask_history)
        return st_error(STRATA_E_INVAL, "texts.train_on_prompt and texts.mask_history exclude each other");
    if (!(o->val_size >= 0 && o->val_size <= VAL_ROWS_MAX))
        return st_error_key(
            st_error(STRATA_E_INVAL, "texts.val_size %g: a part below 1, or a number of rows up to 2^53", o->val_size),
            "texts.val_size");
    if (o->val_size >= 1 && o->val_size != (double)(uint64_t)o->val_size)
        return st_error_key(st_error(STRATA_E_INVAL, "texts.val_size %g: from 1 on it is a whole number of rows", o->val_size),
                            "texts.val_size");
    if (o->dataset_count > 0 && o->dataset_info == NULL)
        return st_error_key(st_error(STRATA_E_INVAL, "texts.datasets %s needs texts.dataset_info FILE.json", o->datasets[0]),
                            "texts.dataset_info");
    return take_date(&how->date, o->date);
}

/* One token per byte: nothing knows of rows and conversations. */
static strata_status check_bytes(const struct strata_model *model, const struct strata_texts_opts *o)
{
    const char *const member = o->dataset_count > 0              ? "texts.datasets"
                               : o->chat_template != NULL        ? "texts.chat_template"
                               : o->chat_template_kwargs != NULL ? "texts.chat_template_kwargs"
                               : o->date != NULL                 ? "texts.date"
                               : o->layout != NULL               ? "texts.layout"
                               : o->max_samples > 0              ? "texts.max_samples"
                               : o->val_size > 0                 ? "texts.val_size"
                               : o->train_on_prompt              ? "texts.train_on_prompt"
                               : o->mask_history                 ? "texts.mask_history"
                               : o->turn_ends                    ? "texts.turn_ends"
                               : o->as_trl                       ? "texts.as_trl"
                               : o->strict                       ? "texts.strict"
                                                                 : NULL;

    if (member == NULL)
        return STRATA_OK;
    return st_error_remedy(st_error(STRATA_E_INVAL, "%s is for documents, and %s reads bytes", member, model->name),
                           "texts.tokenizer", "name a tokenizer with texts.tokenizer DIR");
}

static strata_status check_names(const char *const *paths, uint32_t count, const struct strata_texts_opts *o)
{
    if (count + o->dataset_count == 0)
        return st_error(STRATA_E_INVAL, "strata_data_open_texts: count is 0: name a text");
    if (o->val_size > 0 && o->heldout == NULL)
        return st_error_missing("strata_data_open_texts", "heldout");
    for (uint32_t i = 0; i < count; i++)
        if (paths == NULL || paths[i] == NULL)
            return st_error_missing("strata_data_open_texts", paths == NULL ? "paths" : "one of paths");
    for (uint32_t i = 0; i < o->dataset_count; i++)
        if (o->datasets == NULL || o->datasets[i] == NULL)
            return st_error_missing("strata_data_open_texts", "one of datasets");
    return STRATA_OK;
}

strata_status strata_data_kind_of(const char *path, enum strata_data_kind *kind)
{
    strata_status st;

    if (path == NULL || kind == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : "kind");
    if ((st = st_texts_check_kind(path)) == STRATA_OK)
        *kind = st_texts_are_rows(path)                                ? STRATA_KIND_ROWS
                : strcmp(path, "-") == 0 || st_path_ends(path, ".txt") ? STRATA_KIND_TEXT
                                                                       : STRATA_KIND_TOKENS;
    return st;
}

strata_status strata_data_check_set(const char *dataset_info, const char *name)
{
    struct st_dataset set;
    strata_status st;

    if (dataset_info == NULL || name == NULL)
        return st_error_missing(__func__, dataset_info == NULL ? "dataset_info" : "name");
    if ((st = st_dataset_open(&set, dataset_info, name)) != STRATA_OK)
        return st;
    st = st_texts_check_kind(set.path);
    st_dataset_close(&set);
    return st;
}

strata_status strata_data_open_texts(struct strata_data **data, const struct strata_model *model, const char *const *paths,
                                     uint32_t count, const struct strata_texts_opts *opts)
{
    struct st_tokenize_opts how = {.inputs = paths, .input_count = count};
    enum st_token_layout layout = ST_LAYOUT_PACKED;
    struct strata_data *made = NULL, *aside = NULL;
    struct strata_texts_opts o;
    strata_status st;

    if (data == NULL || model == NULL)
        return st_error_missing(__func__, data == NULL ? "data" : "model");
    if ((st = st_handle_check_decoder(model, __func__)) != STRATA_OK ||
        (st = st_handle_opts(&o, sizeof(o), opts, "strata_texts_opts")) != STRATA_OK ||
        (st = check_names(paths, count, &o)) != STRATA_OK ||
        (st = choose_tokenizer(&how.tokenizer, model, o.tokenizer)) != STRATA_OK ||
        (st = take_opts(&how, &layout, &o)) != STRATA_OK || (how.tokenizer == NULL && (st = check_bytes(model, &o)) != STRATA_OK))
        return st;
    how.seq_len = model->size.seq;
    how.vocab = st_model_config(model->model)->vocab;
    st = o.keep != NULL && o.val_size <= 0 ? open_kept(&made, model, o.keep, &how)
                                           : open_temporary(&made, o.val_size > 0 ? &aside : NULL, model, how);
    if (st != STRATA_OK) {
        strata_data_close(made);
        strata_data_close(aside);
        return st;
    }
    st_handle_note_vocab(made, model);
    *data = made;
    if (aside != NULL)
        *o.heldout = aside;
    return STRATA_OK;
}
