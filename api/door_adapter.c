/* api/door_adapter.c - strata/adapter.h: merges an adapter, of a directory or of a checkpoint, into the weights of a directory.
 */
#include "api/handles.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/hub_id.h"
#include "model/hf/generation.h"
#include "run/adapter_base.h"
#include "run/checkpoint_adapter.h"
#include "run/run_describe.h"
#include "strata/adapter.h"
#include "strata/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define COMPARE_ELEMS (UINT64_C(1) << 18)

struct merging {
    struct strata_merge_opts opts;
    struct st_model *model;
    struct st_hf_adapter *adapter; /* of a directory; NULL: of a checkpoint */
    struct st_checkpoint *ck;
    struct st_adapter_spec *spec; /* the checkpoint's, like the next two */
    struct st_checkpoint_adapter *saved;
    struct st_hf_adapted *tensors;
    struct st_adapter_base base; /* of a checkpoint's adapter, where the caller names none */
    char files[ST_PATH_MAX];     /* the checkpoint's small files */
    char cached[ST_PATH_MAX];    /* where the Hugging Face cache has the model that was named so */
    struct st_hf_instead instead;
};

static bool progress(void *ctx, uint64_t done, uint64_t total)
{
    const struct merging *m = ctx;

    return m->opts.progress == NULL || m->opts.progress(m->opts.progress_ctx, "merging", done, total);
}

/* Quantised weights are others than those that the adapter was made for, or than anybody wants to add to. */
static strata_status check_base(const char *dir)
{
    char path[ST_PATH_MAX];
    const st_json *quantised;
    st_json *root;
    strata_status st;

    if (st_hub_is_id(dir) && !st_handle_is_directory(dir))
        return st_handle_no_such_model(dir);
    if (!st_handle_is_directory(dir))
        return st_error(STRATA_E_INPUT, "%s is not a Hugging Face directory: give the one that the adapter was trained on", dir);
    if ((st = st_path_join(path, dir, "config.json")) != STRATA_OK ||
        (st = st_json_parse_file(&root, path, 1u << 20)) != STRATA_OK)
        return st == STRATA_E_CONFIG ? STRATA_E_INPUT : st;
    quantised = st_json_get(root, "quantization_config");
    if (quantised != NULL && st_json_type(quantised) != ST_JSON_NULL)
        st = st_error(
            STRATA_E_INPUT,
            "%s: quantised weights (\"quantization_config\") take no merge: give the directory that they were made from", path);
    st_json_free(root);
    return st;
}

/* What its weights need nothing of a run for. */
static strata_status open_base(struct merging *m)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config = {0};
    strata_status st = st_handle_find_cached(m->cached, &m->opts.model);

    if (st == STRATA_OK)
        st = check_base(m->opts.model);
    if (st == STRATA_OK)
        st = st_model_config_read(&config, m->opts.model);
    return st == STRATA_OK ? st_model_create(&m->model, &config, &batch) : st;
}

static strata_status merge_directory(struct merging *m, struct st_hf_merge *how)
{
    strata_status st = st_hf_adapter_open(&m->adapter, m->model, m->opts.adapter);

    if (st != STRATA_OK)
        return st;
    if (st_hf_adapter_beside(m->adapter) > 0)
        return st_error(STRATA_E_INPUT,
                        "%s: %u of its tensors are not for the text model: merge it with PEFT, which loads all of %s",
                        m->opts.adapter, st_hf_adapter_beside(m->adapter), m->opts.model);
    st_hf_adapter_note_base(m->adapter, m->opts.model);
    if ((st = st_model_peft_note(m->model, st_hf_adapter_spec(m->adapter))) != STRATA_OK)
        return st;
    how->tensors = st_hf_adapter_tensors(m->adapter, &how->count);
    how->values = st_hf_adapter_values(m->adapter);
    return st_hf_merge(how);
}

/* The tokenizer and the template that the run was trained by, and where its answers end, which may not be the base's. */
static strata_status take_instead(struct merging *m)
{
    struct st_generation ends = {0};
    bool there = false;
    strata_status st = st_checkpoint_model_dir(m->files, m->ck);

    if (st == STRATA_OK)
        st = strata_tokenizer_exists(&there, m->files);
    if (st != STRATA_OK || !there || (st = st_generation_read(&ends, m->files)) != STRATA_OK)
        return st;
    m->instead.tokenizer = m->files;
    m->instead.ends = ends.ends_said && ends.end_count > 0;
    if (m->instead.ends)
        m->instead.end_token = ends.end_tokens[ends.end_count - 1]; /* the last, if training has added one */
    return STRATA_OK;
}

