/* offload/config/config_table.h - the field table behind offload/config/config.h: one row per key that a config may
 * contain.
 *
 * Private to offload/config and its tests.  Constant data; any thread.  A row says where the key belongs, which values it takes,
 * what it means here (verdict and reason) and which member of struct st_config it fills. */
#ifndef OFFLOAD_CONFIG_CONFIG_TABLE_H
#define OFFLOAD_CONFIG_CONFIG_TABLE_H

#include "offload/config/config.h"
#include <stddef.h>

enum st_field_type {
    ST_FIELD_OBJECT = 0, /* members are rows of the table */
    ST_FIELD_OPEN,       /* the same, but members without a row are accepted with the section's reason */
    ST_FIELD_BOOL,
    ST_FIELD_INT, /* a whole number, 5e8 included */
    ST_FIELD_REAL,
    ST_FIELD_SIZE, /* bytes: a whole number or "200MiB" */
    ST_FIELD_TEXT,
    ST_FIELD_SECRET, /* text that is never printed */
    ST_FIELD_CHOICE,
    ST_FIELD_PAIR,     /* two numbers */
    ST_FIELD_DIRS,     /* a directory, a comma-separated string or a list */
    ST_FIELD_PATTERNS, /* one shell pattern or a list */
    ST_FIELD_LIST,
    ST_FIELD_JSON, /* an object whose keys are read elsewhere */
    ST_FIELD_ANY,  /* of recipes */
};

/* How a value is kept at `offset` of struct st_config. */
enum st_bind {
    ST_BIND_NONE = 0,
    ST_BIND_U32,
    ST_BIND_COUNT, /* uint32_t; 0 is written "auto" */
    ST_BIND_U64,
    ST_BIND_STEPS, /* uint64_t; 0 is written "auto" */
    ST_BIND_SIZE,  /* uint64_t; ST_AUTO_BYTES is written "auto" */
    ST_BIND_F64,   /* NaN is written "auto" */
    ST_BIND_BOOL,
    ST_BIND_CHOICE,      /* int-sized enum */
    ST_BIND_NAME,        /* char[16]: the choice's text */
    ST_BIND_F16,         /* dtype as a boolean; filled by st_config_resolve, like the next two and DIRS */
    ST_BIND_BF16,        /* dtype as a boolean */
    ST_BIND_ADAM_W_MODE, /* optimizer as a boolean */
    ST_BIND_BETAS,       /* beta1 and beta2 */
    ST_BIND_DIRS,        /* nvme_dirs */
    ST_BIND_PATH,        /* char[ST_CONFIG_PATH_MAX]; "": none */
    ST_BIND_PATTERNS,    /* freeze */
    ST_BIND_JSON,        /* char[ST_CONFIG_JSON_MAX], without spaces; "": none */
};

struct st_choice {
    const char *text;
    int value;
    enum st_config_verdict verdict; /* REJECTED: a known value that this version does not support */
};

struct st_field {
    const char *path;    /* "zero_optimization.prefetch_bucket_size" */
    const char *aliases; /* other last parts, separated by spaces; NULL: none */
    enum st_field_type type;
    enum st_bind bind;
    size_t offset;
    double min, max;                 /* both 0: any */
    double near;                     /* numbers that DeepSpeed takes become the nearest multiple of this in the range; 0: refused */
    uint32_t lr_types;               /* bits of the schedulers it is an argument of; 0: it is not such an argument */
    uint32_t optimizers;             /* bits of the optimizers it is an argument of; 0: of all, or it is not such an argument */
    const struct st_choice *choices; /* ends with text NULL */
    const char *fallback;            /* JSON text: value when left out of a file; NULL: none */
    const char *auto_text;           /* JSON text: value when "auto", and without a file; NULL: as fallback */
    enum st_changes changes;
    enum st_config_verdict verdict;
    const char *plain;  /* values separated by '|' that are implemented as stated: no notice, no rejection */
    const char *reason; /* with NOTICE and REJECTED, and for rejected choices */
    const char *mutes;  /* if this key is rejected, the members of this section are not evaluated */
    const char *help;
    const char *to; /* of recipes: the option (--seq-len) or path that the key becomes; NULL: none, or by a rule */
    const char *const (*refusals)[2]; /* of recipes: choices with a reason of their own, and it; end with NULL; NULL: none */
    bool is_told;                     /* of recipes: a rule reads it, and nothing else becomes of it: a notice */
    bool in_file;                     /* of recipes: an object, or the name of a JSON file that has it */
};

