/* api/door_verify.c - strata/verify.h: whether checkpoints are what was written, and their weights as a directory. */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "kernels/widen.h"
#include "nvme/swap/swap.h"
#include "offload/checkpoint/model_files.h"
#include "offload/checkpoint/reader.h"
#include "offload/checkpoint/store.h"
#include "offload/checkpoint/verify.h"
#include "run/adapter_base.h"
#include "run/checkpoint_adapter.h"
#include "run/checkpoint_weights.h"
#include "run/run_describe.h"
#include "strata/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TENSOR_PART_ELEMS  (UINT64_C(1) << 20)
#define ADAPTER_PART_ELEMS (UINT64_C(1) << 20)

struct reading {
    struct strata_verify_opts opts;
    struct st_checkpoint *ck;
    const char *what;
};

static void skipped(void *ctx, const char *path, const char *sentence)
{
    const struct reading *r = ctx;

    if (r->opts.skipped != NULL)
        r->opts.skipped(r->opts.ctx, path, sentence);
}

static bool progress(void *ctx, uint64_t done, uint64_t total)
{
    const struct reading *r = ctx;

    return r->opts.progress == NULL || r->opts.progress(r->opts.ctx, r->what, done, total);
}

/* The first tensor that has elements of a group's range. */
static const char *tensor_at(const struct st_manifest *m, const struct st_damage *d)
{
    const uint64_t first = st_manifest_group(m, d->row->page, d->row->group)->offset + d->first;

    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_manifest_tensor *t = &m->tensors[i];

        if (t->page == d->row->page && t->offset < first + d->elems && first < t->offset + t->elems)
            return t->name;
    }
    return "";
}

static void damaged(void *ctx, const struct st_damage *d)
{
    const struct reading *r = ctx;
    const struct strata_damage out = {.file = d->path,
                                      .offset = d->offset,
                                      .plane = st_plane_name((enum st_plane)d->row->plane),
                                      .tensor = tensor_at(&r->ck->manifest, d),
                                      .page = d->row->page,
                                      .group = d->row->group,
                                      .first = d->first,
                                      .elems = d->elems,
                                      .why = d->why};

    if (r->opts.damaged != NULL)
        r->opts.damaged(r->opts.ctx, &out);
}

/* Opens what the path names; closed by the caller. */
static strata_status begin(struct reading *r, const char *path, const struct strata_verify_opts *opts, const char *what)
{
    struct strata_verify_info info = {0};
    strata_status st;

    *r = (struct reading){.what = what};
    if (opts != NULL && (st = st_handle_opts(&r->opts, sizeof(r->opts), opts, "strata_verify_opts")) != STRATA_OK)
        return st;
    if ((st = st_checkpoint_find(&r->ck, path, skipped, r)) != STRATA_OK)
        return st;
    info.path = r->ck->path;
    info.model = r->ck->manifest.model;
    info.run = r->ck->manifest.run;
    info.version = r->ck->manifest.version;
    info.step = r->ck->manifest.step;
    st_verify_amount(r->ck, &info.bytes, &info.tiles);
    if (r->opts.opened != NULL)
        r->opts.opened(r->opts.ctx, &info);
    (void)progress(r, 0, info.bytes); /* work begins; the next call may end it */
    return STRATA_OK;
}

/* Beside what the tiles have shown: whoever needs only the weights needs these files, too. */
static strata_status check_model_files(const struct st_checkpoint *ck, strata_status st)
{
    char tiles[1024], files[1024];

    if (st == STRATA_OK)
        return st_model_files_check(ck);
    if (st != STRATA_E_CORRUPT)
        return st;
    snprintf(tiles, sizeof(tiles), "%s", strata_last_error());
    if (st_model_files_check(ck) != STRATA_E_CORRUPT)
        return st_error(STRATA_E_CORRUPT, "%s", tiles);
    snprintf(files, sizeof(files), "%s", strata_last_error());
    return st_error(STRATA_E_CORRUPT, "%s; and %s", tiles, files);
}

