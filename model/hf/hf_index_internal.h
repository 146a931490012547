/* model/hf/hf_index_internal.h - model.safetensors.index.json: which shard holds which tensor.  Private to model/hf/. */
#ifndef MODEL_HF_HF_INDEX_INTERNAL_H
#define MODEL_HF_HF_INDEX_INTERNAL_H

#include "strata/status.h"
#include <stdint.h>

#define ST_HF_SHARDS_MAX      1000u
#define ST_HF_INDEX_BYTES_MAX (64u << 20)

struct st_hf_index_entry {
    char *name;
    uint32_t file;
};

struct st_hf_index {
    struct st_hf_index_entry *entries; /* [count], sorted by name */
    uint32_t count;
    char **files; /* [file_count], names without a directory */
    uint32_t file_count;
};

/** E_INPUT: bad JSON, no weight_map, file names that leave the directory, too many shards. */
strata_status st_hf_index_read(struct st_hf_index *out, const char *path);
void st_hf_index_fini(struct st_hf_index *index);
/** The entry of a tensor; NULL: none. */
const struct st_hf_index_entry *st_hf_index_find(const struct st_hf_index *index, const char *name);

#endif
