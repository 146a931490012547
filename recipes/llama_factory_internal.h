/* recipes/llama_factory_internal.h - LLaMA-Factory's table, for the rules that read it. */
#ifndef RECIPES_LLAMA_FACTORY_INTERNAL_H
#define RECIPES_LLAMA_FACTORY_INTERNAL_H

#include "recipes/recipe_internal.h"

extern const struct st_section st_llama_factory_sections[];

#endif
