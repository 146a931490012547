/* core/base/wrap.c - a stdio stream of our own (fopencookie) that collects a line, wraps it and passes it on.  One thread per
 * stream. */
#include "core/base/wrap.h"
#include "core/base/print.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define LINE_BYTES 4096u /* longest line; longer ones are passed on in parts */
#define INDENT     4u
#define PARTS_MAX  8u
#define TABLE_GAPS 4u          /* of two spaces in a line that is a table's row */
#define UNIT_MAX   4u          /* letters of "B,", "KiB", "ms,", "GB/s" */
#define COMMAND    "  strata " /* begins a line that a shell takes */

struct wrapper {
    FILE *to;
    size_t width, used;
    size_t cuts[PARTS_MAX]; /* where the parts of the last row of a table ended; 0: nowhere yet */
    char line[LINE_BYTES + 1];
};

/* Columns of `bytes` bytes of UTF-8. */
static size_t columns(const char *text, size_t bytes)
{
    size_t count = 0;

    for (size_t i = 0; i < bytes; i++)
        count += ((unsigned char)text[i] & 0xc0) != 0x80;
    return count;
}

/* The first gap between columns: two spaces, but not the two after a sentence.  NULL: none. */
static const char *find_gap(const char *line)
{
    const char *gap = strstr(line, "  ");

    while (gap != NULL && gap > line && gap[-1] == '.' && gap[2] != ' ')
        gap = strstr(gap + 2, "  ");
    return gap;
}

/* The column where the rest of a line continues: below the second column of a table, else slightly indented; a sentence that
 * begins at the margin continues at the margin. */
static size_t hanging(const char *line, size_t width)
{
    const size_t lead = strspn(line, " "), length = strlen(line);
    const char *gap = find_gap(line + lead);
    const size_t second = gap != NULL ? columns(line, (size_t)(gap - line)) + strspn(gap, " ") : 0;

    if (lead == 0 && second == 0 && length > 0 && line[length - 1] == '.')
        return 0;
    return second > 0 && second <= width / 2 ? second : lead + INDENT < width / 2 ? lead + INDENT : 0;
}

/* True for a space between a number and its unit. */
static bool holds_together(const char *text, size_t bytes, size_t at)
{
    size_t unit = 0;

    while (at + 1 + unit < bytes && text[at + 1 + unit] != ' ')
        unit++;
    return text[at - 1] >= '0' && text[at - 1] <= '9' && unit > 0 && unit <= UNIT_MAX;
}

/* Bytes of `text` that fit on this line: up to the last space within `width` columns, or up to the first space if that is already
 * too far. */
static size_t fitting(const char *text, size_t bytes, size_t width)
{
    size_t end = strspn(text, " "), column = end, best = 0;

    for (; end < bytes; end++) {
        if (text[end] == ' ' && text[end - 1] != ' ' && (column <= width || best == 0) && !holds_together(text, bytes, end))
            best = end;
        column += ((unsigned char)text[end] & 0xc0) != 0x80;
        if (column > width && best > 0)
            return best;
    }
    return bytes;
}

static bool is_row(const char *line)
{
    uint32_t gaps = 0;

    for (const char *at = line + strspn(line, " "); (at = find_gap(at)) != NULL; at += strspn(at, " "))
        gaps++;
    return gaps >= TABLE_GAPS;
}

/* Cuts a row where the row above was cut, which is where a column ended, so that columns stay aligned. */
static void pass_row(struct wrapper *p)
{
    const char *at = p->line;
    size_t left = p->used, indent = 0;

    for (uint32_t i = 0; i < PARTS_MAX && columns(at, left) > p->width - indent; i++) {
        size_t part = p->cuts[i];

        if (part == 0 || part >= left || at[part] != ' ')
            part = fitting(at, left, p->width - indent);
        p->cuts[i] = part;
        fprintf(p->to, "%*s%.*s\n", (int)indent, "", (int)part, at);
        left -= part;
        at += part;
        indent = INDENT;
    }
    fprintf(p->to, "%*s%.*s", (int)indent, "", (int)left, at);
}

/* The same of a command, with room for a backslash: before an option where one fits, so that its value stays with it. */
static size_t fitting_command(const char *text, size_t bytes, size_t width)
{
    const size_t word = fitting(text, bytes, width - 2);

    for (size_t end = word; end > INDENT && word < bytes; end--)
        if (text[end] == ' ' && text[end + 1] == '-')
            return end;
    return word;
}

static void pass_text(struct wrapper *p)
{
    const bool command = strncmp(p->line, COMMAND, strlen(COMMAND)) == 0;
    const char *at = p->line;
    size_t left = p->used, indent = 0;

    while (columns(at, left) > p->width - indent) {
        const size_t part = (command ? fitting_command : fitting)(at, left, p->width - indent);

        if (part == left)
            break;
        fprintf(p->to, "%*s%.*s%s\n", (int)indent, "", (int)part, at, command ? " \\" : "");
        indent = hanging(p->line, p->width);
        left -= part;
        at += part;
        left -= strspn(at, " ");
        at += strspn(at, " ");
    }
    fprintf(p->to, "%*s%.*s", (int)indent, "", (int)left, at);
}

static void pass_line(struct wrapper *p)
{
    p->line[p->used] = '\0';
    if (is_row(p->line)) {
        pass_row(p);
    } else {
        memset(p->cuts, 0, sizeof(p->cuts));
        pass_text(p);
    }
    p->used = 0;
}

static ssize_t wrap_write(void *cookie, const char *text, size_t bytes)
{
    struct wrapper *p = cookie;

    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\n' || p->used == LINE_BYTES)
            pass_line(p);
        if (text[i] == '\n')
            fputc('\n', p->to);
        else
            p->line[p->used++] = text[i];
    }
    fflush(p->to);
    return (ssize_t)bytes;
}

static int wrap_end(void *cookie)
{
    struct wrapper *p = cookie;

    pass_line(p);
    fflush(p->to);
    free(p);
    return 0;
}

FILE *st_wrap_open(FILE *to)
{
    struct wrapper *p = st_print_is_terminal(to) ? calloc(1, sizeof(*p)) : NULL;
    FILE *wrapped = NULL;

    if (p != NULL) {
        p->to = to;
        p->width = st_print_width(to);
        wrapped = fopencookie(p, "w", (cookie_io_functions_t){.write = wrap_write, .close = wrap_end});
    }
    if (wrapped == NULL) {
        free(p);
        return to;
    }
    setvbuf(wrapped, NULL, _IOLBF, 0);
    return wrapped;
}

void st_wrap_close(FILE *wrapped, FILE *to)
{
    if (wrapped != to)
        fclose(wrapped);
    fflush(to);
}

void st_wrap_print(FILE *to, const char *fmt, ...)
{
    FILE *const wrapped = st_wrap_open(to);
    va_list args;

    va_start(args, fmt);
    st_vprint(wrapped, fmt, args);
    va_end(args);
    st_wrap_close(wrapped, to);
}
