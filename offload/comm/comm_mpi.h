/* offload/comm/comm_mpi.h - ranks that mpirun or srun has started, by MPI. */
#ifndef OFFLOAD_COMM_COMM_MPI_H
#define OFFLOAD_COMM_COMM_MPI_H

#include "offload/comm/comm.h"
#include "offload/comm/mpi_plugin.h"

/** Opens strata_mpi.so (STRATA_MPI's, or the one installed with the program) and joins the ranks that MPI knows.
 *
 *  @param out          the comm; its world is MPI's.  NULL: MPI knows only one rank, and has been ended again
 *  @param deadline_ns  of each exchange: how long nothing may arrive or leave
 *  @return E_NOSYS: no plugin, one of another version of this program, or an MPI that several threads may not call in turn; the
 *          sentence has what was tried.  E_IO: MPI does not start.  E_NOMEM
 *
 *  abort() sends the sentence to the other ranks; only if MPI itself does not return does it end them all, by MPI_Abort, after
 * the sentence was logged.  close() waits until all ranks close, without a limit, and ends MPI, if this has started it; after a
 *  failure it does not: the launcher sees a process end without MPI's end, and ends the others.
 *  To start MPI has no deadline of ours: the launcher watches over processes that do not come.
 *  Thread: opened and closed by the same one, which MPI wants to be the main thread. */
strata_status st_comm_mpi_open(struct st_comm **out, uint64_t deadline_ns);

/** The same over a given plugin; borrowed.  Tests have one that is memory. */
strata_status st_comm_mpi_open_over(struct st_comm **out, const struct st_mpi_plugin *plugin, uint64_t deadline_ns);

#endif
