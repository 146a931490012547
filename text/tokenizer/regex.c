/* text/tokenizer/regex.c - regular expressions that scan.c does not know, by PCRE2 (its one home).
 *
 * The reference's expressions are Oniguruma's.  They are rewritten for PCRE2 so that nothing depends on what either library takes
 * for a letter: \p{..}, \s, \d and \w become classes of code points from our tables.  What is left must be what both libraries
 * read alike; the rest is refused.  Matching is limited: an expression that searches without end fails with a sentence. */
#include "text/tokenizer/regex_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_BYTES_MAX   4096u
#define REWRITTEN_BYTES_MAX (1u << 20)
#define MATCH_LIMIT         10000000u
#define DEPTH_LIMIT         10000u
#define HEAP_KIB_LIMIT      65536u

struct st_regex {
    pcre2_code *code;
};

struct st_regex_run {
    pcre2_match_data *data;
    pcre2_match_context *context;
};

/* The expression as it is rewritten. */
struct rewriter {
    const char *at, *end;
    char *text;
    size_t bytes, capacity;
    const char *refused; /* why; NULL: good */
    bool no_memory;
};

static bool put(struct rewriter *w, const char *text, size_t bytes)
{
    if (!st_tokenizer_grow(&w->text, &w->capacity, w->bytes + bytes, 1) || w->bytes + bytes > REWRITTEN_BYTES_MAX) {
        w->no_memory = true;
        return false;
    }
    memcpy(w->text + w->bytes, text, bytes);
    w->bytes += bytes;
    return true;
}

static bool refuse(struct rewriter *w, const char *why)
{
    w->refused = why;
    return false;
}

static bool put_range(struct rewriter *w, uint32_t first, uint32_t last)
{
    char text[40];
    const int bytes = snprintf(text, sizeof(text), first == last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", first, last);

    /* Surrogates are no code points to PCRE2, and in no text. */
    if (first <= 0xdfff && last >= 0xd800)
        return (first >= 0xd800 || put_range(w, first, 0xd7ff)) && (last <= 0xdfff || put_range(w, 0xe000, last));
    return put(w, text, (size_t)bytes);
}

/* Whether a category is meant by \p{name}: by both letters, or the first. */
static bool is_meant(uint32_t category, const char *name)
{
    const char *own = st_unicode_category_name(category);

    return own[0] == name[0] && (name[1] == '\0' || own[1] == name[1]);
}

/* \w is a letter, a mark, a digit, a number that is a letter or a connector; \d a digit. */
static bool is_named(uint32_t category, const char *name)
{
    if (strcmp(name, "w") == 0)
        return is_meant(category, "L") || is_meant(category, "M") || is_meant(category, "Nd") || is_meant(category, "Nl") ||
               is_meant(category, "Pc");
    return is_meant(category, strcmp(name, "d") == 0 ? "Nd" : name);
}

/* Letters in circles and squares: symbols by category, and word characters, too. */
static const uint32_t framed[][2] = {{0x24b6, 0x24e9}, {0x1f130, 0x1f149}, {0x1f150, 0x1f169}, {0x1f170, 0x1f189}};
#define FRAMED (sizeof(framed) / sizeof(framed[0]))

static bool put_framed(struct rewriter *w)
{
    bool good = true;

    for (size_t i = 0; i < FRAMED && good; i++)
        good = put_range(w, framed[i][0], framed[i][1]);
    return good;
}

/* A range of characters that are in no word by their category. */
static bool put_range_unframed(struct rewriter *w, uint32_t first, uint32_t last)
{
    for (size_t i = 0; i < FRAMED; i++) {
        if (framed[i][0] < first || framed[i][1] > last)
            continue;
        if (first < framed[i][0] && !put_range(w, first, framed[i][0] - 1))
            return false;
        first = framed[i][1] + 1;
    }
    return first > last || put_range(w, first, last);
}

/* The inside of a class: all code points of what `name` says, or all others. */
static bool put_categories(struct rewriter *w, const char *name, bool negated)
{
    const bool word = strcmp(name, "w") == 0;
    uint32_t first, category, next, ignored, open = UINT32_MAX;

    if (word && !negated && !put_framed(w))
        return false;
    for (uint32_t i = 0; st_unicode_category_run(i, &first, &category); i++) {
        const bool in = is_named(category, name) != negated;

        if (in && open == UINT32_MAX)
            open = first;
        if (!st_unicode_category_run(i + 1, &next, &ignored))
            next = ST_UNICODE_CODES;
        if (open != UINT32_MAX && (!in || next == ST_UNICODE_CODES)) {
            const uint32_t last = in ? next - 1 : first - 1;

            if (!(word && negated ? put_range_unframed(w, open, last) : put_range(w, open, last)))
                return false;
            open = UINT32_MAX;
        }
    }
    return true;
}

static bool put_spaces(struct rewriter *w, bool negated)
{
    static const uint32_t rows[][2] = {{0x09, 0x0d},     {0x20, 0x20},     {0x85, 0x85},     {0xa0, 0xa0},     {0x1680, 0x1680},
                                       {0x2000, 0x200a}, {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}};
    uint32_t next = 0;

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (negated ? !put_range(w, next, rows[i][0] - 1) : !put_range(w, rows[i][0], rows[i][1]))
            return false;
        next = rows[i][1] + 1;
    }
    return !negated || put_range(w, next, ST_UNICODE_CODES - 1);
}

