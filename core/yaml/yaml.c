/* yaml.c - builds a tree from libyaml's events.  libyaml's one home.
 *
 * Aliases are copies: what they multiply is counted before it is made.  Nothing recurses: containers that are open lie in a stack
 * of ST_YAML_DEPTH_MAX. */
#include "core/yaml/yaml.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"
#include "core/json/json_build.h"
#include "core/system/file.h"
#include "core/yaml/yaml_scalar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#define ANCHORS_MAX     1024u
#define MERGE           "<<"
#define BYTE_ORDER_MARK "\xef\xbb\xbf"

struct anchor {
    char *name;
    const st_json *node; /* in the tree */
};

/* A mapping or sequence that is open. */
struct level {
    st_json *node;
    char *key;            /* of a mapping: whose value comes next; NULL: a key comes next */
    const st_json *merge; /* value of <<, taken when the mapping ends, in reader.merges; NULL: none */
};

struct reader {
    yaml_parser_t parser;
    const char *name; /* of the text, for people */
    const char *text;
    size_t bytes, mark_bytes; /* mark_bytes: of a byte order mark before the text */
    struct level levels[ST_YAML_DEPTH_MAX];
    uint32_t depth;
    st_json *root;
    st_json *merges;                    /* an array */
    struct anchor anchors[ANCHORS_MAX]; /* a name that comes again hides the earlier one */
    uint32_t anchor_count;
    uint64_t values;
};

static strata_status fail_at(const struct reader *r, const yaml_mark_t *mark, const char *problem, const char *what)
{
    return st_error(STRATA_E_CONFIG, "%s:%zu:%zu: %s%s%s%s", r->name, mark->line + 1, mark->column + 1, problem,
                    what != NULL ? " \"" : "", what != NULL ? what : "", what != NULL ? "\"" : "");
}

/* Whether the line is indented with a tab. */
static bool has_tab(const struct reader *r, size_t line)
{
    const char *at = r->text, *end = r->text + r->bytes;

    for (; line > 0 && at != NULL; line--) {
        at = memchr(at, '\n', (size_t)(end - at));
        at = at != NULL ? at + 1 : NULL;
    }
    while (at != NULL && at < end && *at == ' ')
        at++;
    return at != NULL && at < end && *at == '\t';
}

/* libyaml's own words, and where. */
static strata_status syntax_error(const struct reader *r)
{
    const yaml_parser_t *p = &r->parser;

    if (p->error == YAML_MEMORY_ERROR)
        return st_nomem(0);
    if (p->error == YAML_READER_ERROR)
        return st_error(STRATA_E_CONFIG, "%s: byte %zu: %s: YAML is UTF-8 here", r->name, r->mark_bytes + p->problem_offset + 1,
                        p->problem);
    if (has_tab(r, p->problem_mark.line))
        return fail_at(r, &p->problem_mark, "a tab indents this line: YAML is indented with spaces", NULL);
    return st_error(STRATA_E_CONFIG, "%s:%zu:%zu: %s%s%s", r->name, p->problem_mark.line + 1, p->problem_mark.column + 1,
                    p->problem, p->context != NULL ? ", " : "", p->context != NULL ? p->context : "");
}

/* --- keys --- */

static struct level *top(struct reader *r)
{
    return r->depth > 0 ? &r->levels[r->depth - 1] : NULL;
}

static bool wants_key(struct reader *r)
{
    const struct level *l = top(r);

    return l != NULL && st_json_type(l->node) == ST_JSON_OBJECT && l->key == NULL;
}

static strata_status take_key(struct reader *r, const yaml_event_t *event)
{
    const char *key = (const char *)event->data.scalar.value;
    struct level *l = top(r);
    const bool merges = strcmp(key, MERGE) == 0;

    if (strlen(key) != event->data.scalar.length)
        return fail_at(r, &event->start_mark, "a zero byte in a key", NULL);
    if (merges ? l->merge != NULL : st_json_get(l->node, key) != NULL)
        return fail_at(r, &event->start_mark, "duplicate key", key);
    l->key = st_fault("yaml.alloc", 0) < 0 ? NULL : strdup(key);
    return l->key != NULL ? STRATA_OK : st_nomem(0);
}

