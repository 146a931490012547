/* strata/verify.h - whether checkpoints on disk are what was written: every checksum, digests, their weights as a directory, what
 * runs left behind (docs/checkpoints.md).
 *
 * A path names a checkpoint, or a directory of checkpoints: then the newest one that opens is taken. */
#ifndef STRATA_VERIFY_H
#define STRATA_VERIFY_H

#include "strata/engine.h"
#include "strata/model.h"
#include "strata/status.h"
#include "strata/types.h"
#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The checkpoint that is read.  Texts are borrowed during the call that gets it. */
struct strata_verify_info {
    const char *path;
    const char *model;   /**< a preset or a directory */
    const char *run;     /**< 16 hex digits; a resumed run keeps them */
    const char *version; /**< of the strata that wrote it */
    uint64_t step;       /**< updates that it has had */
    uint64_t bytes;      /**< of weights and state */
    uint64_t tiles;      /**< checksums of them */
};

/** A tile that is not what was written, or one or several that could not be read. */
struct strata_damage {
    const char *file;      /**< path */
    uint64_t offset;       /**< in it, bytes */
    const char *plane;     /**< "weight", "master", "moment1" or "moment2" */
    const char *tensor;    /**< the first one of which it has elements; "" if the checkpoint does not say */
    uint32_t page, group;  /**< where the elements lie: page of the model, group of the page, */
    uint64_t first, elems; /**< from the group's start */
    const char *why;       /**< a clause: "its checksum is wrong" */
};

/** Who is told of what.  Begin with STRATA_VERIFY_OPTS_INIT; all may be NULL, all are called on the caller's thread. */
struct strata_verify_opts {
    size_t opts_size; /**< sizeof(struct strata_verify_opts) */
    /** Of a directory: a newer checkpoint does not open; a sentence says why. */
    void (*skipped)(void *ctx, const char *path, const char *sentence);
    void (*opened)(void *ctx, const struct strata_verify_info *info);
    void (*damaged)(void *ctx, const struct strata_damage *damage);
    strata_progress_fn *progress; /**< bytes */
    void *ctx;                    /**< passed to all */
};
#define STRATA_VERIFY_OPTS_INIT STRATA_INIT(strata_verify_opts, opts_size)

/**
 * Read all of a checkpoint and compare every tile with its checksum.
 *
 * @param opts     NULL: nobody is told
 * @param damages  out, also with STRATA_E_CORRUPT: how many calls of `damaged` there were
 *
 * @return STRATA_E_CORRUPT    there is damage, or it does not open, or none of a directory does; the sentence names the file
 *         STRATA_E_INPUT      there is no checkpoint
 *         STRATA_E_CANCELLED  the progress function requested it
 *         STRATA_E_INVAL      an argument is NULL, or opts_size is another one
 *         STRATA_E_NOMEM, STRATA_E_IO
 *
 * Cost    reads strata_verify_info.bytes; about 40 MiB of memory, and 1/2000 of those bytes.
 * Thread  any.
 */
STRATA_API strata_status strata_verify(const char *path, const struct strata_verify_opts *opts, uint64_t *damages);

/**
 * The digests that the run would have printed at this step (strata_engine_digest()): 32 hex digits each.  Every tile is compared
 * with its checksum on the way.
 *
 * @return STRATA_E_CORRUPT  a tile is damaged; the sentence names it, `damaged` is not called.  Else as strata_verify()
 */
STRATA_API strata_status strata_verify_digest(const char *path, const struct strata_verify_opts *opts, char weights[33],
                                              char state[33]);

