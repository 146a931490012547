/* model/nf4.h - values of a model whose linear weights are stored in NF4 (st_model_batch.nf4), around another source.
 *
 * Matrices of NF4 lie in their page as [out, in], as bitsandbytes quantises them: transformers transposes GPT-2's, which files
 * have as [in, out], before it does. */
#ifndef MODEL_NF4_H
#define MODEL_NF4_H

#include "model/model.h"

struct st_nf4_source;

/**
 * Values of NF4 are checked: E_NUMERICS, naming the tensor, if one is not finite.
 *
 * @param from   borrowed, as is the model
 * @param turned matrices are [out, in] there already, as in a checkpoint of a run in NF4; else they are as files have them
 * @param twice  the scales are quantised, too, and values are what that leaves.  Ranges of such tensors begin and end at whole
 *               records, and all that is read at one time is of one page
 */
strata_status st_nf4_source_open(struct st_nf4_source **out, const struct st_model *m, struct st_weight_source from, bool turned,
                                 bool twice);
void st_nf4_source_close(struct st_nf4_source *s);
struct st_weight_source st_nf4_source_values(struct st_nf4_source *s);

/** Values [first, first + count) of a matrix that files have as [in, out], in the order of [out, in].
 *  @param from  of its page, with the matrix at t->offset */
strata_status st_nf4_read_turned(const struct st_weight_source *from, const struct st_tensor *t, uint64_t first, uint64_t count,
                                 float *out);

/** A scale from its code's value, the scale of 256 scales and the mean of the tensor's: rounded as bitsandbytes rounds. */
static inline float st_nf4_scale(float value, float scale, float offset)
{
    const float product = value * scale;

    return product + offset;
}

/** The scales of a tensor's records become what their quantisation in 8 bits leaves.  @param scales  [count] in and out, count >
 * 0 */
void st_nf4_scales_twice(float *scales, uint64_t count);

#endif
