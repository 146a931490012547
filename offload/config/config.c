/* config.c - reads a config: takes the keys, judges each one, resolves them together, and collects every problem. */
#include "offload/config/config_source_internal.h"
#include "offload/config/recipe_internal.h"

#include "core/base/error.h"
#include <string.h>

/* The section whose rejection makes it pointless to judge this key, or NULL. */
static const struct st_field *muted_by(struct st_config_source *src, const struct st_field *field)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL && f != field; i++) {
        const char *section = f->mutes != NULL ? f->mutes : f->type == ST_FIELD_OBJECT ? f->path : NULL;

        if (section != NULL && src->fields[i].verdict == ST_VERDICT_REJECTED && st_field_inside(field, section))
            return f;
    }
    return NULL;
}

static enum st_config_verdict verdict_of(const struct st_field *field, const st_json *node)
{
    const struct st_choice *choice;

    if (field->type == ST_FIELD_CHOICE && (choice = st_choice_find(field->choices, st_json_string(node))) != NULL &&
        choice->verdict == ST_VERDICT_REJECTED)
        return ST_VERDICT_REJECTED;
    if (field->verdict == ST_VERDICT_REMOVED || (field->verdict == ST_VERDICT_REJECTED && field->type == ST_FIELD_OPEN))
        return st_value_is_off(field, node) ? ST_VERDICT_NOTICE : ST_VERDICT_REJECTED;
    return st_value_is_plain(field, node) ? ST_VERDICT_HONOURED : field->verdict;
}

static void judge(struct st_config_source *src, const struct st_field *field, struct st_field_state *state)
{
    const struct st_field *muter = muted_by(src, field);
    const char *wrong;
    char shown[64];

    if (muter != NULL) {
        state->verdict = ST_VERDICT_NOTICE;
        state->unjudged = true;
        state->reason = st_source_keep(src, "not judged: %s is rejected", muter->path);
        return;
    }
    if (st_value_is_auto(state->node)) {
        state->origin = ST_ORIGIN_AUTO;
        state->verdict = field->verdict == ST_VERDICT_NOTICE ? ST_VERDICT_NOTICE : ST_VERDICT_HONOURED;
        state->reason = field->verdict == ST_VERDICT_NOTICE ? field->reason : NULL;
        return;
    }
    if (st_value_is_idle(src, field, state->node))
        return; /* which the section's rule says */
    state->node = st_value_take(src, field, state->node);
    if (st_value_is_auto(state->node))
        return;
    wrong = st_value_check(src, field, state->node);
    if (wrong != NULL) {
        st_source_reject(src, field->path, wrong);
        return;
    }
    switch (verdict_of(field, state->node)) {
    case ST_VERDICT_HONOURED:
        state->usable = true;
        break;
    case ST_VERDICT_NOTICE:
        state->usable = true;
        state->verdict = ST_VERDICT_NOTICE;
        state->reason = field->reason;
        break;
    case ST_VERDICT_REMOVED: /* occurs only in the table, never as the verdict on a value */
    case ST_VERDICT_REJECTED:
        st_value_show(shown, sizeof(shown), state->node);
        st_source_reject(src, field->path,
                         st_json_type(state->node) == ST_JSON_OBJECT ? field->reason
                                                                     : st_source_keep(src, "%s: %s", shown, field->reason));
        break;
    }
}

static void judge_all(struct st_config_source *src)
{
    const struct st_field *f;

    for (uint32_t i = 0; (f = st_field_at(i)) != NULL; i++)
        if (src->fields[i].node != NULL)
            judge(src, f, &src->fields[i]);
}

/* Whether a problem is the command line's or the environment's, which no file has. */
static bool is_of_no_file(const char *problem)
{
    static const char *const begins[] = {"command line: ", "environment: "}, *const holds[] = {" (command line): ",
                                                                                               " (environment): "};
    const char *first = strstr(problem, ": ");

    for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
        const char *at = strstr(problem, holds[i]);

        if (strncmp(problem, begins[i], strlen(begins[i])) == 0 || (at != NULL && first > at))
            return true;
    }
    return false;
}

