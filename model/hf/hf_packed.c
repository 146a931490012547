/* model/hf/hf_packed.c - reads tensors that bitsandbytes has stored in 4 bits. */
#include "core/base/error.h"
#include "core/system/file.h"
#include "kernels/kernels.h"
#include "model/hf/hf_fields_internal.h"
#include "model/hf/hf_packed_internal.h"
#include "model/nf4.h"
#include <inttypes.h>
#include <math.h>
#include <string.h>

#define STATE_BYTES_MAX 4096u
#define CODES_BYTES     (ST_NF4_ELEMS / 2)
#define SCALE_BLOCK     256u /* scales that share one scale */
#define READ_BLOCKS     256u /* at once */
#define WHERE_BYTES     (ST_PATH_MAX + 128)

static const char *const ends[ST_HF_PACKED_PARTS] = {
    [ST_HF_PACKED_STATE] = ".quant_state.bitsandbytes__nf4",
    [ST_HF_PACKED_MAP] = ".quant_map",
    [ST_HF_PACKED_ABSMAX] = ".absmax",
    [ST_HF_PACKED_NESTED_MAP] = ".nested_quant_map",
    [ST_HF_PACKED_NESTED_ABSMAX] = ".nested_absmax",
};

bool st_hf_packed_find(const char *name, enum st_hf_packed_part *part, size_t *length)
{
    const size_t all = strlen(name);

    for (enum st_hf_packed_part p = 0; p < ST_HF_PACKED_PARTS; p++) {
        const size_t end = strlen(ends[p]);

        if (all > end && strcmp(name + all - end, ends[p]) == 0) {
            *part = p;
            *length = all - end;
            return true;
        }
    }
    return false;
}

/* --- the JSON --- */

static strata_status want_text(const st_json *root, const char *key, const char *want, const char *where)
{
    const char *text = NULL;
    const strata_status st = st_hf_read_text(root, key, &text, where);

    if (st != STRATA_OK || (text != NULL && strcmp(text, want) == 0))
        return st;
    return st_error(STRATA_E_INPUT, "%s: \"%s\" is \"%.32s\"; \"%s\" is read", where, key, text != NULL ? text : "", want);
}

static strata_status want_number(const st_json *root, const char *key, uint64_t want, const char *where)
{
    uint64_t number = 0;
    const st_json *node = st_json_get(root, key);

    if (node != NULL && st_json_u64(node, &number) && number == want)
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: \"%s\" is not %" PRIu64 ", which is all that is read", where, key, want);
}

static strata_status read_shape(uint64_t shape[2], const st_json *root, const char *where)
{
    const st_json *list = st_json_get(root, "shape");
    const st_json *rows = list != NULL && st_json_type(list) == ST_JSON_ARRAY ? st_json_first(list) : NULL;
    const st_json *cols = rows != NULL ? st_json_next(rows) : NULL;

    if (cols == NULL || st_json_next(cols) != NULL || !st_json_u64(rows, &shape[0]) || !st_json_u64(cols, &shape[1]))
        return st_error(STRATA_E_INPUT, "%s: \"shape\" is not a list of two sizes", where);
    return STRATA_OK;
}

static strata_status parse_root(struct st_hf_packed_state *out, const st_json *root, const char *where)
{
    double offset = 0.0;
    strata_status st;

    if (st_json_type(root) != ST_JSON_OBJECT)
        return st_error(STRATA_E_INPUT, "%s: not a JSON object", where);
    out->nested = st_json_get(root, "nested_blocksize") != NULL;
    if ((st = want_text(root, "quant_type", "nf4", where)) != STRATA_OK ||
        (st = want_number(root, "blocksize", ST_NF4_ELEMS, where)) != STRATA_OK ||
        (st = read_shape(out->shape, root, where)) != STRATA_OK || !out->nested)
        return st;
    if ((st = want_number(root, "nested_blocksize", SCALE_BLOCK, where)) != STRATA_OK ||
        (st = want_text(root, "nested_dtype", "float32", where)) != STRATA_OK)
        return st;
    if (st_hf_member(root, "nested_offset") == NULL)
        return st_hf_key_fault(where, "nested_offset", "is missing");
    st = st_hf_read_single(root, "nested_offset", &offset, where);
    out->offset = (float)offset;
    return st;
}

strata_status st_hf_packed_parse(struct st_hf_packed_state *out, const char *json, uint64_t bytes, const char *where)
{
    struct st_hf_packed_state state = {0};
    st_json *root;
    strata_status st = st_json_parse(&root, json, bytes, where);

    if (st != STRATA_OK)
        return st == STRATA_E_NOMEM ? st : st_error_prefix(STRATA_E_INPUT, "quantised weights");
    st = parse_root(&state, root, where);
    st_json_free(root);
    if (st == STRATA_OK)
        *out = state;
    return st;
}