strata_status strata_verify(const char *path, const struct strata_verify_opts *opts, uint64_t *damages)
{
    struct reading r;
    strata_status st;

    if (path == NULL || damages == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : "damages");
    *damages = 0;
    st = begin(&r, path, opts, "verifying");
    if (st == STRATA_OK)
        st = st_verify(r.ck, progress, damaged, &r, damages);
    if (r.ck != NULL)
        st = check_model_files(r.ck, st);
    st_checkpoint_close(r.ck);
    return st;
}

strata_status strata_verify_digest(const char *path, const struct strata_verify_opts *opts, char weights[33], char state[33])
{
    struct reading r;
    strata_status st;

    if (path == NULL || weights == NULL || state == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : weights == NULL ? "weights" : "state");
    st = begin(&r, path, opts, "reading");
    if (st == STRATA_OK)
        st = st_verify_digest(r.ck, progress, &r, weights, state);
    st_checkpoint_close(r.ck);
    return st;
}

/* --- tensor by tensor --- */

static bool is_of_layers(const struct st_manifest *m)
{
    return m->tensor_count > 0 && m->tensors[0].layer[0] != '\0';
}

struct tensors {
    struct reading *reading;
    struct st_reader *reader;
    strata_verify_tensor_fn *take;
    void *take_ctx;
    float *values, *weight, *master; /* [TENSOR_PART_ELEMS], of weight and master in their formats, which are no wider */
    unsigned char *to;
    uint64_t done, total; /* bytes */
};

static strata_status copy_plane(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data)
{
    struct tensors *t = ctx;
    const uint64_t bytes = row->plane == ST_PLANE_WEIGHT ? st_format_bytes((strata_dtype)row->format, elems)
                                                         : elems * st_master_width((enum st_master)row->format);

    (void)first;
    memcpy(t->to, data, bytes);
    t->to += bytes;
    return STRATA_OK;
}

static strata_status read_plane(struct tensors *t, enum st_plane plane, uint32_t page, uint64_t first, uint64_t elems, void *out)
{
    const struct st_checkpoint *ck = t->reading->ck;
    const struct st_reader_sink sink = {.data = copy_plane, .ctx = t};
    const uint64_t count = st_reader_spans(NULL, ck, plane, page, first, elems);
    struct st_reader_span *spans = st_fault_refuses("api.export") ? NULL : malloc((count + 1) * sizeof(*spans));
    strata_status st;

    if (spans == NULL)
        return st_nomem((count + 1) * sizeof(*spans));
    (void)st_reader_spans(spans, ck, plane, page, first, elems);
    t->to = out;
    st = st_reader_read(t->reader, spans, count, &sink);
    free(spans);
    return st;
}

/* As fp32: of what is trained the masters. */
static strata_status read_values(struct tensors *t, const struct st_manifest_group *g, uint64_t first, uint64_t elems)
{
    const struct st_kernels *kernels = st_kernels_pick("auto");
    const bool has_master = st_manifest_has_plane(&t->reading->ck->manifest, g, ST_PLANE_MASTER);
    strata_status st = read_plane(t, ST_PLANE_WEIGHT, g->page, first, elems, t->weight);

    if (st == STRATA_OK && has_master)
        st = read_plane(t, ST_PLANE_MASTER, g->page, first, elems, t->master);
    if (st != STRATA_OK)
        return st;
    if (!has_master)
        st_widen(kernels, t->values, t->weight, g->format, elems);
    else if (st_master_of(g->format) == ST_MASTER_SPLIT)
        kernels->master_join(t->values, (const uint16_t *)(const void *)t->weight, (const int16_t *)(const void *)t->master,
                             elems);
    else
        memcpy(t->values, t->master, elems * sizeof(float));
    return STRATA_OK;
}

static const struct st_manifest_group *group_of(const struct st_manifest *m, const struct st_manifest_tensor *tensor)
{
    const struct st_manifest_group *g;

    for (uint32_t i = 0; (g = st_manifest_group(m, tensor->page, i)) != NULL; i++)
        if (tensor->offset >= g->offset && tensor->offset + tensor->elems <= g->offset + g->elems)
            return g;
    return NULL;
}

