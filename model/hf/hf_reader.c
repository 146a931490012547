/* model/hf/hf_reader.c - reads the weights of a Hugging Face directory: one safetensors file, or shards with an index.
 *
 * Strict: every tensor of the model but its adapters, which read as zeros, must be there exactly once with its shape, and no
 * tensor that the model has no place for.
 * Names may lack the prefix of the whole model ("transformer.", "model."); a tied head's lm_head.weight, which must equal the
 * table or stand for it, and buffers that are not weights are skipped, and what a model has beside its text model. */
#include "core/base/error.h"
#include "core/system/file.h"
#include "model/hf/hf_experts_internal.h"
#include "model/hf/hf_files_internal.h"
#include "model/hf/hf_names_internal.h"
#include "model/hf/hf_packed_internal.h"
#include "model/hf/hf_reader_internal.h"
#include "model/hf/hf_widen_internal.h"
#include "model/hf/safetensors_internal.h"
#include "model/layout.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* How far ahead of the readers the kernel is asked to read, in values: 32 MiB in 16 bits keep a fast drive's queue full.  They
 * wait in the page cache, which the plan need not count. */
#define AHEAD_ELEMS (UINT64_C(16) << 20)

#define COMPARE_BYTES (1u << 20)

struct place {
    const struct st_hf_weights *file; /* NULL: not found yet */
    const struct st_safetensor *entry;
    uint64_t first; /* elements from the entry's start */
    bool stacked;   /* the entry is a stack, of which this is a part */
};

struct st_hf_reader {
    const struct st_model *m;
    bool trained_alone; /* tensors that are frozen may be missing: zeros */
    struct st_hf_files files;
    struct place *places;             /* [tensor_count] */
    struct place tied;                /* a tied head's lm_head.weight */
    uint32_t beside;                  /* tensors that are not the text model's */
    struct st_hf_packed *packed;      /* [tensor_count], of those that have a quantised state; NULL: config.json says of none */
    const struct st_tensor **by_name; /* [tensor_count], sorted */
};

static int compare_tensors(const void *a, const void *b)
{
    return strcmp((*(const struct st_tensor *const *)a)->name, (*(const struct st_tensor *const *)b)->name);
}

static int compare_name(const void *name, const void *tensor)
{
    return strcmp(name, (*(const struct st_tensor *const *)tensor)->name);
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), end_length = strlen(end);

    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool same_shape(const struct st_safetensor *e, const struct st_tensor *t)
{
    return e->rank == t->rank && e->shape[0] == t->shape[0] && (t->rank == 1 || e->shape[1] == t->shape[1]);
}

static strata_status shape_fault(const struct st_hf_weights *f, const struct st_safetensor *e, const struct st_tensor *t)
{
    char have[96], want[96];

    if (st_safetensor_is_placeholder(e))
        return st_safetensor_placeholder_fault(e, f->path);
    return st_error(STRATA_E_INPUT, "%s: tensor %s has shape %s, the model's config wants %s", f->path, e->name,
                    st_shape_text(have, e->shape, e->rank), st_shape_text(want, t->shape, t->rank));
}

/* Attention masks and rotary frequencies, which old files contain. */
static bool is_buffer(const char *name)
{
    return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") || ends_with(name, ".rotary_emb.inv_freq");
}

static const struct st_tensor *find_tensor(const struct st_hf_reader *r, const char *name)
{
    const struct st_tensor *const *found;
    char full[ST_HF_NAME_BYTES];

    st_hf_name_in_model(full, &r->m->config, name);
    st_hf_stack_router(full, &r->m->config, false);
    found = bsearch(full, r->by_name, r->m->tensor_count, sizeof(struct st_tensor *), compare_name);
    return found != NULL ? *found : NULL;
}

