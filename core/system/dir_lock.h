/* core/system/dir_lock.h - one writer of a directory at a time.
 *
 * Locks on new files (core/system/file.h) keep two writers of one name apart.  Files that belong together, such as a model's,
 * need more: two writers with different names would leave a directory that is neither's.  The lock (flock) is on the directory
 * itself, under any spelling or link, and ends with the process.  On a file system that locks no directories, writers are not
 * kept apart.
 *
 * A child of fork() has the descriptor, too: it neither ends its parent's lock, nor does the lock last as long as it has that
 * open.
 */
#ifndef CORE_SYSTEM_DIR_LOCK_H
#define CORE_SYSTEM_DIR_LOCK_H

#include "strata/status.h"
#include <sys/types.h>

struct st_dir_lock {
    int fd;    /* -1: none */
    pid_t pid; /* that has taken it */
};
#define ST_DIR_LOCK_NONE ((struct st_dir_lock){.fd = -1})

/** Lock a directory that is there, for this process, until st_dir_unlock().
 *  @param lock  out; ST_DIR_LOCK_NONE on failure
 *  @return E_INPUT: another writer, of this process or another one, has it; or it cannot be read; E_IO */
strata_status st_dir_lock(struct st_dir_lock *lock, const char *dir);
/** ST_DIR_LOCK_NONE is fine; *lock is that then. */
void st_dir_unlock(struct st_dir_lock *lock);

#endif
