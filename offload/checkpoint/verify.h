/* offload/checkpoint/verify.h - what reads all of a checkpoint: every tile's checksum, and the digests of `strata train
 * --digest`. */
#ifndef OFFLOAD_CHECKPOINT_VERIFY_H
#define OFFLOAD_CHECKPOINT_VERIFY_H

#include "offload/checkpoint/reader.h"

/* False: end early, with E_CANCELLED.  Bytes. */
typedef bool st_verify_progress_fn(void *ctx, uint64_t done, uint64_t total);

/** Bytes of all planes, and tiles: what a verification reads. */
void st_verify_amount(const struct st_checkpoint *ck, uint64_t *bytes, uint64_t *tiles);
/** Compare every tile with its sum, in the order in which they lie on the disk.
 *  @param damaged  called for each tile, or run of tiles that could not be read; may be NULL
 *  @param damages  out: how many calls
 *  @return E_CORRUPT: there was one; E_CANCELLED; E_NOMEM, E_IO: nothing could be read */
strata_status st_verify(const struct st_checkpoint *ck, st_verify_progress_fn *progress,
                        void (*damaged)(void *ctx, const struct st_damage *damage), void *ctx, uint64_t *damages);
/** The digests of weights and of state that the run itself would print, st_engine_digest()'s: 32 hex digits each.
 *  E_CORRUPT: a tile is damaged; E_CANCELLED, E_NOMEM, E_IO */
strata_status st_verify_digest(const struct st_checkpoint *ck, st_verify_progress_fn *progress, void *ctx,
                               char weights[ST_DIGEST_TEXT], char state[ST_DIGEST_TEXT]);

#endif