static strata_status read_tensor(struct tensors *t, const struct st_manifest_tensor *tensor)
{
    const struct st_manifest *m = &t->reading->ck->manifest;
    const struct st_manifest_group *g = group_of(m, tensor);
    struct strata_verify_tensor told = {.name = tensor->name, .shape = tensor->shape, .elems = tensor->elems};
    strata_status st = STRATA_OK;

    if (g == NULL || g->format == STRATA_NF4)
        return st_error(STRATA_E_CORRUPT, "%s: its tensor %s lies in no group of numbers", t->reading->ck->path, tensor->name);
    told.dtype = g->format;
    for (uint64_t first = 0, n; first < tensor->elems && st == STRATA_OK; first += n) {
        n = tensor->elems - first < TENSOR_PART_ELEMS ? tensor->elems - first : TENSOR_PART_ELEMS;
        st = read_values(t, g, tensor->offset + first, n);
        t->done += n * sizeof(float);
        if (st == STRATA_OK && !(t->take(t->take_ctx, &told, first, n, t->values) && progress(t->reading, t->done, t->total)))
            st = st_error(STRATA_E_CANCELLED, "%s: ended before all of it was read", t->reading->ck->path);
    }
    return st;
}

static strata_status read_tensors(struct tensors *t)
{
    const struct st_manifest *m = &t->reading->ck->manifest;
    strata_status st = STRATA_OK;

    if (!is_of_layers(m))
        return st_error(STRATA_E_INPUT, "%s: it is of a model of strata's: export writes it", t->reading->ck->path);
    t->values = st_fault_refuses("api.export") ? NULL : malloc(3 * TENSOR_PART_ELEMS * sizeof(*t->values));
    if (t->values == NULL)
        return st_nomem(3 * TENSOR_PART_ELEMS * sizeof(*t->values));
    t->weight = t->values + TENSOR_PART_ELEMS;
    t->master = t->weight + TENSOR_PART_ELEMS;
    for (uint32_t i = 0; i < m->tensor_count; i++)
        t->total += m->tensors[i].elems * sizeof(float);
    st = st_reader_open(&t->reader, t->reading->ck, NULL);
    for (uint32_t i = 0; i < m->tensor_count && st == STRATA_OK; i++)
        st = read_tensor(t, &m->tensors[i]);
    st_reader_close(t->reader);
    free(t->values);
    return st;
}

strata_status strata_verify_tensors(const char *path, const struct strata_verify_opts *opts, strata_verify_tensor_fn *take,
                                    void *ctx)
{
    struct reading r;
    struct tensors t = {.reading = &r, .take = take, .take_ctx = ctx};
    strata_status st;

    if (path == NULL || take == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : "take");
    st = begin(&r, path, opts, "reading");
    if (st == STRATA_OK)
        st = read_tensors(&t);
    st_checkpoint_close(r.ck);
    return st;
}

/* --- as a Hugging Face directory --- */

struct exporting {
    struct reading *reading;
    const struct st_model *model;
    struct st_hf_writer *writer; /* NULL: committed */
    struct st_checkpoint_weights *weights;
    uint64_t done, total; /* bytes */
};

static strata_status put(void *ctx, uint32_t page, uint64_t first, uint64_t count, strata_dtype format, const void *weight)
{
    struct exporting *e = ctx;
    const strata_dtype dtype = st_model_workload(e->model)->dtype;
    strata_status st;

    if (format != dtype)
        return st_error(STRATA_E_CORRUPT, "%s: its weights are in %s, but some of page %u in %s", e->reading->ck->path,
                        strata_dtype_name(dtype), page, strata_dtype_name(format));
    st = st_model_check_finite(e->model, page, first, count, weight);
    if (st != STRATA_OK)
        return st_error_prefix(st, "%s: the model is not written", e->reading->ck->path);
    if ((st = st_hf_writer_put(e->writer, page, first, count, weight)) != STRATA_OK)
        return st;
    e->done += st_format_bytes(format, count);
    return progress(e->reading, e->done, e->total) ? STRATA_OK : st_error(STRATA_E_CANCELLED, "the export was cancelled");
}

