/* tests/model/hf_rig.h - Hugging Face directories written by us and, in their ways, by others. */
#ifndef HF_RIG_H
#define HF_RIG_H

#include "model/layout.h"
#include "model_fixture.h"

/** Page values in the model's dtype: initial weights, cut to 16 bits for bf16; as fp16 these are other numbers.  Freed by
 *  the caller. */
void *page_weights(const struct st_model *m, uint32_t page);
/** A directory of those values. */
strata_status write_model(const struct st_model *m, const char *dir);
/** Where no model is. */
strata_status write_new_model(const struct st_model *m, const char *dir);
/** The same with what lies beside the weights of `source`. */
strata_status write_model_from(const struct st_model *m, const char *dir, const char *source);
/** Every value of every page, in ranges that cut tensors, equals what was written. */
void check_read(const struct st_model *m, const char *dir);

enum spelling { SPELL_FULL, SPELL_BARE };

/* Tensors first .. end - 1 of a model as one safetensors file of values that are exact in every dtype. */
struct foreign {
    uint32_t first, end;
    enum spelling spelling;
    strata_dtype dtype;
    const char *extra_name; /* one more tensor, of extra_shape zeros or the values of the first one */
    uint64_t extra_shape[2];
    uint32_t extra_rank;
    bool extra_is_first;
    const char *skip; /* tensor left out */
    const char *turn; /* tensor written with its dimensions swapped */
};

/** All tensors, fp32. */
struct foreign all_of(const struct st_model *m);
void write_foreign(const struct st_model *m, const char *path, const struct foreign *x);
/** The values of write_foreign, tensor by tensor. */
void check_values(const struct st_model *m, const char *dir);

#endif
