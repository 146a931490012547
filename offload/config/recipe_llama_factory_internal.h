/* offload/config/recipe_llama_factory_internal.h - LLaMA-Factory's table, for the rules that read it. */
#ifndef CORE_RECIPE_LLAMA_FACTORY_H
#define CORE_RECIPE_LLAMA_FACTORY_H

#include "offload/config/recipe_internal.h"

/* Values of optim. */
enum { ST_OPTIM_ADAMW, ST_OPTIM_ADAMW_8BIT, ST_OPTIM_SGD, ST_OPTIM_ADAGRAD, ST_OPTIM_LION };

extern const struct st_section st_llama_factory_sections[];

#endif
