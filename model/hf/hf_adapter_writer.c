/* model/hf/hf_adapter_writer.c - writes a directory of an adapter, which PEFT reads.
 *
 * Both files are created when the writer opens, the settings complete and the weights with their disk space, and take their names
 * together at commit. */
#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/base/text.h"
#include "core/system/dir_lock.h"
#include "core/system/file.h"
#include "kernels/widen.h"
#include "model/hf/hf_adapter.h"
#include "model/hf/hf_output_internal.h"
#include "model/hf/safetensors_internal.h"
#include "model/layout.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char base_key[] = "base_model_name_or_path";

/* B of all experts, of which each has every so many values: together until the last has come. */
struct stack {
    float *values; /* NULL: none has come */
    uint64_t left;
};

struct st_hf_adapter_writer {
    struct st_hf_adapted *tensors; /* [count] */
    uint64_t *at;                  /* [count] offsets in the file, of a stack's those of the whole */
    struct stack *stacks;          /* [count], of B of the first expert of each */
    uint32_t *firsts;              /* [count] that one's number */
    uint32_t *places;              /* [the model's tensors] number in the list, or ST_NO_TENSOR */
    const struct st_model *m;
    uint32_t count;
    struct st_new_file config, weights;
    bool overwrite;
    struct st_dir_lock lock; /* of the directory, until both have their names */
};

strata_status st_hf_adapter_output_check(const char *dir, bool overwrite)
{
    static const char *const names[] = {ST_ADAPTER_CONFIG_NAME, ST_ADAPTER_WEIGHTS_NAME};

    const strata_status st = st_hf_output_check_names(dir, names, sizeof(names) / sizeof(names[0]), overwrite);

    return st != STRATA_OK ? st : st_hf_output_check_lacks(dir, ST_HF_CONFIG_NAME, "a model");
}

/* --- settings --- */

static bool is_missing(const st_json *object, const char *key)
{
    const st_json *n = st_json_get(object, key);

    return n == NULL || st_json_type(n) == ST_JSON_NULL;
}

/* The names between spaces of the family's usual targets. */
static void put_targets(struct st_json_writer *w, const char *targets)
{
    char name[64];

    st_json_array_open(w, "target_modules");
    while (*targets != '\0') {
        const size_t length = strcspn(targets, " ");

        snprintf(name, sizeof(name), "%.*s", (int)length, targets);
        st_json_put_string(w, NULL, name);
        targets += length + (targets[length] == ' ');
    }
    st_json_array_close(w);
}

/* What PEFT would take for something else than is meant here, if it were left out. */
static void put_missing(struct st_json_writer *w, const st_json *object, const struct st_model *m, const char *base)
{
    static const struct {
        const char *key, *value;
    } rows[] = {{"peft_type", "LORA"}, {"task_type", "CAUSAL_LM"}, {"bias", "none"}};

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        if (is_missing(object, rows[i].key))
            st_json_put_string(w, rows[i].key, rows[i].value);
    if (is_missing(object, base_key))
        st_json_put_string(w, base_key, base);
    if (is_missing(object, "r"))
        st_json_put_u64(w, "r", ST_ADAPTER_RANK_DEFAULT);
    if (is_missing(object, "lora_alpha"))
        st_json_put_u64(w, "lora_alpha", ST_ADAPTER_ALPHA_DEFAULT);
    if (is_missing(object, "target_modules") && st_family_of(m->config.family)->adapter_targets != NULL)
        put_targets(w, st_family_of(m->config.family)->adapter_targets);
    if (is_missing(object, "fan_in_fan_out"))
        st_json_put_bool(w, "fan_in_fan_out", !m->config.out_in);
    if (is_missing(object, "inference_mode"))
        st_json_put_bool(w, "inference_mode", true);
}

/* Keys of which put_missing() writes a value in place of null. */
static bool has_value(const char *key)
{
    static const char *const keys[] = {"peft_type",  "task_type",      "bias",           base_key,        "r",
                                       "lora_alpha", "target_modules", "fan_in_fan_out", "inference_mode"};

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (strcmp(keys[i], key) == 0)
            return true;
    return false;
}

