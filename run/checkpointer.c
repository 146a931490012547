/* run/checkpointer.c - see run/checkpointer.h. */
#include "run/checkpointer_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/system/cleanup.h"
#include "core/system/clock.h"
#include "offload/checkpoint/store.h"
#include "run/resume_volumes.h"
#include "run/run_describe.h"
#include "run/save_rule.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NO_STEPS UINT64_MAX /* the last save failed: it may be made again */

static uint64_t steps_of(const struct st_train_state *train)
{
    return train->steps_applied + train->steps_skipped;
}

void st_checkpointer_keep_report(struct st_checkpointer *s, const struct st_commit_report *r)
{
    char name[ST_STORE_NAME_BYTES];

    s->last.done = true;
    s->last.seconds = (double)(st_clock_ns() - s->begun_ns) * 1e-9;
    s->last.copied_bytes = r->copied_bytes;
    if (r->committed || r->status == STRATA_OK) {
        s->last.steps = r->step;
        st_store_name(name, r->step);
        if (st_path_join(s->path, s->save, name) == STRATA_OK)
            s->last.path = s->path;
    }
    if (r->status != STRATA_OK && !r->committed)
        s->steps = NO_STEPS;
    s->status = r->status;
    s->told = false;
    s->whole = r->committed;
    s->sentence = r->sentence;
}

/* --- a run that saves --- */

/* As mkdir() says. */
static strata_status cannot_make(const char *save, int err)
{
    char above[ST_PATH_MAX], word[ST_PATH_MAX];
    strata_status st;

    if (err != ENOENT)
        return st_error_key(st_error_errno(err, "strata.save %s", save), "strata.save");
    if ((st = st_path_dir(above, save)) != STRATA_OK)
        return st;
    return st_error_remedy(st_error(STRATA_E_INPUT, "strata.save %s: its parent directory is missing", save), "strata.save",
                           "mkdir -p %s makes one", st_text_shell(word, sizeof(word), above));
}

strata_status st_checkpointer_check_place(const char *dir)
{
    char save[ST_PATH_MAX], above[ST_PATH_MAX];
    struct stat info;
    strata_status st = st_path_copy(save, dir);

    if (st != STRATA_OK)
        return st;
    save[st_path_length(save)] = '\0';
    if (!st_fault_refuses("run.save_place") && stat(save, &info) == 0)
        return S_ISDIR(info.st_mode) ? STRATA_OK : cannot_make(save, ENOTDIR);
    if (errno != ENOENT)
        return cannot_make(save, errno);
    if ((st = st_path_dir(above, save)) != STRATA_OK)
        return st;
    return !st_fault_refuses("run.save_place") && access(above, W_OK | X_OK) == 0 ? STRATA_OK : cannot_make(save, errno);
}

/* Removes the directory if this run made it and it is empty. */
static void remove_directory(void *checkpointer)
{
    const struct st_checkpointer *s = checkpointer;

    if (s->made && !st_fault_refuses("run.save_dir_end"))
        (void)rmdir(s->save);
}

static strata_status make_directory(struct st_checkpointer *s)
{
    int err = 0;

    st_cleanup_hold();
    if (st_fault_refuses("run.save_dir") || mkdir(s->save, 0777) != 0)
        err = errno;
    s->made = err == 0;
    st_cleanup_add(&s->cleanup, remove_directory, s);
    st_cleanup_release();
    return err == 0 || err == EEXIST ? STRATA_OK : cannot_make(s->save, err);
}

strata_status st_checkpointer_open(struct st_checkpointer **out, struct st_run *run, bool overwrite)
{
    struct st_checkpointer *s;
    strata_status st;

    if (strcmp(run->config->io_method, "fake") == 0)
        return st_error(STRATA_E_CONFIG, "strata.save needs files, which strata.io_method \"fake\" does not make");
    if (run->directory != NULL && !st_text_is_utf8(run->directory)) /* escaped, it would name something else */
        return st_error(STRATA_E_INPUT, "%s: the name is not UTF-8, as a checkpoint needs it: give a link to it", run->directory);
    s = st_fault_refuses("run.checkpointer") ? NULL : calloc(1, sizeof(*s));
    if (s == NULL)
        return st_nomem(sizeof(*s));
    s->run = run;
    snprintf(s->save, sizeof(s->save), "%s", run->config->save);
    s->overwrite = overwrite;
    s->last.done = true;
    st = make_directory(s);
    if (st == STRATA_OK)
        *out = s;
    else
        st_checkpointer_close(s);
    return st;
}

static void drop_held(struct st_checkpointer *s)
{
    if (s->held)
        st_extents_fini(&s->held_extents);
    s->held = false;
}

