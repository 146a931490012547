/* run/run_describe.h - a run in the words of a checkpoint's manifest. */
#ifndef RUN_RUN_DESCRIBE_H
#define RUN_RUN_DESCRIBE_H

#include "kernels/matmul/matmul.h"
#include "offload/checkpoint/manifest.h"
#include "run/run.h"

/** Say what the run is and where it stands, and what it trains on; all but what follows from the files.
 *  @param out   freed with st_manifest_fini()
 *  @return E_NOMEM; E_INVAL: a name is too long for a manifest */
strata_status st_run_describe(struct st_manifest *out, const struct st_run *run, const struct st_run_data *data);

/** The same of a run that has no engine: of its model's tensors and its configuration, and 0 steps, with moments as the
 * configuration has them.  E_NOMEM; E_INVAL: a name is too long for a manifest */
strata_status st_run_describe_model(struct st_manifest *out, const struct st_run *run);

/** What multiplies on a device, such as "cpu" or "cuda:0": equal names, equal bits. */
void st_run_matmul_library(char name[ST_MATMUL_LIBRARY_BYTES], const char *device);

/** A new name for a run: 16 hex digits. */
strata_status st_run_draw_name(char run[17]);

/** What a manifest says that its run began with: a directory, or a preset's name. */
const char *st_run_began_with(const struct st_manifest *m);

#endif