/* --- values --- */

static const struct anchor *find_anchor(const struct reader *r, const char *name)
{
    for (uint32_t i = r->anchor_count; i > 0; i--)
        if (strcmp(r->anchors[i - 1].name, name) == 0)
            return &r->anchors[i - 1];
    return NULL;
}

static strata_status keep_anchor(struct reader *r, const yaml_event_t *event, const yaml_char_t *name, const st_json *node)
{
    if (name == NULL)
        return STRATA_OK;
    if (r->anchor_count == ANCHORS_MAX)
        return fail_at(r, &event->start_mark, "more than 1024 anchors", NULL);
    r->anchors[r->anchor_count].name = st_fault("yaml.alloc", 0) < 0 ? NULL : strdup((const char *)name);
    if (r->anchors[r->anchor_count].name == NULL)
        return st_nomem(0);
    r->anchors[r->anchor_count++].node = node;
    return STRATA_OK;
}

/* Takes `node`, NULL: there was no memory for it. */
static strata_status put(struct reader *r, const yaml_event_t *event, st_json *node, uint64_t values)
{
    struct level *l = top(r);
    bool added = true;

    if (node == NULL)
        return st_nomem(0);
    st_json_set_line(node, (uint32_t)event->start_mark.line + 1);
    r->values += values;
    if (l == NULL) {
        r->root = node;
    } else if (st_json_type(l->node) == ST_JSON_ARRAY) {
        added = st_json_add(l->node, NULL, node);
    } else if (strcmp(l->key, MERGE) == 0) {
        l->merge = node;
        added = st_json_add(r->merges, NULL, node);
    } else {
        added = st_json_add(l->node, l->key, node);
    }
    if (l != NULL && l->key != NULL) {
        free(l->key);
        l->key = NULL;
    }
    return added ? STRATA_OK : st_nomem(0);
}

/* Whether `values` more values fit at this depth. */
static strata_status check_room(const struct reader *r, const yaml_event_t *event, uint64_t values, uint32_t depth)
{
    if (r->values + values > ST_YAML_VALUES_MAX)
        return fail_at(r, &event->start_mark, "more than 16384 values (an alias counts as what it stands for)", NULL);
    if (r->depth + depth > ST_YAML_DEPTH_MAX)
        return fail_at(r, &event->start_mark, "nested deeper than 64", NULL);
    return STRATA_OK;
}

static strata_status put_copy(struct reader *r, const yaml_event_t *event, const st_json *node)
{
    const uint64_t values = st_json_count(node);
    const strata_status st = check_room(r, event, values, st_json_depth(node));

    return st == STRATA_OK ? put(r, event, st_json_new_copy(node), values) : st;
}

static strata_status take_scalar(struct reader *r, const yaml_event_t *event)
{
    const char *text = (const char *)event->data.scalar.value;
    st_json *node = NULL;
    enum st_yaml_kind kind = ST_YAML_TEXT;
    double value = 0;
    strata_status st = check_room(r, event, 1, 0);

    if (st != STRATA_OK)
        return st;
    if (strlen(text) != event->data.scalar.length)
        return fail_at(r, &event->start_mark, "a zero byte in a value", NULL);
    if (event->data.scalar.style == YAML_PLAIN_SCALAR_STYLE)
        kind = st_yaml_scalar(text, &value);
    switch (kind) {
    case ST_YAML_TEXT:
        node = st_json_new_string(text);
        break;
    case ST_YAML_NULL:
        node = st_json_new_null();
        break;
    case ST_YAML_BOOL:
        node = st_json_new_bool(value != 0);
        break;
    case ST_YAML_INT:
    case ST_YAML_REAL:
        node = st_json_new_number(value, kind == ST_YAML_REAL);
        break;
    case ST_YAML_NOT_FINITE:
        return fail_at(r, &event->start_mark, "not a finite number:", text);
    case ST_YAML_BASE_60:
        return fail_at(r, &event->start_mark, "a number of base 60 to YAML 1.1: write it in quotes, or in base 10:", text);
    }
    st = put(r, event, node, 1);
    return st == STRATA_OK ? keep_anchor(r, event, event->data.scalar.anchor, node) : st;
}

