/* manifest_table.c - what a manifest has, said once: the tables that writer and reader walk, and how each type of member is
 * text. */
#include "offload/checkpoint/manifest_internal.h"

#include "core/base/error.h"
#include "core/base/fault.h"
#include "core/json/json.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WHOLE_MOST (UINT64_C(1) << 53)

static const char *const group_kinds[] = {"decay", "no_decay", "frozen", NULL};
static const char *const dtypes[] = {"", "fp32", "bf16", "fp16", NULL};
static const char *const formats[] = {"", "fp32", "bf16", "fp16", "nf4", NULL};
static const char *const moment_formats[] = {"fp32", "bf16", "8bit", NULL};
static const char *const spaces[] = {"scratch", "base", "set", NULL};
static const char *const rules[] = {"adam", "adagrad", "lion", "sgd", NULL};

/* A change of what a run's state is shows here: the tables below must have it, and ST_MANIFEST_VERSION grow. */
static_assert(sizeof(struct st_train_state) == 304 && sizeof(struct st_update_coef) == 56, "the state that is stored");

const char *st_moment_format_name(enum st_moment_format format)
{
    return moment_formats[format];
}

enum field_type {
    FIELD_TEXT,   /* char [size] */
    FIELD_MAYBE,  /* the same, and not there where it is "" */
    FIELD_DIGEST, /* 32 hex digits, or "" */
    FIELD_U32,
    FIELD_U64, /* at most 2^53 */
    FIELD_I64, /* -1, or at most 2^53 */
    FIELD_WIDE,
    FIELD_BOOL,
    FIELD_FLAG, /* the same, and not there where it is false */
    FIELD_REAL,
    FIELD_REAL32,
    FIELD_NAME, /* an enum, by the names of its values */
};

struct field {
    const char *key;
    enum field_type type;
    size_t offset, size;
    const char *const *names;
};

#define ROW(kind, key, type, member)                                                                                             \
    {                                                                                                                            \
        key, type, offsetof(kind, member), sizeof(((kind *)0)->member), NULL                                                     \
    }
#define NAMES(kind, key, member, names)                                                                                          \
    {                                                                                                                            \
        key, FIELD_NAME, offsetof(kind, member), sizeof(((kind *)0)->member), names                                              \
    }
#define AT(key, type, member)        ROW(struct st_manifest, key, type, member)
#define AT_NAMES(key, member, names) NAMES(struct st_manifest, key, member, names)
#define COEF(of)                                                                                                                 \
    AT_NAMES("rule", train.update.of.rule, rules), AT("nesterov", FIELD_BOOL, train.update.of.nesterov),                         \
        AT("grad_scale", FIELD_REAL32, train.update.of.grad_scale), AT("beta1", FIELD_REAL32, train.update.of.beta1),            \
        AT("one_minus_beta1", FIELD_REAL32, train.update.of.one_minus_beta1), AT("beta2", FIELD_REAL32, train.update.of.beta2),  \
        AT("one_minus_beta2", FIELD_REAL32, train.update.of.one_minus_beta2), AT("eps", FIELD_REAL32, train.update.of.eps),      \
        AT("step_size", FIELD_REAL32, train.update.of.step_size), AT("vhat_scale", FIELD_REAL32, train.update.of.vhat_scale),    \
        AT("decay", FIELD_REAL32, train.update.of.decay), AT("l2", FIELD_REAL32, train.update.of.l2),                            \
        AT("rounding_key", FIELD_WIDE, train.update.of.rounding_key)

