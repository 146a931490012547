/* core/json/json.c - strict JSON trees.  cJSON's one home.
 *
 * json_scan.c checks the text before cJSON sees it; the one check left here needs the tree: duplicate names.  A tree is immutable
 * after parsing, so any thread may read it. */
#include "core/json/json.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/number.h"
#include "core/json/json_scan.h"
#include "core/system/file.h"

#include <cJSON.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define WHOLE_MAX        9007199254740992.0 /* 2^53: every whole number below is exact in a double */
#define READ_BYTES_FIRST 16384

/* A duplicate name found while walking the tree in document order. */
struct duplicate {
    uint64_t ordinal; /* of the name, over the whole document */
    uint64_t keys;    /* names seen so far */
    const char *name; /* NULL: none found */
    bool out_of_memory;
};

struct named {
    const char *name;
    uint64_t position;
};

static int compare_named(const void *a, const void *b)
{
    const struct named *x = a, *y = b;
    int order = strcmp(x->name, y->name);

    return order != 0 ? order : (x->position > y->position) - (x->position < y->position);
}

/* Position among its siblings of the first member whose name came before; SIZE_MAX if all differ.  Sorts: a
 * safetensors header has tens of thousands of names. */
static size_t object_duplicate(const st_json *object, struct duplicate *found)
{
    size_t count = (size_t)cJSON_GetArraySize(object), position = SIZE_MAX, i = 0;
    struct named *names;

    if (count < 2)
        return SIZE_MAX;
    names = malloc(count * sizeof(names[0]));
    if (names == NULL || st_fault("json.alloc", 0) < 0) {
        free(names);
        found->out_of_memory = true;
        return SIZE_MAX;
    }
    for (const st_json *child = object->child; child != NULL; child = child->next, i++)
        names[i] = (struct named){child->string, i};
    qsort(names, count, sizeof(names[0]), compare_named);
    for (i = 1; i < count; i++)
        if (strcmp(names[i - 1].name, names[i].name) == 0 && names[i].position < position)
            position = names[i].position;
    free(names);
    return position;
}

/* Searches node and everything below it; stops at the first duplicate. */
static void find_duplicate(const st_json *node, struct duplicate *found)
{
    bool is_object = cJSON_IsObject(node);
    size_t bad = is_object ? object_duplicate(node, found) : SIZE_MAX, i = 0;

    for (const st_json *child = node->child; child != NULL && found->name == NULL; child = child->next, i++) {
        if (i == bad) {
            found->name = child->string;
            found->ordinal = found->keys;
            return;
        }
        if (is_object)
            found->keys++;
        find_duplicate(child, found);
    }
}

/* Where a text begins, for people, and how it is read. */
struct origin {
    const char *name;
    uint64_t line, column;
    bool hjson;
};

static strata_status fail_at(const struct origin *o, const struct st_json_place *place, const char *problem, const char *what)
{
    return st_error(STRATA_E_CONFIG, "%s:%llu:%llu: %s%s%s%s", o->name, (unsigned long long)(o->line + place->line - 1),
                    (unsigned long long)((place->line == 1 ? o->column - 1 : 0) + place->column), problem,
                    what != NULL ? " \"" : "", what != NULL ? what : "", what != NULL ? "\"" : "");
}

static strata_status check_duplicates(const st_json *root, const char *text, size_t bytes, const struct origin *o)
{
    struct duplicate found = {0};
    struct st_json_place place;

    find_duplicate(root, &found);
    if (found.out_of_memory)
        return st_nomem(0);
    if (found.name == NULL)
        return STRATA_OK;
    st_json_find_key(&place, text, bytes, o->hjson, found.ordinal);
    return fail_at(o, &place, "duplicate key", found.name);
}

/* Good text that is walked beside its tree. */
struct walk {
    const char *at, *end;
};

static void pass_string(struct walk *w)
{
    for (w->at++; *w->at != '"'; w->at++)
        w->at += *w->at == '\\';
    w->at++;
}

/* The next number; *bytes of it, which the walk has passed then. */
static const char *next_number(struct walk *w, size_t *bytes)
{
    const char *begin;

    while (*w->at != '-' && (*w->at < '0' || *w->at > '9'))
        if (*w->at == '"')
            pass_string(w);
        else
            w->at++;
    for (begin = w->at; w->at < w->end && *w->at != '\0' && strchr("+-.eE0123456789", *w->at) != NULL;)
        w->at++;
    *bytes = (size_t)(w->at - begin);
    return begin;
}