struct st_section {
    const char *title;
    bool deepspeed; /* keys of DeepSpeed's own schema */
    enum st_changes changes;
    const struct st_field *fields;
    uint32_t count;
};

extern const struct st_section st_sections_train[], st_sections_offload[], st_sections_other[]; /* end with title NULL */

const struct st_section *st_section_at(uint32_t i); /* NULL past the end */
uint32_t st_field_count(void);
const struct st_field *st_field_at(uint32_t i);
uint32_t st_field_index(const struct st_field *field);
/** The row of a canonical path, which must exist. */
const struct st_field *st_field_known(const char *path);
/** Member `key` of a section (NULL: top level), by name or alias.  NULL if there is none. */
const struct st_field *st_field_child(const struct st_field *section, const char *key);
/** True if `field` is inside the section at `path`. */
bool st_field_inside(const struct st_field *field, const char *path);
/** True if the field has an effect with this optimizer, scheduler and precision. */
bool st_field_applies(const struct st_field *field, const struct st_config *config);
/** What the field changes: its own entry, otherwise that of the nearest enclosing section. */
enum st_changes st_field_changes(const struct st_field *field);
/** Last part of a path. */
const char *st_field_leaf(const char *path);
/** Writes the path nearest to `key` in `section` into buf; false if nothing is near. */
bool st_field_nearest(char *buf, size_t bytes, const struct st_field *section, const char *key);
/** The choice nearest to `text`; NULL if nothing is near. */
const char *st_choice_nearest(const struct st_choice *choices, const char *text);
const struct st_choice *st_choice_find(const struct st_choice *choices, const char *text);
const char *st_choice_text(const struct st_choice *choices, int value); /* NULL if there is none */

/* Row makers: a section, a key without meaning here, one that asks for what is not done, a key that is not supported, a section whose members have no rows, a key
 * that DeepSpeed has removed, a switch that must stay off. */
#define ST_NO_FP16_WIRE "sums of gradients above 65504 would be infinite in fp16: use bf16, which has the range of fp32, or fp32"
#define ST_ROW_SECTION(path_, help_)                                                                                             \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_OBJECT, .help = (help_)                                                                \
    }
#define ST_ROW_NOTICE(path_, type_, fallback_, reason_, help_)                                                                   \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_##type_, .fallback = (fallback_), .verdict = ST_VERDICT_NOTICE, .reason = (reason_),   \
        .help = (help_)                                                                                                          \
    }
#define ST_ROW_ASKED(path_, type_, fallback_, reason_, help_)                                                                    \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_##type_, .fallback = (fallback_), .verdict = ST_VERDICT_NOTICE,                        \
        .changes = ST_CHANGES_OUTPUT, .reason = (reason_), .help = (help_)                                                       \
    }
#define ST_ROW_PLAIN(path_, type_, fallback_, reason_, help_)                                                                    \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_##type_, .fallback = (fallback_), .plain = (fallback_), .verdict = ST_VERDICT_NOTICE,  \
        .reason = (reason_), .help = (help_)                                                                                     \
    }
#define ST_ROW_REJECT(path_, type_, fallback_, reason_, help_)                                                                   \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_##type_, .fallback = (fallback_), .verdict = ST_VERDICT_REJECTED, .reason = (reason_), \
        .help = (help_)                                                                                                          \
    }
#define ST_ROW_OPEN(path_, verdict_, changes_, reason_, help_)                                                                   \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_OPEN, .verdict = ST_VERDICT_##verdict_, .changes = ST_CHANGES_##changes_,              \
        .reason = (reason_), .help = (help_)                                                                                     \
    }
#define ST_ROW_REMOVED(path_, type_, fallback_, reason_, help_)                                                                  \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_##type_, .fallback = (fallback_), .plain = (fallback_), .verdict = ST_VERDICT_REMOVED, \
        .changes = ST_CHANGES_RESULTS, .reason = (reason_), .help = (help_)                                                      \
    }
#define ST_ROW_OFF(path_, reason_, help_)                                                                                        \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_BOOL, .fallback = "false", .plain = "false", .verdict = ST_VERDICT_REJECTED,           \
        .reason = (reason_), .help = (help_)                                                                                     \
    }
#define ST_BOUND(kind_, member_) .bind = ST_BIND_##kind_, .offset = offsetof(struct st_config, member_)
#define ST_ROWS(rows_)           (rows_), sizeof(rows_) / sizeof((rows_)[0])

#endif
