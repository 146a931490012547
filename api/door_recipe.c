/* api/door_recipe.c - strata/recipe.h: a trainer's file as a run. */
#include "api/handles.h"
#include "core/base/error.h"
#include "recipes/recipe.h"
#include "strata/recipe.h"

#define DASHES 2u /* before an option's name */

strata_status strata_recipe_open(struct strata_recipe **recipe, const char *file, bool allow_unknown)
{
    if (recipe == NULL || file == NULL)
        return st_error_missing(__func__, recipe == NULL ? "recipe" : "file");
    return st_recipe_open(recipe, &(struct st_recipe_input){.path = file, .allow_unknown = allow_unknown});
}

strata_status strata_recipe_open_words(struct strata_recipe **recipe, const char *file, const char *const *words,
                                       uint32_t word_count, bool allow_unknown)
{
    if (recipe == NULL || (words == NULL && word_count > 0))
        return st_error_missing(__func__, recipe == NULL ? "recipe" : "words");
    for (uint32_t i = 0; i < word_count; i++)
        if (words[i] == NULL)
            return st_error_missing(__func__, "a word");
    return st_recipe_open(recipe, &(struct st_recipe_input){
                                      .path = file, .words = words, .word_count = word_count, .allow_unknown = allow_unknown});
}

bool strata_recipe_has_key(const char *trainer, const char *key)
{
    return key != NULL && st_recipe_has_key(trainer, key);
}

bool strata_recipe_option(const struct strata_recipe *recipe, uint32_t index, const char **name, const char **value)
{
    const struct st_config_said *v;

    if (recipe == NULL || name == NULL || value == NULL)
        return false;
    for (uint32_t i = 0; (v = st_recipe_value_at(recipe, i)) != NULL; i++) {
        if (v->to[0] != '-' || index-- > 0)
            continue;
        *name = v->to + DASHES;
        *value = v->text;
        return true;
    }
    return false;
}

const char *strata_recipe_problem(const struct strata_recipe *recipe, uint32_t index)
{
    return recipe != NULL ? st_recipe_problem_at(recipe, index) : NULL;
}

const char *strata_recipe_words(const char *key)
{
    return key != NULL ? st_recipe_words(key) : NULL;
}

const char *strata_recipe_key_of(const struct strata_recipe *recipe, const char *to)
{
    const struct st_config_said *value = to != NULL ? st_recipe_value_of(recipe, to) : NULL;

    return value != NULL ? value->from : NULL;
}

const char *strata_recipe_deepspeed(const struct strata_recipe *recipe)
{
    return recipe != NULL ? st_recipe_deepspeed(recipe) : NULL;
}

void strata_recipe_close(struct strata_recipe *recipe)
{
    st_recipe_close(recipe);
}
