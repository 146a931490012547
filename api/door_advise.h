/* api/door_advise.h - which configuration a machine should train a model with, asked by the options of a model and a machine.
 */
#ifndef API_DOOR_ADVISE_H
#define API_DOOR_ADVISE_H

#include "advise/advisor.h"
#include "strata/machine.h"
#include "strata/plan.h"

#define ST_ADVISOR_COMPARES "comparing configurations" /* what the progress of a model's options is told */

struct strata_advice_opts {
    const struct strata_model_opts *model; /* STRATA_USE_PLAN */
    const struct strata_machine_opts *machine;
    const char *const *overrides; /* of the configuration: what is said of the machine, such as budgets */
    uint32_t override_count;
    const char *nvme;        /* directories, separated by commas; NULL: none here */
    uint64_t batch_tokens;   /* of a step; 0: ST_ADVISOR_BATCH */
    const char *const *data; /* token files, whose sequences are counted */
    uint32_t data_count;
};

/** Answer it: the machine is found, and measured if it is this one.  *plan is that of the best configuration, returned, and NULL
 *  if nothing fits; out->plan is NULL.  The statuses of st_advisor_ask(), and those of opening configurations and models. */
strata_status strata_advice_make(struct st_advice *out, struct strata_plan **plan, const struct strata_advice_opts *opts);

#endif
