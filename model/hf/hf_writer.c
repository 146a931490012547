/* model/hf/hf_writer.c - writes a Hugging Face directory range by range; its files get their names only at commit, complete.
 *
 * There is one model.safetensors in parameter order.  All files are created when the writer opens, the weights with all their
 * disk space and the others complete, so that a file that cannot be created, or that is another output, is found before training.
 * Once everything is on the disk, commit renames first the configs, then the weights, then the copies of the source's other
 * files; it removes shards of the previous model.  Weights that are on the disk are never removed because they cannot get their
 * name.  No other file is touched. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/dir_lock.h"
#include "core/system/file.h"
#include "model/adapter/adapter.h"
#include "model/hf/hf_beside_internal.h"
#include "model/hf/hf_config_internal.h"
#include "model/hf/hf_experts_internal.h"
#include "model/hf/hf_names_internal.h"
#include "model/hf/hf_output_internal.h"
#include "model/hf/hf_source_internal.h"
#include "model/hf/safetensors_internal.h"
#include "model/layout.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct st_hf_writer {
    const struct st_model *m;
    struct st_hf_copies *copies; /* NULL: the model began as a preset */
    struct st_new_file weights, config, generation;
    char dir[ST_PATH_MAX];
    struct st_dir_lock lock; /* of the directory, until the last file has its name */
    uint64_t *tensor_at;     /* [tensor_count] offsets in the file */
    struct page_state {
        uint64_t next, params;
    } * pages;              /* [page_count] end of the last range; values written so far */
    bool overwrite, synced; /* synced: the weights are complete and on the disk */
};

static void name_stacks(const struct st_hf_writer *w, struct st_safetensors_writer *header, const struct st_tensor *t)
{
    struct st_hf_stack stack = {.block = w->m->workload.pages[t->page].layer - 1};

    for (stack.kind = 0; stack.kind < ST_HF_STACK_KINDS; stack.kind++) {
        char name[ST_HF_NAME_BYTES];
        uint64_t shape[3];
        const uint32_t rank = st_hf_stack_shape(shape, &w->m->config, stack.kind);

        st_hf_stack_name(name, &w->m->config, stack);
        if (rank > 0)
            st_safetensors_writer_add(header, name, shape, rank);
    }
}

/* Returns the end of what lies before the next tensor, or after a layer's stacks, of which this one is in the middle. */
static uint64_t place_tensor(struct st_hf_writer *w, uint32_t i, uint64_t end)
{
    const struct st_model_config *c = &w->m->config;
    const struct st_tensor *t = &w->m->tensors[i];
    const uint64_t bytes = strata_dtype_bytes(w->m->batch.dtype);
    uint64_t at;

    if (!c->stacked || t->expert == ST_NO_EXPERT) {
        w->tensor_at[i] = end;
        return end + t->elems * bytes;
    }
    for (enum st_hf_stack_kind kind = 0; kind < ST_HF_STACK_KINDS && (t->expert > 0 || t->part > 0); kind++)
        end -= st_hf_stack_elems(c, kind) * bytes;
    for (enum st_hf_stack_kind kind = 0; kind < ST_HF_STACK_KINDS; kind++) {
        if (st_hf_stack_place(&at, c, kind, t))
            w->tensor_at[i] = end + at * bytes;
        end += st_hf_stack_elems(c, kind) * bytes;
    }
    return end;
}

static strata_status write_header(struct st_hf_writer *w, const struct st_hf_beside *beside)
{
    struct st_safetensors_writer *header;
    char name[ST_HF_NAME_BYTES];
    unsigned char *text;
    uint64_t bytes, end;
    strata_status st;

    if ((st = st_safetensors_writer_begin(&header, w->m->batch.dtype)) != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < w->m->tensor_count; i++) {
        const struct st_tensor *t = &w->m->tensors[i];

        if (w->m->config.stacked && t->expert != ST_NO_EXPERT) {
            if (t->expert == 0 && t->part == 0)
                name_stacks(w, header, t);
            continue;
        }
        st_hf_name_in_file(name, &w->m->config, t->name, beside->older);
        if (w->m->config.stacked)
            st_hf_stack_router(name, &w->m->config, true);
        st_safetensors_writer_add(header, name, t->shape, t->rank);
    }
    st_hf_beside_name(beside, header);
    if ((st = st_safetensors_writer_end(header, &text, &bytes)) != STRATA_OK)
        return st;
    end = bytes;
    for (uint32_t i = 0; i < w->m->tensor_count; i++)
        end = place_tensor(w, i, end);
    if ((st = st_new_file_reserve(&w->weights, end + beside->bytes)) == STRATA_OK &&
        (st = st_new_file_write_at(&w->weights, text, bytes, 0)) == STRATA_OK)
        st = st_hf_beside_copy(beside, &w->weights, end);
    free(text);
    return st;
}

