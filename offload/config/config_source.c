/* config_source.c - takes keys from the file and the command line, and reports afterwards what became of them. */
#include "offload/config/config_source.h"
#include "core/base/error.h"
#include "core/base/text.h"

#include "core/base/fault.h"
#include "core/yaml/yaml.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define KEY_SHOWN  64  /* bytes of a key inside a message */
#define TEXT_BYTES 512 /* of one message or value; longer ones are truncated */

static void take_members(struct st_config_source *src, const struct st_field *section, const st_json *object,
                         const char *spelling, enum st_config_origin origin);

void *st_source_add(struct st_config_source *src, struct st_list *list, size_t item_bytes)
{
    if (list->count == list->capacity) {
        const uint32_t capacity = list->capacity > 0 ? 2 * list->capacity : 16;
        void *items = st_fault("config.alloc", 0) < 0 ? NULL : realloc(list->items, capacity * item_bytes);

        if (items == NULL) {
            src->failed = true;
            return NULL;
        }
        list->items = items;
        list->capacity = capacity;
    }
    return (char *)list->items + item_bytes * list->count++;
}

const char *st_source_keep_whole(struct st_config_source *src, const char *text)
{
    char **slot = st_source_add(src, &src->strings, sizeof(char *));
    char *copy = st_fault("config.alloc", 0) < 0 ? NULL : strdup(text);

    if (slot == NULL || copy == NULL) {
        free(copy);
        if (slot != NULL)
            *slot = NULL;
        src->failed = true;
        return "";
    }
    *slot = copy;
    return copy;
}

