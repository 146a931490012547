/* finished.c - see finished.h. */
#include "cli/commands/finished.h"

#include "core/base/error.h"
#include "strata/verify.h"

#include <inttypes.h>
#include <string.h>

#define REMEDY "name another directory, or replace it with --overwrite"

void cli_finished_ask(struct cli_finished *f, const struct cli_saves *s)
{
    struct strata_export_opts opts = STRATA_EXPORT_OPTS_INIT;

    *f = (struct cli_finished){0};
    if (!cli_saves_goes_on(s) || s->args->out == NULL || s->args->overwrite ||
        strata_export_check(s->args->out, &opts) == STRATA_OK)
        return;
    opts.overwrite = true;
    f->asked = strata_export_check(s->args->out, &opts) == STRATA_OK; /* a model is all that is in the way */
}

/* --out is rank 0's. */
static strata_status share(struct cli_finished *f, const struct cli_saves *s)
{
    return cli_saves_goes_on(s) ? cli_ranks_of_first(s->ranks, f, sizeof(*f), "whether the run has ended") : STRATA_OK;
}

strata_status cli_finished_compare(struct cli_finished *f, const struct cli_saves *s, uint64_t steps)
{
    const char *out = s->args->out;
    char model[33];
    strata_status st;

    if (!f->asked)
        return share(f, s);
    if (cli_saves_steps(s) != steps)
        return st_error(STRATA_E_INPUT,
                        "--out %s: holds a model already, and the run goes on from step %" PRIu64 " of %" PRIu64 ": " REMEDY, out,
                        cli_saves_steps(s), steps);
    st = strata_directory_digest(out, model);
    if (st == STRATA_OK)
        st = strata_verify_digest(s->was.path, NULL, f->weights, f->state);
    if (st == STRATA_OK && strcmp(model, f->weights) != 0)
        st = st_error(STRATA_E_INPUT, "holds another model than that of %s, with which the run ended: " REMEDY, s->was.path);
    f->finished = st == STRATA_OK;
    return st == STRATA_OK ? share(f, s) : st_error_prefix(st, "--out %s", out);
}