/* Gives the weights their header, and all that this run does not change. */
static strata_status begin_weights(struct st_hf_writer *w, const char *source)
{
    struct st_hf_beside beside = {0};
    strata_status st = st_hf_beside_open(&beside, &w->m->config, source);

    if (st == STRATA_OK)
        st = write_header(w, &beside);
    st_hf_beside_close(&beside);
    return st;
}

typedef void write_fn(const struct st_model *m, FILE *file);

static void write_config(const struct st_model *m, FILE *file)
{
    st_model_config_write(&m->config, m->batch.dtype, file);
}

static void write_generation_config(const struct st_model *m, FILE *file)
{
    st_model_generation_config_write(&m->config, file);
}

static strata_status put_text(const struct st_hf_writer *w, struct st_new_file *file, const char *name, write_fn *put,
                              const struct st_hf_instead *instead)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *stream = open_memstream(&text, &bytes);
    strata_status st;

    if (stream == NULL)
        return st_nomem(0);
    put(w->m, stream);
    st = fclose(stream) == 0 ? STRATA_OK : st_nomem(0);
    if (st == STRATA_OK && instead != NULL && instead->ends)
        st = st_hf_ends_add(&text, name, instead->end_token);
    if (st == STRATA_OK)
        st = st_hf_output_put(file, w->dir, name, text, strlen(text), w->overwrite);
    free(text);
    return st;
}

/* Writes all files but the weights. */
static strata_status make_others(struct st_hf_writer *w, const char *source, const struct st_hf_instead *instead)
{
    struct st_hf_source *read;
    strata_status st = st_hf_source_open(&read, source, instead, w->dir, w->overwrite, w->m->batch.dtype);

    if (st != STRATA_OK)
        return st;
    if (source != NULL)
        st = st_hf_source_put_configs(read, &w->config, &w->generation, w->dir, w->overwrite);
    else if ((st = put_text(w, &w->config, ST_HF_CONFIG_NAME, write_config, NULL)) == STRATA_OK)
        st = put_text(w, &w->generation, ST_HF_GENERATION_NAME, write_generation_config, instead);
    if (st == STRATA_OK)
        st = st_hf_source_copy_files(&w->copies, read, w->dir);
    st_hf_source_close(read);
    return st;
}

strata_status st_hf_writer_open(struct st_hf_writer **out, const struct st_model *m, const char *dir, const char *source,
                                const struct st_hf_instead *instead, bool overwrite)
{
    struct st_hf_writer *w = calloc(1, sizeof(*w));
    char path[ST_PATH_MAX];
    strata_status st;

    if (w == NULL)
        return st_nomem(sizeof(*w));
    w->m = m;
    w->weights.fd = w->config.fd = w->generation.fd = -1;
    w->lock = ST_DIR_LOCK_NONE;
    if (dir[0] == '\0' || (size_t)snprintf(w->dir, sizeof(w->dir), "%s", dir) >= sizeof(w->dir)) {
        free(w);
        return st_error(STRATA_E_INVAL, "output directory \"%.64s\": the name is %s", dir, dir[0] == '\0' ? "empty" : "too long");
    }
    w->overwrite = overwrite;
    w->tensor_at = calloc(m->tensor_count, sizeof(*w->tensor_at));
    w->pages = calloc(m->workload.page_count, sizeof(*w->pages));
    if (w->tensor_at == NULL || w->pages == NULL) {
        st = st_nomem(0);
        goto fail;
    }
    if ((st = st_path_join(path, dir, ST_HF_WEIGHTS_NAME)) != STRATA_OK ||
        (st = st_new_file_create(&w->weights, path, ST_NEW_FILE_PARENTS | (overwrite ? ST_NEW_FILE_OVERWRITE : 0))) !=
            STRATA_OK ||
        (st = st_dir_lock(&w->lock, dir)) != STRATA_OK ||
        (st = st_hf_output_check_lacks(dir, ST_ADAPTER_CONFIG_NAME, "an adapter")) != STRATA_OK ||
        (st = st_hf_output_check(dir, overwrite)) != STRATA_OK || (st = begin_weights(w, source)) != STRATA_OK ||
        (st = make_others(w, source, instead)) != STRATA_OK)
        goto fail;
    *out = w;
    return STRATA_OK;

fail:
    st_hf_writer_abort(w);
    return st_error_at_start(st);
}

