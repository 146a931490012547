/* api/door_checkpoint.c - strata/checkpoint.h: saving a run, and going on from what was saved. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/base/text.h"
#include "core/json/json.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/store.h"
#include "run/checkpointer.h"
#include "run/resume.h"
#include "run/resume_compare.h"
#include "run/run_describe.h"
#include "strata/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define METRICS_BYTES_MOST (UINT64_C(1) << 53) /* a checkpoint's numbers are JSON's */

struct strata_checkpoint {
    struct st_checkpoint *checkpoint;
};

/* What a checkpoint is to say of the data, or is compared with. */
static strata_status check_order(const struct strata_data *data, uint32_t order, const char *function)
{
    if (data == NULL || order <= STRATA_DATA_EPOCHS_IN_ORDER)
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "%s: data_order: %u is not an order", function, order);
}

/* --- what there is --- */

static void note_skipped(void *ctx, const char *path, const char *sentence)
{
    (void)ctx;
    (void)path;
    st_log(ST_LOG_WARN, "%s: taking an older checkpoint", sentence);
}

strata_status strata_checkpoint_open(struct strata_checkpoint **checkpoint, const char *path)
{
    struct strata_checkpoint *c;
    strata_status st;

    if (checkpoint == NULL || path == NULL)
        return st_error_missing(__func__, checkpoint == NULL ? "checkpoint" : "path");
    c = st_fault_refuses("api.checkpoint") ? NULL : calloc(1, sizeof(*c));
    if (c == NULL)
        return st_nomem(sizeof(*c));
    st = st_checkpoint_find(&c->checkpoint, path, note_skipped, NULL);
    if (st == STRATA_OK)
        *checkpoint = c;
    else
        free(c);
    return st;
}

static uint64_t bytes_of(const struct st_manifest *m)
{
    uint64_t bytes = m->extents_bytes;

    for (uint32_t i = 0; i < m->file_count; i++)
        bytes += m->files[i].bytes;
    return bytes;
}

/* Checkpoints of the same run in the same directory up to this one, which are those that make room for what a run that goes on
 * from it makes; one that cannot be read does not count. */
static uint32_t count_kept(const struct st_checkpoint *ck)
{
    char dir[ST_PATH_MAX], name[ST_STORE_NAME_BYTES], at[ST_PATH_MAX], path[ST_PATH_MAX];
    struct st_store_list list;
    uint32_t kept = 0;

    if (st_path_join(dir, ck->path, "..") != STRATA_OK || st_store_list(&list, dir) != STRATA_OK)
        return 0;
    for (uint32_t i = 0; i < list.count; i++) {
        struct st_manifest m;

        st_store_name(name, list.steps[i]);
        if (list.steps[i] > ck->manifest.step || st_path_join(at, dir, name) != STRATA_OK ||
            st_path_join(path, at, ST_MANIFEST_NAME) != STRATA_OK || st_manifest_read(&m, path) != STRATA_OK)
            continue;
        kept += strcmp(m.run, ck->manifest.run) == 0;
        st_manifest_fini(&m);
    }
    free(list.steps);
    return kept;
}

/* 0: the configuration does not say, or is not one; a run that resumes finds out. */
static uint32_t batch_of(const char *config)
{
    st_json *root;
    const st_json *n = NULL;
    uint64_t batch = 0;

    if (st_json_parse(&root, config, strlen(config), "the checkpoint's configuration") != STRATA_OK)
        return 0;
    n = st_json_get(root, "train_batch_size");
    if (n == NULL || st_json_u64(n, &batch) == 0 || batch > UINT32_MAX)
        batch = 0;
    st_json_free(root);
    return (uint32_t)batch;
}

