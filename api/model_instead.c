/* api/model_instead.c - what a trained model has beside its weights in place of what the model that it began with has: the
 * tokenizer and the chat template of what it was trained on. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "strata/tokenizer.h"
#include "text/data/dialog/dialog.h"

#include <stdlib.h>
#include <string.h>

/* *own: of the tokenizer's directory; NULL: it has none, or none that can be read. */
static strata_status read_own(char **own, struct strata_tokenizer *t)
{
    struct strata_chat *chat = NULL;
    strata_status st = strata_chat_open(&chat, t, NULL);

    *own = NULL;
    if (st == STRATA_E_INPUT || st == STRATA_E_CONFIG) {
        st_error_clear();
        return STRATA_OK;
    }
    if (st == STRATA_OK)
        st = st_dialog_template_text(own, st_handle_dialog(chat));
    strata_chat_close(chat);
    return st;
}

static strata_status take_template(struct strata_model *m, struct strata_tokenizer *t, const struct strata_chat *chat)
{
    const int32_t end = strata_chat_end(chat);
    char *text = NULL, *own = NULL;
    strata_status st = st_dialog_template_text(&text, st_handle_dialog(chat));

    m->beside.instead.ends = end >= 0;
    m->beside.instead.end_token = m->beside.instead.ends ? (uint32_t)end : 0;
    if (st == STRATA_OK)
        st = read_own(&own, t);
    if (st == STRATA_OK && (own == NULL || strcmp(own, text) != 0)) {
        if (m->adapter != NULL && st_handle_ranks(m->comm).rank == 0)
            st_log(ST_LOG_NOTICE, "an adapter keeps no chat template: give %s to generate, too (chat.chat_template)",
                   st_dialog_template_name(st_handle_dialog(chat)));
        else if (own != NULL && st_handle_ranks(m->comm).rank == 0)
            st_log(ST_LOG_NOTICE, "the chat template %s is written beside the weights, in place of the model's own",
                   st_dialog_template_name(st_handle_dialog(chat)));
        m->beside.instead.chat_template = m->beside.chat_template = text;
        text = NULL;
    }
    free(text);
    free(own);
    return st;
}

/* *path: of the tokenizer; NULL: there is none, and no template is written. */
static strata_status find_tokenizer(const char **path, const struct strata_model *m)
{
    bool there = false;
    strata_status st = STRATA_OK;

    *path = m->beside.instead.tokenizer;
    if (m->beside.tokenizer == NULL && m->is_dir)
        st = strata_tokenizer_exists(&there, m->name);
    if (there)
        *path = m->name;
    return st;
}

strata_status st_handle_take_instead(struct strata_model *m, const char *wanted)
{
    struct strata_chat_opts opts = STRATA_CHAT_OPTS_INIT;
    struct strata_tokenizer *t = NULL;
    struct strata_chat *chat = NULL;
    const char *path;
    strata_status st;

    m->beside.instead.tokenizer =
        m->beside.tokenizer != NULL && strcmp(m->beside.tokenizer, "byte") != 0 ? m->beside.tokenizer : NULL;
    if (wanted == NULL || (st = find_tokenizer(&path, m)) != STRATA_OK || path == NULL)
        return wanted == NULL ? STRATA_OK : st;
    opts.chat_template = wanted;
    st = strata_tokenizer_open(&t, path);
    if (st == STRATA_OK)
        st = strata_chat_open(&chat, t, &opts);
    if (st == STRATA_OK)
        st = take_template(m, t, chat);
    strata_chat_close(chat);
    strata_tokenizer_close(t);
    return st;
}
