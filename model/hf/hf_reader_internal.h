/* model/hf/hf_reader_internal.h - what the digest needs of an open directory.  Private to model/hf/. */
#ifndef MODEL_HF_HF_READER_INTERNAL_H
#define MODEL_HF_HF_READER_INTERNAL_H

#include "model/model.h"

/* Where tensor i of the model's list lies. */
struct st_hf_place {
    int fd;
    const char *path;
    uint64_t begin, end; /* bytes of the file */
    strata_dtype dtype;
};

struct st_hf_place st_hf_reader_place(const struct st_hf_reader *r, uint32_t tensor);

#endif