/* After "\p" or "\P": {L}, {Lu}, {^L}. */
static bool put_property(struct rewriter *w, bool negated)
{
    const char *end = w->at < w->end && *w->at == '{' ? memchr(w->at, '}', (size_t)(w->end - w->at)) : NULL;
    char name[4] = {0};
    size_t length;

    if (end == NULL)
        return refuse(w, "\\p without {...}");
    w->at++;
    if (*w->at == '^') {
        negated = !negated;
        w->at++;
    }
    length = (size_t)(end - w->at);
    if (length < 1 || length > 2)
        return refuse(w, "a property must be a general category");
    memcpy(name, w->at, length);
    w->at = end + 1;
    for (uint32_t i = 0; st_unicode_category_name(i) != NULL; i++)
        if (is_meant(i, name) && strcmp(name, "Cs") != 0)
            return put_categories(w, name, negated);
    return refuse(w, "a property must be a general category");
}

/* \w or \W outside a class.  There the reference takes six more of Latin-1 for word characters: 2, 3 and 1 raised, and the
 * quarters. */
static bool put_word(struct rewriter *w, bool negated)
{
    return put(w, "[^", negated ? 2 : 1) && put_categories(w, "w", false) && put_range(w, 0xb2, 0xb3) &&
           put_range(w, 0xb9, 0xb9) && put_range(w, 0xbc, 0xbe) && put(w, "]", 1);
}

/* After a backslash.  @param inside  a class, whose brackets are there already */
static bool put_escape(struct rewriter *w, bool inside)
{
    static const char same[] = "rntfv.*+?()[]{}|^$\\/-'\"#&~,:;<>=!@%_ `";
    const char c = w->at < w->end ? *w->at++ : '\0';
    bool good;

    if (c == '\0')
        return refuse(w, "a backslash at the end");
    if (strchr("pPsSdDwW", c) == NULL) {
        if (strchr(same, c) == NULL)
            return refuse(w, "an escape other than \\p, \\s, \\d, \\w, \\r, \\n, \\t and signs");
        if (c == 'v') /* a vertical tab to one library, all vertical space to the other */
            return put(w, "\\x0b", 4);
        return put(w, (const char[]){'\\', c}, 2);
    }
    if (!inside && (c == 'w' || c == 'W'))
        return put_word(w, c == 'W');
    if (!inside && !put(w, "[", 1))
        return false;
    if (c == 'p' || c == 'P')
        good = put_property(w, c == 'P');
    else if (c == 's' || c == 'S')
        good = put_spaces(w, c == 'S');
    else
        good = put_categories(w, c == 'd' || c == 'D' ? "d" : "w", c == 'D' || c == 'W');
    return good && (inside || put(w, "]", 1));
}

static bool is_set(const char *at, const char *end)
{
    return end - at >= 2 && at[0] == '\\' && strchr("pPsSdDwW", at[1]) != NULL;
}

/* From "[" to its "]". */
static bool put_class(struct rewriter *w)
{
    bool after_set = false; /* a "-" behind a set is no range to one library, and none before one */

    if (!put(w, w->at++, 1))
        return false;
    if (w->at < w->end && *w->at == '^' && !put(w, w->at++, 1))
        return false;
    if (w->at < w->end && *w->at == ']')
        return refuse(w, "an empty class");
    while (w->at < w->end && *w->at != ']') {
        const char c = *w->at;
        const bool set = is_set(w->at, w->end);

        if (c == '[' || (c == '&' && w->at + 1 < w->end && w->at[1] == '&'))
            return refuse(w, "a class within a class");
        if (c == '-' && (after_set || is_set(w->at + 1, w->end)))
            return refuse(w, "a range from or to a set of characters");
        w->at++;
        if (c == '\\' ? !put_escape(w, true) : !put(w, &c, 1))
            return false;
        after_set = set;
    }
    if (w->at == w->end)
        return refuse(w, "a class without its ]");
    return put(w, w->at++, 1);
}

/* What follows "(?i:", up to the ")": letters, signs and bars.  Letters that Oniguruma also finds in one character are refused.
 */
static bool check_caseless(struct rewriter *w)
{
    static const char *const folded[] = {"ss", "st", "ff", "fi", "fl"};

    for (const char *at = w->at; at < w->end && *at != ')'; at++) {
        if ((unsigned char)*at >= 0x80 || strchr("\\[(.{", *at) != NULL)
            return refuse(w, "(?i:...) with more than letters and signs");
        for (size_t i = 0; i < sizeof(folded) / sizeof(folded[0]); i++)
            if (w->end - at >= 2 && st_text_begins(at, folded[i]))
                return refuse(w, "(?i:...) with ss, st, ff, fi or fl");
    }
    return true;
}