static strata_status check_plain(const struct place *place, const struct st_tensor *t)
{
    const struct st_safetensor *e = place->entry;

    if (!place->stacked && !same_shape(e, t))
        return shape_fault(place->file, e, t);
    if (e->dtype == STRATA_DTYPE_INVALID)
        return st_error(STRATA_E_INPUT, "%s: tensor %s has dtype %s; F32, BF16 and F16 are read", place->file->path, e->name,
                        e->dtype_name);
    return STRATA_OK;
}

static struct st_hf_place place_of(const struct st_hf_weights *f, const struct st_safetensor *e)
{
    return (struct st_hf_place){.fd = f->fd, .path = f->path, .begin = e->begin, .end = e->end, .dtype = e->dtype};
}

/* Gives the tensor its place, which may be one that is quantised. */
static strata_status put_place(struct st_hf_reader *r, const struct st_tensor *t, struct place at)
{
    struct place *place = &r->places[t - r->m->tensors];

    if (place->file != NULL)
        return st_error(STRATA_E_INPUT, "%s: tensor %s occurs twice (also as %s in %s)", at.file->path, at.entry->name,
                        place->entry->name, place->file->path);
    *place = at;
    return r->packed != NULL ? STRATA_OK : check_plain(place, t);
}

/* The experts of a stack, each of which is a tensor of the model. */
static strata_status place_stack(struct st_hf_reader *r, const struct st_hf_weights *f, const struct st_safetensor *e,
                                 struct st_hf_stack stack)
{
    const struct st_model_config *c = &r->m->config;
    const uint32_t end = st_model_block_end(r->m, stack.block);
    struct place at = {.file = f, .entry = e, .stacked = true};
    uint64_t want[3];
    char have_text[96], want_text[96];
    const uint32_t rank = st_hf_stack_shape(want, c, stack.kind);
    strata_status st = STRATA_OK;

    if (e->rank != rank || memcmp(e->shape, want, rank * sizeof(*want)) != 0)
        return st_safetensor_is_placeholder(e)
                   ? st_safetensor_placeholder_fault(e, f->path)
                   : st_error(STRATA_E_INPUT, "%s: tensor %s has shape %s, the model's config wants %s", f->path, e->name,
                              st_shape_text(have_text, e->shape, e->rank), st_shape_text(want_text, want, rank));
    for (uint32_t i = st_model_block_tensors(r->m, stack.block); i < end && st == STRATA_OK; i++)
        if (st_hf_stack_place(&at.first, c, stack.kind, &r->m->tensors[i]))
            st = put_place(r, &r->m->tensors[i], at);
    return st;
}

/* Of experts whose gate and up are one, as published files have them. */
static bool is_mxfp4(const struct st_model_config *c, const char *name)
{
    static const char *const endings[] = {"_proj_blocks", "_proj_scales"};

    for (size_t i = 0; i < sizeof(endings) / sizeof(endings[0]); i++)
        if (st_family_is_fused(st_family_of(c->family)) && st_path_ends(name, endings[i]))
            return true;
    return false;
}

static strata_status place_entry(struct st_hf_reader *r, const struct st_hf_weights *f, const struct st_safetensor *e)
{
    const struct st_tensor *t;
    struct st_hf_stack stack;

    if (is_buffer(e->name))
        return STRATA_OK;
    if (st_hf_stack_find(&stack, &r->m->config, e->name))
        return place_stack(r, f, e, stack);
    if (!r->m->config.untied && st_hf_name_is_head(&r->m->config, e->name)) {
        t = &r->m->tensors[0];
        r->tied = (struct place){.file = f, .entry = e};
        return same_shape(e, t) ? STRATA_OK : shape_fault(f, e, t);
    }
    t = find_tensor(r, e->name);
    if (t == NULL && is_mxfp4(&r->m->config, e->name))
        return st_error(
            STRATA_E_INPUT,
            "%s: tensor %s is in mxfp4, which is not read: with its \"quantization_config\" in config.json, " ST_HF_MXFP4_REMEDY,
            f->path, e->name);
    if (t == NULL || (t->adapts != ST_NO_TENSOR && !r->trained_alone))
        return st_error(STRATA_E_INPUT, "%s: tensor %s has no place in a model of this config", f->path, e->name);
    return put_place(r, t, (struct place){.file = f, .entry = e});
}

