/* api/saver.c - see api/saver.h. */
#include "api/saver.h"

#include "api/saved.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/clock.h"
#include "offload/checkpoint/store.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define TELL_NS UINT64_C(1000000000) /* ranks that wait for others' parts hear of them so often, well within any deadline */

/* Ranks make a checkpoint together, round by round; what ends one they tell each other between steps. */
enum round {
    ROUND_NONE,
    ROUND_PARTS, /* every rank makes its part; at stage 0 rank 0 makes the whole */
    ROUND_JOIN,  /* rank 0 makes the checkpoint of the parts */
};

/* What a rank says before the first round, */
struct offer {
    int32_t status;
    char sentence[512], dir[ST_PATH_MAX]; /* dir: rank 0's, for the parts */
    struct st_stripe stripe;
};
/* and in each. */
struct ballot {
    int32_t status;
    bool ended, committed;
    char sentence[512];
};

struct st_saver {
    char save[ST_PATH_MAX], path[ST_PATH_MAX], run[17]; /* path: of the last checkpoint */
    const struct st_model *model;
    const char *source;    /* the directory that the model came from; NULL: a preset */
    const char *tokenizer; /* in place of its own; NULL: that */
    uint32_t keep;
    bool overwrite, made;           /* made: the directory was */
    struct st_committer *committer; /* NULL: there is no engine yet */
    uint64_t steps;                 /* applied and skipped, at the last save, or when the run began or resumed */
    uint64_t begun_ns;
    bool is_due; /* the next step saves, or whoever waits for it */
    struct st_manifest due;
    bool comes;                       /* a save will follow the next step */
    bool held;                        /* the last step has written what one needs: */
    struct st_extents held_extents;   /* where, */
    struct st_train_state held_train; /* and the run's state with it */
    struct strata_saved last;
    strata_status status; /* of the last save, until it is asked for */
    char sentence[1024];

    struct st_engine *engine;    /* borrowed from attach on */
    uint32_t rank, ranks, parts; /* of the program; parts: of a checkpoint */
    enum round round;            /* the same on every rank */
    uint64_t step;               /* that is being saved */
    bool reported;               /* this rank's part of the round has ended, so: */
    struct st_commit_report report;
    struct st_manifest joined; /* on rank 0, for the second round */
    struct offer *offers;      /* [ranks] */
    struct ballot *ballots;    /* [ranks] */
};

static uint64_t steps_of(const struct st_train_state *train)
{
    return train->steps_applied + train->steps_skipped;
}

/* Keeps how the save in progress has ended. */
static void keep_report(struct st_saver *s, const struct st_commit_report *r)
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
    s->status = r->status;
    snprintf(s->sentence, sizeof(s->sentence), "%s", r->sentence);
}

/* --- what ranks tell each other --- */

/* Tells the others whether this rank's set is complete, and rank 0 where the parts go; the same answer on every rank. */
static strata_status offer(struct st_saver *s, strata_status st)
{
    struct offer *mine = &s->offers[s->rank], failed = {0};
    strata_status told;

    *mine = (struct offer){0};
    if (st == STRATA_OK && s->rank == 0 && s->parts > 1)
        st = st_committer_begin(s->committer, s->due.step, mine->dir);
    mine->status = (int32_t)st;
    mine->stripe = *st_swap_stripe(st_engine_swap(s->engine));
    if (st != STRATA_OK)
        snprintf(mine->sentence, sizeof(mine->sentence), "%s", strata_last_error());
    told = st_engine_gather(s->engine, mine, sizeof(*mine), s->offers, "what ranks have to save");
    for (uint32_t r = 0; r < s->ranks && told == STRATA_OK; r++) {
        failed = s->offers[r];
        if (failed.status != STRATA_OK)
            told = st_error((strata_status)failed.status, "rank %u: %s", r, failed.sentence);
        else if (s->parts > 1 && !st_stripe_alike(&failed.stripe, &s->offers[0].stripe))
            told =
                st_error(STRATA_E_CONFIG,
                         "rank %u deals its swap out over its directories in another way than rank 0: ranks that save need the "
                         "same number of directories, their rates and strata.block_bytes alike",
                         r);
    }
    if (told != STRATA_OK && s->rank == 0 && s->parts > 1) {
        snprintf(failed.sentence, sizeof(failed.sentence), "%s", strata_last_error());
        st_committer_end(s->committer, s->due.step, false);
        told = st_error(told, "%s", failed.sentence);
    }
    return told;
}