const char *st_source_keep(struct st_config_source *src, const char *fmt, ...)
{
    char text[TEXT_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    return st_source_keep_whole(src, text);
}

void st_source_problem(struct st_config_source *src, const char *fmt, ...)
{
    const char **slot = st_source_add(src, &src->problems, sizeof(char *));
    char text[TEXT_BYTES], shown[TEXT_BYTES];
    va_list args;

    if (slot == NULL)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    st_text_escape(shown, sizeof(shown), text);
    *slot = st_source_keep_whole(src, shown);
}

struct st_config_source *st_source_create(bool allow_unknown)
{
    struct st_config_source *src = st_fault("config.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*src));

    if (src == NULL)
        return NULL;
    src->allow_unknown = allow_unknown;
    src->fields = st_fault("config.alloc", 0) < 0 ? NULL : calloc(st_field_count(), sizeof(src->fields[0]));
    if (src->fields == NULL) {
        free(src);
        return NULL;
    }
    return src;
}

void st_config_source_free(struct st_config_source *src)
{
    if (src == NULL)
        return;
    for (uint32_t i = 0; i < src->trees.count; i++)
        st_json_free(((st_json **)src->trees.items)[i]);
    for (uint32_t i = 0; i < src->strings.count; i++)
        free(((char **)src->strings.items)[i]);
    free(src->trees.items);
    free(src->strings.items);
    free(src->strays.items);
    free(src->rows.items);
    free(src->problems.items);
    free(src->fields);
    free(src);
}

struct st_field_state *st_source_state(struct st_config_source *src, const char *path)
{
    return &src->fields[st_field_index(st_field_known(path))];
}

bool st_source_given(struct st_config_source *src, const char *path)
{
    return st_source_state(src, path)->usable;
}

bool st_source_is_auto(struct st_config_source *src, const char *path)
{
    return st_source_state(src, path)->origin == ST_ORIGIN_AUTO;
}

const char *st_source_takers(struct st_config_source *src, const char *choice_path, uint32_t bits)
{
    char names[128] = "";

    for (const struct st_choice *c = st_field_known(choice_path)->choices; c->text != NULL; c++) {
        const size_t used = strlen(names);

        if (c->verdict == ST_VERDICT_HONOURED && (bits >> c->value & 1) != 0)
            snprintf(names + used, sizeof(names) - used, "%s%s", used > 0 ? ", " : "", c->text);
    }
    return st_source_keep(src, "%s", names);
}

void st_source_note(struct st_config_source *src, const char *path, const char *text)
{
    struct st_field_state *state = st_source_state(src, path);

    if (state->verdict != ST_VERDICT_REJECTED)
        state->reason = text;
}

void st_source_announce(struct st_config_source *src, const char *path, const char *text)
{
    st_source_note(src, path, text);
    st_source_state(src, path)->announced = true;
}

void st_source_derive(struct st_config_source *src, const char *path, const char *text)
{
    st_source_state(src, path)->origin = ST_ORIGIN_DERIVED;
    st_source_note(src, path, text);
}

void st_source_idle(struct st_config_source *src, const char *path, const char *reason)
{
    struct st_field_state *state = st_source_state(src, path);

    if (state->node == NULL || state->verdict == ST_VERDICT_REJECTED)
        return;
    state->verdict = ST_VERDICT_NOTICE;
    state->reason = reason;
    state->idle = true;
}

void st_source_reject(struct st_config_source *src, const char *path, const char *reason)
{
    struct st_field_state *state = st_source_state(src, path);

    state->verdict = ST_VERDICT_REJECTED;
    state->reason = reason;
    if (src->problems.count == 0)
        src->first_key = path;
    st_source_problem(src, "%s%s: %s", state->spelling != NULL ? state->spelling : path,
                      state->origin == ST_ORIGIN_COMMAND_LINE  ? " (command line)"
                      : state->origin == ST_ORIGIN_ENVIRONMENT ? " (environment)"
                                                               : "",
                      reason);
}

const st_json *st_source_adopt(struct st_config_source *src, st_json *tree)
{
    st_json **slot = st_source_add(src, &src->trees, sizeof(st_json *));

    if (slot == NULL) {
        st_json_free(tree);
        return NULL;
    }
    *slot = tree;
    return tree;
}

strata_status st_source_parse_file(st_json **root, const char *path)
{
    return st_yaml_is_name(path) ? st_yaml_parse_file(root, path, ST_SOURCE_FILE_MAX)
                                 : st_hjson_parse_file(root, path, ST_SOURCE_FILE_MAX);
}

const st_json *st_source_parse(struct st_config_source *src, const char *text)
{
    st_json *tree;
    const strata_status st = st_json_parse(&tree, text, strlen(text), "value");

    if (st == STRATA_E_NOMEM)
        src->failed = true;
    return st == STRATA_OK ? st_source_adopt(src, tree) : NULL;
}

/* The text itself as a JSON string; NULL if memory is short. */
static const st_json *string_value(struct st_config_source *src, const char *text)
{
    struct st_json_writer w;
    const st_json *node = NULL;
    char *quoted = NULL;
    size_t bytes = 0;
    FILE *file = st_fault("config.alloc", 0) < 0 ? NULL : open_memstream(&quoted, &bytes);

    if (file == NULL) {
        src->failed = true;
        return NULL;
    }
    st_json_begin(&w, file);
    st_json_put_string(&w, NULL, text);
    if (fclose(file) == 0)
        node = st_source_parse(src, quoted);
    if (node == NULL)
        src->failed = true;
    free(quoted);
    return node;
}

bool st_source_is_comment(const char *key)
{
    return key[0] == '_' || key[0] == '#' || strncmp(key, "//", 2) == 0;
}

/* The key that says whose argument this is, as optimizer.type does of optimizer.params; NULL: it is none. */
static const struct st_field *muter_of(const char *path)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++) {
        const size_t length = f->mutes != NULL ? strlen(f->mutes) : 0;

        if (length > 0 && strncmp(path, f->mutes, length) == 0 && path[length] == '.')
            return f;
    }
    return NULL;
}

