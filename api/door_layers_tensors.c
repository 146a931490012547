/* api/door_layers_tensors.c - strata/layers.h: tensors by name, their values, and where the first ones come from. */
#include "api/handles.h"
#include "core/base/error.h"
#include "model/hf/hf_named.h"
#include "run/checkpointer.h"
#include "strata/layers.h"

#include <string.h>

/* --- facts --- */

static uint32_t count_of(const struct strata_engine *e)
{
    return st_run_tensor_count(&e->run);
}

uint32_t strata_engine_tensor_count(const struct strata_engine *engine)
{
    return engine != NULL ? count_of(engine) : 0;
}

static strata_status check_index(const struct strata_engine *e, uint32_t index, const char *function)
{
    if (index < count_of(e))
        return STRATA_OK;
    return st_error(STRATA_E_INVAL, "%s: tensor %u, and the model has %u", function, index, count_of(e));
}

strata_status strata_engine_get_tensor(const struct strata_engine *engine, uint32_t index, struct strata_tensor_info *info)
{
    struct strata_tensor_info i = {.index = index, .layer = ""};
    const struct st_tensor *t;
    const struct st_layers *l;
    strata_status st;

    if (engine == NULL || info == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : "info");
    if ((st = check_index(engine, index, __func__)) != STRATA_OK)
        return st;
    t = st_run_tensor(&engine->run, index);
    l = engine->run.layers;
    i.name = t->name;
    i.rank = t->rank;
    memcpy(i.shape, t->shape, t->rank * sizeof(*i.shape));
    i.elems = t->elems;
    i.dtype = t->format;
    i.group = t->frozen ? STRATA_FROZEN : t->group;
    if (l != NULL) {
        i.layer = l->layers[t->layer].name;
        i.layer_index = t->layer;
        i.weight_at = st_page_at(&l->workload.pages[t->page], t->offset);
        i.sum_at = t->frozen ? 0 : t->offset;
    }
    return st_handle_result(info, &i, sizeof(i), "strata_tensor_info");
}

strata_status strata_engine_find_tensor(const struct strata_engine *engine, const char *name, uint32_t *index)
{
    uint32_t found = ST_NO_TENSOR;

    if (engine == NULL || name == NULL || index == NULL)
        return st_error_missing(__func__, engine == NULL ? "engine" : name == NULL ? "name" : "index");
    if (engine->run.layers != NULL)
        found = st_layers_find(engine->run.layers, name);
    for (uint32_t i = 0; engine->run.layers == NULL && i < count_of(engine) && found == ST_NO_TENSOR; i++)
        found = strcmp(st_run_tensor(&engine->run, i)->name, name) == 0 ? i : ST_NO_TENSOR;
    if (found == ST_NO_TENSOR)
        return st_error(STRATA_E_INVAL, "%s: %s has no tensor %.100s", __func__, engine->plan->model->name, name);
    *index = found;
    return STRATA_OK;
}

/* --- values --- */

/* A part of a tensor that is asked for. */
struct asked {
    uint32_t tensor;
    enum strata_plane plane;
    uint64_t first, elems;
    strata_dtype dtype;
};

static strata_status check_plane(const struct strata_engine *e, const struct asked *a, const char *function)
{
    const struct st_program *program = e->run.program;
    const struct st_tensor *t = st_run_tensor(&e->run, a->tensor);

    if ((unsigned)a->plane > STRATA_PLANE_MOMENT2)
        return st_error(STRATA_E_INVAL, "%s: plane %u: weight, moment1 and moment2 are possible", function, (unsigned)a->plane);
    if (a->plane != STRATA_PLANE_WEIGHT && !st_engine_trains(e->run.engine))
        return st_error(STRATA_E_INVAL, "%s: %s: after strata_engine_end_training() there are weights alone", function, t->name);
    if (a->plane == STRATA_PLANE_WEIGHT)
        return t->format != STRATA_NF4
                   ? STRATA_OK
                   : st_error(STRATA_E_NOSYS, "%s: %s is stored in nf4: its values cannot be read or written", function, t->name);
    if (t->frozen || program->forward_only || (a->plane == STRATA_PLANE_MOMENT2 && program->moments < 2))
        return st_error(STRATA_E_INVAL, "%s: %s has no such moment: it is frozen, or the optimizer has %u", function, t->name,
                        program->moments);
    return STRATA_OK;
}

