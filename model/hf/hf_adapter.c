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
#define STACKS      2u /* B of gates and ups, and of downs */

struct st_hf_adapter {
    struct st_adapter_spec *spec;
    struct st_hf_adapted *tensors;        /* [count] */
    const struct st_safetensor **entries; /* [count] */
    uint32_t count;
    const struct st_model_config *config;
    uint32_t beside; /* tensors of the file that adapt other parts than the text model */
    uint32_t last;   /* tensor that was read */
    struct stack {
        const struct st_safetensor *entry; /* NULL: none */
        float *values;
    } stacks[STACKS]; /* those that were last read */
    uint32_t next_stack;
    int fd; /* -1: none */
    struct st_file_identity identity;
    char path[ST_PATH_MAX];
    struct st_safetensors header;
};

/* --- which tensors --- */

static void add_pair(struct st_hf_adapted *to, const struct st_model *m, const struct st_tensor *t,
                     const struct st_adapter_module *module)
{
    const uint32_t out_at = st_model_is_turned(m, t) ? 1 : 0;
    const bool stack = module->kind == ST_ADAPTER_STACK, both = stack && st_expert_is_split(t);
    char path[ST_ADAPTER_PATH_BYTES];

    if (stack)
        st_model_expert_path(path, module->path, t->expert);
    else
        snprintf(path, sizeof(path), "%s", module->path);
    for (uint32_t b = 0; b < 2; b++) {
        to[b] = (struct st_hf_adapted){.rank = 2, .tensor = t, .b = b != 0, .scale = module->scale};
        to[b].shape[0] = b != 0 ? t->shape[out_at] * (both ? 2 : 1) : module->r;
        to[b].shape[1] = b != 0 ? module->r : t->shape[1 - out_at];
        to[b].experts = stack ? m->config.experts : 0;
        snprintf(to[b].name, sizeof(to[b].name), ST_ADAPTER_PREFIX "%s.lora_%c.weight", path, b != 0 ? 'B' : 'A');
    }
}

/* PEFT wraps the downs' adapter around that of gates and ups. */
static void add_stack(struct st_hf_adapted *to, struct st_model_modules *modules, const struct st_model *m,
                      const struct st_tensor *t, const struct st_adapter_module *stack)
{
    const struct st_tensor *down = t + (st_expert_is_split(t) ? 2 : 1);
    const struct st_adapter_module *downs = t->part == ST_EXPERT_GATE ? st_model_stack_of(modules, m, down) : NULL;

    add_pair(to, m, t, stack);
    to[0].wrapped = to[1].wrapped = downs != NULL && downs->r > 0;
}

/* "X.experts.3.down_proj.lora_A.weight": "X.experts.lora_A.weight" */
void st_hf_adapted_in_file(char name[128], uint64_t shape[2], const struct st_hf_adapted *t)
{
    static const char mark[] = "." ST_EXPERTS_STACKED;
    const char *end = t->experts > 0 ? strstr(t->name, mark) + sizeof(mark) - 1 : "";

    snprintf(name, 128, "%s", t->name);
    shape[0] = t->shape[0];
    shape[1] = t->rank == 2 ? t->shape[1] : 0;
    if (t->router != NULL)
        snprintf(name, 128, "%.*s%s", (int)(strlen(t->name) - strlen(t->router->sparse[ST_ROLE_ROUTER_WEIGHT])), t->name,
                 t->router->stacked_router);
    if (t->experts == 0)
        return;
    snprintf(name, 128, "%.*s%s.lora_%c.weight", (int)(end - t->name), t->name, t->wrapped ? ".base_layer" : "",
             t->b ? 'B' : 'A');
    shape[t->b ? 1 : 0] *= t->experts;
}

static void add_saved(struct st_hf_adapted *to, const struct st_model *m, const struct st_tensor *t)
{
    const struct st_family *family = st_family_of(m->config.family);
    const char *router = family->stacked_router != NULL ? strstr(t->name, family->sparse[ST_ROLE_ROUTER_WEIGHT]) : NULL;

    *to = (struct st_hf_adapted){.rank = t->rank, .shape = {t->shape[0], t->shape[1]}, .tensor = t, .saved = true};
    snprintf(to->name, sizeof(to->name), ST_ADAPTER_PREFIX "%s", t->name);
    to->router = router != NULL ? family : NULL;
}