/* Something that this rank could not even begin: it is told as what has ended so. */
static void report_failure(struct st_saver *s, strata_status st)
{
    s->report = (struct st_commit_report){.status = st, .step = s->step};
    snprintf(s->report.sentence, sizeof(s->report.sentence), "%s", strata_last_error());
    s->reported = true;
}

/* Takes the extents. */
static void begin_round(struct st_saver *s, struct st_extents *extents)
{
    struct st_commit job = {
        .what = s->parts > 1 ? ST_COMMIT_PART : ST_COMMIT_ALL, .extents = *extents, .set = st_engine_set(s->engine)};
    strata_status st = STRATA_OK;

    s->round = ROUND_PARTS;
    s->report = (struct st_commit_report){.step = s->step};
    s->reported = s->committer == NULL;
    if (s->parts > 1) {
        job.manifest.step = s->step;
        memcpy(job.manifest.space_bytes, s->due.space_bytes, sizeof(job.manifest.space_bytes));
        memcpy(job.dir, s->offers[0].dir, sizeof(job.dir));
        s->joined = s->due; /* rank 0's is used */
    } else {
        job.manifest = s->due;
    }
    s->due = (struct st_manifest){0};
    if (s->committer != NULL && (st = st_committer_submit(s->committer, &job)) != STRATA_OK)
        report_failure(s, st);
    st_manifest_fini(&job.manifest); /* taken, but for a failure, and where nothing is to be done */
    st_extents_fini(&job.extents);
}

/* All parts are there. */
static void begin_join(struct st_saver *s)
{
    struct st_commit job = {.what = ST_COMMIT_JOIN, .manifest = s->joined};
    strata_status st;

    s->round = ROUND_JOIN;
    s->reported = s->rank != 0;
    if (s->rank != 0)
        return;
    if ((st = st_committer_submit(s->committer, &job)) != STRATA_OK)
        report_failure(s, st);
    s->joined = job.manifest;
}

/* The checkpoint has ended so, as rank `r` says. */
static void end_rounds(struct st_saver *s, uint32_t r)
{
    const struct ballot *b = &s->ballots[r];
    struct st_commit_report report = {
        .status = (strata_status)b->status, .committed = b->committed, .step = s->step, .copied_bytes = s->report.copied_bytes};

    if (b->status != STRATA_OK)
        snprintf(report.sentence, sizeof(report.sentence), "rank %u: %s", r, b->sentence);
    s->round = ROUND_NONE;
    if (s->parts > 1)
        st_committer_end(s->committer, s->step, b->committed);
    st_manifest_fini(&s->joined);
    s->joined = (struct st_manifest){0};
    keep_report(s, &report);
}

/* Everybody says how it is; true: the round has ended on all of them. */
static bool all_ended(const struct st_saver *s, uint32_t *failed)
{
    bool ended = true;

    *failed = s->ranks;
    for (uint32_t r = s->ranks; r > 0; r--) {
        ended = ended && s->ballots[r - 1].ended;
        if (s->ballots[r - 1].status != STRATA_OK)
            *failed = r - 1;
    }
    return ended;
}

static strata_status take_rounds(struct st_saver *s, bool wait)
{
    strata_status st = STRATA_OK;
    bool again = true;

    while (s->round != ROUND_NONE && again && st == STRATA_OK) {
        struct ballot mine = {0};
        uint32_t failed;

        if (wait && s->committer != NULL)
            st_committer_wait_for(s->committer, TELL_NS);
        if (!s->reported)
            s->reported = st_committer_reported(s->committer, &s->report);
        if (s->reported) {
            mine = (struct ballot){.ended = true, .status = (int32_t)s->report.status, .committed = s->report.committed};
            snprintf(mine.sentence, sizeof(mine.sentence), "%.*s", (int)sizeof(mine.sentence) - 1, s->report.sentence);
        }
        st = st_engine_gather(s->engine, &mine, sizeof(mine), s->ballots, "how far ranks have saved");
        again = wait;
        if (st != STRATA_OK || !all_ended(s, &failed))
            continue;
        if (s->round == ROUND_PARTS && failed == s->ranks && s->parts > 1)
            begin_join(s);
        else
            end_rounds(s, failed < s->ranks ? failed : 0);
    }
    return st;
}

