/* api/door_chat.c - strata/tokenizer.h: a conversation, written by its template and turned into tokens as one text. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json.h"
#include "strata/tokenizer.h"
#include "text/data/dialog/dialog.h"

#include <stdio.h>
#include <stdlib.h>

struct message {
    char *role, *content;
};

struct strata_chat {
    struct strata_tokenizer *tokenizer;
    struct st_dialog *dialog;
    struct message *messages; /* [count] */
    size_t count;
    int32_t end;
    struct st_dialog_ids ids; /* what the last call gave */
};

static strata_status parse_messages(st_json **out, const struct message *messages, size_t count)
{
    struct st_json_writer w;
    char *text = NULL;
    size_t bytes = 0;
    FILE *const file = st_fault_refuses("api.chat_json") ? NULL : open_memstream(&text, &bytes);
    bool failed = file == NULL;
    strata_status st;

    if (file != NULL) {
        st_json_begin(&w, file);
        st_json_array_open(&w, NULL);
        for (size_t i = 0; i < count; i++) {
            st_json_object_open(&w, NULL);
            st_json_put_string(&w, "role", messages[i].role);
            st_json_put_string(&w, "content", messages[i].content);
            st_json_object_close(&w);
        }
        st_json_array_close(&w);
        failed = ferror(file) != 0;
        failed |= fclose(file) != 0;
    }
    st = failed ? st_nomem(0) : st_json_parse(out, text, bytes, "conversation");
    free(text);
    return st;
}

static strata_status encode_messages(struct strata_chat *c, const struct message *messages, size_t count, bool prompt)
{
    st_json *root = NULL;
    strata_status st = parse_messages(&root, messages, count);

    if (st != STRATA_OK)
        return st;
    st = st_dialog_encode(c->dialog, root, NULL, prompt, &c->ids);
    st_json_free(root);
    return st;
}

/* What a model learns to write after an answer.  A template that refuses this conversation says nothing about it. */
static strata_status find_end(struct strata_chat *c)
{
    static char user[] = "user", assistant[] = "assistant", question[] = "?", answer[] = "!";
    const struct message messages[] = {{user, question}, {assistant, answer}};
    const strata_status st = encode_messages(c, messages, 2, false);

    c->end = -1;
    if (st == STRATA_E_INPUT || st == STRATA_E_NOSYS) {
        st_error_clear();
        return STRATA_OK;
    }
    for (size_t i = 0; st == STRATA_OK && i < c->ids.encoding.count; i++)
        if (c->ids.trained[i] != 0 && st_tokenizer_is_special(c->tokenizer->tokenizer, c->ids.encoding.ids[i]))
            c->end = (int32_t)c->ids.encoding.ids[i];
    return st;
}

static strata_status take_date(struct st_date *out, const char *text)
{
    *out = st_date_today();
    if (text == NULL || st_date_parse(out, text))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "\"%s\" is not a date such as 2026-07-31", text);
}

strata_status strata_chat_open(struct strata_chat **chat, struct strata_tokenizer *tokenizer, const struct strata_chat_opts *opts)
{
    struct st_dialog_opts how = {0};
    struct strata_chat_opts o;
    struct strata_chat *c;
    strata_status st;

    if (chat == NULL || tokenizer == NULL)
        return st_error_missing(__func__, chat == NULL ? "chat" : "tokenizer");
    if ((st = st_handle_opts(&o, sizeof(o), opts, "strata_chat_opts")) != STRATA_OK ||
        (st = take_date(&how.date, o.date)) != STRATA_OK)
        return st;
    c = st_fault_refuses("api.chat") ? NULL : calloc(1, sizeof(*c));
    if (c == NULL)
        return st_nomem(sizeof(*c));
    how.template = o.chat_template;
    how.kwargs = o.chat_template_kwargs;
    c->tokenizer = tokenizer;
    atomic_fetch_add(&tokenizer->users, 1);
    st = st_dialog_open(&c->dialog, tokenizer->tokenizer, &how);
    if (st == STRATA_OK)
        st = find_end(c);
    if (st != STRATA_OK) {
        strata_chat_close(c);
        return st;
    }
    *chat = c;
    return STRATA_OK;
}

strata_status strata_chat_add(struct strata_chat *chat, const char *role, const char *content)
{
    struct message *messages, added = {0};
    strata_status st;

    if (chat == NULL || role == NULL || content == NULL)
        return st_error_missing(__func__, chat == NULL ? "chat" : role == NULL ? "role" : "content");
    messages = st_fault_refuses("api.chat_add") ? NULL : realloc(chat->messages, (chat->count + 1) * sizeof(*messages));
    if (messages == NULL)
        return st_nomem((chat->count + 1) * sizeof(*messages));
    chat->messages = messages;
    if ((st = st_handle_text(&added.role, role)) == STRATA_OK && (st = st_handle_text(&added.content, content)) == STRATA_OK) {
        messages[chat->count++] = added;
        return STRATA_OK;
    }
    free(added.role);
    return st;
}

strata_status strata_chat_tokens(struct strata_chat *chat, const int32_t **ids, size_t *count)
{
    strata_status st;

    if (chat == NULL || ids == NULL || count == NULL)
        return st_error_missing(__func__, chat == NULL ? "chat" : ids == NULL ? "ids" : "count");
    st = encode_messages(chat, chat->messages, chat->count, true);
    if (st == STRATA_OK)
        st_handle_ids(&chat->ids.encoding, ids, count);
    return st;
}

const struct st_dialog *st_handle_dialog(const struct strata_chat *chat)
{
    return chat->dialog;
}

int32_t strata_chat_end(const struct strata_chat *chat)
{
    return chat != NULL ? chat->end : -1;
}

void strata_chat_close(struct strata_chat *chat)
{
    if (chat == NULL)
        return;
    for (size_t i = 0; i < chat->count; i++) {
        free(chat->messages[i].role);
        free(chat->messages[i].content);
    }
    free(chat->messages);
    st_dialog_ids_free(&chat->ids);
    st_dialog_close(chat->dialog);
    strata_tokenizer_close(chat->tokenizer);
    free(chat);
}
