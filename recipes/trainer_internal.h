/* recipes/trainer_internal.h - what LLaMA-Factory and TRL have of transformers' Trainer: rows of keys with one
 * default in both, and the rules between them. */
#ifndef RECIPES_TRAINER_INTERNAL_H
#define RECIPES_TRAINER_INTERNAL_H

#include "recipes/fsdp_internal.h"

/* Values of optim. */
enum { ST_OPTIM_ADAMW, ST_OPTIM_ADAMW_8BIT, ST_OPTIM_SGD, ST_OPTIM_ADAGRAD, ST_OPTIM_LION };

#define NO_HUB                "nothing is downloaded or uploaded here"
#define KERNELS               "strata has its own kernels, which give the same bits everywhere"
#define PLANNED               "the plan decides layer by layer what is kept or recomputed"
#define OPTIMIZERS            "this version has AdamW, Adagrad, Lion and SGD: optim"
#define PIPELINE              "tokens are made once, before training, and kept beside the output"
#define METRICS               "progress is on standard output, metrics go to --metrics FILE.jsonl, and to tensorboard as DeepSpeed's file says"
#define EVALUATION            "of evaluation: strata eval, or val_size and eval_strategy here"
#define SHUFFLED              "sequences are shuffled, in each epoch otherwise, as seed determines"
#define ST_TRAINER_LIMIT_HELP "strata.keep: checkpoints that stay, at most 22, as room for each is reserved at the start; "
#define LAUNCH                "the launcher says which ranks there are: docs/ranks.md"
#define COUNT_MAX             9007199254740992.0 /* 2^53 */

#define ST_TRAINER_EXACT  "masters stay exact: updates are those of fp32 weights"
#define ST_TRAINER_STORED "the frozen weights keep the dtype that they are stored in"

#define ST_TRAINER_MODEL_ROWS  5u
#define ST_TRAINER_OUTPUT_ROWS 24u
#define ST_TRAINER_TRAIN_ROWS  42u
extern const struct st_field st_trainer_model_rows[ST_TRAINER_MODEL_ROWS], st_trainer_output_rows[ST_TRAINER_OUTPUT_ROWS],
    st_trainer_train_rows[ST_TRAINER_TRAIN_ROWS];

/* clang-format off */
#define ST_TRAINER_SECTIONS \
    {"Trainer: model", false, ST_CHANGES_RESULTS, ST_ROWS(st_trainer_model_rows)}, \
    {"Trainer: output", false, ST_CHANGES_NEITHER, ST_ROWS(st_trainer_output_rows)}, \
    {"Trainer: training", false, ST_CHANGES_RESULTS, ST_ROWS(st_trainer_train_rows)}, \
    {"Trainer: fsdp_config", false, ST_CHANGES_RESULTS, ST_ROWS(st_recipe_fsdp_rows)}
/* clang-format on */

/** What the value of a text is. */
bool st_trainer_is(struct strata_recipe *r, const char *key, const char *text);
/** --model, and the precision that bf16 and fp16 ask for: of an adapter the frozen weights keep theirs. */
void st_trainer_resolve_model(struct strata_recipe *r);
/** bf16.enabled and fp16.enabled.  pure: a key whose weights are bf16 themselves; NULL: none asks for that. */
void st_trainer_resolve_precision(struct strata_recipe *r, bool adapter, const char *pure);
/** A JSON list of the names that a text with commas, or a list, has; one_is_text: a single name becomes a text.  NULL: it is not
 * given, or refused. */
const char *st_trainer_names(struct strata_recipe *r, const char *key, bool one_is_text);
/** --max-steps or --epochs. */
void st_trainer_resolve_length(struct strata_recipe *r);
/** --save: beside the output.  @param key  what asks for checkpoints */
void st_trainer_put_save(struct strata_recipe *r, const char *key);
/** strata.keep: how many stay.  @param key  what asks for checkpoints; NULL: nothing does */
void st_trainer_resolve_limit(struct strata_recipe *r, const char *key);
/** How often: a number of steps, or below 1 a part of the run, which the option takes. */
void st_trainer_put_steps(struct strata_recipe *r, const char *key, const char *option, const char *path);
/** Output, length, optimizer, schedule, FSDP and DeepSpeed's file.
 *
 * @param stops   a key by which evaluations end the run is given
 * @param unheld  why no evaluation is made on the way; NULL: rows are held out */
void st_trainer_resolve(struct strata_recipe *r, bool stops, const char *unheld);

#endif