/* Every rank's run has rank 0's name. */
static strata_status share_run(struct st_saver *s)
{
    struct ballot mine = {0};
    strata_status st;

    snprintf(mine.sentence, sizeof(mine.sentence), "%s", s->run);
    st = st_engine_gather(s->engine, &mine, sizeof(mine), s->ballots, "the name of a run");
    snprintf(s->run, sizeof(s->run), "%.16s", s->ballots[0].sentence);
    return st;
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
    s->tokenizer = st_handle_tokenizer(model);
    s->last.done = true;
    st = make_directory(s);
    if (st == STRATA_OK)
        *out = s;
    else
        free(s);
    return st;
}

static void drop_held(struct st_saver *s)
{
    if (s->held)
        st_extents_fini(&s->held_extents);
    s->held = false;
}

void st_saver_close(struct st_saver *s)
{
    if (s == NULL)
        return;
    if (s->round != ROUND_NONE)
        (void)take_rounds(s, true);
    drop_held(s);
    st_manifest_fini(&s->due);
    st_manifest_fini(&s->joined);
    st_committer_stop(s->committer);
    free(s->offers);
    free(s->ballots);
    if (s->made && !st_fault_refuses("api.save_dir_end"))
        (void)rmdir(s->save); /* stays if there is anything in it */
    free(s);
}

static strata_status write_model(void *ctx, const char *dir)
{
    const struct st_saver *s = ctx;

    return st_hf_write_small(s->model, dir, s->source, s->tokenizer);
}

static strata_status start_committer(struct st_saver *s)
{
    if (s->ranks > 1) {
        s->offers = st_fault_refuses("api.saver") ? NULL : calloc(s->ranks, sizeof(*s->offers));
        s->ballots = calloc(s->ranks, sizeof(*s->ballots));
        if (s->offers == NULL || s->ballots == NULL)
            return st_error(STRATA_E_NOMEM, "no memory for saving");
    }
    if (s->rank >= s->parts) /* another rank saves all that this one has */
        return STRATA_OK;
    return st_committer_start(&s->committer, &(struct st_committer_opts){.save = s->save,
                                                                         .keep = s->keep,
                                                                         .overwrite = s->overwrite,
                                                                         .swap = st_engine_swap(s->engine),
                                                                         .model = write_model,
                                                                         .ctx = s,
                                                                         .parts = s->parts,
                                                                         .part = s->rank});
}

strata_status st_saver_attach(struct st_saver *s, struct strata_engine *e)
{
    const struct st_program *program = &e->plan->plan->program;

    s->engine = e->engine;
    s->rank = program->rank;
    s->ranks = program->ranks;
    s->parts = st_program_cuts(program);
    return st_engine_agree(s->engine, start_committer(s), "the beginning of saving");
}

static strata_status begin(struct st_saver *s, const struct st_checkpoint *from, const struct st_resumed *adopted)
{
    const struct st_checkpoint_volume *base;

    if (from == NULL) {
        const strata_status st = s->committer != NULL ? st_committer_use_base(s->committer, NULL, 0) : STRATA_OK;

        return st == STRATA_OK ? st_saved_name_run(s->run) : st;
    }
    memcpy(s->run, from->manifest.run, sizeof(s->run));
    if (s->committer == NULL)
        return STRATA_OK;
    if (s->rank == 0 && st_committer_tidy(s->committer, s->run, from->manifest.step) != STRATA_OK)
        st_log(ST_LOG_WARN, "%s", strata_last_error());
    base = adopted == NULL ? NULL : s->parts > 1 ? adopted->own[ST_SPACE_BASE].files : adopted->all[ST_SPACE_BASE].files;
    return base != NULL ? st_committer_use_base(s->committer, base->files, base->count)
                        : st_committer_use_base(s->committer, NULL, 0);
}

strata_status st_saver_begin(struct st_saver *s, const struct st_checkpoint *from, const struct st_resumed *adopted)
{
    strata_status st;

    assert(!s->is_due && s->round == ROUND_NONE); /* it has settled: the state of the run before is gone */
    drop_held(s);
    s->comes = false;
    s->steps = steps_of(st_engine_train_state(s->engine));
    st = st_engine_agree(s->engine, begin(s, from, adopted), "the name of a run");
    return st == STRATA_OK && s->ranks > 1 ? share_run(s) : st;
}

const char *st_saver_run(const struct st_saver *s)
{
    return s->run;
}

/* --- saving --- */

