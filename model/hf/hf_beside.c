/* model/hf/hf_beside.c - see hf_beside_internal.h. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "model/hf/hf_beside_internal.h"
#include "model/hf/hf_names_internal.h"
#include "model/hf/hf_output_internal.h"
#include <stdlib.h>
#include <string.h>

#define PART_BYTES (UINT64_C(1) << 20)

static uint64_t elem_bytes(const struct st_safetensor *t)
{
    uint64_t elems = 1;

    for (uint32_t i = 0; i < t->rank; i++)
        elems *= t->shape[i];
    return elems > 0 ? (t->end - t->begin) / elems : 0;
}

static int larger_first(const void *a, const void *b)
{
    const struct st_hf_beside_entry *x = a, *y = b;
    const uint64_t xs = elem_bytes(x->tensor), ys = elem_bytes(y->tensor);

    if (xs != ys)
        return (xs < ys) - (xs > ys);
    if (x->file != y->file)
        return (x->file > y->file) - (x->file < y->file);
    return (x->tensor->begin > y->tensor->begin) - (x->tensor->begin < y->tensor->begin);
}

static strata_status list_entries(struct st_hf_beside *b, const struct st_model_config *config)
{
    uint64_t all = 0;

    for (uint32_t i = 0; i < b->files.count; i++)
        all += b->files.list[i].header.count;
    b->list = st_fault("hf.beside", 0) < 0 ? NULL : calloc(all > 0 ? all : 1, sizeof(*b->list));
    if (b->list == NULL)
        return st_nomem((all > 0 ? all : 1) * sizeof(*b->list));
    for (uint32_t i = 0; i < b->files.count; i++) {
        const struct st_hf_weights *f = &b->files.list[i];

        for (uint32_t k = 0; k < f->header.count; k++) {
            const struct st_safetensor *t = &f->header.tensors[k];

            if (!st_hf_name_is_beside(config, t->name))
                continue;
            b->list[b->count++] = (struct st_hf_beside_entry){.file = f, .tensor = t};
            b->bytes += t->end - t->begin;
            b->older |= strncmp(t->name, "model.", 6) != 0;
        }
    }
    qsort(b->list, b->count, sizeof(*b->list), larger_first);
    return STRATA_OK;
}

static strata_status open_files(struct st_hf_files *files, const struct st_model_config *config, const char *dir)
{
    char path[ST_PATH_MAX];
    bool there;
    strata_status st = st_path_join(path, dir, ST_HF_BESIDE_NAME);

    if (st != STRATA_OK || (st = st_file_find(&there, path)) != STRATA_OK)
        return st;
    if (there)
        return st_hf_files_open_one(files, dir, ST_HF_BESIDE_NAME);
    if ((st = st_hf_files_are_there(&there, dir)) != STRATA_OK || !there)
        return st;
    return st_hf_files_open(files, dir, config);
}

strata_status st_hf_beside_open(struct st_hf_beside *out, const struct st_model_config *config, const char *dir)
{
    struct st_hf_beside b = {0};
    strata_status st = STRATA_OK;

    if (config->wrapper != NULL && dir != NULL && (st = open_files(&b.files, config, dir)) == STRATA_OK)
        st = list_entries(&b, config);
    if (st == STRATA_OK)
        *out = b;
    else
        st_hf_beside_close(&b);
    return st;
}

void st_hf_beside_close(struct st_hf_beside *b)
{
    st_hf_files_close(&b->files);
    free(b->list);
    *b = (struct st_hf_beside){0};
}

void st_hf_beside_name(const struct st_hf_beside *b, struct st_safetensors_writer *header)
{
    for (uint32_t i = 0; i < b->count; i++)
        st_safetensors_writer_add_as(header, b->list[i].tensor);
}

static strata_status copy_entry(const struct st_hf_beside_entry *e, struct st_new_file *to, uint64_t at, unsigned char *part)
{
    const uint64_t bytes = e->tensor->end - e->tensor->begin;
    strata_status st = STRATA_OK;

    for (uint64_t done = 0; done < bytes && st == STRATA_OK; done += PART_BYTES) {
        const uint64_t count = bytes - done < PART_BYTES ? bytes - done : PART_BYTES;

        if ((st = st_file_read_at(e->file->fd, part, count, e->tensor->begin + done, e->file->path)) == STRATA_OK)
            st = st_new_file_write_at(to, part, count, at + done);
    }
    return st;
}

strata_status st_hf_beside_copy(const struct st_hf_beside *b, struct st_new_file *to, uint64_t at)
{
    unsigned char *part = st_fault("hf.beside", 0) < 0 ? NULL : malloc(PART_BYTES);
    strata_status st = part != NULL ? STRATA_OK : st_nomem(PART_BYTES);

    for (uint32_t i = 0; i < b->count && st == STRATA_OK; i++) {
        st = copy_entry(&b->list[i], to, at, part);
        at += b->list[i].tensor->end - b->list[i].tensor->begin;
    }
    for (uint32_t i = 0; i < b->files.count && st == STRATA_OK; i++)
        st = st_file_check_unchanged(b->files.list[i].fd, &b->files.list[i].identity, b->files.list[i].path);
    free(part);
    return st;
}

strata_status st_hf_beside_put(const struct st_hf_beside *b, struct st_new_file *file, const char *dir)
{
    struct st_safetensors_writer *header;
    unsigned char *text;
    uint64_t bytes;
    strata_status st;

    if (b->count == 0)
        return STRATA_OK;
    if ((st = st_safetensors_writer_begin(&header, STRATA_F32)) != STRATA_OK)
        return st;
    st_hf_beside_name(b, header);
    if ((st = st_safetensors_writer_end(header, &text, &bytes)) != STRATA_OK)
        return st;
    if ((st = st_hf_output_put(file, dir, ST_HF_BESIDE_NAME, text, bytes, false)) == STRATA_OK)
        st = st_hf_beside_copy(b, file, bytes);
    free(text);
    return st;
}