/* "(", or "(?" and what may follow. */
static bool put_group(struct rewriter *w)
{
    static const char *const kinds[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>"};

    if (w->end - w->at >= 2 && w->at[1] == '*')
        return refuse(w, "(*...)");
    if (w->end - w->at < 2 || w->at[1] != '?')
        return put(w, w->at++, 1);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        const size_t length = strlen(kinds[i]);

        if ((size_t)(w->end - w->at) >= length && memcmp(w->at, kinds[i], length) == 0) {
            w->at += length;
            return (i != 1 || check_caseless(w)) && put(w, kinds[i], length);
        }
    }
    return refuse(w, "a group other than (...), (?:...), (?i:...), (?=...), (?!...), (?<=...), (?<!...) and (?>...)");
}

static bool rewrite(struct rewriter *w)
{
    while (w->at < w->end) {
        const char c = *w->at;
        bool good;

        if (c == '\\') {
            w->at++;
            good = put_escape(w, false);
        } else if (c == '[') {
            good = put_class(w);
        } else if (c == '(') {
            good = put_group(w);
        } else if (c == '^' || c == '$') {
            return refuse(w, "^ and $: they mean lines here and texts there");
        } else if (c == '.') {
            w->at++;
            good = put(w, "[^\\n]", 5);
        } else if (c == '{' && w->at + 1 < w->end && w->at[1] == ',') {
            return refuse(w, "{,m}: write {0,m}");
        } else if (c == '}' && w->at + 1 < w->end && w->at[1] == '+') {
            return refuse(w, "{n,m}+: possessive here, repeated there"); /* to Oniguruma, the + repeats what {n,m} repeats */
        } else {
            good = put(w, w->at++, 1);
        }
        if (!good)
            return false;
    }
    return put(w, "", 1);
}

static strata_status compile(struct st_regex **out, const char *pattern, const struct st_place *at)
{
    struct st_regex *regex;
    int code = 0;
    PCRE2_SIZE offset = 0;
    PCRE2_UCHAR why[128];

    regex = st_tokenizer_alloc(1, sizeof(*regex));
    if (regex == NULL)
        return st_nomem(0);
    regex->code = st_fault("tokenizer.regex", 0) < 0 ? NULL
                                                     : pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                                                     PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C, &code, &offset, NULL);
    if (regex->code == NULL) {
        free(regex);
        if (code == 0)
            return st_nomem(0);
        pcre2_get_error_message(code, why, sizeof(why));
        return st_place_fault(at, "Regex", "%s", (const char *)why);
    }
    (void)pcre2_jit_compile(regex->code, PCRE2_JIT_COMPLETE); /* faster where it is there, the same without */
    *out = regex;
    return STRATA_OK;
}

strata_status st_regex_create(struct st_regex **out, const char *pattern, const struct st_place *at)
{
    struct rewriter w = {.at = pattern, .end = pattern + strlen(pattern)};
    strata_status st;

    if (strlen(pattern) > PATTERN_BYTES_MAX)
        return st_place_fault(at, "Regex", "of more than %u bytes", PATTERN_BYTES_MAX);
    if (rewrite(&w))
        st = compile(out, w.text, at);
    else if (w.no_memory)
        st = st_nomem(0);
    else
        st = st_place_fault(at, "Regex", "not supported: %s", w.refused);
    free(w.text);
    return st;
}

void st_regex_destroy(struct st_regex *regex)
{
    if (regex == NULL)
        return;
    pcre2_code_free(regex->code);
    free(regex);
}

struct st_regex_run *st_regex_run_create(void)
{
    struct st_regex_run *run = st_tokenizer_alloc(1, sizeof(*run));

    if (run == NULL)
        return NULL;
    run->data = pcre2_match_data_create(1, NULL);
    run->context = pcre2_match_context_create(NULL);
    if (run->data == NULL || run->context == NULL) {
        st_regex_run_destroy(run);
        return NULL;
    }
    pcre2_set_match_limit(run->context, MATCH_LIMIT);
    pcre2_set_depth_limit(run->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(run->context, HEAP_KIB_LIMIT);
    return run;
}

void st_regex_run_destroy(struct st_regex_run *run)
{
    if (run == NULL)
        return;
    pcre2_match_data_free(run->data);
    pcre2_match_context_free(run->context);
    free(run);
}

strata_status st_regex_find(const struct st_regex *regex, struct st_regex_run *run, const char *text, size_t bytes, size_t at,
                            size_t *begin, size_t *end)
{
    int found = pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK, run->data, run->context);
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(run->data);
    PCRE2_UCHAR why[128];

    if (found == PCRE2_ERROR_JIT_STACKLIMIT)
        found = pcre2_match(regex->code, (PCRE2_SPTR)text, bytes, at, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, run->data, run->context);
    *begin = SIZE_MAX;
    if (found == PCRE2_ERROR_NOMATCH)
        return STRATA_OK;
    if (found < 0) {
        pcre2_get_error_message(found, why, sizeof(why));
        return st_error(STRATA_E_INPUT, "the tokenizer's regular expression gave up on a text: %s", (const char *)why);
    }
    *begin = offsets[0];
    *end = offsets[1];
    return STRATA_OK;
}