/* One sentence for all problems: the first one, and how many others there are. */
static strata_status problems_error(const struct st_config_source *src, const char *name)
{
    const uint32_t count = st_config_problem_count(src);
    const char *first = st_config_problem_at(src, 0);
    const bool named = strncmp(first, name, strlen(name)) == 0 || is_of_no_file(first); /* as a recipe's are */

    if (count == 1)
        return st_error(STRATA_E_CONFIG, "%s%s%s", named ? "" : name, named ? "" : ": ", first);
    return st_error(STRATA_E_CONFIG, "%s%s%s (and %u more)", named ? "" : name, named ? "" : ": ", first, count - 1);
}

#define RECIPES_MAX 2 /* the run's, and one that stands where a configuration stands */

/* What a configuration is made from; roots and recipes that were read here are freed with it. */
struct inputs {
    const char *name; /* for people */
    st_json *root;    /* NULL: no file */
    const struct strata_recipe *recipes[RECIPES_MAX];
    uint32_t recipe_count;
    struct strata_recipe *own;         /* one of them */
    struct strata_recipe *environment; /* NULL: it says nothing */
    const char *file;                  /* that was read; NULL: none */
};

static void take_recipes(struct st_config_source *src, const struct inputs *in)
{
    for (uint32_t i = 0; i < in->recipe_count; i++) {
        st_recipe_tell(in->recipes[i], src);
        st_source_take_recipe(src, in->recipes[i]);
    }
}

/* DeepSpeed's file. */
static const char *file_read(const struct inputs *in)
{
    return in->own != NULL && st_recipe_deepspeed(in->own) != NULL ? st_recipe_deepspeed(in->own) : in->file;
}

/* Only one file of DeepSpeed's can count. */
static void take_environment(struct st_config_source *src, const struct inputs *in)
{
    const char *named = st_recipe_deepspeed(in->environment), *read = file_read(in);

    st_recipe_tell(in->environment, src);
    if (named != NULL && !st_file_is_same(named, read))
        st_source_problem(src, "%s: ACCELERATE_DEEPSPEED_CONFIG_FILE names %s, and %s is read: name one of them",
                          st_recipe_path(in->environment), named, read);
    st_source_take_environment(src, in->environment);
}