static strata_status take_alias(struct reader *r, const yaml_event_t *event)
{
    const char *name = (const char *)event->data.alias.anchor;
    const struct anchor *anchor = find_anchor(r, name);

    if (anchor == NULL)
        return fail_at(r, &event->start_mark, "no anchor before this has the name", name);
    for (uint32_t i = 0; i < r->depth; i++)
        if (r->levels[i].node == anchor->node)
            return fail_at(r, &event->start_mark, "an alias within what it stands for:", name);
    return put_copy(r, event, anchor->node);
}

static strata_status open_level(struct reader *r, const yaml_event_t *event, bool mapping)
{
    st_json *node;
    strata_status st = check_room(r, event, 1, 1);

    if (st != STRATA_OK)
        return st;
    node = mapping ? st_json_new_object() : st_json_new_array();
    st = put(r, event, node, 1);
    if (st == STRATA_OK)
        st = keep_anchor(r, event, mapping ? event->data.mapping_start.anchor : event->data.sequence_start.anchor, node);
    if (st == STRATA_OK)
        r->levels[r->depth++] = (struct level){.node = node};
    return st;
}

/* --- merge keys --- */

/* Members of `from` that the open mapping lacks. */
static strata_status merge_one(struct reader *r, const yaml_event_t *event, const st_json *from)
{
    struct level *l = top(r);
    strata_status st = STRATA_OK;

    if (st_json_type(from) != ST_JSON_OBJECT)
        return fail_at(r, &event->end_mark, "<< takes a mapping, or a list of mappings", NULL);
    for (const st_json *n = st_json_first(from); n != NULL && st == STRATA_OK; n = st_json_next(n)) {
        if (st_json_get(l->node, st_json_name(n)) != NULL)
            continue;
        l->key = st_fault("yaml.alloc", 0) < 0 ? NULL : strdup(st_json_name(n));
        st = l->key != NULL ? put_copy(r, event, n) : st_nomem(0);
    }
    return st;
}

/* The mapping's own keys win, then those of the first in the list. */
static strata_status close_level(struct reader *r, const yaml_event_t *event)
{
    struct level *l = top(r);
    strata_status st = STRATA_OK;

    if (l->merge != NULL && st_json_type(l->merge) == ST_JSON_ARRAY) {
        for (const st_json *n = st_json_first(l->merge); n != NULL && st == STRATA_OK; n = st_json_next(n))
            st = merge_one(r, event, n);
    } else if (l->merge != NULL) {
        st = merge_one(r, event, l->merge);
    }
    if (st == STRATA_OK) /* else its key is freed with the level */
        r->depth--;
    return st;
}

/* --- events --- */

/* As written; NULL: none is. */
static const yaml_char_t *tag_of(const yaml_event_t *event)
{
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return event->data.scalar.tag;
    case YAML_SEQUENCE_START_EVENT:
        return event->data.sequence_start.tag;
    case YAML_MAPPING_START_EVENT:
        return event->data.mapping_start.tag;
    default:
        return NULL;
    }
}

