/* recipes/recipe_config.c - a configuration of DeepSpeed's file, and of what a trainer's file and a launcher say beside it. */
#include "recipes/recipe_internal.h"

#include "core/base/error.h"
#include "core/json/json.h"
#include <string.h>

#define OTHERS_MAX 2 /* a file that is read as the configuration, and the run's */

/* What a configuration is made from; what was read here is freed with it. */
struct sources {
    struct st_config_inputs in;
    struct st_config_other others[OTHERS_MAX];
    struct strata_recipe *own; /* one of them */
    struct strata_recipe *environment;
    struct st_config_other said; /* by the environment */
};

static const char *spelling(const void *of, const char *key)
{
    return st_recipe_spelling(of, key);
}

static void tell(const void *of, struct st_config_source *src)
{
    st_recipe_tell(of, src);
}

static struct st_config_other other_of(const struct strata_recipe *recipe)
{
    return (struct st_config_other){.has_length = st_recipe_value_of(recipe, "--max-steps") != NULL ||
                                                  st_recipe_value_of(recipe, "--epochs") != NULL,
                                    .path = st_recipe_path(recipe),
                                    .values = recipe->values.items,
                                    .count = recipe->values.count,
                                    .of = recipe,
                                    .spelling = spelling,
                                    .tell = tell};
}

static void add_other(struct sources *s, const struct strata_recipe *recipe)
{
    s->others[s->in.other_count++] = other_of(recipe);
    s->in.others = s->others;
}

static const char *environment_spelling(const void *of, const char *key)
{
    return st_recipe_spelling(((const struct sources *)of)->environment, key);
}

/* Only one file of DeepSpeed's can count. */
static void tell_environment(const void *of, struct st_config_source *src)
{
    const struct sources *s = of;
    const char *named = st_recipe_deepspeed(s->environment), *read = s->in.file;

    st_recipe_tell(s->environment, src);
    if (named != NULL && !st_file_is_same(named, read))
        st_source_problem(src, "%s: ACCELERATE_DEEPSPEED_CONFIG_FILE names %s, and %s is read: name one of them",
                          st_recipe_path(s->environment), named, read);
}

static strata_status read_environment(struct sources *s, const char *const *variables)
{
    const strata_status st = st_recipe_environment(&s->environment, variables);

    if (st != STRATA_OK || s->environment == NULL)
        return st;
    s->said = other_of(s->environment);
    s->said.of = s;
    s->said.spelling = environment_spelling;
    s->said.tell = tell_environment;
    s->in.environment = &s->said;
    return STRATA_OK;
}

/* A file that a configuration cannot be made of. */
static strata_status wrong_trainer(const struct st_recipe_trainer *trainer, const char *path)
{
    if (trainer->config)
        return st_error(STRATA_E_CONFIG, "%s: %s's config file, where one of DeepSpeed's is expected", path, trainer->name);
    return st_error(STRATA_E_CONFIG, "%s: %s's file of a whole run: strata train %s runs it", path, trainer->name, path);
}

/* Reads DeepSpeed's file, or Accelerate's and the one of DeepSpeed's that it names. */
static strata_status read_files(struct sources *s, const char *path, const struct st_config_opts *opts)
{
    const struct st_recipe_input input = {
        .path = path, .ranks = opts->ranks > 0 ? opts->ranks : 1, .allow_unknown = opts->allow_unknown};
    const struct st_recipe_trainer *trainer;
    strata_status st = st_config_parse_file(&s->in.root, path);

    s->in.file = path;
    if (st != STRATA_OK || (st = st_recipe_foreign(s->in.root, path)) != STRATA_OK ||
        (trainer = st_recipe_trainer_of(s->in.root)) == NULL)
        return st;
    if (!trainer->config || s->own != NULL)
        return wrong_trainer(trainer, path);
    st = st_recipe_read(&s->own, trainer, s->in.root, &input);
    s->in.root = NULL;
    if (st != STRATA_OK)
        return st;
    add_other(s, s->own);
    return st_recipe_deepspeed(s->own) != NULL ? read_files(s, st_recipe_deepspeed(s->own), opts) : STRATA_OK;
}

/* Frees what was read. */
static strata_status make(struct st_config *config, struct st_config_source **source, struct sources *s, strata_status st,
                          const struct st_config_opts *opts)
{
    if (st == STRATA_OK) {
        st = st_config_make(config, source, &s->in, opts);
    } else {
        st = st_config_unread(source, st);
        st_json_free(s->in.root);
    }
    st_recipe_close(s->own);
    st_recipe_close(s->environment);
    return st;
}

strata_status st_recipe_config(struct st_config *config, struct st_config_source **source, const struct st_config_opts *opts,
                               const struct strata_recipe *recipe, const char *const *variables)
{
    struct sources s = {.own = NULL};
    strata_status st = read_environment(&s, variables);
    const char *file = opts->file;

    *source = NULL;
    if (file == NULL && recipe != NULL)
        file = st_recipe_deepspeed(recipe);
    if (file == NULL && s.environment != NULL)
        file = st_recipe_deepspeed(s.environment);
    s.in.name = recipe != NULL          ? st_recipe_path(recipe)
                : file != NULL          ? file
                : s.environment != NULL ? st_recipe_path(s.environment)
                                        : "config";
    if (st == STRATA_OK && file != NULL)
        st = read_files(&s, file, opts);
    if (recipe != NULL)
        add_other(&s, recipe);
    return make(config, source, &s, st, opts);
}

strata_status st_recipe_config_text(struct st_config *config, struct st_config_source **source, const char *text,
                                    const char *name, const struct st_config_opts *opts, const char *const *variables)
{
    struct sources s = {.in = {.name = name, .file = name}};
    strata_status st = st_hjson_parse(&s.in.root, text, strlen(text), name);

    *source = NULL;
    if (st == STRATA_OK)
        st = read_environment(&s, variables);
    return make(config, source, &s, st, opts);
}