void st_checkpointer_stop(struct st_checkpointer *s)
{
    if (s == NULL)
        return;
    if (s->round != ST_SAVE_ROUND_NONE)
        (void)st_checkpointer_take_rounds(s, true);
    drop_held(s);
    st_manifest_fini(&s->due);
    st_manifest_fini(&s->joined);
    st_committer_stop(s->committer);
    s->committer = NULL;
}

void st_checkpointer_close(struct st_checkpointer *s)
{
    if (s == NULL)
        return;
    free(s->offers);
    free(s->ballots);
    st_cleanup_hold();
    st_cleanup_drop(&s->cleanup);
    remove_directory(s);
    st_cleanup_release();
    free(s);
}

static strata_status write_model(void *ctx, const char *dir)
{
    const struct st_run *run = ctx;

    return st_hf_write_small(run->model, dir, run->directory, run->instead);
}

static strata_status start_committer(struct st_checkpointer *s)
{
    strata_status st;

    if (s->ranks > 1) {
        s->offers = st_fault_refuses("run.checkpointer") ? NULL : calloc(s->ranks, sizeof(*s->offers));
        s->ballots = calloc(s->ranks, sizeof(*s->ballots));
        if (s->offers == NULL || s->ballots == NULL)
            return st_nomem(0);
    }
    if (s->rank >= s->parts) /* another rank saves all that this one has */
        return STRATA_OK;
    st = st_committer_start(&s->committer, &(struct st_committer_opts){.save = s->save,
                                                                       .keep = s->run->config->keep,
                                                                       .keep_best = s->run->config->keep_best,
                                                                       .overwrite = s->overwrite,
                                                                       .swap = st_engine_swap(s->run->engine),
                                                                       .model = s->run->model != NULL ? write_model : NULL,
                                                                       .ctx = s->run,
                                                                       .parts = s->parts,
                                                                       .part = s->rank});
    return st == STRATA_OK ? st_committer_keep_model(s->committer) : st;
}

/* Where the run saves, and whether this rank has made it. */
struct made {
    uint64_t device, inode;
    bool made;
};

/* The last rank that leaves a directory that one of them has made removes it, if it is empty. */
static strata_status share_made(struct st_checkpointer *s)
{
    struct made mine = {.made = s->made}, *all = st_fault_refuses("run.checkpointer") ? NULL : calloc(s->ranks, sizeof(*all));
    struct stat info;
    strata_status st = all != NULL ? STRATA_OK : st_nomem(s->ranks * sizeof(*all));

    if (stat(s->save, &info) == 0)
        mine = (struct made){.device = info.st_dev, .inode = info.st_ino, .made = s->made};
    st = st_engine_agree(s->run->engine, st, "the memory for saving");
    if (st == STRATA_OK)
        st = st_engine_gather(s->run->engine, &mine, sizeof(mine), all, "who has made the directory of checkpoints");
    st_cleanup_lock();
    for (uint32_t r = 0; r < s->ranks && st == STRATA_OK; r++)
        s->made = s->made || (all[r].made && all[r].device == mine.device && all[r].inode == mine.inode);
    st_cleanup_unlock();
    free(all);
    return st;
}

strata_status st_checkpointer_attach(struct st_checkpointer *s)
{
    const struct st_program *program = s->run->program;
    strata_status st;

    s->rank = program->rank;
    s->ranks = program->ranks;
    s->parts = st_program_cuts(program);
    st = st_engine_agree(s->run->engine, start_committer(s), "the beginning of saving");
    if (st == STRATA_OK && s->ranks > 1)
        st = share_made(s);
    return st == STRATA_OK && s->parts > 1 ? st_checkpointer_rehearse(s) : st;
}

static strata_status begin(struct st_checkpointer *s, const struct st_checkpoint *from)
{
    const struct st_resume_volumes *adopted = s->run->resumed;
    const struct st_checkpoint_volume *base;

    if (from == NULL) {
        const strata_status st = s->committer != NULL ? st_committer_use_base(s->committer, NULL, 0) : STRATA_OK;

        return st == STRATA_OK ? st_run_draw_name(s->name) : st;
    }
    memcpy(s->name, from->manifest.run, sizeof(s->name));
    if (s->committer == NULL)
        return STRATA_OK;
    if (s->rank == 0 && st_committer_tidy(s->committer, s->name, from->manifest.step) != STRATA_OK)
        st_log(ST_LOG_WARN, "%s", strata_last_error());
    base = adopted == NULL ? NULL : s->parts > 1 ? adopted->own[ST_SPACE_BASE].files : adopted->all[ST_SPACE_BASE].files;
    return base != NULL ? st_committer_use_base(s->committer, base->files, base->count)
                        : st_committer_use_base(s->committer, NULL, 0);
}

