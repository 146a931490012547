/* cli/options/told.c - finds keys in sentences and names the options of the table that give them. */
#include "cli/options/told.h"
#include "cli/options/args_table.h"
#include "core/base/text.h"
#include "core/base/wrap.h"

#include <stdio.h>
#include <string.h>

/* Whether a character can be a part of a key, of a path or of an option. */
static bool is_inside(char c)
{
    return st_text_is_word(c) || (c != '\0' && strchr("_.-/\\\"'", c) != NULL);
}

/* Whether the key that ended before `rest` ends there: a full stop does not go on. */
static bool ends_here(const char *rest)
{
    return *rest == '.' ? !is_inside(rest[1]) : !is_inside(*rest);
}

/* Whether the sentence names the option itself. */
static bool has_option(const char *sentence, const char *name)
{
    const size_t length = strlen(name);

    for (const char *at = strstr(sentence, "--"); at != NULL; at = strstr(at + 2, "--"))
        if (strncmp(at + 2, name, length) == 0 && !st_text_is_word(at[2 + length]) && at[2 + length] != '-')
            return true;
    return false;
}

/* Whether the key from `at` to `rest` is written as people have written it: with its value, where it comes from, or behind --set.
 */
static bool is_quoted(const char *sentence, const char *at, const char *rest)
{
    static const char set[] = "--set ";
    const size_t before = sizeof(set) - 1;

    return ((size_t)(at - sentence) >= before && strncmp(at - before, set, before) == 0) || *rest == ':' || *rest == '=' ||
           strncmp(rest, " = ", 3) == 0 || strncmp(rest, " is ", 4) == 0 || strncmp(rest, " (", 2) == 0;
}

void cli_told(char *out, size_t bytes, const char *sentence)
{
    size_t used = 0;

    *out = '\0';
    for (const char *at = sentence; *at != '\0' && used + 1 < bytes;) {
        size_t length = 0;
        const struct cli_option *o = at == sentence || !is_inside(at[-1]) ? cli_option_of_key(at, &length) : NULL;

        if (o == NULL || !ends_here(at + length)) {
            out[used++] = *at++;
            out[used] = '\0';
        } else if (!cli_option_is_key(o)) {
            used += (size_t)snprintf(out + used, bytes - used, "--%s", o->names[0]);
            at += length;
        } else {
            used += (size_t)snprintf(out + used, bytes - used, "%.*s", (int)length, at);
            at += length;
            if (used < bytes && o->kind != VALUE_FLAG && !is_quoted(sentence, at - length, at) &&
                !has_option(sentence, o->names[0]) && !has_option(out, o->names[0]))
                used += (size_t)snprintf(out + used, bytes - used, *at == ')' ? ", --%s" : " (--%s)", o->names[0]);
        }
    }
}

void cli_told_print(FILE *to, const char *prefix, const char *sentence)
{
    char told[CLI_TOLD_BYTES];

    cli_told(told, sizeof(told), sentence);
    st_wrap_print(to, "strata: %s%s\n", prefix, told);
}

void cli_told_log(void *ctx, enum st_log_level level, const char *line)
{
    (void)ctx;
    cli_told_print(stderr, st_log_word(level), line);
}
