/* cli/options/help_text.c - help texts are written for a wide screen: filled again for a narrower one. */
#include "cli/options/help_text.h"
#include "core/base/print.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

#define LINE_BYTES           2048u
#define TEACH_ITEM_INDENT    8u /* least indent of an item's further lines */
#define TEACH_COMMAND_INDENT 6u /* indent of a command's further lines */

/* A line of a help text: a paragraph's, an item's ("  optim   ..."), or a command's ("  strata ..."). */
enum teach_line { TEACH_TEXT, TEACH_ITEM, TEACH_COMMAND };

static enum teach_line teach_line_of(const char *line)
{
    return line[0] != ' ' ? TEACH_TEXT : strncmp(line, "  strata ", 9) == 0 ? TEACH_COMMAND : TEACH_ITEM;
}

/* Whether the line at `next` continues one of this kind. */
static bool goes_on(enum teach_line kind, const char *next)
{
    const size_t indent = strspn(next, " ");

    if (next[indent] == '\n' || next[indent] == '\0')
        return false;
    return kind == TEACH_TEXT ? indent == 0 : kind == TEACH_ITEM ? indent >= TEACH_ITEM_INDENT : indent == TEACH_COMMAND_INDENT;
}

/* Where to break a command: before the last option that leaves room for the backslash, else before a word.  0: nowhere. */
static size_t break_of(const char *line, size_t width)
{
    size_t word = 0;

    for (size_t end = width - 2; end > TEACH_COMMAND_INDENT; end--) {
        if (line[end] != ' ')
            continue;
        if (line[end + 1] == '-')
            return end;
        word = word == 0 ? end : word;
    }
    return word;
}

/* Prints a command, broken with backslashes so that it can be copied. */
static void print_command(FILE *file, char *line, size_t width)
{
    for (size_t end; strlen(line) > width && (end = break_of(line, width)) > 0;) {
        st_print(file, "%.*s \\\n", (int)end, line);
        memset(line, ' ', TEACH_COMMAND_INDENT);
        memmove(line + TEACH_COMMAND_INDENT, line + end + 1, strlen(line + end + 1) + 1);
    }
    st_print(file, "%s\n", line);
}

void cli_teach_print(FILE *file, const char *teach, size_t width)
{
    char line[LINE_BYTES];

    if (width == 0) {
        st_print_text(file, teach);
        st_print_text(file, "\n");
        return;
    }
    while (*teach != '\0') {
        const enum teach_line kind = teach_line_of(teach);
        size_t used = 0;

        for (;;) {
            const size_t length = strcspn(teach, "\n");

            assert(used + length + 1 < sizeof(line));
            used += (size_t)snprintf(line + used, sizeof(line) - used, "%.*s", (int)length, teach);
            teach += length + (teach[length] == '\n');
            if (length == 0 || !goes_on(kind, teach))
                break;
            teach += strspn(teach, " ");
            if (kind == TEACH_COMMAND)
                used--; /* the backslash, which has a space before it */
            else
                line[used++] = ' ';
        }
        if (kind == TEACH_COMMAND)
            print_command(file, line, width);
        else
            st_print(file, "%s\n", line);
    }
}