/* A part of a quantised tensor, beside its codes. */
static strata_status place_part(struct st_hf_reader *r, const struct st_hf_weights *f, const struct st_safetensor *e,
                                enum st_hf_packed_part part, size_t length)
{
    char name[sizeof(r->m->tensors->name)] = "";
    const struct st_tensor *t = NULL;
    struct st_hf_place *place;

    if (length < sizeof(name)) {
        memcpy(name, e->name, length);
        t = find_tensor(r, name);
    }
    if (t == NULL)
        return st_error(STRATA_E_INPUT, "%s: tensor %s has no place in a model of this config", f->path, e->name);
    place = &r->packed[t - r->m->tensors].parts[part];
    if (place->path != NULL)
        return st_error(STRATA_E_INPUT, "%s: tensor %s occurs twice (also in %s)", f->path, e->name, place->path);
    *place = place_of(f, e);
    return STRATA_OK;
}

static strata_status place_named(struct st_hf_reader *r, const struct st_hf_weights *f, const struct st_safetensor *e)
{
    enum st_hf_packed_part part;
    size_t length;

    if (st_hf_name_is_beside(&r->m->config, e->name)) {
        r->beside++;
        return STRATA_OK;
    }
    if (r->packed != NULL && st_hf_packed_find(e->name, &part, &length))
        return place_part(r, f, e, part, length);
    return place_entry(r, f, e);
}

static bool is_packed(const struct st_hf_reader *r, const struct st_tensor *t)
{
    return r->packed != NULL && r->packed[t - r->m->tensors].parts[ST_HF_PACKED_STATE].path != NULL;
}

static strata_status open_packed(struct st_hf_reader *r)
{
    strata_status st = STRATA_OK;

    for (uint32_t i = 0; r->packed != NULL && i < r->m->tensor_count && st == STRATA_OK; i++) {
        const struct st_tensor *t = &r->m->tensors[i];

        if (r->places[i].file == NULL)
            continue;
        r->packed[i].codes = place_of(r->places[i].file, r->places[i].entry);
        st = is_packed(r, t) ? st_hf_packed_open(&r->packed[i], t) : check_plain(&r->places[i], t);
    }
    return st;
}

/* A head that the config ties to the table must be the table: of another one transformers 5 computes with the head, 4 with the
 * table. */
static strata_status check_tied(const struct st_hf_reader *r)
{
    const struct st_hf_place head = place_of(r->tied.file, r->tied.entry),
                             table = place_of(r->places[0].file, r->places[0].entry);
    unsigned char *parts = malloc(2 * (size_t)COMPARE_BYTES);
    bool same = head.dtype == table.dtype && head.end - head.begin == table.end - table.begin;
    strata_status st = parts != NULL ? STRATA_OK : st_nomem(2 * (size_t)COMPARE_BYTES);

    for (uint64_t at = 0, bytes; head.begin + at < head.end && same && st == STRATA_OK; at += bytes) {
        bytes = head.end - head.begin - at < COMPARE_BYTES ? head.end - head.begin - at : COMPARE_BYTES;
        if ((st = st_file_read_at(head.fd, parts, bytes, head.begin + at, head.path)) == STRATA_OK &&
            (st = st_file_read_at(table.fd, parts + COMPARE_BYTES, bytes, table.begin + at, table.path)) == STRATA_OK)
            same = memcmp(parts, parts + COMPARE_BYTES, bytes) == 0;
    }
    free(parts);
    if (st != STRATA_OK || same)
        return st;
    return st_error(STRATA_E_INPUT,
                    "%s: tensor %s differs from %s, to which config.json ties it: set \"tie_word_embeddings\" to false there, or "
                    "take the tensor out",
                    head.path, r->tied.entry->name, r->places[0].entry->name);
}

