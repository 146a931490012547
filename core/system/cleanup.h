/* core/system/cleanup.h - a process that is ended at once by a signal leaves nothing on disk.
 *
 * Code that makes or removes a name on disk does so between hold and release, and lists the name there: the thread that ends the
 * process then finds every name listed, and none is made after it has looked.  Several files that belong together take their
 * names within one hold.  Holds nest.
 *
 * The list has a lock besides, st_cleanup_lock(), as a holder whose file system hangs is not waited for: what `remove` reads
 * changes, and descriptors close, under that lock or after st_cleanup_drop().  Order: hold, then lock.  `remove` takes neither.
 */
#ifndef CORE_SYSTEM_CLEANUP_H
#define CORE_SYSTEM_CLEANUP_H

#include <sys/types.h>

/* An entry of the list, part of its owner; must not move while it is listed. */
struct st_cleanup {
    void (*remove)(void *owner); /* removes the names of `owner`, which stays as it is */
    void *owner;
    pid_t pid; /* that listed it: in a child of fork() it is the parent's, and stays */
    struct st_cleanup *next;
};

void st_cleanup_hold(void);
void st_cleanup_release(void);
void st_cleanup_lock(void);
void st_cleanup_unlock(void);

/** List what goes if a signal ends the process. */
void st_cleanup_add(struct st_cleanup *c, void (*remove)(void *owner), void *owner);
/** Take it off the list; does nothing if it is not there. */
void st_cleanup_drop(const struct st_cleanup *c);
/** The last entry that was added; the caller has the lock. */
struct st_cleanup *st_cleanup_last(void);

/** Keep every other thread from holding from now on; the caller calls st_cleanup_run() and ends the process.  Waits a few
 *  seconds at most for the current holder: a file system that hangs must not keep the process alive. */
void st_cleanup_begin(void);
/** Remove the names of all entries of this process; what was listed last goes first, as it may lie in what was made before. */
void st_cleanup_run(void);

#endif
