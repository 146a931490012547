/* recipes/recipe_internal.h - a recipe while it is read, and the trainers' tables.  Private to recipes and its
 * tests.
 *
 * Rows are those of the field table with two differences: `to` says what the key becomes, and `aliases` are further keys with the
 * same verdict, of rows that are notices.  Like struct st_config_source, a recipe remembers that memory ran out and says so once.
 */
#ifndef RECIPES_RECIPE_INTERNAL_H
#define RECIPES_RECIPE_INTERNAL_H

#include "core/system/file.h"
#include "offload/config/config_source.h"
#include "recipes/recipe.h"

struct st_recipe_trainer {
    const char *name;
    const struct st_section *sections; /* end with title NULL */
    const char *const *marks;          /* keys that a file of this trainer has, one or more; end with NULL */
    const char *const *others;         /* keys that only another trainer's file has beside them; NULL: any may stand there */
    bool config;                       /* stands where a configuration stands (--config) */
    void (*resolve)(struct strata_recipe *r); /* what the rows without `to` become */
    const char *(*spelling)(const char *key,
                            const st_json *node); /* its keys stand in variables of these names; NULL: in a file */
};

/* The trainers that files are read for; the first whose mark a file has is the file's.  Ends with NULL. */
extern const struct st_recipe_trainer *const st_recipe_trainers[];
extern const struct st_recipe_trainer st_recipe_trl, st_recipe_llama_factory_v1, st_recipe_llama_factory, st_recipe_xtuner,
    st_recipe_accelerate, st_recipe_variables;

/* One row's value. */
struct st_recipe_state {
    const st_json *node; /* as given; NULL: left out, or null */
    const char *key;     /* as given */
    bool usable;         /* it can be taken: of the right type, in range, not rejected */
    enum st_config_verdict verdict;
    const char *reason;
    bool announced;
};

struct strata_recipe {
    const struct st_recipe_trainer *trainer;
    const st_json *root;            /* all that was given, also what is null */
    struct st_config_source *src;   /* its strings, trees, strays (notices), rows and problems */
    struct st_recipe_state *states; /* in table order */
    struct st_list values;          /* struct st_config_said */
    char path[ST_PATH_MAX], deepspeed[ST_PATH_MAX];
    const char *const *words; /* of the command line, while it is read */
    uint32_t word_count;
    uint32_t ranks; /* of this run; 0: unknown */
};

/** The variable that says a key of Accelerate's file. */
const char *st_recipe_variable_of(const char *key, const st_json *node);

/** Take a tree, which is freed with the recipe, also on failure. */
strata_status st_recipe_read(struct strata_recipe **out, const struct st_recipe_trainer *trainer, st_json *root,
                             const struct st_recipe_input *in);
/** The trainer whose keys the root has; NULL: no trainer's. */
const struct st_recipe_trainer *st_recipe_trainer_of(const st_json *root);
/** E_CONFIG, naming the trainer: the file is one of a trainer whose keys are not read.  OK: no trainer is recognised. */
strata_status st_recipe_foreign(const st_json *root, const char *path);
/** Put what a word says, "key=value" or "--key=value", into a file's tree.  E_CONFIG: it is none, or its value is no YAML. */
strata_status st_recipe_merge(st_json *root, const char *word);
/** A notice for each key that several words set: the last one counts. */
void st_recipe_tell_repeats(const char *const *words, uint32_t count);
/** Whether a word says a key, or the section that it is in; `whole`: or a member of it. */
bool st_recipe_word_says(const char *word, const char *key, bool whole);
/** The row of a key, and its place in the table; NULL: the table has none. */
const struct st_field *st_recipe_row(const struct st_recipe_trainer *t, const char *key, uint32_t *index);
/** What is known of a key of the table. */
struct st_recipe_state *st_recipe_state_of(struct strata_recipe *r, const char *key);
/** Report a problem with a key's value, with its line, or as one of the command line. */
void st_recipe_add_problem(struct strata_recipe *r, const char *key, const st_json *node, const char *reason);
/** Whether the command line says a key, as it is spelled in the file, or as its row is, or a member of it that the file lacks. */
bool st_recipe_is_on_line(const struct strata_recipe *r, const char *key, const st_json *node);
/** Its rows and problems become those of the configuration that it is part of, too. */
void st_recipe_tell(const struct strata_recipe *r, struct st_config_source *src);

