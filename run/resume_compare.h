/* run/resume_compare.h - whether a run may go on from a checkpoint. */
#ifndef RUN_RESUME_COMPARE_H
#define RUN_RESUME_COMPARE_H

#include "offload/checkpoint/manifest.h"
#include "run/run.h"

/** E_INPUT if a run cannot go on from the checkpoint: another model, precision, optimizer or data; the sentence begins with
 *  `name`. What else changes results is a notice each.
 *  @param rescales  out: of fp16 another first loss scale has been asked for, with which this run begins */
strata_status st_resume_compare(const struct st_manifest *m, const char *name, const struct st_run *run,
                                const struct st_run_data *data, bool *rescales);

#endif
