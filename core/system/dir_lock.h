/* core/system/dir_lock.h - one writer of a directory at a time.
 *
 * Locks on new files (core/system/file.h) keep two writers of one name apart.  Files that belong together, such as a model's,
 * need more: two writers with different names would leave a directory that is neither's.  The lock (flock) is on the directory
 * itself, under any spelling or link, and ends with the process.  On a file system that locks no directories, writers are not
 * kept apart.
 */
#ifndef CORE_SYSTEM_DIR_LOCK_H
#define CORE_SYSTEM_DIR_LOCK_H

#include "strata/status.h"

/** Lock a directory that is there, for this process and for as long as *fd is open.
 *  @param fd  out: for st_dir_unlock(); -1 on failure
 *  @return E_INPUT: another writer, of this process or another one, has it; or it cannot be read; E_IO */
strata_status st_dir_lock(int *fd, const char *dir);
/** -1 is fine; *fd is -1 then. */
void st_dir_unlock(int *fd);

#endif
