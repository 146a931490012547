/* model/hf/hf_beside_internal.h - tensors of a model of more than text that are not its text model's: no run changes them, and
 * they are written as they were read.  Private to model/hf/. */
#ifndef MODEL_HF_HF_BESIDE_INTERNAL_H
#define MODEL_HF_HF_BESIDE_INTERNAL_H

#include "core/system/file.h"
#include "model/hf/hf_files_internal.h"
#include "model/hf/safetensors_internal.h"

/* All of them, where a directory has no weights: that of a checkpoint. */
#define ST_HF_BESIDE_NAME "beside.safetensors"

struct st_hf_beside_entry {
    const struct st_hf_weights *file;
    const struct st_safetensor *tensor;
};

struct st_hf_beside {
    struct st_hf_files files;
    struct st_hf_beside_entry *list; /* [count], larger elements first, so that all are aligned */
    uint32_t count;
    uint64_t bytes; /* of their values */
    bool older;     /* they are named as transformers writes files, not as it has them in memory */
};

/** Find those of a directory; none if the model is only text. */
strata_status st_hf_beside_open(struct st_hf_beside *out, const struct st_model_config *config, const char *dir);
void st_hf_beside_close(struct st_hf_beside *b);
/** Name them in the header of another file, and copy their values to where they then begin. */
void st_hf_beside_name(const struct st_hf_beside *b, struct st_safetensors_writer *header);
strata_status st_hf_beside_copy(const struct st_hf_beside *b, struct st_new_file *to, uint64_t at);
/** Write all of them as one file; st_new_file_commit() gives it its name.  None: no file. */
strata_status st_hf_beside_put(const struct st_hf_beside *b, struct st_new_file *file, const char *dir);

#endif