strata_status st_hf_writer_put(struct st_hf_writer *w, uint32_t page, uint64_t first, uint64_t count, const void *weight)
{
    const uint64_t elem_bytes = strata_dtype_bytes(w->m->batch.dtype);
    const unsigned char *from = weight;
    struct st_piece piece;
    strata_status st;

    if (page >= w->m->workload.page_count || first < w->pages[page].next || first > w->m->workload.pages[page].elems ||
        count > w->m->workload.pages[page].elems - first)
        return st_error(STRATA_E_INTERNAL, "%s: elements %llu and on of page %u are out of order", w->weights.path,
                        (unsigned long long)first, page);
    for (uint32_t i = 0; st_model_piece(w->m, page, first, count, i, &piece); i++) {
        const uint64_t at = w->tensor_at[piece.tensor - w->m->tensors] + piece.tensor_first * elem_bytes;

        if (piece.count > 0 && (st = st_new_file_write_at(&w->weights, from + piece.range_first * elem_bytes,
                                                          piece.count * elem_bytes, at)) != STRATA_OK)
            return st;
        w->pages[page].params += piece.count;
    }
    w->pages[page].next = first + count;
    return STRATA_OK;
}

static void release(struct st_hf_writer *w)
{
    st_hf_copies_abort(w->copies);
    st_dir_unlock(&w->lock);
    free(w->tensor_at);
    free(w->pages);
    free(w);
}

static strata_status check_complete(const struct st_hf_writer *w)
{
    for (uint32_t i = 0; i < w->m->workload.page_count; i++) {
        if (w->pages[i].params != w->m->workload.pages[i].params)
            return st_error(STRATA_E_INTERNAL, "%s: page %u has %llu of %llu values", w->weights.path, i,
                            (unsigned long long)w->pages[i].params, (unsigned long long)w->m->workload.pages[i].params);
    }
    return STRATA_OK;
}

/* Weights and configs are one model: all of them are on the disk before the first takes its name, and the weights take theirs
 * last. */
static strata_status name_all(struct st_hf_writer *w, strata_status *unsafe)
{
    const bool has_generation = w->generation.fd >= 0;
    strata_status st = st_new_file_sync(&w->weights);

    w->synced = st == STRATA_OK;
    if (st == STRATA_OK)
        st = st_new_file_sync(&w->config);
    if (st == STRATA_OK && has_generation)
        st = st_new_file_sync(&w->generation);
    if (st == STRATA_OK)
        st = st_hf_output_name(&w->config, unsafe);
    if (st == STRATA_OK && has_generation)
        st = st_hf_output_name(&w->generation, unsafe);
    if (st == STRATA_OK)
        st = st_new_file_publish(&w->weights);
    return st == STRATA_OK ? st_hf_output_name(&w->weights, unsafe) : st;
}

/* A file that replaced another stays, since the old one cannot be restored. */
static void withdraw(struct st_hf_writer *w, struct st_new_file *file, const char *name)
{
    struct st_sentence sentence;

    st_new_file_abort(file);
    if (!file->named || w->overwrite || w->weights.named)
        return;
    st_error_keep(&sentence);
    (void)st_hf_output_remove(w->dir, name); /* keep the sentence of the first failure */
    (void)st_error_again(STRATA_E_IO, &sentence);
}

static bool is_new(void *ctx, const char *name)
{
    const struct st_hf_writer *w = ctx;

    return st_hf_output_has_name(&w->weights, name) || st_hf_output_has_name(&w->generation, name);
}

static strata_status remove_old(struct st_hf_writer *w)
{
    struct st_hf_index index;
    strata_status st = st_hf_output_read_index(&index, w->dir);

    if (st == STRATA_OK)
        st = st_hf_output_remove_old(w->dir, &index, is_new, w);
    st_hf_index_fini(&index);
    return st;
}

/* Once the model is in place: names the files copied from the source's directory and removes what is left of another model. */
static strata_status finish_directory(struct st_hf_writer *w)
{
    strata_status st = st_hf_copies_commit(w->copies);

    w->copies = NULL;
    if (st != STRATA_OK)
        return st_error_prefix(st, "the model is written, but not all files that belong with it");
    if (w->overwrite)
        st = remove_old(w);
    return st == STRATA_OK ? st : STRATA_E_IO; /* any failure: the directory could be read at the start */
}

