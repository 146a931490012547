/* run/checkpointer.h - makes checkpoints of an engine's run, one at a time: chooses sets, hands over what the engine has brought
 * into one, and keeps what became of it. */
#ifndef RUN_CHECKPOINTER_H
#define RUN_CHECKPOINTER_H

#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/commit.h"
#include "run/run.h"
#include "strata/checkpoint.h"

/** Begin to save into the configuration's directory, which is made if it is missing: before the engine, whose swap may lie there.
 *  The run has all but its engine and program.
 *  @param overwrite  checkpoints that have the names of new ones are replaced
 *  @return E_INPUT: it cannot be one; E_CONFIG: an I/O method without files; E_NOSPC, E_IO, E_NOMEM */
strata_status st_checkpointer_open(struct st_checkpointer **out, struct st_run *run, bool overwrite);
/** E_INPUT: such a directory is neither there nor could it be made.  Makes nothing. */
strata_status st_checkpointer_check_place(const char *dir);
/** Waits for a save in progress; the engine must be there still.  NULL is fine, also for close. */
void st_checkpointer_stop(struct st_checkpointer *s);
/** Free a stopped one, after the engine, whose swap may lie in the directory: that is removed if it was made here and is empty.
 */
void st_checkpointer_close(struct st_checkpointer *s);
/** Begin to save the run, which has its engine now.  E_INPUT: another run saves into the directory; E_NOSPC, E_IO, E_NOMEM. */
strata_status st_checkpointer_attach(struct st_checkpointer *s);
/** E_INVAL: a save waits for the next step, so that the engine's state may not be replaced: a checkpoint would have what comes
 *  instead.  NULL: the run saves nothing.
 *  @param function  for the sentence */
strata_status st_checkpointer_check_due(const struct st_checkpointer *s, const char *function);
/** Wait for a save that is under way, before the engine's state is replaced; none is due.  How it went st_checkpointer_ask()
 * tells.
 *  @return the status that has ended the engine; a failure between ranks */
strata_status st_checkpointer_settle(struct st_run *run);
/** A run begins, or goes on from a checkpoint, whose files the engine may have adopted; the one before has settled. */
strata_status st_checkpointer_begin(struct st_checkpointer *s, const struct st_checkpoint *from);
/** 16 hex digits: of the run, which a resumed one goes on with. */
const char *st_checkpointer_run(const struct st_checkpointer *s);

/** Save the run as it is now: the next step does it while it computes, if an update is pending that it makes; else now, which
 *  takes as long as what lives in memory takes to be written.  Waits for the save before.
 *  @param m  taken, also on failure */
strata_status st_checkpointer_save(struct st_checkpointer *s, struct st_manifest *m);
/** From the next step on: where that makes its own update, and a save may follow, it writes beside that what lives in memory. */
void st_checkpointer_set_rule(struct st_checkpointer *s, const struct strata_save_rule *rule);
/** Whether to save now: the rule says so, or someone asks, and the run has made steps that no checkpoint has. */
bool st_checkpointer_due(struct st_checkpointer *s, bool asked);
/** Whether a save waits for the next step. */
bool st_checkpointer_is_due(const struct st_checkpointer *s);
/** A step, which makes what is due. */
strata_status st_checkpointer_step(struct st_checkpointer *s, const int32_t *tokens, const int32_t *targets,
                                   const int32_t *positions, struct st_step_result *result);
/** The same of a step that another computes: before it begins, what it is to save, NULL: nothing; and when it has ended, with
 *  how, which is returned unless ranks fail to tell each other. */
struct st_saved *st_checkpointer_begin_step(struct st_checkpointer *s);
strata_status st_checkpointer_end_step(struct st_checkpointer *s, strata_status st);
/** Before values are written: what is due is made now, and what the last step has written for a save counts no more. */
void st_checkpointer_before_write(struct st_checkpointer *s);
/** What no step has made yet is made now, and ends; how it went is told when asked for.  @return a failure between ranks */
strata_status st_checkpointer_wait(struct st_checkpointer *s);
/** Say a failure of the last save in the log, if nobody has asked for it: it is forgotten now. */
void st_checkpointer_tell(struct st_checkpointer *s);
/** How the last save went; its failure, once.  wait: what no step has made yet is made now. */
strata_status st_checkpointer_ask(struct st_checkpointer *s, bool wait, struct strata_saved *out);

#endif
