/* model/hf/safetensors_internal.h - reads and writes the header of a safetensors file, strictly.  Private to model/hf/.
 *
 * File: u64 little-endian N, N bytes of JSON, then the buffer.  Source: the format's README and reference reader. */
#ifndef MODEL_HF_SAFETENSORS_INTERNAL_H
#define MODEL_HF_SAFETENSORS_INTERNAL_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdio.h>

#define ST_SAFETENSORS_HEADER_MAX 100000000u /* the format's own limit */
#define ST_SAFETENSORS_RANK_MAX   8u

struct st_safetensor {
    char *name;
    strata_dtype dtype;     /* INVALID: a dtype that strata's weights cannot have */
    const char *dtype_name; /* static */
    uint32_t rank;
    uint64_t shape[ST_SAFETENSORS_RANK_MAX];
    uint64_t begin, end; /* bytes from the start of the file */
};

struct st_safetensors {
    struct st_safetensor *tensors; /* [count], sorted by position in the file */
    uint32_t count;
};

/** Parse the JSON of a header whose buffer has data_bytes and starts at data_offset of the file.  E_INPUT names `name`, the
 * tensor and the fault: gaps, overlaps, sizes that disagree with shape and dtype, duplicates, uncovered bytes. */
strata_status st_safetensors_parse(struct st_safetensors *out, const char *json, uint64_t json_bytes, uint64_t data_offset,
                                   uint64_t data_bytes, const char *name);
/** The same from an open file. */
strata_status st_safetensors_read(struct st_safetensors *out, int fd, uint64_t file_bytes, const char *name);
/** From a whole file in memory (fuzz targets). */
strata_status st_safetensors_read_memory(struct st_safetensors *out, const void *file, uint64_t file_bytes, const char *name);
void st_safetensors_fini(struct st_safetensors *s);

/** Whether a tensor, whose shape is not the one that a model wants, has that of the stand-in which ZeRO-3 leaves where it has
 *  taken a parameter apart: [0], or [1]. */
bool st_safetensor_is_placeholder(const struct st_safetensor *t);
/** E_INPUT: what made such a file, and how to make one with weights. */
strata_status st_safetensor_placeholder_fault(const struct st_safetensor *t, const char *path);
/** "[50257, 768]" into text. */
const char *st_shape_text(char text[96], const uint64_t *shape, uint32_t rank);

/* Header writer: begin, tensors in buffer order, end. */
struct st_safetensors_writer;
strata_status st_safetensors_writer_begin(struct st_safetensors_writer **out, strata_dtype dtype);
void st_safetensors_writer_add(struct st_safetensors_writer *w, const char *name, const uint64_t *shape, uint32_t rank);
/** A tensor of another file, as it is there. */
void st_safetensors_writer_add_as(struct st_safetensors_writer *w, const struct st_safetensor *tensor);
/** Length word and padded JSON; *bytes is a multiple of 8 and the offset at which the buffer starts.  Frees w; *header is freed
 *  by the caller. */
strata_status st_safetensors_writer_end(struct st_safetensors_writer *w, unsigned char **header, uint64_t *bytes);
/** Free without a result; NULL is fine. */
void st_safetensors_writer_abort(struct st_safetensors_writer *w);

#endif
