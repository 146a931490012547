/* text/tokenizer/scan.c - where a word ends, for patterns so common that they are written out by hand.
 *
 * Each pattern is a list of alternatives that together match at every place; the first that matches counts, and \p{L}+ and its
 * like are greedy.  regex.c gives the same ends for the same patterns (tests/text/test_tokenizer_pattern.c compares them). */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

struct place {
    const struct st_unicode *u;
    const char *text;
    size_t bytes;
};

/* Flags of the character at `at`, and its length; a place behind the end has none. */
static unsigned flags_at(const struct place *p, size_t at, size_t *length)
{
    *length = 0;
    return at < p->bytes ? p->u->flags[st_utf8_at(p->text + at, length)] : 0;
}

static bool is_other(unsigned flags)
{
    return (flags & (ST_UC_SPACE | ST_UC_LETTER | ST_UC_NUMBER)) == 0;
}

static size_t run_of(const struct place *p, size_t at, unsigned flag)
{
    size_t length;

    while (at < p->bytes && (flags_at(p, at, &length) & flag) != 0)
        at += length;
    return at;
}

/* [^\s\p{L}\p{N}]* */
static size_t run_of_others(const struct place *p, size_t at)
{
    size_t length;

    while (at < p->bytes && is_other(flags_at(p, at, &length)))
        at += length;
    return at;
}

static bool is_newline(char c)
{
    return c == '\n' || c == '\r';
}

/* \s+(?!\S)|\s+ : a run of white space leaves its last character to the word that follows. */
static size_t space_end(const struct place *p, size_t at)
{
    const size_t end = run_of(p, at, ST_UC_SPACE);
    size_t last = end;

    if (end == p->bytes)
        return end;
    do
        last--;
    while (((unsigned char)p->text[last] & 0xc0) == 0x80);
    return last > at ? last : end;
}

/* 's|'t|'re|'ve|'m|'ll|'d with `at` behind the apostrophe.  @return bytes after it; 0: none of these */
static size_t contraction(const struct place *p, size_t at, bool any_case)
{
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++) {
        const size_t length = strlen(endings[i]);
        size_t same = 0;

        while (same < length && at + same < p->bytes &&
               (any_case ? p->text[at + same] | 0x20 : p->text[at + same]) == endings[i][same])
            same++;
        if (same == length)
            return length;
    }
    /* The long s is an s in lower case. */
    return any_case && p->bytes - at >= 2 && memcmp(p->text + at, "\xc5\xbf", 2) == 0 ? 2 : 0;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t scan_gpt2(const struct place *p, size_t at)
{
    size_t length, body = at;
    unsigned flags;

    if (p->text[at] == '\'' && (length = contraction(p, at + 1, false)) > 0)
        return at + 1 + length;
    if (p->text[at] == ' ' && at + 1 < p->bytes)
        body++;
    flags = flags_at(p, body, &length);
    if ((flags & ST_UC_LETTER) != 0)
        return run_of(p, body + length, ST_UC_LETTER);
    if ((flags & ST_UC_NUMBER) != 0)
        return run_of(p, body + length, ST_UC_NUMBER);
    return is_other(flags) ? run_of_others(p, body + length) : space_end(p, at);
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t scan_llama3(const struct place *p, size_t at, unsigned digits)
{
    const char first = p->text[at];
    size_t length, next_length, end;
    const unsigned flags = flags_at(p, at, &length), next = flags_at(p, at + length, &next_length);

    if (first == '\'' && (end = contraction(p, at + 1, true)) > 0)
        return at + 1 + end;
    if ((flags & ST_UC_LETTER) != 0)
        return run_of(p, at + length, ST_UC_LETTER);
    if ((flags & ST_UC_NUMBER) != 0) {
        for (end = at + length; digits > 1 && (flags_at(p, end, &length) & ST_UC_NUMBER) != 0; digits--)
            end += length;
        return end;
    }
    if (!is_newline(first) && (next & ST_UC_LETTER) != 0)
        return run_of(p, at + length + next_length, ST_UC_LETTER);
    if (is_other(flags) || (first == ' ' && next_length > 0 && is_other(next))) {
        end = run_of_others(p, at + length);
        while (end < p->bytes && is_newline(p->text[end]))
            end++;
        return end;
    }
    end = run_of(p, at, ST_UC_SPACE);
    while (end > at && !is_newline(p->text[end - 1]))
        end--;
    return end > at ? end : space_end(p, at);
}

size_t st_scan_word(enum st_scan scan, const struct st_unicode *u, const char *text, size_t at, size_t bytes)
{
    const struct place p = {u, text, bytes};

    if (scan == ST_SCAN_GPT2)
        return scan_gpt2(&p, at);
    return scan_llama3(&p, at, scan == ST_SCAN_LLAMA3 ? 3 : 1);
}