/* Reports a key that is not in the table, with the nearest one that is; an argument once it is known of what. */
static void take_unknown(struct st_config_source *src, const struct st_field *section, const char *key, const st_json *node,
                         const char *spelling, enum st_config_origin origin)
{
    const bool comment = st_source_is_comment(key), open = comment || (section != NULL && section->type == ST_FIELD_OPEN);
    const char *hint = src->allow_unknown ? "" : "; config.allow_unknown ignores it";
    struct st_config_row *row = st_source_add(src, &src->strays, sizeof(*row));
    char nearest[128], shown[TEXT_BYTES];
    const char *reason;

    if (row == NULL)
        return;
    if (open)
        reason = comment ? ST_COMMENT : section->reason;
    else if (section != NULL && section->type == ST_FIELD_JSON)
        reason = st_source_keep(src, "%s is one value: config.overrides '%s={\"%.64s\": ...}' replaces it whole", section->path,
                                section->path, key);
    else if (st_field_nearest(nearest, sizeof(nearest), section, key))
        reason = st_source_keep(src, "unknown key; the nearest is %s%s", nearest, hint);
    else
        reason = st_source_keep(src, "unknown key%s", hint);
    st_value_show(shown, sizeof(shown), node);
    *row = (struct st_config_row){
        .path = spelling,
        .value = st_source_keep(src, "%s", shown),
        .origin = origin,
        .verdict = open || src->allow_unknown ? ST_VERDICT_NOTICE : ST_VERDICT_REJECTED,
        .reason = reason,
        .changes = comment ? ST_CHANGES_NEITHER
                   : open  ? st_field_changes(section)
                           : ST_CHANGES_RESULTS,
    };
    if (row->verdict == ST_VERDICT_REJECTED && muter_of(spelling) == NULL)
        st_source_problem(src, "%s: %s", spelling, reason);
}

void st_source_judge_arguments(struct st_config_source *src)
{
    for (uint32_t i = 0; i < src->strays.count; i++) {
        struct st_config_row *row = &((struct st_config_row *)src->strays.items)[i];
        const struct st_field *muter = row->verdict == ST_VERDICT_REJECTED ? muter_of(row->path) : NULL;

        if (muter == NULL)
            continue;
        if (st_source_state(src, muter->path)->verdict == ST_VERDICT_REJECTED) {
            row->verdict = ST_VERDICT_NOTICE;
            row->unjudged = true;
            row->reason = st_source_keep(src, "not evaluated: %s is rejected", muter->path);
        } else {
            st_source_problem(src, "%s: %s", row->path, row->reason);
        }
    }
}

/* `"scheduler": null` on the command line removes the file's section. */
static void forget_members(struct st_config_source *src, const struct st_field *section)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        if (st_field_inside(f, section->path))
            src->fields[i] = (struct st_field_state){0};
}

void st_source_take(struct st_config_source *src, const struct st_field *field, const st_json *node, const char *spelling,
                    enum st_config_origin origin)
{
    struct st_field_state *state = &src->fields[st_field_index(field)];
    const bool section = field->type == ST_FIELD_OBJECT || field->type == ST_FIELD_OPEN;

    if (st_json_type(node) == ST_JSON_NULL) { /* as if the key were left out */
        if (origin != ST_ORIGIN_FILE)
            *state = (struct st_field_state){0};
        if (section)
            forget_members(src, field);
        return;
    }
    if (state->spelling != NULL && state->origin == origin && origin == ST_ORIGIN_FILE)
        st_source_problem(src, "%s and %s are one key: leave one out", state->spelling, spelling);
    *state = (struct st_field_state){.spelling = spelling, .origin = origin, .node = node};
    if (section && st_json_type(node) == ST_JSON_OBJECT)
        take_members(src, field, node, spelling, origin);
    if (strcmp(field->path, "zero_optimization") == 0 && st_json_type(node) == ST_JSON_BOOL) {
        state->node = NULL;
        node = st_source_parse(src, st_json_bool(node) ? "1" : "0");
        if (node != NULL)
            st_source_take(src, st_field_known("zero_optimization.stage"), node, spelling, origin);
    }
}

