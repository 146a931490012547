/* api/ranks.h - what the ranks of a run must have alike: compared, or brought to the smallest of all.  With one rank each of
 * these does nothing. */
#ifndef API_RANKS_H
#define API_RANKS_H

#include "api/handles.h"

/** st_comm_agree(), after which a rank that gives up because of a difference does not keep another from hearing of it. */
strata_status st_ranks_agree(struct st_comm *comm, const struct st_comm_fact *facts, uint32_t count, const char *what);
/** Every rank gets as many workers as the one with the fewest, since plans have scratch for each. */
strata_status st_ranks_workers(struct strata_model *m);
/** E_CONFIG: version, configuration, model or its weights differ. */
strata_status st_ranks_agree_model(const struct strata_model *m);
/** For a failure that every rank finds by itself from what all have told: none leaves, which is a failure of its own kind to the
 *  others, before all have heard it.  Returns `st`, whatever comes of that. */
strata_status st_ranks_leave_together(struct st_comm *comm, strata_status st, const char *what);
/** Of each tier the smallest capacity.
 *  @param least  the first rank that has it */
strata_status st_ranks_capacity(const struct strata_model *m, struct st_capacity *capacity, uint32_t least[STRATA_TIER_COUNT]);
/** The most sets that a rank needs: of ranks that save, one's drives may be those of the checkpoints, and another's not. */
strata_status st_ranks_sets(const struct strata_model *m, uint32_t *sets);
/** Of each resource the lowest rate, as the slowest rank keeps all others waiting. */
strata_status st_ranks_rates(struct strata_plan *p);
/** Whether what holds on this rank does on all.  @param all  in: this rank's answer; out: all ranks' */
strata_status st_ranks_all(const struct strata_model *m, bool *all, const char *what);
/** E_CONFIG: what the programs exchange differs, which is a mistake of the planner's. */
strata_status st_ranks_agree_plan(const struct strata_plan *p);
/** E_CONFIG: the token files, or how sequences are cut from them, differ. */
strata_status st_ranks_agree_data(const struct strata_model *m, const struct strata_data *d);

/** Of something that all ranks have done: `st` where it is a failure, else that of another rank; OK: all of them give OK. */
strata_status st_ranks_end_alike(const struct strata_model *m, strata_status st, const char *what);
/** st_handle_watch() of something that all ranks do: E_CANCELLED on all of them if one's progress function asks for it. */
strata_status st_ranks_watch(const struct strata_model *m, const char *what, uint64_t done, uint64_t total);
/** Run `work` on rank 0, then on the first rank of each other machine, then on all others, so that those who share files find
 *  what is there already.  Those who wait do so as long as it takes.
 *  @param what  for sentences
 *  @return the status of this rank's work; if another rank's failed, that verdict (st_comm_abort_as()); E_IO: a rank is gone */
strata_status st_ranks_take_turns(const struct strata_model *m, strata_status (*work)(void *ctx), void *ctx, const char *what);

#endif
