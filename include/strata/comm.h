/* strata/comm.h - several processes that train one model: the ranks of a run.
 *
 *     struct strata_comm_opts who = STRATA_COMM_OPTS_INIT;
 *
 *     strata_comm_find(&who, NULL);                       what torchrun, mpirun, srun ... say in the environment
 *     config_opts.ranks = who.ranks;                      strata_config_open(): batches count all ranks
 *     strata_comm_open(&comm, &who);                      waits until all ranks are there
 *     model_opts.comm = comm;                             strata_model_open(): plans and engines of the model know their rank
 *
 * From there on every rank makes the same calls in the same order: a call that plans, creates, loads, steps, evaluates, saves,
 * resumes, digests or exports is one of all ranks, and returns when it has the others' part.  A rank whose call fails says so by
 * strata_comm_abort_as(), or ends; then the others' calls fail with a sentence that names it, and with STRATA_E_IO, or with its
 * status where that is one which all ranks would have found.  One process alone needs none of this: `comm` NULL is a run of one
 * rank, and the same program works for both, since strata_comm_open() of one rank gives a handle that asks nobody.
 *
 * A child of fork() is no rank: a call that would ask the other ranks, by its parent's comm or by a model of it, returns
 * STRATA_E_INVAL there, and strata_comm_abort(), _abort_as() and _close() do nothing.
 *
 * docs/ranks.md is the guide. */
#ifndef STRATA_COMM_H
#define STRATA_COMM_H

#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

struct strata_config;
struct strata_comm; /**< this rank's end of what connects them */

/** Who this process is, and where the ranks meet.  Begin with STRATA_COMM_OPTS_INIT. */
struct strata_comm_opts {
    size_t opts_size;     /**< sizeof(struct strata_comm_opts) */
    uint32_t rank, ranks; /**< number of this process, from 0, and of all in the run, at most 1024; ranks 0: not known */
    /** The same among the processes of this machine; local_ranks 0: not known, and found when they meet. */
    uint32_t local_rank, local_ranks;
    char address[256];                  /**< name or number of rank 0's machine; "": not known */
    uint32_t port;                      /**< a port there; 0: 29500.  Ports beside it may be used, too */
    bool mpi;                           /**< an MPI launcher has started the process */
    const char *kind;                   /**< "tcp", "mpi"; NULL or "auto": mpi if `mpi` is set and its plugin opens, else tcp */
    uint32_t deadline_seconds;          /**< how long a rank waits for another that is silent; 0: `config` says */
    const struct strata_config *config; /**< its strata.comm_deadline; borrowed while the ranks meet; NULL: 300 seconds */
    const char *source;                 /**< who said so, for people: "torchrun"; static; NULL: nobody */
};
#define STRATA_COMM_OPTS_INIT STRATA_INIT(strata_comm_opts, opts_size)

/**
 * Fill in what is not known yet from the variables that launchers set: torch's (torchrun, accelerate launch, deepspeed),
 * OpenMPI's, PMI's and Slurm's; strata_comm_variable() lists them.  If none is set, this is rank 0 of one.
 *
 * @param opts       what is known, in and out
 * @param variables  "NAME=value", ended by NULL; borrowed; NULL: the process's environment
 *
 * @return STRATA_E_INVAL  opts is NULL, opts_size is another one, two sources disagree, or a number is out of its range: the
 *                         sentence names the variables
 */
STRATA_API strata_status strata_comm_find(struct strata_comm_opts *opts, const char *const *variables);

/** Name of variable `index`, from 0, that strata_comm_find() reads; NULL past the last.  Static. */
STRATA_API const char *strata_comm_variable(uint32_t index);

/**
 * Meet the other ranks: returns when all of them have called it.
 *
 * @param comm  out, returned: closed by strata_comm_close()
 * @param opts  copied
 *
 * @return STRATA_E_INVAL  an argument is NULL or out of range, there is no such kind, or opts_size is another one
 *         STRATA_E_IO     not all ranks came before the deadline, or a connection failed; the sentence says who is missing
 *         STRATA_E_CONFIG another rank says something else of the run, or is of another version; of rank 0: another rank 0 of the
 *                         same port waits on this machine
 *         STRATA_E_INPUT  there is no such address
 *         STRATA_E_NOSYS  kind "mpi", and no MPI; the sentence says what was tried
 *         STRATA_E_NOMEM
 *
 * Thread  with kind "mpi" the main thread, like strata_comm_close().
 */
