/* template_case.c - upper, lower and title case as Python's str has them, outside ASCII by a table of its answers. */
#include "core/base/text.h"
#include "text/template/template_internal.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))
#define TO_MAX      3u /* characters that one may become */

/* Every `step`-th character from `first` to `last` becomes the one at a distance of `delta`. */
struct case_run {
    uint32_t first, last, step;
    int32_t delta;
};
/* A character that becomes several, or a rule of its own; 0 ends them. */
struct case_whole {
    uint32_t code, to[TO_MAX];
};
#include "text/template/case_table.inc"

enum { CAPITAL_SIGMA = 0x3a3, FINAL_SIGMA = 0x3c2, SIGMA_CASED = 1, SIGMA_IGNORED = 2 };

static const struct case_rules {
    const struct case_run *runs;
    size_t run_count;
    const struct case_whole *wholes;
    size_t whole_count;
} upper = {upper_runs, COUNT(upper_runs), upper_wholes, COUNT(upper_wholes)},
  lower = {lower_runs, COUNT(lower_runs), lower_wholes, COUNT(lower_wholes)},
  title = {upper_runs, COUNT(upper_runs), title_wholes, COUNT(title_wholes)};

static int compare_run(const void *key, const void *row)
{
    const uint32_t code = *(const uint32_t *)key;
    const struct case_run *run = row;

    return code < run->first ? -1 : code > run->last;
}

static int compare_whole(const void *key, const void *row)
{
    const uint32_t code = *(const uint32_t *)key, at = ((const struct case_whole *)row)->code;

    return (code > at) - (code < at);
}

/* Writes what a character becomes.  @return its bytes */
static size_t put_case(char out[4 * TO_MAX], const struct case_rules *rules, uint32_t code)
{
    const struct case_whole *whole;
    const struct case_run *run;
    size_t bytes = 0;

    if (code < 0x80) {
        out[0] = rules == &lower ? st_text_lower((char)code) : st_text_upper((char)code);
        return 1;
    }
    whole = bsearch(&code, rules->wholes, rules->whole_count, sizeof(*whole), compare_whole);
    for (uint32_t i = 0; whole != NULL && i < TO_MAX && whole->to[i] != 0; i++)
        bytes += st_text_utf8_put(out + bytes, whole->to[i]);
    if (whole != NULL)
        return bytes;
    run = bsearch(&code, rules->runs, rules->run_count, sizeof(*run), compare_run);
    if (run != NULL && (code - run->first) % run->step == 0)
        code = (uint32_t)((int32_t)code + run->delta);
    return st_text_utf8_put(out, code);
}

/* --- the sigma at the end of a word --- */

static uint32_t sigma_flags(uint32_t code)
{
    size_t low = 0, high = COUNT(sigma_runs); /* the last row that begins at or before it */

    while (high - low > 1) {
        const size_t middle = (low + high) / 2;

        if (sigma_runs[middle] >> 2 <= code)
            low = middle;
        else
            high = middle;
    }
    return sigma_runs[low] & 3;
}

static uint32_t flags_at(const struct st_string *s, size_t at)
{
    return sigma_flags(st_text_utf8_code(s->text + at, st_utf8_next(s, at) - at));
}

/* Whether letters stand before the sigma at `at`, in the text from `from`, and none behind it. */
static bool ends_word(const struct st_string *s, size_t at, size_t from)
{
    size_t before = at, after = st_utf8_next(s, at);
    uint32_t flags = SIGMA_IGNORED;

    while (flags == SIGMA_IGNORED && before > from) {
        do
            before--;
        while (((unsigned char)s->text[before] & 0xc0) == 0x80);
        flags = flags_at(s, before);
    }
    if (flags != SIGMA_CASED)
        return false;
    while (after < s->bytes && (flags = flags_at(s, after)) == SIGMA_IGNORED)
        after = st_utf8_next(s, after);
    return after == s->bytes || flags != SIGMA_CASED;
}

/* --- texts --- */

static const struct case_rules *rules_of(enum st_letter_case wanted, bool first)
{
    if (wanted == CASE_UPPER || (wanted == CASE_TITLE && first))
        return &upper;
    return (wanted == CASE_CAPITAL || wanted == CASE_WORDS) && first ? &title : &lower;
}

struct st_value st_with_case(struct st_render *r, const struct st_value *v, enum st_letter_case wanted)
{
    const struct st_string *s = st_soft_text(r, v);
    struct st_builder b = {0};
    size_t word = 0; /* where the text begins whose first letter has been written */
    bool first = true;

    if (s == NULL || !st_render_spend(r, s->bytes))
        return st_val_undefined("");
    for (size_t at = 0, next; at < s->bytes && r->status == STRATA_OK; at = next) {
        const struct case_rules *rules = rules_of(wanted, first);
        uint32_t origins[4 * TO_MAX] = {0};
        char to[4 * TO_MAX];
        uint32_t code;
        size_t bytes;

        next = st_utf8_next(s, at);
        code = st_text_utf8_code(s->text + at, next - at);
        if (rules == &lower && code == CAPITAL_SIGMA && ends_word(s, at, word))
            bytes = st_text_utf8_put(to, FINAL_SIGMA);
        else
            bytes = put_case(to, rules, code);
        for (size_t i = 0; i < bytes && s->origins != NULL; i++)
            origins[i] = s->origins[at];
        st_build(r, &b, to, bytes, origins);
        if (wanted == CASE_TITLE && first)
            word = next;
        if (wanted == CASE_WORDS)
            first = sigma_flags(code) != SIGMA_CASED;
        else
            first = wanted == CASE_TITLE && (st_space_at(s->text + at, s->text + s->bytes) != 0 ||
                                             (code < 0x80 && memchr("-({[<", (int)code, 5) != NULL));
    }
    return st_val_built(r, &b);
}

struct st_value st_filter_upper(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_UPPER);
}

struct st_value st_filter_lower(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_LOWER);
}

struct st_value st_filter_capitalize(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_CAPITAL);
}

struct st_value st_filter_title(struct st_render *r, const struct st_value *v, const struct st_arguments *args)
{
    (void)args;
    return st_with_case(r, v, CASE_TITLE);
}
