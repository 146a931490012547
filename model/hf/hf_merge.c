/* model/hf/hf_merge.c - adds adapters to the weights of a directory, and writes it with nothing else changed.
 *
 * Each file of weights is copied from beginning to end under a new name; where it holds a tensor that is adapted, its rows are
 * read, changed and written instead.  Memory: one tensor's A and B, and a part of its rows.  All files take their names together,
 * once they are on the disk. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/cleanup.h"
#include "core/system/dir_lock.h"
#include "core/system/file.h"
#include "kernels/widen.h"
#include "model/hf/hf_adapter.h"
#include "model/hf/hf_index_internal.h"
#include "model/hf/hf_output_internal.h"
#include "model/hf/hf_reader_internal.h"
#include "model/hf/hf_source_internal.h"
#include "model/layout.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PART_BYTES (UINT64_C(4) << 20)

/* A tensor that is not copied. */
struct change {
    struct st_hf_place place;
    const struct st_hf_adapted *a; /* its A, which B follows; or what replaces it */
    const struct st_tensor *tensor;
    uint64_t row; /* of B: that of the tensor's first */
};

struct merger {
    const struct st_hf_merge *how;
    struct st_hf_reader *base;
    const struct st_kernels *kernels;
    struct change *changes; /* [change_count], in the order of files and places */
    uint32_t change_count;
    struct st_new_file *files; /* [file_count] */
    uint32_t file_count;
    struct st_dir_lock lock; /* of the directory that is written, until all files have their names */
    struct st_new_file config, generation, index;
    struct st_hf_index old; /* of the model that is replaced */
    struct st_hf_copies *copies;
    unsigned char *part; /* [PART_BYTES] */
    uint64_t done, total;
};

/* --- a tensor's values --- */

static strata_status advance(struct merger *m, uint64_t bytes)
{
    m->done += bytes;
    if (m->how->progress == NULL || m->how->progress(m->how->ctx, m->done, m->total))
        return STRATA_OK;
    return st_error(STRATA_E_CANCELLED, "merging was cancelled");
}

static void narrow(const struct merger *m, void *out, const float *in, uint64_t count, strata_dtype dtype)
{
    if (dtype == STRATA_BF16)
        m->kernels->f32_to_bf16(out, in, count);
    else if (dtype == STRATA_F16)
        m->kernels->f32_to_f16(out, in, count);
    else
        memcpy(out, in, count * sizeof(*in));
}

/* Rounded values, widened again into `values`: of fp16 they may be infinite. */
static strata_status put_rows(struct merger *m, const struct change *c, struct st_new_file *file, uint64_t at, float *values,
                              uint64_t count)
{
    const uint64_t bytes = count * strata_dtype_bytes(c->place.dtype);
    strata_status st;

    narrow(m, m->part, values, count, c->place.dtype);
    st_widen(m->kernels, values, m->part, c->place.dtype, count);
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return st_error(STRATA_E_NUMERICS, "%s: tensor %s is not finite in %s once the adapter is added: nothing is written",
                            c->place.path, c->tensor->name, strata_dtype_name(c->place.dtype));
    if ((st = st_new_file_write_at(file, m->part, bytes, at)) != STRATA_OK)
        return st;
    return advance(m, bytes);
}

/* The whole of A or B.  [elems] */
static strata_status read_whole(const struct merger *m, const struct st_hf_adapted *t, float **out)
{
    const struct st_adapter_values *from = &m->how->values;
    const uint64_t elems = st_hf_adapted_elems(t);
    strata_status st;

    *out = st_fault("merge.alloc", 0) < 0 ? NULL : malloc(elems * sizeof(**out));
    if (*out == NULL)
        return st_nomem(elems * sizeof(**out));
    st = from->read(from->ctx, t, 0, elems, *out);
    return st == STRATA_OK ? st_hf_adapted_check_finite(t, *out, elems) : st;
}

static strata_status transpose(float **matrix, uint64_t rows, uint64_t cols)
{
    float *out = st_fault("merge.alloc", 0) < 0 ? NULL : malloc(rows * cols * sizeof(*out));

    if (out == NULL)
        return st_nomem(rows * cols * sizeof(*out));
    for (uint64_t r = 0; r < rows; r++)
        for (uint64_t c = 0; c < cols; c++)
            out[c * rows + r] = (*matrix)[r * cols + c];
    free(*matrix);
    *matrix = out;
    return STRATA_OK;
}

/* values [rows, cols] += scale * left [rows, r] right [r, cols]; delta [cols] */
static void add_product(float *values, const float *left, const float *right, uint64_t rows, uint64_t cols, uint64_t r,
                        float scale, float *delta)
{
    for (uint64_t i = 0; i < rows; i++) {
        memset(delta, 0, cols * sizeof(*delta));
        for (uint64_t k = 0; k < r; k++) {
            const float factor = left[i * r + k];

            for (uint64_t j = 0; j < cols; j++)
                delta[j] += factor * right[k * cols + j];
        }
        for (uint64_t j = 0; j < cols; j++)
            values[i * cols + j] += scale * delta[j];
    }
}

