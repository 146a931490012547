/* offload/checkpoint/store.h - the directory that --save names: its checkpoints, and the one being made.
 *
 *     SAVE/step-00000100/          a checkpoint: it is there whole, or not at all
 *     SAVE/latest                  the name of the newest one, for people and scripts
 *     SAVE/.strata-save-<run>/     of a live run: step-..., which is being made, gone-..., which are being removed, and what a
 *                                  committer keeps there
 *
 * A checkpoint is made in the run's own directory, whose lock shows that the run is alive, and takes its name when all of it is
 * on the disk.  One that goes leaves its name first.  So at whatever instant a run dies, every name leads to a whole checkpoint,
 * and what else is left lies where the next run sweeps it.  One live run at a time saves into a directory.  Calls on one store
 * come from one thread; the listing functions from any. */
#ifndef OFFLOAD_CHECKPOINT_STORE_H
#define OFFLOAD_CHECKPOINT_STORE_H

#include "strata/status.h"

#include <stdbool.h>
#include <stdint.h>

#define ST_STORE_NAME_BYTES 32u
#define ST_STORE_LATEST     "latest"
#define ST_STORE_STEP_MOST  (UINT64_C(1) << 53)

/** "step-00000100". */
void st_store_name(char name[ST_STORE_NAME_BYTES], uint64_t step);
/** The step of such a name; false: it is none. */
bool st_store_step(const char *name, uint64_t *step);

/* Steps of which there is a checkpoint, whole or damaged; ascending. */
struct st_store_list {
    uint64_t *steps; /* [count], owned: free() */
    uint32_t count;
};
/** E_INPUT: no such directory; E_IO, E_NOMEM. */
strata_status st_store_list(struct st_store_list *out, const char *dir);
/** The same, and none of a directory that does not exist; *out is set on failure, too. */
strata_status st_store_list_there(struct st_store_list *out, const char *dir);
/** E_INPUT if the directory has a checkpoint of a step after `step`, unless `overwrite`: a run that begins there would come to
 *  its name.  A directory that does not exist has none. */
strata_status st_store_check_names(const char *dir, uint64_t step, bool overwrite);

struct st_store;

/** Begin to save into `dir`, which is made if it is missing; what dead runs left there is removed.
 *  E_INPUT: it cannot be one, or a live run saves into it; E_NOSPC, E_IO, E_NOMEM. */
strata_status st_store_open(struct st_store **out, const char *dir);
/** The same where another option than --save names the directory.  @param option  borrowed until it is closed */
strata_status st_store_open_for(struct st_store **out, const char *dir, const char *option);
/** Removes what is unfinished, and the directories that were made where they are empty.  NULL is fine. */
void st_store_close(struct st_store *s);

/** Make the directory of a new checkpoint; there must be no unfinished one.  Where SAVE or the run's directory in it was removed,
 *  it is made again.  E_NOSPC, E_IO; E_INPUT: as st_store_open(). */
strata_status st_store_begin(struct st_store *s, uint64_t step);
/** Its path, for files to be made in it; valid until commit or abort. */
const char *st_store_path(const struct st_store *s);
int st_store_dir_fd(const struct st_store *s);
/** The run's own directory, which somebody may have removed: its path, and out: its descriptor; valid until the next begin or
 *  close. */
const char *st_store_own(const struct st_store *s, int *dir_fd);
/** Give it its name, once all its files and directories but itself are synced.
 *  @param replace  a checkpoint that has the name goes, in one instant; else the name must be free
 *  @return E_INPUT: the name is taken; E_NOSPC, E_IO.  On failure it is unfinished still; but after a failed sync, which the
 *  sentence says, it has its name and a power cut may take it away again */
strata_status st_store_commit(struct st_store *s, bool replace);
/** Remove the unfinished one, if there is one. */
void st_store_abort(struct st_store *s);
/** Write the name of a step's checkpoint to SAVE/latest.  E_INPUT: something that is no file has that name; E_NOSPC, E_IO. */
strata_status st_store_set_latest(struct st_store *s, uint64_t step);

/* What a checkpoint is to the run that removes old ones. */
enum st_store_judgement {
    ST_STORE_FOREIGN, /* of another run, or it cannot be told: it stays */
    ST_STORE_DAMAGED, /* of this run */
    ST_STORE_WHOLE,   /* of this run */
};
/** @param score  out: of one that has one, the lower the better; NaN before the call */
typedef enum st_store_judgement st_store_judge_fn(void *ctx, const char *path, uint64_t step, double *score);

/** Remove checkpoints of this run up to step `newest`, which it has just made or resumed from.  The `keep` (1 or more) newest
 *  whole ones stay, and the `best` whole ones with the lowest scores (the oldest of equal ones).  Checkpoints of later steps
 *  are of an attempt that the run has left, or damaged: they neither count nor go.  @return the first failure; what can go goes
 */
strata_status st_store_prune(struct st_store *s, uint64_t newest, uint32_t keep, uint32_t best, st_store_judge_fn *judge,
                             void *ctx);

/** List what runs left in the directory: `seen` gets the path of each run's directory, and whether that run lives.
 *  @param sweep  remove those of dead runs instead
 *  @return how many were removed */
uint32_t st_store_leftovers(const char *dir, bool sweep, void (*seen)(void *ctx, const char *path, bool live), void *ctx);

#endif