static strata_status merge_checkpoint(struct merging *m, struct st_hf_merge *how)
{
    strata_status st = st_hf_adapted_list(&m->tensors, &how->count, m->model, m->spec);

    if (st == STRATA_OK)
        st = take_instead(m);
    if (st == STRATA_OK)
        st = st_adapter_base_check(m->ck, m->model, m->opts.model);
    if (st == STRATA_OK)
        st = st_checkpoint_adapter_open(&m->saved, m->ck);
    if (st != STRATA_OK)
        return st;
    how->tensors = m->tensors;
    how->values = st_checkpoint_adapter_values(m->saved);
    how->instead = &m->instead;
    return st_hf_merge(how);
}

/* What the checkpoint says; a preset's weights are in no directory. */
static strata_status take_base(struct merging *m)
{
    const strata_status st = st_adapter_base_find(&m->base, st_run_began_with(&m->ck->manifest));

    if (st == STRATA_OK && m->base.is_checkpoint)
        return st_error_remedy(
            st_error(STRATA_E_INPUT, "%s: its run began with the weights of the checkpoint %s", m->ck->path, m->base.name),
            "merge.model", "strata export %s export.out DIR writes them, and merge.model DIR names them here", m->base.name);
    if (st == STRATA_OK && m->ck->manifest.model_source[0] != '\0')
        m->opts.model = m->base.name;
    return st;
}

/* Whether the adapter is a directory of PEFT's; else it is a checkpoint, which may say what the base is. */
static strata_status find_adapter(struct merging *m, bool *is_directory)
{
    char path[ST_PATH_MAX];
    strata_status st = st_path_join(path, m->opts.adapter, ST_ADAPTER_CONFIG_NAME);

    if (st != STRATA_OK || (st = st_file_find(is_directory, path)) != STRATA_OK)
        return st;
    if (!*is_directory) {
        if ((st = st_checkpoint_find(&m->ck, m->opts.adapter, NULL, NULL)) != STRATA_OK)
            return st == STRATA_E_INPUT ? st_error(st,
                                                   "%s: neither an adapter's directory (" ST_ADAPTER_CONFIG_NAME
                                                   ") nor a checkpoint, nor a directory of checkpoints",
                                                   m->opts.adapter)
                                        : st;
        if ((st = st_checkpoint_adapter_spec(&m->spec, m->ck)) != STRATA_OK)
            return st;
        if (m->spec == NULL)
            return st_error_remedy(st_error(STRATA_E_INPUT, "%s: its run trained no adapter (strata.lora)", m->ck->path),
                                   "strata.lora", "export it without strata_adapter_merge()");
        if (m->opts.model == NULL && (st = take_base(m)) != STRATA_OK)
            return st;
    }
    if (m->opts.model == NULL)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: say which weights it is merged into", m->opts.adapter),
                               "merge.model", "merge.model DIR");
    return STRATA_OK;
}

/* --- comparing --- */

struct comparing {
    struct st_checkpoint *ck;
    struct st_model *model;
    struct st_adapter_spec *spec; /* the checkpoint's */
    struct st_hf_adapted *tensors;
    uint32_t count;
    struct st_checkpoint_adapter *saved;
    struct st_hf_adapter *files;
    float *parts; /* [2][COMPARE_ELEMS] */
};

static strata_status open_both(struct comparing *c, const char *dir, const char *checkpoint)
{
    const struct st_model_batch batch = {.micro_batch = 1, .seq = 1, .grad_accum = 1, .dtype = STRATA_F32};
    struct st_model_config config = {0};
    char files[ST_PATH_MAX];
    strata_status st = st_checkpoint_find(&c->ck, checkpoint, NULL, NULL);

    if (st != STRATA_OK || (st = st_checkpoint_adapter_spec(&c->spec, c->ck)) != STRATA_OK)
        return st;
    if (c->spec == NULL)
        return st_error(STRATA_E_CORRUPT, "%s: its run trained no adapter", c->ck->path);
    if ((st = st_checkpoint_model_dir(files, c->ck)) != STRATA_OK || (st = st_model_config_read(&config, files)) != STRATA_OK ||
        (st = st_model_create(&c->model, &config, &batch)) != STRATA_OK ||
        (st = st_hf_adapted_list(&c->tensors, &c->count, c->model, c->spec)) != STRATA_OK ||
        (st = st_checkpoint_adapter_open(&c->saved, c->ck)) != STRATA_OK)
        return st;
    c->parts = st_fault_refuses("api.adapter") ? NULL : malloc(2 * COMPARE_ELEMS * sizeof(*c->parts));
    if (c->parts == NULL)
        return st_nomem(2 * COMPARE_ELEMS * sizeof(*c->parts));
    return st_hf_adapter_open(&c->files, c->model, dir);
}

