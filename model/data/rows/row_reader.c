/* row_reader.c - see row_reader.h.  Finds where a row ends by its brackets and quotes alone; the strict parser judges it. */
#include "model/data/rows/row_reader.h"

#include "core/base/error.h"
#include "core/base/fault.h"

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
    strata_status failed; /* reading failed: bytes end here */
    bool begun, array;
    uint64_t bytes, rows, line, column; /* of the next byte; column from 1 */
    uint64_t row_line, row_column;      /* where the row begins */
    char *row;
    size_t row_bytes, row_room;
};

strata_status st_rows_open(struct st_rows **out, const char *path)
{
    struct st_rows *r = st_fault("rows.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*r));
    strata_status st;

    if (r == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory to read rows", path);
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
    if (r->at == r->fill && r->failed == STRATA_OK)
        refill(r);
    return r->at < r->fill ? r->block[r->at] : END;
}

static void step(struct st_rows *r)
{
    if (r->block[r->at] == '\n') {
        r->line++;
        r->column = 1;
    } else {
        r->column++;
    }
    r->bytes++;
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

static strata_status take(struct st_rows *r)
{
    if (r->row_bytes == ST_ROW_BYTES_MAX)
        return st_error(STRATA_E_INPUT, "%s:%llu: a row of more than %u MiB: split it, or is a bracket or quote missing?",
                        r->name, (unsigned long long)r->row_line, ST_ROW_BYTES_MAX >> 20);
    if (r->row_bytes == r->row_room) {
        const size_t room = r->row_room == 0 ? ROW_FIRST : 2 * r->row_room;
        char *grown = st_fault("rows.alloc", 0) < 0 ? NULL : realloc(r->row, room);

        if (grown == NULL)
            return st_error(STRATA_E_NOMEM, "%s:%llu: no memory for a row of %zu bytes", r->name, (unsigned long long)r->row_line,
                            room);
        r->row = grown;
        r->row_room = room;
    }
    r->row[r->row_bytes++] = (char)r->block[r->at];
    step(r);
    return STRATA_OK;
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

static strata_status take_value(struct st_rows *r)
{
    strata_status st = STRATA_OK;
    uint64_t depth = 0;
    int c;

    r->row_bytes = 0;
    r->row_line = r->line;
    r->row_column = r->column;
    while (st == STRATA_OK && (c = peek(r)) != END) {
        if (depth == 0 && r->row_bytes > 0 && (is_space(c) || c == ',' || c == ']' || c == '{' || c == '"'))
            break; /* after a number or a word */
        if (c == '"') {
            st = take_string(r);
        } else {
            st = take(r);
            depth += c == '{' || c == '[';
            depth -= depth > 0 && (c == '}' || c == ']');
        }
        if (depth == 0 && (c == '"' || c == '}' || c == ']'))
            break;
    }
    return st == STRATA_OK ? r->failed : st;
}

/* A byte order mark, and the bracket of an array. */
static strata_status begin(struct st_rows *r)
{
    static const unsigned char mark[] = {0xef, 0xbb, 0xbf};

    r->begun = true;
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

/* What stands before a row of an array; *more false: the array has ended, and the file with it. */
static strata_status before_element(struct st_rows *r, bool *more)
{
    int c = skip_space(r);

    if (c == ']' && r->array) {
        step(r);
        r->array = false;
        *more = false;
        if (skip_space(r) != END)
            return wrong(r, "text after the end of the array");
        return end(r);
    }
    if (r->rows > 0 && c == ',') {
        step(r);
        c = skip_space(r);
        return c != ']' && c != END ? STRATA_OK : wrong(r, "a comma with no row after it");
    }
    if (r->failed != STRATA_OK)
        return r->failed;
    if (c == END)
        return wrong(r, "the array does not end: \"]\" is missing");
    return r->rows == 0 ? STRATA_OK : wrong(r, "a comma is missing between rows");
}

/* The next row's text; *more false: there is none. */
static strata_status find_row(struct st_rows *r, bool *more)
{
    const bool first = !r->begun;
    strata_status st = first ? begin(r) : STRATA_OK;

    *more = true;
    if (st == STRATA_OK && r->array)
        st = before_element(r, more);
    else if (st == STRATA_OK && skip_space(r) == END) {
        *more = false;
        st = end(r);
    }
    if (st != STRATA_OK || !*more)
        return st;
    r->rows++;
    return take_value(r);
}

static strata_status parse(struct st_rows *r, st_json **out)
{
    const strata_status st = st_json_parse_at(out, r->row, r->row_bytes, r->name, r->row_line, r->row_column);

    return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
}

strata_status st_rows_next(struct st_rows *r, st_json **out)
{
    bool more;
    strata_status st = find_row(r, &more);

    *out = NULL;
    return st == STRATA_OK && more ? parse(r, out) : st;
}

strata_status st_rows_count(struct st_rows *r, uint64_t *count)
{
    bool more = true;
    strata_status st = STRATA_OK;

    for (*count = 0; st == STRATA_OK && more; *count += more)
        st = find_row(r, &more);
    return st;
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

uint64_t st_rows_bytes(const struct st_rows *r)
{
    return r->bytes;
}
