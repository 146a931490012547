/* model/hf/hf_files_internal.h - the files of weights of a directory: one, or shards with an index.  Private to model/hf/. */
#ifndef MODEL_HF_HF_FILES_INTERNAL_H
#define MODEL_HF_HF_FILES_INTERNAL_H

#include "core/system/file.h"
#include "model/hf/safetensors_internal.h"
#include "model/model.h"

struct st_hf_weights {
    int fd;
    struct st_file_identity identity;
    char path[ST_PATH_MAX];
    struct st_safetensors header;
};

struct st_hf_files {
    struct st_hf_weights *list; /* [count] */
    uint32_t count;
};

/** Whether a directory has any. */
strata_status st_hf_files_are_there(bool *there, const char *dir);
/** Open them, and read their headers.  Shards must hold what their index names, but for the head of a model that is tied; config
 *  NULL: all of it.
 *  E_INPUT: there are none, or names file and fault; then none is open. */
strata_status st_hf_files_open(struct st_hf_files *out, const char *dir, const struct st_model_config *config);
/** Open one file. */
strata_status st_hf_files_open_one(struct st_hf_files *out, const char *dir, const char *name);
strata_status st_hf_files_open_list(struct st_hf_files *out, const char *const *paths, uint32_t count);
/** E_INPUT: one of them was written to since it was opened. */
strata_status st_hf_files_check_unchanged(const struct st_hf_files *files);
void st_hf_files_close(struct st_hf_files *files);

#endif
