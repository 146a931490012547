/* cli/commands/cmd_check.c - lists every value of a configuration, where it comes from and what it means here. */
#include "cli/commands/commands.h"
#include "core/base/error.h"
#include "core/base/print.h"
#include "core/base/wrap.h"
#include "core/json/json.h"
#include "strata/config.h"
#include "strata/recipe.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define COLUMNS_AFTER 60u /* columns after the path: value, origin, verdict and the beginning of a reason */

static struct strata_config_row row_at(const struct strata_config *config, uint32_t index)
{
    struct strata_config_row row = STRATA_CONFIG_ROW_INIT;

    (void)!strata_config_get_row(config, index, &row); /* there is such a row */
    return row;
}

static int path_width(const struct strata_config *config)
{
    size_t width = 0;

    for (uint32_t i = 0; i < strata_config_row_count(config); i++) {
        const size_t length = strlen(row_at(config, i).path);

        width = length > width ? length : width;
    }
    return (int)width;
}

/* Prints a line for each key, or two if the table is wider than the terminal. */
static void print_text(const struct strata_config *config)
{
    FILE *const file = st_wrap_open(stdout);
    const int width = path_width(config);
    const bool narrow = file != stdout && (size_t)width + COLUMNS_AFTER > st_print_width(stdout);

    for (uint32_t i = 0; i < strata_config_row_count(config); i++) {
        const struct strata_config_row row = row_at(config, i);
        const char *reason = row.reason != NULL ? row.reason : "", *before = row.reason != NULL ? ": " : "";

        if (narrow)
            st_print(file, "%s = %s\n    %s, %s%s%s\n", row.path, row.value, row.origin, row.verdict, before, reason);
        else
            st_print(file, "%-*s  %-14s %-12s  %s%s%s\n", width, row.path, row.value, row.origin, row.verdict, before, reason);
    }
    st_wrap_close(file, stdout);
}

/* A word as a shell takes it for one. */
static void print_word(FILE *file, const char *word)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=.,:/@%";

    if (word[strspn(word, plain)] == '\0') {
        st_print(file, " %s", word);
        return;
    }
    st_print(file, " '");
    for (const char *end; (end = strchr(word, '\'')) != NULL; word = end + 1)
        st_print(file, "%.*s'\\''", (int)(end - word), word);
    st_print(file, "%s'", word);
}

/* What a trainer's file says beside the configuration, as a command line. */
static void print_options(const struct strata_recipe *recipe)
{
    const char *name, *value;
    FILE *const file = st_wrap_open(stdout);

    st_print(file, "\noptions of strata train:");
    for (uint32_t i = 0; strata_recipe_option(recipe, i, &name, &value); i++) {
        if (value != NULL && value[0] == '\0')
            continue;
        st_print(file, " --%s", name);
        if (value != NULL)
            print_word(file, value);
    }
    if (strata_recipe_deepspeed(recipe) != NULL) {
        st_print(file, " --config");
        print_word(file, strata_recipe_deepspeed(recipe));
    }
    st_print(file, "\n");
    st_wrap_close(file, stdout);
}

static void put_options(struct st_json_writer *w, const struct strata_recipe *recipe)
{
    const char *name, *value;

    st_json_array_open(w, "options");
    for (uint32_t i = 0; strata_recipe_option(recipe, i, &name, &value); i++) {
        st_json_object_open(w, NULL);
        st_json_put_string(w, "name", name);
        st_json_put_string(w, "value", value);
        st_json_object_close(w);
    }
    st_json_array_close(w);
    st_json_put_string(w, "config", strata_recipe_deepspeed(recipe));
}

static void print_json(const struct strata_config *config, const struct strata_recipe *recipe, bool valid)
{
    struct st_json_writer w;

    st_json_begin(&w, stdout);
    st_json_object_open(&w, NULL);
    st_json_put_bool(&w, "valid", valid);
    st_json_array_open(&w, "values");
    for (uint32_t i = 0; i < strata_config_row_count(config); i++) {
        const struct strata_config_row row = row_at(config, i);

        st_json_object_open(&w, NULL);
        st_json_put_string(&w, "path", row.path);
        st_json_put_string(&w, "value", row.value);
        st_json_put_string(&w, "origin", row.origin);
        st_json_put_string(&w, "verdict", row.verdict);
        st_json_put_string(&w, "reason", row.reason);
        st_json_object_close(&w);
    }
    st_json_array_close(&w);
    st_json_array_open(&w, "problems");
    for (uint32_t i = 0; strata_config_problem(config, i) != NULL; i++)
        st_json_put_string(&w, NULL, strata_config_problem(config, i));
    st_json_array_close(&w);
    if (recipe != NULL)
        put_options(&w, recipe);
    st_json_object_close(&w);
    st_json_end_line(&w);
}

/* Prints all problems, or the one error of a file that could not be read at all. */
static int print_problems(const struct strata_config *config, strata_status st, const char *file)
{
    if (strata_config_problem(config, 0) == NULL)
        return cli_fail(st);
    fflush(stdout);
    for (uint32_t i = 0; strata_config_problem(config, i) != NULL; i++) {
        const char *problem = strata_config_problem(config, i);
        const size_t length = file != NULL ? strlen(file) : 0;
        const bool named =
            file == NULL || (strncmp(problem, file, length) == 0 && problem[length] == ':'); /* as the parser's sentences do */

        st_wrap_print(stderr, "strata: error: %s%s%s\n", named ? "" : file, named ? "" : ": ", problem);
    }
    return strata_status_exit_code(st);
}

int cmd_check(const struct cli_args *args)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
    struct strata_config *config = NULL;
    strata_status st;
    int code = 0;

    opts.file = args->config_file != NULL                             ? args->config_file
                : args->recipe != NULL || args->positional.count == 0 ? NULL
                                                                      : args->positional.items[0];
    opts.recipe = args->recipe;
    opts.variables = (const char *const *)environ;
    opts.steps_later = args->recipe != NULL && args->max_steps == 0;
    opts.overrides = args->overrides.items;
    opts.override_count = args->overrides.count;
    opts.allow_unknown = args->allow_unknown;
    opts.max_steps = args->max_steps;
    st = strata_config_check(&config, &opts);
    if (args->json)
        print_json(config, args->recipe, st == STRATA_OK);
    else if (config != NULL)
        print_text(config);
    if (!args->json && args->recipe != NULL)
        print_options(args->recipe);
    if (st != STRATA_OK)
        code = print_problems(config, st, args->recipe != NULL ? args->recipe_file : opts.file);
    strata_config_close(config);
    return code;
}
