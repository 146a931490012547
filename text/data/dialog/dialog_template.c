/* dialog_template.c - finds the chat template of a model's directory. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "text/data/dialog/dialog_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CONFIG_BYTES_MAX (64u << 20)
#define NAMES_BYTES      256u

static strata_status copy(char **out, const char *text)
{
    *out = st_fault("dialog.alloc", 0) < 0 ? NULL : strdup(text);
    return *out == NULL ? st_nomem(0) : STRATA_OK;
}

static strata_status read_file(char **out, const char *path)
{
    uint64_t bytes;
    const strata_status st = st_file_read_text(out, &bytes, path, ST_TEMPLATE_BYTES_MAX);

    return st != STRATA_OK || strlen(*out) == bytes ? st : st_error(STRATA_E_INPUT, "%s: a zero byte: it is not text", path);
}

static strata_status from_file(struct st_template_texts *out, const char *path)
{
    const strata_status st = read_file(&out->usual, path);

    return st == STRATA_OK ? copy(&out->name, path) : st;
}

/* The one for conversations with tools, which transformers saves beside the usual one's file. */
static strata_status add_tools(struct st_template_texts *out, const struct st_tokenizer *t)
{
    char path[ST_PATH_MAX];
    bool found;
    strata_status st = st_path_beside(path, st_tokenizer_path(t), ST_DIALOG_TOOLS_NAME);

    if (st != STRATA_OK || (st = st_file_find(&found, path)) != STRATA_OK || !found)
        return st;
    return read_file(&out->tools, path);
}

static strata_status from_named(struct st_template_texts *out, const char *path, const st_json *list)
{
    strata_status st = STRATA_OK;

    for (const st_json *one = st_json_first(list); one != NULL && st == STRATA_OK; one = st_json_next(one)) {
        const bool object = st_json_type(one) == ST_JSON_OBJECT;
        const st_json *name = object ? st_json_get(one, "name") : NULL, *text = object ? st_json_get(one, "template") : NULL;

        if (name == NULL || text == NULL || st_json_type(name) != ST_JSON_STRING || st_json_type(text) != ST_JSON_STRING)
            return st_error(STRATA_E_INPUT, "%s: chat_template: each of a list needs a name and a template", path);
        if (strcmp(st_json_string(name), "default") == 0 && out->usual == NULL)
            st = copy(&out->usual, st_json_string(text));
        else if (strcmp(st_json_string(name), "tool_use") == 0 && out->tools == NULL)
            st = copy(&out->tools, st_json_string(text));
    }
    if (st == STRATA_OK && out->usual == NULL)
        st = st_error_remedy(st_error(STRATA_E_INPUT, "%s: chat_template: none of the list is named \"default\"", path),
                             "texts.chat_template", "give texts.chat_template FILE");
    return st;
}

/* *found false: the file names no template. */
static strata_status from_config(struct st_template_texts *out, const char *path, bool *found)
{
    const st_json *member = NULL;
    st_json *root;
    strata_status st = st_json_parse_file(&root, path, CONFIG_BYTES_MAX);

    if (st != STRATA_OK)
        return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
    if (st_json_type(root) == ST_JSON_OBJECT)
        member = st_json_get(root, "chat_template");
    *found = member != NULL && st_json_type(member) != ST_JSON_NULL;
    if (*found && st_json_type(member) == ST_JSON_STRING)
        st = copy(&out->usual, st_json_string(member));
    else if (*found && st_json_type(member) == ST_JSON_ARRAY)
        st = from_named(out, path, member);
    else if (*found)
        st = st_error(STRATA_E_INPUT, "%s: chat_template: neither a text nor a list", path);
    st_json_free(root);
    return st == STRATA_OK && *found ? copy(&out->name, path) : st;
}

static void list_builtins(char names[NAMES_BYTES])
{
    size_t fill = 0;

    names[0] = '\0';
    for (uint32_t i = 0; st_template_builtin_name(i) != NULL; i++)
        fill += (size_t)snprintf(names + fill, NAMES_BYTES - fill, "%s%s", i > 0 ? ", " : "", st_template_builtin_name(i));
}

static strata_status from_directory(struct st_template_texts *out, const struct st_tokenizer *t)
{
    char path[ST_PATH_MAX], names[NAMES_BYTES];
    bool found = false;
    strata_status st;

    if ((st = st_path_beside(path, st_tokenizer_path(t), "chat_template.jinja")) != STRATA_OK ||
        (st = st_file_find(&found, path)) != STRATA_OK)
        return st;
    if (found)
        return (st = from_file(out, path)) == STRATA_OK ? add_tools(out, t) : st;
    if ((st = st_path_beside(path, st_tokenizer_path(t), "tokenizer_config.json")) != STRATA_OK ||
        (st = st_file_find(&found, path)) != STRATA_OK)
        return st;
    if (found && ((st = from_config(out, path, &found)) != STRATA_OK || found))
        return st;
    list_builtins(names);
    return st_error_remedy(
        st_error(STRATA_E_INPUT,
                 "%s: no chat template beside it (chat_template.jinja, or chat_template in tokenizer_config.json)",
                 st_tokenizer_path(t)),
        "texts.chat_template", "give texts.chat_template with a file or one of %s", names);
}

static strata_status from_wish(struct st_template_texts *out, const char *wanted)
{
    const char *builtin = st_template_builtin(wanted);
    char names[NAMES_BYTES];
    bool there = false;
    strata_status st;

    if (builtin != NULL) {
        out->builtin = true;
        if ((st = copy(&out->usual, builtin)) != STRATA_OK)
            return st;
        return asprintf(&out->name, "built-in %s", wanted) < 0 ? st_nomem(0) : STRATA_OK;
    }
    if ((st = st_file_find(&there, wanted)) != STRATA_OK)
        return st;
    if (there)
        return from_file(out, wanted);
    list_builtins(names);
    return st_error_key(st_error(STRATA_E_INPUT, "texts.chat_template %s: neither a file nor one of %s", wanted, names),
                        "texts.chat_template");
}

strata_status st_template_texts_find(struct st_template_texts *out, const struct st_tokenizer *t, const char *wanted)
{
    struct st_template_texts found = {0};
    const strata_status st = wanted != NULL ? from_wish(&found, wanted) : from_directory(&found, t);

    if (st != STRATA_OK) {
        st_template_texts_free(&found);
        return st;
    }
    *out = found;
    return STRATA_OK;
}

void st_template_texts_free(struct st_template_texts *texts)
{
    free(texts->usual);
    free(texts->tools);
    free(texts->name);
    *texts = (struct st_template_texts){0};
}
