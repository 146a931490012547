/* model/hf/hf_adapter.c - reads a directory of an adapter, as PEFT writes it. */
#include "model/hf/hf_adapter.h"
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/log.h"
#include "core/system/file.h"
#include "model/hf/hf_names_internal.h"
#include "model/hf/hf_widen_internal.h"
#include "model/hf/safetensors_internal.h"
#include "model/layout.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PICKLE_NAME "adapter_model.bin"

struct st_hf_adapter {
    struct st_adapter_spec *spec;
    struct st_hf_adapted *tensors;        /* [count] */
    const struct st_safetensor **entries; /* [count] */
    uint32_t count;
    const struct st_model_config *config;
    uint32_t beside; /* tensors of the file that adapt other parts than the text model */
    int fd;          /* -1: none */
    struct st_file_identity identity;
    char path[ST_PATH_MAX];
    struct st_safetensors header;
};

/* --- which tensors --- */

static void add_pair(struct st_hf_adapted *to, const struct st_model *m, const struct st_tensor *t,
                     const struct st_adapter_module *module)
{
    const uint32_t out_at = m->config.out_in ? 0 : 1;

    for (uint32_t b = 0; b < 2; b++) {
        to[b] = (struct st_hf_adapted){.rank = 2, .tensor = t, .b = b != 0, .scale = module->scale};
        to[b].shape[0] = b != 0 ? t->shape[out_at] : module->r;
        to[b].shape[1] = b != 0 ? module->r : t->shape[1 - out_at];
        snprintf(to[b].name, sizeof(to[b].name), ST_ADAPTER_PREFIX "%s.lora_%c.weight", module->path, b != 0 ? 'B' : 'A');
    }
}

static void add_saved(struct st_hf_adapted *to, const struct st_tensor *t)
{
    *to = (struct st_hf_adapted){.rank = t->rank, .shape = {t->shape[0], t->shape[1]}, .tensor = t, .saved = true};
    snprintf(to->name, sizeof(to->name), ST_ADAPTER_PREFIX "%s", t->name);
}

strata_status st_hf_adapted_list(struct st_hf_adapted **out, uint32_t *count, const struct st_model *m,
                                 const struct st_adapter_spec *spec)
{
    struct st_adapter_module *modules;
    struct st_hf_adapted *list;
    uint32_t module_count, unfitted, n = 0;
    strata_status st = st_model_resolve(&modules, &module_count, m, spec, &unfitted);

    if (st != STRATA_OK)
        return st;
    list = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(2 * (size_t)m->tensor_count, sizeof(*list));
    if (list == NULL) {
        free(modules);
        return st_nomem((2 * (size_t)m->tensor_count) * sizeof(*list));
    }
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_adapter_module *module = st_model_module_of(modules, module_count, m->tensors[i].name);

        if (module == NULL)
            continue;
        if (module->r > 0 && m->tensors[i].rank == 2) {
            add_pair(list + n, m, &m->tensors[i], module);
            n += 2;
        } else if (module->saved) {
            add_saved(list + n++, &m->tensors[i]);
        }
    }
    free(modules);
    *out = list;
    *count = n;
    return STRATA_OK;
}

uint64_t st_hf_adapted_elems(const struct st_hf_adapted *t)
{
    return t->rank == 2 ? t->shape[0] * t->shape[1] : t->shape[0];
}

strata_status st_hf_adapted_check_finite(const struct st_hf_adapted *t, const float *values, uint64_t count)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return st_error(STRATA_E_NUMERICS,
                            "tensor %s is not finite: the run that trained it has diverged; nothing is written", t->name);
    return STRATA_OK;
}

/* --- the file --- */

static strata_status find_file(struct st_hf_adapter *a, const char *dir)
{
    char pickle[ST_PATH_MAX];
    bool there, old = false;
    strata_status st;

    if ((st = st_path_join(a->path, dir, ST_ADAPTER_WEIGHTS_NAME)) != STRATA_OK ||
        (st = st_path_join(pickle, dir, PICKLE_NAME)) != STRATA_OK || (st = st_file_find(&there, a->path)) != STRATA_OK ||
        (!there && (st = st_file_find(&old, pickle)) != STRATA_OK))
        return st;
    if (old)
        return st_error(STRATA_E_INPUT,
                        "%s: a pickle of PyTorch's, which is not read: load it in PEFT and save it again, which "
                        "writes " ST_ADAPTER_WEIGHTS_NAME,
                        pickle);
    if ((st = st_file_open(&a->fd, &a->identity, a->path, STRATA_E_INPUT)) != STRATA_OK)
        return st;
    return st_safetensors_read(&a->header, a->fd, a->identity.bytes, a->path);
}

static strata_status check_entry(const struct st_hf_adapter *a, const struct st_hf_adapted *t, const struct st_safetensor *e)
{
    char have[96], want[96];
    const bool fits = e->rank == t->rank && e->shape[0] == t->shape[0] && (t->rank == 1 || e->shape[1] == t->shape[1]);

    if (!fits && st_safetensor_is_placeholder(e))
        return st_safetensor_placeholder_fault(e, a->path);
    if (!fits)
        return st_error(STRATA_E_INPUT, "%s: tensor %s has shape %s, the model and " ST_ADAPTER_CONFIG_NAME " want %s", a->path,
                        e->name, st_shape_text(have, e->shape, e->rank), st_shape_text(want, t->shape, t->rank));
    if (e->dtype == STRATA_DTYPE_INVALID)
        return st_error(STRATA_E_INPUT, "%s: tensor %s has dtype %s; F32, BF16 and F16 are read", a->path, e->name,
                        e->dtype_name);
    return STRATA_OK;
}

