/* recipes/fsdp_internal.h - FSDP's keys, which two trainers' files have, and what they become. */
#ifndef RECIPES_FSDP_INTERNAL_H
#define RECIPES_FSDP_INTERNAL_H

#include "recipes/recipe_internal.h"

#define ST_RECIPE_FSDP_ROWS 18
#define ST_RECIPE_FSDP_WRAP "the plan decides what moves together, layer by layer"

/* What a trainer says outside of fsdp_config. */
struct st_recipe_fsdp {
    const char *key; /* that says it; NULL: nothing does */
    int version;     /* where fsdp_version is left out */
    int stage;       /* of ZeRO, unless fsdp_config names one */
    bool hybrid;     /* each machine would have all parts */
    bool named;      /* by a strategy */
    bool offload;    /* Trainer's word, as its cpu_offload */
    bool of_trainer; /* which reads other members than Accelerate's launcher */
};

/** fsdp_config and its members. */
extern const struct st_field st_recipe_fsdp_rows[ST_RECIPE_FSDP_ROWS];

/** Take a strategy's name or digit; false: it is none, and nothing has changed. */
bool st_recipe_fsdp_take(struct st_recipe_fsdp *fsdp, const char *word);
/** Put stage, tiers and checkpointing. */
void st_recipe_fsdp(struct strata_recipe *r, struct st_recipe_fsdp fsdp);
/** FSDP is not on: the members that were given say so. */
void st_recipe_fsdp_leave(struct strata_recipe *r, const char *reason);

#endif