/* The directory's tensors in the order of the checkpoint's. */
static strata_status compare_tensor(struct comparing *c, const struct st_hf_adapted *a, const struct st_hf_adapted *b, bool *same)
{
    const struct st_adapter_values saved = st_checkpoint_adapter_values(c->saved), files = st_hf_adapter_values(c->files);
    const uint64_t elems = st_hf_adapted_elems(a);
    strata_status st = STRATA_OK;

    *same = strcmp(a->name, b->name) == 0 && elems == st_hf_adapted_elems(b) && a->scale == b->scale;
    for (uint64_t first = 0, n; first < elems && *same && st == STRATA_OK; first += n) {
        n = elems - first < COMPARE_ELEMS ? elems - first : COMPARE_ELEMS;
        if ((st = saved.read(saved.ctx, a, first, n, c->parts)) == STRATA_OK &&
            (st = files.read(files.ctx, b, first, n, c->parts + COMPARE_ELEMS)) == STRATA_OK)
            *same = memcmp(c->parts, c->parts + COMPARE_ELEMS, n * sizeof(float)) == 0;
    }
    return st;
}

strata_status strata_adapter_compare(const char *dir, const char *checkpoint, bool *same)
{
    struct comparing c = {0};
    const struct st_hf_adapted *list;
    uint32_t count = 0;
    bool equal = false;
    strata_status st;

    if (dir == NULL || checkpoint == NULL || same == NULL)
        return st_error_missing(__func__, dir == NULL ? "dir" : checkpoint == NULL ? "checkpoint" : "same");
    if ((st = open_both(&c, dir, checkpoint)) == STRATA_OK) {
        list = st_hf_adapter_tensors(c.files, &count);
        equal = count == c.count;
        for (uint32_t i = 0; i < count && equal && st == STRATA_OK; i++)
            st = compare_tensor(&c, &c.tensors[i], &list[i], &equal);
    }
    if (st == STRATA_OK)
        *same = equal;
    free(c.parts);
    free(c.tensors);
    st_hf_adapter_close(c.files);
    st_checkpoint_adapter_close(c.saved);
    st_adapter_spec_destroy(c.spec);
    st_checkpoint_close(c.ck);
    st_model_destroy(c.model);
    return st;
}

/* --- merging --- */

strata_status strata_adapter_merge(const struct strata_merge_opts *opts)
{
    struct merging m = {0};
    struct st_hf_merge how = {.progress = progress, .ctx = &m};
    bool is_directory = false;
    fenv_t floats;
    strata_status st = st_handle_opts(&m.opts, sizeof(m.opts), opts, "strata_merge_opts");

    if (opts == NULL || (st == STRATA_OK && (m.opts.adapter == NULL || m.opts.out == NULL)))
        return st_error_missing(__func__, opts == NULL ? "opts" : m.opts.adapter == NULL ? "adapter" : "out");
    if (st == STRATA_OK)
        st = st_hf_output_check(m.opts.out, m.opts.overwrite);
    if (st == STRATA_OK)
        st = find_adapter(&m, &is_directory);
    if (st == STRATA_OK)
        st = open_base(&m);
    how.model = m.model;
    how.dir = m.opts.model;
    how.out = m.opts.out;
    how.overwrite = m.opts.overwrite;
    st_floats_plain(&floats);
    if (st == STRATA_OK)
        st = is_directory ? merge_directory(&m, &how) : merge_checkpoint(&m, &how);
    st_floats_restore(&floats);
    free(m.tensors);
    st_checkpoint_adapter_close(m.saved);
    st_hf_adapter_close(m.adapter);
    st_adapter_spec_destroy(m.spec);
    st_checkpoint_close(m.ck);
    st_model_destroy(m.model);
    return st;
}
