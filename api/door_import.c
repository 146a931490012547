/* api/door_import.c - strata_import(): what tools/import_deepspeed.py wrote becomes a checkpoint. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/json/json.h"
#include "offload/checkpoint/make.h"
#include "run/run_describe.h"
#include "strata/checkpoint.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#define STATE_BYTES_MAX 65536u
#define STEPS_MAX       UINT64_C(1000000000) /* the powers of Adam's betas are multiplied out */

/* The planes that are read, by their directories. */
static const char *const part_names[] = {
    [ST_PLANE_WEIGHT] = "fp32", [ST_PLANE_MOMENT1] = "exp_avg", [ST_PLANE_MOMENT2] = "exp_avg_sq"};

struct import {
    struct strata_model *model;
    struct st_manifest manifest;
    struct st_hf_reader *readers[ST_PLANE_COUNT];
    struct st_hf_reader *base; /* the model's own weights, which an adapter was trained beside; else NULL */
    uint64_t done, total;
    char state[ST_PATH_MAX]; /* path of state.json */
};

/* --- state.json --- */

static strata_status state_fault(const struct import *i, const char *key, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s: \"%s\" %s: make it with tools/import_deepspeed.py", i->state, key, what);
}

static strata_status read_count(const struct import *i, const st_json *root, const char *key, uint64_t most, uint64_t *out)
{
    const st_json *n = st_json_get(root, key);

    return n != NULL && st_json_u64(n, out) == 1 && *out <= most ? STRATA_OK : state_fault(i, key, "is no such number");
}

/* A scale that stays the same is the configuration's. */
static strata_status read_scaler(const struct import *i, const st_json *root, struct st_loss_scaler *s)
{
    const st_json *from = st_json_get(root, "loss_scaler"), *scale, *last;
    uint64_t left;
    strata_status st;

    if (from == NULL || st_json_type(from) != ST_JSON_OBJECT || !s->dynamic)
        return STRATA_OK;
    scale = st_json_get(from, "scale");
    last = st_json_get(from, "last_overflow");
    if (scale == NULL || st_json_type(scale) != ST_JSON_NUMBER || !(st_json_number(scale) > 0) ||
        !(st_json_number(scale) <= 0x1p64))
        return state_fault(i, "loss_scaler.scale", "is no scale");
    if (last == NULL || st_json_type(last) != ST_JSON_NUMBER || !(fabs(st_json_number(last)) <= (double)STEPS_MAX))
        return state_fault(i, "loss_scaler.last_overflow", "is no step");
    if ((st = read_count(i, from, "iteration", STEPS_MAX, &s->iteration)) != STRATA_OK ||
        (st = read_count(i, from, "hysteresis_left", s->hysteresis, &left)) != STRATA_OK)
        return st;
    s->scale = st_json_number(scale);
    s->last_overflow = (int64_t)st_json_number(last);
    s->hysteresis_left = (uint32_t)left;
    return s->last_overflow >= -1 ? STRATA_OK : state_fault(i, "loss_scaler.last_overflow", "is no step");
}

static strata_status take_state(struct import *i, const st_json *root)
{
    const st_json *source = st_json_get(root, "source");
    struct st_manifest *m = &i->manifest;
    uint64_t format;
    strata_status st = read_count(i, root, "format", 1, &format);

    if (st == STRATA_OK)
        st = read_count(i, root, "steps", STEPS_MAX, &m->train.steps_applied);
    if (st == STRATA_OK)
        st = read_count(i, root, "skipped_steps", STEPS_MAX, &m->train.steps_skipped);
    if (st == STRATA_OK)
        st = read_count(i, root, "samples", UINT64_MAX, &m->train.sequences);
    if (st == STRATA_OK)
        st = read_scaler(i, root, &m->train.scaler);
    m->step = m->train.steps_applied + m->train.steps_skipped;
    m->data_position = m->train.sequences;
    if (st == STRATA_OK && m->train.steps_applied == 0)
        st = state_fault(i, "steps", "is 0: the run has not begun: train from its weights (model.model)");
    snprintf(m->device, sizeof(m->device), "%s",
             source != NULL && st_json_type(source) == ST_JSON_STRING ? st_json_string(source) : "DeepSpeed");
    return st;
}

static strata_status read_state(struct import *i, const char *parts)
{
    struct st_manifest *m = &i->manifest;
    st_json *root;
    strata_status st = st_path_join(i->state, parts, "state.json");

    st_train_state_start(&m->train, m->dtype == STRATA_F16 ? &i->model->config.scaling : NULL);
    if (st != STRATA_OK)
        return st;
    if ((st = st_json_parse_file(&root, i->state, STATE_BYTES_MAX)) != STRATA_OK)
        return st == STRATA_E_CONFIG ? st_error(STRATA_E_INPUT, "%s", strata_last_error()) : st;
    st = take_state(i, root);
    st_json_free(root);
    return st;
}

/* --- values --- */

