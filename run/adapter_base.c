/* run/adapter_base.c - see run/adapter_base.h.
 *
 * Of each tensor the first values are compared, rounded or quantised as a run does it when it loads them.  Other weights, trained
 * further or begun otherwise, differ nearly everywhere. */
#include "run/adapter_base.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "kernels/widen.h"
#include "model/nf4.h"
#include "offload/checkpoint/reader.h"
#include "run/checkpoint_adapter.h"
#include "run/run_describe.h"

#include <stdlib.h>
#include <string.h>

#define RUNS_MAX 64u   /* that began one with another's checkpoint */
#define SAMPLE   4096u /* values of a tensor; whole NF4 records */

struct comparing {
    const struct st_checkpoint *ck;
    struct st_reader *reader;
    const struct st_kernels *kernels;
    float *values;          /* [SAMPLE] of the model, zeros behind its last */
    unsigned char *rounded; /* [SAMPLE] in the checkpoint's format */
    uint64_t compared;      /* values that arrived */
    bool out_in;            /* how files of the model have matrices */
    bool differs;
};

/* Only the codes, as double quantisation changes the scales; and, since it may turn a code, most of them. */
static bool same_records(const struct st_nf4_block *a, const struct st_nf4_block *b, uint64_t count)
{
    uint64_t same = 0;

    for (uint64_t i = 0; i < count; i++)
        same += memcmp(a[i].codes, b[i].codes, sizeof(a[i].codes)) == 0;
    return same * 2 > count;
}

static strata_status compare(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data)
{
    struct comparing *c = ctx;
    const strata_dtype format = (strata_dtype)row->format;
    const float *values = c->values + c->compared;
    bool same;

    (void)first;
    if (format == STRATA_NF4) {
        c->kernels->nf4_quantise((struct st_nf4_block *)c->rounded, values, elems);
        same = same_records((const struct st_nf4_block *)c->rounded, data, elems / ST_NF4_ELEMS);
    } else {
        if (format == STRATA_F32)
            memcpy(c->rounded, values, elems * sizeof(*values));
        else if (format == STRATA_F16)
            c->kernels->f32_to_f16((void *)c->rounded, values, elems);
        else
            c->kernels->f32_to_bf16((void *)c->rounded, values, elems);
        same = memcmp(c->rounded, data, elems * strata_dtype_bytes(format)) == 0;
    }
    c->compared += elems;
    c->differs = c->differs || !same;
    return STRATA_OK;
}

/* The frozen group that holds a tensor's part; NULL: it is trained. */
static const struct st_manifest_group *frozen_group(const struct st_manifest *m, const struct st_manifest_tensor *t)
{
    const struct st_manifest_group *g;

    for (uint32_t i = 0; (g = st_manifest_group(m, t->page, i)) != NULL; i++)
        if (g->kind == ST_GROUP_FROZEN && t->offset >= g->offset && t->offset < g->offset + g->elems)
            return g;
    return NULL;
}

/* The first part of a tensor that spans pages. */
static const struct st_manifest_tensor *find_part(const struct st_manifest *m, const char *name)
{
    for (uint32_t i = 0; i < m->tensor_count; i++)
        if (strcmp(m->tensors[i].name, name) == 0)
            return &m->tensors[i];
    return NULL;
}

static strata_status compare_tensor(struct comparing *c, const struct st_workload *w, const struct st_weight_source *from,
                                    const struct st_tensor *t)
{
    const struct st_manifest_tensor *part = find_part(&c->ck->manifest, t->name);
    const struct st_manifest_group *group = part != NULL ? frozen_group(&c->ck->manifest, part) : NULL;
    const struct st_reader_sink sink = {.data = compare, .ctx = c};
    const uint64_t here = t->page_count > 1 ? w->pages[t->page].elems - t->offset : t->elems;
    uint64_t count = here < SAMPLE ? here : SAMPLE, spans;
    struct st_reader_span list[2]; /* SAMPLE values lie in one tile or two, which are of one row or two */
    strata_status st;

    if (group == NULL)
        return STRATA_OK;
    count = count < part->elems ? count : part->elems;
    memset(c->values, 0, SAMPLE * sizeof(*c->values));
    if (group->format == STRATA_NF4 && !c->out_in)
        st = st_nf4_read_turned(from, t, 0, count, c->values);
    else
        st = from->read(from->ctx, t->page, t->offset, count, c->values);
    if (st != STRATA_OK)
        return st;
    if (group->format == STRATA_NF4)
        count = (count + ST_NF4_ELEMS - 1) / ST_NF4_ELEMS * ST_NF4_ELEMS;
    c->compared = 0;
    spans = st_reader_spans(NULL, c->ck, ST_PLANE_WEIGHT, part->page, part->offset, count);
    if (spans > sizeof(list) / sizeof(list[0]))
        return st_error(STRATA_E_CORRUPT, "%s: tensor %s lies in more pieces than a sample of it can: this checkpoint is damaged",
                        c->ck->path, t->name);
    (void)st_reader_spans(list, c->ck, ST_PLANE_WEIGHT, part->page, part->offset, count);
    return st_reader_read(c->reader, list, spans, &sink);
}