strata_status st_hf_adapted_list(struct st_hf_adapted **out, uint32_t *count, const struct st_model *m,
                                 const struct st_adapter_spec *spec)
{
    struct st_model_modules modules;
    struct st_hf_adapted *list;
    uint32_t unfitted, n = 0;
    strata_status st = st_model_resolve(&modules, m, spec, &unfitted);

    if (st != STRATA_OK)
        return st;
    list = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(2 * (size_t)m->tensor_count, sizeof(*list));
    if (list == NULL) {
        free(modules.modules);
        return st_nomem((2 * (size_t)m->tensor_count) * sizeof(*list));
    }
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];
        const struct st_adapter_module *module = st_model_module_of(&modules, t), *stack = st_model_stack_of(&modules, m, t);

        if (stack != NULL && stack->r > 0) {
            add_stack(list + n, &modules, m, t, stack);
            n += 2;
        }
        if (module == NULL)
            continue;
        if (module->r > 0 && m->tensors[i].rank == 2) {
            add_pair(list + n, m, &m->tensors[i], module);
            n += 2;
        } else if (module->saved) {
            add_saved(list + n++, m, &m->tensors[i]);
        }
    }
    free(modules.modules);
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

static strata_status check_entry(const struct st_hf_adapter *a, const struct st_hf_adapted *t, const uint64_t shape[2],
                                 const struct st_safetensor *e)
{
    char have[96], want[96];
    const bool fits = e->rank == t->rank && e->shape[0] == shape[0] && (t->rank == 1 || e->shape[1] == shape[1]);

    if (!fits && st_safetensor_is_placeholder(e))
        return st_safetensor_placeholder_fault(e, a->path);
    if (!fits)
        return st_error(STRATA_E_INPUT, "%s: tensor %s has shape %s, the model and " ST_ADAPTER_CONFIG_NAME " want %s", a->path,
                        e->name, st_shape_text(have, e->shape, e->rank), st_shape_text(want, shape, t->rank));
    if (e->dtype == STRATA_DTYPE_INVALID)
        return st_error(STRATA_E_INPUT, "%s: tensor %s has dtype %s; F32, BF16 and F16 are read", a->path, e->name,
                        e->dtype_name);
    return STRATA_OK;
}

/* The file's tensors by the names that this model's have, sorted. */
struct named {
    char name[128];
    const struct st_safetensor *entry;
    bool used;
};

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const struct named *)a)->name, ((const struct named *)b)->name);
}

static strata_status name_entries(struct named **out, const struct st_hf_adapter *a)
{
    const uint32_t count = a->header.count;
    struct named *list = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc((size_t)count + 1, sizeof(*list));

    *out = list;
    if (list == NULL)
        return st_nomem(((size_t)count + 1) * sizeof(*list));
    for (uint32_t i = 0; i < count; i++) {
        list[i].entry = &a->header.tensors[i];
        st_hf_name_in_adapter(list[i].name, sizeof(list[i].name), a->config, list[i].entry->name);
    }
    qsort(list, count, sizeof(*list), compare_names);
    for (uint32_t i = 1; i < count; i++)
        if (list[i].name[0] != '\0' && compare_names(&list[i - 1], &list[i]) == 0)
            return st_error(STRATA_E_INPUT, "%s: tensor %s occurs twice, also as %s: save only one adapter", a->path,
                            list[i].entry->name, list[i - 1].entry->name);
    return STRATA_OK;
}

/* Leaves a->entries[i] NULL where the file has no such tensor. */
static strata_status place(struct st_hf_adapter *a, uint32_t i, struct named *list)
{
    struct named key = {0}, *found;
    uint64_t shape[2];

    st_hf_adapted_in_file(key.name, shape, &a->tensors[i]);
    found = bsearch(&key, list, a->header.count, sizeof(*list), compare_names);
    if (found == NULL && a->tensors[i].router != NULL) { /* as PEFT beside transformers 4 calls it */
        memcpy(key.name, a->tensors[i].name, sizeof(key.name));
        found = bsearch(&key, list, a->header.count, sizeof(*list), compare_names);
    }
    if (found == NULL)
        return STRATA_OK;
    found->used = true;
    a->entries[i] = found->entry;
    return check_entry(a, &a->tensors[i], shape, found->entry);
}

