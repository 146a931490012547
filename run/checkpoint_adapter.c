/* run/checkpoint_adapter.c - see run/checkpoint_adapter.h. */
#include "run/checkpoint_adapter.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "kernels/widen.h"
#include "offload/checkpoint/reader.h"
#include "offload/config/config.h"

#include <stdlib.h>
#include <string.h>

struct st_checkpoint_adapter {
    const struct st_checkpoint *ck;
    struct st_reader *reader;
    const struct st_kernels *kernels;
    uint32_t last; /* tensor of the manifest that was read */
};

strata_status st_checkpoint_adapter_spec(struct st_adapter_spec **out, const struct st_checkpoint *ck)
{
    const struct st_manifest *m = &ck->manifest;
    const struct st_config_opts opts = {.allow_unknown = true, .any_length = true, .ranks = m->world};
    struct st_config_source *source = NULL;
    struct st_config *config = st_fault_refuses("run.adapter") ? NULL : calloc(1, sizeof(*config));
    strata_status st;

    *out = NULL;
    if (config == NULL)
        return st_nomem(sizeof(*config));
    st = st_config_load_text(config, &source, m->config, strlen(m->config), ck->path, &opts);
    if (st == STRATA_OK && config->lora[0] != '\0')
        st = st_adapter_spec_parse(out, config->lora, strlen(config->lora), ck->path);
    st_config_source_free(source);
    free(config);
    return st == STRATA_E_CONFIG ? st_error_prefix(STRATA_E_CORRUPT, "the checkpoint's own configuration") : st;
}

strata_status st_checkpoint_adapter_open(struct st_checkpoint_adapter **out, const struct st_checkpoint *ck)
{
    struct st_checkpoint_adapter *a = st_fault_refuses("run.adapter") ? NULL : calloc(1, sizeof(*a));
    strata_status st;

    if (a == NULL)
        return st_nomem(sizeof(*a));
    a->ck = ck;
    a->kernels = st_kernels_pick("auto");
    if ((st = st_reader_open(&a->reader, ck, NULL)) != STRATA_OK) {
        st_checkpoint_adapter_close(a);
        return st;
    }
    *out = a;
    return STRATA_OK;
}

void st_checkpoint_adapter_close(struct st_checkpoint_adapter *a)
{
    if (a == NULL)
        return;
    st_reader_close(a->reader);
    free(a);
}

/* --- values --- */

struct taking {
    const struct st_kernels *kernels;
    float *out; /* the next ones */
};

/* Spans come in order, so values do. */
static strata_status take(void *ctx, const struct st_extent_row *row, uint64_t first, uint64_t elems, const void *data)
{
    struct taking *t = ctx;

    (void)first;
    st_widen(t->kernels, t->out, data, (strata_dtype)row->format, elems);
    t->out += elems;
    return STRATA_OK;
}

static strata_status read_part(struct st_checkpoint_adapter *a, const struct st_manifest_tensor *part, uint64_t first,
                               uint64_t count, struct taking *t)
{
    const struct st_reader_sink sink = {.data = take, .ctx = t};
    const uint64_t spans = st_reader_spans(NULL, a->ck, ST_PLANE_WEIGHT, part->page, part->offset + first, count);
    struct st_reader_span *list = st_fault_refuses("run.spans") ? NULL : malloc((spans + 1) * sizeof(*list));
    strata_status st;

    if (list == NULL)
        return st_nomem((spans + 1) * sizeof(*list));
    (void)st_reader_spans(list, a->ck, ST_PLANE_WEIGHT, part->page, part->offset + first, count);
    st = st_reader_read(a->reader, list, spans, &sink);
    free(list);
    return st;
}

/* An adapter's own tensors have PEFT's names there, others that of the model's. */
static strata_status read_values(void *ctx, const struct st_hf_adapted *tensor, uint64_t first, uint64_t count, float *out)
{
    struct st_checkpoint_adapter *a = ctx;
    const struct st_manifest *m = &a->ck->manifest;
    const char *name = tensor->saved ? tensor->tensor->name : tensor->name;
    struct taking t = {.kernels = a->kernels, .out = out};
    const uint32_t begin = a->last; /* tensors are asked for in their order, as a rule */
    uint64_t at = 0;                /* of the part, in the tensor */
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; i < m->tensor_count && st == STRATA_OK && count > 0; i++) {
        const uint32_t place = (begin + i) % m->tensor_count;
        const struct st_manifest_tensor *part = &m->tensors[place];
        uint64_t here;

        if (strcmp(part->name, name) != 0)
            continue;
        a->last = at == 0 ? place : a->last;
        if (first < at + part->elems) {
            here = at + part->elems - first < count ? at + part->elems - first : count;
            st = read_part(a, part, first - at, here, &t);
            first += here;
            count -= here;
        }
        at += part->elems;
    }
    if (st == STRATA_OK && count > 0)
        return st_error(STRATA_E_CORRUPT, "%s: it lacks tensor %s, or a part of it", a->ck->path, name);
    return st;
}

struct st_adapter_values st_checkpoint_adapter_values(struct st_checkpoint_adapter *a)
{
    return (struct st_adapter_values){.ctx = a, .read = read_values};
}