/* An expert's tensor has the name of its stack where files have stacks. */
static strata_status missing(const struct st_hf_reader *r, const char *dir, const struct st_tensor *t)
{
    const struct st_model_config *c = &r->m->config;
    struct st_hf_stack stack = {0};
    char name[ST_HF_NAME_BYTES];
    uint64_t at;

    snprintf(name, sizeof(name), "%s", t->name);
    while (stack.block + 1 < c->blocks && (size_t)(t - r->m->tensors) >= st_model_block_end(r->m, stack.block))
        stack.block++;
    for (stack.kind = 0; c->stacked && stack.kind < ST_HF_STACK_KINDS; stack.kind++)
        if (st_hf_stack_place(&at, c, stack.kind, t))
            st_hf_stack_name(name, c, stack);
    return st_error(
        STRATA_E_INPUT, "%s: tensor %s is missing%s", dir, name,
        st_hf_name_is_head(c, t->name) ? ": if the head is the table, set \"tie_word_embeddings\" to true in config.json" : "");
}

static strata_status place_all(struct st_hf_reader *r, const char *dir)
{
    strata_status st;

    for (uint32_t i = 0; i < r->files.count; i++) {
        for (uint32_t j = 0; j < r->files.list[i].header.count; j++) {
            if ((st = place_named(r, &r->files.list[i], &r->files.list[i].header.tensors[j])) != STRATA_OK)
                return st;
        }
    }
    if (r->places[0].file == NULL && r->tied.file != NULL) { /* a writer that keeps one of two names */
        r->places[0] = r->tied;
        if (r->packed == NULL && (st = check_plain(&r->tied, &r->m->tensors[0])) != STRATA_OK)
            return st;
        r->tied = (struct place){0};
    }
    for (uint32_t i = 0; i < r->m->tensor_count; i++) {
        const struct st_tensor *t = &r->m->tensors[i];

        if (r->places[i].file == NULL && !(r->trained_alone ? t->frozen : t->adapts != ST_NO_TENSOR))
            return missing(r, dir, t);
    }
    if (r->tied.file != NULL && r->places[0].file != NULL && (st = check_tied(r)) != STRATA_OK)
        return st;
    return open_packed(r);
}

static strata_status reader_open(struct st_hf_reader **out, const struct st_model *m, const char *dir, bool trained_alone)
{
    struct st_hf_reader *r = calloc(1, sizeof(*r));
    strata_status st;

    if (r == NULL)
        return st_nomem(sizeof(*r));
    r->m = m;
    r->trained_alone = trained_alone;
    r->places = calloc(m->tensor_count, sizeof(*r->places));
    r->by_name = calloc(m->tensor_count, sizeof(*r->by_name));
    if (m->config.quantised)
        r->packed = calloc(m->tensor_count, sizeof(*r->packed));
    if (r->places == NULL || r->by_name == NULL || (m->config.quantised && r->packed == NULL)) {
        st = st_nomem(0);
        goto fail;
    }
    for (uint32_t i = 0; i < m->tensor_count; i++)
        r->by_name[i] = &m->tensors[i];
    qsort(r->by_name, m->tensor_count, sizeof(*r->by_name), compare_tensors);
    if ((st = st_hf_files_open(&r->files, dir, &m->config)) != STRATA_OK || (st = place_all(r, dir)) != STRATA_OK)
        goto fail;
    *out = r;
    return STRATA_OK;

fail:
    st_hf_reader_close(r);
    return st;
}

strata_status st_hf_reader_open(struct st_hf_reader **out, const struct st_model *m, const char *dir)
{
    return reader_open(out, m, dir, false);
}

strata_status st_hf_reader_open_trained(struct st_hf_reader **out, const struct st_model *m, const char *dir)
{
    return reader_open(out, m, dir, true);
}

void st_hf_reader_close(struct st_hf_reader *r)
{
    if (r == NULL)
        return;
    st_hf_files_close(&r->files);
    free(r->places);
    free(r->packed);
    free(r->by_name);
    free(r);
}

