/* offload/program/shard.h - what of each page belongs to which rank.
 *
 * A group is cut in slices of whole units, one for each rank: units are tiles, and of the table and the head whole rows, too, so
 * that no row has two owners.  Slices of consecutive groups begin with different ranks, so that small groups spread.  A rank's
 * slices of a page, one behind the other, are its shard: a page of its own, laid out as one, whose groups have room for the
 * largest slice of any rank.  So all ranks have the same shards, buffers and bytes; how much of a group's room is filled differs.
 */
#ifndef OFFLOAD_PROGRAM_SHARD_H
#define OFFLOAD_PROGRAM_SHARD_H

#include "offload/workload.h"

/* A rank's elements of a group, counted from the group's first. */
struct st_slice {
    uint64_t first, elems; /* elems 0: none of them */
};

/** Elements of a page at which groups may be cut: tiles; of the table and the head whole rows, too. */
uint64_t st_shard_unit(const struct st_workload *w, uint32_t page);
/** The slice of a page's group that a rank has. */
struct st_slice st_slice_of(const struct st_workload *w, uint32_t page, uint32_t group, uint32_t ranks, uint32_t rank);
/** The rank that has an element of a group. */
uint32_t st_slice_owner(const struct st_workload *w, uint32_t page, uint32_t group, uint32_t ranks, uint64_t element);
/** The rank whose slice is the s-th of a group. */
uint32_t st_slice_rank(uint32_t page, uint32_t group, uint32_t ranks, uint32_t s);
/** Runs of tiles that a slice is made of, whose sums of squares a rank hands on (st_norm_run()). */
uint32_t st_slice_runs(struct st_slice slice);
/** A page's shard, the same for every rank; with one rank the page itself. */
void st_shard_make(struct st_page *out, const struct st_workload *w, uint32_t page, uint32_t ranks);

/* Bytes of weights that are the same in a rank's shard and in the page. */
struct st_shard_piece {
    uint64_t shard_at, page_at, bytes; /* from the start of each */
};
/** What the rank has in bytes [first, first + bytes) of its shard, in order: at most a piece of each group.  Room that the rank's
 *  slices do not fill, and what lies between groups, is in none; with one rank all of it is one piece.
 *  @param out  [ST_GROUPS_MAX]
 *  @return how many, maybe 0 */
uint32_t st_shard_pieces(struct st_shard_piece *out, const struct st_workload *w, uint32_t page, uint32_t ranks, uint32_t rank,
                         uint64_t first, uint64_t bytes);

#endif
