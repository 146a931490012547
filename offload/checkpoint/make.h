/* offload/checkpoint/make.h - makes a checkpoint of values that a caller has: no engine, no swap, 16 MiB of memory and the sums.
 *
 * Every plane of a group is one row, in set.0 or base.0, which any plan's run reads.  The checkpoint is there whole or not at
 * all, as a run's. */
#ifndef OFFLOAD_CHECKPOINT_MAKE_H
#define OFFLOAD_CHECKPOINT_MAKE_H

#include "offload/checkpoint/commit.h"

struct st_make_opts {
    const char *save; /* directory of checkpoints */
    const char *key;  /* that names it: "import.out" */
    bool overwrite;   /* a checkpoint that has the name is replaced */
    /* Gives elements [first, first + count) of a page, in page layout: of the weights, at full precision (ST_PLANE_WEIGHT), or of
     * a moment. */
    strata_status (*read)(void *ctx, enum st_plane plane, uint32_t page, uint64_t first, uint64_t count, float *out);
    st_commit_model_fn *model;                            /* NULL: there are no small files */
    strata_status (*progress)(void *ctx, uint64_t elems); /* `elems` more are written; NULL: nobody asks */
    void *ctx;                                            /* of all three */
};

/** Make the checkpoint of a manifest, of which the stripe, files, spaces and extents are filled in here; of a rule with two
 * moments or none that is trained.  Moments in 16 or 8 bits are rounded stochastically, as an update rounds them.
 *  @param path  out: the checkpoint
 *  @return what a callback returned; E_INPUT: the name is taken, there are checkpoints of later steps, both before anything is
 *          read, or a live run saves there;
 *          E_NOFIT: no room; E_NOSPC, E_IO, E_NOMEM */
strata_status st_checkpoint_make(char path[ST_PATH_MAX], struct st_manifest *m, const struct st_make_opts *opts);

#endif
