/* offload/checkpoint/model_files.h - the small files of a model in a checkpoint's directory model/: one digest over all of them.
 */
#ifndef OFFLOAD_CHECKPOINT_MODEL_FILES_H
#define OFFLOAD_CHECKPOINT_MODEL_FILES_H

#include "offload/checkpoint/checkpoint.h"

/** The digest of the names and bytes of all files in `dir`, in the order of their names.
 *  E_IO, E_NOMEM; E_CORRUPT: there is something that is no file, or no directory */
strata_status st_model_files_digest(char digest[ST_DIGEST_TEXT], const char *dir);
/** E_CORRUPT if they are not what the checkpoint's manifest says. */
strata_status st_model_files_check(const struct st_checkpoint *ck);

#endif
