/* recipes/recipe.c - reads a recipe by its trainer's table: takes the keys, judges each, and lists what they become. */
#include "recipes/recipe_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"
#include "core/base/word.h"
#include "core/json/json_build.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define VALUE_BYTES ST_CONFIG_VALUE_MAX

const struct st_recipe_trainer *const st_recipe_trainers[] = {
    &st_recipe_trl, &st_recipe_llama_factory_v1, &st_recipe_llama_factory, &st_recipe_xtuner, &st_recipe_accelerate, NULL};

/* --- rows of a trainer's table --- */

static const struct st_field *row_at(const struct st_recipe_trainer *t, uint32_t i)
{
    for (const struct st_section *s = t->sections; s->title != NULL; s++) {
        if (i < s->count)
            return &s->fields[i];
        i -= s->count;
    }
    return NULL;
}

static bool has_name(const struct st_field *row, const char *key)
{
    const size_t length = strlen(key);

    if (strcmp(row->path, key) == 0)
        return true;
    for (const char *at = row->aliases; at != NULL && *at != '\0'; at += strspn(at, " ")) {
        const size_t word = strcspn(at, " ");

        if (word == length && memcmp(at, key, length) == 0)
            return true;
        at += word;
    }
    return false;
}

const struct st_field *st_recipe_row(const struct st_recipe_trainer *t, const char *key, uint32_t *index)
{
    const struct st_field *row;

    for (*index = 0; (row = row_at(t, *index)) != NULL; (*index)++)
        if (has_name(row, key))
            return row;
    return NULL;
}

/* The key of the table that is nearest; false: none is near. */
static bool nearest_key(char near[128], const struct st_recipe_trainer *t, const char *key)
{
    uint32_t best = st_word_edits_most(key) + 1;
    const struct st_field *row;

    for (uint32_t i = 0; (row = row_at(t, i)) != NULL; i++) {
        const char *at = row->path;

        do {
            char name[128];
            uint32_t edits;

            snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, " "), at);
            edits = st_word_edits(key, name);
            if (edits < best) {
                best = edits;
                snprintf(near, 128, "%s", name);
            }
            at = at == row->path ? row->aliases : at + strcspn(at, " ") + strspn(at + strcspn(at, " "), " ");
        } while (at != NULL && *at != '\0');
    }
    return best <= st_word_edits_most(key);
}

static bool has_one(const st_json *root, const char *const *keys)
{
    while (keys != NULL && *keys != NULL && st_json_get(root, *keys) == NULL)
        keys++;
    return keys != NULL && *keys != NULL;
}

const struct st_recipe_trainer *st_recipe_trainer_of(const st_json *root)
{
    for (const struct st_recipe_trainer *const *t = st_recipe_trainers; *t != NULL && st_json_type(root) == ST_JSON_OBJECT; t++)
        if (has_one(root, (*t)->marks) && !has_one(root, (*t)->others))
            return *t;
    return NULL;
}

/* --- taking keys --- */

struct st_recipe_state *st_recipe_state_of(struct strata_recipe *r, const char *key)
{
    uint32_t index;

    if (st_recipe_row(r->trainer, key, &index) == NULL)
        abort(); /* rules name keys of their table */
    return &r->states[index];
}

const char *st_recipe_spelling(const struct strata_recipe *r, const char *key)
{
    uint32_t index;

    return r->trainer->spelling == NULL || st_recipe_row(r->trainer, key, &index) == NULL
               ? key
               : r->trainer->spelling(key, r->states[index].node);
}

bool st_recipe_is_on_line(const struct strata_recipe *r, const char *key, const st_json *node)
{
    uint32_t index;
    const bool known = st_recipe_row(r->trainer, key, &index) != NULL && r->states[index].key != NULL;
    const bool whole = node != NULL && st_json_line(node) == 0; /* no line of a file */

    for (uint32_t i = 0; i < r->word_count; i++)
        if (st_recipe_word_says(r->words[i], key, whole) ||
            (known && st_recipe_word_says(r->words[i], r->states[index].key, whole)))
            return true;
    return false;
}

void st_recipe_add_problem(struct strata_recipe *r, const char *key, const st_json *node, const char *reason)
{
    key = st_recipe_spelling(r, key);
    if (st_recipe_is_on_line(r, key, node))
        st_source_problem(r->src, "%s (command line): %s", key, reason);
    else if (node != NULL && st_json_line(node) > 0)
        st_source_problem(r->src, "%s:%" PRIu32 ": %s: %s", r->path, st_json_line(node), key, reason);
    else
        st_source_problem(r->src, "%s: %s: %s", r->path, key, reason);
}

