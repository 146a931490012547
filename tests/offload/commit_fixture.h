/* tests/offload/commit_fixture.h - a run that saves: a swap on two directories, whose sets all hold what checkpoint_fixture.h
 * says. */
#ifndef TESTS_OFFLOAD_COMMIT_FIXTURE_H
#define TESTS_OFFLOAD_COMMIT_FIXTURE_H

#include "offload/checkpoint/commit.h"

#define FIXTURE_SETS 4u

extern struct st_swap *fixture_swap;

/** Setup and teardown of a test: a scratch directory, and the swap in it. */
int fixture_setup(void **state);
int fixture_teardown(void **state);
/** What the run hands over for a step; its set is step % FIXTURE_SETS. */
struct st_commit fixture_job(uint64_t step);
/** Frees a job that nobody took. */
void fixture_drop(struct st_commit *job);

/** The directory of checkpoints, in the scratch directory. */
const char *fixture_save(void);
/** A committer of the swap's run that saves there; without opts.keep it keeps two. */
struct st_committer *fixture_started(struct st_committer_opts opts);
/** Commits a step, and waits for what comes of it. */
struct st_commit_report fixture_commit(struct st_committer *c, uint64_t step);
/** The committer takes the base from the files of this step's checkpoint; _try: its answer. */
void fixture_use_base(struct st_committer *c, uint64_t step);
strata_status fixture_try_base(struct st_committer *c, uint64_t step);
/** Removes this step's checkpoint. */
void fixture_remove(uint64_t step);
/** These are the checkpoints that there are ("1 2"), and each of them verifies. */
void fixture_assert_whole(const char *want);

#endif
