/* resubmitted.c - see resubmitted.h. */
#include "cli/commands/resubmitted.h"

#include "core/base/error.h"
#include "core/system/file.h"
#include "strata/adapter.h"
#include "strata/verify.h"

#include <inttypes.h>
#include <string.h>

#define REMEDY "name another directory, or replace it with --overwrite"

/* Whether --out holds what a run that trained an adapter writes. */
static bool holds_adapter(const char *out)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    char path[ST_PATH_MAX];
    bool there = true;

    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && there; i++)
        there = st_path_join(path, out, names[i]) == STRATA_OK && st_file_find(&there, path) == STRATA_OK && there;
    return there;
}

void cli_resubmitted_ask(struct cli_resubmitted *f, const struct cli_checkpoints *s, bool adapter)
{
    struct strata_export_opts opts = STRATA_EXPORT_OPTS_INIT;

    *f = (struct cli_resubmitted){.adapter = adapter};
    if (s->args->out == NULL || s->args->overwrite || s->ranks->who.rank != 0)
        return; /* --out is rank 0's, and what other ranks have under its name is their own affair */
    if (s->dir[0] != '\0' && (cli_checkpoints_goes_on(s) || cli_checkpoints_begins(s)))
        cli_unsaved_read(&f->unsaved, s->dir);
    if (!cli_checkpoints_goes_on(s) && !f->unsaved.there)
        return;
    if (adapter) {
        f->asked = holds_adapter(s->args->out);
        return;
    }
    if (strata_export_check(s->args->out, &opts) == STRATA_OK)
        return;
    opts.overwrite = true;
    f->asked = strata_export_check(s->args->out, &opts) == STRATA_OK; /* a model is all that is in the way */
}

/* E_INPUT: what --out holds is not what the run ended with. */
static strata_status compare_adapter(const char *out, const char *checkpoint)
{
    bool same = false;
    const strata_status st = strata_adapter_compare(out, checkpoint, &same);

    return st != STRATA_OK || same
               ? st
               : st_error(STRATA_E_INPUT, "holds another adapter than that of %s, with which the run ended: " REMEDY, checkpoint);
}

static strata_status compare_model(struct cli_resubmitted *f, const char *out, const char *checkpoint)
{
    char model[33];
    const strata_status st = strata_directory_digest(out, model);

    if (st != STRATA_OK || strcmp(model, f->weights) == 0)
        return st;
    return st_error(STRATA_E_INPUT, "holds another model than that of %s, with which the run ended: " REMEDY, checkpoint);
}

/* A comparison that rank 0 makes. */
struct question {
    struct cli_resubmitted *f;
    const struct cli_checkpoints *s;
    uint64_t steps;
};

/* Whether --out holds what an attempt at this run has written there whose last checkpoint failed. */
static strata_status find_own(const struct question *q, bool *own)
{
    const struct cli_unsaved *u = &q->f->unsaved;
    char out[33];
    strata_status st;

    *own = u->there && u->steps == q->steps && u->step > cli_checkpoints_steps(q->s) &&
           (q->s->from == NULL || strcmp(u->run, q->s->was.run) == 0);
    if (!*own || (st = cli_unsaved_digest(out, q->s->args->out, q->f->adapter)) != STRATA_OK)
        return *own ? st : STRATA_OK;
    *own = strcmp(out, u->out) == 0;
    return STRATA_OK;
}

/* All of it is there but the checkpoint; or, after a signal, what it had learnt: the run that goes on replaces that. */
static void take_own(struct cli_resubmitted *f, uint64_t steps)
{
    f->finished = f->unsaved.step == steps;
    f->replaces = !f->finished;
    memcpy(f->weights, f->unsaved.weights, sizeof(f->weights));
    memcpy(f->state, f->unsaved.state, sizeof(f->state));
}

static strata_status compare(void *ctx)
{
    const struct question *q = ctx;
    const struct cli_checkpoints *s = q->s;
    struct cli_resubmitted *f = q->f;
    const char *out = s->args->out;
    bool own = false;
    strata_status st;

    if (!f->asked)
        return STRATA_OK;
    if ((st = find_own(q, &own)) != STRATA_OK)
        return st_error_prefix(st, "--out %s", out);
    if (own) {
        take_own(f, q->steps);
        return STRATA_OK;
    }
    if (s->from == NULL)
        return st_error(STRATA_E_INPUT, "--out %s holds %s already: " REMEDY, out, f->adapter ? "an adapter" : "a model");
    if (cli_checkpoints_steps(s) != q->steps)
        return st_error(STRATA_E_INPUT,
                        "--out %s: holds %s already, and the run goes on from step %" PRIu64 " of %" PRIu64 ": " REMEDY, out,
                        f->adapter ? "an adapter" : "a model", cli_checkpoints_steps(s), q->steps);
    st = strata_verify_digest(s->was.path, NULL, f->weights, f->state);
    if (st == STRATA_OK)
        st = f->adapter ? compare_adapter(out, s->was.path) : compare_model(f, out, s->was.path);
    f->finished = st == STRATA_OK;
    return st == STRATA_OK ? STRATA_OK : st_error_prefix(st, "--out %s", out);
}

/* The other ranks wait as long as it takes. */
strata_status cli_resubmitted_compare(struct cli_resubmitted *f, const struct cli_checkpoints *s, uint64_t steps)
{
    struct question q = {f, s, steps};
    strata_status st;

    if (!cli_checkpoints_goes_on(s) && !cli_checkpoints_begins(s))
        return STRATA_OK;
    st = strata_comm_take_turns(s->ranks->comm, compare, &q, "whether the run has ended");
    return st == STRATA_OK ? cli_ranks_of_first(s->ranks, f, sizeof(*f), "whether the run has ended") : st;
}