static strata_status resolve_all(struct st_config *config, struct st_config_source **source, struct inputs *in,
                                 const struct st_config_opts *opts)
{
    struct st_config_source *src = st_source_create(opts->allow_unknown);
    struct st_config resolved;

    if (src == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", in->name);
    src->overrides = opts->overrides;
    src->override_count = opts->override_count;
    if (in->root != NULL)
        st_source_take_file(src, in->root, file_read(in));
    in->root = NULL;
    take_recipes(src, in);
    for (uint32_t i = 0; i < opts->override_count; i++)
        st_source_take_override(src, opts->overrides[i]);
    if (in->environment != NULL)
        take_environment(src, in);
    judge_all(src);
    st_source_judge_arguments(src);
    st_config_resolve(src, &resolved, opts);
    st_source_build_rows(src, &resolved);
    if (src->failed) {
        st_config_source_free(src);
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", in->name);
    }
    *source = src;
    if (src->problems.count > 0)
        return problems_error(src, in->name);
    *config = resolved;
    return STRATA_OK;
}

/* Frees what was read. */
static strata_status load_inputs(struct st_config *config, struct st_config_source **source, struct inputs *in,
                                 const struct st_config_opts *opts)
{
    const strata_status st = resolve_all(config, source, in, opts);

    st_json_free(in->root);
    st_recipe_close(in->own);
    st_recipe_close(in->environment);
    return st;
}

/* The text is not JSON: the parser's sentence is the only problem. */
static strata_status syntax_error(struct st_config_source **source, strata_status st, const char *name)
{
    struct st_config_source *src;

    if (st != STRATA_E_CONFIG)
        return st;
    src = st_source_create(false);
    if (src == NULL)
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", name);
    st_source_problem(src, "%s", strata_last_error());
    if (src->failed) {
        st_config_source_free(src);
        return st_error(STRATA_E_NOMEM, "%s: no memory to read a config", name);
    }
    *source = src;
    return st_error(st, "%s", st_config_problem_at(src, 0));
}

static strata_status parse_file(st_json **root, const char *path)
{
    const char *preset = st_config_preset(path);

    bool there = true;

    if (preset != NULL)
        return st_hjson_parse(root, preset, strlen(preset), path);
    if (strncmp(path, "deepspeed_zero", strlen("deepspeed_zero")) == 0 && strpbrk(path, "./") == NULL &&
        st_file_find(&there, path) == STRATA_OK && !there)
        return st_error(STRATA_E_CONFIG,
                        "%s: no such file; XTuner's names are deepspeed_zero1, deepspeed_zero2, deepspeed_zero2_offload, "
                        "deepspeed_zero3 and deepspeed_zero3_offload",
                        path);
    return st_source_parse_file(root, path);
}

/* A file that a configuration cannot be made of. */
static strata_status wrong_trainer(const struct st_recipe_trainer *trainer, const char *path)
{
    if (trainer->config)
        return st_error(STRATA_E_CONFIG, "%s: %s's config file, where one of DeepSpeed's is expected", path, trainer->name);
    return st_error(STRATA_E_CONFIG, "%s: %s's file of a whole run: strata train %s runs it", path, trainer->name, path);
}

/* Reads DeepSpeed's file, or Accelerate's and the one of DeepSpeed's that it names. */
static strata_status read_files(struct inputs *in, const char *path, const struct st_config_opts *opts)
{
    const struct st_recipe_trainer *trainer;
    strata_status st = parse_file(&in->root, path);

    if (st != STRATA_OK || (st = st_recipe_foreign(in->root, path)) != STRATA_OK ||
        (trainer = st_recipe_trainer_of(in->root)) == NULL)
        return st;
    if (!trainer->config || in->own != NULL)
        return wrong_trainer(trainer, path);
    st = st_recipe_read(&in->own, trainer, in->root,
                        &(struct st_recipe_input){
                            .path = path, .ranks = opts->ranks > 0 ? opts->ranks : 1, .allow_unknown = opts->allow_unknown});
    in->root = NULL;
    if (st != STRATA_OK)
        return st;
    in->recipes[in->recipe_count++] = in->own;
    return st_recipe_deepspeed(in->own) != NULL ? read_files(in, st_recipe_deepspeed(in->own), opts) : STRATA_OK;
}

strata_status st_config_load(struct st_config *config, struct st_config_source **source, const struct st_config_opts *opts)
{
    struct inputs in = {.file = opts->file};
    strata_status st = st_recipe_environment(&in.environment, opts->variables);

    *source = NULL;
    if (in.file == NULL && opts->recipe != NULL)
        in.file = st_recipe_deepspeed(opts->recipe);
    if (in.file == NULL && in.environment != NULL)
        in.file = st_recipe_deepspeed(in.environment);
    in.name = opts->recipe != NULL     ? st_recipe_path(opts->recipe)
              : in.file != NULL        ? in.file
              : in.environment != NULL ? st_recipe_path(in.environment)
                                       : "config";
    if (st == STRATA_OK && in.file != NULL)
        st = read_files(&in, in.file, opts);
    if (opts->recipe != NULL)
        in.recipes[in.recipe_count++] = opts->recipe;
    if (st == STRATA_OK)
        return load_inputs(config, source, &in, opts);
    st = syntax_error(source, st, in.name);
    st_json_free(in.root);
    st_recipe_close(in.own);
    st_recipe_close(in.environment);
    return st;
}

strata_status st_config_load_text(struct st_config *config, struct st_config_source **source, const char *text, size_t bytes,
                                  const char *name, const struct st_config_opts *opts)
{
    struct inputs in = {.name = name, .file = name};
    strata_status st;

    *source = NULL;
    st = st_hjson_parse(&in.root, text, bytes, name);
    if (st == STRATA_OK)
        st = st_recipe_environment(&in.environment, opts->variables);
    if (st == STRATA_OK)
        return load_inputs(config, source, &in, opts);
    st_json_free(in.root);
    return syntax_error(source, st, name);
}
