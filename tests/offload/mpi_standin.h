/* tests/offload/mpi_standin.h - MPI's part of offload/comm/mpi_plugin.h in memory: ranks are comms of one process.
 *
 * Messages of up to 8 KiB leave at once, longer ones when they are received, as with any MPI; messages of one pair of ranks and
 * one tag arrive in order.  Nothing happens but in test(). */
#ifndef TESTS_OFFLOAD_MPI_STANDIN_H
#define TESTS_OFFLOAD_MPI_STANDIN_H

#include "offload/comm/mpi_plugin.h"

extern const struct st_mpi_plugin mpi_standin;

/** The next opens are of ranks 0, 1, 2 ... of a new world, `per_node` of them on a node. */
void mpi_standin_world(uint32_t ranks, uint32_t per_node);
/** What open() says of threads from now on; 1 at first. */
void mpi_standin_serialized(uint32_t serialized);
/** Whether the thread that opened the last rank had this signal blocked. */
int mpi_standin_blocked(int signal);
/** Calls of test() wait from now on (true), or go on.  The second returns when one waits. */
void mpi_standin_hang(int hangs);
void mpi_standin_await_hang(void);
/** How often all ranks were ended since mpi_standin_world(), and how many were closed whole. */
uint32_t mpi_standin_ended(void);
uint32_t mpi_standin_closed_whole(void);
/** Transfers of this many bytes or more have failed since (0: none do): MPI says so when they end. */
void mpi_standin_breaks(uint32_t bytes);

#endif
