/* model/hf/hf_output_internal.h - files of another model in a directory that is written to.  Private to model/hf/. */
#ifndef MODEL_HF_HF_OUTPUT_INTERNAL_H
#define MODEL_HF_HF_OUTPUT_INTERNAL_H

#include "core/system/file.h"
#include "model/hf/hf_index_internal.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_HF_WEIGHTS_NAME "model.safetensors"
#define ST_HF_INDEX_NAME   ST_HF_WEIGHTS_NAME ".index.json"

#define ST_HF_CONFIG_NAME     "config.json"
#define ST_HF_GENERATION_NAME "generation_config.json"

/** Whether files of these names can be written to a directory, which need not be there: E_INPUT if one is and `overwrite` is
 *  false, or if something stands in the way of the directory.  Creates nothing. */
strata_status st_hf_output_check_names(const char *dir, const char *const *names, uint32_t count, bool overwrite);
/** E_INPUT if a directory, which need not be there, has a file of this name, since it holds `what`: transformers takes a model
 *  beside an adapter for the adapter's base, and would apply that to it. */
strata_status st_hf_output_check_lacks(const char *dir, const char *name, const char *what);
/** Write a whole small file; st_new_file_commit() gives it its name. */
strata_status st_hf_output_put(struct st_new_file *file, const char *dir, const char *name, const void *bytes, uint64_t count,
                               bool overwrite);
/** Remove a file of the previous model, if it exists. */
strata_status st_hf_output_remove(const char *dir, const char *name);
/** Give a file its name.  One that has it counts as written: *unsafe is the status of syncing its directory, if that failed, as a
 *  power cut might take the name away again. */
strata_status st_hf_output_name(struct st_new_file *file, strata_status *unsafe);
/** The index of a model that is to be replaced, read before another index takes its name; no files: there is none, or it is
 *  damaged.  Freed with st_hf_index_fini(). */
strata_status st_hf_output_read_index(struct st_hf_index *out, const char *dir);
/** Remove what is left of another model once the new one is in place: weights, settings for generation, shards that `index`
 *  names, shards without an index, and the index; nothing else, and nothing of those that `is_new` says are the new one's.
 *  E_IO: one could not be removed. */
strata_status st_hf_output_remove_old(const char *dir, const struct st_hf_index *index,
                                      bool (*is_new)(void *ctx, const char *name), void *ctx);
/** Whether the file has this name and is in place. */
bool st_hf_output_has_name(const struct st_new_file *file, const char *name);

#endif