static enum st_config_origin origin_of(const struct strata_recipe *r, const char *key, const st_json *node)
{
    if (st_recipe_is_on_line(r, key, node))
        return ST_ORIGIN_COMMAND_LINE;
    return r->trainer->spelling != NULL ? ST_ORIGIN_ENVIRONMENT : ST_ORIGIN_FILE;
}

/* A value that asks for nothing: it is off, or says so. */
static bool asks_nothing(const struct st_field *row, const st_json *node)
{
    return st_value_is_off(row, node) || (st_json_type(node) == ST_JSON_STRING && (st_text_same(st_json_string(node), "none") ||
                                                                                   st_text_same(st_json_string(node), "no")));
}

static void stray(struct strata_recipe *r, const char *key, const st_json *node, const struct st_field *row,
                  enum st_config_verdict verdict, const char *reason)
{
    char shown[512];

    if (row != NULL && row->type == ST_FIELD_SECRET)
        snprintf(shown, sizeof(shown), "(hidden)");
    else
        st_value_show(shown, sizeof(shown), node);
    st_source_add_stray(r->src, &(struct st_config_row){.path = st_source_keep(r->src, "%s", st_recipe_spelling(r, key)),
                                                        .value = st_source_keep(r->src, "%s", shown),
                                                        .origin = origin_of(r, key, node),
                                                        .verdict = verdict,
                                                        .reason = reason,
                                                        .changes = row == NULL               ? ST_CHANGES_RESULTS
                                                                   : asks_nothing(row, node) ? ST_CHANGES_NEITHER
                                                                                             : row->changes});
}

static void take_unknown(struct strata_recipe *r, const char *key, const st_json *node)
{
    const bool allowed = r->src->allow_unknown;
    const char *hint = allowed ? "" : "; --allow-unknown ignores it", *reason;
    char near[128];

    if (nearest_key(near, r->trainer, key))
        reason = st_source_keep(r->src, "no key of %s; the nearest is %s%s", r->trainer->name, near, hint);
    else
        reason = st_source_keep(r->src, "no key of %s%s", r->trainer->name, hint);
    stray(r, key, node, NULL, allowed ? ST_VERDICT_NOTICE : ST_VERDICT_REJECTED, reason);
    if (!allowed)
        st_recipe_add_problem(r, key, node, reason);
}

/* Problems in another file are reported at the key that names it. */
static void set_lines(st_json *node, uint32_t line)
{
    st_json_set_line(node, line);
    for (const st_json *n = st_json_first(node); n != NULL; n = st_json_next(n))
        set_lines((st_json *)n, line);
}

/* An object is used as it is, a name is replaced by the object in its file; NULL: a problem was reported. */
static const st_json *object_of(struct strata_recipe *r, const char *key, const st_json *node)
{
    st_json *root = NULL;
    strata_status st;

    if (st_json_type(node) != ST_JSON_STRING || st_json_string(node)[0] == '\0')
        return node;
    st = st_hjson_parse_file(&root, st_recipe_beside(r, st_json_string(node)), ST_SOURCE_FILE_MAX);
    if (st == STRATA_OK) {
        set_lines(root, st_json_line(node));
        return st_source_adopt(r->src, root);
    }
    if (st == STRATA_E_NOMEM)
        r->src->failed = true;
    else
        st_recipe_add_problem(r, key, node, st_source_keep(r->src, "%s", strata_last_error()));
    return NULL;
}

/* What has no effect is taken as it is, but for a word that its trainer would refuse. */
static void take_notice(struct strata_recipe *r, const char *key, const st_json *node, const struct st_field *row)
{
    const char *wrong = NULL;
    char shown[128];

    st_value_show(shown, sizeof(shown), node);
    if (row->type == ST_FIELD_CHOICE && st_choice_find(row->choices, shown) == NULL)
        wrong = st_value_check(r->src, row, node);
    stray(r, key, node, row, wrong != NULL ? ST_VERDICT_REJECTED : ST_VERDICT_NOTICE, wrong != NULL ? wrong : row->reason);
    if (wrong != NULL)
        st_recipe_add_problem(r, key, node, wrong);
}