static void take_members(struct st_config_source *src, const struct st_field *section, const st_json *object,
                         const char *spelling, enum st_config_origin origin)
{
    for (const st_json *n = st_json_first(object); n != NULL; n = st_json_next(n)) {
        const char *key = st_json_name(n);
        const struct st_field *field = st_field_child(section, key);
        const char *path = st_source_keep(src, "%s%s%.*s", spelling, spelling[0] != '\0' ? "." : "", KEY_SHOWN, key);

        if (field != NULL)
            st_source_take(src, field, n, path, origin);
        else
            take_unknown(src, section, key, n, path, origin);
    }
}

void st_source_take_file(struct st_config_source *src, st_json *root, const char *name)
{
    const st_json *tree = st_source_adopt(src, root);

    src->file = st_source_keep(src, "%s", name);
    src->has_file = true;
    if (tree != NULL && st_json_type(tree) == ST_JSON_OBJECT)
        take_members(src, NULL, tree, "", ST_ORIGIN_FILE);
    else if (tree != NULL)
        st_source_problem(src, st_yaml_is_name(src->file) ? "a configuration is keys with values, and there are none"
                                                          : "a config is one JSON object: { ... }");
}

/* The value of an override: JSON if it parses and the field could take it, otherwise the text as a string. */
static const st_json *override_value(struct st_config_source *src, const struct st_field *field, const char *text)
{
    const bool textual =
        field != NULL && (field->type == ST_FIELD_TEXT || field->type == ST_FIELD_SECRET || field->type == ST_FIELD_DIRS ||
                          field->type == ST_FIELD_PATTERNS || field->type == ST_FIELD_CHOICE);
    const st_json *node = st_source_parse(src, text);

    if (node == NULL || (textual && (st_json_type(node) == ST_JSON_NUMBER || st_json_type(node) == ST_JSON_BOOL)))
        return string_value(src, text);
    return node;
}

void st_source_take_override(struct st_config_source *src, const char *text)
{
    const size_t path_len = strcspn(text, "=");
    const char *spelling = st_source_keep(src, "%.*s", (int)path_len, text);
    const struct st_field *section = NULL, *field = NULL;
    const st_json *node;
    char key[KEY_SHOWN];

    if (text[path_len] == '\0' || path_len == 0) {
        st_source_problem(src, "\"%.*s\" on the command line must be PATH=VALUE, such as optimizer.params.lr=1e-4", KEY_SHOWN,
                          text);
        return;
    }
    for (const char *at = spelling;; at++) {
        const size_t len = strcspn(at, ".");

        snprintf(key, sizeof(key), "%.*s", (int)len, at);
        field = len < sizeof(key) ? st_field_child(section, key) : NULL;
        at += len;
        if (field == NULL || *at == '\0')
            break;
        section = field;
    }
    if (!st_text_is_utf8(text + path_len + 1)) { /* escaped, it would name something else */
        st_source_problem(src, "%s %s: the name is not UTF-8, as a configuration is%s", spelling, text + path_len + 1,
                          field != NULL && (field->type == ST_FIELD_DIRS || field->bind == ST_BIND_PATH) ? ": give a link to it"
                                                                                                         : "");
        return;
    }
    node = override_value(src, field, text + path_len + 1);
    if (node == NULL)
        return;
    if (field != NULL)
        st_source_take(src, field, node, field->path, ST_ORIGIN_COMMAND_LINE);
    else
        take_unknown(src, section, key, node, spelling, ST_ORIGIN_COMMAND_LINE);
}

void st_source_add_row(struct st_config_source *src, const struct st_config_row *row)
{
    struct st_config_row *slot = st_source_add(src, &src->rows, sizeof(*row));

    if (slot != NULL)
        *slot = *row;
}

/* Whether the section's own row has something to say: it is rejected, or it has no members that say why it has no meaning
 * here. */
static bool section_speaks(const struct st_field_state *state)
{
    const st_json *member = state->node != NULL ? st_json_first(state->node) : NULL;

    while (member != NULL && st_json_type(member) == ST_JSON_NULL)
        member = st_json_next(member);
    return state->verdict == ST_VERDICT_REJECTED || (state->verdict == ST_VERDICT_NOTICE && member == NULL);
}