/* Keeps what st_json_number_text() says, in the string of a number's node, which cJSON frees.  Numbers stand in the text as in
 * the tree.  False: no memory. */
static bool keep_number(st_json *node, struct walk *w)
{
    size_t bytes;
    const char *text = next_number(w, &bytes);
    bool real = false;

    for (size_t i = 0; i < bytes; i++)
        real |= text[i] == '.' || text[i] == 'e' || text[i] == 'E';
    if (real ? node->valuedouble != floor(node->valuedouble) : fabs(node->valuedouble) < WHOLE_MAX)
        return true;
    node->valuestring = st_fault("json.alloc", 0) < 0 ? NULL : cJSON_malloc(bytes + 1);
    if (node->valuestring == NULL)
        return false;
    memcpy(node->valuestring, text, bytes);
    node->valuestring[bytes] = '\0';
    return true;
}

static bool keep_numbers(st_json *node, struct walk *w)
{
    bool kept = !cJSON_IsNumber(node) || keep_number(node, w);

    node->valueint = 0; /* no line: json_build.c */
    for (st_json *child = node->child; child != NULL && kept; child = child->next)
        kept = keep_numbers(child, w);
    return kept;
}

/* The tree of text that has been checked: `json` is what `text` says, or `text` itself: errors name places in that. */
static strata_status build(st_json **out, const char *json, size_t json_bytes, const char *text, size_t bytes,
                           const struct origin *o)
{
    struct walk walk = {json, json + json_bytes};
    strata_status st = STRATA_OK;
    const locale_t before = st_number_begin();
    st_json *root = st_fault("json.parse", 0) < 0 ? NULL : cJSON_ParseWithLength(json, json_bytes);

    st_number_end(before);
    if (root == NULL || !keep_numbers(root, &walk))
        st = st_nomem(bytes);
    if (st == STRATA_OK)
        st = check_duplicates(root, text, bytes, o);
    if (st != STRATA_OK) {
        cJSON_Delete(root);
        return st;
    }
    *out = root;
    return STRATA_OK;
}

strata_status st_json_parse_at(st_json **out, const char *text, size_t bytes, const char *name, uint64_t line, uint64_t column)
{
    const struct origin origin = {.name = name, .line = line, .column = column};
    struct st_json_place place;

    return st_json_scan(&place, text, bytes) ? build(out, text, bytes, text, bytes, &origin)
                                             : fail_at(&origin, &place, place.problem, NULL);
}

strata_status st_json_parse_row(st_json **out, struct st_json_odd *odd, char *text, size_t bytes, const char *name, uint64_t line,
                                uint64_t column)
{
    const struct origin origin = {.name = name, .line = line, .column = column};
    struct st_json_place place;

    if (!st_json_scan_row(&place, odd, text, bytes))
        return fail_at(&origin, &place, place.problem, NULL);
    return out != NULL ? build(out, text, bytes, text, bytes, &origin) : STRATA_OK;
}

strata_status st_json_parse(st_json **out, const char *text, size_t bytes, const char *name)
{
    return st_json_parse_at(out, text, bytes, name, 1, 1);
}

