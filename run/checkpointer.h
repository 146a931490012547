/* run/checkpointer.h - makes checkpoints of an engine's run, one at a time: chooses sets, hands over what the engine has brought into
 * one, and keeps what became of it. */
#ifndef RUN_CHECKPOINTER_H
#define RUN_CHECKPOINTER_H

#include "run/run.h"
#include "offload/checkpoint/checkpoint.h"
#include "offload/checkpoint/commit.h"
#include "strata/checkpoint.h"

/** Begin to save into the configuration's directory, which is made if it is missing: before the engine, whose swap may lie there.
 *  The run has all but its engine and program.
 *  @param overwrite  checkpoints that have the names of new ones are replaced
 *  @return E_INPUT: it cannot be one; E_CONFIG: an I/O method without files; E_NOSPC, E_IO, E_NOMEM */
strata_status st_saver_open(struct st_saver **out, struct st_run *run, bool overwrite);
/** Waits for a save in progress; the engine must be there still.  NULL is fine, also for close. */
void st_saver_stop(struct st_saver *s);
/** Of one that was stopped, after the engine, whose swap may lie in the directory: that goes where it was made and is empty. */
void st_saver_close(struct st_saver *s);
/** Remove the directories that this process made, where they are empty: call after st_ending_begin(), when all else is removed.
 */
void st_saver_remove_all(void);
/** Begin to save the run, which has its engine now.  E_INPUT: another run saves into the directory; E_NOSPC, E_IO, E_NOMEM. */
strata_status st_saver_attach(struct st_saver *s);
/** Make a save now that no step has made yet, and wait for it; how it went st_saver_ask() tells.  Before the engine's state is
 *  replaced, which is what a checkpoint would have instead.
 *  @return the status that has ended the engine; a failure between ranks */
strata_status st_saver_settle(struct st_run *run);
/** A run begins, or goes on from a checkpoint, whose files the engine may have adopted; the one before has settled. */
strata_status st_saver_begin(struct st_saver *s, const struct st_checkpoint *from);
/** 16 hex digits: of the run, which a resumed one goes on with. */
const char *st_saver_name(const struct st_saver *s);

/** Save the run as it is now: the next step does it while it computes, if an update is pending that it makes; else now, which
 *  takes as long as what lives in memory takes to be written.  Waits for the save before.
 *  @param m  taken, also on failure */
strata_status st_saver_save(struct st_saver *s, struct st_manifest *m);
/** A save will follow the next step: where that is the one that makes the step's update, it writes beside that what lives in
 *  memory. */
void st_saver_comes(struct st_saver *s);
/** Whether a save waits for the next step. */
bool st_saver_is_due(const struct st_saver *s);
/** A step, which makes what is due. */
strata_status st_saver_step(struct st_saver *s, const int32_t *tokens, const int32_t *targets, const int32_t *positions,
                            struct st_step_result *result);
/** What no step has made yet is made now, and ends; how it went is told when asked for.  @return a failure between ranks */
strata_status st_saver_wait(struct st_saver *s);
/** Say a failure of the last save in the log, if nobody has asked for it: it is forgotten now. */
void st_saver_tell(struct st_saver *s);
/** How the last save went; its failure, once.  wait: what no step has made yet is made now. */
strata_status st_saver_ask(struct st_saver *s, bool wait, struct strata_saved *out);

/* The checkpoint that an engine resumes from, as volumes of its swap. */
struct st_resumed_space {
    struct st_checkpoint_volume *files; /* NULL: closed */
    uint32_t volume;
};
struct st_resumed {
    struct st_resumed_space all[ST_SPACE_COUNT], own[ST_SPACE_COUNT]; /* all parts', and one part's alone */
    uint32_t volumes[ST_SPACE_COUNT], own_volumes[ST_SPACE_COUNT];
};
/** @param part  that is opened alone, too; ST_CHECKPOINT_PARTS: none */
strata_status st_resumed_open(struct st_resumed *r, struct st_engine *engine, const struct st_checkpoint *ck, uint32_t part);
/** Close the files of what is trained: updates have written all of that elsewhere.  Else they would take their space when the
 *  checkpoint is gone, and a set of this run that they are could not be used again.  NULL is fine. */
void st_resumed_drop_set(struct st_resumed *r, struct st_engine *engine);
/** Close and free; the engine uses none of it any more.  NULL is fine. */
void st_resumed_free(struct st_resumed *r, struct st_engine *engine);

#endif
