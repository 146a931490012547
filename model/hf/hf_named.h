/* model/hf/hf_named.h - tensors of safetensors files, by name: for models that are no Hugging Face decoder. */
#ifndef MODEL_HF_HF_NAMED_H
#define MODEL_HF_HF_NAMED_H

#include "model/layers.h"

/* All borrowed during the call. */
struct st_hf_named_opts {
    const char *const *paths; /* [path_count] files; or one directory, of a file or of shards with an index */
    uint32_t path_count;
    const char *prefix;     /* of the files' names, which the model's have not; NULL: none */
    const char *add_prefix; /* of the model's names, which the files' have not; NULL: none */
    bool allow_missing, allow_unexpected;
};

struct st_hf_named;
/** Open them and find each of the layers' tensors; reads no values.  `l` is borrowed until it is closed.
 *  E_INPUT names file and tensor: one that is there twice, missing, unexpected, or of another shape, or cannot be widened; and
 * what the files' headers have wrong. */
strata_status st_hf_named_open(struct st_hf_named **out, const struct st_layers *l, const struct st_hf_named_opts *opts);
void st_hf_named_close(struct st_hf_named *n);
/** Tensors of the model that no file has; of the files that the model has not. */
uint32_t st_hf_named_missing(const struct st_hf_named *n);
uint32_t st_hf_named_unexpected(const struct st_hf_named *n);
bool st_hf_named_has(const struct st_hf_named *n, uint32_t tensor);
/** Values [first, first + count) of a tensor that is there; any thread.  E_IO, E_INPUT. */
strata_status st_hf_named_read(const struct st_hf_named *n, uint32_t tensor, uint64_t first, uint64_t count, float *out);
/** After the last read.  E_INPUT: a file was written to since it was opened. */
strata_status st_hf_named_check_unchanged(const struct st_hf_named *n);

#endif
