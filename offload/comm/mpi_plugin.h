/* offload/comm/mpi_plugin.h - what the program and strata_mpi.so, the one file that is linked with MPI, have between them.
 *
 * The program opens the file when a run asks for MPI (mpi_find.c), so neither program nor library are linked with it, and the
 * file can be built again for another MPI.  Everything here is plain C: no type of MPI, and nothing of the program's.
 *
 * A call takes a slot, a number from 0 to `slots` - 1 that the caller chooses: at most one transfer uses it at a time.  Functions
 * return 0 or an error code of MPI, which error_text() explains.  One thread calls at a time, not always the same one; open() and
 * close() are one thread's. */
#ifndef OFFLOAD_COMM_MPI_PLUGIN_H
#define OFFLOAD_COMM_MPI_PLUGIN_H

#include <stdint.h>

#define ST_MPI_ABI        1u /* of what is below; program and file must have the same */
#define ST_MPI_SYMBOL     "strata_mpi"
#define ST_MPI_TEXT_BYTES 512u
#define ST_MPI_ANY_RANK   UINT32_MAX

struct st_mpi_world {
    uint32_t rank, ranks, local_rank, local_ranks;
    uint32_t serialized;             /* 1: several threads may call, one at a time; 0: this MPI allows it not */
    char library[ST_MPI_TEXT_BYTES]; /* what it says of itself, first line */
};

enum st_mpi_tag { ST_MPI_TAG_STREAM = 1, ST_MPI_TAG_WORD = 2 };

/* A transfer that has ended. */
struct st_mpi_done {
    uint32_t slot, bytes; /* bytes: that came; of a receive */
    int error;
};

struct st_mpi_plugin {
    uint32_t abi;   /* ST_MPI_ABI; the first member in every version */
    uint32_t bytes; /* of this struct */
    /* Starts MPI, unless the process has.  `slots` for each rank of the world. */
    int (*open)(void **mpi, uint32_t slots, struct st_mpi_world *out);
    int (*send)(void *mpi, uint32_t slot, const void *data, uint32_t bytes, uint32_t to, enum st_mpi_tag tag);
    int (*receive)(void *mpi, uint32_t slot, void *data, uint32_t bytes, uint32_t from, enum st_mpi_tag tag);
    /* A receive that nobody has answered ends; one that has begun goes on.  Either is told by test(). */
    int (*cancel)(void *mpi, uint32_t slot);
    /* What has ended since the last call, without waiting.  done: [slots of the world] */
    int (*test)(void *mpi, struct st_mpi_done *done, uint32_t *count);
    void (*error_text)(int error, char text[ST_MPI_TEXT_BYTES]);
    /* Ends all processes of the world, this one too. */
    void (*end)(void *mpi, int exit_code);
    /* With nothing under way.  whole: all ranks close, and MPI is ended if open() started it; otherwise nothing of MPI is called.
     */
    int (*close)(void *mpi, uint32_t whole);
};

#endif