static strata_status check_rest(struct st_hf_adapter *a, const struct named *list)
{
    char name[128];
    uint64_t shape[2];

    for (uint32_t i = 0; i < a->header.count; i++) {
        if (list[i].used)
            continue;
        if (!st_hf_name_is_beside(a->config, list[i].entry->name))
            return st_error(STRATA_E_INPUT,
                            "%s: tensor %s has no place in an adapter as its " ST_ADAPTER_CONFIG_NAME
                            " describes it, of this model",
                            a->path, list[i].entry->name);
        a->beside++;
    }
    for (uint32_t i = 0; i < a->count; i++) {
        if (a->entries[i] != NULL)
            continue;
        st_hf_adapted_in_file(name, shape, &a->tensors[i]);
        return st_error(STRATA_E_INPUT, "%s: tensor %s is missing", a->path, name);
    }
    return STRATA_OK;
}

static strata_status place_all(struct st_hf_adapter *a)
{
    struct named *list;
    strata_status st = name_entries(&list, a);

    for (uint32_t i = 0; i < a->count && st == STRATA_OK; i++)
        st = place(a, i, list);
    if (st == STRATA_OK)
        st = check_rest(a, list);
    free(list);
    if (st == STRATA_OK && a->beside > 0)
        st_log(ST_LOG_NOTICE, "%s: %u of its tensors are for what is not the text model, and are neither used nor written",
               a->path, a->beside);
    return st;
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
    for (uint32_t i = 0; i < STACKS; i++)
        free(a->stacks[i].values);
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

/* A whole B of a stack, of which an expert has every `experts`th value: experts come one after another, each with two. */
static strata_status read_stack(struct st_hf_adapter *a, const struct st_safetensor *e, const float **out)
{
    const uint64_t elems = e->shape[0] * e->shape[1];
    struct stack *s = &a->stacks[0];
    strata_status st;

    for (uint32_t i = 0; i < STACKS; i++)
        if (a->stacks[i].entry == e) {
            *out = a->stacks[i].values;
            return STRATA_OK;
        }
    s = &a->stacks[a->next_stack++ % STACKS];
    s->entry = NULL;
    free(s->values);
    s->values = st_fault("adapter.alloc", 0) < 0 ? NULL : malloc(elems * sizeof(*s->values));
    if (s->values == NULL)
        return st_nomem(elems * sizeof(*s->values));
    if ((st = st_hf_read_widened(a->fd, a->path, e->begin, e->dtype, 0, elems, s->values)) != STRATA_OK)
        return st;
    s->entry = e;
    *out = s->values;
    return STRATA_OK;
}

static strata_status read_entry(struct st_hf_adapter *a, const struct st_hf_adapted *t, const struct st_safetensor *e,
                                uint64_t first, uint64_t count, float *out)
{
    const uint64_t before = t->experts > 0 ? t->tensor->expert * st_hf_adapted_elems(t) : 0;
    const float *stack = NULL;
    strata_status st;

    if (t->experts == 0 || !t->b)
        return st_hf_read_widened(a->fd, a->path, e->begin, e->dtype, before + first, count, out);
    if ((st = read_stack(a, e, &stack)) != STRATA_OK)
        return st;
    for (uint64_t i = 0; i < count; i++)
        out[i] = stack[(first + i) * t->experts + t->tensor->expert];
    return STRATA_OK;
}

static strata_status read_values(void *ctx, const struct st_hf_adapted *tensor, uint64_t first, uint64_t count, float *out)
{
    struct st_hf_adapter *a = ctx;
    const struct st_safetensor *e = NULL;
    strata_status st;

    for (uint32_t i = 0; i < a->count && e == NULL; i++) { /* the list may be another one of the same settings */
        const uint32_t at = (a->last + i) % a->count;

        if (strcmp(a->tensors[at].name, tensor->name) != 0)
            continue;
        e = a->entries[at];
        a->last = at;
    }
    if (e == NULL)
        return st_error(STRATA_E_INTERNAL, "%s: tensor %s was not opened", a->path, tensor->name);
    st = read_entry(a, tensor, e, first, count, out);
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
