/* row_reader.c - see row_reader.h.  Finds where a row ends only by its brackets and quotes; the parser decides whether it is
 * valid.
 *
 * In a file of values behind each other a bad one ends with its line.  Where the brackets of a bad row seem to go on for lines,
 * they do so because it is bad, and the lines are read once more: from then on every row ends with its line.  In a file whose
 * rows have several lines a bad one is passed whole; where it does not end, or in an array, nobody knows where the next row
 * begins. */
#include "text/data/rows/row_reader.h"

#include "core/base/error.h"
#include "core/base/fault.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK_BYTES 65536u
#define ROW_FIRST   4096u
#define END         (-1)

struct st_rows {
    const char *name; /* for people */
    char path[ST_PATH_MAX], place[ST_PATH_MAX + 64];
    int fd;
    bool own_fd;
    struct st_file_identity was;
    unsigned char block[BLOCK_BYTES];
    uint32_t at, fill;
    strata_status failed;               /* reading failed: bytes end here */
    bool begun, array, wrapped, beside; /* wrapped: in an object; beside: which holds something else, too */
    bool closed, spread, lines; /* the row's brackets are closed; some row has several lines; every row ends with its line */
    bool goes_on;
    uint64_t rows, line, column;   /* of the next byte; column from 1 */
    uint64_t row_line, row_column; /* where the row begins */
    char *row;
    size_t row_bytes, row_room;
    size_t again_at, again_end; /* of `row`: bytes that are read once more, before those of the block */
    struct st_json_odd odd;
};