static strata_status compare_all(struct comparing *c, const struct st_model *model, const char *dir, struct st_hf_reader *weights)
{
    const struct st_weight_source from = st_hf_reader_source(weights);
    strata_status st = STRATA_OK;

    c->values = st_fault_refuses("run.adapter") ? NULL : malloc(SAMPLE * sizeof(*c->values));
    c->rounded = st_fault_refuses("run.adapter") ? NULL : malloc(SAMPLE * sizeof(float));
    if (c->values == NULL || c->rounded == NULL)
        return st_nomem(0);
    for (uint32_t i = 0; i < st_model_tensor_count(model) && st == STRATA_OK; i++) {
        const struct st_tensor *t = st_model_tensor(model, i);

        if ((st = compare_tensor(c, st_model_workload(model), &from, t)) == STRATA_OK && c->differs)
            st = st_error_remedy(
                st_error(STRATA_E_INPUT, "%s: tensor %s differs from the one that the adapter of %s was trained beside", dir,
                         t->name, c->ck->path),
                "model.model", "name those with model.model; for others: strata export %s export.out DIR, then model.adapter DIR",
                c->ck->path);
    }
    return st == STRATA_OK ? st_hf_reader_check_unchanged(weights) : st;
}

strata_status st_adapter_base_check(const struct st_checkpoint *ck, const struct st_model *model, const char *dir)
{
    struct comparing c = {.ck = ck, .kernels = st_kernels_pick("auto"), .out_in = st_model_config(model)->out_in};
    struct st_hf_reader *weights = NULL;
    strata_status st = st_hf_reader_open(&weights, model, dir);

    if (st == STRATA_OK && (st = st_reader_open(&c.reader, ck, NULL)) == STRATA_OK)
        st = compare_all(&c, model, dir, weights);
    st_reader_close(c.reader);
    st_hf_reader_close(weights);
    free(c.values);
    free(c.rounded);
    return st;
}

/* --- its name --- */

/* The checkpoint whose small files a directory holds; NULL: it is another directory, or the checkpoint cannot be read. */
static strata_status checkpoint_of(struct st_checkpoint **out, const char *dir)
{
    char path[ST_PATH_MAX], manifest[ST_PATH_MAX];
    bool there = false;
    strata_status st;

    *out = NULL;
    if (strcmp(st_path_name(dir), ST_CHECKPOINT_MODEL) != 0)
        return STRATA_OK;
    if ((st = st_path_dir(path, dir)) != STRATA_OK || (st = st_path_join(manifest, path, ST_MANIFEST_NAME)) != STRATA_OK ||
        (st = st_file_find(&there, manifest)) != STRATA_OK || !there)
        return st;
    st = st_checkpoint_open(out, path);
    return st == STRATA_E_INPUT || st == STRATA_E_CORRUPT ? STRATA_OK : st;
}

strata_status st_adapter_base_find(struct st_adapter_base *out, const char *model)
{
    struct st_checkpoint *ck = NULL;
    struct st_adapter_spec *spec;
    strata_status st = st_path_copy(out->name, model);

    out->is_checkpoint = false;
    for (uint32_t i = 0; i < RUNS_MAX && st == STRATA_OK && !out->is_checkpoint; i++) {
        if ((st = checkpoint_of(&ck, out->name)) != STRATA_OK || ck == NULL)
            return st;
        if ((st = st_checkpoint_adapter_spec(&spec, ck)) == STRATA_OK) {
            out->is_checkpoint = spec == NULL;
            st = st_path_copy(out->name, spec == NULL ? ck->path : st_run_began_with(&ck->manifest));
            st_adapter_spec_destroy(spec);
        }
        st_checkpoint_close(ck);
    }
    return st;
}
