/* model/hf/hf_config_internal.h - config.json of GPT-2 and the Llama family.  Private to model/hf/. */
#ifndef MODEL_HF_HF_CONFIG_INTERNAL_H
#define MODEL_HF_HF_CONFIG_INTERNAL_H

#include "model/model.h"
#include <stdio.h>

/** Parse the text of a config.json; `where` is its path, for errors.  E_INPUT names file and key.  Does not set out->name. */
strata_status st_model_config_parse(struct st_model_config *out, const char *text, uint64_t bytes, const char *where);

/** torch's word. */
const char *st_hf_dtype_name(strata_dtype dtype);
/** Write the config.json that transformers' from_pretrained needs, for a model that began as a preset. */
void st_model_config_write(const struct st_model_config *config, strata_dtype dtype, FILE *file);
void st_model_generation_config_write(const struct st_model_config *config, FILE *file);

#endif
