/* model/modules_peft.c - whether PEFT makes the same sums of an adapter's file as are made here.
 *
 * transformers 5 has a layer's experts in two parameters.  Beside it PEFT 0.21 takes names of experts' linear layers in
 * target_modules for names of these (utils/transformers_weight_conversion.py, _convert_peft_config_moe()): gate and up become one
 * adapter of twice the rank and alpha, with which its patterns and its scale are found anew, and layers that are no experts but
 * have such a name lose theirs.  What comes out otherwise is found here by the same rules. */
#include "core/base/error.h"
#include "core/base/log.h"
#include "model/adapter/adapter.h"
#include "model/layout.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FUSED 2u /* gate and up */

struct reading {
    struct st_peft_reading *out;
    const struct st_model *m;
    const struct st_adapter_spec *spec;
    struct st_model_modules list;
    bool downs; /* of any layer have adapters by target_modules */
};

static const char by_parameters[] =
    "name experts in target_parameters (mlp.experts.gate_up_proj, mlp.experts.down_proj), which PEFT reads as they are";

static const char *last_part(const char *path)
{
    const char *dot = strrchr(path, '.');

    return dot != NULL ? dot + 1 : path;
}

/* "gate_proj" of "gate_proj.weight" */
static bool is_experts_name(const struct st_family *family, const char *name)
{
    const size_t length = strlen(name);

    for (enum st_expert_part p = ST_EXPERT_GATE; p <= ST_EXPERT_DOWN; p++)
        if (family->expert_tensors[p] != NULL && strncmp(family->expert_tensors[p], name, length) == 0 &&
            family->expert_tensors[p][length] == '.')
            return true;
    return false;
}

/* --- one parameter, of which gate and up may be two layers --- */

/* An expression is tried with the old last part behind the parameter's path. */
static strata_status check_named(struct reading *r, const struct st_adapter_module *layer, const struct st_adapter_module *stack)
{
    char path[2 * sizeof(stack->path)];
    bool fits;
    strata_status st;

    snprintf(path, sizeof(path), "%.*s%s", (int)(last_part(stack->path) - stack->path), stack->path, last_part(layer->path));
    st = st_adapter_spec_targets(r->spec, path, &fits);
    if (st != STRATA_OK || fits)
        return st;
    snprintf(r->out->what, sizeof(r->out->what), "it looks for %s, which the expression in target_modules does not fit", path);
    return STRATA_OK;
}

static strata_status check_stack(struct reading *r, const struct st_adapter_module *layer, const struct st_adapter_module *stack,
                                 uint32_t layers)
{
    double rank, scale;
    strata_status st = st_adapter_spec_values(r->spec, stack->path, layers, &rank, &scale);

    if (st == STRATA_OK && rank != (double)layers * layer->r)
        snprintf(r->out->what, sizeof(r->out->what), "it wants rank %g of %s, and the file has %u", rank, stack->path,
                 layers * layer->r);
    else if (st == STRATA_OK && (float)scale != layer->scale)
        snprintf(r->out->what, sizeof(r->out->what), "it multiplies what the adapter of %s adds by %g in place of %g",
                 stack->path, scale, (double)layer->scale);
    else if (st == STRATA_OK)
        st = check_named(r, layer, stack);
    return st;
}

static strata_status check_gate(struct reading *r, const struct st_tensor *t)
{
    const struct st_adapter_module *gate = st_model_module_of(&r->list, t), *up = st_model_module_of(&r->list, t + 1);

    if (gate->r == 0 && up->r == 0)
        return STRATA_OK;
    r->out->apart = true;
    if (gate->r != up->r || gate->scale != up->scale)
        snprintf(r->out->what, sizeof(r->out->what),
                 "it wants adapters of one rank and scale of %s and %s; they have ranks %u and %u, scales %g and %g", gate->path,
                 last_part(up->path), gate->r, up->r, (double)gate->scale, (double)up->scale);
    else if (!r->downs)
        snprintf(r->out->what, sizeof(r->out->what), "it leaves those of %s and %s out where no %s has any", gate->path,
                 last_part(up->path), last_part(st_model_module_of(&r->list, t + FUSED)->path));
    else
        return check_stack(r, gate, st_model_stack_of(&r->list, r->m, t), FUSED);
    return STRATA_OK;
}