static const struct field of_run[] = {
    AT("id", FIELD_TEXT, run),
    AT("step", FIELD_U64, step),
    AT("world", FIELD_U32, world),
    AT("leaves", FIELD_U32, leaves),
    AT("numerics", FIELD_U32, numerics),
    AT("metrics_bytes", FIELD_U64, metrics_bytes),
    AT("eval_due", FIELD_FLAG, eval_due),
    AT("score", FIELD_MAYBE, score),
    AT("note", FIELD_MAYBE, note),
};
static const struct field of_machine[] = {
    AT("device", FIELD_TEXT, device),
    AT("isa", FIELD_TEXT, isa),
    AT("matmul", FIELD_TEXT, matmul),
};
static const struct field of_optimizer[] = {
    AT("name", FIELD_TEXT, optimizer),
    AT("moments", FIELD_U32, moments),
    AT_NAMES("moment_format", moment_format, moment_formats),
};
static const struct field of_model[] = {
    AT("name", FIELD_TEXT, model),
    AT("source", FIELD_TEXT, model_source),
    AT("shapes", FIELD_DIGEST, model_shapes),
    AT("files", FIELD_DIGEST, model_files),
    AT_NAMES("dtype", dtype, dtypes),
    AT("pages", FIELD_U32, page_count),
    AT("group_rates", FIELD_MAYBE, group_rates),
};
static const struct field of_data[] = {
    AT("seed", FIELD_WIDE, data_seed),          AT("seq_len", FIELD_U32, data_seq),       AT("order", FIELD_U32, data_order),
    AT("sequences", FIELD_U64, data_sequences), AT("position", FIELD_U64, data_position), AT("date", FIELD_MAYBE, data_date),
};
static const struct field of_train[] = {
    AT("steps_applied", FIELD_U64, train.steps_applied),
    AT("steps_skipped", FIELD_U64, train.steps_skipped),
    AT("sequences", FIELD_U64, train.sequences),
    AT("idle_in_row", FIELD_U64, train.idle_in_row),
    AT("loss_lost", FIELD_BOOL, train.loss_lost),
    AT("beta1", FIELD_REAL, train.beta1),
    AT("beta2", FIELD_REAL, train.beta2),
    AT("beta1_power", FIELD_REAL, train.beta1_power),
    AT("beta2_power", FIELD_REAL, train.beta2_power),
    AT("update_scale", FIELD_REAL, train.update_scale),
    AT("overflowed_host", FIELD_U64, train.overflowed_host),
    AT("overflowed_seen", FIELD_U64, train.overflowed_seen),
};
static const struct field of_scaler[] = {
    AT("scale", FIELD_REAL, train.scaler.scale),
    AT("dynamic", FIELD_BOOL, train.scaler.dynamic),
    AT("consecutive_hysteresis", FIELD_BOOL, train.scaler.consecutive_hysteresis),
    AT("window", FIELD_U32, train.scaler.window),
    AT("hysteresis", FIELD_U32, train.scaler.hysteresis),
    AT("hysteresis_left", FIELD_U32, train.scaler.hysteresis_left),
    AT("min_scale", FIELD_REAL, train.scaler.min_scale),
    AT("iteration", FIELD_U64, train.scaler.iteration),
    AT("last_overflow", FIELD_I64, train.scaler.last_overflow),
};
static const struct field of_update[] = {
    AT("skip", FIELD_BOOL, train.update.skip),
    AT("loss", FIELD_REAL, train.update.loss),
    AT("grad_norm", FIELD_REAL, train.update.grad_norm),
    AT("lr", FIELD_REAL, train.update.lr),
    AT("step", FIELD_U64, train.update.step),
};
static const struct field of_decay[] = {COEF(decay)};
static const struct field of_no_decay[] = {COEF(no_decay)};
static const struct field of_storage[] = {
    AT("block_bytes", FIELD_U32, stripe.unit_bytes),       AT("base_bytes", FIELD_U64, space_bytes[ST_SPACE_BASE]),
    AT("set_bytes", FIELD_U64, space_bytes[ST_SPACE_SET]), AT("extents_bytes", FIELD_U64, extents_bytes),
    AT("extents_digest", FIELD_DIGEST, extents_digest),
};

#define COUNT_OF(list) (sizeof(list) / sizeof((list)[0]))
static const struct section {
    const char *key;
    const struct field *fields;
    size_t field_count;
} sections[] = {
    {"run", of_run, COUNT_OF(of_run)},
    {"machine", of_machine, COUNT_OF(of_machine)},
    {"optimizer", of_optimizer, COUNT_OF(of_optimizer)},
    {"model", of_model, COUNT_OF(of_model)},
    {"data", of_data, COUNT_OF(of_data)},
    {"train", of_train, COUNT_OF(of_train)},
    {"loss_scaler", of_scaler, COUNT_OF(of_scaler)},
    {"update", of_update, COUNT_OF(of_update)},
    {"update_decay", of_decay, COUNT_OF(of_decay)},
    {"update_no_decay", of_no_decay, COUNT_OF(of_no_decay)},
    {"storage", of_storage, COUNT_OF(of_storage)},
};
#define SECTION_COUNT COUNT_OF(sections)

#define OF_FILE(key, type, member)   ROW(struct st_manifest_file, key, type, member)
#define OF_GROUP(key, type, member)  ROW(struct st_manifest_group, key, type, member)
#define OF_TENSOR(key, type, member) ROW(struct st_manifest_tensor, key, type, member)
#define OF_DATA(key, type, member)   ROW(struct st_manifest_data, key, type, member)