strata_status strata_checkpoint_get_info(const struct strata_checkpoint *checkpoint, struct strata_checkpoint_info *info)
{
    struct strata_checkpoint_info i = {0};
    const struct st_manifest *m;

    if (checkpoint == NULL || info == NULL)
        return st_error_missing(__func__, checkpoint == NULL ? "checkpoint" : "info");
    m = &checkpoint->checkpoint->manifest;
    i.path = checkpoint->checkpoint->path;
    i.model = st_run_began_with(m);
    i.config = m->config;
    i.steps = m->train.steps_applied;
    i.skipped_steps = m->train.steps_skipped;
    i.sequences = m->data_position;
    i.metrics_bytes = m->metrics_bytes;
    i.bytes = bytes_of(m);
    i.step_sequences = batch_of(m->config);
    i.leaves = m->leaves;
    i.run = m->run;
    i.date = m->data_date;
    i.eval_due = m->eval_due;
    i.note = m->note;
    i.kept = count_kept(checkpoint->checkpoint);
    return st_handle_result(info, &i, sizeof(i), "strata_checkpoint_info");
}

void strata_checkpoint_close(struct strata_checkpoint *checkpoint)
{
    if (checkpoint == NULL)
        return;
    st_checkpoint_close(checkpoint->checkpoint);
    free(checkpoint);
}

/* --- resuming --- */

static strata_status watch(void *ctx, uint64_t done, uint64_t total)
{
    return st_handle_watch(ctx, "reading the checkpoint", done, total);
}

/* A save of this engine has ended meanwhile: it may have replaced the checkpoint, or that one was the oldest. */
static strata_status compare(const struct strata_engine *e, const struct st_checkpoint *ck, const struct strata_resume_opts *o,
                             bool *rescales)
{
    struct st_run_data data;
    strata_status st = st_checkpoint_still_there(ck);

    if (st != STRATA_OK || (st = st_handle_identify(&data, o->data)) != STRATA_OK)
        return st;
    data.seed = o->data_seed;
    data.order = o->data_order;
    st = st_resume_compare(&ck->manifest, ck->path, &e->run, &data, rescales);
    free(data.files);
    return st;
}

static strata_status resume(struct strata_engine *e, const struct strata_checkpoint *checkpoint,
                            const struct strata_resume_opts *o)
{
    const struct st_checkpoint *ck = checkpoint->checkpoint;
    bool rescales = false;
    strata_status st;

    if (e->plan->model->use != STRATA_USE_TRAIN)
        return st_error(STRATA_E_INVAL, "strata_engine_resume: the model was opened for another use than training");
    if ((st = check_order(o->data, o->data_order, "strata_engine_resume")) != STRATA_OK ||
        (st = st_checkpointer_check_due(e->run.checkpointer, "strata_engine_resume")) != STRATA_OK)
        return st;
    st = st_checkpointer_settle(&e->run);
    if (st == STRATA_OK)
        st = st_run_agree_checkpoint(&e->run, &ck->manifest);
    if (st == STRATA_OK)
        st = st_engine_agree(e->run.engine, compare(e, ck, o, &rescales), "a checkpoint's description");
    if (st != STRATA_OK)
        return st; /* nothing has changed */
    st = st_run_resume(&e->run, ck, rescales, &e->loaded, watch, e->plan->model);
    if (st == STRATA_OK || !e->loaded)
        e->lr_set = false; /* it has the configuration's schedule */
    return st;
}

strata_status strata_engine_resume(struct strata_engine *engine, const struct strata_checkpoint *checkpoint,
                                   const struct strata_resume_opts *opts)
{
    struct strata_resume_opts o;
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_resume_opts");

    if (st != STRATA_OK || (st = st_handle_enter(engine, __func__, ST_HANDLE_GOES_ON)) != STRATA_OK)
        return st;
    st = checkpoint == NULL ? st_error_missing(__func__, "checkpoint") : resume(engine, checkpoint, &o);
    st_handle_leave(engine);
    return st;
}

/* --- saving --- */

static strata_status check_saves(const struct strata_engine *e, const char *function)
{
    if (e->plan->model->use != STRATA_USE_TRAIN)
        return st_error(STRATA_E_INVAL, "%s: the model was opened for another use than training", function);
    if (e->run.checkpointer == NULL)
        return st_error(STRATA_E_INVAL, "%s: the configuration names no directory: set strata.save", function);
    return STRATA_OK;
}