strata_status st_hf_reader_check_unchanged(const struct st_hf_reader *r)
{
    return st_hf_files_check_unchanged(&r->files);
}

struct st_hf_place st_hf_reader_place(const struct st_hf_reader *r, uint32_t tensor)
{
    const struct place *place = &r->places[tensor];
    struct st_hf_place at = place_of(place->file, place->entry);

    if (place->stacked) {
        at.begin += place->first * strata_dtype_bytes(at.dtype);
        at.end = at.begin + r->m->tensors[tensor].elems * strata_dtype_bytes(at.dtype);
    }
    return at;
}

uint32_t st_hf_reader_beside(const struct st_hf_reader *r)
{
    return r->beside;
}

uint32_t st_hf_reader_file_count(const struct st_hf_reader *r)
{
    return r->files.count;
}

struct st_hf_file st_hf_reader_file(const struct st_hf_reader *r, uint32_t file)
{
    const struct st_hf_weights *f = &r->files.list[file];

    return (struct st_hf_file){.fd = f->fd, .path = f->path, .bytes = f->identity.bytes};
}

static bool is_there(const struct st_hf_reader *r, const struct st_tensor *t)
{
    return r->places[t - r->m->tensors].file != NULL;
}

/* Asks for what lies AHEAD_ELEMS behind this range, in the order of pages: so each reader asks for as much as it takes, and all
 * that is read is asked for once, except at the very start. */
static void read_ahead(const struct st_hf_reader *r, uint32_t page, uint64_t first, uint64_t count)
{
    const struct st_workload *w = &r->m->workload;
    struct st_piece piece;

    while (page < w->page_count && first >= w->pages[page].elems)
        first -= w->pages[page++].elems;
    for (; page < w->page_count && count > 0; page++, first = 0) {
        const uint64_t left = w->pages[page].elems - first, here = count < left ? count : left;

        for (uint32_t i = 0; st_model_piece(r->m, page, first, here, i, &piece); i++) {
            struct st_hf_place p;
            uint64_t half_bytes; /* of an element */

            if (!is_there(r, piece.tensor) || piece.count == 0)
                continue;
            p = st_hf_reader_place(r, (uint32_t)(piece.tensor - r->m->tensors));
            half_bytes = is_packed(r, piece.tensor) ? 1 : 2 * strata_dtype_bytes(p.dtype);
            st_file_read_ahead(p.fd, piece.count * half_bytes / 2, p.begin + piece.tensor_first * half_bytes / 2);
        }
        count -= here;
    }
}

static strata_status read_piece(const struct st_hf_reader *r, const struct st_piece *piece, float *out)
{
    const uint32_t tensor = (uint32_t)(piece->tensor - r->m->tensors);
    const struct st_hf_place p = st_hf_reader_place(r, tensor);

    if (is_packed(r, piece->tensor))
        return st_hf_packed_read(&r->packed[tensor], piece->tensor->name, piece->tensor_first, piece->count, out);
    return st_hf_read_widened(p.fd, p.path, p.begin, p.dtype, piece->tensor_first, piece->count, out);
}

static strata_status reader_read(void *ctx, uint32_t page, uint64_t first, uint64_t count, float *out)
{
    const struct st_hf_reader *r = ctx;
    struct st_piece piece;
    strata_status st;

    if (page == 0 && first == 0)
        read_ahead(r, 0, count, AHEAD_ELEMS);
    else
        read_ahead(r, page, first + AHEAD_ELEMS, count);
    memset(out, 0, count * sizeof(*out)); /* padding */
    for (uint32_t i = 0; st_model_piece(r->m, page, first, count, i, &piece); i++) {
        if (piece.count > 0 && is_there(r, piece.tensor) && (st = read_piece(r, &piece, out + piece.range_first)) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

struct st_weight_source st_hf_reader_source(struct st_hf_reader *r)
{
    return (struct st_weight_source){.ctx = r, .read = reader_read};
}
