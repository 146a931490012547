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

/** Find out whether there is room for what is to be copied of a part, and as much of each other part that has not been copied
 * yet.
 *  @param m     of the part, with its files
 *  @param save  the directory of checkpoints
 *  @param dir   the one that is being made
 *  @return E_NOSPC, E_IO */
strata_status st_commit_check_room(const struct st_manifest *m, const char *save, const char *dir, uint64_t bytes,
                                   uint32_t parts);

/* A range of a checkpoint's parts: `count` of `all`, from `first` on. */
struct st_commit_parts {
    uint32_t all, first, count;
};
/** Say what the files of planes are: one of each space that has bytes, in each directory, of each of these parts.  E_NOMEM. */
strata_status st_commit_name_files(struct st_manifest *m, const struct st_stripe *stripe, const struct st_commit_parts *parts);
/** Name of the file of a part's space in a directory, of this index in the part's stripe; f->space is given. */
void st_commit_name_file(struct st_manifest_file *f, const struct st_commit_parts *parts, uint32_t part, uint32_t dir);
/** Name of the file of a part's rows, which goes when they are joined. */
void st_commit_rows_name(char name[32], uint32_t part);
/** Write rows and sums into a file that is not there. */
strata_status st_commit_write_rows(const char *path, const struct st_extents *e, uint64_t *bytes, char digest[ST_DIGEST_TEXT]);

/* The files of a base that the run has taken from a checkpoint: held open, so that they are there whatever becomes of that. */
struct st_commit_base {
    int fds[ST_STRIPE_DIRS_MAX]; /* [count] owned */
    uint32_t count;              /* 0: the base is the run's own */
    bool copied;                 /* a file could not be linked */
    uint64_t nameless_bytes;     /* of those of the checkpoint being made that have no name any more */
};
/** Hold these files instead of those before; [count] open, borrowed during the call.  E_IO, and then none is held. */
strata_status st_commit_base_take(struct st_commit_base *b, const struct st_volume_file *files, uint32_t count);
void st_commit_base_drop(struct st_commit_base *b);
/** Give the file of f->dir the name f->name in a checkpoint's directory.  *crossed: it cannot be linked there, or has no name
 *  any more: it is to be copied. */
strata_status st_commit_base_link(struct st_commit_base *b, const struct st_manifest_file *f, int dir_fd, bool *crossed);
/** Copy it to a new file. */
strata_status st_commit_base_copy(const struct st_commit_base *b, const struct st_manifest_file *f, const char *to);
/** After a checkpoint got its name: hold its files where some are copies, which can be linked the next time. */
void st_commit_base_follow(struct st_commit_base *b, const char *checkpoint, const struct st_commit_parts *part);

/** Write the model's small files into the run's own directory: from then on those are what goes into model/.
 *  @param model  NULL: there are none
 *  @return what model() returned, and then none are kept; E_IO, E_NOSPC */
strata_status st_commit_keep_model(const struct st_store *store, st_commit_model_fn *model, void *ctx);
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
