/* recipes/recipe.h - recipes: files of trainers that say in other words what a configuration and a command line say here.
 * LLaMA-Factory's and TRL's YAML, XTuner's training arguments (YAML or JSON), Accelerate's config files.
 *
 * Each trainer has a table of keys like DeepSpeed's (offload/config/config_table.h): a verdict, the sentence, and what the key
 * becomes: a path of the configuration, or an option.  `strata check` and docs/yaml.md are made from it.  A recipe is read-only
 * once it is open. */
#ifndef RECIPES_RECIPE_H
#define RECIPES_RECIPE_H

#include "offload/config/config.h"
#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct strata_recipe; /* the door's handle, too: strata/recipe.h */

/* Where a recipe comes from. */
struct st_recipe_input {
    const char *path;         /* the file; NULL: the words are all of it, with LLaMA-Factory's keys */
    const char *const *words; /* over the file's values: "key=value", "--key=value" */
    uint32_t word_count;
    uint32_t ranks;     /* of this run, where a file may name another number; 0: unknown */
    bool allow_unknown; /* unknown keys become notices */
};

/**
 * Read a recipe of a trainer (LLaMA-Factory, XTuner).  Problems of keys and values are told by the configuration that it becomes
 * part of (struct st_config_opts).
 *
 * @param out  out; freed with st_recipe_close()
 * @return E_CONFIG: the file cannot be read, is no YAML (or JSON), or is none of a trainer's, or a word is none; E_NOMEM, E_IO */
strata_status st_recipe_open(struct strata_recipe **out, const struct st_recipe_input *in);
/**
 * Read what Accelerate's launcher says in variables: its file's keys under other names.
 *
 * @param out        out; freed with st_recipe_close(); NULL: they say nothing
 * @param variables  "NAME=value", ended by NULL; NULL: none
 * @return E_CONFIG: a value is not UTF-8; E_NOMEM */
strata_status st_recipe_environment(struct strata_recipe **out, const char *const *variables);
void st_recipe_close(struct strata_recipe *recipe); /* NULL: nothing */
/** A key of its table as its user knows it. */
const char *st_recipe_spelling(const struct strata_recipe *recipe, const char *key);
const char *st_recipe_path(const struct strata_recipe *recipe);
/** DeepSpeed's file that it names; NULL: none. */
const char *st_recipe_deepspeed(const struct strata_recipe *recipe);
/** Problem i, from 0: "FILE:LINE: key: ..."; NULL: past the last. */
const char *st_recipe_problem_at(const struct strata_recipe *recipe, uint32_t i);
/** Value i, from 0, in the order of the table; NULL: past the last. */
const struct st_config_said *st_recipe_value_at(const struct strata_recipe *recipe, uint32_t i);
/** The first value that becomes `to`; NULL: none, or no recipe. */
const struct st_config_said *st_recipe_value_of(const struct strata_recipe *recipe, const char *to);
/**
 * Read, check everything, resolve: a configuration of DeepSpeed's file, or Accelerate's and the one that it names, with what
 * stands beside it; as st_config_make().
 *
 * @param recipe     opts->file NULL: DeepSpeed's file that it names is read; NULL: none
 * @param variables  "NAME=value", ended by NULL: what Accelerate's launcher says is taken, and what it names must agree with the
 *                   rest; NULL: none */
strata_status st_recipe_config(struct st_config *config, struct st_config_source **source, const struct st_config_opts *opts,
                               const struct strata_recipe *recipe, const char *const *variables);
/** As st_recipe_config(), from DeepSpeed's JSON in a text; messages call it `name`. */
strata_status st_recipe_config_text(struct st_config *config, struct st_config_source **source, const char *text,
                                    const char *name, const struct st_config_opts *opts, const char *const *variables);
/** What is said of a key of LLaMA-Factory's or transformers' training arguments, "-" or "_" between its words; NULL: there is
 * none of this name, or it becomes an option. */
const char *st_recipe_words(const char *key);
/** Whether a trainer (its name; NULL: any) has a key, "-" or "_" between its words. */
bool st_recipe_has_key(const char *trainer, const char *key);
/** The generated part of docs/yaml.md. */
void st_recipe_write_markdown(FILE *file);

#endif