/* Keys of the object stay as they are, but for the base's name, which is that of the model that the adapter was trained beside,
 * whatever other adapter the settings came from: loaders find the model by it. */
static void put_config(FILE *file, const st_json *object, const struct st_model *m, const char *base)
{
    struct st_json_writer w;

    st_json_begin(&w, file);
    st_json_object_open(&w, NULL);
    put_missing(&w, object, m, base);
    for (const st_json *n = st_json_first(object); n != NULL; n = st_json_next(n)) {
        if (st_json_type(n) == ST_JSON_NULL && has_value(st_json_name(n)))
            continue;
        if (strcmp(st_json_name(n), base_key) == 0)
            st_json_put_string(&w, base_key, base);
        else
            st_json_put_node(&w, st_json_name(n), n);
    }
    st_json_object_close(&w);
    st_json_end_line(&w);
}

static strata_status write_config(struct st_hf_adapter_writer *w, const struct st_hf_adapter_output *o)
{
    char path[ST_PATH_MAX], *text = NULL;
    size_t bytes = 0;
    FILE *file = st_fault("adapter.alloc", 0) < 0 ? NULL : open_memstream(&text, &bytes);
    strata_status st;

    if (file == NULL)
        return st_nomem(0);
    put_config(file, st_adapter_spec_object(o->spec), o->model, o->base);
    if (fclose(file) != 0)
        st = st_nomem(0);
    else if ((st = st_path_join(path, o->dir, ST_ADAPTER_CONFIG_NAME)) == STRATA_OK &&
             (st = st_new_file_create(&w->config, path, o->overwrite ? ST_NEW_FILE_OVERWRITE : 0)) == STRATA_OK)
        st = st_new_file_write_at(&w->config, text, bytes, 0);
    free(text);
    return st;
}

/* --- weights --- */

static strata_status write_header(struct st_hf_adapter_writer *w)
{
    struct st_safetensors_writer *header;
    char name[128];
    unsigned char *text;
    uint64_t shape[2], bytes, end;
    strata_status st = st_safetensors_writer_begin(&header, STRATA_F32);

    if (st != STRATA_OK)
        return st;
    for (uint32_t i = 0; i < w->count; i++)
        if (w->firsts[i] == i) {
            st_hf_adapted_in_file(name, shape, &w->tensors[i]);
            st_safetensors_writer_add(header, name, shape, w->tensors[i].rank);
        }
    if ((st = st_safetensors_writer_end(header, &text, &bytes)) != STRATA_OK)
        return st;
    end = bytes;
    for (uint32_t i = 0; i < w->count; i++) {
        const uint32_t experts = w->tensors[i].experts;

        w->at[i] = w->firsts[i] == i ? end : w->at[w->firsts[i]];
        if (w->firsts[i] == i)
            end += st_hf_adapted_elems(&w->tensors[i]) * (experts > 0 ? experts : 1) * sizeof(float);
    }
    if ((st = st_new_file_reserve(&w->weights, end)) == STRATA_OK)
        st = st_new_file_write_at(&w->weights, text, bytes, 0);
    free(text);
    return st;
}

static strata_status place_tensors(struct st_hf_adapter_writer *w)
{
    uint32_t last = 0;

    w->places = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(w->m->tensor_count, sizeof(*w->places));
    if (w->places == NULL)
        return st_nomem(w->m->tensor_count * sizeof(*w->places));
    for (uint32_t i = 0; i < w->m->tensor_count; i++) {
        const struct st_tensor *t = &w->m->tensors[i];

        w->places[i] = ST_NO_TENSOR;
        for (uint32_t k = 0; k < w->count && w->places[i] == ST_NO_TENSOR && !t->frozen; k++) {
            const uint32_t at = (last + k) % w->count;

            if (strcmp(w->tensors[at].saved ? w->tensors[at].tensor->name : w->tensors[at].name, t->name) == 0)
                w->places[i] = last = at;
        }
    }
    return STRATA_OK;
}

