/* hub_id.c - see hub_id.h. */
#include "core/system/hub_id.h"

#include <stdio.h>
#include <string.h>

bool st_hub_is_word(const char *text, size_t length)
{
    static const char set[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";

    return length > 0 && length <= ST_HUB_WORD_MAX && text[0] != '.' && strspn(text, set) >= length;
}

/* Words with slashes between them. */
static bool is_revision(const char *text)
{
    size_t length;

    if (strlen(text) > ST_HUB_WORD_MAX)
        return false;
    while (st_hub_is_word(text, length = strcspn(text, "/")) && text[length] == '/')
        text += length + 1;
    return st_hub_is_word(text, length) && text[length] == '\0';
}

bool st_hub_split(struct st_hub_id *out, const char *id)
{
    const char *at = strchr(id, '@'), *slash = strchr(id, '/');
    struct st_hub_id words;

    if (slash == NULL || (at != NULL && at < slash))
        return false;
    words = (struct st_hub_id){.org_bytes = (size_t)(slash - id),
                               .name = slash + 1,
                               .name_bytes = at != NULL ? (size_t)(at - slash - 1) : strlen(slash + 1),
                               .revision = at != NULL ? at + 1 : "main"};
    if (!st_hub_is_word(id, words.org_bytes) || !st_hub_is_word(words.name, words.name_bytes) || !is_revision(words.revision))
        return false;
    *out = words;
    return true;
}

bool st_hub_is_id(const char *name)
{
    struct st_hub_id words;

    return st_hub_split(&words, name);
}

void st_hub_command(char out[ST_HUB_COMMAND_MAX], const char *id)
{
    const char *at = strchr(id, '@');

    snprintf(out, ST_HUB_COMMAND_MAX, "hf download %.*s%s%s", (int)strcspn(id, "@"), id, at != NULL ? " --revision " : "",
             at != NULL ? at + 1 : "");
}
