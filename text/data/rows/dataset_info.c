/* dataset_info.c - see dataset_info.h. */
#include "text/data/rows/dataset_info.h"

#include "core/base/error.h"
#include "core/base/log.h"
#include "core/base/word.h"
#include "core/yaml/yaml.h"
#include "text/data/rows/row_columns.h"

#include <stdio.h>
#include <string.h>

#define INFO_BYTES_MAX (16u << 20)

/* A data set's entry, and its place for messages. */
struct entry {
    const char *path, *name;
    const st_json *node;
};

static strata_status wrong(const struct entry *e, const char *key, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s: \"%s\": %s: %s", e->path, e->name, key, what);
}

static const st_json *member(const st_json *object, const char *key)
{
    const st_json *n = st_json_get(object, key);

    return n == NULL || st_json_type(n) == ST_JSON_NULL ? NULL : n;
}

/* A name; *out stays where there is none and `keep`, else it is NULL then. */
static strata_status read_name(const char **out, const struct entry *e, const st_json *object, const char *key, bool keep)
{
    const st_json *n = member(object, key);

    if (n == NULL && !keep)
        *out = NULL;
    if (n == NULL)
        return STRATA_OK;
    if (st_json_type(n) != ST_JSON_STRING)
        return wrong(e, key, "not a text");
    *out = st_json_string(n);
    return STRATA_OK;
}

static strata_status read_format(enum st_row_format *out, const struct entry *e)
{
    const char *name = "alpaca";
    const strata_status st = read_name(&name, e, e->node, "formatting", true);

    if (st != STRATA_OK)
        return st;
    if (strcmp(name, "alpaca") == 0)
        *out = ST_ROWS_ALPACA;
    else if (strcmp(name, "sharegpt") == 0)
        *out = ST_ROWS_SHAREGPT;
    else
        return wrong(e, "formatting", "neither alpaca nor sharegpt: give the file itself and tokens.format messages");
    return STRATA_OK;
}

static strata_status refuse_kinds(const struct entry *e)
{
    static const char *const remote[] = {"hf_hub_url", "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name"};
    const st_json *ranking = member(e->node, "ranking"), *columns = member(e->node, "columns");
    const st_json *of_hub = member(e->node, remote[0]);
    const char *split = "train";
    char hub[512];
    strata_status st;

    if (of_hub != NULL && st_json_type(of_hub) == ST_JSON_STRING) {
        snprintf(hub, sizeof(hub),
                 "nothing is downloaded: python -c \"from datasets import *; load_dataset('%.160s', "
                 "split='train').to_json('rows.jsonl')\" makes a file, which file_name names",
                 st_json_string(of_hub));
        return wrong(e, remote[0], hub);
    }
    for (size_t i = 0; i < sizeof(remote) / sizeof(remote[0]); i++)
        if (st_json_get(e->node, remote[i]) != NULL)
            return wrong(e, remote[i], "not a local file: download it as JSON and name it in file_name");
    if (ranking != NULL && st_json_bool(ranking))
        return wrong(e, "ranking", "pairs of answers are not trained here");
    for (const st_json *n = columns != NULL ? st_json_first(columns) : NULL; n != NULL; n = st_json_next(n))
        if (st_json_name(n) != NULL && st_json_type(n) != ST_JSON_NULL && st_row_column_refusal(st_json_name(n)) != NULL)
            return wrong(e, st_json_name(n), st_row_column_refusal(st_json_name(n)));
    if ((st = read_name(&split, e, e->node, "split", true)) != STRATA_OK)
        return st;
    return strcmp(split, "train") == 0 ? STRATA_OK : wrong(e, "split", "a local file has only train");
}