/* Some editors put a byte order mark before a text that people write. */
static size_t mark_bytes(const char *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

strata_status st_hjson_parse(st_json **out, const char *text, size_t bytes, const char *name)
{
    const struct origin origin = {.name = name, .line = 1, .column = 1, .hjson = true};
    const size_t mark = mark_bytes(text, bytes);
    char *json = st_fault("json.alloc", 0) < 0 ? NULL : malloc(ST_HJSON_BYTES(bytes));
    struct st_json_place place;
    size_t json_bytes;
    strata_status st;

    if (json == NULL)
        return st_nomem(ST_HJSON_BYTES(bytes));
    if (st_hjson_scan(&place, text + mark, bytes - mark, json, &json_bytes))
        st = build(out, json, json_bytes, text + mark, bytes - mark, &origin);
    else
        st = fail_at(&origin, &place, place.problem, NULL);
    free(json);
    return st;
}

/* A file that is missing, forbidden or not a regular file is the config's fault; a failing disk is not. */
static strata_status read_failed(const char *path, int err)
{
    strata_status st = st_error_errno(err, "%s", path);

    return st == STRATA_E_INPUT ? STRATA_E_CONFIG : st;
}

/* Reads the rest of fd, at most max_bytes; E_CONFIG if there is more. */
static strata_status read_all(int fd, const char *path, size_t max_bytes, char **text, size_t *bytes)
{
    size_t capacity = 0, used = 0;
    char *buffer = NULL;
    uint32_t interrupted = 0;
    strata_status st;

    for (;;) {
        ssize_t got;

        if (used == capacity) {
            char *grown =
                st_fault("json.alloc", 0) < 0 ? NULL : realloc(buffer, capacity = capacity ? capacity * 2 : READ_BYTES_FIRST);

            if (grown == NULL) {
                st = st_nomem(capacity);
                break;
            }
            buffer = grown;
        }
        got = read(fd, buffer + used, capacity - used);
        got = (ssize_t)st_fault("file.read", got < 0 ? -errno : got);
        if (st_again(got, &interrupted))
            continue;
        interrupted = 0;
        if (got < 0) {
            st = read_failed(path, (int)-got);
            break;
        }
        if (got == 0) {
            *text = buffer;
            *bytes = used;
            return STRATA_OK;
        }
        used += (size_t)got;
        if (used > max_bytes) {
            st = st_error(STRATA_E_CONFIG, "%s: larger than %zu bytes", path, max_bytes);
            break;
        }
    }
    free(buffer);
    return st;
}

static strata_status parse_file(st_json **out, const char *path, size_t max_bytes, bool hjson)
{
    struct st_file_identity was;
    strata_status st;
    size_t bytes = 0;
    char *text = NULL;
    int fd;

    if ((st = st_file_open_stream(&fd, &was, path, STRATA_E_CONFIG)) != STRATA_OK)
        return st;
    st = read_all(fd, path, max_bytes, &text, &bytes);
    if (st == STRATA_OK)
        st = st_file_check_unchanged(fd, &was, path);
    close(fd);
    if (st == STRATA_OK && hjson) {
        st = st_hjson_parse(out, text, bytes, path);
    } else if (st == STRATA_OK) {
        const size_t mark = mark_bytes(text, bytes);

        st = st_json_parse(out, text + mark, bytes - mark, path);
    }
    free(text);
    return st;
}

strata_status st_json_parse_file(st_json **out, const char *path, size_t max_bytes)
{
    return parse_file(out, path, max_bytes, false);
}

strata_status st_hjson_parse_file(st_json **out, const char *path, size_t max_bytes)
{
    return parse_file(out, path, max_bytes, true);
}

void st_json_free(st_json *root)
{
    cJSON_Delete(root);
}

enum st_json_type st_json_type(const st_json *n)
{
    if (cJSON_IsBool(n))
        return ST_JSON_BOOL;
    if (cJSON_IsNumber(n))
        return ST_JSON_NUMBER;
    if (cJSON_IsString(n))
        return ST_JSON_STRING;
    if (cJSON_IsArray(n))
        return ST_JSON_ARRAY;
    return cJSON_IsObject(n) ? ST_JSON_OBJECT : ST_JSON_NULL;
}

uint32_t st_json_line(const st_json *n)
{
    return (uint32_t)n->valueint;
}

const char *st_json_name(const st_json *n)
{
    return n->string;
}

const st_json *st_json_first(const st_json *n)
{
    return n->child;
}

const st_json *st_json_next(const st_json *n)
{
    return n->next;
}

const st_json *st_json_get(const st_json *n, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(n, key);
}

bool st_json_bool(const st_json *n)
{
    return cJSON_IsTrue(n) != 0;
}

double st_json_number(const st_json *n)
{
    return n->valuedouble;
}

const char *st_json_number_text(const st_json *n)
{
    return cJSON_IsNumber(n) ? n->valuestring : NULL;
}

const char *st_json_string(const st_json *n)
{
    return n->valuestring;
}

uint32_t st_json_depth(const st_json *n)
{
    const enum st_json_type type = st_json_type(n);
    uint32_t most = 0;

    if (type != ST_JSON_OBJECT && type != ST_JSON_ARRAY)
        return 0;
    for (const st_json *child = st_json_first(n); child != NULL; child = st_json_next(child)) {
        const uint32_t depth = st_json_depth(child);

        most = depth > most ? depth : most;
    }
    return most + 1;
}

int st_json_u64(const st_json *n, uint64_t *out)
{
    double value = n->valuedouble;

    if (!cJSON_IsNumber(n) || !(value >= 0) || value > WHOLE_MAX || value != floor(value))
        return 0;
    *out = (uint64_t)value;
    return 1;
}
