/* core/system/temp_dir.h - a directory for files that only this process needs, which goes with them.
 *
 * It is in $TMPDIR, or /tmp.  A process that is ended at once by a signal removes it as well: core/system/cleanup.h.  What one
 * leaves that is killed, the next of the same user removes: core/system/owned_dir.h. */
#ifndef CORE_SYSTEM_TEMP_DIR_H
#define CORE_SYSTEM_TEMP_DIR_H

#include "core/system/cleanup.h"
#include "core/system/owned_dir.h"

/* Must not move in memory between create and remove. */
struct st_temp_dir {
    struct st_owned_dir own;
    struct st_cleanup cleanup;
};

/** E_INPUT: $TMPDIR is missing, or not a directory; E_NOSPC, E_NOMEM, E_IO. */
strata_status st_temp_dir_create(struct st_temp_dir *d);
/** Remove the files in it, which may be open, and the directory; what cannot be removed is named in a warning.  Does nothing
 * without one. */
void st_temp_dir_remove(struct st_temp_dir *d);

#endif
