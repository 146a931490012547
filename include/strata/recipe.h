/* strata/recipe.h - a trainer's file as a run: LLaMA-Factory's YAML, or XTuner's training arguments.
 *
 *     struct strata_recipe *recipe;
 *     struct strata_config_opts opts = STRATA_CONFIG_OPTS_INIT;
 *
 *     if (strata_recipe_open(&recipe, "llama3_lora_sft.yaml", false) == STRATA_OK) {
 *         opts.recipe = recipe;             // optimizer, batch, schedule, precision, and DeepSpeed's file that it names
 *         strata_config_open(&config, &opts);
 *         strata_recipe_option(recipe, 0, &name, &value);  // "model", "./Llama-3-8B": the program's option --model
 *     }
 *
 * docs/yaml.md lists the keys.  Accelerate's config files, and DeepSpeed's keys in YAML, are configurations:
 * strata_config_opts.file takes them. */
#ifndef STRATA_RECIPE_H
#define STRATA_RECIPE_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_recipe; /**< read-only */

/**
 * Read a trainer's file.  What is wrong with its keys and values is told by strata_recipe_problem(), and by
 * strata_config_open() and strata_config_check().
 *
 * @param recipe         out, returned: closed by strata_recipe_close(), after the configurations that it is part of were opened
 * @param file           YAML (.yaml, .yml) or JSON; borrowed during the call
 * @param allow_unknown  keys that the trainer does not have are notices, not errors
 *
 * @return STRATA_E_CONFIG  the file cannot be read, is not YAML (JSON), or has no key of a trainer's
 *         STRATA_E_INVAL   an argument is NULL
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Thread  any.
 */
STRATA_API strata_status strata_recipe_open(struct strata_recipe **recipe, const char *file, bool allow_unknown);

/**
 * The same with words that replace what the file says, as LLaMA-Factory's command line takes them.
 *
 * @param file   NULL: the words are all of it, with LLaMA-Factory's keys
 * @param words  "learning_rate=1e-5", the value in YAML, or "--learning-rate=1e-5", text where it is no YAML; "a.b=1" is member b
 *               of a; borrowed during the call
 *
 * @return STRATA_E_CONFIG  also: a word is none of these, or its value cannot be read
 *         STRATA_E_INVAL   `recipe` is NULL, or `words` or one of them
 *
 * Thread  any.
 */
STRATA_API strata_status strata_recipe_open_words(struct strata_recipe **recipe, const char *file, const char *const *words,
                                                  uint32_t word_count, bool allow_unknown);

/** Whether a trainer has a key, "-" or "_" between its words; `trainer`: "LLaMA-Factory", "XTuner", "Accelerate", NULL: any.
 *  False where key is NULL, too. */
STRATA_API bool strata_recipe_has_key(const char *trainer, const char *key);

/**
 * Option `index`, from 0, that the program `strata` would be given: what the file says that is no part of a configuration.
 *
 * @param name   out, borrowed until the recipe is closed: without dashes; one may come several times ("dataset")
 * @param value  out, borrowed likewise; NULL: the option takes none; of "save" "": DIR.checkpoints of the output DIR, which the
 * file does not name
 *
 * @return false: there is no such option, or an argument is NULL
 */
STRATA_API bool strata_recipe_option(const struct strata_recipe *recipe, uint32_t index, const char **name, const char **value);

/** Problem `index`, from 0, of its keys and values, with file and line, borrowed until it is closed; NULL: there is none. */
STRATA_API const char *strata_recipe_problem(const struct strata_recipe *recipe, uint32_t index);

/**
 * The key that asks for something, borrowed until the recipe is closed; it may be one that the file leaves out.
 *
 * @param to  an option with its dashes ("--max-steps"), or a path of the configuration ("strata.lora")
 *
 * @return NULL: nothing asks for it, or an argument is NULL
 */
STRATA_API const char *strata_recipe_key_of(const struct strata_recipe *recipe, const char *to);

/** DeepSpeed's file that the recipe names, borrowed until it is closed; NULL: none. */
STRATA_API const char *strata_recipe_deepspeed(const struct strata_recipe *recipe);

/** What is said of a key of LLaMA-Factory's files or transformers' training arguments that becomes no option: what to do instead.
 *
 *  @param key  "-" or "_" between its words
 *
 *  @return static; NULL: no key has this name, it becomes an option, or key is NULL */
STRATA_API const char *strata_recipe_words(const char *key);

/** Close; NULL is fine. */
STRATA_API void strata_recipe_close(struct strata_recipe *recipe);

#ifdef __cplusplus
}
#endif
#endif
