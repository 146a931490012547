/* api/saver.c - see api/saver.h. */
#include "api/saver.h"

#include "api/saved.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "offload/checkpoint/store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct st_saver {
    char save[ST_PATH_MAX], path[ST_PATH_MAX], run[17]; /* path: of the last checkpoint */
    const struct st_model *model;
    const char *source; /* the directory that the model came from; NULL: a preset */
    uint32_t keep;
    bool overwrite, made;           /* made: the directory was */
    struct st_committer *committer; /* NULL: there is no engine yet */
    uint64_t steps;                 /* applied and skipped, at the last save, or when the run began or resumed */
    uint64_t begun_ns;
    bool is_due; /* the next step saves, or whoever waits for it */
    struct st_manifest due;
    struct strata_saved last;
    strata_status status; /* of the last save, until it is asked for */
    char sentence[1024];
};

static uint64_t steps_of(const struct st_train_state *train)
{
    return train->steps_applied + train->steps_skipped;
}

/* --- a run that saves --- */

static strata_status make_directory(struct st_saver *s)
{
    const int rc = st_fault_refuses("api.save_dir") ? -1 : mkdir(s->save, 0777);

    s->made = rc == 0;
    if (rc != 0 && errno != EEXIST)
        return errno == ENOENT ? st_error(STRATA_E_INPUT, "strata.save (--save) %s: there is no directory to make it in", s->save)
                               : st_error_errno(errno, "strata.save (--save) %s", s->save);
    return STRATA_OK;
}

strata_status st_saver_open(struct st_saver **out, const struct strata_model *model, bool overwrite)
{
    struct st_saver *s;
    strata_status st;

    if (strcmp(model->config.io_method, "fake") == 0)
        return st_error(STRATA_E_CONFIG, "strata.save needs files, which strata.io_method \"fake\" does not make");
    s = st_fault_refuses("api.saver") ? NULL : calloc(1, sizeof(*s));
    if (s == NULL)
        return st_error(STRATA_E_NOMEM, "no memory for saving");
    snprintf(s->save, sizeof(s->save), "%s", model->config.save);
    s->keep = model->config.keep;
    s->overwrite = overwrite;
    s->model = model->model;
    s->source = model->is_dir ? model->name : NULL;
    s->last.done = true;
    st = make_directory(s);
    if (st == STRATA_OK)
        *out = s;
    else
        free(s);
    return st;
}

void st_saver_close(struct st_saver *s)
{
    if (s == NULL)
        return;
    st_manifest_fini(&s->due);
    st_committer_stop(s->committer);
    if (s->made && !st_fault_refuses("api.save_dir_end"))
        (void)rmdir(s->save); /* stays if there is anything in it */
    free(s);
}

static strata_status write_model(void *ctx, const char *dir)
{
    const struct st_saver *s = ctx;

    return st_hf_write_small(s->model, dir, s->source);
}

strata_status st_saver_attach(struct st_saver *s, struct strata_engine *e)
{
    return st_committer_start(&s->committer, &(struct st_committer_opts){.save = s->save,
                                                                         .keep = s->keep,
                                                                         .overwrite = s->overwrite,
                                                                         .swap = st_engine_swap(e->engine),
                                                                         .model = write_model,
                                                                         .ctx = s});
}

strata_status st_saver_begin(struct st_saver *s, const struct strata_engine *e, const struct st_checkpoint *from)
{
    st_committer_wait(s->committer);
    s->steps = steps_of(st_engine_train_state(e->engine));
    if (from == NULL) {
        const strata_status st = st_committer_use_base(s->committer, NULL);

        return st == STRATA_OK ? st_saved_name_run(s->run) : st;
    }
    memcpy(s->run, from->manifest.run, sizeof(s->run));
    if (st_committer_tidy(s->committer, s->run, from->manifest.step) != STRATA_OK)
        st_log(ST_LOG_WARN, "%s", strata_last_error());
    return st_committer_use_base(s->committer, st_engine_adopted(e->engine) ? from->path : NULL);
}

