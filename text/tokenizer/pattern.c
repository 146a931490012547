/* text/tokenizer/pattern.c - patterns: a text, a regular expression that scan.c knows, or another one. */
#include "core/base/error.h"
#include "text/tokenizer/encode_internal.h"
#include "text/tokenizer/regex_internal.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *text;
    enum st_scan scan;
} known[] = {
    {"'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+", ST_SCAN_GPT2},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     ST_SCAN_LLAMA3},
    {"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
     "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
     ST_SCAN_QWEN2},
};

strata_status st_pattern_prepare(struct st_pattern *out, const struct st_place *at)
{
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (strcmp(out->text, known[i].text) == 0)
            out->scan = known[i].scan;
    return out->scan != ST_SCAN_NONE ? STRATA_OK : st_regex_create(&out->regex, out->text, at);
}

void st_pattern_free(struct st_pattern *p)
{
    free(p->text);
    st_regex_destroy(p->regex);
    *p = (struct st_pattern){0};
}

void st_matcher_begin(struct st_matcher *m, const struct st_pattern *pattern, struct st_encoder *e, const struct st_view *v)
{
    *m = (struct st_matcher){
        .pattern = pattern, .unicode = e->t->unicode, .text = v->text, .bytes = v->bytes, .last_end = SIZE_MAX};
    if (pattern->regex == NULL)
        return;
    if (e->regex_run == NULL)
        e->regex_run = st_regex_run_create();
    m->run = e->regex_run;
    if (m->run == NULL)
        m->status = st_nomem(0);
}

/* An empty match right behind the last one does not count, as in the reference. */
static bool next_of_regex(struct st_matcher *m, size_t *begin, size_t *end)
{
    size_t length;

    while (m->status == STRATA_OK && m->at <= m->bytes) {
        m->status = st_regex_find(m->pattern->regex, m->run, m->text, m->bytes, m->at, begin, end);
        if (m->status != STRATA_OK || *begin == SIZE_MAX)
            return false;
        if (*begin < *end || *end != m->last_end) {
            m->at = m->last_end = *end;
            return true;
        }
        if (m->at == m->bytes)
            return false;
        (void)st_utf8_at(m->text + m->at, &length);
        m->at += length;
    }
    return false;
}

bool st_matcher_next(struct st_matcher *m, size_t *begin, size_t *end)
{
    const char *found;

    if (m->pattern->regex != NULL)
        return next_of_regex(m, begin, end);
    if (m->at >= m->bytes)
        return false;
    if (m->pattern->scan != ST_SCAN_NONE) {
        *begin = m->at;
        *end = st_scan_word(m->pattern->scan, m->unicode, m->text, m->at, m->bytes);
    } else {
        found = memmem(m->text + m->at, m->bytes - m->at, m->pattern->text, m->pattern->bytes);
        if (found == NULL)
            return false;
        *begin = (size_t)(found - m->text);
        *end = *begin + m->pattern->bytes;
    }
    m->at = *end;
    return true;
}
