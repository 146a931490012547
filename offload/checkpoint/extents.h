/* offload/checkpoint/extents.h - extents.bin of a checkpoint: where each plane of each chunk lies, and the checksums of its
 * tiles.
 *
 * The file: a header of ST_EXTENTS_HEADER bytes, the rows, the sums, and the XXH3-128 of all before it as 32 hex digits.  Numbers
 * are little-endian.  Elements are counted from the start of their group and cut at whole tiles, so that runs whose chunks,
 * tiers and worlds differ read the same rows. */
#ifndef OFFLOAD_CHECKPOINT_EXTENTS_H
#define OFFLOAD_CHECKPOINT_EXTENTS_H

#include "offload/program/program.h"
#include "strata/status.h"

#include <stdint.h>

#define ST_EXTENTS_HEADER  64u
#define ST_EXTENTS_TRAILER 32u
#define ST_EXTENTS_ALIGN   64u /* of a row's offset */

/* One plane of a run of elements of a group. */
struct st_extent_row {
    uint32_t page;
    uint8_t group;  /* index in the page's list of groups */
    uint8_t plane;  /* enum st_plane */
    uint8_t space;  /* enum st_space: BASE or SET */
    uint8_t format; /* weight: strata_dtype; master: enum st_master; moments: enum st_moment_format */
    uint64_t first, elems;
    uint64_t offset, bytes;        /* in its space */
    uint64_t sum_first, sum_count; /* of its tiles, ST_TILE_ELEMS elements each but for the last of a group */
};

struct st_extents {
    struct st_extent_row *rows; /* [row_count] by page, group, plane, first; their sums follow each other without a gap */
    uint64_t *sums;             /* [sum_count] XXH3-64 of each tile, as core/base/checksum.h makes it */
    uint64_t row_count, sum_count;
};

/** A row's `format`, for weights that are stored so. */
static inline uint8_t st_extent_format(enum st_plane plane, strata_dtype format, enum st_moment_format moments)
{
    return plane == ST_PLANE_WEIGHT   ? (uint8_t)format
           : plane == ST_PLANE_MASTER ? (uint8_t)st_master_of(format)
                                      : (uint8_t)moments;
}

/** Bytes of the file. */
uint64_t st_extents_bytes(const struct st_extents *e);
/** Hand the file's bytes to `put`, part by part.
 *  @param digest  out: the file's last 32 bytes; the manifest names them, too
 *  @return E_NOMEM, or what put returned */
strata_status st_extents_write(const struct st_extents *e,
                               strata_status (*put)(void *ctx, const void *part, uint64_t bytes, uint64_t offset), void *ctx,
                               char digest[33]);
struct st_extents_merge;

/** Rows of several files, each of another rank's part, as those of one: offsets in a space count through the parts in this order.
 *  Their sums stay in the files, which must not change until close.
 *  @param space_bytes  of one part
 *  @return E_CORRUPT: a file is none, or damaged; E_NOMEM; E_IO */
strata_status st_extents_merge_open(struct st_extents_merge **out, const char *const *paths, uint32_t count,
                                    const uint64_t space_bytes[ST_SPACE_COUNT]);
/** The merged rows, without sums; borrowed until close. */
const struct st_extents *st_extents_merged(const struct st_extents_merge *merge);
/** As st_extents_write(); the sums pass through a MiB of memory.  E_CORRUPT: a part is not what its checksum says. */
strata_status st_extents_merge_write(struct st_extents_merge *merge,
                                     strata_status (*put)(void *ctx, const void *part, uint64_t bytes, uint64_t offset),
                                     void *ctx, char digest[33]);
void st_extents_merge_close(struct st_extents_merge *merge); /* NULL: nothing */

/** Read all of an open file, whose numbers are then possible and in order: rows ascend and do not overlap, first elements are at
 *  whole tiles, each has the sums of its tiles, all sums belong to a row.  Whether they fit the model is st_checkpoint_open()'s
 *  to say.
 *  @param out     freed with st_extents_fini(); untouched on failure
 *  @param bytes   of the file; memory of about that size is taken
 *  @param digest  what the manifest names; NULL: not compared
 *  @return E_CORRUPT: damaged, or not such a file; E_NOMEM; E_IO */
strata_status st_extents_read(struct st_extents *out, int fd, uint64_t bytes, const char *path, const char *digest);
/** The row that has an element of a plane of a group; NULL: none has. */
const struct st_extent_row *st_extents_row(const struct st_extents *e, uint32_t page, uint32_t group, uint32_t plane,
                                           uint64_t element);
void st_extents_fini(struct st_extents *e);

#endif
