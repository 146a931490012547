/* offload/program/program_verify.h - parts of the verifier (program_verify.c) that have files of their own. */
#ifndef OFFLOAD_PROGRAM_PROGRAM_VERIFY_H
#define OFFLOAD_PROGRAM_PROGRAM_VERIFY_H

#include "offload/program/program.h"

/* Whether buffers lie where they may, and what is saved, or updated early, has extents and second places of its own. */
strata_status st_verify_places(const struct st_program *program);

/* Whether every sum is finished when it has all micro-batches of the step, added up leaf by leaf and in the tree (program.h). */
strata_status st_verify_sums(const struct st_program *program);

/* Whether each cycle does each piece of a step's work once, and none that is not its own. */
strata_status st_verify_work(const struct st_program *program);

/* Whether the waits alone force the order of every two conflicting accesses of a buffer, over two cycles. */
strata_status st_verify_order(const struct st_program *program);

/* The cycles that the replay of contents goes through, a letter each: p prologue, b body, s one that saves, r one that makes
 * updates again; e flush, f one that saves; v evaluation.  Every cycle follows every one that it may follow.  With early updates
 * capitals are cycles that make none, and it does so with either place in force: what a cycle finds depends on no more. */
const char *st_verify_walk(bool early);
enum st_phase st_verify_walk_phase(char letter);

#endif
