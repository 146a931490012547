/* run/resume.h - going on from a checkpoint. */
#ifndef RUN_RESUME_H
#define RUN_RESUME_H

#include "offload/checkpoint/checkpoint.h"
#include "run/run.h"

/** E_INPUT: ranks resume from different checkpoints, each of which has looked for it by itself; E_NOMEM. */
strata_status st_run_agree_checkpoint(struct st_run *run, const struct st_manifest *m);

/** Elements that have been read, of all; E_CANCELLED: asked to stop. */
typedef strata_status st_run_watch_fn(void *ctx, uint64_t done, uint64_t total);
/** Replace the engine's state by the checkpoint's, with which st_resume_compare() agrees, and save what follows as of its run.
 *  @param rescales  the loss scale is the configuration's
 *  @param loaded    in: the engine has a state, so that the checkpoint is read and its sums are compared before that is replaced;
 *                   out: it has one, the same if this fails.  Without one, or if replacing it fails, nothing is loaded
 *  @return E_CORRUPT, E_CANCELLED, E_IO, E_NOMEM, and the status that ends the engine */
strata_status st_run_resume(struct st_run *run, const struct st_checkpoint *ck, bool rescales, bool *loaded,
                            st_run_watch_fn *watch, void *ctx);

#endif
