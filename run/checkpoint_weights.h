/* run/checkpoint_weights.h - the weights of a checkpoint, at the places that a model has for them.
 *
 * A checkpoint's pages may be others than the model's: what is frozen lies elsewhere.  Every tile is compared with its checksum
 * before anyone sees it. */
#ifndef RUN_CHECKPOINT_WEIGHTS_H
#define RUN_CHECKPOINT_WEIGHTS_H

#include "model/model.h"
#include "offload/checkpoint/checkpoint.h"

struct st_checkpoint_weights;

/** Find what a directory is.
 *  @param out  the checkpoint that it names, or the newest that opens of a directory of them, with a notice for each newer one;
 *              NULL: it names neither, or a Hugging Face directory (it has a config.json)
 *  @return E_CORRUPT: there are checkpoints, and none opens; E_NOMEM, E_IO */
strata_status st_checkpoint_as_model(struct st_checkpoint **out, const char *name);
/** The directory in a checkpoint that holds config.json and the model's other small files, once they are compared with their
 * digest. E_CORRUPT; E_NOMEM, E_IO. */
strata_status st_checkpoint_model_dir(char dir[ST_PATH_MAX], const struct st_checkpoint *ck);

/** Whether matrices of the run are stored in NF4. */
bool st_checkpoint_has_nf4(const struct st_checkpoint *ck);

/** @param ck  borrowed until close, as is `m`
 *  @return E_CORRUPT: its tensors are not those of the model, or a file is missing; E_NOMEM, E_IO */
strata_status st_checkpoint_weights_open(struct st_checkpoint_weights **out, const struct st_checkpoint *ck,
                                         const struct st_model *m);
void st_checkpoint_weights_close(struct st_checkpoint_weights *w); /* NULL is fine */
/** Values as fp32, exactly.  Callers may be several threads, which take turns. */
struct st_weight_source st_checkpoint_weights_source(struct st_checkpoint_weights *w);
/** Receives weights in the format that they are stored in. */
typedef strata_status st_checkpoint_weights_fn(void *ctx, uint32_t page, uint64_t first, uint64_t count, strata_dtype format,
                                               const void *weight);
/** Hand over the weights of a page [first, first + count), in ascending runs without the padding.  Of NF4 first and count: whole
 *  records.
 *  @return what emit returned; E_CORRUPT: a tile is damaged; E_IO, E_NOMEM */
strata_status st_checkpoint_weights_each(struct st_checkpoint_weights *w, uint32_t page, uint64_t first, uint64_t count,
                                         st_checkpoint_weights_fn *emit, void *ctx);

#endif
