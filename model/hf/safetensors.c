/* model/hf/safetensors.c - strict reader and writer of safetensors headers. */
#include "core/base/error.h"
#include "core/json/json.h"
#include "core/system/file.h"
#include "model/hf/safetensors_internal.h"
#include <stdlib.h>
#include <string.h>

#define LENGTH_BYTES 8u

struct dtype_row {
    const char *name;
    uint32_t bits;
    strata_dtype dtype;
};

static const struct dtype_row dtypes[] = {
    {"F32", 32, STRATA_F32},
    {"BF16", 16, STRATA_BF16},
    {"F16", 16, STRATA_F16},
    {"F64", 64, 0},
    {"C64", 64, 0},
    {"BOOL", 8, 0},
    {"U8", 8, 0},
    {"I8", 8, 0},
    {"U16", 16, 0},
    {"I16", 16, 0},
    {"U32", 32, 0},
    {"I32", 32, 0},
    {"U64", 64, 0},
    {"I64", 64, 0},
    {"F8_E4M3", 8, 0},
    {"F8_E5M2", 8, 0},
    {"F8_E8M0", 8, 0},
    {"F8_E4M3FNUZ", 8, 0},
    {"F8_E5M2FNUZ", 8, 0},
    {"F4", 4, 0},
    {"F6_E2M3", 6, 0},
    {"F6_E3M2", 6, 0},
};

static const struct dtype_row *find_dtype(const char *name)
{
    for (size_t i = 0; i < sizeof(dtypes) / sizeof(dtypes[0]); i++) {
        if (strcmp(dtypes[i].name, name) == 0)
            return &dtypes[i];
    }
    return NULL;
}

const char *st_shape_text(char text[96], const uint64_t *shape, uint32_t rank)
{
    size_t length = 1;

    text[0] = '[';
    for (uint32_t i = 0; i < rank && length < 70; i++)
        length += (size_t)snprintf(text + length, 96 - length, "%s%llu", i > 0 ? ", " : "", (unsigned long long)shape[i]);
    snprintf(text + length, 96 - length, "]");
    return text;
}

static strata_status tensor_fault(const char *file, const char *tensor, const char *what)
{
    return st_error(STRATA_E_INPUT, "%s: tensor %s: %s", file, tensor, what);
}

static strata_status parse_shape(struct st_safetensor *t, const st_json *shape, const char *file)
{
    if (shape == NULL || st_json_type(shape) != ST_JSON_ARRAY)
        return tensor_fault(file, t->name, "no shape");
    for (const st_json *n = st_json_first(shape); n != NULL; n = st_json_next(n)) {
        if (t->rank == ST_SAFETENSORS_RANK_MAX)
            return tensor_fault(file, t->name, "more dimensions than 8");
        if (!st_json_u64(n, &t->shape[t->rank]))
            return tensor_fault(file, t->name, "a dimension is not a whole number");
        t->rank++;
    }
    return STRATA_OK;
}

/* Bytes that shape and dtype require. */
static strata_status wanted_bytes(const struct st_safetensor *t, uint32_t bits, uint64_t *out, const char *file)
{
    uint64_t elems = 1;

    for (uint32_t i = 0; i < t->rank; i++) {
        if (__builtin_mul_overflow(elems, t->shape[i], &elems))
            return tensor_fault(file, t->name, "its shape overflows");
    }
    if (__builtin_mul_overflow(elems, (uint64_t)bits, &elems))
        return tensor_fault(file, t->name, "its shape overflows");
    if (elems % 8 != 0)
        return tensor_fault(file, t->name, "it does not fill whole bytes");
    *out = elems / 8;
    return STRATA_OK;
}

static strata_status parse_offsets(struct st_safetensor *t, const st_json *offsets, uint64_t data_bytes, const char *file)
{
    const st_json *begin = NULL, *end = NULL;

    if (offsets != NULL && st_json_type(offsets) == ST_JSON_ARRAY) {
        begin = st_json_first(offsets);
        end = begin != NULL ? st_json_next(begin) : NULL;
    }
    if (end == NULL || st_json_next(end) != NULL || !st_json_u64(begin, &t->begin) || !st_json_u64(end, &t->end))
        return tensor_fault(file, t->name, "data_offsets is not a pair of whole numbers");
    if (t->begin > t->end || t->end > data_bytes)
        return tensor_fault(file, t->name, "data_offsets leave the file");
    return STRATA_OK;
}