static strata_status check_down(struct reading *r, const struct st_tensor *t)
{
    const struct st_adapter_module *down = st_model_module_of(&r->list, t);

    return down->r > 0 ? check_stack(r, down, st_model_stack_of(&r->list, r->m, t), 1) : STRATA_OK;
}

/* --- all of them --- */

/* What is plain before parameters are compared: *by_modules, whether experts have adapters that target_modules names. */
static void check_kinds(struct reading *r, bool *by_modules)
{
    const struct st_family *family = st_family_of(r->m->config.family);
    const struct st_adapter_module *stack = NULL, *layer = NULL;

    for (uint32_t i = 0; i < r->list.count; i++) {
        const struct st_adapter_module *module = &r->list.modules[i];

        if (module->r == 0)
            continue;
        if (module->kind == ST_ADAPTER_LINEAR && family->experts_joined && is_experts_name(family, last_part(module->path))) {
            snprintf(r->out->what, sizeof(r->out->what), "it takes %s in target_modules for experts' and leaves that of %s out",
                     last_part(module->path), module->path);
            r->out->remedy = "name such layers in exclude_modules";
            return;
        }
        stack = module->kind == ST_ADAPTER_STACK ? module : stack;
        layer = module->kind == ST_ADAPTER_EXPERT ? module : layer;
    }
    *by_modules = layer != NULL;
    if (layer != NULL && !family->experts_joined)
        snprintf(r->out->what, sizeof(r->out->what),
                 "it leaves out adapters of experts that target_modules names in %s, as of %s", family->model_type, layer->path);
    else if (layer != NULL && stack != NULL)
        snprintf(r->out->what, sizeof(r->out->what), "it takes %s in target_modules for another name in target_parameters",
                 last_part(layer->path));
}

static strata_status check_layers(struct reading *r)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < r->m->tensor_count; i++) {
        const struct st_tensor *t = &r->m->tensors[i];

        if (t->adapts == ST_NO_TENSOR && t->expert == 0 && t->part == ST_EXPERT_DOWN)
            r->downs = r->downs || st_model_module_of(&r->list, t)->r > 0;
    }
    for (uint32_t i = 0; i < r->m->tensor_count && st == STRATA_OK && r->out->what[0] == '\0'; i++) {
        const struct st_tensor *t = &r->m->tensors[i];

        if (t->adapts != ST_NO_TENSOR || t->expert != 0)
            continue;
        if (t->part == ST_EXPERT_GATE)
            st = check_gate(r, t);
        else if (t->part == ST_EXPERT_DOWN)
            st = check_down(r, t);
    }
    return st;
}

strata_status st_model_peft_reading(struct st_peft_reading *out, const struct st_model *m, const struct st_adapter_spec *spec)
{
    struct reading r = {.out = out, .m = m, .spec = spec};
    bool by_modules = false;
    uint32_t unfitted;
    strata_status st;

    *out = (struct st_peft_reading){.remedy = by_parameters};
    if (st_family_of(m->config.family)->experts == NULL)
        return STRATA_OK;
    if ((st = st_model_resolve(&r.list, m, spec, &unfitted)) != STRATA_OK)
        return st;
    check_kinds(&r, &by_modules);
    if (by_modules && out->what[0] == '\0')
        st = check_layers(&r);
    free(r.list.modules);
    return st;
}

strata_status st_model_peft_note(const struct st_model *m, const struct st_adapter_spec *spec)
{
    struct st_peft_reading reading;
    const strata_status st = st_model_peft_reading(&reading, m, spec);

    if (st == STRATA_OK && reading.what[0] != '\0')
        st_log(
            ST_LOG_NOTICE,
            "%s: PEFT beside transformers 5 reads this adapter otherwise, or refuses it: %s; it is used as beside transformers 4",
            st_adapter_spec_where(spec), reading.what);
    return st;
}
