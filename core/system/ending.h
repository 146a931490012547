/* core/system/ending.h - a process that a signal ends at once leaves nothing on disk.
 *
 * What makes or removes a name on disk does so between hold and release, and notes the name within: then whoever ends the process
 * finds all names noted, and none is made after it has looked.  Several files that belong together take their names within one
 * hold.  It nests; it is not to be held while another lock is held that removing the names takes. */
#ifndef CORE_SYSTEM_ENDING_H
#define CORE_SYSTEM_ENDING_H

void st_ending_hold(void);
void st_ending_release(void);

/** Let nobody hold from now on; the caller removes what is noted and ends the process.  Waits for who holds, at most some
 *  seconds: a file system that hangs does not keep the process. */
void st_ending_begin(void);

#endif