static strata_status parse_tensor(struct st_safetensor *t, const st_json *n, uint64_t data_bytes, const char *file)
{
    const st_json *dtype = st_json_get(n, "dtype");
    const struct dtype_row *row;
    uint64_t bytes = 0;
    strata_status st;

    if (dtype == NULL || st_json_type(dtype) != ST_JSON_STRING)
        return tensor_fault(file, t->name, "no dtype");
    row = find_dtype(st_json_string(dtype));
    if (row == NULL)
        return st_error(STRATA_E_INPUT, "%s: tensor %s: unknown dtype \"%.32s\"", file, t->name, st_json_string(dtype));
    t->dtype = row->dtype;
    t->dtype_name = row->name;
    for (const st_json *key = st_json_first(n); key != NULL; key = st_json_next(key)) {
        const char *name = st_json_name(key);

        if (strcmp(name, "dtype") != 0 && strcmp(name, "shape") != 0 && strcmp(name, "data_offsets") != 0)
            return st_error(STRATA_E_INPUT, "%s: tensor %s: unknown key \"%.32s\"", file, t->name, name);
    }
    if ((st = parse_shape(t, st_json_get(n, "shape"), file)) != STRATA_OK ||
        (st = parse_offsets(t, st_json_get(n, "data_offsets"), data_bytes, file)) != STRATA_OK ||
        (st = wanted_bytes(t, row->bits, &bytes, file)) != STRATA_OK)
        return st;
    if (bytes != t->end - t->begin)
        return st_error(STRATA_E_INPUT, "%s: tensor %s: %llu bytes in the file, but its shape and dtype require %llu", file,
                        t->name, (unsigned long long)(t->end - t->begin), (unsigned long long)bytes);
    return STRATA_OK;
}

static strata_status check_metadata(const st_json *n, const char *file)
{
    if (st_json_type(n) != ST_JSON_OBJECT)
        return st_error(STRATA_E_INPUT, "%s: __metadata__ is not an object", file);
    for (const st_json *value = st_json_first(n); value != NULL; value = st_json_next(value)) {
        if (st_json_type(value) != ST_JSON_STRING)
            return st_error(STRATA_E_INPUT, "%s: __metadata__ value of \"%.32s\" is not a string", file, st_json_name(value));
    }
    return STRATA_OK;
}

static int by_place(const void *a, const void *b)
{
    const struct st_safetensor *x = a, *y = b;

    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end;
}

/* Checks that the tensors cover the buffer exactly once; turns their offsets into file offsets. */
static strata_status check_cover(struct st_safetensors *s, uint64_t data_offset, uint64_t data_bytes, const char *file)
{
    uint64_t end = 0;

    if (s->count > 0)
        qsort(s->tensors, s->count, sizeof(*s->tensors), by_place);
    for (uint32_t i = 0; i < s->count; i++) {
        struct st_safetensor *t = &s->tensors[i];

        if (t->begin != end)
            return tensor_fault(file, t->name, t->begin < end ? "it overlaps another tensor" : "there is a gap before it");
        end = t->end;
        t->begin += data_offset;
        t->end += data_offset;
    }
    if (end != data_bytes)
        return st_error(STRATA_E_INPUT, "%s: %llu bytes after the last tensor", file, (unsigned long long)(data_bytes - end));
    return STRATA_OK;
}

static strata_status parse_all(struct st_safetensors *s, const st_json *root, uint64_t data_bytes, const char *file)
{
    uint32_t count = 0;
    strata_status st;

    if (st_json_type(root) != ST_JSON_OBJECT)
        return st_error(STRATA_E_INPUT, "%s: the header is not a JSON object", file);
    for (const st_json *n = st_json_first(root); n != NULL; n = st_json_next(n))
        count++;
    s->tensors = calloc(count > 0 ? count : 1, sizeof(*s->tensors));
    if (s->tensors == NULL)
        return st_nomem((count > 0 ? count : 1) * sizeof(*s->tensors));
    for (const st_json *n = st_json_first(root); n != NULL; n = st_json_next(n)) {
        struct st_safetensor *t = &s->tensors[s->count];

        if (strcmp(st_json_name(n), "__metadata__") == 0) {
            if ((st = check_metadata(n, file)) != STRATA_OK)
                return st;
            continue;
        }
        t->name = strdup(st_json_name(n));
        if (t->name == NULL)
            return st_nomem(0);
        s->count++;
        if (st_json_type(n) != ST_JSON_OBJECT)
            return tensor_fault(file, t->name, "not an object");
        if ((st = parse_tensor(t, n, data_bytes, file)) != STRATA_OK)
            return st;
    }
    return STRATA_OK;
}

