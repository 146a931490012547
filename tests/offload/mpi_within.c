/* mpi_within.c - a program under mpirun that has begun MPI itself: ranks come and go, and MPI stays its own. */
#include "core/base/error.h"
#include "offload/comm/comm_mpi.h"

#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static strata_status come_and_go(void)
{
    struct st_comm *comm;
    uint64_t mine, all[16] = {0};
    strata_status st = st_comm_mpi_open(&comm, 0);

    if (st != STRATA_OK || comm == NULL)
        return st;
    mine = comm->world.rank + 1;
    st = st_comm_gather(comm, &mine, sizeof(mine), all, "gather_weight of page 0");
    if (st == STRATA_OK && all[comm->world.ranks - 1] != comm->world.ranks)
        st = st_error(STRATA_E_CORRUPT, "the last rank's number is %llu", (unsigned long long)all[comm->world.ranks - 1]);
    st_comm_close(comm);
    return st;
}

int main(int argc, char **argv)
{
    int level, ended = 0, rank = -1;
    strata_status st = STRATA_OK;

    if (MPI_Init_thread(&argc, &argv, MPI_THREAD_SERIALIZED, &level) != MPI_SUCCESS)
        return 1;
    for (int turn = 0; turn < 2 && st == STRATA_OK; turn++)
        st = come_and_go();
    if (st != STRATA_OK)
        printf("told: %s\n", strata_last_error());
    (void)MPI_Finalized(&ended);
    if (ended)
        printf("MPI was ended\n");
    else if (MPI_Barrier(MPI_COMM_WORLD) == MPI_SUCCESS && MPI_Comm_rank(MPI_COMM_WORLD, &rank) == MPI_SUCCESS)
        printf("rank %d goes on\n", rank);
    return ended || rank < 0 || MPI_Finalize() != MPI_SUCCESS ? 1 : strata_status_exit_code(st);
}
