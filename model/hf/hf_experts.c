/* model/hf/hf_experts.c - see hf_experts_internal.h. */
#include "core/system/file.h"
#include "model/hf/hf_experts_internal.h"
#include "model/hf/hf_files_internal.h"
#include "model/hf/hf_output_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const stacks[] = {[ST_HF_STACK_GATE_UP] = "gate_up_proj",
                                     [ST_HF_STACK_DOWN] = "down_proj",
                                     [ST_HF_STACK_GATE_UP_BIAS] = "gate_up_proj_bias",
                                     [ST_HF_STACK_DOWN_BIAS] = "down_proj_bias"};

/* "model.layers.3.REST": REST, and the number. */
static const char *in_block(const char *name, const struct st_model_config *c, uint32_t *block)
{
    const struct st_family *family = st_family_of(c->family);
    const size_t length = strlen(family->block);
    char *end;
    unsigned long number;

    if (strncmp(name, family->block, length) != 0 || name[length] != '.' || name[length + 1] < '0' || name[length + 1] > '9')
        return NULL;
    number = strtoul(name + length + 1, &end, 10);
    *block = (uint32_t)number;
    return *end == '.' && number < c->blocks ? end + 1 : NULL;
}

bool st_hf_stack_find(struct st_hf_stack *out, const struct st_model_config *c, const char *name)
{
    char full[ST_HF_NAME_BYTES];
    const char *rest;

    if (st_family_of(c->family)->experts == NULL)
        return false;
    st_hf_name_in_model(full, c, name);
    rest = in_block(full, c, &out->block);
    if (rest == NULL || !st_layer_bit(c->sparse, out->block) ||
        strncmp(rest, ST_EXPERTS_STACKED ".", sizeof(ST_EXPERTS_STACKED)) != 0)
        return false;
    for (out->kind = 0; out->kind < ST_HF_STACK_KINDS; out->kind++) {
        uint64_t shape[3];

        if (strcmp(rest + sizeof(ST_EXPERTS_STACKED), stacks[out->kind]) == 0)
            return st_hf_stack_shape(shape, c, out->kind) > 0;
    }
    return false;
}

void st_hf_stack_name(char out[ST_HF_NAME_BYTES], const struct st_model_config *c, struct st_hf_stack stack)
{
    snprintf(out, ST_HF_NAME_BYTES, "%s.%u." ST_EXPERTS_STACKED ".%s", st_family_of(c->family)->block, stack.block,
             stacks[stack.kind]);
}

uint32_t st_hf_stack_shape(uint64_t shape[3], const struct st_model_config *c, enum st_hf_stack_kind kind)
{
    const bool bias = kind >= ST_HF_STACK_GATE_UP_BIAS, fused = st_family_is_fused(st_family_of(c->family));
    const bool down = kind == ST_HF_STACK_DOWN || kind == ST_HF_STACK_DOWN_BIAS;
    const uint64_t in = down ? c->expert_ffn : c->hidden, out = down ? c->hidden : 2 * (uint64_t)c->expert_ffn;

    shape[0] = c->experts;
    shape[1] = fused && !bias ? in : out;
    shape[2] = fused ? out : in;
    return !bias ? 3 : fused ? 2 : 0;
}

uint64_t st_hf_stack_elems(const struct st_model_config *c, enum st_hf_stack_kind kind)
{
    uint64_t shape[3], elems = 1;
    const uint32_t rank = st_hf_stack_shape(shape, c, kind);

    for (uint32_t i = 0; i < rank; i++)
        elems *= shape[i];
    return rank > 0 ? elems : 0;
}

bool st_hf_stack_place(uint64_t *at, const struct st_model_config *c, enum st_hf_stack_kind kind, const struct st_tensor *t)
{
    static const enum st_hf_stack_kind kinds[] = {[ST_EXPERT_GATE] = ST_HF_STACK_GATE_UP,
                                                  [ST_EXPERT_UP] = ST_HF_STACK_GATE_UP,
                                                  [ST_EXPERT_DOWN] = ST_HF_STACK_DOWN,
                                                  [ST_EXPERT_GATE_BIAS] = ST_HF_STACK_GATE_UP_BIAS,
                                                  [ST_EXPERT_DOWN_BIAS] = ST_HF_STACK_DOWN_BIAS};

    if (t->expert == ST_NO_EXPERT || t->adapts != ST_NO_TENSOR || kinds[t->part] != kind)
        return false;
    *at = t->expert * (st_hf_stack_elems(c, kind) / c->experts) + (t->part == ST_EXPERT_UP ? t->elems : 0);
    return true;
}

void st_hf_stack_router(char name[ST_HF_NAME_BYTES], const struct st_model_config *c, bool to_file)
{
    const struct st_family *family = st_family_of(c->family);
    const char *own = family->sparse[ST_ROLE_ROUTER_WEIGHT], *from = to_file ? own : family->stacked_router;
    const char *to = to_file ? family->stacked_router : own;
    uint32_t block;
    const char *rest = family->stacked_router != NULL ? in_block(name, c, &block) : NULL;

    if (rest != NULL && strcmp(rest, from) == 0)
        snprintf(name, ST_HF_NAME_BYTES, "%s.%u.%s", family->block, block, to);
}

static bool any_stack(const struct st_model_config *c, const struct st_safetensors *header)
{
    struct st_hf_stack stack;

    for (uint32_t i = 0; i < header->count; i++)
        if (st_hf_stack_find(&stack, c, header->tensors[i].name))
            return true;
    return false;
}

static strata_status detect_in_file(struct st_model_config *c, const char *dir)
{
    struct st_hf_files files;
    const strata_status st = st_hf_files_open_one(&files, dir, ST_HF_WEIGHTS_NAME);

    if (st != STRATA_OK)
        return st;
    c->stacked = any_stack(c, &files.list[0].header);
    st_hf_files_close(&files);
    return STRATA_OK;
}

static strata_status detect_in_index(struct st_model_config *c, const char *dir)
{
    struct st_hf_index index;
    struct st_hf_stack stack;
    const strata_status st = st_hf_output_read_index(&index, dir);

    for (uint32_t i = 0; st == STRATA_OK && i < index.count && !c->stacked; i++)
        c->stacked = st_hf_stack_find(&stack, c, index.entries[i].name);
    st_hf_index_fini(&index);
    return st;
}

strata_status st_hf_stack_detect(struct st_model_config *c, const char *dir)
{
    char path[ST_PATH_MAX];
    bool there;
    strata_status st;

    if (st_family_of(c->family)->experts == NULL || c->stacked)
        return STRATA_OK;
    if ((st = st_path_join(path, dir, ST_HF_STACKED_NAME)) != STRATA_OK || (st = st_file_find(&c->stacked, path)) != STRATA_OK ||
        c->stacked)
        return st;
    if ((st = st_path_join(path, dir, ST_HF_WEIGHTS_NAME)) != STRATA_OK || (st = st_file_find(&there, path)) != STRATA_OK)
        return st;
    return there ? detect_in_file(c, dir) : detect_in_index(c, dir);
}
