/* offload/comm/comm.h - ranks that exchange bytes: the third table of functions (docs/design.md, 5).
 *
 * A world is `ranks` processes (or, in tests, threads) that run one program.  Communication moves bytes and never adds: every sum
 * is the caller's, so that its bits depend on no library, topology or algorithm.  All that the program needs is one collective,
 * exchange(); gather, agree and barrier are made of it.
 *
 *     struct st_comm_peer peers[2] = {0};                                  rank 0 of 2 sends a page and receives one
 *     peers[1] = (struct st_comm_peer){.send = &mine, .send_count = 1, .recv = &theirs, .recv_count = 1};
 *     st = st_comm_exchange(comm, peers, "gather_weight of page 7");
 *
 * Every rank makes the same calls in the same order, each comm's on one thread at a time; only abort comes from any thread. There
 * is no comm of one rank: where a comm is asked for, NULL is a world of one.
 *
 * A child of fork() shares its parent's connections and has none of its threads: there an exchange is refused, and abort and
 * close do nothing. */
#ifndef OFFLOAD_COMM_COMM_H
#define OFFLOAD_COMM_COMM_H

#include "strata/status.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define ST_COMM_RANKS_MAX    1024u
#define ST_COMM_REASON_BYTES 512u
#define ST_COMM_DEADLINE_NS  UINT64_C(300000000000) /* where no setting says another */

/* Who this process is.  Local: among the processes of its node. */
struct st_world {
    uint32_t rank, ranks, local_rank, local_ranks;
};

struct st_comm_part {
    void *data; /* of a part that is sent: not written */
    uint64_t bytes;
};

/* What goes between this rank and one other.  The parts of each direction, one behind the other, are a stream of bytes; both
 * sides give the same number of bytes in all, cut as they like.  Parts may be empty, and so may either direction. */
struct st_comm_peer {
    const struct st_comm_part *send, *recv;
    uint32_t send_count, recv_count;
};

struct st_comm;

/* One way to move the bytes.  Callers use the functions below, which keep what follows from a failure in one place. */
struct st_comm_ops {
    const char *name; /* "threads", "paced", "tcp", "mpi", "nccl" */
    bool on_device;   /* parts lie in the memory of a device that is not the host (nccl), and both sides cut them alike */
    /* See st_comm_exchange().  Not called again after a failure, which st_comm_exchange() tells the other
     * ranks by abort(). */
    strata_status (*exchange)(struct st_comm *comm, const struct st_comm_peer *peers, const char *what);
    /* Any thread, at most once, and not once close() has begun: a call under way, and later ones, fail here soon; on the other
     * ranks too, with this sentence and comm->status as far as they can be told.  Must not wait for a peer. */
    void (*abort)(struct st_comm *comm, const char *sentence);
    /* With no call under way.  Ends with st_comm_fini() and frees the comm. */
    void (*close)(struct st_comm *comm);
};

/* The head of every implementation's own struct. */
struct st_comm {
    const struct st_comm_ops *ops;
    struct st_world world;
    uint64_t deadline_ns; /* how long a rank that waits hears nothing before it gives up; never 0 */
    /* internal: st_comm_init() */
    pid_t pid;            /* of the process that is the rank */
    pthread_mutex_t lock; /* guards reason */
    atomic_bool failed;   /* set with the lock held; then reason says why, and neither it nor status changes */
    strata_status status; /* of the reason: st_comm_verdict() */
    char reason[ST_COMM_REASON_BYTES];
    struct st_comm_peer *gather_peers; /* [ranks] */
    struct st_comm_part *gather_parts; /* [ranks] */
    /* set by who has opened it */
    const char *doubt; /* what a difference among the ranks may be beside a mistake, for sentences; static; NULL: nothing else */
};

/** Whether this process is a child of the rank's. */
bool st_comm_is_parents(const struct st_comm *comm);

/** Collective: returns when all that this rank receives has arrived, and all that it sends may be changed.
 *  @param peers  [ranks]; the own one is empty.  Borrowed, with their parts, until it returns.
 *  @param what   for sentences: "gather_weight of page 7"; the same on every rank
 *  E_IO, naming rank and what: a peer is gone, failed or was aborted, disagrees in sizes or in what, or nothing was heard of it
 * for deadline_ns.  E_INVAL: another process is the rank; nothing has failed for that one.  E_INVAL, E_CONFIG, E_INPUT,
 * E_NUMERICS: a peer gave up with that.  After an error the comm is good only for abort and close: later calls fail with the
 * same sentence. Cost: nothing is allocated. */
