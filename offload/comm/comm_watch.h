/* offload/comm/comm_watch.h - sees the processes of other ranks on this machine end.
 *
 * MPI does not tell that a peer is gone: who waits for it waits until the launcher kills it as well, and leaves its swap files.
 */
#ifndef OFFLOAD_COMM_COMM_WATCH_H
#define OFFLOAD_COMM_COMM_WATCH_H

#include "offload/comm/comm.h"
#include <sys/types.h>

struct st_comm_watch;

/** From here on a rank whose process ends aborts the comm, with a sentence that names it.  Ranks that the kernel does not let
 * this process watch are not watched.
 *  @param comm  borrowed until close
 *  @param pids  [ranks] processes; 0: not on this machine.  The own one is not watched
 *  E_NOMEM, E_IO: no thread, or no descriptor for it */
strata_status st_comm_watch_open(struct st_comm_watch **out, struct st_comm *comm, const pid_t *pids);
/** Before any rank ends as it should.  NULL: does nothing. */
void st_comm_watch_close(struct st_comm_watch *w);

#endif
