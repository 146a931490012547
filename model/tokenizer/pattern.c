/* model/tokenizer/pattern.c - patterns: a text, a regular expression that scan.c knows, or another one. */
#include "model/tokenizer/encode_internal.h"

#include "core/base/error.h"

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
    return out->scan != ST_SCAN_NONE ? STRATA_OK : st_place_fault(at, "Regex", "not supported: %.80s", out->text);
}

void st_pattern_free(struct st_pattern *p)
{
    free(p->text);
    p->text = NULL;
}

void st_matcher_begin(struct st_matcher *m, const struct st_pattern *pattern, const struct st_unicode *u, const struct st_view *v)
{
    *m = (struct st_matcher){.pattern = pattern, .unicode = u, .text = v->text, .bytes = v->bytes, .last_end = SIZE_MAX};
}

bool st_matcher_next(struct st_matcher *m, size_t *begin, size_t *end)
{
    const char *found;

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
