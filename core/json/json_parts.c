/* core/json/json_parts.c - see json_parts.h. */
#include "core/json/json_parts.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json_member_internal.h"
#include "core/json/json_scan.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define PART_MEMBERS 4096u
#define LARGE_MAX    8u
#define KEY_BYTES    64u

/* The member of the outermost object that a key names; not found: it is none, or written otherwise. */
static struct st_json_member find_key(const char *text, const char *key)
{
    struct st_json_member member = {.begin = st_json_skip_space(text), .found = true};

    for (const char *end; member.found && *key != '\0'; key = end + (*end == '.')) {
        char name[KEY_BYTES];

        end = strchrnul(key, '.');
        assert((size_t)(end - key) < sizeof(name));
        memcpy(name, key, (size_t)(end - key));
        name[end - key] = '\0';
        member.found = *member.begin == '{';
        if (member.found)
            member = st_json_find_member(member.begin, name);
    }
    return member;
}

/* Counts lines and columns on from `from` to `at`. */
static void pass(struct st_json_large *l, const char *from, const char *at)
{
    for (const char *end; (end = memchr(from, '\n', (size_t)(at - from))) != NULL; from = end + 1) {
        l->line++;
        l->column = 1;
    }
    l->column += (uint64_t)(at - from);
}

/* Where a member begins for its reader, if it is an object or list that has something. */
static void begin(struct st_json_large *l, char *text, const struct st_json_member *m, const char *name)
{
    l->name = name;
    l->at = NULL;
    if (!m->found || (*m->begin != '{' && *m->begin != '[') || st_json_skip_space(m->begin + 1) == m->end - 1)
        return;
    l->at = text + (m->begin - text);
    l->open = *m->begin;
    l->close = m->end[-1];
    l->line = l->column = 1;
    pass(l, text, l->at);
}

/* The text without what is between the brackets of its large members, which have no other one inside.  NULL: no memory. */
static char *without(const char *text, size_t bytes, const struct st_json_large *large, const struct st_json_member *members,
                     uint32_t count, size_t *left)
{
    const char *at = text;
    size_t kept = bytes;
    char *copy;

    for (uint32_t i = 0; i < count; i++)
        kept -= large[i].at != NULL ? (size_t)(members[i].end - members[i].begin) - 2 : 0;
    copy = st_fault("json.alloc", 0) < 0 ? NULL : malloc(kept);
    *left = 0;
    while (copy != NULL) {
        const char *next = text + bytes, *after = next;

        for (uint32_t i = 0; i < count; i++)
            if (large[i].at != NULL && members[i].begin >= at && members[i].begin < next) {
                next = members[i].begin + 1;
                after = members[i].end - 1;
            }
        memcpy(copy + *left, at, (size_t)(next - at));
        *left += (size_t)(next - at);
        if (next == text + bytes)
            break;
        at = after;
    }
    return copy;
}

strata_status st_json_parse_large(st_json **out, struct st_json_large *large, uint32_t count, char *text, size_t bytes,
                                  const char *name)
{
    struct st_json_member members[LARGE_MAX];
    struct st_json_place place;
    strata_status st;
    size_t left;
    char *rest;

    assert(count <= LARGE_MAX);
    for (uint32_t i = 0; i < count; i++)
        large[i].at = NULL;
    if (!st_json_scan(&place, text, bytes))
        return st_json_parse(out, text, bytes, name); /* which says where */
    for (uint32_t i = 0; i < count; i++) {
        members[i] = find_key(text, large[i].key);
        begin(&large[i], text, &members[i], name);
    }
    rest = without(text, bytes, large, members, count, &left);
    if (rest == NULL)
        return st_nomem(bytes);
    st = st_json_parse(out, rest, left, name);
    free(rest);
    return st != STRATA_E_CONFIG ? st : st_json_parse(out, text, bytes, name); /* a name is there twice: its place in all */
}

/* What closes the part behind `at`: a comma, or the last bracket. */
static const char *part_end(const struct st_json_large *l, const char *at, uint64_t most, uint64_t *count)
{
    for (*count = 0; *count < most && *at != l->close; ++*count) {
        at = st_json_skip_space(at + 1);
        if (l->open == '{')
            at = st_json_skip_space(st_json_skip_space(st_json_skip_string(at)) + 1);
        at = st_json_skip_space(st_json_skip_value(at));
    }
    return at;
}

strata_status st_json_next_part(st_json **out, struct st_json_large *l)
{
    char *const first = l->at;
    uint64_t count;
    strata_status st;
    char *end, closes;

    *out = NULL;
    if (first == NULL)
        return STRATA_OK;
    end = first + (part_end(l, first, PART_MEMBERS, &count) - first);
    closes = *end;
    *first = l->open;
    *end = l->close;
    st = st_json_parse_at(out, first, (size_t)(end - first) + 1, l->name, l->line, l->column);
    *end = closes;
    pass(l, first, end);
    l->at = closes == l->close ? NULL : end;
    return st;
}

uint64_t st_json_count_left(const struct st_json_large *l)
{
    uint64_t count = 0;

    if (l->at != NULL)
        (void)part_end(l, l->at, UINT64_MAX, &count);
    return count;
}
