/* tests/engine/agree.h - runs that must agree bit for bit. */
#ifndef TESTS_ENGINE_AGREE_H
#define TESTS_ENGINE_AGREE_H

#include "rig.h"

#include <stddef.h>

/** Run the cells, which differ in where things lie and in what order they happen: losses, weights and state have the same bits,
 * and what moved is what was planned.  Returns the first one's result; fails the test otherwise, with the cell. */
struct rig_result rig_agree(const struct rig_cell *cells, size_t count, uint32_t steps, const char *nvme_dir);

#define AGREE_PLACES 4u
/** Where state and weights may lie, in runs of two micro-batches: all on the device; state on NVMe with the least memory; all on
 * NVMe, in slots, with a flush on the way; state in memory, another schedule and kernels. */
struct rig_cell agree_place(size_t place);

#endif