const char *st_saver_run(const struct st_saver *s)
{
    return s->run;
}

/* --- saving --- */

/* Keeps what the committer says of the save in progress, if it has ended. */
static void take_report(struct st_saver *s)
{
    char name[ST_STORE_NAME_BYTES];
    struct st_commit_report r;

    if (s->last.done || s->is_due || !st_committer_reported(s->committer, &r))
        return;
    s->last.done = true;
    s->last.seconds = (double)(st_clock_ns() - s->begun_ns) * 1e-9;
    s->last.copied_bytes = r.copied_bytes;
    if (r.committed || r.status == STRATA_OK) {
        s->last.steps = r.step;
        st_store_name(name, r.step);
        if (st_path_join(s->path, s->save, name) == STRATA_OK)
            s->last.path = s->path;
    }
    s->status = r.status;
    snprintf(s->sentence, sizeof(s->sentence), "%s", r.sentence);
}

/* A set that no checkpoint has, and that is not in use: one that is free, or new files for one that checkpoints have.  Only once
 * all that the run has learnt lies in the set in use: until then another one may hold it still. */
static strata_status find_set(struct strata_engine *e, uint32_t *out)
{
    struct st_swap *swap = st_engine_swap(e->engine);
    const uint32_t sets = e->plan->plan->program.sets, used = st_engine_set(e->engine);
    strata_status st = STRATA_E_INTERNAL;

    for (uint32_t i = 1; i < sets; i++) {
        *out = (used + i) % sets;
        if (st_swap_reusable(swap, *out))
            return STRATA_OK;
    }
    for (uint32_t i = 1; i < sets && st != STRATA_OK; i++) {
        *out = (used + i) % sets;
        st = st_swap_renew(swap, *out);
    }
    return st;
}

static void keep_status(struct st_saver *s, strata_status st)
{
    s->status = st;
    s->last.done = true;
    snprintf(s->sentence, sizeof(s->sentence), "%s", strata_last_error());
}

/* The set in use is complete: it is handed over, and updates write to the next one.  Takes the extents. */
static strata_status hand_over(struct st_saver *s, struct strata_engine *e, struct st_extents *extents,
                               const struct st_train_state *train)
{
    struct st_commit job = {.manifest = s->due, .extents = *extents, .set = st_engine_set(e->engine)};
    uint32_t next;
    strata_status st = find_set(e, &next);

    job.manifest.train = *train;
    if (st == STRATA_OK)
        st = st_committer_submit(s->committer, &job);
    if (st != STRATA_OK) {
        st_extents_fini(&job.extents);
        return st;
    }
    st_engine_use_set(e->engine, next);
    s->due = (struct st_manifest){0};
    return STRATA_OK;
}

/* Nothing is due any more, well or not. */
static strata_status end_due(struct st_saver *s, strata_status st)
{
    s->is_due = false;
    st_manifest_fini(&s->due);
    s->due = (struct st_manifest){0};
    if (st != STRATA_OK)
        keep_status(s, st);
    return st;
}

/* Between steps: the pending update is made, and what lives in memory is written. */
static strata_status save_now(struct st_saver *s, struct strata_engine *e)
{
    const uint64_t start = st_clock_ns();
    struct st_extents extents;
    strata_status st = st_engine_save(e->engine, &extents);

    if (st == STRATA_OK)
        st = hand_over(s, e, &extents, st_engine_train_state(e->engine));
    s->last.stopped += (double)(st_clock_ns() - start) * 1e-9;
    return end_due(s, st);
}

strata_status st_saver_step(struct st_saver *s, struct strata_engine *e, const int32_t *tokens, const int32_t *targets,
                            const int32_t *positions, struct st_step_result *result)
{
    struct st_train_state train;
    struct st_extents extents;
    struct st_saved saved = {.extents = &extents, .train = &train};
    strata_status st;

    if (s->is_due && !st_engine_train_state(e->engine)->pending)
        (void)save_now(s, e); /* an evaluation came between, whose flush made the update; a failure is reported when asked for */
    if (!s->is_due)
        return st_engine_step(e->engine, tokens, targets, positions, result);
    st = st_engine_step_saving(e->engine, tokens, targets, positions, result, &saved);
    if (st == STRATA_OK && saved.status == STRATA_OK)
        saved.status = hand_over(s, e, &extents, &train);
    (void)end_due(s, st != STRATA_OK ? st : saved.status);
    return st;
}

