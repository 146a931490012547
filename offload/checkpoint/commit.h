/* offload/checkpoint/commit.h - the thread that makes a checkpoint of what a run has written, beside training.
 *
 * The engine hands over a set that nobody writes any more, its rows and sums, and the state beside it.  The thread syncs the
 * set's files through the mover, links them (what cannot be linked is copied, in bounded memory), writes extents.bin,
 * manifest.json and the model's small files, gives all of it its name, and removes the run's oldest.  What fails leaves
 * everything before as it was: training goes on, and says it. */
#ifndef OFFLOAD_CHECKPOINT_COMMIT_H
#define OFFLOAD_CHECKPOINT_COMMIT_H

#include "core/base/error.h"
#include "nvme/swap/swap.h"
#include "offload/checkpoint/extents.h"
#include "offload/checkpoint/manifest.h"
#include "strata/status.h"

/* Writes config.json and the like into the directory `dir`, with st_new_file_*. */
typedef strata_status st_commit_model_fn(void *ctx, const char *dir);

struct st_committer_opts {
    const char *save;          /* directory; copied */
    uint32_t keep;             /* checkpoints of this run that stay, the newest, 1 or more */
    uint32_t keep_best;        /* and those of the lowest scores */
    bool overwrite;            /* a checkpoint that has the name is replaced */
    struct st_swap *swap;      /* borrowed until stop; not fake */
    st_commit_model_fn *model; /* called on the thread; NULL: there are no such files */
    void *ctx;
    uint32_t parts, part; /* of a checkpoint that ranks make together, each its part; part 0 has the store.  0: alone */
    uint64_t report_ns;   /* st_committer_wait() says after so long, and every two of it, where the job is; 0: 30 s */
};

/* What a job does.  Of several parts each makes its own in the directory that part 0 has begun; when all are there, part 0 makes
 * the checkpoint of them. */
enum st_commit_what { ST_COMMIT_ALL, ST_COMMIT_PART, ST_COMMIT_JOIN };

/* One checkpoint. */
struct st_commit {
    enum st_commit_what what;
    /* Taken; its stripe, files and extents are filled in here, all else by the caller: for a part the step and space_bytes. */
    struct st_manifest manifest;
    struct st_extents extents; /* taken; of a join none */
    uint32_t set;              /* of the swap */
    char dir[ST_PATH_MAX];     /* of a part: what st_committer_begin() has said on part 0 */
};

struct st_commit_report {
    strata_status status;        /* OK: it is there, and durable */
    struct st_sentence sentence; /* of a failure */
    bool committed;              /* it is there, although something after that failed */
    uint64_t step;
    uint64_t linked_bytes, copied_bytes;
    double seconds;
};

struct st_committer;

/** Open the store (only part 0) and start the thread.  Errors of st_store_open(); E_NOMEM. */
strata_status st_committer_start(struct st_committer **out, const struct st_committer_opts *opts);
/** Write the model's small files now, into the run's own directory, from which all its checkpoints get theirs, whatever becomes
 * of their source.  Once, before the first job; nothing but on part 0.  Where somebody removes that directory, the files are
 * written for each checkpoint again.
 *  @return what model() returned; E_IO, E_NOSPC */
strata_status st_committer_keep_model(struct st_committer *c);
/** Take the base from these files of a checkpoint from now on, one for each directory of the swap; count 0: the swap's own.  They
 *  are held until stop, whatever becomes of the checkpoint.  Between jobs.
 *  @param files  borrowed during the call
 *  @return E_IO: no descriptor is left */
strata_status st_committer_use_base(struct st_committer *c, const struct st_volume_file *files, uint32_t count);
/** What the run that made this step's checkpoint had not come to if it was killed right after: `latest`, and removing those that
 *  are too old by now.  Nothing where it is not the newest there.  Between jobs.  @return the first failure */
strata_status st_committer_tidy(struct st_committer *c, const char *run, uint64_t step);
/** Part 0, between jobs: make the directory for the parts of a step's checkpoint.  As st_store_begin().
 *  @param dir  out: its path */
strata_status st_committer_begin(struct st_committer *c, uint64_t step, char dir[ST_PATH_MAX]);
/** How a checkpoint of several parts has ended, between jobs: part 0 removes what there is of one that failed; all link their
 *  base from one that is there, if they link it from a checkpoint at all. */
void st_committer_end(struct st_committer *c, uint64_t step, bool committed);
/** Hand over; does not wait.  OK: job's parts are taken, and the set and the base must not be written until it is reported.
 *  E_BUSY: the one before is not reported yet; the job stays the caller's. */
strata_status st_committer_submit(struct st_committer *c, struct st_commit *job);
/** True once for each job, when it has ended. */
bool st_committer_reported(struct st_committer *c, struct st_commit_report *out);
/** Wait until the job in progress has ended, if there is one.  Syncs end by the mover's deadline; for links, copies and small
 * files there is none, since a large copy takes its time, but warnings say what the job is at. */
void st_committer_wait(struct st_committer *c);
/** The same for at most so long. */
void st_committer_wait_for(struct st_committer *c, uint64_t ns);
/** Wait, end the thread, close the store.  NULL is fine. */
void st_committer_stop(struct st_committer *c);

#endif