static strata_status put_all(struct exporting *e)
{
    const struct st_workload *w = st_model_workload(e->model);
    struct st_hf_writer *writer = e->writer;
    strata_status st = STRATA_OK;

    e->total = w->params * strata_dtype_bytes(w->dtype);
    (void)progress(e->reading, 0, e->total);
    for (uint32_t p = 0; p < w->page_count && st == STRATA_OK; p++)
        st = st_checkpoint_weights_each(e->weights, p, 0, w->pages[p].elems, put, e);
    if (st != STRATA_OK)
        return st;
    e->writer = NULL;
    st_cleanup_hold(); /* so that a signal finds all of its files or none */
    st = st_hf_writer_commit(writer);
    st_cleanup_release();
    return st;
}

/* Tensor by tensor: they are small beside the weights, but for those of modules_to_save. */
static strata_status copy_adapted(struct reading *r, struct st_hf_adapter_writer *w, const struct st_adapter_values *values,
                                  uint64_t total)
{
    uint32_t count;
    const struct st_hf_adapted *list = st_hf_adapter_writer_tensors(w, &count);
    float *part = st_fault_refuses("api.export") ? NULL : malloc(ADAPTER_PART_ELEMS * sizeof(*part));
    strata_status st = part != NULL ? STRATA_OK : st_nomem(ADAPTER_PART_ELEMS * sizeof(*part));
    uint64_t done = 0;

    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        const uint64_t elems = st_hf_adapted_elems(&list[i]);

        for (uint64_t first = 0, n; first < elems && st == STRATA_OK; first += n) {
            n = elems - first < ADAPTER_PART_ELEMS ? elems - first : ADAPTER_PART_ELEMS;
            if ((st = values->read(values->ctx, &list[i], first, n, part)) == STRATA_OK &&
                (st = st_hf_adapted_check_finite(&list[i], part, n)) == STRATA_OK)
                st = st_hf_adapter_writer_put(w, i, first, n, part);
            done += n * sizeof(float);
            if (st == STRATA_OK && !progress(r, done, total))
                st = st_error(STRATA_E_CANCELLED, "the export was cancelled");
        }
    }
    free(part);
    return st;
}

/* A run that trained an adapter: that, and nothing of the weights beside it. */
static strata_status export_adapter(struct reading *r, const struct st_model *model, const struct st_adapter_spec *spec,
                                    const char *dir, bool overwrite)
{
    struct st_adapter_base base;
    const struct st_hf_adapter_output output = {
        .model = model, .spec = spec, .base = base.name, .dir = dir, .overwrite = overwrite};
    struct st_hf_adapter_writer *writer = NULL, *file;
    struct st_checkpoint_adapter *saved = NULL;
    struct st_adapter_values values;
    const struct st_hf_adapted *list;
    uint64_t total = 0;
    uint32_t count;
    strata_status st = st_hf_adapter_output_check(dir, overwrite);

    if (st == STRATA_OK)
        st = st_adapter_base_find(&base, st_run_began_with(&r->ck->manifest));
    if (st == STRATA_OK && (st = st_hf_adapter_writer_open(&writer, &output)) == STRATA_OK)
        st = st_checkpoint_adapter_open(&saved, r->ck);
    if (st == STRATA_OK) {
        list = st_hf_adapter_writer_tensors(writer, &count);
        for (uint32_t i = 0; i < count; i++)
            total += st_hf_adapted_elems(&list[i]) * sizeof(float);
        (void)progress(r, 0, total);
        values = st_checkpoint_adapter_values(saved);
        st = copy_adapted(r, writer, &values, total);
    }
    if (st == STRATA_OK) {
        file = writer;
        writer = NULL; /* commit frees it */
        st = st_hf_adapter_writer_commit(file);
    }
    st_hf_adapter_writer_abort(writer);
    st_checkpoint_adapter_close(saved);
    return st;
}