/* The tensors of a block follow each other, expert by expert. */
static strata_status find_stacks(struct st_hf_adapter_writer *w)
{
    w->stacks = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc((size_t)w->count + 1, sizeof(*w->stacks));
    w->firsts = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc((size_t)w->count + 1, sizeof(*w->firsts));
    if (w->stacks == NULL || w->firsts == NULL)
        return st_nomem(((size_t)w->count + 1) * sizeof(*w->stacks));
    for (uint32_t i = 0; i < w->count; i++) {
        const struct st_hf_adapted *t = &w->tensors[i];
        uint32_t at = i;

        while (t->experts > 0 && t->tensor->expert > 0) {
            const struct st_hf_adapted *other = &w->tensors[--at];

            if (other->experts > 0 && other->b == t->b && other->tensor->part == t->tensor->part) {
                at = w->firsts[at];
                break;
            }
        }
        w->firsts[i] = at;
    }
    return STRATA_OK;
}

/* Files are for PEFT: what it would take for something else is not written. */
static strata_status check_peft(const struct st_hf_adapter_output *o)
{
    struct st_peft_reading reading;
    const strata_status st = st_model_peft_reading(&reading, o->model, o->spec);

    if (st != STRATA_OK || reading.what[0] == '\0')
        return st;
    return st_error_remedy(
        st_error(STRATA_E_CONFIG, "%s: PEFT beside transformers 5 would not read the adapter in %s as it is trained: %s",
                 st_adapter_spec_where(o->spec), o->dir, reading.what),
        "strata.lora", "%s; or train without this output, with strata.save, and merge the checkpoint", reading.remedy);
}

static strata_status create(struct st_hf_adapter_writer *w, const struct st_hf_adapter_output *o)
{
    const unsigned flags = ST_NEW_FILE_PARENTS | (o->overwrite ? ST_NEW_FILE_OVERWRITE : 0);
    char path[ST_PATH_MAX];
    strata_status st = st_hf_adapted_list(&w->tensors, &w->count, o->model, o->spec);

    w->m = o->model;
    if (st != STRATA_OK || (st = check_peft(o)) != STRATA_OK || (st = place_tensors(w)) != STRATA_OK ||
        (st = find_stacks(w)) != STRATA_OK)
        return st;
    w->at = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(w->count, sizeof(*w->at));
    if (w->at == NULL)
        return st_nomem(w->count * sizeof(*w->at));
    if ((st = st_path_join(path, o->dir, ST_ADAPTER_WEIGHTS_NAME)) != STRATA_OK ||
        (st = st_new_file_create(&w->weights, path, flags)) != STRATA_OK)
        return st;
    if ((st = st_dir_lock(&w->lock, o->dir)) == STRATA_OK &&
        (st = st_hf_output_check_lacks(o->dir, ST_HF_CONFIG_NAME, "a model")) == STRATA_OK)
        st = write_config(w, o);
    return st == STRATA_OK ? write_header(w) : st;
}

strata_status st_hf_adapter_writer_open(struct st_hf_adapter_writer **out, const struct st_hf_adapter_output *output)
{
    struct st_hf_adapter_writer *w;
    strata_status st;

    if (!st_text_is_utf8(output->base)) /* escaped, it would name something else */
        return st_error(STRATA_E_INPUT, "%s: the name is not UTF-8, as what an adapter says of its base is: give a link to it",
                        output->base);
    w = st_fault("adapter.alloc", 0) < 0 ? NULL : calloc(1, sizeof(*w));
    if (w == NULL)
        return st_nomem(sizeof(*w));
    w->config.fd = w->weights.fd = -1;
    w->lock = ST_DIR_LOCK_NONE;
    w->overwrite = output->overwrite;
    if ((st = create(w, output)) != STRATA_OK) {
        st_hf_adapter_writer_abort(w);
        return st_error_at_start(st);
    }
    *out = w;
    return STRATA_OK;
}

const struct st_hf_adapted *st_hf_adapter_writer_tensors(const struct st_hf_adapter_writer *w, uint32_t *count)
{
    *count = w->count;
    return w->tensors;
}

