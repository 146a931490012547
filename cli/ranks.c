/* cli/ranks.c - see cli/ranks.h. */
#include "cli/ranks.h"
#include "cli/cli_signals.h"
#include "cli/options/told.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/print.h"
#include "core/base/wrap.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define PREFIX_BYTES 24
#define RANKS_MOST   1024 /* as strata/comm.h says */

static char prefix[PREFIX_BYTES]; /* written once, before there are other threads that print */

const char *cli_ranks_prefix(void)
{
    return prefix;
}

/* Notices are said by rank 0, and would be the same here. */
static void log_rank(void *ctx, enum st_log_level level, const char *line)
{
    char words[64];

    (void)ctx;
    snprintf(words, sizeof(words), "%s%s", prefix, st_log_word(level));
    cli_told_print(stderr, words, line);
}

static void speak_as(uint32_t rank)
{
    if (rank == 0)
        return;
    snprintf(prefix, sizeof(prefix), "rank %u: ", rank);
    st_log_configure(log_rank, NULL, ST_LOG_WARN);
}

static strata_status take_options(struct strata_comm_opts *who, const struct cli_args *args)
{
    if ((args->rank != CLI_NOT_GIVEN) != (args->world_size != CLI_NOT_GIVEN))
        return st_error(STRATA_E_INVAL, "--rank N and --world-size N go together");
    if (args->local_world_size != CLI_NOT_GIVEN && args->local_rank == CLI_NOT_GIVEN)
        return st_error(STRATA_E_INVAL, "--local-world-size needs --local-rank N");
    if (args->rank != CLI_NOT_GIVEN) {
        who->rank = (uint32_t)args->rank;
        who->ranks = (uint32_t)args->world_size;
    }
    if (args->local_world_size != CLI_NOT_GIVEN) {
        who->local_rank = (uint32_t)args->local_rank;
        who->local_ranks = (uint32_t)args->local_world_size;
    }
    if (args->master_port != CLI_NOT_GIVEN)
        who->port = (uint32_t)args->master_port;
    if (args->master_addr != NULL && strlen(args->master_addr) >= sizeof(who->address))
        return st_error(STRATA_E_INVAL, "--master-addr: more than %zu bytes", sizeof(who->address) - 1);
    if (args->master_addr != NULL)
        memcpy(who->address, args->master_addr, strlen(args->master_addr) + 1);
    who->kind = args->comm;
    return STRATA_OK;
}

/* A rank of strata launch gets SIGTERM when the launcher is gone: it ends, and saves, as if somebody had asked. */
static strata_status follow_launcher(void)
{
    const char *launcher = getenv("STRATA_LAUNCHER");

    if (launcher == NULL)
        return STRATA_OK;
    if (st_fault_refuses("ranks.deathsig") || prctl(PR_SET_PDEATHSIG, SIGTERM) != 0)
        return st_error_errno(errno, "this rank cannot ask to be told when strata launch ends");
    if (strtol(launcher, NULL, 10) == (long)getppid())
        return STRATA_OK;
    return st_error(STRATA_E_INVAL,
                    "STRATA_LAUNCHER is %.24s, but process %ld has started this one: strata launch is gone, or unset it",
                    launcher, (long)getppid());
}

strata_status cli_ranks_find(struct cli_ranks *r, const struct cli_args *args)
{
    strata_status st;

    r->who = (struct strata_comm_opts)STRATA_COMM_OPTS_INIT;
    r->info = (struct strata_comm_info)STRATA_COMM_INFO_INIT;
    if ((st = take_options(&r->who, args)) != STRATA_OK || (st = strata_comm_find(&r->who, NULL)) != STRATA_OK)
        return st;
    r->info.rank = r->who.rank;
    r->info.ranks = r->who.ranks;
    speak_as(r->who.rank);
    if (args->rank == CLI_NOT_GIVEN && r->who.source != NULL)
        cli_signals_launched();
    return follow_launcher();
}

const struct cli_args *cli_ranks_args(struct cli_ranks *r, const struct cli_args *args)
{
    if (r->who.rank == 0)
        return args;
    r->own = *args;
    r->own.quiet = true;
    r->own.json = false;
    r->own.metrics = NULL;
    if (args->trace != NULL) {
        snprintf(r->trace, sizeof(r->trace), "%s.rank%u", args->trace, r->who.rank);
        r->own.trace = r->trace;
    }
    return &r->own;
}

strata_status cli_ranks_meet(struct cli_ranks *r, const struct strata_config *config)
{
    strata_status st;

    r->who.config = config;
    st = strata_comm_open(&r->comm, &r->who);
    r->who.config = NULL;
    return st == STRATA_OK ? strata_comm_get_info(r->comm, &r->info) : st;
}