/* left [rows, r] and right [r, cols] of the matrix as it is stored: [out, in], or GPT-2's [in, out]. */
static strata_status add_rows(struct merger *m, const struct change *c, struct st_new_file *file, const float *left,
                              const float *right)
{
    const uint64_t rows = c->tensor->shape[0], cols = c->tensor->shape[1], r = c->a->shape[0];
    const uint64_t elem_bytes = strata_dtype_bytes(c->place.dtype);
    const uint64_t whole = PART_BYTES / sizeof(float) / cols, step = whole > 0 ? whole : 1;
    float *values = st_fault("merge.alloc", 0) < 0 ? NULL : malloc((step + 1) * cols * sizeof(*values));
    strata_status st = values != NULL ? STRATA_OK : st_nomem((step + 1) * cols * sizeof(*values));

    for (uint64_t row = 0; row < rows && st == STRATA_OK; row += step) {
        const uint64_t count = (rows - row < step ? rows - row : step) * cols;
        const uint64_t at = c->place.begin + row * cols * elem_bytes;

        if ((st = st_file_read_at(c->place.fd, m->part, count * elem_bytes, at, c->place.path)) != STRATA_OK)
            break;
        st_widen(m->kernels, values, m->part, c->place.dtype, count);
        add_product(values, left + row * r, right, count / cols, cols, r, c->a->scale, values + step * cols);
        st = put_rows(m, c, file, at, values, count);
    }
    free(values);
    return st;
}

static strata_status merge_tensor(struct merger *m, const struct change *c, struct st_new_file *file)
{
    const bool out_in = !st_model_is_turned(m->how->model, c->tensor);
    float *a = NULL, *b = NULL;
    strata_status st;

    if ((st = read_whole(m, c->a, &a)) == STRATA_OK && (st = read_whole(m, c->a + 1, &b)) == STRATA_OK && !out_in &&
        (st = transpose(&a, c->a->shape[0], c->a->shape[1])) == STRATA_OK)
        st = transpose(&b, c->a[1].shape[0], c->a[1].shape[1]);
    if (st == STRATA_OK)
        st = add_rows(m, c, file, out_in ? b + c->row * c->a->shape[0] : a, out_in ? a : b);
    free(a);
    free(b);
    return st;
}

/* A tensor of modules_to_save. */
static strata_status replace_tensor(struct merger *m, const struct change *c, struct st_new_file *file)
{
    const struct st_adapter_values *from = &m->how->values;
    const uint64_t step = PART_BYTES / sizeof(float), elems = c->a->tensor->elems;
    float *values = st_fault("merge.alloc", 0) < 0 ? NULL : malloc(PART_BYTES);
    strata_status st = values != NULL ? STRATA_OK : st_nomem(PART_BYTES);

    for (uint64_t first = 0; first < elems && st == STRATA_OK; first += step) {
        const uint64_t count = elems - first < step ? elems - first : step;

        if ((st = from->read(from->ctx, c->a, first, count, values)) == STRATA_OK)
            st = put_rows(m, c, file, c->place.begin + first * strata_dtype_bytes(c->place.dtype), values, count);
    }
    free(values);
    return st;
}

/* --- files --- */

static strata_status copy_range(struct merger *m, const struct st_hf_file *from, struct st_new_file *to, uint64_t begin,
                                uint64_t end)
{
    strata_status st = STRATA_OK;

    for (uint64_t at = begin; at < end && st == STRATA_OK;) {
        const uint64_t bytes = end - at < PART_BYTES ? end - at : PART_BYTES;

        if ((st = st_file_read_at(from->fd, m->part, bytes, at, from->path)) == STRATA_OK &&
            (st = st_new_file_write_at(to, m->part, bytes, at)) == STRATA_OK)
            st = advance(m, bytes);
        at += bytes;
    }
    return st;
}

static strata_status write_file(struct merger *m, const struct st_hf_file *from, struct st_new_file *to)
{
    uint64_t at = 0;
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < m->change_count && st == STRATA_OK; i++) {
        const struct change *c = &m->changes[i];

        if (c->place.fd != from->fd)
            continue;
        if ((st = copy_range(m, from, to, at, c->place.begin)) == STRATA_OK)
            st = c->a->saved ? replace_tensor(m, c, to) : merge_tensor(m, c, to);
        at = c->place.end;
    }
    return st == STRATA_OK ? copy_range(m, from, to, at, from->bytes) : st;
}

