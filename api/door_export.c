/* api/door_export.c - exports a trained model as a directory: begins it before the run and writes it after. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "run/adapter_base.h"

#include <stdlib.h>

strata_status strata_export_check(const char *dir, const struct strata_export_opts *opts)
{
    struct strata_export_opts o;
    const strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_export_opts");

    if (dir == NULL)
        return st_error_missing(__func__, "dir");
    return st == STRATA_OK ? st_hf_output_check(dir, o.overwrite) : st;
}

strata_status strata_export_check_apart(const char *dir, const char *path)
{
    if (dir == NULL || path == NULL)
        return st_error_missing(__func__, dir == NULL ? "dir" : "path");
    return st_hf_output_check_apart(dir, path);
}

static strata_status open_adapter(struct strata_export *x, const char *dir, bool overwrite)
{
    const struct strata_model *m = x->model;
    struct st_adapter_base base;
    const struct st_hf_adapter_output output = {
        .model = m->model, .spec = m->adapter, .base = base.name, .dir = dir, .overwrite = overwrite};
    strata_status st = st_hf_adapter_output_check(dir, overwrite);

    if (st == STRATA_OK)
        st = st_adapter_base_find(&base, m->name);
    return st == STRATA_OK ? st_hf_adapter_writer_open(&x->adapter, &output) : st;
}

strata_status strata_export_open(struct strata_export **out, struct strata_model *model, const char *dir,
                                 const struct strata_export_opts *opts)
{
    struct strata_export_opts o;
    struct strata_export *x;
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_export_opts");

    if (out == NULL || model == NULL || dir == NULL)
        return st_error_missing(__func__, out == NULL ? "out" : model == NULL ? "model" : "dir");
    if (st != STRATA_OK || (st = st_handle_check_decoder(model, __func__)) != STRATA_OK)
        return st;
    x = st_fault_refuses("api.export") ? NULL : calloc(1, sizeof(*x));
    if (x == NULL)
        return st_nomem(sizeof(*x));
    x->model = model;
    atomic_fetch_add(&x->model->users, 1);
    if (model->adapter != NULL)
        st = open_adapter(x, dir, o.overwrite);
    else if ((st = st_hf_output_check(dir, o.overwrite)) == STRATA_OK)
        st = st_hf_writer_open(&x->writer, model->model, dir, model->is_dir ? model->name : NULL, &model->beside.instead,
                               o.overwrite);
    if (st != STRATA_OK) {
        strata_export_abort(x);
        return st;
    }
    *out = x;
    return STRATA_OK;
}

static strata_status put_adapter(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    const struct strata_export *x = ctx;

    return st_hf_adapter_writer_put_page(x->adapter, page, first, count, weight);
}

static strata_status put_weights(void *ctx, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    const struct strata_export *x = ctx;
    const strata_status st = st_model_check_finite(x->model->model, page, first, count, weight);

    if (st != STRATA_OK)
        return st_error_prefix(st, "the model is not written");
    return st_hf_writer_put(x->writer, page, first, count, weight);
}

static strata_status write_model(struct strata_engine *engine, struct strata_export *x)
{
    const bool adapter = x != NULL && x->adapter != NULL;
    strata_status st = st_engine_export(engine->run.engine, adapter ? put_adapter : put_weights, x);
    struct st_hf_writer *writer;

    if (st != STRATA_OK || x == NULL)
        return st;
    if (adapter) {
        struct st_hf_adapter_writer *file = x->adapter;

        x->adapter = NULL; /* commit frees it */
        return st_hf_adapter_writer_commit(file);
    }
    writer = x->writer;
    x->writer = NULL;  /* commit frees it */
    st_cleanup_hold(); /* so that a signal finds all of its files or none */
    st = st_hf_writer_commit(writer);
    st_cleanup_release();
    return st;
}

strata_status strata_engine_export(struct strata_engine *engine, struct strata_export *out)
{
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_LOADED);
    const bool entered = st == STRATA_OK;

    if (st == STRATA_E_BUSY) /* `out` may be in use by that call */
        return st;
    if (st == STRATA_OK && out == NULL && st_handle_world(engine->plan->on).rank == 0)
        st = st_error_missing(__func__, "out");
    if (st == STRATA_OK && out != NULL && out->model != engine->plan->model)
        st = st_error(STRATA_E_INVAL, "%s: the directory was begun for another model", __func__);
    if (st == STRATA_OK)
        st = write_model(engine, out);
    if (entered)
        st_handle_leave(engine);
    strata_export_abort(out);
    return st;
}

void strata_export_abort(struct strata_export *out)
{
    if (out == NULL)
        return;
    st_hf_writer_abort(out->writer);
    st_hf_adapter_writer_abort(out->adapter);
    strata_model_close(out->model);
    free(out);
}