static strata_status read_columns(struct st_row_shape *s, const struct entry *e, const st_json *columns)
{
    const struct {
        const char *key, **out;
    } rows[] = {{"prompt", &s->prompt},     {"query", &s->query},   {"response", &s->reply}, {"history", &s->history},
                {"messages", &s->messages}, {"system", &s->system}, {"tools", &s->tools}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const strata_status st = read_name(rows[i].out, e, columns, rows[i].key, false);

        if (st != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

static strata_status read_tags(struct st_row_shape *s, const struct entry *e, const st_json *tags)
{
    const struct {
        const char *key, **out;
    } rows[] = {{"role_tag", &s->role},           {"content_tag", &s->content},         {"user_tag", &s->user},
                {"assistant_tag", &s->assistant}, {"observation_tag", &s->observation}, {"function_tag", &s->function},
                {"system_tag", &s->system_role}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const strata_status st = read_name(rows[i].out, e, tags, rows[i].key, false);

        if (st != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

/* Without "columns", its defaults name no system prompt, history or tools. */
static strata_status read_shape(struct st_row_shape *s, const struct entry *e)
{
    const st_json *columns = member(e->node, "columns"), *tags = member(e->node, "tags");
    enum st_row_format format = ST_ROWS_ALPACA;
    strata_status st = read_format(&format, e);

    if (st != STRATA_OK)
        return st;
    if ((columns != NULL && st_json_type(columns) != ST_JSON_OBJECT) || (tags != NULL && st_json_type(tags) != ST_JSON_OBJECT))
        return wrong(e, columns != NULL && st_json_type(columns) != ST_JSON_OBJECT ? "columns" : "tags", "not an object");
    *s = st_row_shape_of(format);
    s->system = s->history = s->tools = NULL;
    if (columns != NULL && (st = read_columns(s, e, columns)) != STRATA_OK)
        return st;
    s->named = columns != NULL;
    if (format == ST_ROWS_ALPACA && s->prompt != NULL && s->query == NULL && s->reply == NULL) {
        s->format = ST_ROWS_TEXT;
        s->text = s->prompt;
    }
    if (format == ST_ROWS_SHAREGPT && s->messages == NULL)
        return wrong(e, "columns", "no \"messages\": which column has the turns?");
    return tags != NULL ? read_tags(s, e, tags) : STRATA_OK;
}

static const char *const entry_keys[] = {"hf_hub_url",  "ms_hub_url", "om_hub_url", "script_url", "cloud_file_name", "file_name",
                                         "file_sha1",   "formatting", "ranking",    "subset",     "split",           "folder",
                                         "num_samples", "columns",    "tags",       NULL};
static const char *const column_keys[] = {"prompt", "query",  "response", "history", "messages", "system",  "tools",
                                          "images", "videos", "audios",   "chosen",  "rejected", "kto_tag", NULL};
static const char *const tag_keys[] = {"role_tag",        "content_tag",  "user_tag",   "assistant_tag",
                                       "observation_tag", "function_tag", "system_tag", NULL};

/* Keys that LLaMA-Factory passes over, too: what they should say is not done.  @param section  before the key; ""
 *  @param keys  ends with NULL */
static void note_unknown(const struct entry *e, const char *section, const st_json *object, const char *const *keys)
{
    for (const st_json *n = object != NULL ? st_json_first(object) : NULL; n != NULL; n = st_json_next(n)) {
        const char *name = st_json_name(n), *nearest = NULL;
        uint32_t most = st_word_edits_most(name) + 1;

        for (size_t i = 0; keys[i] != NULL; i++)
            if (st_word_edits(name, keys[i]) < most) {
                nearest = keys[i];
                most = st_word_edits(name, nearest);
            }
        if (nearest == NULL || most > 0)
            st_log(ST_LOG_NOTICE, "%s: \"%s\": %s\"%.64s\" is not read%s%s%s", e->path, e->name, section, name,
                   nearest != NULL ? ": is \"" : "", nearest != NULL ? nearest : "", nearest != NULL ? "\" meant?" : "");
    }
}

static strata_status read_path(struct st_dataset *out, const struct entry *e)
{
    const char *file = NULL;
    strata_status st = read_name(&file, e, e->node, "file_name", true);

    if (st != STRATA_OK)
        return st;
    if (file == NULL || file[0] == '\0')
        return wrong(e, "file_name", "missing");
    return file[0] == '/' ? st_path_copy(out->path, file) : st_path_beside(out->path, e->path, file);
}

static strata_status read_entry(struct st_dataset *out, const struct entry *e)
{
    const st_json *samples;
    strata_status st;

    if ((st = refuse_kinds(e)) != STRATA_OK || (st = read_shape(&out->shape, e)) != STRATA_OK ||
        (st = read_path(out, e)) != STRATA_OK)
        return st;
    note_unknown(e, "", e->node, entry_keys);
    note_unknown(e, "columns: ", member(e->node, "columns"), column_keys);
    note_unknown(e, "tags: ", member(e->node, "tags"), tag_keys);
    samples = member(e->node, "num_samples");
    if (samples != NULL && (!st_json_u64(samples, &out->num_samples) || out->num_samples == 0))
        return wrong(e, "num_samples", "not a whole number above 0");
    return STRATA_OK;
}

/* Version 1 names a file from the working directory; else from this file's, or the nearest above it that has it. */
static strata_status read_path_v1(struct st_dataset *out, const struct entry *e)
{
    const char *file = NULL;
    bool there = false;
    strata_status st = read_name(&file, e, e->node, "path", true);

    if (st != STRATA_OK)
        return st;
    if (file == NULL || file[0] == '\0')
        return wrong(e, "path", "missing");
    st = st_file_find(&there, file);
    for (size_t length = strlen(e->path); st == STRATA_OK && !there && file[0] != '/' && length > 0; length--) {
        if (e->path[length - 1] != '/')
            continue;
        if ((size_t)snprintf(out->path, sizeof(out->path), "%.*s%s", (int)length, e->path, file) >= sizeof(out->path))
            break;
        st = st_file_find(&there, out->path);
        if (there)
            return st;
    }
    return st == STRATA_OK ? st_path_copy(out->path, file) : st;
}

/* A data set of LLaMA-Factory's version 1. */
static strata_status read_entry_v1(struct st_dataset *out, const struct entry *e)
{
    static const char *const keys[] = {"path", "source", "split", "converter", "size", "weight", "streaming", NULL};
    const char *source = "hf_hub", *split = "train", *converter = "";
    const st_json *size = member(e->node, "size"), *streaming = member(e->node, "streaming");
    strata_status st;

    if ((st = read_name(&source, e, e->node, "source", true)) != STRATA_OK ||
        (st = read_name(&split, e, e->node, "split", true)) != STRATA_OK ||
        (st = read_name(&converter, e, e->node, "converter", true)) != STRATA_OK)
        return st;
    if (strcmp(source, "local") != 0)
        return wrong(e, "source", "not local: nothing is downloaded; save its rows as JSON, and write source: local");
    if (strcmp(split, "train") != 0)
        return wrong(e, "split", "a local file has only train");
    if (strcmp(converter, "pair") == 0)
        return wrong(e, "converter", "pair: pairs of answers are not trained here");
    if (strcmp(converter, "alpaca") != 0 && strcmp(converter, "sharegpt") != 0)
        return wrong(e, "converter", "neither alpaca nor sharegpt: rows of other shapes are not read");
    if (member(e->node, "weight") != NULL || (streaming != NULL && st_json_bool(streaming)))
        return wrong(e, member(e->node, "weight") != NULL ? "weight" : "streaming",
                     "rows are read once, before training: remove it");
    out->shape = st_row_shape_of(converter[0] == 'a' ? ST_ROWS_ALPACA : ST_ROWS_SHAREGPT);
    out->shape.history = NULL;
    out->shape.joined = converter[0] == 'a';
    note_unknown(e, "", e->node, keys);
    if (size != NULL && (!st_json_u64(size, &out->num_samples) || out->num_samples == 0))
        return wrong(e, "size", "not a whole number above 0");
    if (size != NULL)
        st_log(ST_LOG_NOTICE, "%s: \"%s\": size: rows are drawn without repeats, and with them there", e->path, e->name);
    return read_path_v1(out, e);
}

/* Each rank, and strata check, would read it. */
static strata_status refuse_pipe(const struct st_dataset *set, const struct entry *e, const char *key)
{
    char what[ST_PATH_MAX + 96];

    if (!st_file_is_pipe(set->path))
        return STRATA_OK;
    snprintf(what, sizeof(what),
             "%s is a pipe, which can be read once: make a file of it, or give it by strata_data_open_texts()", set->path);
    return wrong(e, key, what);
}

strata_status st_dataset_open(struct st_dataset *out, const char *path, const char *name)
{
    const bool v1 = st_yaml_is_name(path);
    struct entry e = {.path = path, .name = name};
    strata_status st;

    *out = (struct st_dataset){0};
    st = v1 ? st_yaml_parse_file(&out->info, path, INFO_BYTES_MAX) : st_json_parse_file(&out->info, path, INFO_BYTES_MAX);
    if (st != STRATA_OK)
        return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
    if (st_json_type(out->info) == ST_JSON_OBJECT)
        e.node = st_json_get(out->info, name);
    if (e.node == NULL || st_json_type(e.node) != ST_JSON_OBJECT)
        st = st_error(STRATA_E_INPUT, "%s: no data set is called \"%s\"", path, name);
    else
        st = v1 ? read_entry_v1(out, &e) : read_entry(out, &e);
    if (st == STRATA_OK)
        st = refuse_pipe(out, &e, v1 ? "path" : "file_name");
    if (st != STRATA_OK)
        st_dataset_close(out);
    return st;
}

void st_dataset_close(struct st_dataset *d)
{
    st_json_free(d->info);
    *d = (struct st_dataset){0};
}
