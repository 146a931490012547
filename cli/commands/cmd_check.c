/* cli/commands/cmd_check.c - lists every value of a configuration, where it comes from and what it means here, and says whether
 * a run would take it. */
#include "cli/commands/check_parts.h"
#include "cli/commands/commands.h"
#include "cli/options/told.h"
#include "cli/ranks.h"
#include "core/base/error.h"
#include "core/base/wrap.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Prints all problems, or the one error of a file that could not be read at all. */
static void print_problems(const struct strata_config *config, strata_status st, const char *file)
{
    char told[CLI_TOLD_BYTES];

    fflush(stdout);
    if (strata_config_problem(config, 0) == NULL)
        (void)cli_fail(st);
    for (uint32_t i = 0; strata_config_problem(config, i) != NULL; i++) {
        const char *problem = strata_config_problem(config, i);
        const size_t length = file != NULL ? strlen(file) : 0;
        const bool named =
            file == NULL || (strncmp(problem, file, length) == 0 && problem[length] == ':'); /* as the parser's sentences do */

        cli_told(told, sizeof(told), problem);
        st_wrap_print(stderr, "strata: error: %s%s%s\n", named ? "" : file, named ? "" : ": ", told);
    }
    fflush(stderr);
}

static strata_status read_config(struct strata_config **config, const char *file, const struct cli_args *args, uint32_t ranks)
{
    struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;

    opts.file = file;
    opts.recipe = args->recipe;
    opts.variables = (const char *const *)environ;
    opts.steps_later = args->max_steps == 0 && (args->recipe != NULL || args->epochs > 0);
    opts.overrides = args->overrides.items;
    opts.override_count = args->overrides.count;
    opts.allow_unknown = args->allow_unknown;
    opts.max_steps = args->max_steps;
    opts.ranks = ranks;
    return strata_config_check(config, &opts);
}

static void leave_parts(struct cli_check *c)
{
    static const char *const parts[] = {"model", "data", "memory"};

    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        c->unseen[c->unseen_count++] = parts[i];
}

static void take_refusal(struct cli_check *c, strata_status st)
{
    if (st == STRATA_OK)
        return;
    c->refusal = strata_config_problem(c->config, 0);
    while (c->refusal != NULL && strata_config_problem(c->config, c->others + 1) != NULL)
        c->others++;
    if (c->refusal == NULL)
        c->refusal = strata_last_error();
}

static void report(const struct cli_check *c, const struct strata_config *config, strata_status st, const char *file, bool json)
{
    if (json)
        cli_check_print_json(c);
    else if (c->config != NULL)
        cli_check_print(c);
    if (st != STRATA_OK)
        print_problems(config, st, file);
    if (!json)
        cli_check_print_verdict(c);
}

int cmd_check(const struct cli_args *args)
{
    const char *word = args->positional.count > 0 ? args->positional.items[0] : NULL;
    const char *file = args->config_file != NULL ? args->config_file : args->recipe == NULL ? word : NULL;
    const char *named = args->recipe != NULL ? args->recipe_file : file;
    struct cli_check c = {.recipe = args->recipe, .all = args->all};
    struct strata_config *config = NULL;
    struct cli_ranks ranks;
    strata_status st = cli_ranks_find(&ranks, args);
    uint32_t count;

    if (st != STRATA_OK)
        return cli_fail(st);
    count = args->ranks != 0 ? (uint32_t)args->ranks : ranks.who.ranks;
    st = read_config(&config, file, args, count);
    c.config = config;
    if (st == STRATA_OK)
        st = cli_check_parts(&c, args, file, config, count);
    else
        leave_parts(&c);
    take_refusal(&c, st);
    if (ranks.who.rank == 0) /* the others find the same */
        report(&c, config, st, named, args->json);
    strata_config_close(config);
    return st == STRATA_OK ? 0 : strata_status_exit_code(st);
}
