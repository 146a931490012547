/* cli/commands/cmd_launch.c - starts the ranks of a run on this machine, without PyTorch or MPI. */
#include "cli/commands/commands.h"
#include "cli/commands/local_ranks.h"
#include "cli/options/args_table.h"
#include "core/base/error.h"
#include "strata/comm.h"

#include <stdlib.h>
#include <string.h>

/* Ranks of a launcher's ranks would be other runs, that meet at one address. */
static strata_status check_alone(void)
{
    struct strata_comm_opts who = STRATA_COMM_OPTS_INIT;
    const strata_status st = strata_comm_find(&who, NULL);

    if (st != STRATA_OK || who.source == NULL)
        return st;
    return st_error(STRATA_E_INVAL,
                    "strata launch starts the ranks itself, and this process is rank %u of %u (%s): leave one out", who.rank,
                    who.ranks, who.source);
}

static strata_status check_command(const char *name)
{
    if ((cli_command_named(name) & RANKED) != 0)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "strata launch runs train, eval, generate or info --measure, not \"%s\"", name);
}

/* What every rank would find wrong is said once.  Help is, too: *ranks becomes 1. */
static strata_status check_words(char **argv, int argc, uint32_t *ranks)
{
    struct cli_args args;
    strata_status st = cli_args_parse(&args, cli_command_named(argv[1]), argc, argv);

    if (st == STRATA_OK && (args.rank != CLI_NOT_GIVEN || args.world_size != CLI_NOT_GIVEN || args.local_rank != CLI_NOT_GIVEN))
        st = st_error(STRATA_E_INVAL, "strata launch sets --rank, --world-size and --local-rank: leave them out");
    if (st == STRATA_OK && args.help)
        *ranks = 1;
    cli_args_fini(&args);
    return st;
}

int cmd_launch(const struct cli_args *args)
{
    const struct cli_list *words = &args->positional;
    struct cli_local_ranks launch = {.ranks = (uint32_t)args->ranks, .prefix = args->prefix};
    char **argv = calloc(words->count + 2, sizeof(*argv));
    int code = 0;
    strata_status st = argv == NULL ? st_nomem((words->count + 2) * sizeof(*argv)) : check_alone();

    if (st == STRATA_OK)
        st = check_command(words->items[0]);
    if (st == STRATA_OK) {
        argv[0] = (char *)(uintptr_t) "strata";
        memcpy(argv + 1, words->items, words->count * sizeof(*argv));
        launch.argv = argv;
        st = check_words(argv, (int)words->count + 1, &launch.ranks);
    }
    if (st == STRATA_OK)
        st = cli_local_ranks_run(&launch, &code);
    free(argv);
    return st == STRATA_OK ? code : cli_fail(st);
}
