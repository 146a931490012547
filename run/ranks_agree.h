/* run/ranks_agree.h - what the ranks of a run must have alike: compared, or brought to the smallest of all.  `comm` NULL is a run
 * of one rank, of which each of these does nothing. */
#ifndef RUN_RANKS_AGREE_H
#define RUN_RANKS_AGREE_H

#include "model/model.h"
#include "offload/comm/comm.h"
#include "offload/config/config.h"
#include "offload/plan/plan.h"
#include "run/run.h"

/** st_comm_agree(), after which a rank that gives up because of a difference does not keep another from hearing of it. */
strata_status st_ranks_agree(struct st_comm *comm, const struct st_comm_fact *facts, uint32_t count, const char *what);
/* What a rank has opened, and for what. */
struct st_ranks_model {
    const struct st_model *model;
    const struct st_config *config;
    const char *name; /* a preset's, or of the directory */
    bool is_dir;      /* it came from one */
    uint32_t use, seq;
    uint64_t seed;
    bool documents;                 /* a sequence may hold several */
    struct st_weight_source source; /* of its initial weights */
};
/** E_CONFIG: version, configuration, model or its weights differ. */
strata_status st_ranks_agree_model(struct st_comm *comm, const struct st_ranks_model *m);
/** The same of layers of others, by their description. */
strata_status st_ranks_agree_layers(struct st_comm *comm, const struct st_run *run, uint32_t use);
/** For a failure that every rank finds by itself from what all have told: none leaves, which is a failure of its own kind to the
 *  others, before all have heard it.  Returns `st`, whatever comes of that. */
strata_status st_ranks_leave_together(struct st_comm *comm, strata_status st, const char *what);
/** The smallest number of all ranks, such as of workers, for each of which plans have scratch; the largest. */
strata_status st_ranks_fewest(struct st_comm *comm, uint32_t *number, const char *what);
strata_status st_ranks_most(struct st_comm *comm, uint32_t *number, const char *what);
/** Take the smallest capacity of each tier.
 *  @param least  the first rank that has it */
strata_status st_ranks_capacity(struct st_comm *comm, struct st_capacity *capacity, uint32_t least[STRATA_TIER_COUNT]);
/** Take the lowest rate of each resource, as the slowest rank keeps all others waiting.
 *  @param saves  the run saves: rates of directories, too, by which ranks deal out their swap alike */
strata_status st_ranks_rates(struct st_comm *comm, struct st_rates *rates, bool saves);
/** Whether what holds on this rank does on all.  @param all  in: this rank's answer; out: all ranks' */
strata_status st_ranks_all(struct st_comm *comm, bool *all, const char *what);
/** E_CONFIG: what multiplies on the device differs; what the programs exchange differs, which is a mistake of the planner's. */
strata_status st_ranks_agree_plan(struct st_comm *comm, const struct st_program *program, const char *device);
/** E_CONFIG: the token files, or how sequences are cut from them, differ. */
strata_status st_ranks_agree_data(struct st_comm *comm, const struct st_run_data *d);

/** How something ended that all ranks have done: `st` where it is a failure, else that of another rank; OK: all of them give OK.
 */
strata_status st_ranks_end_alike(struct st_comm *comm, strata_status st, const char *what);

#endif
