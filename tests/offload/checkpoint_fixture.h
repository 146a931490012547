/* tests/offload/checkpoint_fixture.h - a small checkpoint: two pages, the second one frozen, striped over two directories. */
#ifndef TESTS_OFFLOAD_CHECKPOINT_FIXTURE_H
#define TESTS_OFFLOAD_CHECKPOINT_FIXTURE_H

#include "offload/checkpoint/extents.h"
#include "offload/checkpoint/manifest.h"

#define FIXTURE_ELEMS  UINT64_C(70016) /* of the decayed group: one whole tile and a part */
#define FIXTURE_BIASES UINT64_C(128)
#define FIXTURE_FROZEN UINT64_C(4096)

/** Every number of it differs from the others; owned by the caller: st_manifest_fini(). */
struct st_manifest fixture_manifest(void);
/** Rows for that manifest, with sums that match nothing; st_extents_fini(). */
struct st_extents fixture_extents(void);

/** The same model with `elems` decayed parameters, in rows of at most `chunk` (a multiple of a tile). */
struct st_manifest fixture_manifest_of(uint64_t elems);
struct st_extents fixture_extents_of(const struct st_manifest *m, uint64_t chunk);
/** The byte at `at` of a space's file images. */
unsigned char fixture_byte(enum st_space space, uint64_t at);
/** Spaces as large as the rows need, and sums of those bytes. */
void fixture_seal(struct st_manifest *m, struct st_extents *e);
/** Write a whole checkpoint into a directory that is there: files of those bytes, their sums into `e`, extents.bin, and
 *  manifest.json; m gets what it must say of them. */
void fixture_write(const char *dir, struct st_manifest *m, struct st_extents *e);
/** The same of many ranks, each of which has those bytes, in files that are one under many names: rows are dealt out among them,
 *  from the last rank on. */
void fixture_write_ranks(const char *dir, struct st_manifest *m, struct st_extents *e, uint32_t ranks);
/** Make SAVE/step-..., with rows of one tile. */
void fixture_checkpoint(const char *save, uint64_t step);

#endif
