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

#endif