static strata_status check_part(const struct strata_engine *e, const struct asked *a, const void *values, const char *function)
{
    const size_t width = strata_dtype_bytes(a->dtype);
    strata_status st = check_index(e, a->tensor, function);
    const struct st_tensor *t;

    if (st != STRATA_OK)
        return st;
    t = st_run_tensor(&e->run, a->tensor);
    if (values == NULL)
        return st_error_missing(function, "values");
    if (width == 0 || (uintptr_t)values % width != 0)
        return st_error(STRATA_E_INVAL, "%s: %s: values are misaligned, or of no dtype", function, t->name);
    if (a->elems == 0 || a->elems > t->elems || a->first > t->elems - a->elems)
        return st_error(STRATA_E_INVAL, "%s: %s has %llu elements: the part is empty or outside", function, t->name,
                        (unsigned long long)t->elems);
    return check_plane(e, a, function);
}

/* A tensor's parts follow each other, each in a page. */
static strata_status each_page(struct strata_engine *e, const struct asked *a, unsigned char *out, const unsigned char *in)
{
    static const enum st_plane planes[] = {[STRATA_PLANE_WEIGHT] = ST_PLANE_WEIGHT,
                                           [STRATA_PLANE_MOMENT1] = ST_PLANE_MOMENT1,
                                           [STRATA_PLANE_MOMENT2] = ST_PLANE_MOMENT2};
    const struct st_workload *w = st_run_workload(&e->run);
    const struct st_tensor *t = st_run_tensor(&e->run, a->tensor);
    uint64_t begin = 0, at = a->first, end = a->first + a->elems;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < t->page_count && at < end && st == STRATA_OK; i++) {
        const uint64_t there = t->page_count > 1 ? (uint64_t)w->pages[t->page + i].row_count * w->hidden : t->elems;
        const uint64_t stop = end < begin + there ? end : begin + there;
        const uint64_t place = (at - a->first) * strata_dtype_bytes(a->dtype);
        const struct st_values what = {.page = t->page + i,
                                       .plane = planes[a->plane],
                                       .first = t->offset + at - begin,
                                       .elems = stop - at,
                                       .dtype = a->dtype};

        if (at < stop)
            st = out != NULL ? st_engine_read_values(e->run.engine, &what, out + place)
                             : st_engine_write_values(e->run.engine, &what, in + place);
        at = stop > at ? stop : at;
        begin += there;
    }
    return st;
}

strata_status strata_engine_read_tensor(struct strata_engine *engine, uint32_t index, enum strata_plane plane, uint64_t first,
                                        uint64_t elems, strata_dtype dtype, void *out)
{
    const struct asked a = {.tensor = index, .plane = plane, .first = first, .elems = elems, .dtype = dtype};
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_LOADED);

    if (st != STRATA_OK)
        return st;
    if ((st = check_part(engine, &a, out, __func__)) == STRATA_OK)
        st = each_page(engine, &a, out, NULL);
    st_handle_leave(engine);
    return st;
}

strata_status strata_engine_write_tensor(struct strata_engine *engine, uint32_t index, enum strata_plane plane, uint64_t first,
                                         uint64_t elems, strata_dtype dtype, const void *values)
{
    const struct asked a = {.tensor = index, .plane = plane, .first = first, .elems = elems, .dtype = dtype};
    strata_status st = st_handle_enter(engine, __func__, ST_HANDLE_TRAINS);

    if (st != STRATA_OK)
        return st;
    if ((st = check_part(engine, &a, values, __func__)) == STRATA_OK) {
        if (engine->run.checkpointer != NULL)
            st_checkpointer_before_write(engine->run.checkpointer);
        st = each_page(engine, &a, NULL, values);
    }
    st_handle_leave(engine);
    return st;
}

/* --- the first values --- */

struct loading {
    const struct strata_model *model;
    const struct strata_load_opts *opts;
    struct st_hf_named *named; /* NULL: no files */
    uint64_t total;
    atomic_uint_fast64_t done;
};

