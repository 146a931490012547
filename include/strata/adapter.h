/* strata/adapter.h - adapters (LoRA) as files: merging one into the weights that it was trained beside, comparing.
 *
 * An adapter is trained by a configuration with "strata.lora" (docs/adapters.md).  It is a directory as PEFT writes it, with
 * adapter_config.json and adapter_model.safetensors. */
#ifndef STRATA_ADAPTER_H
#define STRATA_ADAPTER_H

#include "strata/model.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** What is merged.  Begin with STRATA_MERGE_OPTS_INIT; texts are borrowed during the call. */
struct strata_merge_opts {
    size_t opts_size;    /**< sizeof(struct strata_merge_opts) */
    const char *adapter; /**< a directory with adapter_config.json; or a checkpoint of a run with "strata.lora", or a directory of
                              them: then the newest one that opens */
    const char *model;   /**< a Hugging Face directory; NULL: with a checkpoint the one that its run began with */
    const char *out;     /**< directory to write */
    bool overwrite;      /**< a model that `out` holds is replaced */
    strata_progress_fn *progress; /**< bytes; NULL: no progress is reported */
    void *progress_ctx;           /**< passed to it */
};
#define STRATA_MERGE_OPTS_INIT STRATA_INIT(strata_merge_opts, opts_size)

/**
 * Write a model with an adapter added to its weights: round_even(fp32(W) + scale B A) of each adapted tensor, in the dtype in
 * which it is stored, and trained tensors (modules_to_save) in place of those that they replace.  All other tensors and files are
 * copied byte for byte.  Where the adapter is a checkpoint's, tokenizer, chat template and end tokens are those of its run.
 *
 * @return STRATA_E_INVAL      an argument is NULL, or opts_size is another one
 *         STRATA_E_CONFIG     the adapter's settings are wrong, or do not fit the model
 *         STRATA_E_INPUT      a file is missing or wrong; the weights are quantised; `out` holds a model and `overwrite` is false
 *         STRATA_E_CORRUPT    a checkpoint is damaged
 *         STRATA_E_NUMERICS   a merged weight is not finite; the sentence names the tensor
 *         STRATA_E_CANCELLED  the progress function requested it
 *         STRATA_E_NOFIT  the disk lacks the space; STRATA_E_NOSPC, STRATA_E_NOMEM, STRATA_E_IO
 *
 * Cost    reads and writes the weights once; some 20 MiB of memory, and the largest adapter's A and B.
 * Thread  any.
 */
STRATA_API strata_status strata_adapter_merge(const struct strata_merge_opts *opts);

/**
 * Whether the adapter in a directory is the one that a checkpoint's run had trained: the same settings for each layer, and the
 * same bits.
 *
 * @param dir         with adapter_config.json and adapter_model.safetensors
 * @param checkpoint  a checkpoint, or a directory of them: then the newest one that opens
 * @param same        out
 *
 * @return STRATA_E_INVAL    an argument is NULL
 *         STRATA_E_CONFIG, STRATA_E_INPUT  `dir` holds no adapter that fits the checkpoint's model; there is no checkpoint
 *         STRATA_E_CORRUPT  the checkpoint is damaged, or its run trained no adapter
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Cost    reads both once.
 * Thread  any.
 */
STRATA_API strata_status strata_adapter_compare(const char *dir, const char *checkpoint, bool *same);

#ifdef __cplusplus
}
#endif
#endif
