/* model/modules.c - the modules that a model's tensors belong to, for an adapter's settings to name them.  A layer's experts are
 * there twice: as linear layers of each, and as the two parameters that transformers 5 makes of them. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "model/adapter/adapter.h"
#include "model/layout.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void path_of(char path[sizeof(((struct st_adapter_module *)0)->path)], const char *name)
{
    const char *dot = strrchr(name, '.');

    snprintf(path, sizeof(((struct st_adapter_module *)0)->path), "%.*s", (int)(dot != NULL ? dot - name : 0), name);
}

static bool is_weight(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL && strcmp(dot, ".weight") == 0;
}

static bool is_router(const struct st_model *m, const char *name)
{
    const char *router = st_family_tensor(st_family_of(m->config.family), ST_ROLE_ROUTER_WEIGHT, true);
    const size_t length = strlen(name), end = router != NULL ? strlen(router) : 0;

    return end > 0 && length > end && strcmp(name + length - end, router) == 0;
}

static enum st_adapter_module_kind kind_of(const struct st_model *m, const struct st_tensor *t)
{
    if (t->rank == 1)
        return ST_ADAPTER_NORM;
    if (t->page >= m->at.block_first && t->page < m->at.norm)
        return is_router(m, t->name) ? ST_ADAPTER_ROUTER : t->expert != ST_NO_EXPERT ? ST_ADAPTER_EXPERT : ST_ADAPTER_LINEAR;
    return m->config.untied && t->page == m->at.head_first ? ST_ADAPTER_HEAD : ST_ADAPTER_EMBEDDING;
}

/* Whether the tensor's name is its stack's. */
static bool is_stacked(const struct st_tensor *t)
{
    return t->adapts == ST_NO_TENSOR && t->expert != ST_NO_EXPERT && (t->part == ST_EXPERT_GATE || t->part == ST_EXPERT_DOWN);
}

static void stack_path(char path[sizeof(((struct st_adapter_module *)0)->path)], const struct st_model *m,
                       const struct st_tensor *t)
{
    uint32_t block = 0;

    while (m->block_pages[block + 1] <= t->page)
        block++;
    snprintf(path, sizeof(((struct st_adapter_module *)0)->path), "%s.%u." ST_EXPERTS_STACKED ".%s",
             st_family_of(m->config.family)->block, block, t->part == ST_EXPERT_DOWN ? "down_proj" : "gate_up_proj");
}

void st_model_expert_path(char path[ST_ADAPTER_PATH_BYTES], const char *stack, uint32_t expert)
{
    const char *part = strrchr(stack, '.');

    snprintf(path, ST_ADAPTER_PATH_BYTES, "%.*s.%u%.32s", (int)(part - stack), stack, expert, part);
}

static size_t modules_most(const struct st_model *m)
{
    return (size_t)m->tensor_count + 2 * (size_t)m->config.blocks + 1;
}

static strata_status list_modules(struct st_adapter_module **out, uint32_t *count, const struct st_model *m)
{
    struct st_adapter_module *modules = st_fault("model.modules", 0) < 0 ? NULL : calloc(modules_most(m), sizeof(*modules));
    uint32_t n = 0;

    if (modules == NULL)
        return st_nomem(modules_most(m) * sizeof(*modules));
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (t->expert == 0 && is_stacked(t)) {
            stack_path(modules[n].path, m, t);
            modules[n++].kind = ST_ADAPTER_STACK;
        }
        if (!is_weight(t->name) || st_adapter_is_own(t->name))
            continue;
        path_of(modules[n].path, t->name);
        modules[n].kind = kind_of(m, t);
        modules[n].tied = i == 0 && !m->config.untied;
        n++;
    }
    if (!m->config.untied) {
        path_of(modules[n].path, st_family_of(m->config.family)->head);
        modules[n].kind = ST_ADAPTER_HEAD;
        modules[n++].tied = true;
    }
    *out = modules;
    *count = n;
    return STRATA_OK;
}

/* Tensors come in the order of modules, so the next one is near: ahead, or a layer's stack before its experts. */
static const struct st_adapter_module *find(struct st_model_modules *list, const char *path, size_t length)
{
    for (uint32_t i = 0; i < 2 * list->count; i++) {
        const uint32_t at = (list->at + (i % 2 == 0 ? i / 2 : list->count - i / 2 - 1)) % list->count;

        if (strncmp(list->modules[at].path, path, length) == 0 && list->modules[at].path[length] == '\0') {
            list->at = at;
            return &list->modules[at];
        }
    }
    return NULL;
}

const struct st_adapter_module *st_model_module_of(struct st_model_modules *list, const struct st_tensor *t)
{
    const char *dot = strrchr(t->name, '.');

    return t->adapts != ST_NO_TENSOR || dot == NULL ? NULL : find(list, t->name, (size_t)(dot - t->name));
}

const struct st_adapter_module *st_model_stack_of(struct st_model_modules *list, const struct st_model *m,
                                                  const struct st_tensor *t)
{
    char path[sizeof(list->modules->path)];

    if (!is_stacked(t))
        return NULL;
    stack_path(path, m, t);
    return find(list, path, strlen(path));
}

/* --- what they get --- */

/* All experts of a layer have the same adapters, by either of the two ways to name them. */
static strata_status check_experts(struct st_model_modules *list, const struct st_model *m, const struct st_adapter_spec *spec)
{
    const struct st_adapter_module *first[ST_EXPERT_PARTS] = {NULL};

    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];
        const struct st_adapter_module *own = t->expert != ST_NO_EXPERT ? st_model_module_of(list, t) : NULL, *stack;

        if (own == NULL)
            continue;
        first[t->part] = t->expert == 0 ? own : first[t->part];
        if (own->r != first[t->part]->r || own->scale != first[t->part]->scale)
            return st_error(
                STRATA_E_CONFIG,
                "the adapter gives %s rank %u and %s rank %u: experts of a layer have adapters of one rank and scale, "
                "or none",
                first[t->part]->path, first[t->part]->r, own->path, own->r);
        stack = st_model_stack_of(list, m, t);
        if (stack == NULL && t->part == ST_EXPERT_UP)
            stack = st_model_stack_of(list, m, t - 1);
        if (own->r > 0 && st_adapter_spec_dropout(spec) > 0)
            return st_error(STRATA_E_CONFIG,
                            "lora_dropout is not supported beside an adapter of %s: set it to 0, or leave experts out",
                            own->path);
        if (own->r > 0 && stack->r > 0)
            return st_error(STRATA_E_CONFIG, "%s has an adapter by target_modules and by target_parameters: name it in one",
                            own->path);
    }
    return STRATA_OK;
}

strata_status st_model_resolve(struct st_model_modules *out, const struct st_model *m, const struct st_adapter_spec *spec,
                               uint32_t *unfitted)
{
    struct st_model_modules list = {0};
    strata_status st = list_modules(&list.modules, &list.count, m);

    *unfitted = 0;
    if (st != STRATA_OK)
        return st;
    st = st_adapter_resolve(spec, list.modules, list.count, st_family_of(m->config.family)->adapter_targets,
                            m->config.wrapper != NULL ? unfitted : NULL);
    if (st == STRATA_OK)
        st = check_experts(&list, m, spec);
    if (st != STRATA_OK) {
        free(list.modules);
        return st;
    }
    *out = list;
    return STRATA_OK;
}
