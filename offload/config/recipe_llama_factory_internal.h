/* offload/config/recipe_llama_factory_internal.h - LLaMA-Factory's table, for the rules that read it. */
#ifndef CORE_RECIPE_LLAMA_FACTORY_H
#define CORE_RECIPE_LLAMA_FACTORY_H

#include "offload/config/recipe_internal.h"

extern const struct st_section st_llama_factory_sections[];

#endif