static void take_members(struct strata_recipe *r, const char *section, const st_json *object)
{
    static const struct st_field comment = {.type = ST_FIELD_ANY, .changes = ST_CHANGES_NEITHER};

    for (const st_json *n = st_json_first(object); n != NULL; n = st_json_next(n)) {
        const char *key = st_source_keep(r->src, "%s%s%.128s", section, section[0] != '\0' ? "." : "", st_json_name(n));
        uint32_t index;
        const struct st_field *row = st_recipe_row(r->trainer, key, &index);

        if (row == NULL && st_source_is_comment(st_json_name(n))) {
            stray(r, key, n, &comment, ST_VERDICT_NOTICE, ST_COMMENT);
        } else if (row == NULL) {
            take_unknown(r, key, n);
        } else if (st_json_type(n) != ST_JSON_NULL && row->verdict == ST_VERDICT_NOTICE) {
            take_notice(r, key, n, row);
        } else if (st_json_type(n) != ST_JSON_NULL) {
            if (r->states[index].node != NULL)
                st_recipe_add_problem(r, key, n,
                                      st_source_keep(r->src, "is the same key as %s: leave one out", r->states[index].key));
            r->states[index] = (struct st_recipe_state){.node = row->in_file ? object_of(r, key, n) : n, .key = key};
            if (row->type == ST_FIELD_OBJECT && r->states[index].node != NULL &&
                st_json_type(r->states[index].node) == ST_JSON_OBJECT)
                take_members(r, key, r->states[index].node);
        }
    }
}

/* YAML's no and yes are booleans; where words are asked for, and where a wizard writes 'no' for false, either will do. */
static const st_json *as_asked(struct strata_recipe *r, const struct st_field *row, const st_json *node)
{
    st_json *made;

    if (row->type == ST_FIELD_CHOICE && st_json_type(node) == ST_JSON_BOOL)
        made = st_json_new_string(st_json_bool(node) ? "yes" : "no");
    else if (row->type == ST_FIELD_BOOL && st_json_type(node) == ST_JSON_STRING &&
             (st_text_same(st_json_string(node), "no") || st_text_same(st_json_string(node), "false") ||
              st_text_same(st_json_string(node), "yes") || st_text_same(st_json_string(node), "true")))
        made = st_json_new_bool(st_text_lower(st_json_string(node)[0]) != 'n' && st_text_lower(st_json_string(node)[0]) != 'f');
    else
        return node;
    if (made == NULL) {
        r->src->failed = true;
        return node;
    }
    st_json_set_line(made, st_json_line(node));
    return st_source_adopt(r->src, made);
}

static const char *refusal_of(const struct st_field *row, const struct st_choice *choice)
{
    for (size_t i = 0; row->refusals != NULL && row->refusals[i][0] != NULL; i++)
        if (strcmp(row->refusals[i][0], choice->text) == 0)
            return row->refusals[i][1];
    return row->reason;
}

/* Whether a value asks for nothing.  A switch that must be on asks for something when it is false. */
static bool is_off(const struct st_field *row, const st_json *node)
{
    return st_value_is_off(row, node) && (row->plain == NULL || strcmp(row->plain, "true") != 0);
}

static void judge(struct strata_recipe *r, const struct st_field *row, struct st_recipe_state *state)
{
    const struct st_choice *choice;
    const char *wrong;

    if (row->auto_text != NULL && state->node != NULL && st_value_is_auto(state->node))
        state->node = NULL; /* as if it were left out */
    if (state->node == NULL || (state->node = as_asked(r, row, state->node)) == NULL)
        return;
    choice = row->type == ST_FIELD_CHOICE && st_json_type(state->node) == ST_JSON_STRING
                 ? st_choice_find(row->choices, st_json_string(state->node))
                 : NULL;
    if ((wrong = st_value_check(r->src, row, state->node)) != NULL) {
        st_recipe_reject(r, row->path, wrong);
    } else if (row->type == ST_FIELD_TEXT && row->to != NULL && st_json_string(state->node)[0] == '\0') {
        st_recipe_reject(r, row->path, ST_RECIPE_EMPTY); /* an option that has a value */
    } else if (choice != NULL && choice->verdict == ST_VERDICT_REJECTED) {
        st_recipe_reject(r, row->path, st_source_keep(r->src, "%s: %s", choice->text, refusal_of(row, choice)));
    } else if (row->verdict == ST_VERDICT_REJECTED && !st_value_is_plain(row, state->node) && !is_off(row, state->node)) {
        st_recipe_reject(r, row->path, row->reason);
    } else {
        state->usable = true;
        state->reason = row->verdict == ST_VERDICT_REJECTED ? "as it is here" : NULL;
    }
}