/* Compare whether files are named, not their names, which may differ from machine to machine. */
strata_status cli_ranks_agree(const struct cli_ranks *r, const struct cli_args *args)
{
    static const char *const words[] = {"none", "one"};
    char max_steps[24], epochs[32], eval_every[32], early_stop[24];
    const char *const facts[][2] = {
        {"--max-steps", max_steps},
        {"--epochs", epochs},
        {"--eval-data", words[args->eval_data != NULL || args->eval_datasets.count > 0]},
        {"--eval-every", eval_every},
        {"--early-stop", early_stop},
        {"--no-shuffle", words[args->no_shuffle]},
        {"--resume", words[args->resume != NULL]},
        {"--out", words[args->out != NULL]},
        {"--digest", words[args->digest]},
    };
    const char *names[sizeof(facts) / sizeof(facts[0])], *texts[sizeof(facts) / sizeof(facts[0])];
    const uint32_t count = sizeof(facts) / sizeof(facts[0]);

    if (r->comm == NULL)
        return STRATA_OK;
    snprintf(max_steps, sizeof(max_steps), "%" PRIu64, args->max_steps);
    snprintf(epochs, sizeof(epochs), "%.17g", args->epochs);
    if (args->eval_epochs)
        snprintf(eval_every, sizeof(eval_every), "epoch");
    else
        snprintf(eval_every, sizeof(eval_every), "%.17g", args->eval_part > 0 ? args->eval_part : (double)args->eval_every);
    snprintf(early_stop, sizeof(early_stop), "%" PRIu64, args->early_stop);
    for (uint32_t i = 0; i < count; i++) {
        names[i] = facts[i][0];
        texts[i] = facts[i][1];
    }
    return strata_comm_agree(r->comm, names, texts, count);
}

void cli_ranks_print(const struct cli_ranks *r, FILE *file)
{
    char source[256];

    if (r->info.ranks <= 1)
        return;
    cli_told(source, sizeof(source), r->info.source);
    st_wrap_print(file, "%u ranks (%s), %u on this machine, by %s\n", r->info.ranks, source, r->info.local_ranks, r->info.kind);
}

void cli_ranks_note_alone(const struct cli_ranks *r)
{
    const char *text = getenv("NPROC_PER_NODE");
    const unsigned long wanted = text != NULL ? strtoul(text, NULL, 10) : 0;

    if (r->who.source == NULL && wanted > 1 && wanted <= RANKS_MOST)
        st_log(ST_LOG_NOTICE, "NPROC_PER_NODE is %lu, and this is one process: strata launch -n %lu train ... starts them all",
               wanted, wanted);
}

void cli_ranks_leave(struct cli_ranks *r, strata_status st)
{
    if (st == STRATA_OK || st == STRATA_E_CANCELLED || r->comm == NULL)
        return;
    strata_comm_abort_as(r->comm, st, strata_last_error());
    cli_signals_forget();
}

/* What each rank has; freed by the caller. */
static strata_status gather(const struct cli_ranks *r, const void *mine, size_t bytes, void **all, const char *what)
{
    *all = st_fault_refuses("ranks.gather") ? NULL : calloc(r->who.ranks, bytes);
    if (*all == NULL)
        return st_nomem(r->who.ranks * bytes);
    return strata_comm_gather(r->comm, mine, bytes, *all, what);
}

strata_status cli_ranks_first(struct cli_ranks *r, int mine, int *number)
{
    void *all;
    strata_status st;

    *number = mine;
    if (r->who.ranks == 1)
        return STRATA_OK;
    st = gather(r, &mine, sizeof(mine), &all, "what ends the run");
    *number = 0;
    for (uint32_t i = 0; i < r->who.ranks && st == STRATA_OK && *number == 0; i++)
        *number = ((const int *)all)[i];
    free(all);
    return st;
}

strata_status cli_ranks_of_first(struct cli_ranks *r, void *data, size_t bytes, const char *what)
{
    void *all;
    strata_status st;

    if (r->who.ranks == 1)
        return STRATA_OK;
    st = gather(r, data, bytes, &all, what);
    if (st == STRATA_OK)
        memcpy(data, all, bytes);
    free(all);
    return st;
}

void cli_ranks_close(struct cli_ranks *r)
{
    strata_comm_close(r->comm);
    r->comm = NULL;
}

strata_status cli_ranks_alone(const struct cli_args *args, const char *command)
{
    struct cli_ranks r;
    const strata_status st = cli_ranks_find(&r, args);

    if (st != STRATA_OK || r.who.ranks == 1)
        return st;
    return st_error(STRATA_E_INVAL, "strata %s is one process, and there are %u (%s): run it without the launcher", command,
                    r.who.ranks, r.who.source);
}