/* False once the directory was removed or moved. */
static bool is_where_it_was(const struct st_new_file *f)
{
    char path[sizeof(f->path) + sizeof(f->temp)];
    struct stat kept, there;

    snprintf(path, sizeof(path), "%.*s%s", (int)f->base, f->path, f->temp);
    return !st_fault_refuses("hf.kept") && fstat(f->fd, &kept) == 0 && lstat(path, &there) == 0 && kept.st_dev == there.st_dev &&
           kept.st_ino == there.st_ino;
}

/* The weights hold hours of training: if they cannot get their name they stay, and the error says where; but not if their
 * directory is gone. */
static void keep_weights(struct st_hf_writer *w)
{
    const struct st_new_file *f = &w->weights;

    if (!w->synced || f->named || f->kept)
        return;
    st_new_file_keep(&w->weights);
    if (!is_where_it_was(f)) {
        (void)st_error(STRATA_E_IO,
                       "%s; the trained weights are lost, as %.*s was removed or moved meanwhile: give a directory that stays",
                       strata_last_error(), (int)f->base, f->path);
        return;
    }
    (void)st_error(STRATA_E_IO,
                   "%s; the trained weights are kept as %.*s%s: rename them to " ST_HF_WEIGHTS_NAME
                   ", beside the model's " ST_HF_CONFIG_NAME " (of a preset: from a run of one step)%s",
                   strata_last_error(), (int)f->base, f->path, f->temp,
                   st_new_file_kept_for_now(f) ? "; do so before the next export to this directory, which removes them" : "");
}

strata_status st_hf_writer_commit(struct st_hf_writer *w)
{
    strata_status unsafe = STRATA_OK, st;
    struct st_sentence sentence;

    if ((st = check_complete(w)) != STRATA_OK || (st = name_all(w, &unsafe)) != STRATA_OK) {
        st_hf_writer_abort(w);
        return st;
    }
    st_error_keep(&sentence);
    st = finish_directory(w);
    release(w);
    return st == STRATA_OK && unsafe != STRATA_OK
               ? st_error_prefix(st_error_again(unsafe, &sentence), "the model is written, but a power cut may take it")
               : st;
}

void st_hf_writer_abort(struct st_hf_writer *w)
{
    if (w == NULL)
        return;
    st_hf_copies_abort(w->copies);
    w->copies = NULL;
    withdraw(w, &w->config, ST_HF_CONFIG_NAME);
    withdraw(w, &w->generation, ST_HF_GENERATION_NAME);
    keep_weights(w);
    st_new_file_abort(&w->weights); /* last, as it also removes the directories that were made */
    release(w);
}

/* What an export takes from there.  An adapter is exported without. */
static strata_status put_beside(struct st_hf_writer *w, const char *source)
{
    struct st_hf_beside beside = {0};
    strata_status st = STRATA_OK;

    if (w->m->adapted.rank == 0)
        st = st_hf_beside_open(&beside, &w->m->config, source);
    if (st == STRATA_OK)
        st = st_hf_beside_put(&beside, &w->weights, w->dir);
    st_hf_beside_close(&beside);
    return st;
}

strata_status st_hf_write_small(const struct st_model *m, const char *dir, const char *source,
                                const struct st_hf_instead *instead)
{
    struct st_hf_writer w = {.m = m, .weights.fd = -1, .config.fd = -1, .generation.fd = -1};
    struct st_new_file stacked = {.fd = -1};
    strata_status st;

    if ((size_t)snprintf(w.dir, sizeof(w.dir), "%s", dir) >= sizeof(w.dir))
        return st_error(STRATA_E_INVAL, "%.64s...: the name is too long", dir);
    st = make_others(&w, source, instead);
    if (st == STRATA_OK)
        st = put_beside(&w, source);
    if (st == STRATA_OK && m->config.stacked &&
        (st = st_hf_output_put(&stacked, dir, ST_HF_STACKED_NAME, "", 0, false)) == STRATA_OK)
        st = st_new_file_commit(&stacked);
    if (st == STRATA_OK && w.weights.fd >= 0)
        st = st_new_file_commit(&w.weights);
    if (st == STRATA_OK)
        st = st_new_file_commit(&w.config);
    if (st == STRATA_OK && w.generation.fd >= 0)
        st = st_new_file_commit(&w.generation);
    if (st == STRATA_OK) {
        st = st_hf_copies_commit(w.copies);
        w.copies = NULL;
    }
    st_hf_copies_abort(w.copies);
    st_new_file_abort(&stacked);
    st_new_file_abort(&w.weights);
    st_new_file_abort(&w.config);
    st_new_file_abort(&w.generation);
    return st;
}