static const struct field of_file[] = {
    OF_FILE("name", FIELD_TEXT, name),
    NAMES(struct st_manifest_file, "space", space, spaces),
    OF_FILE("directory", FIELD_U32, dir),
    OF_FILE("bytes", FIELD_U64, bytes),
};
static const struct field of_group[] = {
    OF_GROUP("page", FIELD_U32, page),
    NAMES(struct st_manifest_group, "kind", kind, group_kinds),
    NAMES(struct st_manifest_group, "format", format, formats),
    OF_GROUP("offset", FIELD_U64, offset),
    OF_GROUP("elems", FIELD_U64, elems),
};
static const struct field of_tensor[] = {
    OF_TENSOR("name", FIELD_TEXT, name),    OF_TENSOR("page", FIELD_U32, page),     OF_TENSOR("offset", FIELD_U64, offset),
    OF_TENSOR("elems", FIELD_U64, elems),   OF_TENSOR("layer", FIELD_MAYBE, layer), OF_TENSOR("group", FIELD_MAYBE, group),
    OF_TENSOR("shape", FIELD_MAYBE, shape),
};
static const struct field of_data_file[] = {
    OF_DATA("path", FIELD_TEXT, path),         OF_DATA("bytes", FIELD_U64, bytes),   OF_DATA("header", FIELD_DIGEST, header),
    OF_DATA("windows", FIELD_DIGEST, windows), OF_DATA("marks", FIELD_MAYBE, marks),
};

/* Lists of objects, with the most that a file may have. */
static const struct list {
    const char *key;
    size_t at, count_at; /* of the pointer and the count, in struct st_manifest */
    size_t item_bytes;
    uint32_t most;
    const struct field *fields;
    size_t field_count;
} lists[] = {
#define LIST(key, member, count, most, fields)                                                                                   \
    {                                                                                                                            \
        key, offsetof(struct st_manifest, member), offsetof(struct st_manifest, count),                                          \
            sizeof(*((struct st_manifest *)0)->member), most, fields, COUNT_OF(fields)                                           \
    }
    LIST("data_files", data, data_count, ST_MANIFEST_DATA_MAX, of_data_file),
    LIST("files", files, file_count, 2 * ST_STRIPE_DIRS_MAX * ST_MANIFEST_PARTS_MAX, of_file),
    LIST("groups", groups, group_count, 1u << 20, of_group),
    LIST("tensors", tensors, tensor_count, 1u << 18, of_tensor),
};
#define LIST_COUNT COUNT_OF(lists)

static void *list_items(const struct st_manifest *m, const struct list *list)
{
    void *items;

    memcpy(&items, (const char *)m + list->at, sizeof(items));
    return items;
}

static uint32_t *list_count(struct st_manifest *m, const struct list *list)
{
    return (uint32_t *)(void *)((char *)m + list->count_at);
}

/* --- floats as text --- */

/* Sign, 1 or 0 before the point, 52 bits in 13 digits, exponent; no library's idea of a decimal point. */
static void real_text(char text[32], double value)
{
    uint64_t bits;
    unsigned exponent;

    memcpy(&bits, &value, sizeof(bits));
    exponent = (unsigned)(bits >> 52 & 2047);
    snprintf(text, 32, "%s0x%d.%013" PRIx64 "p%+d", bits >> 63 != 0 ? "-" : "", exponent != 0, bits & ((UINT64_C(1) << 52) - 1),
             exponent != 0 ? (int)exponent - 1023 : -1022);
}

static bool real_read(double *value, const char *text)
{
    const bool negative = text[0] == '-';
    uint64_t fraction = 0, bits;
    char again[32];
    unsigned lead = 0;
    int exponent = 0;

    if (sscanf(text + negative, "0x%1u.%13" SCNx64 "p%5d", &lead, &fraction, &exponent) != 3 || lead > 1 || exponent < -1022 ||
        exponent > 1024)
        return false;
    bits = (uint64_t)negative << 63 | (lead != 0 ? (uint64_t)(exponent + 1023) << 52 : 0) | fraction;
    memcpy(value, &bits, sizeof(bits));
    real_text(again, *value);
    return strcmp(again, text) == 0;
}

bool st_manifest_score(const struct st_manifest *m, double *score)
{
    return m->score[0] != '\0' && real_read(score, m->score);
}