static strata_status check_note(const struct strata_save_opts *o)
{
    if (o->has_score && !isfinite(o->score))
        return st_error(STRATA_E_INVAL, "strata_engine_save: score: it is not finite");
    if (o->note != NULL && (strlen(o->note) >= ST_MANIFEST_NOTE_BYTES || !st_text_is_utf8(o->note)))
        return st_error(STRATA_E_INVAL, "strata_engine_save: note: it has %zu bytes, or is not UTF-8: at most %u are possible",
                        strlen(o->note), ST_MANIFEST_NOTE_BYTES - 1);
    return STRATA_OK;
}

static strata_status save(struct strata_engine *e, const struct strata_save_opts *o)
{
    struct st_run_data data;
    struct st_manifest m;
    strata_status st = check_saves(e, "strata_engine_save");

    if (st == STRATA_OK)
        st = check_order(o->data, o->data_order, "strata_engine_save");
    if (st == STRATA_OK && o->metrics_bytes > METRICS_BYTES_MOST)
        st = st_error(STRATA_E_INVAL, "strata_engine_save: metrics_bytes: %" PRIu64 ": at most 2^53 are possible",
                      o->metrics_bytes);
    if (st == STRATA_OK)
        st = check_note(o);
    if (st != STRATA_OK || (st = st_handle_identify(&data, o->data)) != STRATA_OK)
        return st;
    data.seed = o->data_seed;
    data.order = o->data_order;
    st = st_run_describe(&m, &e->run, &data);
    free(data.files);
    if (st != STRATA_OK)
        return st;
    m.metrics_bytes = o->metrics_bytes;
    m.eval_due = o->eval_due;
    if (o->has_score)
        st_manifest_set_score(&m, o->score);
    if (o->note != NULL)
        snprintf(m.note, sizeof(m.note), "%s", o->note);
    return st_checkpointer_save(e->run.checkpointer, &m);
}

strata_status strata_engine_save(struct strata_engine *engine, const struct strata_save_opts *opts)
{
    struct strata_save_opts o;
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_save_opts");

    if (st != STRATA_OK || (st = st_handle_enter(engine, __func__, ST_HANDLE_TRAINS)) != STRATA_OK)
        return st;
    st = save(engine, &o);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_save_when(struct strata_engine *engine, const struct strata_save_rule *rule)
{
    struct strata_save_rule r;
    strata_status st = st_handle_opts(&r, sizeof(r), rule, "strata_save_rule");

    if (st != STRATA_OK || (st = st_handle_enter(engine, __func__, ST_HANDLE_GOES_ON)) != STRATA_OK)
        return st;
    if ((st = check_saves(engine, __func__)) == STRATA_OK)
        st_checkpointer_set_rule(engine->run.checkpointer, &r);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_save_due(struct strata_engine *engine, bool asked, bool *due)
{
    strata_status st = due == NULL ? st_error_missing(__func__, "due") : st_handle_enter(engine, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    if ((st = check_saves(engine, __func__)) == STRATA_OK)
        *due = st_checkpointer_due(engine->run.checkpointer, asked);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_saved(struct strata_engine *engine, bool wait, struct strata_saved *saved)
{
    struct strata_saved s = {0};
    strata_status st, asked = STRATA_OK;

    if (engine == NULL || saved == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : "saved");
    if ((st = st_handle_enter(engine, __func__, ST_HANDLE_EXISTS)) != STRATA_OK)
        return st;
    s.done = engine->run.checkpointer == NULL;
    st = st_handle_result(saved, &s, sizeof(s), "strata_saved"); /* an invalid size takes no failure away */
    if (st == STRATA_OK && engine->run.checkpointer != NULL) {
        asked = st_checkpointer_ask(engine->run.checkpointer, wait, &s);
        st = st_handle_result(saved, &s, sizeof(s), "strata_saved");
    }
    st_handle_leave(engine);
    return st != STRATA_OK ? st : asked;
}

strata_status strata_save_check(const char *dir, uint64_t after, bool overwrite)
{
    strata_status st;

    if (dir == NULL)
        return st_error_missing(__func__, "dir");
    st = st_store_check_names(dir, after, overwrite);
    return st == STRATA_OK ? st_checkpointer_check_place(dir) : st;
}

bool strata_save_takes(const char *name)
{
    uint64_t step;

    return name != NULL && (strcmp(name, ST_STORE_LATEST) == 0 || st_store_step(name, &step));
}
