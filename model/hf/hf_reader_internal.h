/* model/hf/hf_reader_internal.h - access to an open directory for the digest and for merging.  Private to model/hf/. */
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

/* A file of weights. */
struct st_hf_file {
    int fd;
    const char *path;
    uint64_t bytes;
};
uint32_t st_hf_reader_file_count(const struct st_hf_reader *r);
struct st_hf_file st_hf_reader_file(const struct st_hf_reader *r, uint32_t file);

struct st_hf_place st_hf_reader_place(const struct st_hf_reader *r, uint32_t tensor);

#endif
