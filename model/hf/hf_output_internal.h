/* model/hf/hf_output_internal.h - what a directory that is written to holds of another model.  Private to model/hf/. */
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

/** Make a whole small file; st_new_file_commit() gives it its name. */
strata_status st_hf_output_put(struct st_new_file *file, const char *dir, const char *name, const void *bytes, uint64_t count,
                               bool overwrite);
/** Remove a file of the model that was there, if it has it. */
strata_status st_hf_output_remove(const char *dir, const char *name);
/** Remove the index of shards and what it names, and shards without one, beside the one file that has taken their place:
 *  nothing else.  E_IO: one could not be removed. */
strata_status st_hf_output_remove_shards(const char *dir);

#endif