static strata_status create_files(struct merger *m)
{
    const unsigned flags = ST_NEW_FILE_PARENTS | (m->how->overwrite ? ST_NEW_FILE_OVERWRITE : 0);
    const uint32_t count = st_hf_reader_file_count(m->base);
    char path[ST_PATH_MAX];
    strata_status st = STRATA_OK;

    m->files = st_fault("merge.alloc", 0) < 0 ? NULL : calloc(count, sizeof(*m->files));
    if (m->files == NULL)
        return st_nomem(count * sizeof(*m->files));
    for (uint32_t i = 0; i < count && st == STRATA_OK; i++) {
        const struct st_hf_file from = st_hf_reader_file(m->base, i);

        m->files[m->file_count++].fd = -1;
        if ((st = st_path_join(path, m->how->out, st_path_name(from.path))) == STRATA_OK &&
            (st = st_new_file_create(&m->files[i], path, flags)) == STRATA_OK)
            st = st_new_file_reserve(&m->files[i], from.bytes);
        m->total += from.bytes;
    }
    return st;
}

/* The index of shards, as it is. */
static strata_status copy_index(struct merger *m)
{
    char path[ST_PATH_MAX], *text;
    uint64_t bytes;
    strata_status st;

    if (m->file_count == 1 && strcmp(st_path_name(st_hf_reader_file(m->base, 0).path), ST_HF_WEIGHTS_NAME) == 0)
        return STRATA_OK;
    if ((st = st_path_join(path, m->how->dir, ST_HF_INDEX_NAME)) != STRATA_OK ||
        (st = st_file_read_text(&text, &bytes, path, ST_HF_INDEX_BYTES_MAX)) != STRATA_OK)
        return st;
    st = st_hf_output_put(&m->index, m->how->out, ST_HF_INDEX_NAME, text, bytes, m->how->overwrite);
    free(text);
    return st;
}

static strata_status copy_others(struct merger *m)
{
    struct st_hf_source *source;
    strata_status st =
        st_hf_source_open(&source, m->how->dir, m->how->instead, m->how->out, m->how->overwrite, STRATA_DTYPE_INVALID);

    if (st != STRATA_OK)
        return st;
    st = st_hf_source_put_configs(source, &m->config, &m->generation, m->how->out, m->how->overwrite);
    if (st == STRATA_OK)
        st = st_hf_source_copy_files(&m->copies, source, m->how->out);
    st_hf_source_close(source);
    return st;
}

/* --- what changes --- */

static int by_place(const void *a, const void *b)
{
    const struct change *x = a, *y = b;

    if (x->place.fd != y->place.fd)
        return (x->place.fd > y->place.fd) - (x->place.fd < y->place.fd);
    return (x->place.begin > y->place.begin) - (x->place.begin < y->place.begin);
}

static void add_change(struct merger *m, const struct st_hf_adapted *a, const struct st_tensor *t, uint64_t row)
{
    const uint32_t tensor = (uint32_t)(t - m->how->model->tensors);

    m->changes[m->change_count++] =
        (struct change){.place = st_hf_reader_place(m->base, tensor), .a = a, .tensor = t, .row = row};
}

/* One B may have the rows of an expert's gate and, behind them, of its up, which is the next tensor. */
static strata_status list_changes(struct merger *m)
{
    const struct st_hf_merge *how = m->how;

    m->changes = st_fault("merge.alloc", 0) < 0 ? NULL : calloc((size_t)how->count + 1, sizeof(*m->changes));
    if (m->changes == NULL)
        return st_nomem(((size_t)how->count + 1) * sizeof(*m->changes));
    for (uint32_t i = 0; i < how->count; i++) {
        const struct st_hf_adapted *a = &how->tensors[i];

        if (a->b)
            continue;
        add_change(m, a, a->tensor, 0);
        if (a->experts > 0 && st_expert_is_split(a->tensor))
            add_change(m, a, a->tensor + 1, a->tensor->shape[0]);
    }
    qsort(m->changes, m->change_count, sizeof(*m->changes), by_place);
    return STRATA_OK;
}

/* --- together --- */

static strata_status write_all(struct merger *m)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < m->file_count && st == STRATA_OK; i++) {
        const struct st_hf_file from = st_hf_reader_file(m->base, i);

        st = write_file(m, &from, &m->files[i]);
    }
    return st == STRATA_OK ? st_hf_reader_check_unchanged(m->base) : st;
}

/* NULL past the last.  What makes it a model comes last, the only file of weights or the index of several: a directory with that
 * is whole. */
static struct st_new_file *file_at(struct merger *m, uint32_t i)
{
    if (i < 2)
        return i == 0 ? &m->config : &m->generation;
    return i - 2 < m->file_count ? &m->files[i - 2] : i - 2 == m->file_count ? &m->index : NULL;
}