static const char *tensor_at(const struct st_manifest *m, uint32_t page, uint64_t element)
{
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (m->tensors[i].page == page && element >= m->tensors[i].offset && element - m->tensors[i].offset < m->tensors[i].elems)
            return m->tensors[i].name;
    return "";
}

static strata_status read_values(void *ctx, enum st_plane plane, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    const struct import *i = ctx;
    const bool frozen = first >= st_model_workload(i->model->model)->pages[page].trained_elems; /* it is behind the others */
    const struct st_weight_source source = st_hf_reader_source(frozen && i->base != NULL ? i->base : i->readers[plane]);
    const strata_status st = source.read(source.ctx, page, first, count, out);

    if (st != STRATA_OK)
        return st;
    for (uint64_t e = 0; e < count; e++)
        if (!isfinite(out[e]) || (plane == ST_PLANE_MOMENT2 && out[e] < 0))
            return st_error(STRATA_E_INPUT, "%s of tensor %s has the value %g, which cannot be trained on", part_names[plane],
                            tensor_at(&i->manifest, page, first + e), (double)out[e]);
    return STRATA_OK;
}

static strata_status open_parts(struct import *i, const char *parts)
{
    strata_status st = STRATA_OK;

    for (uint32_t p = 0; p < ST_PLANE_COUNT && st == STRATA_OK; p++) {
        char dir[ST_PATH_MAX];

        if (part_names[p] == NULL)
            continue;
        if ((st = st_path_join(dir, parts, part_names[p])) == STRATA_OK)
            st = p == ST_PLANE_WEIGHT && i->model->adapter == NULL
                     ? st_hf_reader_open(&i->readers[p], i->model->model, dir)
                     : st_hf_reader_open_trained(&i->readers[p], i->model->model, dir);
    }
    if (st == STRATA_OK && i->model->adapter != NULL)
        st = st_hf_reader_open(&i->base, i->model->model, i->model->name);
    return st;
}

static strata_status write_small(void *ctx, const char *dir)
{
    const struct import *i = ctx;

    return st_hf_write_small(i->model->model, dir, i->model->name, &i->model->beside.instead);
}

static strata_status watch(void *ctx, uint64_t elems)
{
    struct import *i = ctx;

    i->done += elems;
    return st_handle_watch(i->model, "importing", i->done, i->total);
}

/* --- the whole --- */

static strata_status check(const struct strata_model *model)
{
    if (!model->is_dir || model->from.saved != NULL)
        return st_error(STRATA_E_INVAL, "strata_import: the model is %s: name the Hugging Face directory that the run began with",
                        model->is_dir ? "a checkpoint" : "a preset");
    if (st_rule_of(model->config.optimizer.type) != ST_RULE_ADAM)
        return st_error(STRATA_E_CONFIG,
                        "optimizer.type %s: a universal checkpoint has exp_avg and exp_avg_sq, the moments of Adam and AdamW",
                        st_optimizer_name(model->config.optimizer.type));
    return STRATA_OK;
}

static strata_status make(struct import *i, const char *parts, const struct st_make_opts *opts, char path[4096])
{
    char made[ST_PATH_MAX];
    const struct st_run run = st_handle_run(i->model);
    strata_status st = st_run_describe_model(&i->manifest, &run);

    for (uint32_t g = 0; st == STRATA_OK && g < i->manifest.group_count; g++)
        i->total += i->manifest.groups[g].elems;
    if (st == STRATA_OK)
        st = st_run_draw_name(i->manifest.run);
    if (st == STRATA_OK)
        st = read_state(i, parts);
    if (st == STRATA_OK)
        st = open_parts(i, parts);
    if (st == STRATA_OK)
        st = st_handle_watch(i->model, "importing", 0, i->total);
    if (st == STRATA_OK)
        st = st_checkpoint_make(made, &i->manifest, opts);
    if (st == STRATA_OK)
        snprintf(path, 4096, "%s", made);
    return st;
}

strata_status strata_import(struct strata_model *model, const char *parts, const char *save,
                            const struct strata_import_opts *opts, char path[4096])
{
    struct strata_import_opts o;
    struct import i = {.model = model};
    fenv_t floats;
    struct st_make_opts how = {
        .save = save, .key = "import.out", .read = read_values, .model = write_small, .progress = watch, .ctx = &i};
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_import_opts");

    if (model == NULL || parts == NULL || save == NULL || path == NULL)
        return st_error_missing(__func__, model == NULL ? "model" : parts == NULL ? "parts" : save == NULL ? "save" : "path");
    if (st != STRATA_OK || (st = st_handle_check_decoder(model, __func__)) != STRATA_OK || (st = check(model)) != STRATA_OK)
        return st;
    how.overwrite = o.overwrite;
    st_floats_plain(&floats);
    st = make(&i, parts, &how, path);
    st_floats_restore(&floats);
    for (uint32_t p = 0; p < ST_PLANE_COUNT; p++)
        st_hf_reader_close(i.readers[p]);
    st_hf_reader_close(i.base);
    st_manifest_fini(&i.manifest);
    return st;
}