strata_status st_checkpointer_begin(struct st_checkpointer *s, const struct st_checkpoint *from)
{
    strata_status st;

    assert(!s->is_due && s->round == ST_SAVE_ROUND_NONE); /* it has settled: the state of the run before is gone */
    drop_held(s);
    s->steps = steps_of(st_engine_train_state(s->run->engine));
    st = st_engine_agree(s->run->engine, begin(s, from), "the name of a run");
    return st == STRATA_OK && s->ranks > 1 ? st_checkpointer_share_run(s) : st;
}

const char *st_checkpointer_run(const struct st_checkpointer *s)
{
    return s->name;
}

/* --- saving --- */

/* Keeps what the committer says of the save in progress, if it has ended. */
static void take_report(struct st_checkpointer *s)
{
    struct st_commit_report r;

    if (s->ranks == 1 && !s->last.done && !s->is_due && st_committer_reported(s->committer, &r))
        st_checkpointer_keep_report(s, &r);
}

/* A set that no checkpoint has, and that is not in use: one that is free, or new files for one that checkpoints have.  Only once
 * all that the run has learnt lies in the set in use: until then another one may hold it still. */
static strata_status find_set(const struct st_run *run, uint32_t *out)
{
    struct st_swap *swap = st_engine_swap(run->engine);
    const uint32_t sets = run->program->sets, used = st_engine_set(run->engine);
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

static void keep_status(struct st_checkpointer *s, strata_status st)
{
    s->status = st;
    s->told = s->whole = false;
    s->steps = NO_STEPS;
    s->last.done = true;
    st_error_keep(&s->sentence);
}

/* The set in use is complete: it is handed over, and updates write to the next one.  Takes the extents. */
static strata_status hand_over_alone(struct st_checkpointer *s, struct st_extents *extents, const struct st_train_state *train)
{
    struct st_run *run = s->run;
    struct st_commit job = {.manifest = s->due, .extents = *extents, .set = st_engine_set(run->engine)};
    uint32_t next;
    strata_status st;

    job.manifest.train = *train;
    st_resume_volumes_drop_set(run->resumed, run->engine);
    st = find_set(run, &next);
    if (st == STRATA_OK)
        st = st_committer_submit(s->committer, &job);
    if (st != STRATA_OK) {
        st_extents_fini(&job.extents);
        return st;
    }
    st_engine_use_set(run->engine, next);
    s->due = (struct st_manifest){0};
    return STRATA_OK;
}

/* Each rank's set is complete if it says so: they are handed over if all are. */
static strata_status hand_over(struct st_checkpointer *s, strata_status st, struct st_extents *extents,
                               const struct st_train_state *train)
{
    struct st_run *run = s->run;
    uint32_t next = 0;

    if (s->ranks == 1)
        return st == STRATA_OK ? hand_over_alone(s, extents, train) : st;
    if (st != STRATA_OK) {
        *extents = (struct st_extents){0};
    } else {
        st_resume_volumes_drop_set(run->resumed, run->engine);
        st = find_set(run, &next);
    }
    if ((st = st_checkpointer_offer(s, st, train)) != STRATA_OK) {
        st_extents_fini(extents);
        return st;
    }
    s->step = s->due.step;
    st_checkpointer_begin_round(s, extents);
    st_engine_use_set(run->engine, next);
    return STRATA_OK;
}

/* Nothing is due any more, well or not. */
static strata_status end_due(struct st_checkpointer *s, strata_status st)
{
    s->is_due = false;
    st_manifest_fini(&s->due);
    s->due = (struct st_manifest){0};
    if (st != STRATA_OK)
        keep_status(s, st);
    return st;
}

/* Between steps: the pending update is made, and what lives in memory is written, if the last step has not done that. */
static strata_status save_now(struct st_checkpointer *s)
{
    const uint64_t start = st_clock_ns();
    struct st_extents extents = s->held_extents;
    strata_status st = s->held ? STRATA_OK : st_engine_save(s->run->engine, &extents);

    st = hand_over(s, st, &extents, s->held ? &s->held_train : st_engine_train_state(s->run->engine));
    s->held = false;
    s->last.stopped += (double)(st_clock_ns() - start) * 1e-9;
    return end_due(s, st);
}

void st_checkpointer_set_rule(struct st_checkpointer *s, const struct strata_save_rule *rule)
{
    s->rule = *rule;
}

bool st_checkpointer_due(struct st_checkpointer *s, bool asked)
{
    const uint64_t steps = steps_of(st_engine_train_state(s->run->engine));

    take_report(s);
    return steps != s->steps && (asked || st_save_rule_due(&s->rule, steps));
}

/* Whether the next step may write what a save after it needs. */
static bool save_may_follow(const struct st_checkpointer *s)
{
    const uint64_t step = steps_of(st_engine_train_state(s->run->engine)) + 1;

    return !st_program_gated(s->run->program) && st_save_rule_may_follow(&s->rule, step, s->run->config->keep_best > 0);
}

bool st_checkpointer_is_due(const struct st_checkpointer *s)
{
    return s->is_due;
}

struct st_saved *st_checkpointer_begin_step(struct st_checkpointer *s)
{
    s->comes = save_may_follow(s);
    if (s->is_due && !st_engine_train_state(s->run->engine)->pending)
        (void)save_now(s); /* an evaluation came between, whose flush made the update; a failure is reported when asked for */
    s->saved = (struct st_saved){.extents = &s->extents, .train = &s->train};
    return s->is_due || s->comes ? &s->saved : NULL;
}

strata_status st_checkpointer_end_step(struct st_checkpointer *s, strata_status st)
{
    if (st != STRATA_OK && st_engine_goes_on(s->run->engine))
        return st; /* refused, nothing has run: a save is due or held as before */
    drop_held(s);
    if (s->is_due) {
        if (st == STRATA_OK)
            s->saved.status = hand_over(s, s->saved.status, &s->extents, &s->train);
        (void)end_due(s, st != STRATA_OK ? st : s->saved.status);
        return st;
    }
    s->held = s->comes && st == STRATA_OK && s->saved.status == STRATA_OK; /* else the save writes what it needs */
    if (s->held) {
        s->held_extents = s->extents;
        s->held_train = s->train;
    }
    return st == STRATA_OK ? st_checkpointer_take_rounds(s, false) : st;
}

strata_status st_checkpointer_step(struct st_checkpointer *s, const int32_t *tokens, const int32_t *targets,
                                   const int32_t *positions, struct st_step_result *result)
{
    struct st_saved *saved = st_checkpointer_begin_step(s);
    struct st_engine *engine = s->run->engine;

    return st_checkpointer_end_step(s, saved != NULL ? st_engine_step_saving(engine, tokens, targets, positions, result, saved)
                                                     : st_engine_step(engine, tokens, targets, positions, result));
}

void st_checkpointer_before_write(struct st_checkpointer *s)
{
    if (s->is_due)
        (void)save_now(s); /* a failure is reported when asked for */
    drop_held(s);
}

/* Until the save in progress has ended, if there is one. */
static strata_status wait_for_last(struct st_checkpointer *s)
{
    const strata_status st = st_checkpointer_take_rounds(s, true);

    if (s->ranks == 1)
        st_committer_wait(s->committer);
    take_report(s);
    return st;
}

strata_status st_checkpointer_save(struct st_checkpointer *s, struct st_manifest *m)
{
    strata_status st = STRATA_OK;

    if (s->is_due) /* of an earlier step that none has followed, or of this one */
        (void)save_now(s);
    if (steps_of(&m->train) == s->steps)
        st = st_error(STRATA_E_INVAL, "no step has run since the last checkpoint, or since the run began");
    if (st == STRATA_OK) {
        s->begun_ns = st_clock_ns();
        st = wait_for_last(s);
        st_checkpointer_tell(s);
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
    if (m->train.pending)
        return STRATA_OK;
    st = save_now(s);
    s->told = st != STRATA_OK;
    return st;
}

void st_checkpointer_tell(struct st_checkpointer *s)
{
    if (s->status != STRATA_OK && !s->told)
        st_log(ST_LOG_WARN, "the last checkpoint %s: %s", s->whole ? "is whole, but what follows it has failed" : "was not made",
               s->sentence.text);
    s->status = STRATA_OK;
}

strata_status st_checkpointer_wait(struct st_checkpointer *s)
{
    if (s->is_due)
        (void)save_now(s);
    return wait_for_last(s);
}

strata_status st_checkpointer_check_due(const struct st_checkpointer *s, const char *function)
{
    if (s == NULL || !s->is_due)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "%s: a save waits for the next step: strata_engine_saved() makes it now, if told to wait",
                    function);
}

strata_status st_checkpointer_settle(struct st_run *run)
{
    const strata_status st = run->checkpointer != NULL ? wait_for_last(run->checkpointer) : STRATA_OK;

    return st == STRATA_OK ? st_engine_ended(run->engine) : st;
}

strata_status st_checkpointer_ask(struct st_checkpointer *s, bool wait, struct strata_saved *out)
{
    strata_status st;

    if (wait && (st = st_checkpointer_wait(s)) != STRATA_OK)
        return st;
    take_report(s);
    *out = s->last;
    st = s->status;
    s->status = STRATA_OK;
    return st == STRATA_OK ? STRATA_OK : st_error_again(st, &s->sentence);
}