strata_status st_saver_save(struct st_saver *s, struct strata_engine *e, struct st_manifest *m)
{
    strata_status st = STRATA_OK;

    if (s->is_due) /* of an earlier step that none has followed, or of this one */
        (void)save_now(s, e);
    if (steps_of(&m->train) == s->steps)
        st = st_error(STRATA_E_INVAL, "no step has run since the last checkpoint, or since the run began");
    if (st == STRATA_OK) {
        s->begun_ns = st_clock_ns();
        st_committer_wait(s->committer);
        take_report(s);
    }
    if (st != STRATA_OK) {
        st_manifest_fini(m);
        return st;
    }
    s->steps = steps_of(&m->train);
    s->due = *m;
    s->is_due = true;
    s->last.done = false;
    s->last.stopped = (double)(st_clock_ns() - s->begun_ns) * 1e-9;
    return m->train.pending ? STRATA_OK : save_now(s, e);
}

strata_status st_saver_ask(struct st_saver *s, struct strata_engine *e, bool wait, struct strata_saved *out)
{
    strata_status st;

    if (wait && s->is_due)
        (void)save_now(s, e);
    if (wait)
        st_committer_wait(s->committer);
    take_report(s);
    *out = s->last;
    st = s->status;
    s->status = STRATA_OK;
    return st == STRATA_OK ? STRATA_OK : st_error(st, "%s", s->sentence);
}

/* --- a checkpoint that is resumed from --- */

static strata_status open_space(struct st_checkpoint_volume **out, uint32_t *volume, struct st_swap *swap,
                                const struct st_checkpoint *ck, enum st_space space)
{
    struct st_checkpoint_volume *v = st_fault_refuses("api.resumed") ? NULL : malloc(sizeof(*v));
    strata_status st;

    if (v == NULL)
        return st_error(STRATA_E_NOMEM, "no memory for the files of a checkpoint");
    if ((st = st_checkpoint_volume_open(v, ck, space, ST_CHECKPOINT_PARTS)) != STRATA_OK) {
        free(v);
        return st;
    }
    *volume = ST_MOVER_NO_VOLUME;
    if (v->opts.bytes > 0 && (st = st_swap_attach(swap, &v->opts, volume)) != STRATA_OK) {
        st_checkpoint_volume_close(v);
        free(v);
        return st;
    }
    *out = v;
    return STRATA_OK;
}

static void close_space(struct st_checkpoint_volume **v, uint32_t volume, struct st_swap *swap)
{
    if (*v == NULL)
        return;
    if (volume != ST_MOVER_NO_VOLUME)
        st_swap_detach(swap, volume);
    st_checkpoint_volume_close(*v);
    free(*v);
    *v = NULL;
}

strata_status st_resumed_open(struct st_resumed *r, struct st_engine *engine, const struct st_checkpoint *ck)
{
    struct st_swap *swap;
    strata_status st = st_engine_reader(engine, &swap);

    if (st == STRATA_OK)
        st = open_space(&r->set, &r->volumes[ST_SPACE_SET], swap, ck, ST_SPACE_SET);
    if (st == STRATA_OK)
        st = open_space(&r->base, &r->volumes[ST_SPACE_BASE], swap, ck, ST_SPACE_BASE);
    return st;
}

void st_resumed_free(struct st_resumed *r, struct st_engine *engine)
{
    struct st_swap *swap = st_engine_swap(engine);

    if (r == NULL)
        return;
    close_space(&r->set, r->volumes[ST_SPACE_SET], swap);
    close_space(&r->base, r->volumes[ST_SPACE_BASE], swap);
    free(r);
}
