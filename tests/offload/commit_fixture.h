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

#endif