/* The caller's function says nothing but a status. */
static strata_status call_fill(const struct loading *l, const struct st_layers_piece *p, float *out)
{
    const strata_status st = l->opts->fill(l->opts->fill_ctx, p->tensor, p->tensor_first, p->count, out);

    return st == STRATA_OK ? STRATA_OK
                           : st_error(st, "strata_load_opts.fill: %s, elements %llu to %llu: %s",
                                      l->model->layers->tensors[p->tensor].name, (unsigned long long)p->tensor_first,
                                      (unsigned long long)(p->tensor_first + p->count), strata_status_text(st));
}

/* Values of a part of a page: several workers ask at once. */
static strata_status fill(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    struct loading *l = ctx;
    struct st_layers_piece p;
    uint32_t next = 0;
    strata_status st = STRATA_OK;

    memset(out, 0, count * sizeof(*out));
    while (st == STRATA_OK && st_layers_piece(&p, l->model->layers, page, first, count, &next)) {
        if (l->named != NULL && st_hf_named_has(l->named, p.tensor))
            st = st_hf_named_read(l->named, p.tensor, p.tensor_first, p.count, out + p.range_first);
        else if (l->opts->fill != NULL)
            st = call_fill(l, &p, out + p.range_first);
    }
    return st == STRATA_OK ? st_handle_watch(l->model, "loading weights", atomic_fetch_add(&l->done, count) + count, l->total)
                           : st;
}

static strata_status open_files(struct loading *l)
{
    const struct strata_load_opts *o = l->opts;
    const struct st_hf_named_opts named = {.paths = o->files,
                                           .path_count = o->file_count,
                                           .prefix = o->prefix,
                                           .add_prefix = o->add_prefix,
                                           .allow_missing = o->allow_missing,
                                           .allow_unexpected = o->allow_unexpected};

    if (o->file_count == 0)
        return STRATA_OK;
    for (uint32_t i = 0; i < o->file_count; i++)
        if (o->files == NULL || o->files[i] == NULL)
            return st_error_missing("strata_engine_load_layers", "one of files");
    return st_hf_named_open(&l->named, l->model->layers, &named);
}

strata_status st_handle_load_layers(struct strata_engine *e, void *opts)
{
    const struct strata_load_opts zeros = {0};
    struct loading l = {.model = e->plan->model, .opts = opts != NULL ? opts : &zeros};
    const struct st_workload *w = &l.model->layers->workload;
    strata_status st = open_files(&l);

    for (uint32_t p = 0; p < w->page_count; p++)
        l.total += w->pages[p].elems;
    if (st == STRATA_OK)
        st = st_handle_watch(l.model, "loading weights", 0, l.total);
    if ((st = st_engine_agree(e->run.engine, st, "the beginning of a load")) == STRATA_OK)
        st = st_engine_load(e->run.engine, fill, &l);
    if (st == STRATA_OK)
        st = st_engine_agree(e->run.engine, l.named != NULL ? st_hf_named_check_unchanged(l.named) : STRATA_OK,
                             "the files of a load");
    if (st == STRATA_OK && l.opts->missing != NULL)
        *l.opts->missing = l.named != NULL ? st_hf_named_missing(l.named) : 0;
    if (st == STRATA_OK && l.opts->unexpected != NULL)
        *l.opts->unexpected = l.named != NULL ? st_hf_named_unexpected(l.named) : 0;
    st_hf_named_close(l.named);
    return st;
}

strata_status strata_engine_load_layers(struct strata_engine *engine, const struct strata_load_opts *opts)
{
    struct strata_load_opts o;
    strata_status st = st_handle_opts(&o, sizeof(o), opts, "strata_load_opts");

    if (st != STRATA_OK || (st = st_handle_enter(engine, __func__, ST_HANDLE_GOES_ON)) != STRATA_OK)
        return st;
    if (engine->plan->model->layers == NULL)
        st = st_error(STRATA_E_INVAL, "%s: strata computes %s: strata_engine_load() loads it", __func__,
                      engine->plan->model->name);
    else
        st = st_handle_load(engine, __func__, st_handle_load_layers, &o);
    st_handle_leave(engine);
    return st;
}
