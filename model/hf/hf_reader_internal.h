/* model/hf/hf_reader_internal.h - access to an open directory for the digest.  Private to model/hf/. */
#ifndef MODEL_HF_HF_READER_INTERNAL_H
#define MODEL_HF_HF_READER_INTERNAL_H

#include "model/model.h"

/* Where to find tensor i of the model's list. */
struct st_hf_place {
    int fd;
    const char *path;
    uint64_t begin, end; /* bytes of the file */
    strata_dtype dtype;
};

struct st_hf_place st_hf_reader_place(const struct st_hf_reader *r, uint32_t tensor);

#endif