void st_manifest_set_score(struct st_manifest *m, double score)
{
    real_text(m->score, score);
}

/* --- writing --- */

static void put_whole(struct st_json_writer *w, const char *key, uint64_t value)
{
    assert(value <= WHOLE_MOST);
    st_json_put_u64(w, key, value);
}

static void put_field(struct st_json_writer *w, const struct field *f, const void *base)
{
    const void *at = (const char *)base + f->offset;
    char text[32];
    float narrow;

    switch (f->type) {
    case FIELD_MAYBE:
        if (*(const char *)at == '\0')
            return;
        st_json_put_string(w, f->key, at);
        return;
    case FIELD_TEXT:
    case FIELD_DIGEST:
        st_json_put_string(w, f->key, at);
        return;
    case FIELD_U32:
        st_json_put_u64(w, f->key, *(const uint32_t *)at);
        return;
    case FIELD_U64:
        put_whole(w, f->key, *(const uint64_t *)at);
        return;
    case FIELD_I64:
        st_json_put_double(w, f->key, (double)*(const int64_t *)at);
        return;
    case FIELD_WIDE:
        snprintf(text, sizeof(text), "0x%" PRIx64, *(const uint64_t *)at);
        st_json_put_string(w, f->key, text);
        return;
    case FIELD_FLAG:
        if (*(const bool *)at)
            st_json_put_bool(w, f->key, true);
        return;
    case FIELD_BOOL:
        st_json_put_bool(w, f->key, *(const bool *)at);
        return;
    case FIELD_REAL:
        real_text(text, *(const double *)at);
        st_json_put_string(w, f->key, text);
        return;
    case FIELD_REAL32:
        memcpy(&narrow, at, sizeof(narrow));
        real_text(text, narrow);
        st_json_put_string(w, f->key, text);
        return;
    case FIELD_NAME:
        st_json_put_string(w, f->key, f->names[*(const unsigned *)at]);
    }
}

void st_manifest_put(struct st_json_writer *w, const struct st_manifest *m)
{
    for (size_t i = 0; i < SECTION_COUNT; i++) {
        st_json_object_open(w, sections[i].key);
        for (size_t j = 0; j < sections[i].field_count; j++)
            put_field(w, &sections[i].fields[j], m);
        st_json_object_close(w);
    }
    for (size_t i = 0; i < LIST_COUNT; i++) {
        const struct list *list = &lists[i];
        const uint32_t count = *list_count((struct st_manifest *)(uintptr_t)m, list);

        st_json_array_open(w, list->key);
        for (uint32_t j = 0; j < count; j++) {
            st_json_object_open(w, NULL);
            for (size_t k = 0; k < list->field_count; k++)
                put_field(w, &list->fields[k], (const char *)list_items(m, list) + j * list->item_bytes);
            st_json_object_close(w);
        }
        st_json_array_close(w);
    }
}

/* --- reading --- */

static bool text_read(void *at, size_t size, const char *text)
{
    const size_t length = strlen(text);

    if (length >= size)
        return false;
    memcpy(at, text, length + 1);
    return true;
}

static bool digest_read(void *at, const char *text)
{
    const size_t length = strlen(text);

    return (length == 0 || (length == 32 && strspn(text, "0123456789abcdef") == 32)) && text_read(at, ST_DIGEST_TEXT, text);
}

static bool wide_read(uint64_t *value, const char *text)
{
    char again[24];

    if (sscanf(text, "0x%16" SCNx64, value) != 1)
        return false;
    snprintf(again, sizeof(again), "0x%" PRIx64, *value);
    return strcmp(again, text) == 0;
}

static bool name_read(unsigned *value, const char *const *names, const char *text)
{
    for (unsigned i = 0; names[i] != NULL; i++)
        if (names[i][0] != '\0' && strcmp(names[i], text) == 0) {
            *value = i;
            return true;
        }
    return false;
}

static bool string_read(void *at, const struct field *f, const char *text)
{
    double value;
    float narrow;

    switch (f->type) {
    case FIELD_TEXT:
        return text_read(at, f->size, text);
    case FIELD_MAYBE:
        return text[0] != '\0' && text_read(at, f->size, text);
    case FIELD_DIGEST:
        return digest_read(at, text);
    case FIELD_WIDE:
        return wide_read(at, text);
    case FIELD_REAL:
        return real_read(at, text);
    case FIELD_REAL32:
        if (!real_read(&value, text))
            return false;
        narrow = (float)value;
        memcpy(at, &narrow, sizeof(narrow));
        return true;
    case FIELD_NAME:
        return name_read(at, f->names, text);
    case FIELD_U32:
    case FIELD_U64:
    case FIELD_I64:
    case FIELD_BOOL:
    case FIELD_FLAG:
        break;
    }
    return false;
}

