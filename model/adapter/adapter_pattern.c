/* model/adapter/adapter_pattern.c - regular expressions over names of modules, as Python's re reads them, by PCRE2.
 *
 * Names are ASCII without line ends, for which the two libraries differ in little; that little is refused.  Matching is limited:
 * an expression that searches without end fails with a sentence. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "model/adapter/adapter_internal.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PATTERN_BYTES_MAX 4096u
#define MATCH_LIMIT       1000000u
#define DEPTH_LIMIT       10000u
#define HEAP_KIB_LIMIT    65536u

struct st_adapter_pattern {
    pcre2_code *code;
    pcre2_match_data *data;
    pcre2_match_context *context;
    char *text; /* for errors */
};

/* What Python's re reads otherwise than PCRE2: NULL, or why it is refused. */
static const char *differs(const char *pattern)
{
    static const char *const posix[] = {"[:", "[.", "[="};

    for (const char *at = pattern; *at != '\0'; at++) {
        if (*at == '\\' && at[1] != '\0') {
            if (strchr("CEGHKLNPQRUVXghkopuv", at[1]) != NULL)
                return "an escape that is not one of both Python's and PCRE2's";
            at++;
            continue;
        }
        if (strncmp(at, "{,", 2) == 0)
            return "{,m}: write {0,m}";
        if (strncmp(at, "(*", 2) == 0)
            return "(*...)";
        for (size_t i = 0; i < sizeof(posix) / sizeof(posix[0]); i++)
            if (strncmp(at, posix[i], 2) == 0)
                return "[:, [. or [= in a class";
    }
    return NULL;
}

static strata_status fault(const char *where, const char *key, const char *pattern, const char *why)
{
    return st_error(STRATA_E_CONFIG, "%s: \"%s\": the pattern \"%.200s\": %s", where, key, pattern, why);
}

static strata_status compile(struct st_adapter_pattern *p, const char *whole_text, bool whole, const char *where, const char *key)
{
    const uint32_t options = PCRE2_UTF | PCRE2_NEVER_BACKSLASH_C | PCRE2_ANCHORED | (whole ? PCRE2_ENDANCHORED : 0);
    PCRE2_SIZE offset = 0;
    PCRE2_UCHAR why[128];
    int code = 0;

    p->code = st_fault("adapter.regex", 0) < 0
                  ? NULL
                  : pcre2_compile((PCRE2_SPTR)whole_text, PCRE2_ZERO_TERMINATED, options, &code, &offset, NULL);
    if (p->code == NULL) {
        if (code == 0 || code == PCRE2_ERROR_HEAP_FAILED)
            return st_nomem(0);
        pcre2_get_error_message(code, why, sizeof(why));
        return fault(where, key, p->text, (const char *)why);
    }
    p->data = pcre2_match_data_create_from_pattern(p->code, NULL);
    p->context = pcre2_match_context_create(NULL);
    if (p->data == NULL || p->context == NULL)
        return st_nomem(0);
    pcre2_set_match_limit(p->context, MATCH_LIMIT);
    pcre2_set_depth_limit(p->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(p->context, HEAP_KIB_LIMIT);
    return STRATA_OK;
}

strata_status st_adapter_pattern_create(struct st_adapter_pattern **out, const char *before, const char *pattern,
                                        const char *after, bool whole, const char *where, const char *key)
{
    char text[PATTERN_BYTES_MAX + 64];
    struct st_adapter_pattern *p;
    strata_status st;

    if (strlen(pattern) > PATTERN_BYTES_MAX)
        return st_error(STRATA_E_CONFIG, "%s: \"%s\": a pattern of %zu bytes; the most are %u", where, key, strlen(pattern),
                        PATTERN_BYTES_MAX);
    if (differs(pattern) != NULL)
        return fault(where, key, pattern, differs(pattern));
    p = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*p));
    if (p == NULL || (p->text = strdup(pattern)) == NULL) {
        free(p);
        return st_nomem(0);
    }
    snprintf(text, sizeof(text), "%s%s%s", before, pattern, after);
    if ((st = compile(p, text, whole, where, key)) != STRATA_OK) {
        st_adapter_pattern_destroy(p);
        return st;
    }
    *out = p;
    return STRATA_OK;
}

void st_adapter_pattern_destroy(struct st_adapter_pattern *p)
{
    if (p == NULL)
        return;
    pcre2_match_context_free(p->context);
    pcre2_match_data_free(p->data);
    pcre2_code_free(p->code);
    free(p->text);
    free(p);
}

strata_status st_adapter_pattern_match(const struct st_adapter_pattern *p, const char *name, bool *matched, uint64_t *layer)
{
    const int found = pcre2_match(p->code, (PCRE2_SPTR)name, strlen(name), 0, PCRE2_NO_UTF_CHECK, p->data, p->context);
    const PCRE2_SIZE *offsets = pcre2_get_ovector_pointer(p->data);
    PCRE2_UCHAR why[128];

    *matched = found > 0;
    if (found > 0 && layer != NULL)
        *layer = strtoull(name + offsets[2 * ((size_t)found - 1)], NULL, 10);
    if (found > 0 || found == PCRE2_ERROR_NOMATCH)
        return STRATA_OK;
    pcre2_get_error_message(found, why, sizeof(why));
    return st_error(STRATA_E_CONFIG, "the adapter's pattern \"%.200s\" gave up on %s: %s", p->text, name, (const char *)why);
}
