/* model/tensors_adapted.c - the tensors of adapters, at the end of the list of their block. */
#include "core/base/checksum.h"
#include "core/base/error.h"
#include "core/base/log.h"
#include "model/adapter/adapter.h"
#include "model/layout.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What an adapter's settings make of the model's own tensors. */
struct adapting {
    const struct st_tensor *own; /* [own_count] */
    struct st_model_modules modules;
    uint32_t own_count;
    enum st_adapter_init init;
};

static struct st_tensor *add(struct st_model *m, uint32_t base, const char *path, const char *part, uint64_t rows, uint64_t cols)
{
    struct st_tensor *t = &m->tensors[m->tensor_count++];

    *t = (struct st_tensor){.rank = 2,
                            .shape = {rows, cols},
                            .elems = rows * cols,
                            .page = m->tensors[base].page,
                            .page_count = 1,
                            .format = STRATA_F32,
                            .adapts = base,
                            .adapter = ST_NO_TENSOR,
                            .expert = m->tensors[base].expert,
                            .part = m->tensors[base].part,
                            .decays = true};
    snprintf(t->name, sizeof(t->name), ST_ADAPTER_PREFIX "%.64s.%.6s.weight", path, part);
    t->stream = st_checksum64(t->name, strlen(t->name));
    return t;
}

/* The names of a stack's are those of its experts. */
static void add_adapter(struct st_model *m, uint32_t base, const struct st_adapter_module *module, enum st_adapter_init init)
{
    const uint32_t out_at = st_model_is_turned(m, &m->tensors[base]) ? 1 : 0;
    const bool stack = module->kind == ST_ADAPTER_STACK, both = stack && st_expert_is_split(&m->tensors[base]);
    const uint64_t out = (both ? 2 : 1) * m->tensors[base].shape[out_at], in = m->tensors[base].shape[1 - out_at];
    char path[sizeof(module->path)];
    uint32_t *const most = m->tensors[base].expert != ST_NO_EXPERT ? &m->experts_rank : &m->adapted.rank;
    struct st_tensor *a, *b;

    if (stack)
        st_model_expert_path(path, module->path, m->tensors[base].expert);
    else
        snprintf(path, sizeof(path), "%s", module->path);
    m->tensors[base].adapter = m->tensor_count;
    a = add(m, base, path, "lora_A", module->r, in);
    b = add(m, base, path, "lora_B", out, module->r);
    a->scale = b->scale = module->scale;
    if (init == ST_ADAPTER_INIT_GAUSSIAN)
        a->init_std = 1.0f / (float)module->r;
    else
        a->init_range = (float)(1.0 / sqrt((double)in));
    *most = module->r > *most ? module->r : *most;
}

/* The model's own tensors from .. to - 1.  Those that are saved whole are trained, and not quantised. */
static void add_own(struct st_model *m, struct adapting *by, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const struct st_adapter_module *module = st_model_module_of(&by->modules, &by->own[i]);
        struct st_tensor *t = &m->tensors[m->tensor_count++];

        *t = by->own[i];
        t->frozen = module == NULL || !module->saved;
        if (!t->frozen)
            t->format = m->batch.dtype;
    }
}

/* The list again, each page's with its adapters behind it. */
static void list_again(struct st_model *m, struct adapting *by)
{
    const uint32_t pages = m->at.norm - m->at.block_first;
    uint32_t from = m->page_tensors[0];

    m->tensor_count = 0;
    add_own(m, by, 0, from);
    for (uint32_t page = 0; page < pages; page++) {
        const uint32_t first = m->tensor_count, to = m->page_tensors[page + 1];

        add_own(m, by, from, to);
        for (uint32_t i = from; i < to; i++) {
            const struct st_adapter_module *module = st_model_module_of(&by->modules, &by->own[i]),
                                           *stack = st_model_stack_of(&by->modules, m, &by->own[i]);

            if (module != NULL && module->r > 0 && by->own[i].rank == 2)
                add_adapter(m, first + i - from, module, by->init);
            else if (stack != NULL && stack->r > 0)
                add_adapter(m, first + i - from, stack, by->init);
        }
        m->page_tensors[page] = first;
        from = to;
    }
    m->page_tensors[pages] = m->tensor_count;
    add_own(m, by, from, by->own_count);
}

static void find_widths(struct st_model *m)
{
    static const enum st_linear_kind kinds[] = {ST_LINEAR_QKV, ST_LINEAR_PROJ, ST_LINEAR_FC, ST_LINEAR_DOWN,
                                                ST_LINEAR_SHARED_GATE};
    enum { KINDS = sizeof(kinds) / sizeof(kinds[0]) };

    for (uint32_t i = 0; i < m->config.blocks * KINDS; i++) {
        const struct st_linear l = st_block_linear(m, i / KINDS, kinds[i % KINDS]);

        if (l.adapter_count == 0)
            continue;
        m->adapted.in = l.in > m->adapted.in ? l.in : m->adapted.in;
        m->adapted.out = l.out > m->adapted.out ? l.out : m->adapted.out;
    }
}

strata_status st_model_adapt(struct st_model *m, const struct st_adapter_spec *spec)
{
    struct adapting by = {.own = m->tensors, .own_count = m->tensor_count, .init = st_adapter_spec_init(spec)};
    struct st_tensor *own = m->tensors;
    uint32_t unfitted;
    strata_status st = st_model_resolve(&by.modules, m, spec, &unfitted);

    if (st != STRATA_OK)
        return st;
    if (unfitted > 0)
        st_log(ST_LOG_NOTICE, "names in the adapter's settings that fit no module of the text model of %s, and are not used: %u",
               m->config.name, unfitted);
    m->dropout = st_adapter_spec_dropout(spec);
    m->tensors = calloc(3 * (size_t)by.own_count, sizeof(*m->tensors));
    if (m->tensors == NULL)
        st = st_nomem((3 * (size_t)by.own_count) * sizeof(*m->tensors));
    else
        list_again(m, &by);
    free(own);
    free(by.modules.modules);
    if (st == STRATA_OK)
        find_widths(m);
    return st;
}

uint32_t st_expert_adapters(const struct st_model *m, const struct st_tensor *tensors, bool down,
                            struct st_linear_adapter out[ST_EXPERT_ADAPTERS], uint64_t *stride)
{
    const enum st_expert_part first = down ? ST_EXPERT_DOWN : ST_EXPERT_GATE, last = down ? ST_EXPERT_DOWN : ST_EXPERT_UP;
    uint32_t count = 0;

    *stride = 0;
    for (const struct st_tensor *t = tensors; t->expert == tensors->expert && t->adapts == ST_NO_TENSOR; t++) {
        const struct st_tensor *a = t->adapter != ST_NO_TENSOR ? &m->tensors[t->adapter] : NULL;
        const enum st_expert_part part = t->part;

        if (a == NULL)
            continue;
        *stride += a[0].elems + a[1].elems;
        if (part >= first && part <= last)
            out[count++] = (struct st_linear_adapter){.a = a[0].offset,
                                                      .b = a[1].offset,
                                                      .first = part == ST_EXPERT_UP ? m->config.expert_ffn : 0,
                                                      .count = (uint32_t)a[1].shape[0],
                                                      .rank = (uint32_t)a[0].shape[0],
                                                      .scale = a[0].scale};
    }
    return count;
}