/* --- opening --- */

/* A part must be there, with these bytes and this dtype (INVALID: any). */
static strata_status check_part(const struct st_hf_place *place, const char *end, strata_dtype dtype, uint64_t bytes,
                                const struct st_hf_packed *p, const struct st_tensor *t)
{
    if (place->path == NULL)
        return st_error(STRATA_E_INPUT, "%s: tensor %s is quantised, but %s%s is missing", p->parts[ST_HF_PACKED_STATE].path,
                        t->name, t->name, end);
    if (place->end - place->begin == bytes && (dtype == STRATA_DTYPE_INVALID || place->dtype == dtype))
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: tensor %s%s has %" PRIu64 " bytes; %s of %" PRIu64 " elements needs %" PRIu64 "%s",
                    place->path, t->name, end, place->end - place->begin, t->name, t->elems, bytes,
                    dtype == STRATA_F32 ? ", in F32" : "");
}

static strata_status read_state(struct st_hf_packed *p, const struct st_tensor *t)
{
    const struct st_hf_place *place = &p->parts[ST_HF_PACKED_STATE];
    const uint64_t bytes = place->end - place->begin;
    char json[STATE_BYTES_MAX], where[WHERE_BYTES];
    strata_status st;

    snprintf(where, sizeof(where), "%s: %s%s", place->path, t->name, ends[ST_HF_PACKED_STATE]);
    if (bytes > sizeof(json))
        return st_error(STRATA_E_INPUT, "%s has %" PRIu64 " bytes; at most %u are read", where, bytes, STATE_BYTES_MAX);
    if ((st = st_file_read_at(place->fd, json, bytes, place->begin, place->path)) != STRATA_OK ||
        (st = st_hf_packed_parse(&p->state, json, bytes, where)) != STRATA_OK)
        return st;
    if (t->rank == 2 && p->state.shape[0] == t->shape[0] && p->state.shape[1] == t->shape[1])
        return STRATA_OK;
    return st_error(STRATA_E_INPUT, "%s: \"shape\" is %" PRIu64 " x %" PRIu64 ", not that of the tensor in the model", where,
                    p->state.shape[0], p->state.shape[1]);
}

static strata_status check_sizes(const struct st_hf_packed *p, const struct st_tensor *t)
{
    const uint64_t blocks = t->elems / ST_NF4_ELEMS, scales = (blocks + SCALE_BLOCK - 1) / SCALE_BLOCK;
    const bool nested = p->state.nested;
    strata_status st;

    if (t->elems % ST_NF4_ELEMS != 0)
        return st_error(STRATA_E_INPUT,
                        "%s: tensor %s is quantised and has %" PRIu64 " elements, which are no whole blocks of %u", p->codes.path,
                        t->name, t->elems, ST_NF4_ELEMS);
    if ((st = check_part(&p->codes, "", STRATA_DTYPE_INVALID, blocks * CODES_BYTES, p, t)) != STRATA_OK ||
        (st = check_part(&p->parts[ST_HF_PACKED_MAP], ends[ST_HF_PACKED_MAP], STRATA_F32, 16 * sizeof(float), p, t)) != STRATA_OK)
        return st;
    st = check_part(&p->parts[ST_HF_PACKED_ABSMAX], ends[ST_HF_PACKED_ABSMAX], nested ? STRATA_DTYPE_INVALID : STRATA_F32,
                    nested ? blocks : blocks * sizeof(float), p, t);
    if (st != STRATA_OK || !nested)
        return st;
    st = check_part(&p->parts[ST_HF_PACKED_NESTED_MAP], ends[ST_HF_PACKED_NESTED_MAP], STRATA_F32, sizeof(p->nested_map), p, t);
    if (st != STRATA_OK)
        return st;
    return check_part(&p->parts[ST_HF_PACKED_NESTED_ABSMAX], ends[ST_HF_PACKED_NESTED_ABSMAX], STRATA_F32, scales * sizeof(float),
                      p, t);
}

static strata_status read_part(const struct st_hf_packed *p, enum st_hf_packed_part part, uint64_t at, void *out, uint64_t bytes)
{
    const struct st_hf_place *place = &p->parts[part];

    return st_file_read_at(place->fd, out, bytes, place->begin + at, place->path);
}