/* For resolve().  Keys are rows of the table. */

/** The value: as given, else the row's default; NULL: neither. */
const st_json *st_recipe_node(struct strata_recipe *r, const char *key);
bool st_recipe_given(struct strata_recipe *r, const char *key);
bool st_recipe_on(struct strata_recipe *r, const char *key);
double st_recipe_number(struct strata_recipe *r, const char *key);
/** The shortest text of a number, kept. */
const char *st_recipe_real(struct strata_recipe *r, double value);
const char *st_recipe_text(struct strata_recipe *r, const char *key); /* "": none */
/** The value of the choice; `otherwise`: it was rejected. */
int st_recipe_choice(struct strata_recipe *r, const char *key, int otherwise);
/** Ask for an option (fmt NULL: without a word) or a path. */
void st_recipe_put(struct strata_recipe *r, const char *key, const char *to, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/** The same, unless DeepSpeed's file gives the path `unless`. */
void st_recipe_put_unless(struct strata_recipe *r, const char *key, const char *unless, const char *to, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/** The same, over what DeepSpeed's file says of it. */
void st_recipe_put_over(struct strata_recipe *r, const char *key, const char *to, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
void st_recipe_note(struct strata_recipe *r, const char *key, const char *reason);
/** A note, told at each start. */
void st_recipe_announce(struct strata_recipe *r, const char *key, const char *reason);
/** It has been looked at, and has no effect. */
void st_recipe_idle(struct strata_recipe *r, const char *key, const char *reason);
void st_recipe_reject(struct strata_recipe *r, const char *key, const char *reason);
/** JSON text of a value, kept. */
const char *st_recipe_json(struct strata_recipe *r, const st_json *node);
/** A text as JSON writes it, kept. */
const char *st_recipe_quoted(struct strata_recipe *r, const char *text);
/** A JSON list of the words between commas, without the spaces around them, kept. */
const char *st_recipe_list(struct strata_recipe *r, const char *key);

/** A file or directory: from the working directory, as trainers read names; else from the recipe's directory, or the nearest
 * above it that has it. */
const char *st_recipe_beside(struct strata_recipe *r, const char *name);

#define ST_RECIPE_EMPTY "must not be empty"

/* Without effect: it changes nothing that a run without it would do; it changes speed or place; it asks for something that is not
 * done. */
#define ST_RECIPE_NOTICE(path_, more_, type_, reason_) ST_RECIPE_IDLE(path_, more_, type_, NEITHER, reason_)
#define ST_RECIPE_SPEED(path_, more_, type_, reason_)  ST_RECIPE_IDLE(path_, more_, type_, SPEED, reason_)
#define ST_RECIPE_ASKED(path_, more_, type_, reason_)  ST_RECIPE_IDLE(path_, more_, type_, OUTPUT, reason_)
#define ST_RECIPE_IDLE(path_, more_, type_, changes_, reason_)                                                                   \
    {                                                                                                                            \
        .path = (path_), .aliases = (more_), .type = ST_FIELD_##type_, .verdict = ST_VERDICT_NOTICE,                             \
        .changes = ST_CHANGES_##changes_, .reason = (reason_)                                                                    \
    }
/* Refused unless it is off, or `plain_`. */
#define ST_RECIPE_OFF(path_, type_, plain_, reason_)                                                                             \
    {                                                                                                                            \
        .path = (path_), .type = ST_FIELD_##type_, .plain = (plain_), .verdict = ST_VERDICT_REJECTED, .reason = (reason_)        \
    }

#endif