/* What a key would change as it is given: nothing, if it asks for nothing, or for what DeepSpeed does without it. */
static enum st_changes changes_of(struct st_config_source *src, const struct st_field *field, const struct st_field_state *state)
{
    const enum st_changes changes = st_field_changes(field);
    char given[TEXT_BYTES], usual[TEXT_BYTES] = "";
    const st_json *fallback;

    if (state->verdict != ST_VERDICT_NOTICE || state->node == NULL || changes == ST_CHANGES_SPEED)
        return changes;
    if (state->idle || st_value_is_auto(state->node) || st_value_is_off(field, state->node))
        return ST_CHANGES_NEITHER;
    fallback = field->fallback != NULL ? st_source_parse(src, field->fallback) : NULL;
    if (fallback == NULL)
        return changes;
    st_value_show(given, sizeof(given), state->node);
    st_value_show(usual, sizeof(usual), fallback);
    return strcmp(given, usual) == 0 ? ST_CHANGES_NEITHER : changes;
}

/* A row for each value in force or given; a section gets one only if there is something to say about it. */
static void add_field_row(struct st_config_source *src, const struct st_field *field, const struct st_config *config)
{
    const struct st_field_state *state = &src->fields[st_field_index(field)];
    const bool section = field->type == ST_FIELD_OBJECT || field->type == ST_FIELD_OPEN;
    const bool in_force = state->verdict == ST_VERDICT_HONOURED ? st_field_applies(field, config) : state->node == NULL;
    const bool bound = field->bind != ST_BIND_NONE && in_force;
    char text[ST_CONFIG_VALUE_MAX];

    if (section ? !section_speaks(state) : (!bound && state->node == NULL))
        return;
    if (field->type == ST_FIELD_SECRET)
        snprintf(text, sizeof(text), "(hidden)");
    else if (bound)
        st_value_text(text, sizeof(text), config, field);
    else
        st_value_show(text, sizeof(text), state->node);
    st_source_add_row(src, &(struct st_config_row){
                               .path = state->spelling != NULL ? state->spelling : field->path,
                               .value = st_source_keep_whole(src, text),
                               .origin = state->origin,
                               .verdict = state->verdict,
                               .reason = state->reason,
                               .changes = changes_of(src, field, state),
                               .follows = state->place != NULL,
                               .unjudged = state->unjudged,
                               .announced = state->announced && state->verdict == ST_VERDICT_HONOURED,
                           });
}

void st_source_add_stray(struct st_config_source *src, const struct st_config_row *row)
{
    struct st_config_row *slot = st_source_add(src, &src->strays, sizeof(*row));

    if (slot != NULL)
        *slot = *row;
}

void st_source_build_rows(struct st_config_source *src, const struct st_config *config)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        add_field_row(src, f, config);
    for (uint32_t i = 0; i < src->strays.count; i++)
        st_source_add_row(src, &((struct st_config_row *)src->strays.items)[i]);
}

strata_status st_config_refuse(struct st_config_source *src, const char *path, const char *reason)
{
    struct st_config_row *rows = src->rows.items;

    reason = st_source_keep(src, "%s", reason);
    st_source_problem(src, "%s", reason);
    for (uint32_t i = 0; i < src->rows.count; i++) {
        if (strcmp(rows[i].path, path) != 0)
            continue;
        rows[i].verdict = ST_VERDICT_REJECTED;
        rows[i].reason = reason;
    }
    return src->failed ? st_nomem(0) : STRATA_E_CONFIG;
}

uint32_t st_config_row_count(const struct st_config_source *src)
{
    return src->rows.count;
}

const struct st_config_row *st_config_row_at(const struct st_config_source *src, uint32_t i)
{
    return i < src->rows.count ? &((const struct st_config_row *)src->rows.items)[i] : NULL;
}

uint32_t st_config_problem_count(const struct st_config_source *src)
{
    return src->problems.count;
}

const char *st_config_problem_at(const struct st_config_source *src, uint32_t i)
{
    return i < src->problems.count ? ((const char *const *)src->problems.items)[i] : NULL;
}