static strata_status put_stack(struct st_hf_adapter_writer *w, uint32_t tensor, uint64_t first, uint64_t count,
                               const float *values)
{
    const struct st_hf_adapted *t = &w->tensors[tensor];
    const uint64_t elems = st_hf_adapted_elems(t) * t->experts;
    struct stack *s = &w->stacks[w->firsts[tensor]];
    strata_status st;

    if (s->values == NULL) {
        s->values = st_fault("adapter.alloc", 0) < 0 ? NULL : malloc(elems * sizeof(*s->values));
        s->left = elems;
    }
    if (s->values == NULL)
        return st_nomem(elems * sizeof(*s->values));
    for (uint64_t i = 0; i < count; i++)
        s->values[(first + i) * t->experts + t->tensor->expert] = values[i];
    s->left -= count;
    if (s->left > 0)
        return STRATA_OK;
    st = st_new_file_write_at(&w->weights, s->values, elems * sizeof(*s->values), w->at[tensor]);
    free(s->values);
    s->values = NULL;
    return st;
}

strata_status st_hf_adapter_writer_put(struct st_hf_adapter_writer *w, uint32_t tensor, uint64_t first, uint64_t count,
                                       const float *values)
{
    const struct st_hf_adapted *t = &w->tensors[tensor];

    if (t->experts > 0 && t->b)
        return put_stack(w, tensor, first, count, values);
    if (t->experts > 0)
        first += t->tensor->expert * st_hf_adapted_elems(t);
    return st_new_file_write_at(&w->weights, values, count * sizeof(*values), w->at[tensor] + first * sizeof(*values));
}

static strata_status put_piece(struct st_hf_adapter_writer *w, const struct st_piece *piece, strata_dtype format,
                               const void *weight)
{
    const uint32_t place = w->places[piece->tensor - w->m->tensors];
    float *values;
    strata_status st;

    if (place == ST_NO_TENSOR)
        return STRATA_OK;
    values = st_fault("adapter.alloc", 0) < 0 ? NULL : malloc(piece->count * sizeof(*values));
    if (values == NULL)
        return st_nomem(piece->count * sizeof(*values));
    st_widen(st_kernels_pick("auto"), values, weight, format, piece->count);
    if ((st = st_hf_adapted_check_finite(&w->tensors[place], values, piece->count)) == STRATA_OK)
        st = st_hf_adapter_writer_put(w, place, piece->tensor_first, piece->count, values);
    free(values);
    return st;
}

strata_status st_hf_adapter_writer_put_page(struct st_hf_adapter_writer *w, uint32_t page, uint64_t first, uint64_t count,
                                            const void *weight)
{
    const struct st_group *group = st_page_group(&w->m->workload.pages[page], first);
    struct st_piece piece;
    strata_status st = STRATA_OK;

    if (group->kind == ST_GROUP_FROZEN)
        return STRATA_OK;
    for (uint32_t i = 0; st == STRATA_OK && st_model_piece(w->m, page, first, count, i, &piece); i++)
        if (piece.count > 0)
            st = put_piece(w, &piece, group->format,
                           (const unsigned char *)weight + st_format_bytes(group->format, piece.range_first));
    return st;
}

static void release(struct st_hf_adapter_writer *w)
{
    st_new_file_abort(&w->config);
    st_new_file_abort(&w->weights); /* last, as it also removes the directories that were made */
    st_dir_unlock(&w->lock);
    free(w->tensors);
    free(w->at);
    free(w->places);
    for (uint32_t i = 0; w->stacks != NULL && i < w->count; i++)
        free(w->stacks[i].values);
    free(w->stacks);
    free(w->firsts);
    free(w);
}

strata_status st_hf_adapter_writer_commit(struct st_hf_adapter_writer *w)
{
    struct st_new_file *const both[] = {&w->config, &w->weights};
    const strata_status st = st_new_file_commit_all(both, 2, !w->overwrite);

    release(w);
    return st;
}

void st_hf_adapter_writer_abort(struct st_hf_adapter_writer *w)
{
    if (w != NULL)
        release(w);
}
