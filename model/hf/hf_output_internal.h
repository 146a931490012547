/* model/hf/hf_output_internal.h - files of another model in a directory that is written to.  Private to model/hf/. */
#ifndef MODEL_HF_HF_OUTPUT_INTERNAL_H
#define MODEL_HF_HF_OUTPUT_INTERNAL_H

#include "core/system/file.h"
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
/** Remove the index of shards and the shards that it names, and shards without an index, once one file has taken their place;
 *  nothing else.  E_IO: one could not be removed. */
strata_status st_hf_output_remove_shards(const char *dir);

#endif
