/* model/modules.c - the modules that a model's tensors belong to, for an adapter's settings to name them.  Experts are none: as
 * transformers 5 has them they are parameters of one module. */
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
        return is_router(m, t->name) ? ST_ADAPTER_ROUTER : ST_ADAPTER_LINEAR;
    return m->config.untied && t->page == m->at.head_first ? ST_ADAPTER_HEAD : ST_ADAPTER_EMBEDDING;
}

static strata_status list_modules(struct st_adapter_module **out, uint32_t *count, const struct st_model *m)
{
    struct st_adapter_module *modules =
        st_fault("model.modules", 0) < 0 ? NULL : calloc((size_t)m->tensor_count + 1, sizeof(*modules));
    uint32_t n = 0;

    if (modules == NULL)
        return st_nomem(((size_t)m->tensor_count + 1) * sizeof(*modules));
    for (uint32_t i = 0; i < m->tensor_count; i++) {
        const struct st_tensor *t = &m->tensors[i];

        if (!is_weight(t->name) || st_adapter_is_own(t->name) || t->expert != ST_NO_EXPERT)
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

strata_status st_model_resolve(struct st_adapter_module **out, uint32_t *count, const struct st_model *m,
                               const struct st_adapter_spec *spec, uint32_t *unfitted)
{
    struct st_adapter_module *modules = NULL;
    uint32_t n = 0;
    strata_status st = list_modules(&modules, &n, m);

    *unfitted = 0;
    if (st != STRATA_OK)
        return st;
    if ((st = st_adapter_resolve(spec, modules, n, st_family_of(m->config.family)->adapter_targets,
                                 m->config.wrapper != NULL ? unfitted : NULL)) != STRATA_OK) {
        free(modules);
        return st;
    }
    *out = modules;
    *count = n;
    return STRATA_OK;
}

const struct st_adapter_module *st_model_module_of(const struct st_adapter_module *modules, uint32_t count, const char *tensor)
{
    const char *dot = strrchr(tensor, '.');
    const size_t length = dot != NULL ? (size_t)(dot - tensor) : 0;

    for (uint32_t i = 0; i < count && !st_adapter_is_own(tensor); i++)
        if (strncmp(modules[i].path, tensor, length) == 0 && modules[i].path[length] == '\0')
            return &modules[i];
    return NULL;
}
