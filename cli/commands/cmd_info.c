/* cli/commands/cmd_info.c - prints what this machine has and lacks; with --measure, also its rates. */
#include "cli/commands/commands.h"
#include "cli/options/output.h"
#include "cli/run.h"
#include "core/base/error.h"
#include "core/base/print.h"

#include <stdio.h>

#define MEASURE_MODEL "gpt2"
#define MEASURE_SEQ   512u

static strata_status measure(struct cli_run *r, const struct cli_args *args)
{
    struct strata_model_opts opts;
    strata_status st = cli_output_check("--out", args->out, args);

    cli_run_model_opts(r, &opts);
    if (st == STRATA_OK)
        st = strata_model_open(&r->model, r->config, &opts);
    if (st == STRATA_OK)
        st = strata_machine_measure(r->machine, r->model);
    return st == STRATA_OK && args->out != NULL ? strata_machine_write(r->machine, args->out, args->overwrite) : st;
}

/* Ranks are there only for their links: the first one goes on by itself. */
static strata_status measure_links(struct cli_run *r, struct cli_ranks *ranks)
{
    strata_status st;

    if (ranks->who.ranks == 1)
        return STRATA_OK;
    if ((st = cli_ranks_meet(ranks, r->config)) == STRATA_OK)
        st = strata_machine_measure_links(r->machine, ranks->comm);
    cli_ranks_leave(ranks, st);
    cli_ranks_close(ranks);
    return st;
}

static strata_status print(const struct cli_run *r, bool json)
{
    const char *text;
    strata_status st;

    if (!json)
        return strata_machine_print(r->machine, r->config, stdout);
    if ((st = strata_machine_json(r->machine, r->config, &text)) == STRATA_OK)
        st_print_text(stdout, text);
    return st;
}

int cmd_info(const struct cli_args *args)
{
    struct strata_machine_opts opts;
    struct cli_args with_model = *args;
    struct cli_ranks ranks = {0};
    struct cli_run run = {0};
    strata_status st = STRATA_OK;
    int code;

    if (args->out != NULL && !args->measure)
        return cli_fail(st_error(STRATA_E_INVAL, "--out writes a machine file: it needs --measure"));
    if ((args->model != NULL || args->seq_len != 0) && !args->measure)
        return cli_fail(st_error(STRATA_E_INVAL, "%s says whose matmuls are measured: it needs --measure",
                                 args->model != NULL ? "--model" : "--seq-len"));
    if (args->model == NULL) {
        with_model.model = MEASURE_MODEL;
        with_model.seq_len = args->seq_len != 0 ? args->seq_len : MEASURE_SEQ;
    }
    if (args->measure)
        st = cli_ranks_find(&ranks, args);
    if (st == STRATA_OK)
        st = cli_run_configure(&run, &with_model, NULL);
    if (st == STRATA_OK) {
        cli_run_machine_opts(&run, &opts);
        st = strata_machine_open(&run.machine, &opts);
    }
    if (st == STRATA_OK && args->measure)
        st = measure_links(&run, &ranks);
    if (ranks.who.rank == 0 && st == STRATA_OK && args->measure)
        st = measure(&run, args);
    if (ranks.who.rank == 0 && st == STRATA_OK)
        st = print(&run, args->json);
    code = st == STRATA_OK ? 0 : cli_fail(st);
    cli_run_close(&run);
    return code;
}