/**
 * Write a checkpoint's weights as a Hugging Face directory, the same bytes that strata_engine_export() of its run would have
 * written at this step: config.json and the model's other small files are those that the run saved.  Every tile is compared with
 * its checksum on the way; all files appear together, or none.
 *
 * @param dir  created with all parents that are missing, which are removed again after a failure
 * @param how  NULL: as STRATA_EXPORT_OPTS_INIT
 *
 * @return STRATA_E_CORRUPT  a tile is damaged; the sentence names it, `damaged` is not called.  Else as strata_verify(), and
 *         STRATA_E_INPUT    `dir` holds a model and `overwrite` is false, or cannot be written to; or the checkpoint has no
 *                           config.json
 *         STRATA_E_NUMERICS a weight is not finite; the sentence names the tensor
 *         STRATA_E_NOFIT    the disk lacks the space
 *
 * Cost    reads and writes the weights once; about 40 MiB of memory.
 */
STRATA_API strata_status strata_verify_export(const char *path, const char *dir, const struct strata_export_opts *how,
                                              const struct strata_verify_opts *opts);

/** A tensor of layers of others (strata/layers.h).  Texts are borrowed during the call that gets it. */
struct strata_verify_tensor {
    const char *name;
    const char *shape;  /**< "2x3" */
    strata_dtype dtype; /**< of the weights that the run computed with */
    uint64_t elems;
};

/** Gets elements [first, first + count) of a tensor.  The parts of one follow each other. @return false: the reading ends */
typedef bool strata_verify_tensor_fn(void *ctx, const struct strata_verify_tensor *tensor, uint64_t first, uint64_t count,
                                     const float *values);

/**
 * Hand over the tensors of a checkpoint of layers of others, at full precision: of those that are trained the fp32 masters, of
 * frozen ones the weights.  Every tile is compared with its checksum before.
 *
 * @param take  called on the caller's thread
 * @param ctx   passed to it
 *
 * @return as strata_verify_digest(), and
 *         STRATA_E_INPUT      it is of a model of strata's: strata_verify_export() writes that
 *         STRATA_E_CANCELLED  `take` returned false
 *
 * Cost    reads weights and masters once; about 52 MiB of memory.
 */
STRATA_API strata_status strata_verify_tensors(const char *path, const struct strata_verify_opts *opts,
                                               strata_verify_tensor_fn *take, void *ctx);

/** Whether a path names a checkpoint, or a directory that has some; nothing is checked.
 *
 *  @return STRATA_E_INVAL  an argument is NULL
 *          STRATA_E_INPUT  there is no such path, or it may not be looked at
 *          STRATA_E_IO, STRATA_E_NOMEM */
STRATA_API strata_status strata_verify_find(const char *path, bool *found);

/** Path of the newest checkpoint that opens of those beside the one at `path`, which need not open, and before it.
 *
 *  @param older  [4096] out
 *  @return STRATA_E_INPUT, STRATA_E_CORRUPT: there is none; STRATA_E_INVAL, STRATA_E_NOMEM, STRATA_E_IO */
STRATA_API strata_status strata_verify_older(const char *path, char older[4096]);

/** Path of the checkpoint beside the one at `path` that was made last, if another run has made it after that one: the newest of
 *  a directory may be of a run that --overwrite has left behind.
 *
 *  @param later  [4096] out
 *  @return STRATA_E_INPUT: there is none; STRATA_E_CORRUPT: that at `path` does not open; STRATA_E_INVAL, STRATA_E_NOMEM,
 *          STRATA_E_IO */
STRATA_API strata_status strata_verify_later(const char *path, char later[4096]);

/**
 * What runs left in a directory of checkpoints or of swap files: the directories in which live runs work, and what dead ones did
 * not remove.
 *
 * @param sweep    remove what dead runs left; else only look
 * @param seen     called for each that is there afterwards; may be NULL. One of another user that cannot be looked into counts as
 *                 live, after a warning
 * @param removed  out: how many were removed
 *
 * @return STRATA_E_INVAL  an argument is NULL
 *         STRATA_E_INPUT  there is no such directory
 */
STRATA_API strata_status strata_verify_leftovers(const char *dir, bool sweep,
                                                 void (*seen)(void *ctx, const char *path, bool live), void *ctx,
                                                 uint32_t *removed);

#ifdef __cplusplus
}
#endif
#endif