strata_status st_safetensors_parse(struct st_safetensors *out, const char *json, uint64_t json_bytes, uint64_t data_offset,
                                   uint64_t data_bytes, const char *name)
{
    struct st_safetensors s = {0};
    st_json *root;
    strata_status st;

    if (json_bytes == 0 || json[0] != '{')
        return st_error(STRATA_E_INPUT, "%s: the header does not start with '{'", name);
    st = st_json_parse(&root, json, json_bytes, name);
    if (st != STRATA_OK)
        return st == STRATA_E_NOMEM ? st : st_error_prefix(STRATA_E_INPUT, "safetensors header");
    st = parse_all(&s, root, data_bytes, name);
    st_json_free(root);
    if (st == STRATA_OK)
        st = check_cover(&s, data_offset, data_bytes, name);
    if (st != STRATA_OK) {
        st_safetensors_fini(&s);
        return st;
    }
    *out = s;
    return STRATA_OK;
}

static uint64_t load_u64(const unsigned char b[LENGTH_BYTES])
{
    uint64_t v = 0;

    for (uint32_t i = 0; i < LENGTH_BYTES; i++)
        v |= (uint64_t)b[i] << (8 * i);
    return v;
}

static strata_status check_length(uint64_t json_bytes, uint64_t file_bytes, const char *name)
{
    if (json_bytes > ST_SAFETENSORS_HEADER_MAX)
        return st_error(STRATA_E_INPUT, "%s: a header of %llu bytes is over the format's limit of %u: not a safetensors file",
                        name, (unsigned long long)json_bytes, ST_SAFETENSORS_HEADER_MAX);
    if (json_bytes > file_bytes - LENGTH_BYTES)
        return st_error(STRATA_E_INPUT, "%s: the file ends inside its header", name);
    return STRATA_OK;
}

static strata_status too_short(const char *name, uint64_t file_bytes)
{
    return st_error(STRATA_E_INPUT, "%s: %llu bytes are too few for a safetensors file", name, (unsigned long long)file_bytes);
}

strata_status st_safetensors_read(struct st_safetensors *out, int fd, uint64_t file_bytes, const char *name)
{
    unsigned char length[LENGTH_BYTES];
    uint64_t json_bytes;
    strata_status st;
    char *json;

    if (file_bytes < LENGTH_BYTES)
        return too_short(name, file_bytes);
    if ((st = st_file_read_at(fd, length, sizeof(length), 0, name)) != STRATA_OK)
        return st;
    json_bytes = load_u64(length);
    if ((st = check_length(json_bytes, file_bytes, name)) != STRATA_OK)
        return st;
    json = malloc(json_bytes > 0 ? (size_t)json_bytes : 1);
    if (json == NULL)
        return st_nomem(json_bytes);
    if ((st = st_file_read_at(fd, json, json_bytes, LENGTH_BYTES, name)) == STRATA_OK)
        st = st_safetensors_parse(out, json, json_bytes, LENGTH_BYTES + json_bytes, file_bytes - LENGTH_BYTES - json_bytes, name);
    free(json);
    return st;
}

strata_status st_safetensors_read_memory(struct st_safetensors *out, const void *file, uint64_t file_bytes, const char *name)
{
    const unsigned char *bytes = file;
    uint64_t json_bytes;
    strata_status st;

    if (file_bytes < LENGTH_BYTES)
        return too_short(name, file_bytes);
    json_bytes = load_u64(bytes);
    if ((st = check_length(json_bytes, file_bytes, name)) != STRATA_OK)
        return st;
    return st_safetensors_parse(out, (const char *)bytes + LENGTH_BYTES, json_bytes, LENGTH_BYTES + json_bytes,
                                file_bytes - LENGTH_BYTES - json_bytes, name);
}

void st_safetensors_fini(struct st_safetensors *s)
{
    for (uint32_t i = 0; i < s->count; i++)
        free(s->tensors[i].name);
    free(s->tensors);
    *s = (struct st_safetensors){0};
}