/* --- what keys become --- */

static void put_row(struct strata_recipe *r, const struct st_field *row, const st_json *node)
{
    char text[VALUE_BYTES];

    if (row->to[0] != '-') {
        st_recipe_put(r, row->path, row->to, "%s", st_recipe_json(r, node));
    } else if (st_json_type(node) == ST_JSON_BOOL) {
        if (st_json_bool(node))
            st_recipe_put(r, row->path, row->to, NULL);
    } else {
        st_value_show(text, sizeof(text), node);
        st_recipe_put(r, row->path, row->to, "%s", text);
    }
}

static void put_rows(struct strata_recipe *r)
{
    const struct st_field *row;

    for (uint32_t i = 0; (row = row_at(r->trainer, i)) != NULL; i++) {
        const st_json *node = row->to != NULL ? st_recipe_node(r, row->path) : NULL;

        if (node != NULL)
            put_row(r, row, node);
    }
}

/* --- rows --- */

/* What a key has become, for people. */
static const char *becomes(struct strata_recipe *r, const struct st_field *row)
{
    const struct st_config_said *value;
    char text[512] = "";
    size_t used = 0;

    for (uint32_t i = 0; (value = st_recipe_value_at(r, i)) != NULL && used < sizeof(text); i++)
        if (strcmp(value->from, row->path) == 0 && (value->text == NULL || value->text[0] != '\0'))
            used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s%s%.200s", used > 0 ? ", " : "", value->to,
                                     value->text == NULL   ? ""
                                     : value->to[0] == '-' ? " "
                                                           : " = ",
                                     value->text != NULL ? value->text : "");
    return used > 0 ? st_source_keep(r->src, "%s", text) : NULL;
}

static void add_row(struct strata_recipe *r, const struct st_field *row, const struct st_recipe_state *state)
{
    const char *into = becomes(r, row), *reason = state->reason;
    const st_json *node = state->node != NULL ? state->node : st_recipe_node(r, row->path);
    char shown[512];

    if (state->node == NULL && (into == NULL || r->trainer->spelling != NULL))
        return; /* neither given nor of any effect */
    if (row->type == ST_FIELD_OBJECT && state->verdict == ST_VERDICT_HONOURED)
        return; /* its members say what it is */
    snprintf(shown, sizeof(shown), "null");
    if (node != NULL)
        st_value_show(shown, sizeof(shown), node);
    if (into != NULL)
        reason = reason != NULL ? st_source_keep(r->src, "%s; %s", into, reason) : into;
    st_source_add_row(
        r->src, &(struct st_config_row){.path = st_recipe_spelling(r, row->path),
                                        .value = st_source_keep(r->src, "%s", shown),
                                        .origin = state->node != NULL ? origin_of(r, row->path, state->node) : ST_ORIGIN_DEFAULT,
                                        .verdict = state->verdict,
                                        .reason = reason,
                                        .changes = ST_CHANGES_NEITHER,
                                        .announced = state->announced && state->verdict != ST_VERDICT_REJECTED});
}

static void tell_rows(struct st_config_source *src, const struct st_list *rows)
{
    for (uint32_t i = 0; i < rows->count; i++) {
        struct st_config_row row = ((const struct st_config_row *)rows->items)[i];

        row.path = st_source_keep(src, "%s", row.path);
        row.value = st_source_keep(src, "%s", row.value);
        row.reason = row.reason != NULL ? st_source_keep(src, "%s", row.reason) : NULL;
        st_source_add_row(src, &row);
    }
}

void st_recipe_tell(const struct strata_recipe *r, struct st_config_source *src)
{
    tell_rows(src, &r->src->rows);
    tell_rows(src, &r->src->strays);
    for (uint32_t i = 0; i < r->src->problems.count; i++)
        st_source_problem(src, "%s", ((const char *const *)r->src->problems.items)[i]);
}

/* --- a whole file --- */

static const char *name_of(const struct st_recipe_input *in)
{
    return in->path != NULL ? in->path : "command line";
}

