/* offload/checkpoint/checkpoint.h - a checkpoint that is read: its manifest, its rows, its files.
 *
 * What open accepts is whole as far as names, sizes and the two small files go: the rows cover every plane of every group exactly
 * once and lie in the files.  Whether the planes' bytes are what was written, their sums say, which st_reader_read() compares.
 * Read-only; any thread. */
#ifndef OFFLOAD_CHECKPOINT_CHECKPOINT_H
#define OFFLOAD_CHECKPOINT_CHECKPOINT_H

#include "core/base/space.h"
#include "core/system/file.h"
#include "nvme/mover/mover.h"
#include "offload/checkpoint/extents.h"
#include "offload/checkpoint/manifest.h"
#include "strata/status.h"

#define ST_CHECKPOINT_MODEL "model" /* its directory of config.json and the model's other small files */

struct st_checkpoint {
    char path[ST_PATH_MAX];
    struct st_manifest manifest;
    struct st_extents extents;
};

/** Whether rows are those of a manifest: each plane of each group once, each with the bytes that it must have, in its space.
 *  E_CORRUPT; `name` is used in sentences. */
strata_status st_checkpoint_check(const struct st_manifest *m, const struct st_extents *e, const char *name);

/** Open SAVE/step-...; the files' bytes are not read.
 *  E_INPUT: there is no checkpoint; E_CORRUPT: it is damaged, or a file of it is missing or cut; E_NOMEM; E_IO */
strata_status st_checkpoint_open(struct st_checkpoint **out, const char *path);
void st_checkpoint_close(struct st_checkpoint *ck); /* NULL: nothing */
/** Whether it is there as it was opened.  E_INPUT: it has been removed, or another one has its name. */
strata_status st_checkpoint_still_there(const struct st_checkpoint *ck);
/** What a failure to read an open one comes to: E_INPUT, and a sentence of that, if it is no longer there; else the failure, with
 *  its sentence. */
strata_status st_checkpoint_failed(const struct st_checkpoint *ck, strata_status st);

/** Open the newest checkpoint of SAVE that opens.
 *  @param skipped  called for each newer one, with its path and the sentence; may be NULL
 *  @return E_INPUT: there is no such directory, or no checkpoint in it; E_CORRUPT: none opens */
strata_status st_checkpoint_newest(struct st_checkpoint **out, const char *save,
                                   void (*skipped)(void *ctx, const char *path, const char *sentence), void *ctx);
/** Open the newest one that opens of those beside `path`, and before it: its name says its step, or that of what a link leads to.
 *  Errors as above. */
strata_status st_checkpoint_older(struct st_checkpoint **out, const char *path);
/** Open the last made of those beside `path` that were made after it, if another run made it.  E_INPUT: none is. */
strata_status st_checkpoint_later(struct st_checkpoint **out, const char *path);
/** Open what `path` names: a checkpoint, or a directory of checkpoints, whose newest. */
strata_status st_checkpoint_find(struct st_checkpoint **out, const char *path,
                                 void (*skipped)(void *ctx, const char *path, const char *sentence), void *ctx);

/** E_INPUT: an engine of Python's has saved in the directory, or it is a tag of one: python -m strata reads those. */
strata_status st_checkpoint_refuse_python(const char *dir);

/** The first of the rows that hold elements [first, first + elems) of a plane; the others follow it.  They must be elements of
 * the group, and the group must have the plane: else NULL.
 *  @param count  out: how many rows */
const struct st_extent_row *st_checkpoint_rows(const struct st_checkpoint *ck, uint32_t page, uint32_t group, enum st_plane plane,
                                               uint64_t first, uint64_t elems, uint64_t *count);

#define ST_CHECKPOINT_PARTS UINT32_MAX

/* A space of a checkpoint as a volume for the mover, which borrows all of it.  Must not move in memory while it is in use. */
struct st_checkpoint_volume {
    struct st_volume_opts opts;   /* read only; opts.bytes 0: the space is empty, and there is no volume */
    struct st_volume_file *files; /* [count] */
    char (*paths)[ST_PATH_MAX];   /* [count] */
    uint32_t count;
    bool direct; /* every file is read past the page cache */
};
/** Open its files, and lock them, shared, so that a run whose own files they are writes new ones instead.
 *  E_CORRUPT: one is missing; E_INPUT: the checkpoint was removed or replaced meanwhile; E_IO, E_NOMEM.
 *  @param part  only that part's, whose offsets begin with 0; ST_CHECKPOINT_PARTS: all, where the rows' offsets lie */
strata_status st_checkpoint_volume_open(struct st_checkpoint_volume *out, const struct st_checkpoint *ck, enum st_space space,
                                        uint32_t part);
void st_checkpoint_volume_close(struct st_checkpoint_volume *v);

#endif
