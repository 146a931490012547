/* text/data/texts.c - see texts.h. */
#include "text/data/texts.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/file.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char standard_input[] = "standard input";

static bool is_standard_input(const char *path)
{
    return strcmp(path, "-") == 0;
}

void st_texts_name(char *out, size_t room, const char *const *paths, uint32_t count)
{
    const char *first = count == 0 ? "no text" : is_standard_input(paths[0]) ? standard_input : paths[0];

    if (count > 1)
        snprintf(out, room, "%.900s and %u more", first, count - 1);
    else
        snprintf(out, room, "%.900s", first);
}

/* Bytes of a byte order mark at the beginning, which are skipped; that takes three bytes to know. */
static size_t mark_bytes(const char *text, size_t bytes)
{
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

/* Reads to the end; *bytes: how many there were. */
static strata_status read_stream(const struct st_texts *t, int fd, const char *name, uint64_t *bytes)
{
    char part[ST_TEXTS_PART_BYTES];
    uint32_t interrupted = 0;
    size_t held = 0, skip; /* held: of the beginning, not yet given on */
    bool begun = t->keep_mark;
    strata_status st;

    *bytes = 0;
    for (;;) {
        const ssize_t res = read(fd, part + held, sizeof(part) - held);
        const int64_t got = st_fault("tokens.read", res < 0 ? -errno : res);

        if (st_again(got, &interrupted))
            continue;
        interrupted = 0;
        if (got < 0)
            return st_error(STRATA_E_INPUT, "reading %s: %s", name, strerror((int)-got));
        if (got == 0)
            return held > 0 ? t->part(t->context, part, held) : STRATA_OK;
        *bytes += (uint64_t)got;
        held += (size_t)got;
        if (!begun && held < 3)
            continue;
        skip = begun ? 0 : mark_bytes(part, held);
        begun = true;
        if (held > skip && (st = t->part(t->context, part + skip, held - skip)) != STRATA_OK)
            return st;
        held = 0;
    }
}

/* Standard input may be a file whose beginning has already been read. */
static strata_status read_standard_input(const struct st_texts *t)
{
    struct st_file_identity was;
    uint64_t bytes;
    strata_status st;

    if ((st = st_file_identify(&was, STDIN_FILENO, standard_input)) != STRATA_OK ||
        (st = read_stream(t, STDIN_FILENO, standard_input, &bytes)) != STRATA_OK)
        return st;
    return st_file_check_unchanged(STDIN_FILENO, &was, standard_input);
}

static strata_status read_text(const struct st_texts *t, const char *path)
{
    struct st_file_identity was;
    uint64_t bytes;
    strata_status st;
    int fd;

    if (is_standard_input(path))
        return read_standard_input(t);
    if ((st = st_file_open_stream(&fd, &was, path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    if ((st = read_stream(t, fd, path, &bytes)) == STRATA_OK && (st = st_file_check_unchanged(fd, &was, path)) == STRATA_OK &&
        was.regular && bytes != was.bytes)
        st = st_error(STRATA_E_INPUT, "%s has %llu bytes, but ended after %llu: run again", path, (unsigned long long)was.bytes,
                      (unsigned long long)bytes);
    close(fd);
    return st;
}

bool st_texts_are_rows(const char *path)
{
    return st_path_ends(path, ".json") || st_path_ends(path, ".jsonl") || st_path_ends(path, ".ndjson");
}

strata_status st_texts_check_kind(const char *path)
{
    static const char *const tables[] = {".parquet", ".arrow", ".csv", ".tsv"}, *const packed[] = {".gz", ".zst", ".xz", ".bz2"};

    for (size_t i = 0; i < sizeof(tables) / sizeof(tables[0]); i++)
        if (st_path_ends(path, tables[i]))
            return st_error(STRATA_E_INPUT,
                            "%s: %s is not read: convert it with datasets.load_dataset(...).to_json(\"rows.jsonl\")", path,
                            tables[i]);
    for (size_t i = 0; i < sizeof(packed) / sizeof(packed[0]); i++)
        if (st_path_ends(path, packed[i]))
            return st_error(STRATA_E_INPUT, "%s: it is compressed: unpack it first, or pipe it in as -", path);
    return STRATA_OK;
}

strata_status st_texts_read(const struct st_texts *t)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < t->count && st == STRATA_OK; i++)
        st = st_texts_check_kind(t->paths[i]);
    for (uint32_t i = 0; i < t->count && st == STRATA_OK; i++) {
        if (st_texts_are_rows(t->paths[i]))
            st_log(ST_LOG_NOTICE,
                   "%s is used as plain text, with its braces, keys and quotes: with texts.tokenizer DIR its rows are read",
                   t->paths[i]);
        st = read_text(t, t->paths[i]);
        if (st == STRATA_OK)
            st = t->end(t->context);
    }
    return st;
}