static bool number_read(void *at, const struct field *f, const st_json *node)
{
    uint64_t whole = 0;
    const bool is_whole = st_json_u64(node, &whole) != 0;

    if (f->type == FIELD_U64 && is_whole) {
        *(uint64_t *)at = whole;
        return true;
    }
    if (f->type == FIELD_U32 && is_whole && whole <= UINT32_MAX) {
        *(uint32_t *)at = (uint32_t)whole;
        return true;
    }
    if (f->type == FIELD_I64 && (is_whole || st_json_number(node) == -1)) {
        *(int64_t *)at = is_whole ? (int64_t)whole : -1;
        return true;
    }
    return false;
}

static bool field_read(void *base, const struct field *f, const st_json *node)
{
    void *at = (char *)base + f->offset;

    switch (st_json_type(node)) {
    case ST_JSON_STRING:
        return string_read(at, f, st_json_string(node));
    case ST_JSON_NUMBER:
        return number_read(at, f, node);
    case ST_JSON_BOOL:
        if (f->type != FIELD_BOOL && f->type != FIELD_FLAG)
            return false;
        *(bool *)at = st_json_bool(node);
        return true;
    case ST_JSON_NULL:
    case ST_JSON_ARRAY:
    case ST_JSON_OBJECT:
        break;
    }
    return false;
}

/* Exactly the fields of a table, but for those that may be absent, in any order. */
static strata_status object_read(void *base, const struct field *fields, size_t field_count, const st_json *object,
                                 const char *key, const char *name)
{
    size_t count = 0, known = 0;

    if (object == NULL || st_json_type(object) != ST_JSON_OBJECT)
        return st_manifest_damaged(name, key, "is missing");
    for (const st_json *child = st_json_first(object); child != NULL; child = st_json_next(child))
        count++;
    for (size_t i = 0; i < field_count; i++) {
        const st_json *node = st_json_get(object, fields[i].key);

        if (node == NULL && (fields[i].type == FIELD_MAYBE || fields[i].type == FIELD_FLAG))
            continue;
        known++;
        if (node == NULL || !field_read(base, &fields[i], node))
            return st_manifest_damaged(name, fields[i].key, node == NULL ? "is missing" : "has an impossible value");
    }
    return count == known ? STRATA_OK : st_manifest_damaged(name, key, "has members that this version does not know");
}

static strata_status list_read(struct st_manifest *m, const struct list *list, const st_json *root, const char *name)
{
    const st_json *array = st_json_get(root, list->key);
    strata_status st = STRATA_OK;
    uint32_t count = 0, i = 0;
    char *items;

    if (array == NULL || st_json_type(array) != ST_JSON_ARRAY)
        return st_manifest_damaged(name, list->key, "is missing");
    for (const st_json *item = st_json_first(array); item != NULL; item = st_json_next(item))
        if (++count > list->most)
            return st_manifest_damaged(name, list->key, "is too long");
    items = st_fault("manifest.alloc", 0) < 0 ? NULL : calloc(count > 0 ? count : 1, list->item_bytes);
    if (items == NULL)
        return st_nomem((count > 0 ? count : 1) * list->item_bytes);
    memcpy((char *)m + list->at, &items, sizeof(items));
    *list_count(m, list) = count;
    for (const st_json *item = st_json_first(array); item != NULL && st == STRATA_OK; item = st_json_next(item))
        st = object_read(items + i++ * list->item_bytes, list->fields, list->field_count, item, list->key, name);
    return st;
}

strata_status st_manifest_get(struct st_manifest *m, const st_json *root, const char *name)
{
    strata_status st = STRATA_OK;

    for (size_t i = 0; i < SECTION_COUNT && st == STRATA_OK; i++)
        st = object_read(m, sections[i].fields, sections[i].field_count, st_json_get(root, sections[i].key), sections[i].key,
                         name);
    for (size_t i = 0; i < LIST_COUNT && st == STRATA_OK; i++)
        st = list_read(m, &lists[i], root, name);
    return st;
}

uint32_t st_manifest_members(void)
{
    return (uint32_t)(SECTION_COUNT + LIST_COUNT);
}
