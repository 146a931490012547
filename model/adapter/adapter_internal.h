/* model/adapter/adapter_internal.h - an adapter's settings as they were read.  Private to model/adapter/. */
#ifndef MODEL_ADAPTER_ADAPTER_INTERNAL_H
#define MODEL_ADAPTER_ADAPTER_INTERNAL_H

#include "model/adapter/adapter.h"

#define ST_ADAPTER_NAMES_MAX 4096u /* names, or patterns, of one key */

/* A regular expression of Python's; what Python and PCRE2 read differently is refused. */
struct st_adapter_pattern;
/** Compile before PATTERN after.  @param whole  it must match a whole name, not its beginning
 *  E_CONFIG names `where`, key and pattern; E_NOMEM. */
strata_status st_adapter_pattern_create(struct st_adapter_pattern **out, const char *before, const char *pattern,
                                        const char *after, bool whole, const char *where, const char *key);
void st_adapter_pattern_destroy(struct st_adapter_pattern *p); /* NULL is fine */
/** *layer (NULL: not wanted): the number that the pattern's last group matched.  E_CONFIG: it gave up; E_NOMEM. */
strata_status st_adapter_pattern_match(const struct st_adapter_pattern *p, const char *name, bool *matched, uint64_t *layer);

/* A name or pattern of a key, and whether a module of the model fitted it. */
struct st_adapter_name {
    const char *text;                   /* borrowed from the object */
    struct st_adapter_pattern *pattern; /* NULL: the name itself */
    double value;                       /* of rank_pattern and alpha_pattern */
};
struct st_adapter_names {
    struct st_adapter_name *list; /* [count] */
    uint32_t count;
};

struct st_adapter_spec {
    st_json *object; /* a copy */
    char *where;
    uint64_t r;
    double alpha, dropout;
    bool rslora, gaussian;
    bool all_linear;
    bool has_targets;                   /* target_modules is there */
    struct st_adapter_names targets;    /* names, or one pattern */
    struct st_adapter_names parameters; /* target_parameters */
    struct st_adapter_names excluded;
    struct st_adapter_names saved; /* the patterns say what they keep from having an adapter */
    struct st_adapter_names ranks, alphas;
    struct st_adapter_names layer_patterns; /* one for any list of blocks, if layers are given but no pattern */
    uint64_t *layers;                       /* [layer_count]; none: all */
    uint32_t layer_count;
};

#endif