static strata_status export_to(struct reading *r, const char *dir, bool overwrite)
{
    struct st_adapter_spec *spec = NULL;
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = r->ck->manifest.dtype};
    struct exporting e = {.reading = r};
    struct st_model_config config;
    struct st_model *model = NULL;
    char files[ST_PATH_MAX];
    strata_status st = is_of_layers(&r->ck->manifest)
                           ? st_error(STRATA_E_INPUT,
                                      "%s: it is of layers of another program's, without config.json: python -m strata export "
                                      "writes what an engine of Python's has saved, and strata_verify_tensors() reads it",
                                      r->ck->path)
                           : st_checkpoint_model_dir(files, r->ck);

    if (st == STRATA_OK && (st = st_model_config_read(&config, files)) == STRATA_OK)
        st = st_model_create(&model, &config, &batch);
    e.model = model;
    if (st == STRATA_OK)
        st = st_checkpoint_adapter_spec(&spec, r->ck);
    if (st == STRATA_OK && spec != NULL) {
        st = export_adapter(r, model, spec, dir, overwrite);
        st_adapter_spec_destroy(spec);
        st_model_destroy(model);
        return st;
    }
    if (st == STRATA_OK)
        st = st_hf_output_check(dir, overwrite);
    if (st == STRATA_OK)
        st = st_checkpoint_weights_open(&e.weights, r->ck, model);
    if (st == STRATA_OK)
        st = st_hf_writer_open(&e.writer, model, dir, files, NULL, overwrite);
    if (st == STRATA_OK)
        st = put_all(&e);
    st_hf_writer_abort(e.writer);
    st_checkpoint_weights_close(e.weights);
    st_model_destroy(model);
    return st;
}

strata_status strata_verify_export(const char *path, const char *dir, const struct strata_export_opts *how,
                                   const struct strata_verify_opts *opts)
{
    struct strata_export_opts o;
    struct reading r = {0};
    strata_status st = st_handle_opts(&o, sizeof(o), how, "strata_export_opts");

    if (path == NULL || dir == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : "dir");
    if (st == STRATA_OK)
        st = begin(&r, path, opts, "exporting");
    if (st == STRATA_OK)
        st = export_to(&r, dir, o.overwrite);
    st_checkpoint_close(r.ck);
    return st;
}

/* --- looking --- */

strata_status strata_verify_find(const char *path, bool *found)
{
    struct st_store_list list = {0};
    char manifest[ST_PATH_MAX];
    bool there;
    strata_status st;

    if (path == NULL || found == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : "found");
    st = st_path_join(manifest, path, ST_MANIFEST_NAME);
    if (st == STRATA_OK)
        st = st_file_find(&there, manifest);
    if (st == STRATA_OK && !there)
        st = st_store_list(&list, path);
    if (st == STRATA_OK)
        *found = there || list.count > 0;
    free(list.steps);
    return st;
}

strata_status strata_verify_older(const char *path, char older[4096])
{
    struct st_checkpoint *ck;
    strata_status st;

    if (path == NULL || older == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : "older");
    if ((st = st_checkpoint_older(&ck, path)) != STRATA_OK)
        return st;
    snprintf(older, 4096, "%s", ck->path);
    st_checkpoint_close(ck);
    return STRATA_OK;
}

strata_status strata_verify_later(const char *path, char later[4096])
{
    struct st_checkpoint *ck;
    strata_status st;

    if (path == NULL || later == NULL)
        return st_error_missing(__func__, path == NULL ? "path" : "later");
    if ((st = st_checkpoint_later(&ck, path)) != STRATA_OK)
        return st;
    snprintf(later, 4096, "%s", ck->path);
    st_checkpoint_close(ck);
    return STRATA_OK;
}

strata_status strata_verify_leftovers(const char *dir, bool sweep, void (*seen)(void *ctx, const char *path, bool live),
                                      void *ctx, uint32_t *removed)
{
    struct st_store_list list;
    strata_status st;

    if (dir == NULL || removed == NULL)
        return st_error_missing(__func__, dir == NULL ? "dir" : "removed");
    if ((st = st_store_list(&list, dir)) != STRATA_OK) /* whether it is a directory */
        return st;
    free(list.steps);
    *removed = st_store_leftovers(dir, sweep, seen, ctx) + (sweep ? st_swap_sweep(dir) : 0);
    if (seen != NULL)
        st_swap_leftovers(dir, seen, ctx);
    return STRATA_OK;
}