static struct strata_recipe *create(const struct st_recipe_trainer *trainer, const struct st_recipe_input *in)
{
    struct strata_recipe *r = st_fault("config.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*r));
    uint32_t rows = 0;

    if (r == NULL)
        return NULL;
    while (row_at(trainer, rows) != NULL)
        rows++;
    r->trainer = trainer;
    r->words = in->words;
    r->word_count = in->word_count;
    snprintf(r->path, sizeof(r->path), "%s", name_of(in));
    r->ranks = in->ranks;
    r->src = st_source_create(in->allow_unknown);
    r->states = st_fault("config.alloc", 0) < 0 ? NULL : calloc(rows, sizeof(*r->states));
    if (r->src != NULL && r->states != NULL)
        return r;
    st_recipe_close(r);
    return NULL;
}

strata_status st_recipe_read(struct strata_recipe **out, const struct st_recipe_trainer *trainer, st_json *root,
                             const struct st_recipe_input *in)
{
    struct strata_recipe *r = create(trainer, in);
    const struct st_field *row;

    if (r == NULL) {
        st_json_free(root);
        return st_nomem(0);
    }
    r->root = st_source_adopt(r->src, root);
    if (r->root != NULL)
        take_members(r, "", root);
    for (uint32_t i = 0; (row = row_at(trainer, i)) != NULL; i++)
        if (r->states[i].node != NULL)
            judge(r, row, &r->states[i]);
    put_rows(r);
    trainer->resolve(r);
    for (uint32_t i = 0; (row = row_at(trainer, i)) != NULL; i++)
        add_row(r, row, &r->states[i]);
    r->words = NULL;
    r->word_count = 0;
    if (r->src->failed) {
        st_recipe_close(r);
        return st_nomem(0);
    }
    *out = r;
    return STRATA_OK;
}

static strata_status parse(st_json **root, const char *path)
{
    if (path != NULL)
        return st_source_parse_file(root, path);
    *root = st_json_new_object();
    return *root != NULL ? STRATA_OK : st_nomem(0);
}

strata_status st_recipe_open(struct strata_recipe **out, const struct st_recipe_input *in)
{
    const struct st_recipe_trainer *trainer = &st_recipe_llama_factory;
    st_json *root = NULL;
    strata_status st = parse(&root, in->path);

    if (st == STRATA_OK && in->path != NULL) /* the words are keys of its trainer */
        trainer = st_recipe_trainer_of(root);
    for (uint32_t i = 0; st == STRATA_OK && st_json_type(root) == ST_JSON_OBJECT && i < in->word_count; i++)
        st = st_recipe_merge(root, in->words[i]);
    if (st == STRATA_OK && (st = st_recipe_foreign(root, name_of(in))) == STRATA_OK)
        st_recipe_tell_repeats(in->words, in->word_count);
    if (st != STRATA_OK) {
        st_json_free(root);
        return st;
    }
    if (trainer == NULL)
        trainer = st_recipe_trainer_of(root);
    if (trainer != NULL && !trainer->config)
        return st_recipe_read(out, trainer, root, in);
    st_json_free(root);
    return st_error(STRATA_E_CONFIG,
                    "%s: %s: a run is named by LLaMA-Factory's keys (model_name_or_path, dataset, ...), TRL's (dataset_name, "
                    "...) or XTuner's "
                    "(load_from, ...)",
                    in->path,
                    trainer != NULL ? "Accelerate's config file, which --config takes"
                                    : "neither LLaMA-Factory's nor TRL's nor XTuner's");
}

void st_recipe_close(struct strata_recipe *r)
{
    if (r == NULL)
        return;
    st_config_source_free(r->src);
    free(r->states);
    free(r->values.items);
    free(r);
}

const char *st_recipe_path(const struct strata_recipe *r)
{
    return r->path;
}

const char *st_recipe_deepspeed(const struct strata_recipe *r)
{
    return r->deepspeed[0] != '\0' ? r->deepspeed : NULL;
}

const char *st_recipe_problem_at(const struct strata_recipe *r, uint32_t i)
{
    return st_config_problem_at(r->src, i);
}

const struct st_config_said *st_recipe_value_at(const struct strata_recipe *r, uint32_t i)
{
    return i < r->values.count ? &((const struct st_config_said *)r->values.items)[i] : NULL;
}

const struct st_config_said *st_recipe_value_of(const struct strata_recipe *r, const char *to)
{
    const struct st_config_said *value;

    for (uint32_t i = 0; r != NULL && (value = st_recipe_value_at(r, i)) != NULL; i++)
        if (strcmp(value->to, to) == 0)
            return value;
    return NULL;
}
