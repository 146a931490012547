/* model/hf/hf_widen_internal.h - values of a safetensors file as fp32.  Private to model/hf/. */
#ifndef MODEL_HF_HF_WIDEN_INTERNAL_H
#define MODEL_HF_HF_WIDEN_INTERNAL_H

#include "strata/status.h"
#include "strata/types.h"

/** Values [first, first + count) of a tensor that begins at byte `begin` of an open file and has dtype F32, BF16 or F16. */
strata_status st_hf_read_widened(int fd, const char *path, uint64_t begin, strata_dtype dtype, uint64_t first, uint64_t count,
                                 float *out);

#endif