strata_status st_rows_open(struct st_rows **out, const char *path)
{
    struct st_rows *r = st_fault("rows.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*r));
    strata_status st;

    if (r == NULL)
        return st_nomem(sizeof(*r));
    r->fd = -1;
    r->line = r->column = 1;
    st = st_path_copy(r->path, path);
    r->name = strcmp(path, "-") == 0 ? "standard input" : r->path;
    if (st == STRATA_OK && r->name != r->path) {
        r->fd = STDIN_FILENO;
        st = st_file_identify(&r->was, r->fd, r->name);
    } else if (st == STRATA_OK) {
        st = st_file_open_stream(&r->fd, &r->was, path, STRATA_E_INPUT);
        r->own_fd = st == STRATA_OK;
    }
    if (st != STRATA_OK) {
        st_rows_close(r);
        return st;
    }
    *out = r;
    return STRATA_OK;
}

void st_rows_close(struct st_rows *r)
{
    if (r == NULL)
        return;
    if (r->own_fd)
        close(r->fd);
    free(r->row);
    free(r);
}

static void refill(struct st_rows *r)
{
    uint32_t interrupted = 0;
    int64_t got;

    do {
        const ssize_t res = read(r->fd, r->block, BLOCK_BYTES);

        got = st_fault("rows.read", res < 0 ? -errno : res);
    } while (st_again(got, &interrupted));
    r->at = r->fill = 0;
    if (got < 0)
        r->failed = st_error(STRATA_E_INPUT, "reading %s: %s", r->name, strerror((int)-got));
    else
        r->fill = (uint32_t)got;
}

/* The next byte, which stays; END: there is none, or reading failed. */
static int peek(struct st_rows *r)
{
    if (r->again_at < r->again_end)
        return (unsigned char)r->row[r->again_at];
    if (r->at == r->fill && r->failed == STRATA_OK)
        refill(r);
    return r->at < r->fill ? r->block[r->at] : END;
}

static void step(struct st_rows *r)
{
    if (peek(r) == '\n') {
        r->line++;
        r->column = 1;
    } else {
        r->column++;
    }
    if (r->again_at < r->again_end)
        r->again_at++;
    else
        r->at++;
}

static bool is_space(int c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int skip_space(struct st_rows *r)
{
    int c;

    while (is_space(c = peek(r)))
        step(r);
    return c;
}

static strata_status wrong(struct st_rows *r, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s:%llu:%llu: %s", r->name, (unsigned long long)r->line, (unsigned long long)r->column,
                    what);
}

static strata_status put(struct st_rows *r, char c)
{
    if (r->row_bytes == ST_ROW_BYTES_MAX)
        return st_error(STRATA_E_INPUT, "%s:%llu: a row of more than %u MiB: split it, or is a bracket or quote missing?",
                        r->name, (unsigned long long)r->row_line, ST_ROW_BYTES_MAX >> 20);
    if (r->row_bytes == r->row_room) {
        const size_t room = r->row_room == 0 ? ROW_FIRST : 2 * r->row_room;
        char *grown = st_fault("rows.alloc", 0) < 0 ? NULL : realloc(r->row, room);

        if (grown == NULL)
            return st_nomem(room);
        r->row = grown;
        r->row_room = room;
    }
    r->row[r->row_bytes++] = c;
    return STRATA_OK;
}

static strata_status take(struct st_rows *r)
{
    const strata_status st = put(r, (char)peek(r));

    if (st == STRATA_OK)
        step(r);
    return st;
}

/* A text up to its closing quote; a line's end, which no text may hold, ends it too. */
static strata_status take_string(struct st_rows *r)
{
    strata_status st = take(r);
    bool escaped = false;
    int c;

    while (st == STRATA_OK && (c = peek(r)) != END && c != '\n') {
        st = take(r);
        if (c == '"' && !escaped)
            break;
        escaped = c == '\\' && !escaped;
    }
    return st;
}

/* @param out  NULL: not wanted */
static strata_status parse(struct st_rows *r, st_json **out)
{
    const strata_status st = st_json_parse_row(out, &r->odd, r->row, r->row_bytes, r->name, r->row_line, r->row_column);

    r->spread |= r->odd.whole && r->line > r->row_line;
    return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
}

/* Check that the text before the rows of an object around them is JSON. */
static strata_status begin_wrapped(struct st_rows *r, size_t name)
{
    st_json *tree = NULL;

    r->array = r->wrapped = true;
    r->beside = strspn(r->row, "{ \t\r\n") < name;
    if ((r->failed = put(r, ']')) == STRATA_OK && (r->failed = put(r, '}')) == STRATA_OK)
        r->failed = parse(r, &tree);
    st_json_free(tree);
    r->odd = (struct st_json_odd){0};
    r->row_bytes = 0;
    return r->failed;
}

/* Behind a name of the outermost object: whether it is {"data": [{...}, ...]}, whose rows are those of the array. */
static strata_status look_for_rows(struct st_rows *r, size_t name, uint64_t *depth)
{
    static const char data[] = "\"data\"";
    strata_status st = STRATA_OK;

    if (r->row_bytes - name != strlen(data) || memcmp(r->row + name, data, strlen(data)) != 0)
        return STRATA_OK;
    for (const char *want = ":["; st == STRATA_OK && *want != '\0'; want++) {
        while (st == STRATA_OK && is_space(peek(r)))
            st = take(r);
        if (st != STRATA_OK || peek(r) != *want)
            return st;
        st = take(r);
    }
    ++*depth;
    while (st == STRATA_OK && is_space(peek(r)))
        st = take(r);
    return st == STRATA_OK && (peek(r) == '{' || peek(r) == ']') ? begin_wrapped(r, name) : st;
}

/* A row; none (row_bytes 0): it began an object around all rows. */
static strata_status take_value(struct st_rows *r)
{
    const bool may_wrap = r->rows == 1 && !r->array && st_path_ends(r->path, ".json");
    strata_status st = STRATA_OK;
    uint64_t depth = 0;
    int c;

    r->row_bytes = 0;
    r->row_line = r->line;
    r->row_column = r->column;
    while (st == STRATA_OK && (c = peek(r)) != END) {
        if (depth == 0 && r->row_bytes > 0 && (is_space(c) || c == ',' || c == ']' || c == '{' || c == '"'))
            break; /* after a number or a word */
        if (c == '\n' && r->lines)
            break;
        if (c == '"') {
            const size_t begin = r->row_bytes;

            st = take_string(r);
            if (st == STRATA_OK && depth == 1 && may_wrap)
                st = look_for_rows(r, begin, &depth);
            if (r->row_bytes == 0)
                return st;
        } else {
            st = take(r);
            depth += c == '{' || c == '[';
            depth -= depth > 0 && (c == '}' || c == ']');
        }
        if (depth == 0 && (c == '"' || c == '}' || c == ']'))
            break;
    }
    r->closed = depth == 0;
    return st == STRATA_OK ? r->failed : st;
}

static const unsigned char mark[] = {0xef, 0xbb, 0xbf};

/* A byte order mark, and the bracket of an array. */
static strata_status begin(struct st_rows *r)
{
    r->begun = true;
    if (peek(r) == 0xff || peek(r) == 0xfe)
        return wrong(r, "UTF-16, or no text: save it as UTF-8");
    if (peek(r) == mark[0])
        for (size_t i = 0; i < sizeof(mark); i++) {
            if (peek(r) != mark[i])
                return r->failed != STRATA_OK ? r->failed : wrong(r, "not UTF-8");
            step(r);
        }
    r->line = r->column = 1;
    if (skip_space(r) == '[') {
        r->array = true;
        step(r);
    }
    return r->failed;
}

static strata_status end(struct st_rows *r)
{
    if (r->failed != STRATA_OK)
        return r->failed;
    return st_file_check_unchanged(r->fd, &r->was, r->name);
}

/* The rest of an object around all rows. */
static strata_status close_object(struct st_rows *r)
{
    uint64_t depth = 1;
    bool quoted = false, escaped = false;
    int c = skip_space(r);

    if (c != END && c != ',' && c != '}')
        return wrong(r, ", or } is missing behind \"data\"");
    while (depth > 0 && (c = peek(r)) != END) {
        if (!quoted) {
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
        }
        if (depth == 0 && c != '}')
            return wrong(r, "} is missing: the object around \"data\" does not end here");
        r->beside |= c == '"';
        quoted ^= c == '"' && !escaped;
        escaped = quoted && c == '\\' && !escaped;
        step(r);
    }
    return depth == 0 || r->failed != STRATA_OK ? r->failed : wrong(r, "the object around \"data\" does not end");
}

/* Behind the last row of an array, with which the file ends. */
static strata_status end_array(struct st_rows *r)
{
    strata_status st = STRATA_OK;

    step(r);
    r->array = false;
    if (r->wrapped && (st = close_object(r)) != STRATA_OK)
        return st;
    if (skip_space(r) != END)
        return wrong(r, r->wrapped ? "text behind an object whose \"data\" has rows: if each line is a row, call the file .jsonl"
                                   : "text after the end of the array");
    return end(r);
}

/* Skip to the next row of an array; *more false: the array and the file have ended. */
static strata_status before_element(struct st_rows *r, bool *more)
{
    int c = skip_space(r);
    const bool comma = c == ',' && r->rows > 0;

    if (comma) {
        step(r);
        c = skip_space(r);
    }
    *more = c != ']';
    if (!*more)
        return end_array(r);
    if (r->failed != STRATA_OK)
        return r->failed;
    if (c == END)
        return wrong(r, "the array does not end: \"]\" is missing");
    return comma || r->rows == 0 ? STRATA_OK : wrong(r, "a comma is missing between rows");
}

/* Skip to the next row; *more false: there is none. */
static strata_status before_row(struct st_rows *r, bool *more)
{
    const strata_status st = r->begun ? STRATA_OK : begin(r);

    *more = true;
    if (st != STRATA_OK)
        return st;
    if (r->array)
        return before_element(r, more);
    if (skip_space(r) == ',' && r->rows > 0)
        step(r);
    *more = skip_space(r) != END;
    return *more ? STRATA_OK : end(r);
}

/* A byte order mark inside a file, which was another file's beginning, or the beginning of an object around all rows. */
static bool is_no_row(const struct st_rows *r)
{
    return r->row_bytes == 0 || (r->row_bytes == sizeof(mark) && memcmp(r->row, mark, sizeof(mark)) == 0);
}

/* Goes on behind a bad row, if that can be done.  Returns its status, with a sentence about it. */
static strata_status pass_bad(struct st_rows *r)
{
    const char *newline = memchr(r->row, '\n', r->row_bytes);
    strata_status st;
    int c;

    r->goes_on = r->odd.whole || (!r->array && (!r->spread || r->closed));
    if (r->odd.whole || r->array)
        return STRATA_E_INPUT;
    if (newline == NULL) {
        while ((c = peek(r)) != END && c != '\n')
            step(r);
        r->goes_on = r->failed == STRATA_OK;
        return r->goes_on ? STRATA_E_INPUT : r->failed;
    }
    if (r->spread)
        return STRATA_E_INPUT;
    r->lines = true;
    r->again_end = r->row_bytes;
    r->row_bytes = r->again_at = (size_t)(newline - r->row);
    r->line = r->row_line;
    r->column = r->row_column + r->row_bytes;
    st = parse(r, NULL);          /* says what is wrong with its line */
    assert(st == STRATA_E_INPUT); /* something is, for brackets or a quote are open */
    return st;
}

/* *more false: there is no row.  @param out  NULL: not wanted */
static strata_status next(struct st_rows *r, st_json **out, bool *more)
{
    strata_status st;

    r->goes_on = false;
    r->odd = (struct st_json_odd){0};
    do {
        if ((st = before_row(r, more)) != STRATA_OK || !*more)
            return st;
        r->rows++;
        st = take_value(r);
        r->rows -= st == STRATA_OK && is_no_row(r);
    } while (st == STRATA_OK && is_no_row(r));
    if (st == STRATA_OK)
        st = parse(r, out);
    return st == STRATA_E_INPUT && r->failed == STRATA_OK ? pass_bad(r) : st;
}

strata_status st_rows_next(struct st_rows *r, st_json **out)
{
    bool more;

    *out = NULL;
    return next(r, out, &more);
}

bool st_rows_goes_on(const struct st_rows *r)
{
    return r->goes_on;
}

strata_status st_rows_count(struct st_rows *r, uint64_t *count)
{
    for (*count = 0;; ++*count) {
        bool more;
        const strata_status st = next(r, NULL, &more);

        if (!r->goes_on && (st != STRATA_OK || !more))
            return st;
    }
}

bool st_rows_beside(const struct st_rows *r)
{
    return r->beside;
}

const struct st_json_odd *st_rows_odd(const struct st_rows *r)
{
    return &r->odd;
}

const struct st_file_identity *st_rows_identity(const struct st_rows *r)
{
    return &r->was;
}

strata_status st_rows_check_same(const struct st_rows *r, const struct st_file_identity *was)
{
    return st_file_check_unchanged(r->fd, was, r->name);
}

bool st_rows_again(const struct st_rows *r)
{
    return r->own_fd && r->was.regular;
}

const char *st_rows_place(struct st_rows *r)
{
    snprintf(r->place, sizeof(r->place), "%s:%llu: row %llu", r->name, (unsigned long long)r->row_line,
             (unsigned long long)r->rows);
    return r->place;
}