static strata_status place(struct st_hf_adapter *a, const struct st_safetensor *e)
{
    char name[sizeof(a->tensors->name)];

    st_hf_name_in_adapter(name, sizeof(name), a->config, e->name);
    for (uint32_t i = 0; i < a->count; i++) {
        if (strcmp(a->tensors[i].name, name) != 0)
            continue;
        if (a->entries[i] != NULL)
            return st_error(STRATA_E_INPUT, "%s: tensor %s occurs twice, also as %s: save only one adapter", a->path, e->name,
                            a->entries[i]->name);
        a->entries[i] = e;
        return check_entry(a, &a->tensors[i], e);
    }
    if (st_hf_name_is_beside(a->config, e->name)) {
        a->beside++;
        return STRATA_OK;
    }
    return st_error(STRATA_E_INPUT,
                    "%s: tensor %s has no place in an adapter as its " ST_ADAPTER_CONFIG_NAME " describes it, of this model",
                    a->path, e->name);
}

static strata_status place_all(struct st_hf_adapter *a)
{
    strata_status st;

    for (uint32_t i = 0; i < a->header.count; i++)
        if ((st = place(a, &a->header.tensors[i])) != STRATA_OK)
            return st;
    for (uint32_t i = 0; i < a->count; i++)
        if (a->entries[i] == NULL)
            return st_error(STRATA_E_INPUT, "%s: tensor %s is missing", a->path, a->tensors[i].name);
    if (a->beside > 0)
        st_log(ST_LOG_NOTICE, "%s: %u of its tensors are for what is not the text model, and are neither used nor written",
               a->path, a->beside);
    return STRATA_OK;
}

strata_status st_hf_adapter_open(struct st_hf_adapter **out, const struct st_model *m, const char *dir)
{
    struct st_hf_adapter *a = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*a));
    char config[ST_PATH_MAX];
    strata_status st;

    if (a == NULL)
        return st_nomem(sizeof(*a));
    a->fd = -1;
    a->config = &m->config;
    if ((st = st_path_join(config, dir, ST_ADAPTER_CONFIG_NAME)) != STRATA_OK ||
        (st = st_adapter_spec_read_file(&a->spec, config)) != STRATA_OK ||
        (st = st_hf_adapted_list(&a->tensors, &a->count, m, a->spec)) != STRATA_OK || (st = find_file(a, dir)) != STRATA_OK)
        goto fail;
    a->entries = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(a->count, sizeof(struct st_safetensor *));
    if (a->entries == NULL) {
        st = st_nomem(a->count * sizeof(struct st_safetensor *));
        goto fail;
    }
    if ((st = place_all(a)) != STRATA_OK)
        goto fail;
    *out = a;
    return STRATA_OK;

fail:
    st_hf_adapter_close(a);
    return st;
}

void st_hf_adapter_close(struct st_hf_adapter *a)
{
    if (a == NULL)
        return;
    st_adapter_spec_destroy(a->spec);
    st_safetensors_fini(&a->header);
    if (a->fd >= 0)
        close(a->fd);
    free(a->tensors);
    free(a->entries);
    free(a);
}

const struct st_adapter_spec *st_hf_adapter_spec(const struct st_hf_adapter *a)
{
    return a->spec;
}

uint32_t st_hf_adapter_beside(const struct st_hf_adapter *a)
{
    return a->beside;
}

const struct st_hf_adapted *st_hf_adapter_tensors(const struct st_hf_adapter *a, uint32_t *count)
{
    *count = a->count;
    return a->tensors;
}

strata_status st_hf_adapter_check_unchanged(const struct st_hf_adapter *a)
{
    return st_file_check_unchanged(a->fd, &a->identity, a->path);
}

static strata_status read_values(void *ctx, const struct st_hf_adapted *tensor, uint64_t first, uint64_t count, float *out)
{
    const struct st_hf_adapter *a = ctx;
    const struct st_safetensor *e = NULL;
    strata_status st;

    for (uint32_t i = 0; i < a->count && e == NULL; i++) /* the list may be another one of the same settings */
        e = strcmp(a->tensors[i].name, tensor->name) == 0 ? a->entries[i] : NULL;
    if (e == NULL)
        return st_error(STRATA_E_INTERNAL, "%s: tensor %s was not opened", a->path, tensor->name);
    st = st_hf_read_widened(a->fd, a->path, e->begin, e->dtype, first, count, out);
    for (uint64_t i = 0; st == STRATA_OK && i < count; i++)
        if (!isfinite(out[i]))
            st = st_error(STRATA_E_NUMERICS,
                          "%s: tensor %s is not finite: the file is damaged, or its run diverged: take an earlier one", a->path,
                          e->name);
    return st;
}

struct st_adapter_values st_hf_adapter_values(struct st_hf_adapter *a)
{
    return (struct st_adapter_values){.ctx = a, .read = read_values};
}
