/* core/base/print.c - formats, makes the text safe to print, and writes it. */
#include "core/base/print.h"
#include "core/base/fault.h"
#include "core/base/text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define WIDTH_DEFAULT 80u
#define KEYED_BYTES   2048  /* of a sentence that names keys */
#define PRINT_BYTES   2048  /* longer texts are formatted on the heap; no line of a running step is that long */
#define SHOWN_BYTES   4096u /* of one write: as much as a pipe takes atomically beside other writers */

static bool is_layout(char c)
{
    return c == '\n' || c == '\t';
}

static size_t count_layout(const char *text)
{
    size_t count = 0;

    for (; *text != '\0'; text++)
        count += is_layout(*text);
    return count;
}

/* Gathers the text that is safe to print, since standard error has no buffer. */
struct shown {
    FILE *file;
    size_t bytes;
    char text[SHOWN_BYTES];
};

static void shown_begin(struct shown *s, FILE *file)
{
    s->file = file; /* the text needs no zeros */
    s->bytes = 0;
}

static void shown_write(struct shown *s)
{
    fwrite(s->text, 1, s->bytes, s->file);
    s->bytes = 0;
}

static void shown_add(struct shown *s, const char *text, size_t bytes)
{
    if (s->bytes + bytes > sizeof(s->text))
        shown_write(s);
    memcpy(s->text + s->bytes, text, bytes);
    s->bytes += bytes;
}

/* Newlines and tabs stay if `layout` is set, and from `tail` on.  A line is one write. */
static int write_shown(FILE *file, const char *text, bool layout, size_t tail)
{
    const size_t length = strlen(text);
    struct shown shown;
    int written = 0;

    shown_begin(&shown, file);
    for (size_t i = 0; i < length;) {
        char unit[ST_TEXT_UNIT_MAX];
        const size_t from = i;

        i += st_text_unit(unit, text + i, length - i);
        if (is_layout(text[from]) && (layout || from >= tail)) {
            shown_add(&shown, text + from, 1);
            written++;
            if (text[from] == '\n')
                shown_write(&shown);
        } else {
            shown_add(&shown, unit, strlen(unit));
            written += (int)strlen(unit);
        }
    }
    shown_write(&shown);
    return written;
}

void st_print_text(FILE *file, const char *text)
{
    write_shown(file, text, true, 0);
}

/* The format's own newlines and tabs are allowed.  If the text has more than the format, an argument brought some, and then only
 * those at the end of the line stay. */
static int print_formatted(FILE *file, const char *fmt, const char *text)
{
    const size_t own = count_layout(fmt);
    size_t tail = strlen(text);

    if (count_layout(text) == own)
        return write_shown(file, text, true, 0);
    if (fmt[0] != '\0' && is_layout(fmt[strlen(fmt) - 1]))
        tail--;
    return write_shown(file, text, false, tail);
}

int st_vprint(FILE *file, const char *fmt, va_list args)
{
    char small[PRINT_BYTES];
    char *text = small;
    va_list again;
    int bytes, written;

    va_copy(again, args);
    bytes = vsnprintf(small, sizeof(small), fmt, args);
    if (bytes >= (int)sizeof(small) && (text = malloc((size_t)bytes + 1)) != NULL)
        vsnprintf(text, (size_t)bytes + 1, fmt, again);
    va_end(again);
    if (bytes < 0)
        return bytes;
    written = print_formatted(file, fmt, text != NULL ? text : small);
    if (text != small)
        free(text);
    return written;
}

int st_print(FILE *file, const char *fmt, ...)
{
    va_list args;
    int written;

    va_start(args, fmt);
    written = st_vprint(file, fmt, args);
    va_end(args);
    return written;
}

static st_print_tell_fn *tell_keys;

void st_print_keys_by(st_print_tell_fn *tell)
{
    tell_keys = tell;
}

void st_print_keyed(FILE *file, const char *fmt, ...)
{
    char text[KEYED_BYTES], told[KEYED_BYTES];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (tell_keys != NULL)
        tell_keys(told, sizeof(told), text);
    st_print_text(file, tell_keys != NULL ? told : text);
}

/* --- text in pieces --- */

/* True while the held bytes are the beginning of a valid character. */
static bool is_begun(const struct st_print_bytes *b)
{
    const unsigned char lead = (unsigned char)b->held[0];
    const size_t length = lead < 0xc2 || lead > 0xf4 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;

    for (size_t i = 1; i < b->count; i++)
        if (((unsigned char)b->held[i] & 0xc0) != 0x80)
            return false;
    return b->count < length;
}

static void put_first(FILE *file, struct st_print_bytes *b)
{
    char unit[ST_TEXT_UNIT_MAX];
    const size_t taken = st_text_unit(unit, b->held, b->count);

    if (is_layout(b->held[0]))
        fputc(b->held[0], file);
    else
        fputs(unit, file);
    b->count -= taken;
    memmove(b->held, b->held + taken, b->count);
}

void st_print_byte(FILE *file, struct st_print_bytes *b, char byte)
{
    b->held[b->count++] = byte;
    while (b->count > 0 && !is_begun(b))
        put_first(file, b);
}

void st_print_bytes_end(FILE *file, struct st_print_bytes *b)
{
    while (b->count > 0)
        put_first(file, b);
}

/* stdio does not keep the reason, and errno may have been overwritten: writing one more newline brings it back. */
static int flush(FILE *file)
{
    errno = 0;
    if (fflush(file) != 0)
        return errno != 0 ? errno : EIO;
    if (ferror(file) == 0)
        return 0;
    return write(fileno(file), "\n", 1) < 0 ? errno : EIO;
}

int st_print_flush(FILE *file)
{
    return (int)-st_fault("print.flush", -flush(file));
}

/* --- terminals --- */

bool st_print_is_terminal(FILE *file)
{
    return getenv("OMPI_COMM_WORLD_RANK") == NULL && isatty(fileno(file)) != 0;
}

bool st_print_rewrites(FILE *file)
{
    const char *kind = getenv("TERM");

    return st_print_is_terminal(file) && kind != NULL && strcmp(kind, "dumb") != 0;
}

void st_print_mark(FILE *file, bool on)
{
    const char *plain = getenv("NO_COLOR");
    struct shown shown;

    if (!st_print_rewrites(file) || (plain != NULL && plain[0] != '\0'))
        return;
    shown_begin(&shown, file);
    shown_add(&shown, on ? "\033[32m" : "\033[m", on ? 5 : 3);
    shown_write(&shown);
}

size_t st_print_width(FILE *file)
{
    struct winsize size;

    if (ioctl(fileno(file), TIOCGWINSZ, &size) != 0 || size.ws_col == 0)
        return WIDTH_DEFAULT;
    return size.ws_col;
}

void st_print_over(FILE *file, const char *line)
{
    const size_t width = st_print_width(file) - 1, length = strlen(line);
    struct shown shown;

    shown_begin(&shown, file);
    shown_add(&shown, "\r", 1);
    for (size_t i = 0, column = 0; i < length; column++) {
        char unit[ST_TEXT_UNIT_MAX];

        i += st_text_unit(unit, line + i, length - i);
        if (column + 1 > width)
            break;
        shown_add(&shown, unit, strlen(unit));
    }
    shown_add(&shown, "\033[K", 3);
    shown_write(&shown);
    fflush(file);
}
