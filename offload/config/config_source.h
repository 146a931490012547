/* offload/config/config_source.h - a config while it is being read: the value given for each field, and remarks about
 * it.
 *
 * For offload/config, and for recipes, whose tables are of the same form.  One thread.  Strings and values live until
 * st_config_source_free.  If memory runs out, `failed` records it and it is reported once, so that calls to these functions need
 * no checks. */
#ifndef OFFLOAD_CONFIG_CONFIG_SOURCE_H
#define OFFLOAD_CONFIG_CONFIG_SOURCE_H

#include "core/json/json.h"
#include "offload/config/config_table.h"

/* The state of one row of the field table. */
struct st_field_state {
    const st_json *node;  /* as given; NULL: left out, or null */
    const char *spelling; /* path as written, with an alias if one was used; NULL: left out */
    enum st_config_origin origin;
    enum st_config_verdict verdict;
    const char *reason; /* NULL: none */
    const char *place;  /* of a recipe's value: where that says it, "in FILE:LINE"; NULL: it is none */
    bool announced;     /* the reason is a notice at each start */
    bool idle;          /* it has no effect in this run, nor would it have one in DeepSpeed */
    bool unjudged;      /* it belongs to what is rejected */
    bool usable;        /* node has a value that can be stored: of the right type, in range, not "auto", not rejected */
};

struct st_list {
    void *items;
    uint32_t count, capacity;
};

struct st_config_source {
    struct st_field_state *fields; /* [st_field_count()], in table order */
    struct st_list trees;          /* st_json *: the file and the values of overrides */
    struct st_list strings;        /* char * */
    struct st_list strays;         /* struct st_config_row: keys that are not rows of the table */
    struct st_list rows;           /* struct st_config_row: the answer */
    struct st_list problems;       /* const char * */
    const char *first_key;         /* that the first problem is about; NULL: about none */
    const char *file;              /* the name of DeepSpeed's, for people; NULL: there is none */
    bool has_file;                 /* a key that is left out means DeepSpeed's default */
    const char *const *overrides;  /* [override_count] "path=value" of the command line */
    uint32_t override_count;
    bool has_length; /* a trainer's file says how long the run is */
    bool allow_unknown;
    bool failed; /* out of memory */
};

struct st_config_source *st_source_create(bool allow_unknown); /* NULL: no memory */
/** Space for one more item; NULL, and src has failed, if there is no memory. */
void *st_source_add(struct st_config_source *src, struct st_list *list, size_t item_bytes);
/** Own a tree: it is freed with src; on failure at once, and NULL is returned. */
const st_json *st_source_adopt(struct st_config_source *src, st_json *tree);
#define ST_SOURCE_FILE_MAX ((size_t)1 << 20) /* bytes of a configuration, or of a trainer's file */
/** A file's tree: YAML by its name, else JSON, in which Hjson's comments and commas may stand. */
strata_status st_source_parse_file(st_json **root, const char *path);
/** A value from JSON text; NULL if it is not JSON or memory is short. */
const st_json *st_source_parse(struct st_config_source *src, const char *text);
/** People write comments as keys of JSON: true by how such a key begins. */
bool st_source_is_comment(const char *key);
#define ST_COMMENT "a comment, by how the key begins"
void st_source_add_row(struct st_config_source *src, const struct st_config_row *row);
void st_source_add_stray(struct st_config_source *src, const struct st_config_row *row);
/** Take every key of the file's root object; takes ownership of `root`. */
void st_source_take_file(struct st_config_source *src, st_json *root, const char *name);
/** Take a value of a field, or of all that a section has; null: as if it were left out. */
void st_source_take(struct st_config_source *src, const struct st_field *field, const st_json *node, const char *spelling,
                    enum st_config_origin origin);
/** Take one "path=value" of the command line. */
void st_source_take_override(struct st_config_source *src, const char *text);
/** Take what another source says of paths, in place of what the file leaves out or has as "auto". */
void st_source_take_other(struct st_config_source *src, const struct st_config_other *other);
/** Take what Accelerate's launcher says in variables, after all others: what it names fills what they leave open and must agree
 * with the rest, and what only follows from it counts where they are none. */