/* Keeps what the committer says of the save in progress, if it has ended. */
static void take_report(struct st_saver *s)
{
    struct st_commit_report r;

    if (s->ranks == 1 && !s->last.done && !s->is_due && st_committer_reported(s->committer, &r))
        keep_report(s, &r);
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
static strata_status hand_over_alone(struct st_saver *s, struct strata_engine *e, struct st_extents *extents,
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

/* Each rank's set is complete if it says so: they are handed over if all are. */
static strata_status hand_over(struct st_saver *s, struct strata_engine *e, strata_status st, struct st_extents *extents,
                               const struct st_train_state *train)
{
    uint32_t next = 0;

    if (s->ranks == 1)
        return st == STRATA_OK ? hand_over_alone(s, e, extents, train) : st;
    if (st != STRATA_OK)
        *extents = (struct st_extents){0};
    else
        st = find_set(e, &next);
    if ((st = offer(s, st)) != STRATA_OK) {
        st_extents_fini(extents);
        return st;
    }
    s->step = s->due.step;
    s->due.train = *train;
    begin_round(s, extents);
    st_engine_use_set(e->engine, next);
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

/* Between steps: the pending update is made, and what lives in memory is written, if the last step has not done that. */
static strata_status save_now(struct st_saver *s, struct strata_engine *e)
{
    const uint64_t start = st_clock_ns();
    struct st_extents extents = s->held_extents;
    strata_status st = s->held ? STRATA_OK : st_engine_save(e->engine, &extents);

    st = hand_over(s, e, st, &extents, s->held ? &s->held_train : st_engine_train_state(e->engine));
    s->held = false;
    s->last.stopped += (double)(st_clock_ns() - start) * 1e-9;
    return end_due(s, st);
}

void st_saver_comes(struct st_saver *s, const struct strata_engine *e)
{
    s->comes = !st_program_gated(&e->plan->plan->program);
}

bool st_saver_is_due(const struct st_saver *s)
{
    return s->is_due;
}

/* A step that a save will follow; where it cannot write what that needs, the save does. */
static strata_status step_before_save(struct st_saver *s, struct strata_engine *e, const int32_t *tokens, const int32_t *targets,
                                      const int32_t *positions, struct st_step_result *result)
{
    struct st_saved saved = {.extents = &s->held_extents, .train = &s->held_train};
    const strata_status st = st_engine_step_saving(e->engine, tokens, targets, positions, result, &saved);

    s->held = st == STRATA_OK && saved.status == STRATA_OK;
    return st == STRATA_OK ? take_rounds(s, false) : st;
}

strata_status st_saver_step(struct st_saver *s, struct strata_engine *e, const int32_t *tokens, const int32_t *targets,
                            const int32_t *positions, struct st_step_result *result)
{
    const bool comes = s->comes;
    struct st_train_state train;
    struct st_extents extents;
    struct st_saved saved = {.extents = &extents, .train = &train};
    strata_status st;

    if (s->is_due && !st_engine_train_state(e->engine)->pending)
        (void)save_now(s, e); /* an evaluation came between, whose flush made the update; a failure is reported when asked for */
    drop_held(s);
    s->comes = false;
    if (!s->is_due && comes)
        return step_before_save(s, e, tokens, targets, positions, result);
    if (!s->is_due) {
        st = st_engine_step(e->engine, tokens, targets, positions, result);
        return st == STRATA_OK ? take_rounds(s, false) : st;
    }
    st = st_engine_step_saving(e->engine, tokens, targets, positions, result, &saved);
    if (st == STRATA_OK)
        saved.status = hand_over(s, e, saved.status, &extents, &train);
    (void)end_due(s, st != STRATA_OK ? st : saved.status);
    return st;
}

/* Until the save in progress has ended, if there is one. */
static strata_status wait_for_last(struct st_saver *s)
{
    const strata_status st = take_rounds(s, true);

    if (s->ranks == 1)
        st_committer_wait(s->committer);
    take_report(s);
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
        st = wait_for_last(s);
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

/* What no step has made yet is made now, and ends; a failure is reported when asked for. */
static strata_status make_due(struct st_saver *s, struct strata_engine *e)
{
    if (s->is_due)
        (void)save_now(s, e);
    return wait_for_last(s);
}

strata_status st_saver_settle(struct strata_engine *e)
{
    const strata_status st = e->saver != NULL ? make_due(e->saver, e) : STRATA_OK;

    return st == STRATA_OK ? st_engine_ended(e->engine) : st;
}

strata_status st_saver_ask(struct st_saver *s, struct strata_engine *e, bool wait, struct strata_saved *out)
{
    strata_status st;

    if (wait && (st = make_due(s, e)) != STRATA_OK)
        return st;
    take_report(s);
    *out = s->last;
    st = s->status;
    s->status = STRATA_OK;
    return st == STRATA_OK ? STRATA_OK : st_error(st, "%s", s->sentence);
}
