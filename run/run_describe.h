/* run/run_describe.h - a run in the words of a checkpoint's manifest: written when it is saved, compared when it resumes. */
#ifndef RUN_RUN_DESCRIBE_H
#define RUN_RUN_DESCRIBE_H

#include "run/run.h"
#include "offload/checkpoint/manifest.h"

/** Say what the run is and where it stands, and what it trains on; all but what follows from the files.
 *  @param out   freed with st_manifest_fini()
 *  @return E_NOMEM; E_INVAL: a name is too long for a manifest */
strata_status st_saved_describe(struct st_manifest *out, const struct st_run *run, const struct st_run_data *data);

/** The same of a run that has no engine: of its model's tensors and its configuration, and 0 steps, with moments as the
 * configuration has them.  E_NOMEM; E_INVAL: a name is too long for a manifest */
strata_status st_saved_describe_model(struct st_manifest *out, const struct st_run *run);

/** A new name for a run: 16 hex digits. */
strata_status st_saved_name_run(char run[17]);

/** E_INPUT if a run cannot go on from the checkpoint: another model, precision, optimizer or data; the sentence begins with
 *  `name`. What else changes results is a notice each.
 *  @param rescales  out: of fp16 another first loss scale has been asked for, with which this run begins */
strata_status st_saved_compare(const struct st_manifest *m, const char *name, const struct st_run *run,
                               const struct st_run_data *data, bool *rescales);

#endif