STRATA_API strata_status strata_comm_open(struct strata_comm **comm, const struct strata_comm_opts *opts);

/** Facts about the ranks.  Texts are borrowed until the comm is closed. */
struct strata_comm_info {
    size_t info_size; /**< sizeof(struct strata_comm_info), set by the caller */
    uint32_t rank, ranks, local_rank, local_ranks;
    const char *kind;   /**< "tcp", "mpi"; of one rank "none" */
    const char *source; /**< as in the options; "" for NULL */
};
#define STRATA_COMM_INFO_INIT STRATA_INIT(strata_comm_info, info_size)

/** Fill `info`.
 *
 *  @return STRATA_E_INVAL  an argument is NULL, or info_size is another one */
STRATA_API strata_status strata_comm_get_info(const struct strata_comm *comm, struct strata_comm_info *info);

/**
 * Get the same number of bytes from every rank, in rank order.  Not during a call on an engine.
 *
 * @param mine   [bytes] this rank's
 * @param bytes  the same on every rank, 1 or more
 * @param all    [ranks][bytes], out
 * @param what   for sentences, such as "progress"; the same on every rank
 *
 * @return STRATA_E_INVAL  an argument is NULL or 0
 *         STRATA_E_IO     a rank is gone, failed, or silent past the deadline; the sentence names it.  Nothing else works then
 */
STRATA_API strata_status strata_comm_gather(struct strata_comm *comm, const void *mine, size_t bytes, void *all,
                                            const char *what);

/**
 * Check that all ranks have the same texts.
 *
 * @param names  [count] what they are, for sentences: the same on every rank
 * @param texts  [count]
 *
 * @return STRATA_E_CONFIG  one differs: the sentence names it, two ranks, and what they have
 *         STRATA_E_INVAL   an argument is NULL
 *         STRATA_E_IO      as strata_comm_gather()
 *         STRATA_E_NOMEM
 */
STRATA_API strata_status strata_comm_agree(struct strata_comm *comm, const char *const *names, const char *const *texts,
                                           uint32_t count);

/**
 * Run `work` on rank 0, then on the first rank of each other machine, then on all others, so that ranks which share files find
 * what is there already.  Those who wait do so as long as it takes.  Not during a call on an engine.
 *
 * @param comm  NULL, or of one rank: `work` is run at once
 * @param work  called once at most, on the calling thread; other ranks have not run it when one has failed before
 * @param what  for sentences; the same on every rank
 *
 * @return STRATA_E_INVAL  work or what is NULL
 *         the status of this rank's work; where that of another has failed, the same verdict as strata_comm_abort_as() gives
 *         STRATA_E_IO     as strata_comm_gather()
 */
STRATA_API strata_status strata_comm_take_turns(struct strata_comm *comm, strata_status (*work)(void *ctx), void *ctx,
                                                const char *what);

/** Tell the other ranks that this one ends, and why: their calls fail with this sentence, as far as it reaches them.  Any thread;
 *  the first sentence stays.  NULL is fine. */
STRATA_API void strata_comm_abort(struct strata_comm *comm, const char *sentence);

/** The same, with the status of what ends this rank.  STRATA_E_INVAL, STRATA_E_CONFIG, STRATA_E_INPUT and STRATA_E_NUMERICS are
 *  verdicts that other ranks find too if they come so far: the others' calls fail with the same status, so that all ranks end
 *  alike.  With any other status they fail with STRATA_E_IO. */
STRATA_API void strata_comm_abort_as(struct strata_comm *comm, strata_status st, const char *sentence);

/** Close.  Models that were opened with it must be gone, with their plans and engines.  NULL is fine. */
STRATA_API void strata_comm_close(struct strata_comm *comm);

#ifdef __cplusplus
}
#endif
#endif