static strata_status take_event(struct reader *r, const yaml_event_t *event, bool *end)
{
    const yaml_char_t *tag = tag_of(event);

    if (tag != NULL)
        return fail_at(r, &event->start_mark, "tags are not read here:", (const char *)tag);
    if (wants_key(r) && event->type != YAML_SCALAR_EVENT && event->type != YAML_MAPPING_END_EVENT)
        return fail_at(r, &event->start_mark, "a key that is not a word", NULL);
    switch (event->type) {
    case YAML_SCALAR_EVENT:
        return wants_key(r) ? take_key(r, event) : take_scalar(r, event);
    case YAML_ALIAS_EVENT:
        return take_alias(r, event);
    case YAML_SEQUENCE_START_EVENT:
    case YAML_MAPPING_START_EVENT:
        return open_level(r, event, event->type == YAML_MAPPING_START_EVENT);
    case YAML_SEQUENCE_END_EVENT:
    case YAML_MAPPING_END_EVENT:
        return close_level(r, event);
    case YAML_DOCUMENT_START_EVENT:
        return r->root == NULL ? STRATA_OK
                               : fail_at(r, &event->start_mark, "a second document: one file holds one (delete the ---)", NULL);
    case YAML_STREAM_END_EVENT:
        *end = true;
        return STRATA_OK;
    case YAML_STREAM_START_EVENT:
    case YAML_DOCUMENT_END_EVENT:
    case YAML_NO_EVENT:
        break;
    }
    return STRATA_OK;
}

static strata_status read_events(struct reader *r)
{
    strata_status st = STRATA_OK;
    bool end = false;

    while (st == STRATA_OK && !end) {
        yaml_event_t event;

        if (yaml_parser_parse(&r->parser, &event) == 0)
            return syntax_error(r);
        st = take_event(r, &event, &end);
        yaml_event_delete(&event);
    }
    if (st == STRATA_OK && r->root == NULL)
        r->root = st_json_new_null();
    return st == STRATA_OK && r->root == NULL ? st_nomem(0) : st;
}

static void close_reader(struct reader *r)
{
    for (uint32_t i = 0; i < r->depth; i++)
        free(r->levels[i].key);
    for (uint32_t i = 0; i < r->anchor_count; i++)
        free(r->anchors[i].name);
    st_json_free(r->merges);
    st_json_free(r->root);
    yaml_parser_delete(&r->parser);
    free(r);
}

strata_status st_yaml_parse(st_json **out, const char *text, size_t bytes, const char *name)
{
    struct reader *r = st_fault("yaml.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*r));
    strata_status st;

    if (r != NULL && (st_fault("yaml.alloc", 0) < 0 || yaml_parser_initialize(&r->parser) == 0)) {
        free(r);
        r = NULL;
    }
    if (r == NULL)
        return st_nomem(sizeof(*r));
    /* libyaml passes a byte order mark over, too, but counts a column for it where it is told the encoding */
    r->mark_bytes = bytes >= 3 && memcmp(text, BYTE_ORDER_MARK, 3) == 0 ? 3 : 0;
    text += r->mark_bytes;
    bytes -= r->mark_bytes;
    r->name = name;
    r->text = text;
    r->bytes = bytes;
    r->merges = st_json_new_array();
    yaml_parser_set_encoding(&r->parser, YAML_UTF8_ENCODING);
    yaml_parser_set_input_string(&r->parser, (const unsigned char *)text, bytes);
    st = r->merges != NULL ? read_events(r) : st_nomem(0);
    if (st == STRATA_OK) {
        *out = r->root;
        r->root = NULL;
    }
    close_reader(r);
    return st;
}

strata_status st_yaml_parse_file(st_json **out, const char *path, size_t max_bytes)
{
    char *text = NULL;
    uint64_t bytes;
    strata_status st = st_file_read_text(&text, &bytes, path, max_bytes);

    if (st == STRATA_OK)
        st = st_yaml_parse(out, text, bytes, path);
    free(text);
    return st == STRATA_E_INPUT ? STRATA_E_CONFIG : st;
}

bool st_yaml_is_name(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL && (st_text_same(dot, ".yaml") || st_text_same(dot, ".yml"));
}
