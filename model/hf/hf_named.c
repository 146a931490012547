/* model/hf/hf_named.c - see hf_named.h. */
#include "model/hf/hf_named.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/system/file.h"
#include "model/hf/hf_files_internal.h"
#include "model/hf/hf_widen_internal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct place {
    const struct st_hf_weights *file; /* NULL: no file has it */
    const struct st_safetensor *entry;
};

struct st_hf_named {
    const struct st_layers *layers;
    struct st_hf_files files;
    struct place *places; /* [tensor_count] */
    uint32_t missing, unexpected;
    struct place first_unexpected;
};

/* The tensor that a file's name means; ST_NO_TENSOR: none of the model. */
static uint32_t tensor_of(const struct st_layers *l, const struct st_hf_named_opts *o, const char *name)
{
    const char *prefix = o->prefix != NULL ? o->prefix : "", *add = o->add_prefix != NULL ? o->add_prefix : "";
    const size_t skip = strlen(prefix), added = strlen(add), length = strlen(name);
    char full[STRATA_LAYER_NAME_BYTES];

    if (strncmp(name, prefix, skip) != 0 || added + length - skip >= sizeof(full))
        return ST_NO_TENSOR;
    memcpy(full, add, added);
    memcpy(full + added, name + skip, length - skip + 1);
    return st_layers_find(l, full);
}

static strata_status check_entry(const struct st_hf_weights *f, const struct st_safetensor *e, const struct st_tensor *t)
{
    char have[96], want[96];

    if (e->rank != t->rank || memcmp(e->shape, t->shape, t->rank * sizeof(*t->shape)) != 0) {
        if (st_safetensor_is_placeholder(e))
            return st_safetensor_placeholder_fault(e, f->path);
        return st_error(STRATA_E_INPUT, "%s: tensor %s has shape %s, the model's has %s", f->path, e->name,
                        st_shape_text(have, e->shape, e->rank), st_shape_text(want, t->shape, t->rank));
    }
    if (e->dtype == STRATA_DTYPE_INVALID)
        return st_error(STRATA_E_INPUT, "%s: tensor %s has dtype %s; F32, BF16 and F16 are read", f->path, e->name,
                        e->dtype_name);
    return STRATA_OK;
}

static strata_status place_entry(struct st_hf_named *n, const struct st_hf_named_opts *o, const struct st_hf_weights *f,
                                 const struct st_safetensor *e)
{
    const uint32_t tensor = tensor_of(n->layers, o, e->name);
    const struct place place = {.file = f, .entry = e};

    if (tensor == ST_NO_TENSOR) {
        if (n->unexpected++ == 0)
            n->first_unexpected = place;
        return STRATA_OK;
    }
    if (n->places[tensor].file != NULL)
        return st_error(STRATA_E_INPUT, "%s: tensor %s occurs twice (also in %s)", f->path, e->name,
                        n->places[tensor].file->path);
    n->places[tensor] = place;
    return check_entry(f, e, &n->layers->tensors[tensor]);
}

static strata_status check_all(struct st_hf_named *n, const struct st_hf_named_opts *o)
{
    const char *first = "";

    for (uint32_t i = n->layers->tensor_count; i-- > 0;)
        if (n->places[i].file == NULL) {
            first = n->layers->tensors[i].name;
            n->missing++;
        }
    if (n->missing > 0 && !o->allow_missing)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: %u of the model's %u tensors are missing, the first is %s",
                                        o->paths[0], n->missing, n->layers->tensor_count, first),
                               "load.allow_missing", "give the files' prefix or add_prefix, or set allow_missing");
    if (n->unexpected > 0 && !o->allow_unexpected)
        return st_error_remedy(st_error(STRATA_E_INPUT, "%s: %u tensors are unexpected, the first is %s",
                                        n->first_unexpected.file->path, n->unexpected, n->first_unexpected.entry->name),
                               "load.allow_unexpected", "give the files' prefix or add_prefix, or set allow_unexpected");
    return STRATA_OK;
}

static bool is_directory(const char *path)
{
    struct stat info;

    return !st_fault_refuses("hf.named") && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static strata_status open_named(struct st_hf_named *n, const struct st_hf_named_opts *o)
{
    strata_status st = o->path_count == 1 && is_directory(o->paths[0])
                           ? st_hf_files_open(&n->files, o->paths[0], NULL)
                           : st_hf_files_open_list(&n->files, o->paths, o->path_count);

    for (uint32_t i = 0; i < n->files.count && st == STRATA_OK; i++)
        for (uint32_t j = 0; j < n->files.list[i].header.count && st == STRATA_OK; j++)
            st = place_entry(n, o, &n->files.list[i], &n->files.list[i].header.tensors[j]);
    return st == STRATA_OK ? check_all(n, o) : st;
}

strata_status st_hf_named_open(struct st_hf_named **out, const struct st_layers *l, const struct st_hf_named_opts *opts)
{
    struct st_hf_named *n = st_fault_refuses("hf.named") ? NULL : calloc(1, sizeof(*n));
    strata_status st;

    if (n == NULL)
        return st_nomem(sizeof(*n));
    n->layers = l;
    n->places = calloc(l->tensor_count, sizeof(*n->places));
    st = n->places != NULL ? open_named(n, opts) : st_nomem(l->tensor_count * sizeof(*n->places));
    if (st == STRATA_OK)
        *out = n;
    else
        st_hf_named_close(n);
    return st;
}

void st_hf_named_close(struct st_hf_named *n)
{
    if (n == NULL)
        return;
    st_hf_files_close(&n->files);
    free(n->places);
    free(n);
}

uint32_t st_hf_named_missing(const struct st_hf_named *n)
{
    return n->missing;
}

uint32_t st_hf_named_unexpected(const struct st_hf_named *n)
{
    return n->unexpected;
}

bool st_hf_named_has(const struct st_hf_named *n, uint32_t tensor)
{
    return n->places[tensor].file != NULL;
}

strata_status st_hf_named_read(const struct st_hf_named *n, uint32_t tensor, uint64_t first, uint64_t count, float *out)
{
    const struct place *p = &n->places[tensor];

    return st_hf_read_widened(p->file->fd, p->file->path, p->entry->begin, p->entry->dtype, first, count, out);
}

strata_status st_hf_named_check_unchanged(const struct st_hf_named *n)
{
    return st_hf_files_check_unchanged(&n->files);
}