void st_source_take_environment(struct st_config_source *src, const struct st_config_other *environment);
/** Report unknown arguments (of an optimizer, of a scheduler), but not of what is itself rejected. */
void st_source_judge_arguments(struct st_config_source *src);
/** Rows for `strata check`, once `config` is resolved. */
void st_source_build_rows(struct st_config_source *src, const struct st_config *config);

struct st_field_state *st_source_state(struct st_config_source *src, const char *path);
/** Formats a message, or a value for people, of at most 511 bytes, that lives as long as src.  Never NULL. */
const char *st_source_keep(struct st_config_source *src, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/** A copy of a text of any length, such as JSON, that lives as long. */
const char *st_source_keep_whole(struct st_config_source *src, const char *text);
/** True if a value of the field was given that is neither "auto" nor rejected. */
bool st_source_given(struct st_config_source *src, const char *path);
/** True if it is "auto". */
bool st_source_is_auto(struct st_config_source *src, const char *path);
/** "WarmupDecayLR, WarmupCosineLR": the values of a choice whose bits are set, which are those that take an argument. */
const char *st_source_takers(struct st_config_source *src, const char *choice_path, uint32_t bits);
/** Record a remark about a key. */
void st_source_note(struct st_config_source *src, const char *path, const char *text);
/** The same, with a notice at each start, since results may differ from what the reader of the file expects. */
void st_source_announce(struct st_config_source *src, const char *path, const char *text);
/** Records that the value in force comes from other keys; text as above, may be NULL. */
void st_source_derive(struct st_config_source *src, const char *path, const char *text);
/** Records that the key was given but has no effect in this run. */
void st_source_idle(struct st_config_source *src, const char *path, const char *reason);
/** Record a problem at this key. */
void st_source_reject(struct st_config_source *src, const char *path, const char *reason);
void st_source_problem(struct st_config_source *src, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* config_taken.c: values that DeepSpeed takes. */

/** The value to check: `node`, or what DeepSpeed reads in it, or the nearest that the field has, which is announced. */
const st_json *st_value_take(struct st_config_source *src, const struct st_field *field, const st_json *node);
/** True for a number of fp16 in a run that does not train in it: DeepSpeed does not look at it. */
bool st_value_is_idle(struct st_config_source *src, const struct st_field *field, const st_json *node);

/* config_value.c: one value of one field. */

/** NULL if node has the field's type and is in its range; otherwise what is wrong, kept in src. */
const char *st_value_check(struct st_config_source *src, const struct st_field *field, const st_json *node);
/** True if the value is in the field's `plain` list. */
bool st_value_is_plain(const struct st_field *field, const st_json *node);
bool st_value_is_auto(const st_json *node);
/** True if the value turns nothing on: false, 0, "", [], {}, the plain value, or a section with "enabled" false and true
 *  nowhere. */
bool st_value_is_off(const struct st_field *field, const st_json *node);
/** Store a checked value in the member that the field is bound to. */
void st_value_store(struct st_config *config, const struct st_field *field, const st_json *node);
/** Sets the member to zero, as if nothing had been given and there were no default. */
void st_value_clear(struct st_config *config, const struct st_field *field);
/** A bound field's value as text (buf), and as a member of the open JSON object. */
void st_value_text(char *buf, size_t bytes, const struct st_config *config, const struct st_field *field);
void st_value_put(struct st_json_writer *w, const struct st_config *config, const struct st_field *field);
/** A JSON value as given, as text; a long one is truncated. */
void st_value_show(char *buf, size_t bytes, const st_json *node);

/* config_object.c: an object as it is. */

/** NULL if the text fits; otherwise what is wrong, kept in src. */
const char *st_object_check(struct st_config_source *src, const st_json *node);
/** Store a checked object; without memory it stays empty.  @param at  [ST_CONFIG_JSON_MAX] */
void st_object_store(char *at, const st_json *node);

/* config_resolve.c: defaults and the rules between keys; config_resolve_train.c: those of batch, precision and optimizer;
 * config_resolve_rate.c: those of the learning rate. */

void st_config_resolve_rate(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts);
void st_config_resolve_train(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts);
void st_config_resolve(struct st_config_source *src, struct st_config *config, const struct st_config_opts *opts);

/** The text of XTuner's configuration of this name (deepspeed_zero1, ...), static; NULL: there is none, or a file has the name.
 */
const char *st_config_preset(const char *name);

#endif
