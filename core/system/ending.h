/* core/system/ending.h - a process that is ended at once by a signal leaves nothing on disk.
 *
 * Code that makes or removes a name on disk does so between hold and release, and records the name there: the thread that ends
 * the process then finds every name recorded, and none is made after it has looked.  Several files that belong together take
 * their names within one hold.  Holds nest.  Do not hold it together with a lock that removing the names also takes. */
#ifndef CORE_SYSTEM_ENDING_H
#define CORE_SYSTEM_ENDING_H

void st_ending_hold(void);
void st_ending_release(void);

/** Keep every other thread from holding from now on; the caller removes the recorded names and ends the process.  Waits a few
 *  seconds at most for the current holder: a file system that hangs must not keep the process alive. */
void st_ending_begin(void);

#endif