strata_status st_comm_exchange(struct st_comm *comm, const struct st_comm_peer *peers, const char *what);

/** Any thread: this rank gives up, for the reason that the sentence says; calls under way fail here, and on the other ranks with
 * this sentence as far as it can be told.  The first reason stays.  NULL: does nothing. */
void st_comm_abort(struct st_comm *comm, const char *sentence);

/** The same with the status of what made this rank give up.  Where that is a verdict which every rank that comes so far finds too
 * (E_INVAL, E_CONFIG, E_INPUT: what the user gave; E_NUMERICS: what all have computed), the others' calls fail with it, so that
 * all ranks of a run end alike, whichever was first.  All else is a failure of one rank, and E_IO on the others. */
void st_comm_abort_as(struct st_comm *comm, strata_status st, const char *sentence);

/** What a status of one rank is on the others: see st_comm_abort_as(). */
strata_status st_comm_verdict(strata_status st);

/** No call may be under way.  Peers that still exchange see a rank that is gone.  NULL: does nothing. */
void st_comm_close(struct st_comm *comm);

/** Everybody's `bytes` bytes, in rank order.  @param all  [ranks][bytes], out; `mine` may be its own place in it.
 *  As st_comm_exchange(), of host memory; a comm on a device is refused by assertion. */
strata_status st_comm_gather(struct st_comm *comm, const void *mine, uint64_t bytes, void *all, const char *what);

/** Returns when every rank has called it. */
strata_status st_comm_barrier(struct st_comm *comm, const char *what);

/* Something that all ranks must have alike: a hash, a version, a number of a plan. */
struct st_comm_fact {
    const char *name; /* for sentences: "version", "zero_optimization.stage" */
    const char *text; /* NULL: `number` is the value */
    uint64_t number;
    strata_status status; /* what a difference is; OK: E_CONFIG */
};

/** Compares the facts of all ranks; every rank gets the same answer.
 *  The first fact's status: it differs; the sentence names it, two ranks, and what both have.  E_CONFIG: other facts altogether
 * (another version of the program).  Otherwise as st_comm_exchange(), or E_NOMEM. */
strata_status st_comm_agree(struct st_comm *comm, const struct st_comm_fact *facts, uint32_t count, const char *what);

/** Ranks in one process, for tests: each comm belongs to one thread; memory is copied straight from one rank's parts to
 *  another's.  @param out  [ranks], 2 or more; each is closed by itself.  E_NOMEM. */
strata_status st_comm_threads_open(struct st_comm **out, uint32_t ranks, uint64_t deadline_ns);

/* Links that are not present. */
struct st_comm_pace {
    double rate;    /* bytes per second that a rank receives, more than 0 */
    double latency; /* seconds of an exchange beside its bytes */
};

/** Another comm's exchanges, of ranks of one machine, never faster than a pace: for rehearsals, beside the paced device.
 *  @param under  taken: closed with this one; on failure still the caller's.  E_NOMEM. */
strata_status st_comm_paced_open(struct st_comm **out, struct st_comm *under, const struct st_comm_pace *pace);

struct st_comm_tcp_opts {
    struct st_world world;
    const char *address; /* of rank 0: name or number, IPv4 or IPv6; borrowed during the call */
    uint16_t port;       /* the launcher's; comm_tcp.c says which port is used beside it */
    uint64_t deadline_ns;
    const atomic_bool *cancelled; /* another thread sets it when nobody wants to wait any more; NULL: nobody */
    bool sockets_only;            /* for tests and benches: no shared memory, also where ranks are on one node */
};

/** Ranks in processes, over sockets, and over shared memory between those of one node.  Returns when all have met: a rank that
 * comes late is waited for until the deadline. E_CANCELLED; E_IO: not all came, or a connection failed; E_CONFIG: another
 * version, another world, a rank twice, another rank 0 of the same port; E_INPUT: no such address. */
strata_status st_comm_tcp_open(struct st_comm **out, const struct st_comm_tcp_opts *opts);

#endif