static bool is_new(void *ctx, const char *name)
{
    const struct st_new_file *f;

    for (uint32_t i = 0; (f = file_at(ctx, i)) != NULL; i++)
        if (st_hf_output_has_name(f, name))
            return true;
    return false;
}

/* Where nothing was replaced, a failure leaves nothing: the next merge finds the names free. */
static void withdraw(struct merger *m)
{
    struct st_sentence sentence;
    struct st_new_file *f;

    st_error_keep(&sentence);
    for (uint32_t i = 0; (f = file_at(m, i)) != NULL; i++)
        if (f->named && st_hf_output_remove(m->how->out, f->path + f->base) == STRATA_OK)
            f->named = false;
    (void)st_error_again(STRATA_E_IO, &sentence);
}

/* All are on the disk before the first takes its name, and have their names before anything else goes of the model that they
 * replace: it is there until the new one is. */
static strata_status name_all(struct merger *m)
{
    struct st_new_file *f;
    strata_status st = STRATA_OK, unsafe = STRATA_OK;

    for (uint32_t i = 0; (f = file_at(m, i)) != NULL && st == STRATA_OK; i++)
        if (f->fd >= 0)
            st = st_new_file_sync(f);
    for (uint32_t i = 0; (f = file_at(m, i)) != NULL && st == STRATA_OK; i++)
        if (f->fd >= 0)
            st = st_hf_output_name(f, &unsafe);
    if (st != STRATA_OK && !m->how->overwrite)
        withdraw(m);
    if (st != STRATA_OK)
        return m->how->overwrite && m->config.named
                   ? st_error_prefix(st, "the model in %s is replaced in part: merge once more", m->how->out)
                   : st;
    st = st_hf_copies_commit(m->copies);
    m->copies = NULL;
    if (st != STRATA_OK)
        return st_error_prefix(st, "the model is written, but not all files that belong with it");
    if (m->how->overwrite && (st = st_hf_output_remove_old(m->how->out, &m->old, is_new, m)) != STRATA_OK)
        return st;
    return unsafe == STRATA_OK ? STRATA_OK : st_error_prefix(unsafe, "the model is written, but a power cut may take it");
}

/* Makes all new files, with the space that they need. */
static strata_status begin(struct merger *m)
{
    strata_status st = create_files(m);

    if (st == STRATA_OK)
        st = st_dir_lock(&m->lock, m->how->out);
    if (st == STRATA_OK)
        st = st_hf_output_check_lacks(m->how->out, ST_ADAPTER_CONFIG_NAME, "an adapter");
    if (st == STRATA_OK && m->how->overwrite)
        st = st_hf_output_read_index(&m->old, m->how->out);
    if (st == STRATA_OK)
        st = copy_others(m);
    if (st == STRATA_OK)
        st = copy_index(m);
    return st_error_at_start(st);
}

static strata_status merge(struct merger *m)
{
    const struct st_hf_merge *how = m->how;
    strata_status st = st_hf_output_check(how->out, how->overwrite);

    if (st == STRATA_OK && st_file_is_same(how->out, how->dir))
        return st_error(STRATA_E_INPUT,
                        "%s is the model that is merged, which would have the adapter twice the next time: name "
                        "another directory",
                        how->out);
    if (st != STRATA_OK || (st = st_hf_reader_open(&m->base, how->model, how->dir)) != STRATA_OK ||
        (st = list_changes(m)) != STRATA_OK || (st = begin(m)) != STRATA_OK)
        return st;
    m->part = st_fault("merge.alloc", 0) < 0 ? NULL : malloc(PART_BYTES);
    if (m->part == NULL)
        return st_nomem(PART_BYTES);
    st = advance(m, 0);
    if (st == STRATA_OK)
        st = write_all(m);
    if (st != STRATA_OK)
        return st;
    st_cleanup_hold(); /* so that a signal finds all of its files or none */
    st = name_all(m);
    st_cleanup_release();
    return st;
}

strata_status st_hf_merge(const struct st_hf_merge *how)
{
    struct merger m = {.how = how,
                       .kernels = st_kernels_pick("auto"),
                       .lock = ST_DIR_LOCK_NONE,
                       .config.fd = -1,
                       .generation.fd = -1,
                       .index.fd = -1};
    const strata_status st = merge(&m);

    st_hf_copies_abort(m.copies);
    st_new_file_abort(&m.config);
    st_new_file_abort(&m.generation);
    st_new_file_abort(&m.index);
    for (uint32_t i = m.file_count; i > 0; i--) /* the first one last, as it removes the directories that were made */
        st_new_file_abort(&m.files[i - 1]);
    st_dir_unlock(&m.lock);
    st_hf_index_fini(&m.old);
    st_hf_reader_close(m.base);
    free(m.files);
    free(m.changes);
    free(m.part);
    return st;
}
