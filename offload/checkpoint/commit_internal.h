/* offload/checkpoint/commit_internal.h - the parts of the committing thread, and of whoever makes a checkpoint without a run. */
#ifndef OFFLOAD_CHECKPOINT_COMMIT_INTERNAL_H
#define OFFLOAD_CHECKPOINT_COMMIT_INTERNAL_H

#include "nvme/mover/stripe.h"
#include "offload/checkpoint/commit.h"
#include "offload/checkpoint/store.h"
#include "strata/status.h"

#include <stdint.h>

/** Copy `bytes` (a multiple of 4096) from an open file, which may be open for direct I/O, to a new file, and sync that.  Takes
 *  8 MiB, and leaves about as much in the page cache at a time.
 *  @param from  its name, for sentences */
strata_status st_commit_copy(const char *to, const char *from, int from_fd, uint64_t bytes);

/* Of a checkpoint's parts those that something is about. */
struct st_commit_parts {
    uint32_t all, first, count;
};
/** Say what the files of planes are: one of each space that has bytes, in each directory, of each of these parts.  E_NOMEM. */
strata_status st_commit_name_files(struct st_manifest *m, const struct st_stripe *stripe, const struct st_commit_parts *parts,
                                   const char *save);
/** Name of the file of a part's rows, which goes when they are joined. */
void st_commit_rows_name(char name[32], uint32_t part);
/** Write rows and sums into a file that is not there. */
strata_status st_commit_write_rows(const char *path, const struct st_extents *e, uint64_t *bytes, char digest[ST_DIGEST_TEXT]);

/** Write model/, extents.bin and, when all of the manifest is known, manifest.json into the checkpoint that the store has begun.
 *  @param model  NULL: there is no model/
 *  @return what model() returned; E_IO, E_NOSPC, E_NOMEM */
strata_status st_commit_write_small(const struct st_store *store, struct st_manifest *m, const struct st_extents *e,
                                    st_commit_model_fn *model, void *ctx);
/** The same with the parts' rows, which lie there, in the place of `e`; their files go.
 *  @param m  E_CORRUPT: they are not all its rows */
strata_status st_commit_join_small(const struct st_store *store, struct st_manifest *m, uint32_t parts, st_commit_model_fn *model,
                                   void *ctx);

#endif
