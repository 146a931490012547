/* run/resume.c - see run/resume.h. */
#include "run/resume.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "run/checkpointer.h"
#include "run/resume_volumes.h"

#include <stdlib.h>
#include <string.h>

struct watched {
    st_run_watch_fn *watch;
    void *ctx;
    uint64_t done, total;
};

static strata_status count(void *ctx, uint64_t elems)
{
    struct watched *w = ctx;

    w->done += elems;
    return w->watch(w->ctx, w->done, w->total);
}

static uint64_t elems_of(const struct st_extents *e)
{
    uint64_t elems = 0;

    for (uint64_t i = 0; i < e->row_count; i++)
        elems += e->rows[i].elems;
    return elems;
}

/* Checkpoints of this run will have the base that this one has.  Its files can be linked if they are what this run's would be:
 * those of other directories, or of another pattern over them, have other bytes. */
static bool needs_own_base(const struct st_run *run, const struct st_manifest *m)
{
    const struct st_swap *swap = st_engine_swap(run->engine);

    return run->checkpointer != NULL && swap != NULL && m->space_bytes[ST_SPACE_BASE] > 0 &&
           !st_stripe_alike(st_swap_stripe(swap), &m->stripe);
}

/* old: of the checkpoint that the run has resumed from, which may be where its state is. */
static strata_status replace(struct st_run *run, const struct st_resume_opts *opts, struct st_resume_volumes *r)
{
    struct st_resume_volumes *const old = run->resumed;
    const strata_status st = st_engine_resume(run->engine, opts);

    st_resume_volumes_free(old, run->engine); /* not before: what the last step reads ahead may come from there */
    run->resumed = st == STRATA_OK && st_engine_adopted(run->engine) ? r : NULL;
    return st;
}

static strata_status read_into(struct st_run *run, const struct st_checkpoint *ck, bool rescales, bool *loaded, struct watched *w)
{
    const struct st_program *program = run->program;
    const uint32_t cuts = st_program_cuts(program);
    const bool own = cuts > 1 && st_manifest_parts(&ck->manifest) == cuts; /* maybe cut as this run's */
    struct st_resume_volumes *r = calloc(1, sizeof(*r));
    struct st_resume_opts opts = {.extents = &ck->extents,
                                  .train = &ck->manifest.train,
                                  .rescales = rescales,
                                  .copies = needs_own_base(run, &ck->manifest),
                                  .progress = count,
                                  .ctx = w};
    strata_status st;

    st = r != NULL ? st_resume_volumes_open(r, run->engine, ck, own ? program->rank : ST_CHECKPOINT_PARTS) : st_nomem(sizeof(*r));
    if (st == STRATA_OK)
        st = w->watch(w->ctx, 0, w->total);
    if ((st = st_engine_agree(run->engine, st, "the files of a checkpoint")) == STRATA_OK) {
        opts.volumes = r->volumes;
        opts.own = own ? r->own_volumes : NULL;
        opts.part_bytes = ck->manifest.space_bytes;
        if (*loaded)
            st = st_engine_check_resume(run->engine, &opts);
    }
    if (st == STRATA_OK) {
        *loaded = false;
        st = replace(run, &opts, r);
    }
    if (run->resumed != r)
        st_resume_volumes_free(r, run->engine);
    return st;
}

/* The checkpoint that a rank has opened, by what no other one has. */
struct opened {
    char run[17];
    uint64_t step;
};

/* All ranks resume from the same one: each has looked for it by itself. */
strata_status st_run_agree_checkpoint(struct st_run *run, const struct st_manifest *m)
{
    const uint32_t ranks = run->program->ranks;
    struct opened mine = {.step = m->step}, *all = st_fault_refuses("run.resume") ? NULL : calloc(ranks, sizeof(*all));
    strata_status st = STRATA_OK;

    memcpy(mine.run, m->run, sizeof(mine.run));
    st = st_engine_agree(run->engine, all != NULL ? STRATA_OK : st_nomem(ranks * sizeof(*all)), "the memory for a checkpoint");
    if (st == STRATA_OK)
        st = st_engine_gather(run->engine, &mine, sizeof(mine), all, "the names of checkpoints");
    for (uint32_t r = 1; r < ranks && st == STRATA_OK; r++)
        if (strcmp(all[r].run, all[0].run) != 0 || all[r].step != all[0].step)
            st = st_error(
                STRATA_E_INPUT,
                "rank %u resumes from step %llu of run %s, rank 0 from step %llu of run %s: give all the same checkpoint", r,
                (unsigned long long)all[r].step, all[r].run, (unsigned long long)all[0].step, all[0].run);
    free(all);
    return st;
}

strata_status st_run_resume(struct st_run *run, const struct st_checkpoint *ck, bool rescales, bool *loaded,
                            st_run_watch_fn *watch, void *ctx)
{
    const uint64_t elems = elems_of(&ck->extents) / st_program_cuts(run->program);
    struct watched w = {.watch = watch, .ctx = ctx, .total = *loaded ? 2 * elems : elems};
    strata_status st = read_into(run, ck, rescales, loaded, &w);

    if (st == STRATA_OK && run->checkpointer != NULL)
        st = st_checkpointer_begin(run->checkpointer, ck);
    *loaded = *loaded || st == STRATA_OK;
    return st;
}
