/* model/hf/hf_packed_internal.h - tensors that bitsandbytes has stored in 4 bits.  Private to model/hf/.
 *
 * Beside X.weight, which holds the codes, lie X.weight.quant_state.bitsandbytes__nf4 (JSON in bytes), .quant_map (the 16 values),
 * .absmax (the scale of each 64 elements) and, if scales are quantised too, .nested_absmax and .nested_quant_map. */
#ifndef MODEL_HF_HF_PACKED_INTERNAL_H
#define MODEL_HF_HF_PACKED_INTERNAL_H

#include "model/hf/hf_reader_internal.h"

enum st_hf_packed_part {
    ST_HF_PACKED_STATE,
    ST_HF_PACKED_MAP,
    ST_HF_PACKED_ABSMAX,
    ST_HF_PACKED_NESTED_MAP,
    ST_HF_PACKED_NESTED_ABSMAX,
    ST_HF_PACKED_PARTS
};

/* What the JSON says. */
struct st_hf_packed_state {
    uint64_t shape[2];
    bool nested;
    float offset; /* nested: the mean of the scales */
};

struct st_hf_packed {
    struct st_hf_place codes, parts[ST_HF_PACKED_PARTS]; /* path NULL: not there */
    struct st_hf_packed_state state;
    float nested_map[256];
};

/** If the name ends as that of such a part does: *part, and the length of the name before that end. */
bool st_hf_packed_find(const char *name, enum st_hf_packed_part *part, size_t *length);
/** The JSON of a quantised matrix: E_INPUT naming key and value if it is anything but nf4 in blocks of 64. */
strata_status st_hf_packed_parse(struct st_hf_packed_state *out, const char *json, uint64_t bytes, const char *where);
/** Reads the small parts and checks all of them against tensor t, once codes and parts are known. */
strata_status st_hf_packed_open(struct st_hf_packed *p, const struct st_tensor *t);
/** Elements [first, first + count) of tensor `name` as bitsandbytes dequantises them, in fp32.  E_NUMERICS: not finite. */
strata_status st_hf_packed_read(const struct st_hf_packed *p, const char *name, uint64_t first, uint64_t count, float *out);

#endif
