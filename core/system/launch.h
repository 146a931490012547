/* core/system/launch.h - which of several processes this one is: what launchers say in variables, and the command line in
 * options.
 *
 * Each process of a run is a rank.  Sources, the first that says anything counts: the caller (options of the command line),
 * torch's variables (torchrun, accelerate launch, deepspeed), OpenMPI's, PMI's (MPICH, Intel MPI), Slurm's.  Others that say
 * something else are a mistake that would make a run of other ranks than its user believes, and are refused; but a launcher that
 * another one has started is not asked: torchrun's agents under mpirun or srun, and anything within an allocation of Slurm. */
#ifndef CORE_SYSTEM_LAUNCH_H
#define CORE_SYSTEM_LAUNCH_H

#include "strata/status.h"
#include <stdbool.h>
#include <stdint.h>

#define ST_LAUNCH_RANKS_MAX   1024u
#define ST_LAUNCH_ADDRESS_MAX 256
#define ST_LAUNCH_NONE        UINT32_MAX

struct st_launch {
    uint32_t rank, ranks;                /* NONE: not given; after finding 0 of 1, if nothing is */
    uint32_t local_rank, local_ranks;    /* among those of this machine; NONE: not given */
    char address[ST_LAUNCH_ADDRESS_MAX]; /* of rank 0's machine; "": not known */
    uint32_t port;                       /* there */
    bool mpi;                            /* an MPI launcher started the process, so MPI knows the ranks */
    const char *source;                  /* "torchrun", "mpirun", ...; static; NULL: nothing has started several */
};
#define ST_LAUNCH_UNKNOWN                                                                                                        \
    ((struct st_launch){                                                                                                         \
        .rank = ST_LAUNCH_NONE, .ranks = ST_LAUNCH_NONE, .local_rank = ST_LAUNCH_NONE, .local_ranks = ST_LAUNCH_NONE})

/** Find what is not given yet.
 *
 *  @param launch     in: what the caller knows, which comes before all variables; begin with ST_LAUNCH_UNKNOWN.  Out: complete,
 * but for local_rank, local_ranks and address, which nobody may have said
 *  @param variables  "NAME=value", ended by NULL, such as environ; borrowed
 *
 *  @return E_INVAL: two sources disagree, a rank is given without a number of ranks or the other way round, or a value is no
 * number or out of its range; the sentence names variables and values */
strata_status st_launch_find(struct st_launch *launch, const char *const *variables);

/** Which every process of `accelerate launch` has: the precision. */
#define ST_LAUNCH_ACCELERATE "ACCELERATE_MIXED_PRECISION"

/** Whether `accelerate launch` has started the process, be it alone. */
bool st_launch_by_accelerate(const char *const *variables);

/** Name of variable `index` of those that st_launch_find() reads, for help texts; NULL past the last. */
const char *st_launch_variable(uint32_t index);

/** Whether nobody says which run a process is of: no launcher that gives each of its own a port.  @param source  of st_launch; or
 *  NULL */
bool st_launch_by_hand(const char *source);

#endif
