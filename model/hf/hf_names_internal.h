/* model/hf/hf_names_internal.h - names of tensors in files, and in models.  Private to model/hf/.
 *
 * A file may leave out the prefix of the whole model ("transformer.", "model.").  Where a text model is part of another
 * (st_wrapper), files of older and newer transformers have other prefixes, and tensors that are not the text model's. */
#ifndef MODEL_HF_HF_NAMES_INTERNAL_H
#define MODEL_HF_HF_NAMES_INTERNAL_H

#include "model/model.h"

#define ST_HF_NAME_BYTES sizeof(((struct st_tensor *)0)->name)

/** Whether it is the name of a head. */
bool st_hf_name_is_head(const struct st_model_config *config, const char *name);
/** Whether a model of more than text has this tensor, or that of an adapter, beside its text model. */
bool st_hf_name_is_beside(const struct st_model_config *config, const char *name);
/** The model's name for a tensor of a file, if the model has it; "": it is too long for any. */
void st_hf_name_in_model(char out[ST_HF_NAME_BYTES], const struct st_model_config *config, const char *name);
/** The name in a file of a model's tensor.
 *  @param older  as transformers before 4.52 has it in memory, and all of them in files */
void st_hf_name_in_file(char out[ST_HF_NAME_BYTES], const struct st_model_config *config, const char *name, bool older);
/** The name that a tensor of an adapter is known by, of what a file calls so: PEFT has the adapter's own name within it in memory
 *  ("lora_A.default.weight"), and prefixes of older and newer transformers differ; "": it is too long for any.  bytes: of out */
void st_hf_name_in_adapter(char *out, size_t bytes, const struct st_model_config *config, const char *name);

#endif