bool st_safetensor_is_placeholder(const struct st_safetensor *t)
{
    return t->rank == 1 && t->shape[0] <= 1;
}

strata_status st_safetensor_placeholder_fault(const struct st_safetensor *t, const char *path)
{
    char have[96];

    return st_error(STRATA_E_INPUT,
                    "%s: tensor %s has shape %s, ZeRO-3's placeholder: save with stage3_gather_16bit_weights_on_model_save true, "
                    "or run the checkpoint's zero_to_fp32.py",
                    path, t->name, st_shape_text(have, t->shape, t->rank));
}

struct st_safetensors_writer {
    char *text; /* LENGTH_BYTES of room, then the JSON */
    size_t bytes;
    FILE *file;
    struct st_json_writer json;
    strata_dtype dtype;
    uint64_t end; /* end of the buffer so far */
};

strata_status st_safetensors_writer_begin(struct st_safetensors_writer **out, strata_dtype dtype)
{
    struct st_safetensors_writer *w = calloc(1, sizeof(*w));

    if (w != NULL)
        w->file = open_memstream(&w->text, &w->bytes);
    if (w == NULL || w->file == NULL) {
        free(w);
        return st_nomem(0);
    }
    w->dtype = dtype;
    for (uint32_t i = 0; i < LENGTH_BYTES; i++)
        fputc(0, w->file);
    st_json_begin(&w->json, w->file);
    st_json_object_open(&w->json, NULL);
    st_json_object_open(&w->json, "__metadata__");
    st_json_put_string(&w->json, "format", "pt");
    st_json_object_close(&w->json);
    *out = w;
    return STRATA_OK;
}

static void add(struct st_safetensors_writer *w, const char *name, const char *dtype, const uint64_t *shape, uint32_t rank,
                uint64_t bytes)
{
    st_json_object_open(&w->json, name);
    st_json_put_string(&w->json, "dtype", dtype);
    st_json_array_open(&w->json, "shape");
    for (uint32_t i = 0; i < rank; i++)
        st_json_put_u64(&w->json, NULL, shape[i]);
    st_json_array_close(&w->json);
    st_json_array_open(&w->json, "data_offsets");
    st_json_put_u64(&w->json, NULL, w->end);
    w->end += bytes;
    st_json_put_u64(&w->json, NULL, w->end);
    st_json_array_close(&w->json);
    st_json_object_close(&w->json);
}

void st_safetensors_writer_add(struct st_safetensors_writer *w, const char *name, const uint64_t *shape, uint32_t rank)
{
    uint64_t elems = 1;

    for (uint32_t i = 0; i < rank; i++)
        elems *= shape[i];
    add(w, name,
        w->dtype == STRATA_BF16  ? "BF16"
        : w->dtype == STRATA_F16 ? "F16"
                                 : "F32",
        shape, rank, elems * strata_dtype_bytes(w->dtype));
}

void st_safetensors_writer_add_as(struct st_safetensors_writer *w, const struct st_safetensor *t)
{
    add(w, t->name, t->dtype_name, t->shape, t->rank, t->end - t->begin);
}

strata_status st_safetensors_writer_end(struct st_safetensors_writer *w, unsigned char **header, uint64_t *bytes)
{
    uint64_t json_bytes;

    st_json_object_close(&w->json);
    if (fflush(w->file) != 0)
        goto nomem;
    while (w->bytes % 8 != 0) {
        if (fputc(' ', w->file) == EOF || fflush(w->file) != 0)
            goto nomem;
    }
    if (fclose(w->file) != 0) {
        w->file = NULL;
        goto nomem;
    }
    json_bytes = w->bytes - LENGTH_BYTES;
    for (uint32_t i = 0; i < LENGTH_BYTES; i++)
        w->text[i] = (char)(json_bytes >> (8 * i) & 0xff);
    *header = (unsigned char *)w->text;
    *bytes = w->bytes;
    free(w);
    return STRATA_OK;

nomem:
    st_safetensors_writer_abort(w);
    return st_nomem(0);
}

void st_safetensors_writer_abort(struct st_safetensors_writer *w)
{
    if (w == NULL)
        return;
    if (w->file != NULL)
        fclose(w->file);
    free(w->text);
    free(w);
}
