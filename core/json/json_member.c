/* core/json/json_member.c - see json_member_internal.h. */
#include "core/json/json_member_internal.h"

#include <string.h>

const char *st_json_skip_space(const char *at)
{
    return at + strspn(at, " \t\r\n");
}

const char *st_json_skip_string(const char *at)
{
    for (at++; *at != '"'; at++)
        if (*at == '\\')
            at++;
    return at + 1;
}

const char *st_json_skip_value(const char *at)
{
    int depth = 0;

    if (*at == '"')
        return st_json_skip_string(at);
    if (*at != '{' && *at != '[')
        return at + strcspn(at, ",]} \t\r\n");
    do {
        if (*at == '"') {
            at = st_json_skip_string(at);
            continue;
        }
        depth += (*at == '{' || *at == '[') - (*at == '}' || *at == ']');
        at++;
    } while (depth > 0);
    return at;
}

struct st_json_member st_json_find_member(const char *object, const char *key)
{
    const char *at = st_json_skip_space(st_json_skip_space(object) + 1), *last = at;
    const size_t length = strlen(key);
    struct st_json_member member = {.first = *at == '}'};

    while (*at != '}') {
        const char *name = at + 1, *after = st_json_skip_string(at);
        const char *value = st_json_skip_space(st_json_skip_space(after) + 1);

        last = st_json_skip_value(value);
        if ((size_t)(after - name) == length + 1 && strncmp(name, key, length) == 0) {
            member.found = true;
            member.begin = value;
            member.end = last;
            return member;
        }
        at = st_json_skip_space(last);
        if (*at == ',')
            at = st_json_skip_space(at + 1);
    }
    member.begin = member.end = member.first ? st_json_skip_space(object) + 1 : last;
    return member;
}