strata_status st_hf_packed_open(struct st_hf_packed *p, const struct st_tensor *t)
{
    static const float values[16] = ST_NF4_VALUES;
    float map[16];
    strata_status st;

    if ((st = read_state(p, t)) != STRATA_OK || (st = check_sizes(p, t)) != STRATA_OK ||
        (st = read_part(p, ST_HF_PACKED_MAP, 0, map, sizeof(map))) != STRATA_OK)
        return st;
    if (memcmp(map, values, sizeof(map)) != 0)
        return st_error(STRATA_E_INPUT, "%s: tensor %s%s does not hold the values of nf4", p->parts[ST_HF_PACKED_MAP].path,
                        t->name, ends[ST_HF_PACKED_MAP]);
    return p->state.nested ? read_part(p, ST_HF_PACKED_NESTED_MAP, 0, p->nested_map, sizeof(p->nested_map)) : STRATA_OK;
}

/* --- reading --- */

static strata_status unpack_scales(const struct st_hf_packed *p, uint64_t block, uint64_t count, float *out)
{
    const uint64_t first = block / SCALE_BLOCK, last = (block + count - 1) / SCALE_BLOCK;
    float scales[READ_BLOCKS / SCALE_BLOCK + 1];
    uint8_t codes[READ_BLOCKS];
    strata_status st;

    if (!p->state.nested)
        return read_part(p, ST_HF_PACKED_ABSMAX, block * sizeof(float), out, count * sizeof(float));
    if ((st = read_part(p, ST_HF_PACKED_ABSMAX, block, codes, count)) != STRATA_OK ||
        (st = read_part(p, ST_HF_PACKED_NESTED_ABSMAX, first * sizeof(float), scales, (last - first + 1) * sizeof(float))) !=
            STRATA_OK)
        return st;
    for (uint64_t i = 0; i < count; i++)
        out[i] = st_nf4_scale(p->nested_map[codes[i]], scales[(block + i) / SCALE_BLOCK - first], p->state.offset);
    return STRATA_OK;
}

/* The values of a block are codes of finite numbers times its scale. */
static strata_status read_scales(const struct st_hf_packed *p, const char *name, uint64_t block, uint64_t count, float *out)
{
    const strata_status st = unpack_scales(p, block, count, out);

    for (uint64_t i = 0; st == STRATA_OK && i < count; i++)
        if (!isfinite(out[i]))
            return st_error(STRATA_E_NUMERICS,
                            "%s: tensor %s holds values that are not finite (%s of block %" PRIu64 "): the file is damaged",
                            p->codes.path, name, ends[ST_HF_PACKED_ABSMAX] + 1, block + i);
    return st;
}

static strata_status read_blocks(const struct st_hf_packed *p, const char *name, uint64_t block, uint64_t count, float *out)
{
    struct st_nf4_block blocks[READ_BLOCKS];
    uint8_t codes[READ_BLOCKS * CODES_BYTES];
    float scales[READ_BLOCKS];
    strata_status st;

    if ((st = read_scales(p, name, block, count, scales)) != STRATA_OK ||
        (st = st_file_read_at(p->codes.fd, codes, count * CODES_BYTES, p->codes.begin + block * CODES_BYTES, p->codes.path)) !=
            STRATA_OK)
        return st;
    for (uint64_t i = 0; i < count; i++) {
        blocks[i].absmax = scales[i];
        memcpy(blocks[i].codes, codes + i * CODES_BYTES, CODES_BYTES);
    }
    st_kernels_pick(NULL)->nf4_widen(out, STRATA_F32, blocks, count * ST_NF4_ELEMS);
    return STRATA_OK;
}

strata_status st_hf_packed_read(const struct st_hf_packed *p, const char *name, uint64_t first, uint64_t count, float *out)
{
    strata_status st = STRATA_OK;

    while (count > 0 && st == STRATA_OK) {
        const uint64_t block = first / ST_NF4_ELEMS, skipped = first % ST_NF4_ELEMS, whole = count / ST_NF4_ELEMS;
        uint64_t done = (whole < READ_BLOCKS ? whole : READ_BLOCKS) * ST_NF4_ELEMS;
        float part[ST_NF4_ELEMS];

        if (skipped == 0 && whole > 0) {
            st = read_blocks(p, name, block, done / ST_NF4_ELEMS, out);
        } else { /* a part of one */
            done = count < ST_NF4_ELEMS - skipped ? count : ST_NF4_ELEMS - skipped;
            if ((st = read_blocks(p, name, block, 1, part)) == STRATA_OK)
                memcpy(out, part + skipped, done * sizeof(*out));
        }
        first += done;
        out += done;
        count -= done;
    }
    return st;
}
